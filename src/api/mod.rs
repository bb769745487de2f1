//! The API: what clients see. [`ROUTES`] is the whole of it on one screen.
//!
//! A handler parses, calls one verb of a layer below, replies. Wire types stand beside their
//! handlers and are never the stored types. Nothing here keeps state.
//!
//! To add an endpoint: a handler in the file of its resource, a row in [`ROUTES`] with every column
//! filled in, its words in `openapi.rs`, a test of each of its answers under `tests/it/`, and the
//! new line of the route snapshot.

mod access;
mod admin;
mod audit;
mod backup;
mod billing;
mod chains;
mod content;
mod context;
mod cursor;
mod dashboard;
mod dispatch;
mod events;
mod executions;
mod failures;
mod fields;
mod files;
mod flow_executions;
mod flows;
mod history;
mod idempotent;
mod meters;
mod models;
mod openapi;
mod operator;
mod predictions;
mod root;
mod services;
mod uploads;
mod webhooks;
mod workflows;

use hyper::Method;

pub use self::context::Context;
pub use self::dispatch::Host as HostService;
pub use self::openapi::Documents;
pub use self::services::{HostAddress, Keep, Readiness, Services, Settings};
use crate::http;

/// Which face of the service a route belongs to; each has a listener of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Base,
    Workflows,
    Flows,
    Agent,
    Dashboard,
    /// Prometheus reads here.
    Metrics,
    /// The Unix socket of the command line; its owner may do everything.
    Control,
}

impl Role {
    /// As `GET /` and the configuration spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Workflows => "workflows",
            Self::Flows => "flows",
            Self::Agent => "agent",
            Self::Dashboard => "dashboard",
            Self::Metrics => "metrics",
            Self::Control => "control",
        }
    }
}

/// Who may call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anyone.
    Public,
    /// The holder of an API key.
    Key,
    /// The holder of an API key, which may stand in the body as `api_key`.
    BodyKey,
    /// The holder of an API key, or of a link that the service gave out: its `token` opens this path.
    Link,
    /// Whoever can reach the listener: the control socket is its owner's alone.
    Local,
}

/// How much body a route takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLimit {
    /// None is read.
    None,
    /// `limits.body_bytes` of the configuration.
    Configured,
    /// A file: `files.max_bytes` of the configuration, and what a form puts around it.
    File,
}

/// Which token bucket a route draws from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// None.
    Free,
    /// `limits.rate` of the configuration, for each key.
    Configured,
    /// Three a second, for each key (`spec/api.md`, "Limits").
    Balance,
}

/// What a handler comes to.
pub type Handling =
    std::pin::Pin<Box<dyn Future<Output = Result<http::Reply, http::Error>> + Send>>;

/// A row of the table.
#[derive(Debug, Clone)]
pub struct Route {
    pub hosts: &'static [Role],
    pub method: Method,
    pub path: &'static str,
    pub access: Access,
    pub body: BodyLimit,
    pub rate: Rate,
    pub handler: fn(Context) -> Handling,
}

use Access::{BodyKey, Key, Link, Local, Public};
use BodyLimit::{Configured as Body, File, None as Bare};
use Rate::{Balance, Configured as Keyed, Free};
use Role::{Agent, Base, Control, Dashboard, Flows, Metrics, Workflows};

const API: &[Role] = &[Base, Workflows, Flows, Agent];
const ENGINE: &[Role] = &[Workflows];
const ALL: &[Role] = &[Base, Workflows, Flows, Agent, Dashboard];

macro_rules! route {
    ($hosts:expr, $method:ident, $path:literal, $access:ident, $body:ident, $rate:ident, $handler:path) => {
        Route {
            hosts: $hosts,
            method: Method::$method,
            path: $path,
            access: $access,
            body: $body,
            rate: $rate,
            handler: |context| Box::pin($handler(context)),
        }
    };
}

/// Every route: hosts, method, path, access, body, rate, handler. Nothing is defaulted. The router,
/// 405, the OpenAPI documents, the metrics' labels and the route snapshot are made from this.
#[rustfmt::skip]
pub const ROUTES: &[Route] = &[
    route!(API, GET, "/", Public, Bare, Free, root::index),
    route!(ALL, GET, "/health", Public, Bare, Free, root::health),
    route!(ALL, GET, "/ready", Public, Bare, Free, root::ready),
    route!(ALL, GET, "/openapi.json", Public, Bare, Free, root::openapi),
    route!(&[Metrics], GET, "/metrics", Public, Bare, Free, root::metrics),

    route!(&[Base], GET, "/v1/models", Public, Bare, Free, models::list),
    route!(&[Base], GET, "/v1/models/{*slug}", Public, Bare, Free, models::get),
    route!(&[Base], GET, "/v1/models/{*slug}/schemas/openapi", Public, Bare, Free, models::openapi),
    route!(&[Base], GET, "/v1/model", Public, Bare, Free, models::get_by_query),

    route!(&[Base], POST, "/v1/prediction", Key, Body, Keyed, predictions::create),
    route!(&[Base], POST, "/v1/prediction/run", Key, Body, Keyed, predictions::run),
    route!(&[Base], GET, "/v1/prediction/{id}", Key, Bare, Keyed, predictions::get),
    route!(&[Base], GET, "/v1/prediction/{id}/events", Link, Bare, Keyed, events::follow),
    route!(&[Base], POST, "/v1/prediction/{id}/cancel", Key, Body, Keyed, predictions::cancel),

    route!(ENGINE, POST, "/api/v1/workflows", Key, Body, Keyed, workflows::create),
    route!(ENGINE, GET, "/api/v1/workflows", Key, Bare, Keyed, workflows::list),
    route!(ENGINE, GET, "/api/v1/workflows/{workflow}", Key, Bare, Keyed, workflows::get),
    route!(ENGINE, PUT, "/api/v1/workflows/{workflow}", Key, Body, Keyed, workflows::update),
    route!(ENGINE, DELETE, "/api/v1/workflows/{workflow}", Key, Bare, Keyed, workflows::delete),
    route!(ENGINE, GET, "/api/v1/workflows/{workflow}/versions", Key, Bare, Keyed, workflows::list_versions),
    route!(ENGINE, GET, "/api/v1/workflows/{workflow}/versions/{version}", Key, Bare, Keyed, workflows::get_version),
    route!(ENGINE, PUT, "/api/v1/workflows/{workflow}/versions/{version}", Key, Body, Keyed, workflows::put_version),
    route!(ENGINE, GET, "/api/v1/workflows/{workflow}/executions", Key, Bare, Keyed, executions::list),
    route!(ENGINE, POST, "/api/v1/{workflow}/trigger", Key, Body, Keyed, executions::trigger),
    route!(ENGINE, POST, "/api/v1/{workflow}/bulk-trigger", Key, Body, Keyed, executions::bulk),
    route!(ENGINE, POST, "/api/v1/public/{workflow}/versions/{version}/trigger", BodyKey, Body, Keyed, executions::trigger_public),
    route!(ENGINE, GET, "/api/v1/executions/{execution}", Key, Bare, Keyed, executions::get),
    route!(ENGINE, POST, "/api/v1/executions/{execution}/cancel", Key, Body, Keyed, executions::cancel),
    route!(ENGINE, POST, "/api/v1/executions/{execution}/redrive", Key, Body, Keyed, executions::redrive),
    route!(ENGINE, GET, "/api/v1/categories", Key, Bare, Keyed, workflows::categories),

    route!(&[Base], POST, "/v1/workflows", Key, Body, Keyed, workflows::create),
    route!(&[Base], POST, "/v1/workflows/create", Key, Body, Keyed, workflows::create),
    route!(&[Base], GET, "/v1/workflows", Key, Bare, Keyed, workflows::list),
    route!(&[Base], GET, "/v1/workflows/{workflow}", Key, Bare, Keyed, workflows::get),
    route!(&[Base], PUT, "/v1/workflows/{workflow}", Key, Body, Keyed, workflows::update),
    route!(&[Base], DELETE, "/v1/workflows/{workflow}", Key, Bare, Keyed, workflows::delete),
    route!(&[Base], GET, "/v1/workflows/{workflow}/versions", Key, Bare, Keyed, workflows::list_versions),
    route!(&[Base], GET, "/v1/workflows/{workflow}/versions/{version}", Key, Bare, Keyed, workflows::get_version),
    route!(&[Base], PUT, "/v1/workflows/{workflow}/versions/{version}", Key, Body, Keyed, workflows::put_version),
    route!(&[Base], GET, "/v1/workflows/{workflow}/executions", Key, Bare, Keyed, executions::list),
    route!(&[Base], POST, "/v1/workflows/{workflow}/trigger", Key, Body, Keyed, executions::trigger),
    route!(&[Base], POST, "/v1/workflows/{workflow}/bulk-trigger", Key, Body, Keyed, executions::bulk),
    route!(&[Base], POST, "/v1/workflows/trigger/{workflow}/{version}", Key, Body, Keyed, executions::trigger_version),
    route!(&[Base], POST, "/v1/workflows/bulk-trigger/{workflow}/{version}", Key, Body, Keyed, executions::bulk_version),
    route!(&[Base], POST, "/v1/public/{workflow}/versions/{version}/trigger", BodyKey, Body, Keyed, executions::trigger_public),
    route!(&[Base], GET, "/v1/workflows/executions/{execution}", Key, Bare, Keyed, executions::get),
    route!(&[Base], POST, "/v1/workflows/executions/{execution}/cancel", Key, Body, Keyed, executions::cancel),
    route!(&[Base], POST, "/v1/workflows/executions/{execution}/redrive", Key, Body, Keyed, executions::redrive),
    route!(&[Base], GET, "/v1/categories", Key, Bare, Keyed, workflows::categories),

    route!(&[Flows], POST, "/api/v1", Key, Body, Keyed, flows::create),
    route!(&[Flows], GET, "/api/v1", Key, Bare, Keyed, flows::list),
    route!(&[Flows], GET, "/api/v1/{workflow}", Key, Bare, Keyed, flows::get),
    route!(&[Flows], POST, "/api/v1/{workflow}", Key, Body, Keyed, flows::update),
    route!(&[Flows], POST, "/api/v1/{workflow}/trigger", Key, Body, Keyed, flow_executions::trigger),
    route!(&[Flows], POST, "/api/v1/{workflow}/bulk", Key, Body, Keyed, flow_executions::bulk),
    route!(&[Flows], POST, "/api/v2/{workflow}/bulk", Key, Body, Keyed, flow_executions::bulk),
    route!(&[Flows], GET, "/api/v1/{workflow}/executions", Key, Bare, Keyed, flow_executions::list),
    route!(&[Flows], POST, "/api/v1/{workflow}/executions/bulk", Key, Body, Keyed, flow_executions::look_up),
    route!(&[Flows], GET, "/api/v1/{workflow}/executions/{execution}", Key, Bare, Keyed, flow_executions::get),

    route!(&[Base], GET, "/v1/executions", Key, Bare, Keyed, history::by_offset),
    route!(&[Base], GET, "/v2/executions", Key, Bare, Keyed, history::by_cursor),

    route!(&[Base], GET, "/v1/webhooks", Key, Bare, Keyed, webhooks::list),
    route!(&[Base], GET, "/v1/webhooks/{execution}", Key, Bare, Keyed, webhooks::get),
    route!(&[Base], POST, "/v1/webhooks/{execution}/redeliver", Key, Body, Keyed, webhooks::redeliver),
    route!(&[Base], POST, "/v1/webhooks/replay", Key, Body, Keyed, webhooks::replay),
    route!(&[Base], POST, "/v1/webhooks/test", Key, Body, Keyed, webhooks::test),

    route!(&[Base], POST, "/v1/upload/presign", Key, Body, Keyed, uploads::presign),
    route!(&[Base], PUT, "/v1/upload/{id}", Link, File, Keyed, uploads::put),
    route!(&[Base], POST, "/v1/files", Key, File, Keyed, uploads::post),
    route!(&[Base], GET, "/v1/files", Key, Bare, Keyed, files::list),
    route!(&[Base], GET, "/v1/files/usage", Key, Bare, Keyed, files::usage),
    route!(&[Base], GET, "/v1/files/{id}", Key, Bare, Keyed, files::get),
    route!(&[Base], DELETE, "/v1/files/{id}", Key, Bare, Keyed, files::delete),
    route!(&[Base], GET, "/v1/files/{id}/content", Link, Bare, Keyed, content::get),

    route!(&[Base], GET, "/v1/billing/balance", Key, Bare, Balance, billing::balance),

    route!(&[Dashboard], GET, "/", Public, Bare, Free, dashboard::page),
    route!(&[Dashboard], GET, "/status.json", Public, Bare, Free, dashboard::status),
    route!(&[Dashboard], GET, "/static/{*file}", Public, Bare, Free, dashboard::asset),

    route!(&[Control], POST, "/admin/keys", Local, Body, Free, admin::create_key),
    route!(&[Control], GET, "/admin/keys", Local, Bare, Free, admin::list_keys),
    route!(&[Control], DELETE, "/admin/keys/{id}", Local, Bare, Free, admin::delete_key),
    route!(&[Control], POST, "/admin/organizations", Local, Body, Free, admin::create_organization),
    route!(&[Control], GET, "/admin/organizations", Local, Bare, Free, admin::list_organizations),
    route!(&[Control], POST, "/admin/chains", Local, Body, Free, chains::create),
    route!(&[Control], PUT, "/admin/chains", Local, Body, Free, chains::change),
    route!(&[Control], GET, "/admin/chains", Local, Bare, Free, chains::list),
    route!(&[Control], DELETE, "/admin/chains", Local, Bare, Free, chains::delete),
    route!(&[Control], GET, "/admin/webhooks", Local, Bare, Free, webhooks::list_of),
    route!(&[Control], GET, "/admin/webhooks/{execution}", Local, Bare, Free, webhooks::get_of),
    route!(&[Control], POST, "/admin/webhooks/{execution}/redeliver", Local, Body, Free, webhooks::redeliver_of),
    route!(&[Control], GET, "/admin/balance", Local, Bare, Free, billing::show),
    route!(&[Control], POST, "/admin/balance/top-up", Local, Body, Free, billing::top_up),
    route!(&[Control], GET, "/admin/balance/ledger", Local, Bare, Free, billing::ledger),
    route!(&[Control], GET, "/admin/executions", Local, Bare, Free, operator::list),
    route!(&[Control], GET, "/admin/executions/{execution}", Local, Bare, Free, operator::get),
    route!(&[Control], POST, "/admin/executions/{execution}/cancel", Local, Body, Free, operator::cancel),
    route!(&[Control], POST, "/admin/resume", Local, Body, Free, operator::resume),
    route!(&[Control], GET, "/admin/audit", Local, Bare, Free, audit::list),
    route!(&[Control], GET, "/admin/models", Local, Bare, Free, admin::list_models),
    route!(&[Control], POST, "/admin/models/test", Local, Body, Free, admin::test_model),
    route!(&[Control], GET, "/admin/backup", Local, Bare, Free, backup::write),
    route!(&[Control], POST, "/admin/reload", Local, Body, Free, admin::reload),
];
