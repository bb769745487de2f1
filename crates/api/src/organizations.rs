//! The operator's routes for renaming and deleting organizations.

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;

use super::doc::Doc;
use super::{Context, Services, limits};
use orrery_domain::account::Organization;
use orrery_http::{Response, response};
use orrery_wire::operator::Contents;

/// Maximum number of unfinished executions to count.
const COUNTED_MAX: usize = 100_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewName {
    name: String,
}

pub(crate) const RENAME: Doc =
    Doc::new("admin", "admin_rename_organization", "Rename an organization");

/// `POST /admin/organizations/{organization}/rename`
pub(crate) async fn rename(mut context: Context) -> Result<Response, crate::Error> {
    let NewName { name } = context.request.json().await?;
    let organization = named(&context).await?;
    let services = &context.services;
    let accounts = services.accounts.by(context.actor());
    let renamed = accounts.rename_organization(organization.id, &name).await?;
    Ok(response::json(StatusCode::OK, &limits::described(services, &renamed).await?))
}

pub(crate) const CONTENTS: Doc =
    Doc::new("admin", "admin_organization_contents", "Count what a deletion would delete");

/// `GET /admin/organizations/{organization}/contents`
pub(crate) async fn contents(context: Context) -> Result<Response, crate::Error> {
    let organization = named(&context).await?;
    let contents = contents_of(&context.services, &organization).await?;
    Ok(response::json(StatusCode::OK, &contents))
}

pub(crate) const DELETE: Doc =
    Doc::new("admin", "admin_delete_organization", "Delete an organization with its data");

/// `DELETE /admin/organizations/{organization}?force=`: rejected while executions are unfinished,
/// unless forced. An acknowledged deletion is durable, and the service erases the data in the
/// background.
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    let is_forced = match context.request.query.get("force") {
        None | Some("" | "false") => false,
        Some("true") => true,
        Some(_) => return Err(crate::Error::bad_request("force must be true or false")),
    };
    let organization = named(&context).await?;
    let services = &context.services;
    let contents = contents_of(services, &organization).await?;
    if contents.unfinished_executions > 0 && !is_forced {
        return Err(crate::Error::conflict(format!(
            "{} executions of the organization {} are unfinished: wait until they end, or delete \
             the organization with --force, which cancels the executions",
            contents.unfinished_executions, organization.name
        )));
    }
    let accounts = services.accounts.by(context.actor());
    accounts.delete_organization(organization.id).await?;
    Ok(response::json(StatusCode::ACCEPTED, &Contents { deleted: true, ..contents }))
}

async fn named(context: &Context) -> Result<Organization, crate::Error> {
    let name = context.request.param("organization");
    Ok(context.services.accounts.organization(name).await?)
}

async fn contents_of(
    services: &Services,
    organization: &Organization,
) -> Result<Contents, crate::Error> {
    let id = organization.id;
    let filter = orrery_workflows::Filter::newest(0, 1);
    let (_, workflows) = services.workflows.list(id, &filter).await?;
    let usage = services.files.usage(id).await?;
    let unfinished = services.engine.unfinished(Some(id), COUNTED_MAX).await?;
    Ok(Contents {
        organization: organization.name.clone(),
        keys: count(services.accounts.keys(id).await?.len()),
        members: count(services.members.list(id).await?.len()),
        workflows: count(workflows),
        schedules: count(services.schedules.list(id).await?.len()),
        chains: count(services.chains.list(id).await?.len()),
        secrets: count(services.secrets.list(id).await?.len()),
        webhook_endpoints: count(services.outbox.endpoints().list(id).await?.len()),
        unfinished_executions: count(unfinished.len()),
        files: usage.files,
        file_bytes: usage.bytes,
        balance_usd: services.billing.balance(id).await?.dollars(),
        deleted: false,
    })
}

fn count(length: usize) -> u64 {
    length as u64
}
