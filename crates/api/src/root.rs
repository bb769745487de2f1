//! Routes that every host serves without a key: index, health, readiness, metrics and the OpenAPI
//! document.

use hyper::StatusCode;
use serde_json::{Map, Value};

use super::doc::{Doc, ResponseDoc};
use super::{Context, Services};
use orrery_http::{Response, response};
use orrery_telemetry as telemetry;
use orrery_wire::service::{Health, Index, Links, Ready};

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) const INDEX: Doc = Doc {
    responses: &[ResponseDoc::json::<Index<'static>>(200, "Name, version, role and links")],
    description: "Returns the name, the version and the role of this host, and the paths of its \
                  other general routes. Needs no key and accepts any query parameter.",
    ..Doc::new("service", "index", "Get information about this host")
};

/// `GET /`
pub(crate) async fn index(context: Context) -> Result<Response, crate::Error> {
    let own = context.services.url_of(context.role);
    let link = |path: &str| format!("{own}{path}");
    let body = Index {
        name: "orrery",
        version: VERSION,
        role: context.role.as_str(),
        links: Links {
            health: link("/health"),
            ready: link("/ready"),
            openapi: link("/openapi.json"),
        },
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const HEALTH: Doc = Doc {
    responses: &[ResponseDoc::json::<Health<'static>>(200, "The process is running")],
    description: "Returns 200 as long as the process runs, without a key. For load balancers that \
                  must know whether work is accepted, use `GET /ready`.",
    ..Doc::new("service", "health", "Check that the process is running")
};

/// `GET /health`
pub(crate) async fn health(_context: Context) -> Result<Response, crate::Error> {
    Ok(response::json(StatusCode::OK, &Health { status: "healthy", version: VERSION }))
}

pub(crate) const READY: Doc = Doc {
    responses: &[ResponseDoc::json::<Ready<'static>>(
        200,
        "The store is open and recovery is complete",
    )],
    description: "Returns 200 once the store is open and unfinished work is loaded, and 503 until \
                  then and during a shutdown. `warnings` lists conditions that need the operator's \
                  attention, such as a nearly full disk. Needs no key.",
    ..Doc::new("service", "ready", "Check whether the service accepts work")
};

/// `GET /ready`: 503 until startup has loaded the unfinished work. `paused` is set while restored
/// work waits for `orrery resume`.
pub(crate) async fn ready(context: Context) -> Result<Response, crate::Error> {
    if !context.services.readiness.get() {
        return Err(crate::Error::unavailable("starting: loading unfinished work"));
    }
    let paused = context.services.engine.paused_since().map(|_since| true);
    let warnings = warnings(&context.services).await?;
    let body = Ready { status: "ready", version: VERSION, paused, warnings };
    Ok(response::json(StatusCode::OK, &body))
}

/// Returns warnings about conditions that need the operator's attention, even though the service
/// accepts work.
pub(super) async fn warnings(services: &Services) -> Result<Vec<String>, crate::Error> {
    let disk = services.store.disk_space().concern().map(|concern| format!("disk: {concern}"));
    let doctor = &services.settings.doctor;
    let backups = doctor.late_backup(services.clock.now()).await.map_err(crate::Error::internal)?;
    let backups = backups.map(|concern| format!("backups: {concern}"));
    let is_ahead = services.clock.ahead().is_some();
    let clock = is_ahead.then(|| "clock: implausible time; run `orrery doctor`".to_owned());
    Ok([disk, backups, clock].into_iter().flatten().collect())
}

pub(crate) const OPENAPI: Doc = Doc {
    responses: &[ResponseDoc::json::<Map<String, Value>>(200, "The OpenAPI 3.1 document")],
    description: "Returns this document, which is generated from the route table that also serves \
                  the requests. Needs no key.",
    ..Doc::new("service", "openapi", "Get this OpenAPI document")
};

/// `GET /openapi.json`: the OpenAPI document of this host.
pub(crate) async fn openapi(context: Context) -> Result<Response, crate::Error> {
    let url = context.services.url_of(context.role);
    let text = context.services.documents.of_host(context.role, url);
    Ok(response::json_text(StatusCode::OK, text.map_err(crate::Error::internal)?))
}

pub(crate) const METRICS: Doc = Doc {
    responses: &[ResponseDoc::raw(200, "text/plain", "Prometheus's text format")],
    ..Doc::new("service", "metrics", "Get metrics for Prometheus")
};

/// `GET /metrics`: metrics in Prometheus's text format.
pub(crate) async fn metrics(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let (running, queued) = services.engine.totals();
    let stats = services.store.stats();
    for (name, value) in [
        ("orrery_executions_running", running as f64),
        ("orrery_executions_queued", queued as f64),
        ("orrery_paused", f64::from(u8::from(services.engine.paused_since().is_some()))),
        ("orrery_executions_retrying", services.engine.retrying() as f64),
        ("orrery_commits_waiting", stats.waiting as f64),
        ("orrery_store_bytes", stats.bytes_on_disk as f64),
        ("orrery_disk_free_bytes", services.store.disk_space().free() as f64),
        ("orrery_disk_reserve_bytes", services.store.disk_space().reserve() as f64),
        ("orrery_disk_low", f64::from(u8::from(services.store.disk_space().is_low()))),
        ("orrery_bodies_in_flight_bytes", services.bodies.used() as f64),
        ("orrery_requests_in_flight", services.requests.used() as f64),
        ("orrery_clock_ahead_seconds", services.clock.ahead().unwrap_or_default().as_secs_f64()),
        ("orrery_models", services.catalog.list().len() as f64),
    ] {
        metrics::gauge!(name).set(value);
    }
    for model in services.catalog.list() {
        let load = services.engine.load(model.slug.as_str());
        let slug = model.slug.to_string();
        let health = if model.failing().is_some() { 0.0 } else { 1.0 };
        metrics::gauge!("orrery_model_healthy", "model" => slug.clone()).set(health);
        metrics::gauge!("orrery_model_running", "model" => slug.clone()).set(load.running as f64);
        metrics::gauge!("orrery_model_queued", "model" => slug.clone()).set(load.queued as f64);
        if let Some(pull) = model.runner.pull() {
            let situation = pull.situation();
            let waiting = load.queued.saturating_add(situation.waiting);
            metrics::gauge!("orrery_model_waiting", "model" => slug.clone()).set(waiting as f64);
            let workers = situation.workers as f64;
            metrics::gauge!("orrery_model_workers", "model" => slug.clone()).set(workers);
        }
        if let Some(server) = model.runner.managed() {
            let ready = f64::from(u8::from(server.is_ready()));
            metrics::gauge!("orrery_server_ready", "model" => slug.clone()).set(ready);
        }
        for endpoint in model.runner.endpoints() {
            let used = f64::from(u8::from(endpoint.is_used()));
            let labels = [("model", slug.clone()), ("endpoint", endpoint.name)];
            metrics::gauge!("orrery_endpoint_used", &labels).set(used);
            metrics::gauge!("orrery_endpoint_in_flight", &labels).set(endpoint.in_flight as f64);
        }
    }
    for upstream in services.chat.upstream_states() {
        let used = f64::from(u8::from(upstream.is_used));
        let name = upstream.name;
        metrics::gauge!("orrery_upstream_used", "upstream" => name.clone()).set(used);
        metrics::gauge!("orrery_upstream_in_flight", "upstream" => name.clone())
            .set(upstream.in_flight as f64);
        metrics::gauge!("orrery_upstream_spend_dollars", "upstream" => name)
            .set(upstream.spend.dollars());
    }
    let text = services.metrics.render() + &telemetry::process_metrics();
    Ok(response::text(StatusCode::OK, text))
}
