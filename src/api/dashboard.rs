//! The dashboard host: the status page and the figures that it shows.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::{Context, Role};
use crate::dashboard;
use crate::http::{self, Reply, reply};

/// `GET /`: the page itself.
pub async fn page(context: Context) -> Result<Reply, http::Error> {
    asset_reply(&context, "index.html")
}

/// `GET /static/{file}`
pub async fn asset(context: Context) -> Result<Reply, http::Error> {
    asset_reply(&context, context.call.param("file"))
}

fn asset_reply(context: &Context, path: &str) -> Result<Reply, http::Error> {
    dashboard::asset(path, context.call.headers.get(hyper::header::IF_NONE_MATCH))
        .ok_or_else(|| http::Error::not_found("not found"))
}

/// `GET /status.json`: what the page shows; counts only, nothing of any organization.
pub async fn status(context: Context) -> Result<Reply, http::Error> {
    let services = &context.services;
    let (running, queued) = services.engine.totals();
    let ready = services.readiness.get();
    let hosts: Vec<Value> = services
        .settings
        .hosts
        .iter()
        .filter(|host| !matches!(host.role, Role::Metrics | Role::Control))
        .map(|host| json!({"role": host.role.as_str(), "url": host.url, "healthy": true}))
        .collect();
    let figures = *services.outbox.figures().borrow();
    let body = json!({
        "name": "orrery",
        "version": env!("CARGO_PKG_VERSION"),
        "ready": ready,
        "uptime_seconds": services.clock.now().since(services.started_at).as_secs(),
        "hosts": hosts,
        "models": services.catalog.len(),
        "executions": {"running": running, "queued": queued},
        "webhooks": {"pending": figures.held},
    });
    Ok(reply::json(StatusCode::OK, &body))
}
