//! The routes of the audit log: for the operator, and for members, who see only the entries of
//! their organization.

use hyper::StatusCode;

use super::Context;
use super::doc::{self, Doc, ResponseDoc};
use orrery_http::query::read_time;
use orrery_http::{Response, response};
use orrery_records::audit::Filter;
use orrery_wire::member::{AuditEvent, AuditEvents};
use orrery_wire::operator::Acts;

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 10_000;

pub(crate) const LIST: Doc = Doc {
    description: "Returns the newest entries of the audit log of all organizations that match the \
                  filters.",
    ..Doc::new("admin", "admin_list_audit", "List audit log entries, newest first")
};

pub(crate) const LIST_ALL: Doc = Doc {
    query: &[
        doc::Param::new("action", doc::Kind::Text, "A prefix of the action, such as `key`"),
        doc::Param::new("organization", doc::Kind::Text, "The name of an organization"),
        doc::Param::new("from", doc::Kind::Time, "Only entries at or after this time"),
        doc::Param::new("to", doc::Kind::Time, "Only entries before this time"),
        doc::Param::limit(LIMIT_MAX, LIMIT_DEFAULT),
    ],
    responses: &[ResponseDoc::json::<Acts>(200, "The entries, newest first")],
    ..LIST
};

/// `GET /admin/audit?action=&organization=&from=&to=&limit=`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let query = &context.request.query;
    let given = |name: &str| query.get(name).filter(|text| !text.is_empty());
    let moment = |name: &str| query.get(name).map(|text| read_time(name, text)).transpose();
    let organization = match given("organization") {
        Some(name) => Some(services.accounts.organization(name).await?.id),
        None => None,
    };
    let filter = Filter {
        action: given("action").map(str::to_owned),
        organization,
        from: moment("from")?,
        to: moment("to")?,
    };
    let limit = usize::try_from(query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?)?;
    // Flush the counts of failed authentications first, so that the response includes them.
    services.audit.write_denied().await?;
    let entries = services.audit.list(&filter, limit).await?;
    let entries = entries.iter().map(|entry| entry.show(None)).collect();
    Ok(response::json(StatusCode::OK, &Acts { entries }))
}

const OWN_LIMIT_MAX: u64 = 1000;

pub(crate) const OF_ORGANIZATION: Doc = Doc {
    query: &[
        doc::Param::new("action", doc::Kind::Text, "A prefix of the action, such as `key`"),
        doc::Param::limit(OWN_LIMIT_MAX, LIMIT_DEFAULT),
    ],
    responses: &[ResponseDoc::json::<AuditEvents>(200, "The entries, newest first")],
    description: "Returns the newest entries of the audit log that concern the organization. \
                  `action` filters by a prefix.",
    ..Doc::new("audit", "list_audit", "List audit log entries")
};

/// `GET /audit?action=&limit=`: the audit log of the member's organization.
pub(crate) async fn of_organization(context: Context) -> Result<Response, crate::Error> {
    let query = &context.request.query;
    let filter = Filter {
        action: query.get("action").filter(|text| !text.is_empty()).map(str::to_owned),
        organization: Some(context.organization()?),
        ..Filter::default()
    };
    let limit = usize::try_from(query.number("limit", 1..=OWN_LIMIT_MAX, LIMIT_DEFAULT)?)?;
    let entries = context.services.audit.list(&filter, limit).await?;
    let event = |entry: orrery_records::audit::Entry| AuditEvent {
        at: entry.at.into(),
        actor: entry.actor,
        from: entry.from,
        action: entry.action,
        subject: entry.subject,
        result: entry.result,
    };
    let events = entries.into_iter().map(event).collect();
    Ok(response::json(StatusCode::OK, &AuditEvents { events }))
}
