//! The dashboard host: the status page and the figures that it shows.

use hyper::StatusCode;

use super::doc::{Doc, ResponseDoc};
use super::{Context, Role};
use crate::dashboard;
use crate::http::{self, Response, response};
use crate::wire::service::{Executions, Host, Status, Webhooks};

pub const PAGE: Doc = Doc {
    responses: &[ResponseDoc::raw(200, "text/html", "The page")],
    ..Doc::new("dashboard", "page", "The status page")
};

/// `GET /`: the page itself.
pub async fn page(context: Context) -> Result<Response, http::Error> {
    asset_reply(&context, "index.html")
}

pub const ASSET: Doc = Doc {
    responses: &[
        ResponseDoc::raw(200, "*/*", "The file"),
        ResponseDoc::empty(304, "The client has it already"),
        ResponseDoc::error(404, "There is no such file"),
    ],
    ..Doc::new("dashboard", "asset", "A file of the status page")
};

/// `GET /static/{file}`
pub async fn asset(context: Context) -> Result<Response, http::Error> {
    asset_reply(&context, context.request.param("file"))
}

fn asset_reply(context: &Context, path: &str) -> Result<Response, http::Error> {
    dashboard::asset(path, context.request.headers.get(hyper::header::IF_NONE_MATCH))
        .ok_or_else(|| http::Error::not_found("not found"))
}

pub const STATUS: Doc = Doc {
    responses: &[ResponseDoc::json::<Status<'static>>(200, "What the status page shows")],
    ..Doc::new("dashboard", "status", "The figures of the status page")
};

/// `GET /status.json`: what the page shows; counts only, nothing of any organization.
pub async fn status(context: Context) -> Result<Response, http::Error> {
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
