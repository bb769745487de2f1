//! The routes of the dashboard's host for its page, its assets, and the service status.

use hyper::StatusCode;

use super::doc::{Doc, ResponseDoc};
use super::{Context, Role, doctor};
use crate::static_files as dashboard;
use orrery_http::{Response, response};
use orrery_wire::service::{Executions, Findings, Host, OwnStatus, Status, Webhooks};

pub(crate) const PAGE: Doc = page_doc(
    "page",
    "The dashboard",
    "Returns the page of the dashboard. Needs no session: the page shows the login \
     form if nobody is logged in.",
);
pub(crate) const PAGE_OF_APP: Doc = page_doc(
    "page_of_app",
    "Open the dashboard",
    "Returns the page of the dashboard, which shows its first screen.",
);
pub(crate) const PAGE_IN_APP: Doc = page_doc(
    "page_in_app",
    "Open a screen of the dashboard",
    "Returns the page of the dashboard, which shows the screen that the path names.",
);
pub(crate) const PAGE_OF_SETUP: Doc = page_doc(
    "page_of_setup",
    "Open a setup link",
    "Returns the page on which the Owner chooses a name and a password. The token \
     follows `#`, so browsers do not send it.",
);
pub(crate) const PAGE_OF_INVITATION: Doc = page_doc(
    "page_of_invitation",
    "Open an invitation",
    "Returns the page on which an invited person chooses a name and a password. The \
     token follows `#`, so browsers do not send it.",
);
pub(crate) const PAGE_OF_RESET: Doc = page_doc(
    "page_of_reset",
    "Open a password reset link",
    "Returns the page on which a member sets a new password. The token follows `#`, \
     so browsers do not send it.",
);

const PAGE_ANSWERS: &[ResponseDoc] =
    &[ResponseDoc::raw(200, "text/html", "The page"), ResponseDoc::empty(304, "Not modified")];

const fn page_doc(id: &'static str, summary: &'static str, description: &'static str) -> Doc {
    Doc { responses: PAGE_ANSWERS, description, ..Doc::new("dashboard", id, summary) }
}

/// `GET /` and the path of every screen: returns the page, which shows the screen for its path.
pub(crate) async fn page(context: Context) -> Result<Response, crate::Error> {
    asset_reply(&context, "index.html")
}

pub(crate) const ASSET: Doc = Doc {
    responses: &[
        ResponseDoc::raw(200, "*/*", "The file"),
        ResponseDoc::empty(304, "Not modified"),
        ResponseDoc::error(404, "File not found"),
    ],
    description: "Returns a script, a style sheet or another file of the page, with an `ETag`.",
    ..Doc::new("dashboard", "asset", "Get an asset of the dashboard")
};

/// `GET /static/{file}`
pub(crate) async fn asset(context: Context) -> Result<Response, crate::Error> {
    asset_reply(&context, context.request.param("file"))
}

fn asset_reply(context: &Context, path: &str) -> Result<Response, crate::Error> {
    dashboard::asset(path, context.site()?.place, &context.request.headers)
        .ok_or_else(|| crate::Error::not_found("not found"))
}

pub(crate) const STATUS: Doc = Doc {
    responses: &[ResponseDoc::json::<Status<'static>>(
        200,
        "Totals, with no data of any organization",
    )],
    description: "Returns the health of the hosts and totals of the whole service, with no data of \
                  any organization. Needs no session.",
    ..Doc::new("dashboard", "status", "Get the service status")
};

/// `GET /status.json`: totals only, with no data of any organization.
pub(crate) async fn status(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let (running, queued) = services.engine.totals();
    let ready = services.readiness.get();
    let hosts = services
        .settings
        .hosts
        .iter()
        .filter(|host| !matches!(host.role, Role::Metrics | Role::Control))
        .map(|host| Host { role: host.role.as_str(), url: &host.url, healthy: true })
        .collect();
    let figures = *services.outbox.metrics().borrow();
    let body = Status {
        name: "orrery",
        version: env!("CARGO_PKG_VERSION"),
        ready,
        uptime_seconds: services.clock.now().since(services.started_at).as_secs(),
        hosts,
        models: services.catalog.len(),
        executions: Executions { running, queued },
        webhooks: Webhooks { pending: figures.held },
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const OWN_STATUS: Doc = Doc {
    responses: &[ResponseDoc::json::<OwnStatus>(200, "The status of the organization")],
    description: "Returns how many executions of the organization are running, queued and waiting, \
                  and how many webhooks are pending. The two `waiting_for_…` figures are counted \
                  over at most 5,000 executions of each kind; `waiting_is_capped` tells whether \
                  there are more.",
    ..Doc::new("dashboard", "own_status", "Get the organization status")
};

/// `GET /status`
pub(crate) async fn own_status(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let organization = context.organization()?;
    let load = services.engine.load_of(organization).unwrap_or_default();
    let aside = services.aside.get(organization, services.engine.aside(organization)).await?;
    let pending = services.outbox.pending(organization).await.map_err(crate::Error::internal)?;
    let body = OwnStatus {
        running: load.running,
        queued: load.queued.saturating_sub(aside.for_person + aside.for_time),
        waiting_for_person: aside.for_person,
        waiting_for_time: aside.for_time,
        waiting_is_capped: aside.is_capped,
        webhooks_pending: pending,
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const FINDINGS: Doc = Doc {
    responses: &[ResponseDoc::json::<Findings>(200, "The findings, concerns first")],
    description: "Returns the findings of `orrery doctor` about the service and its machine, the \
                  worst first, without paths of the machine.",
    ..Doc::new("dashboard", "findings", "List findings about the service and its machine")
};

/// `GET /health/findings`
pub(crate) async fn findings(context: Context) -> Result<Response, crate::Error> {
    let found = doctor::findings(&context.services).await?;
    let doctor = &context.services.settings.doctor;
    // Only the operator may see who receives alerts.
    let found = found.into_iter().filter(|finding| finding.subject != orrery_alerts::SUBJECT);
    let findings = found.map(|finding| doctor.for_members(finding)).collect();
    Ok(response::json(StatusCode::OK, &Findings { findings }))
}
