//! The HTTP API of all hosts. [`ROUTES`] lists every route.
//!
//! `dispatch` finds the route of a request, checks the key and the rate limit, calls the handler,
//! and turns the result into one response, one log line and one metric. A handler parses the
//! request, calls one function of a lower crate, and builds the response. Requests and responses
//! are `wire` types, never stored types. [`static_files`] serves the embedded dashboard, and
//! `documentation` serves the documentation site.
//!
//! Handlers have no state of their own: they use the handles in [`Services`], which `app` creates.
//! Only `error_mapping` converts the errors of lower crates to HTTP.
//!
//! To add a route, see `CONTRIBUTING.md`, "Add a route".

mod access;
mod activity;
mod admin;
mod agent;
mod alerts;
mod answers;
mod audit;
mod backup;
mod batches;
mod billing;
mod body;
mod browser;
mod bulk_jobs;
mod chains;
mod changes;
mod chat;
mod columns;
mod completion;
mod compress;
mod content;
mod context;
mod cors;
mod costs;
mod cursor;
mod dashboard;
mod decisions;
mod dispatch;
pub mod doc;
mod doctor;
mod documentation;
mod elsewhere;
mod error;
mod error_mapping;
mod events;
mod executions;
mod files;
mod flow_executions;
mod flows;
mod form;
mod history;
mod idempotency_key;
mod inputs;
mod keys;
mod limits;
mod links;
mod mcp;
mod media;
mod members;
mod messages;
mod model_load;
mod models;
mod named;
pub mod oidc;
mod ollama;
mod ollama_models;
mod one_port;
mod openapi;
mod operator;
mod organizations;
mod pauses;
mod predictions;
mod refused_key;
mod replicate;
mod request_metrics;
mod reserved;
mod responses;
mod root;
mod schedule_change;
mod schedules;
pub mod schemas;
mod scopes;
mod second_factor;
mod secrets;
mod services;
mod sessions;
pub mod static_files;
mod triggers;
mod unknown;
mod uploads;
mod usage;
mod vendors;
mod webhook_endpoints;
mod webhooks;
mod workers;
mod workflows;

use hyper::Method;

pub use self::batches::BatchAnswers;
pub use self::columns::{Access, BodyLimit, Rate, Role};
pub use self::context::Context;
pub use self::dispatch::Host as HostService;
use self::doc::Doc;
pub use self::doctor::{findings, words};
pub use self::error::Error;
pub use self::one_port::OnePort;
pub use self::openapi::{Documents, of_host as openapi_of};
pub use self::reserved::words_beside;
pub use self::scopes::Needs;
pub use self::services::{
    Doctor, Finding, HostAddress, Keep, LateBackup, Listening, Live, Readiness, Reloaded, Reloader,
    RunningService, Services, Settings, Verdict,
};
use orrery_domain::member::MemberRole;
use orrery_http as http;

/// The future that a handler returns.
pub type HandlerFuture =
    std::pin::Pin<Box<dyn Future<Output = Result<http::Response, crate::Error>> + Send>>;

/// The hosts whose routes are also mounted under `/api/{name}`: on the dashboard, where a member's
/// session replaces the key, and on the control socket, where a header names the organization.
pub const MOUNTED: [(&str, Role); 4] =
    [("base", Base), ("workflows", Workflows), ("flows", Flows), ("agent", Agent)];

/// A row of the route table.
#[derive(Debug, Clone)]
pub struct Route {
    pub hosts: &'static [Role],
    pub method: Method,
    pub path: &'static str,
    pub access: Access,
    /// What a restricted API key needs.
    pub needs: Needs,
    pub body: BodyLimit,
    pub rate: Rate,
    /// The role that a member needs to use the route in the dashboard, on its own host or below
    /// `/api`.
    pub role: MemberRole,
    pub handler: fn(Context) -> HandlerFuture,
    /// The route's description in the OpenAPI document.
    pub doc: Doc,
}

use Access::{
    Account, Admin, BodyKey, Key, KeyManager, Link, Local, LocalKey, MaybeKey, Member, Owner,
    Public,
};
use BodyLimit::{Configured as Body, File, None as Bare, Small};
use MemberRole::{Editor, Operator, Viewer};
use Rate::{Balance, Configured as Keyed, Free};
use Role::{Agent, Base, Control, Dashboard, Flows, Metrics, Ollama, Workflows};

const API: &[Role] = &[Base, Workflows, Flows, Agent];
const ENGINE: &[Role] = &[Workflows];
const ALL: &[Role] = &[Base, Workflows, Flows, Agent, Dashboard];
const WITH_CONTROL: &[Role] = &[Base, Workflows, Flows, Agent, Dashboard, Control];

/// Returns the role that a row requires.
const fn role(access: Access, of_method: MemberRole, named: Option<MemberRole>) -> MemberRole {
    match (access, named) {
        (_, Some(role)) => role,
        (Owner, None) => MemberRole::Owner,
        (Account | KeyManager, None) => Viewer,
        (_, None) => of_method,
    }
}

macro_rules! route {
    (
        $hosts:expr, $method:ident, $path:literal, $access:ident, $needs:ident, $body:ident,
        $rate:ident, $handler:path, $doc:path $(, $role:ident)?
    ) => {
        Route {
            hosts: $hosts,
            method: Method::$method,
            path: $path,
            access: $access,
            needs: Needs::$needs,
            body: $body,
            rate: $rate,
            role: role($access, route!(@method $method), route!(@named $($role)?)),
            handler: |context| Box::pin($handler(context)),
            doc: $doc,
        }
    };
    (@method GET) => { Viewer };
    (@method $other:ident) => { Editor };
    (@named) => { None };
    (@named $role:ident) => { Some($role) };
}

/// All routes: hosts, method, path, access, needs of a key, body, rate, handler, documentation, and
/// the role that a member needs. Only the role has a default: reading needs a viewer, all else an
/// editor. The router, 405 responses, OpenAPI documents, metric labels and the route snapshot are
/// generated from this table.
#[rustfmt::skip]
pub const ROUTES: &[Route] = &[
    route!(API, GET, "/", Public, Nothing, Bare, Free, root::index, root::INDEX),
    route!(ALL, GET, "/health", Public, Nothing, Bare, Free, root::health, root::HEALTH),
    route!(WITH_CONTROL, GET, "/ready", Public, Nothing, Bare, Free, root::ready, root::READY),
    route!(ALL, GET, "/openapi.json", Public, Nothing, Bare, Free, root::openapi, root::OPENAPI),
    route!(ALL, GET, "/schemas/{schema}", Public, Nothing, Bare, Free, schemas::get, schemas::GET),
    route!(&[Metrics], GET, "/metrics", Public, Nothing, Bare, Free, root::metrics, root::METRICS),

    route!(&[Base], GET, "/v1/models", MaybeKey, Nothing, Bare, Free, models::list, models::LIST),
    route!(&[Base], GET, "/v1/models/{*slug}", MaybeKey, Nothing, Bare, Free, models::get, models::GET),
    route!(&[Base], GET, "/v1/models/{*slug}/load", Key, Predict, Bare, Keyed, model_load::get, model_load::GET),
    route!(&[Base], POST, "/v1/models/{*slug}/load", Key, Predict, Bare, Keyed, model_load::load, model_load::LOAD, Operator),
    route!(&[Base], POST, "/v1/models/{*slug}/unload", Key, Predict, Bare, Keyed, model_load::unload, model_load::UNLOAD, Operator),
    route!(&[Base], GET, "/v1/models/{*slug}/schemas/openapi", Public, Nothing, Bare, Free, models::openapi, models::OPENAPI),
    route!(&[Base], GET, "/v1/model", Public, Nothing, Bare, Free, models::get_by_query, models::GET_BY_QUERY),

    route!(&[Base], POST, "/v1/prediction", Key, Predict, Body, Keyed, predictions::create, predictions::CREATE, Operator),
    route!(&[Base], POST, "/v1/prediction/run", Key, Predict, Body, Keyed, predictions::run, predictions::RUN, Operator),
    route!(&[Base], GET, "/v1/prediction/{id}", Key, Own, Bare, Keyed, predictions::get, predictions::GET),
    route!(&[Base], GET, "/v1/prediction/{id}/events", Link, Own, Bare, Keyed, events::follow, events::FOLLOW),
    route!(&[Base], POST, "/v1/prediction/{id}/cancel", Key, PredictOwn, Body, Keyed, predictions::cancel, predictions::CANCEL, Operator),

    route!(&[Base], POST, "/v1/workers/{*model}/claim", Key, Work, Bare, Keyed, workers::claim, workers::CLAIM),
    route!(&[Base], POST, "/v1/workers/jobs/{job}/heartbeat", Key, Work, Small, Free, workers::heartbeat, workers::HEARTBEAT),
    route!(&[Base], POST, "/v1/workers/jobs/{job}/log", Key, Work, Body, Free, workers::log, workers::LOG),
    route!(&[Base], POST, "/v1/workers/jobs/{job}/part", Key, Work, Body, Free, workers::part, workers::PART),
    route!(&[Base], POST, "/v1/workers/jobs/{job}/complete", Key, Work, Body, Free, workers::complete, workers::COMPLETE),
    route!(&[Base], POST, "/v1/workers/jobs/{job}/fail", Key, Work, Body, Free, workers::fail, workers::FAIL),

    route!(ENGINE, POST, "/api/v1/workflows", Key, Write, Body, Keyed, workflows::create, workflows::CREATE),
    route!(ENGINE, GET, "/api/v1/workflows", Key, Read, Bare, Keyed, workflows::list, workflows::LIST),
    route!(ENGINE, GET, "/api/v1/workflows/{workflow}", Key, Read, Bare, Keyed, workflows::get, workflows::GET),
    route!(ENGINE, PUT, "/api/v1/workflows/{workflow}", Key, Write, Body, Keyed, workflows::update, workflows::UPDATE),
    route!(ENGINE, DELETE, "/api/v1/workflows/{workflow}", Key, Write, Bare, Keyed, workflows::delete, workflows::DELETE),
    route!(ENGINE, GET, "/api/v1/workflows/{workflow}/versions", Key, Read, Bare, Keyed, workflows::list_versions, workflows::LIST_VERSIONS),
    route!(ENGINE, GET, "/api/v1/workflows/{workflow}/versions/{version}", Key, Read, Bare, Keyed, workflows::get_version, workflows::GET_VERSION),
    route!(ENGINE, PUT, "/api/v1/workflows/{workflow}/versions/{version}", Key, Write, Body, Keyed, workflows::put_version, workflows::PUT_VERSION),
    route!(ENGINE, GET, "/api/v1/workflows/{workflow}/executions", Key, Read, Bare, Keyed, executions::list, executions::LIST),
    route!(ENGINE, POST, "/api/v1/workflows/{workflow}/schedules", Key, Write, Body, Keyed, schedules::create, schedules::CREATE),
    route!(ENGINE, GET, "/api/v1/workflows/{workflow}/schedules", Key, Read, Bare, Keyed, schedules::list, schedules::LIST),
    route!(ENGINE, GET, "/api/v1/workflows/{workflow}/schedules/{schedule}", Key, Read, Bare, Keyed, schedules::get, schedules::GET),
    route!(ENGINE, PUT, "/api/v1/workflows/{workflow}/schedules/{schedule}", Key, Write, Body, Keyed, schedules::change, schedules::CHANGE),
    route!(ENGINE, DELETE, "/api/v1/workflows/{workflow}/schedules/{schedule}", Key, Write, Bare, Keyed, schedules::delete, schedules::DELETE),
    route!(ENGINE, POST, "/api/v1/{workflow}/trigger", Key, Run, Body, Keyed, triggers::trigger, triggers::TRIGGER, Operator),
    route!(ENGINE, POST, "/api/v1/{workflow}/bulk-trigger", Key, Run, Body, Keyed, triggers::bulk, triggers::BULK, Operator),
    route!(ENGINE, POST, "/api/v1/public/{workflow}/versions/{version}/trigger", BodyKey, Run, Body, Keyed, triggers::trigger_public, triggers::TRIGGER_PUBLIC, Operator),
    route!(ENGINE, POST, "/api/v1/executions/bulk", Key, RunAll, Body, Keyed, bulk_jobs::start, bulk_jobs::START, Operator),
    route!(ENGINE, GET, "/api/v1/executions/bulk/{job}", Key, Read, Bare, Keyed, bulk_jobs::get, bulk_jobs::GET),
    route!(ENGINE, POST, "/api/v1/executions/bulk/{job}/cancel", Key, RunAll, Body, Keyed, bulk_jobs::cancel, bulk_jobs::CANCEL, Operator),
    route!(ENGINE, GET, "/api/v1/executions/{execution}", Key, Own, Bare, Keyed, executions::get, executions::GET),
    route!(ENGINE, POST, "/api/v1/executions/{execution}/cancel", Key, RunOwn, Body, Keyed, executions::cancel, executions::CANCEL, Operator),
    route!(ENGINE, GET, "/api/v1/executions/{execution}/events", Key, Own, Bare, Keyed, events::follow_execution, events::FOLLOW_EXECUTION),
    route!(ENGINE, POST, "/api/v1/executions/{execution}/events/{name}", Key, RunOwn, Small, Keyed, answers::send, answers::SEND, Operator),
    route!(ENGINE, POST, "/api/v1/executions/{execution}/pause", Key, RunOwn, Body, Keyed, pauses::pause, pauses::PAUSE, Operator),
    route!(ENGINE, POST, "/api/v1/executions/{execution}/resume", Key, RunOwn, Body, Keyed, pauses::resume, pauses::RESUME, Operator),
    route!(ENGINE, POST, "/api/v1/executions/{execution}/redrive", Key, RunOwn, Body, Keyed, executions::redrive, executions::REDRIVE, Operator),
    route!(ENGINE, GET, "/api/v1/categories", Key, Read, Bare, Keyed, workflows::categories, workflows::CATEGORIES_DOC),

    route!(&[Base], POST, "/v1/workflows", Key, Write, Body, Keyed, workflows::create, workflows::CREATE_ON_BASE),
    route!(&[Base], POST, "/v1/workflows/create", Key, Write, Body, Keyed, workflows::create, workflows::CREATE_ALIAS),
    route!(&[Base], GET, "/v1/workflows", Key, Read, Bare, Keyed, workflows::list, workflows::LIST),
    route!(&[Base], GET, "/v1/workflows/{workflow}", Key, Read, Bare, Keyed, workflows::get, workflows::GET),
    route!(&[Base], PUT, "/v1/workflows/{workflow}", Key, Write, Body, Keyed, workflows::update, workflows::UPDATE),
    route!(&[Base], DELETE, "/v1/workflows/{workflow}", Key, Write, Bare, Keyed, workflows::delete, workflows::DELETE),
    route!(&[Base], GET, "/v1/workflows/{workflow}/versions", Key, Read, Bare, Keyed, workflows::list_versions, workflows::LIST_VERSIONS),
    route!(&[Base], GET, "/v1/workflows/{workflow}/versions/{version}", Key, Read, Bare, Keyed, workflows::get_version, workflows::GET_VERSION),
    route!(&[Base], PUT, "/v1/workflows/{workflow}/versions/{version}", Key, Write, Body, Keyed, workflows::put_version, workflows::PUT_VERSION_ON_BASE),
    route!(&[Base], GET, "/v1/workflows/{workflow}/executions", Key, Read, Bare, Keyed, executions::list, executions::LIST),
    route!(&[Base], POST, "/v1/workflows/{workflow}/schedules", Key, Write, Body, Keyed, schedules::create, schedules::CREATE),
    route!(&[Base], GET, "/v1/workflows/{workflow}/schedules", Key, Read, Bare, Keyed, schedules::list, schedules::LIST),
    route!(&[Base], GET, "/v1/workflows/{workflow}/schedules/{schedule}", Key, Read, Bare, Keyed, schedules::get, schedules::GET),
    route!(&[Base], PUT, "/v1/workflows/{workflow}/schedules/{schedule}", Key, Write, Body, Keyed, schedules::change, schedules::CHANGE),
    route!(&[Base], DELETE, "/v1/workflows/{workflow}/schedules/{schedule}", Key, Write, Bare, Keyed, schedules::delete, schedules::DELETE),
    route!(&[Base], POST, "/v1/workflows/{workflow}/trigger", Key, Run, Body, Keyed, triggers::trigger, triggers::TRIGGER, Operator),
    route!(&[Base], POST, "/v1/workflows/{workflow}/bulk-trigger", Key, Run, Body, Keyed, triggers::bulk, triggers::BULK, Operator),
    route!(&[Base], POST, "/v1/workflows/trigger/{workflow}/{version}", Key, Run, Body, Keyed, triggers::trigger_version, triggers::TRIGGER_VERSION, Operator),
    route!(&[Base], POST, "/v1/workflows/bulk-trigger/{workflow}/{version}", Key, Run, Body, Keyed, triggers::bulk_version, triggers::BULK_VERSION, Operator),
    route!(&[Base], POST, "/v1/public/{workflow}/versions/{version}/trigger", BodyKey, Run, Body, Keyed, triggers::trigger_public, triggers::TRIGGER_PUBLIC, Operator),
    route!(&[Base], POST, "/v1/workflows/executions/bulk", Key, RunAll, Body, Keyed, bulk_jobs::start, bulk_jobs::START, Operator),
    route!(&[Base], GET, "/v1/workflows/executions/bulk/{job}", Key, Read, Bare, Keyed, bulk_jobs::get, bulk_jobs::GET),
    route!(&[Base], POST, "/v1/workflows/executions/bulk/{job}/cancel", Key, RunAll, Body, Keyed, bulk_jobs::cancel, bulk_jobs::CANCEL, Operator),
    route!(&[Base], GET, "/v1/workflows/executions/{execution}", Key, Own, Bare, Keyed, executions::get, executions::GET),
    route!(&[Base], POST, "/v1/workflows/executions/{execution}/cancel", Key, RunOwn, Body, Keyed, executions::cancel, executions::CANCEL, Operator),
    route!(&[Base], GET, "/v1/workflows/executions/{execution}/events", Key, Own, Bare, Keyed, events::follow_execution, events::FOLLOW_EXECUTION),
    route!(&[Base], POST, "/v1/workflows/executions/{execution}/events/{name}", Link, RunOwn, Small, Keyed, answers::send, answers::SEND_BY_LINK, Operator),
    route!(&[Base], GET, "/v1/workflows/executions/{execution}/events/{name}", Link, Own, Bare, Keyed, answers::page, answers::PAGE),
    route!(&[Base], POST, "/v1/workflows/executions/{execution}/pause", Key, RunOwn, Body, Keyed, pauses::pause, pauses::PAUSE, Operator),
    route!(&[Base], POST, "/v1/workflows/executions/{execution}/resume", Key, RunOwn, Body, Keyed, pauses::resume, pauses::RESUME, Operator),
    route!(&[Base], POST, "/v1/workflows/executions/{execution}/redrive", Key, RunOwn, Body, Keyed, executions::redrive, executions::REDRIVE, Operator),
    route!(&[Base], GET, "/v1/categories", Key, Read, Bare, Keyed, workflows::categories, workflows::CATEGORIES_DOC),

    route!(&[Flows], POST, "/api/v1", Key, Write, Body, Keyed, flows::create, flows::CREATE),
    route!(&[Flows], GET, "/api/v1", Key, Read, Bare, Keyed, flows::list, flows::LIST),
    route!(&[Flows], GET, "/api/v1/{workflow}", Key, Read, Bare, Keyed, flows::get, flows::GET),
    route!(&[Flows], POST, "/api/v1/{workflow}", Key, Write, Body, Keyed, flows::update, flows::UPDATE),
    route!(&[Flows], POST, "/api/v1/{workflow}/trigger", Key, Run, Body, Keyed, flow_executions::trigger, flow_executions::TRIGGER, Operator),
    route!(&[Flows], POST, "/api/v1/{workflow}/bulk", Key, Run, Body, Keyed, flow_executions::bulk, flow_executions::BULK_ALIAS, Operator),
    route!(&[Flows], POST, "/api/v2/{workflow}/bulk", Key, Run, Body, Keyed, flow_executions::bulk, flow_executions::BULK, Operator),
    route!(&[Flows], GET, "/api/v1/{workflow}/executions", Key, Read, Bare, Keyed, flow_executions::list, flow_executions::LIST),
    route!(&[Flows], POST, "/api/v1/{workflow}/executions/bulk", Key, Read, Body, Keyed, flow_executions::look_up, flow_executions::LOOK_UP, Viewer),
    route!(&[Flows], GET, "/api/v1/{workflow}/executions/{execution}", Key, Own, Bare, Keyed, flow_executions::get, flow_executions::GET),

    route!(&[Base], GET, "/v1/executions", Key, Read, Bare, Keyed, history::by_offset, history::BY_OFFSET),
    route!(&[Base], GET, "/v2/executions", Key, Read, Bare, Keyed, history::by_cursor, history::BY_CURSOR),

    route!(&[Base], POST, "/v1/chat/completions", Key, Chat, Body, Keyed, chat::completions, chat::COMPLETIONS, Operator),
    route!(&[Base], POST, "/v1/embeddings", Key, Chat, Body, Keyed, chat::embeddings, chat::EMBEDDINGS, Operator),
    route!(&[Base], POST, "/v1/completions", Key, Chat, Body, Keyed, chat::text_completions, chat::TEXT_COMPLETIONS, Operator),
    route!(&[Base], POST, "/v1/rerank", Key, Chat, Body, Keyed, chat::rerank, chat::RERANK, Operator),
    route!(&[Base], POST, "/rerank", Key, Chat, Body, Keyed, chat::rerank, chat::RERANK_ALIAS, Operator),
    route!(&[Base], POST, "/v1/audio/transcriptions", Key, Chat, File, Keyed, media::transcriptions, media::TRANSCRIPTIONS, Operator),
    route!(&[Base], POST, "/v1/audio/translations", Key, Chat, File, Keyed, media::translations, media::TRANSLATIONS, Operator),
    route!(&[Base], POST, "/v1/audio/speech", Key, Chat, Body, Keyed, media::speech, media::SPEECH, Operator),
    route!(&[Base], POST, "/v1/images/generations", Key, Chat, Body, Keyed, media::images, media::IMAGES, Operator),
    route!(&[Base], POST, "/v1/images/edits", Key, Chat, File, Keyed, media::image_edits, media::IMAGE_EDITS, Operator),
    route!(&[Base], POST, "/v1/responses", Key, Chat, Body, Keyed, responses::create, responses::CREATE, Operator),
    route!(&[Base], POST, "/v1/responses/compact", Key, Chat, Body, Keyed, responses::compact, responses::COMPACT, Operator),
    route!(&[Base], GET, "/v1/responses/{id}", Key, Own, Bare, Keyed, responses::get, responses::GET),
    route!(&[Base], DELETE, "/v1/responses/{id}", Key, ChatOwn, Bare, Keyed, responses::delete, responses::DELETE),
    route!(&[Base], POST, "/v1/responses/{id}/cancel", Key, ChatOwn, Body, Keyed, responses::cancel, responses::CANCEL, Operator),
    route!(&[Base], GET, "/v1/responses/{id}/input_items", Key, Own, Bare, Keyed, responses::input_items, responses::INPUT_ITEMS),
    route!(&[Base], POST, "/v1/messages", Key, Chat, Body, Keyed, messages::create, messages::CREATE, Operator),
    route!(&[Base], POST, "/v1/messages/count_tokens", Key, Chat, Body, Keyed, messages::count_tokens, messages::COUNT_TOKENS, Operator),
    route!(&[Base], GET, "/v1/llm-router/model-catalog", Key, Nothing, Bare, Keyed, chat::models, chat::MODELS),

    route!(&[Agent], POST, "/v1/chat/completions", Key, Chat, Body, Keyed, agent::completions, agent::COMPLETIONS),
    route!(&[Agent], POST, "/chat", Key, Chat, Body, Keyed, agent::chat, agent::CHAT),
    route!(&[Agent], GET, "/v1/tasks/{task}/events", Key, Own, Bare, Keyed, agent::follow, agent::FOLLOW),
    route!(&[Agent], POST, "/v1/tasks/{task}/cancel", Key, ChatOwn, Body, Keyed, agent::cancel, agent::CANCEL, Operator),
    route!(&[Agent], GET, "/memory", Key, Read, Bare, Keyed, agent::memory, agent::MEMORY),
    route!(&[Agent], DELETE, "/memory", Key, Chat, Bare, Keyed, agent::clear, agent::CLEAR),
    route!(&[Agent], GET, "/sessions", Key, Read, Bare, Keyed, agent::sessions, agent::SESSIONS),
    route!(&[Agent], GET, "/v1/models", Key, Nothing, Bare, Keyed, agent::models, agent::MODELS),
    route!(&[Agent], POST, "/mcp", Key, Nothing, Body, Keyed, mcp::post, mcp::POST),

    route!(&[Base], POST, "/v1/decisions", Key, Chat, Body, Keyed, decisions::decide, decisions::DECIDE, Operator),

    route!(&[Base], GET, "/v1/webhooks", Key, Read, Bare, Keyed, webhooks::list, webhooks::LIST),
    route!(&[Base], GET, "/v1/webhooks/{execution}", Key, Own, Bare, Keyed, webhooks::get, webhooks::GET),
    route!(&[Base], POST, "/v1/webhooks/{execution}/redeliver", Key, RunOwn, Body, Keyed, webhooks::redeliver, webhooks::REDELIVER, Operator),
    route!(&[Base], POST, "/v1/webhooks/replay", Key, Run, Body, Keyed, webhooks::replay, webhooks::REPLAY, Operator),
    route!(&[Base], POST, "/v1/webhooks/test", Key, Run, Body, Keyed, webhooks::test, webhooks::TEST),
    route!(&[Base], POST, "/v1/webhook-endpoints", Key, Write, Small, Keyed, webhook_endpoints::create, webhook_endpoints::CREATE),
    route!(&[Base], GET, "/v1/webhook-endpoints", Key, Read, Bare, Keyed, webhook_endpoints::list, webhook_endpoints::LIST),
    route!(&[Base], GET, "/v1/webhook-endpoints/{endpoint}", Key, Read, Bare, Keyed, webhook_endpoints::get, webhook_endpoints::GET),
    route!(&[Base], PUT, "/v1/webhook-endpoints/{endpoint}", Key, Write, Small, Keyed, webhook_endpoints::change, webhook_endpoints::CHANGE),
    route!(&[Base], DELETE, "/v1/webhook-endpoints/{endpoint}", Key, Write, Bare, Keyed, webhook_endpoints::delete, webhook_endpoints::DELETE),
    route!(&[Base], POST, "/v1/webhook-endpoints/{endpoint}/rotate", Key, Write, Small, Keyed, webhook_endpoints::rotate, webhook_endpoints::ROTATE),
    route!(&[Base], POST, "/v1/webhook-endpoints/{endpoint}/test", Key, Write, Small, Keyed, webhook_endpoints::test, webhook_endpoints::TEST),

    route!(&[Base], POST, "/v1/upload/presign", Key, Upload, Body, Keyed, uploads::presign, uploads::PRESIGN, Operator),
    route!(&[Base], PUT, "/v1/upload/{id}", Link, Upload, File, Keyed, uploads::put, uploads::PUT, Operator),
    route!(&[Base], POST, "/api/v1/upload", Key, Upload, File, Keyed, uploads::post_for_url, uploads::POST_FOR_URL, Operator),
    route!(&[Base], POST, "/v1/files", Key, Upload, File, Keyed, uploads::post, uploads::POST, Operator),
    route!(&[Base], POST, "/v1/batches", Key, Chat, Body, Keyed, batches::create, batches::CREATE, Operator),
    route!(&[Base], GET, "/v1/batches", Key, Read, Bare, Keyed, batches::list, batches::LIST),
    route!(&[Base], GET, "/v1/batches/{batch}", Key, Own, Bare, Keyed, batches::get, batches::GET),
    route!(&[Base], POST, "/v1/batches/{batch}/cancel", Key, ChatOwn, Body, Keyed, batches::cancel, batches::CANCEL, Operator),
    route!(&[Base], GET, "/v1/files", Key, Read, Bare, Keyed, files::list, files::LIST),
    route!(&[Base], GET, "/v1/files/usage", Key, Read, Bare, Keyed, files::usage, files::USAGE),
    route!(&[Base], GET, "/v1/files/{id}", Key, Own, Bare, Keyed, files::get, files::GET),
    route!(&[Base], DELETE, "/v1/files/{id}", Key, UploadOwn, Bare, Keyed, files::delete, files::DELETE),
    route!(&[Base], GET, "/v1/files/{id}/content", Link, Own, Bare, Keyed, content::get, content::GET),

    route!(&[Base], POST, "/v1/schedules", Key, Write, Body, Keyed, schedules::create_of_model, schedules::CREATE_OF_MODEL),
    route!(&[Base], GET, "/v1/schedules", Key, Read, Bare, Keyed, schedules::list_all, schedules::LIST_ALL),
    route!(&[Base], GET, "/v1/schedules/{schedule}", Key, Read, Bare, Keyed, schedules::get, schedules::GET_ANY),
    route!(&[Base], PUT, "/v1/schedules/{schedule}", Key, Write, Body, Keyed, schedules::change, schedules::CHANGE_ANY),
    route!(&[Base], DELETE, "/v1/schedules/{schedule}", Key, Write, Bare, Keyed, schedules::delete, schedules::DELETE_ANY),

    route!(&[Base], GET, "/v1/secrets", Key, Secrets, Bare, Keyed, secrets::list, secrets::LIST),
    route!(&[Base], PUT, "/v1/secrets/{name}", Key, Secrets, Body, Keyed, secrets::put, secrets::PUT),
    route!(&[Base], DELETE, "/v1/secrets/{name}", Key, Secrets, Bare, Keyed, secrets::delete, secrets::DELETE),

    route!(&[Base], GET, "/v1/key/info", Key, Nothing, Bare, Keyed, keys::info, keys::INFO),
    route!(&[Base], GET, "/v1/limits", Key, Read, Bare, Keyed, limits::get, limits::GET),
    route!(&[Base], GET, "/v1/usage", Key, Read, Bare, Keyed, usage::report, usage::REPORT),
    route!(&[Base], GET, "/v1/billing/balance", Key, Read, Bare, Balance, billing::balance, billing::BALANCE),

    route!(&[Base], POST, "/replicate/v1/predictions", Key, Predict, Body, Keyed, replicate::predictions::create, replicate::predictions::CREATE, Operator),
    route!(&[Base], GET, "/replicate/v1/predictions", Key, Read, Bare, Keyed, replicate::predictions::list, replicate::predictions::LIST),
    route!(&[Base], GET, "/replicate/v1/predictions/{id}", Key, Own, Bare, Keyed, replicate::predictions::get, replicate::predictions::GET),
    route!(&[Base], GET, "/replicate/v1/predictions/{id}/stream", Link, Own, Bare, Keyed, replicate::stream::follow, replicate::stream::FOLLOW),
    route!(&[Base], POST, "/replicate/v1/predictions/{id}/cancel", Key, PredictOwn, Body, Keyed, replicate::predictions::cancel, replicate::predictions::CANCEL, Operator),
    route!(&[Base], GET, "/replicate/v1/models", Key, Nothing, Bare, Keyed, replicate::models::list, replicate::models::LIST),
    route!(&[Base], GET, "/replicate/v1/models/{owner}/{name}", Key, Nothing, Bare, Keyed, replicate::models::get, replicate::models::GET),
    route!(&[Base], POST, "/replicate/v1/models/{owner}/{name}/predictions", Key, Predict, Body, Keyed, replicate::predictions::create_with_model, replicate::predictions::CREATE_WITH_MODEL, Operator),
    route!(&[Base], GET, "/replicate/v1/models/{owner}/{name}/versions", Key, Nothing, Bare, Keyed, replicate::models::versions, replicate::models::VERSIONS),
    route!(&[Base], GET, "/replicate/v1/models/{owner}/{name}/versions/{version}", Key, Nothing, Bare, Keyed, replicate::models::get_version, replicate::models::VERSION),
    route!(&[Base], POST, "/replicate/v1/files", Key, Upload, File, Keyed, replicate::files::create, replicate::files::CREATE, Operator),
    route!(&[Base], GET, "/replicate/v1/files", Key, Read, Bare, Keyed, replicate::files::list, replicate::files::LIST),
    route!(&[Base], GET, "/replicate/v1/files/{id}", Key, Own, Bare, Keyed, replicate::files::get, replicate::files::GET),
    route!(&[Base], DELETE, "/replicate/v1/files/{id}", Key, UploadOwn, Bare, Keyed, replicate::files::delete, replicate::files::DELETE),
    route!(&[Base], GET, "/replicate/v1/files/{id}/download", Key, Own, Bare, Keyed, content::get, replicate::files::DOWNLOAD),
    route!(&[Base], GET, "/replicate/v1/account", Key, Nothing, Bare, Keyed, replicate::account::get, replicate::account::GET),
    route!(&[Base], GET, "/replicate/v1/webhooks/default/secret", Key, Secrets, Bare, Keyed, replicate::account::secret, replicate::account::SECRET, Editor),

    route!(&[Ollama], GET, "/", Public, Nothing, Bare, Free, ollama_models::root, ollama_models::ROOT),
    route!(&[Ollama], GET, "/api/version", Public, Nothing, Bare, Free, ollama_models::version, ollama_models::VERSION),
    route!(&[Ollama], GET, "/api/tags", LocalKey, Nothing, Bare, Keyed, ollama_models::tags, ollama_models::TAGS),
    route!(&[Ollama], GET, "/api/ps", LocalKey, Nothing, Bare, Keyed, ollama_models::loaded, ollama_models::LOADED),
    route!(&[Ollama], POST, "/api/show", LocalKey, Nothing, Small, Keyed, ollama_models::show, ollama_models::SHOW),
    route!(&[Ollama], POST, "/api/chat", LocalKey, Chat, Body, Keyed, ollama::chat, ollama::CHAT),
    route!(&[Ollama], POST, "/api/generate", LocalKey, Chat, Body, Keyed, ollama::generate, ollama::GENERATE),
    route!(&[Ollama], POST, "/api/embed", LocalKey, Chat, Body, Keyed, ollama::embed, ollama::EMBED),
    route!(&[Ollama], POST, "/api/embeddings", LocalKey, Chat, Body, Keyed, ollama::embeddings, ollama::EMBEDDINGS),
    route!(&[Ollama], POST, "/api/pull", LocalKey, Nothing, Bare, Keyed, ollama_models::manage, ollama_models::MANAGE),
    route!(&[Ollama], POST, "/api/push", LocalKey, Nothing, Bare, Keyed, ollama_models::manage, ollama_models::MANAGE),
    route!(&[Ollama], POST, "/api/create", LocalKey, Nothing, Bare, Keyed, ollama_models::manage, ollama_models::MANAGE),
    route!(&[Ollama], POST, "/api/copy", LocalKey, Nothing, Bare, Keyed, ollama_models::manage, ollama_models::MANAGE),
    route!(&[Ollama], DELETE, "/api/delete", LocalKey, Nothing, Bare, Keyed, ollama_models::manage, ollama_models::MANAGE),

    route!(&[Dashboard], GET, "/", Public, Nothing, Bare, Free, dashboard::page, dashboard::PAGE),
    route!(&[Dashboard], GET, "/app", Public, Nothing, Bare, Free, dashboard::page, dashboard::PAGE_OF_APP),
    route!(&[Dashboard], GET, "/app/{*page}", Public, Nothing, Bare, Free, dashboard::page, dashboard::PAGE_IN_APP),
    route!(&[Dashboard], GET, "/setup", Public, Nothing, Bare, Free, dashboard::page, dashboard::PAGE_OF_SETUP),
    route!(&[Dashboard], GET, "/invite", Public, Nothing, Bare, Free, dashboard::page, dashboard::PAGE_OF_INVITATION),
    route!(&[Dashboard], GET, "/reset", Public, Nothing, Bare, Free, dashboard::page, dashboard::PAGE_OF_RESET),
    route!(&[Dashboard], GET, "/status", Member, Nothing, Bare, Free, dashboard::own_status, dashboard::OWN_STATUS),
    route!(&[Dashboard], GET, "/events", Member, Nothing, Bare, Free, changes::follow, changes::FOLLOW),
    route!(&[Dashboard], GET, "/status.json", Public, Nothing, Bare, Free, dashboard::status, dashboard::STATUS),
    route!(&[Dashboard], GET, "/static/{*file}", Public, Nothing, Bare, Free, dashboard::asset, dashboard::ASSET),
    route!(&[Dashboard], GET, "/docs", Public, Nothing, Bare, Free, documentation::page, documentation::PAGE),
    route!(&[Dashboard], GET, "/docs/{*file}", Public, Nothing, Bare, Free, documentation::file, documentation::FILE),
    route!(&[Dashboard], GET, "/session", Public, Nothing, Bare, Free, sessions::get, sessions::GET),
    route!(&[Dashboard], POST, "/session", Public, Nothing, Small, Free, sessions::create, sessions::CREATE),
    route!(&[Dashboard], DELETE, "/session", Account, Nothing, Bare, Free, sessions::delete, sessions::DELETE),
    route!(&[Dashboard], POST, "/session/reset", Public, Nothing, Small, Free, sessions::reset, sessions::RESET),
    route!(&[Dashboard], POST, "/session/password", Account, Nothing, Small, Free, sessions::change_password, sessions::CHANGE_PASSWORD),
    route!(&[Dashboard], GET, "/session/oidc", Public, Nothing, Bare, Free, oidc::begin, oidc::BEGIN),
    route!(&[Dashboard], GET, "/session/oidc/callback", Public, Nothing, Bare, Free, oidc::callback, oidc::CALLBACK),
    route!(&[Dashboard], POST, "/session/totp", Account, Nothing, Bare, Free, second_factor::begin, second_factor::BEGIN),
    route!(&[Dashboard], POST, "/session/totp/confirm", Account, Nothing, Small, Free, second_factor::confirm, second_factor::CONFIRM),
    route!(&[Dashboard], DELETE, "/session/totp", Account, Nothing, Small, Free, second_factor::remove, second_factor::REMOVE),
    route!(&[Dashboard], GET, "/sessions", Account, Nothing, Bare, Free, sessions::list, sessions::LIST),
    route!(&[Dashboard], DELETE, "/sessions", Account, Nothing, Bare, Free, sessions::end_others, sessions::END_OTHERS),
    route!(&[Dashboard], DELETE, "/sessions/{session}", Account, Nothing, Bare, Free, sessions::end, sessions::END),
    route!(&[Dashboard], POST, "/links", Public, Nothing, Small, Free, links::describe, links::DESCRIBE),
    route!(&[Dashboard], POST, "/setup", Public, Nothing, Small, Free, links::set_up, links::SET_UP),
    route!(&[Dashboard], POST, "/invitations/accept", Public, Nothing, Small, Free, links::accept, links::ACCEPT),
    route!(&[Dashboard], POST, "/invitations", Owner, Nothing, Small, Free, links::invite, links::INVITE),
    route!(&[Dashboard], GET, "/invitations", Owner, Nothing, Bare, Free, links::invitations, links::INVITATIONS),
    route!(&[Dashboard], DELETE, "/invitations/{id}", Owner, Nothing, Bare, Free, links::withdraw, links::WITHDRAW),
    route!(&[Dashboard], GET, "/members", Member, Nothing, Bare, Free, members::list, members::LIST),
    route!(&[Dashboard], PATCH, "/members/{id}", Owner, Nothing, Small, Free, members::change, members::CHANGE),
    route!(&[Dashboard], DELETE, "/members/{id}", Owner, Nothing, Bare, Free, members::remove, members::REMOVE),
    route!(&[Dashboard], POST, "/members/{id}/reset", Owner, Nothing, Small, Free, members::reset, members::RESET),
    route!(&[Dashboard], GET, "/keys", Member, Nothing, Bare, Free, keys::list, keys::LIST),
    route!(&[Dashboard], POST, "/keys", KeyManager, Nothing, Small, Free, keys::create, keys::CREATE),
    route!(&[Dashboard], PATCH, "/keys/{id}", KeyManager, Nothing, Small, Free, keys::change, keys::CHANGE),
    route!(&[Dashboard], POST, "/keys/{id}/rotate", KeyManager, Nothing, Small, Free, keys::rotate, keys::ROTATE),
    route!(&[Dashboard], DELETE, "/keys/{id}", KeyManager, Nothing, Bare, Free, keys::delete, keys::DELETE),
    route!(&[Dashboard], GET, "/ledger", Member, Nothing, Bare, Free, billing::own_ledger, billing::OWN_LEDGER),
    route!(&[Dashboard], GET, "/costs", Member, Nothing, Bare, Free, costs::costs, costs::COSTS),
    route!(&[Dashboard], GET, "/webhooks/receivers", Member, Nothing, Bare, Free, webhooks::receivers, webhooks::RECEIVERS),
    route!(&[Dashboard], GET, "/health/findings", Member, Nothing, Bare, Free, dashboard::findings, dashboard::FINDINGS),
    route!(&[Dashboard], GET, "/models", Member, Nothing, Bare, Free, admin::list_loads, admin::LIST_LOADS),
    route!(&[Dashboard], POST, "/workflows/check", Member, Nothing, Body, Free, workflows::check, workflows::CHECK, Viewer),
    route!(&[Dashboard], GET, "/workflows/runs", Member, Nothing, Bare, Free, workflows::last_runs, workflows::LAST_RUNS),
    route!(&[Dashboard], GET, "/chains", Member, Nothing, Bare, Free, chains::list_own, chains::LIST_OWN),
    route!(&[Dashboard], POST, "/chains", Member, Nothing, Small, Free, chains::create_own, chains::CREATE_OWN),
    route!(&[Dashboard], PUT, "/chains", Member, Nothing, Small, Free, chains::change_own, chains::CHANGE_OWN),
    route!(&[Dashboard], DELETE, "/chains", Member, Nothing, Bare, Free, chains::delete_own, chains::DELETE_OWN),
    route!(&[Dashboard], GET, "/audit", Member, Nothing, Bare, Free, audit::of_organization, audit::OF_ORGANIZATION),

    route!(&[Dashboard], GET, "/admin/v1/audit", Admin, Nothing, Bare, Free, audit::list, audit::LIST_ALL),
    route!(&[Dashboard], GET, "/admin/v1/models", Admin, Nothing, Bare, Free, admin::list_loads, admin::LIST_ALL_LOADS),
    route!(&[Dashboard], GET, "/admin/v1/organizations", Admin, Nothing, Bare, Free, admin::list_organizations, admin::LIST_ORGANIZATIONS),
    route!(&[Dashboard], GET, "/admin/v1/organizations/{organization}", Admin, Nothing, Bare, Free, limits::show, limits::SHOW),
    route!(&[Dashboard], PUT, "/admin/v1/organizations/{organization}", Admin, Nothing, Small, Free, named::put_organization, named::PUT_ORGANIZATION),
    route!(&[Dashboard], PUT, "/admin/v1/organizations/{organization}/limits", Admin, Nothing, Small, Free, limits::change, limits::CHANGE),
    route!(&[Dashboard], GET, "/admin/v1/organizations/{organization}/keys", Admin, Nothing, Bare, Free, keys::list, keys::LIST_OF),
    route!(&[Dashboard], PUT, "/admin/v1/organizations/{organization}/keys/{name}", Admin, Nothing, Small, Free, named::put_key, named::PUT_KEY),
    route!(&[Dashboard], POST, "/admin/v1/organizations/{organization}/keys/{name}/rotate", Admin, Nothing, Small, Free, named::rotate_key, named::ROTATE_KEY),
    route!(&[Dashboard], DELETE, "/admin/v1/organizations/{organization}/keys/{name}", Admin, Nothing, Bare, Free, named::delete_key, named::DELETE_KEY),
    route!(&[Dashboard], GET, "/admin/v1/organizations/{organization}/chains", Admin, Nothing, Bare, Free, chains::list_own, chains::LIST_NAMED),
    route!(&[Dashboard], PUT, "/admin/v1/organizations/{organization}/chains/{name}", Admin, Nothing, Body, Free, named::put_chain, named::PUT_CHAIN),
    route!(&[Dashboard], DELETE, "/admin/v1/organizations/{organization}/chains/{name}", Admin, Nothing, Bare, Free, named::delete_chain, named::DELETE_CHAIN),
    route!(&[Dashboard], GET, "/admin/v1/organizations/{organization}/schedules", Admin, Nothing, Bare, Free, schedules::list_all, schedules::LIST_ALL),
    route!(&[Dashboard], PUT, "/admin/v1/organizations/{organization}/schedules/{name}", Admin, Nothing, Body, Free, schedules::put_named, schedules::PUT_NAMED),
    route!(&[Dashboard], DELETE, "/admin/v1/organizations/{organization}/schedules/{name}", Admin, Nothing, Bare, Free, schedules::delete_named, schedules::DELETE_NAMED),
    route!(&[Dashboard], GET, "/admin/v1/organizations/{organization}/webhook-endpoints", Admin, Nothing, Bare, Free, webhook_endpoints::list, webhook_endpoints::LIST),
    route!(&[Dashboard], PUT, "/admin/v1/organizations/{organization}/webhook-endpoints/{name}", Admin, Nothing, Small, Free, webhook_endpoints::put_named, webhook_endpoints::PUT_NAMED),
    route!(&[Dashboard], DELETE, "/admin/v1/organizations/{organization}/webhook-endpoints/{name}", Admin, Nothing, Bare, Free, webhook_endpoints::delete_named, webhook_endpoints::DELETE_NAMED),
    route!(&[Dashboard], GET, "/admin/v1/organizations/{organization}/secrets", Admin, Nothing, Bare, Free, secrets::list, secrets::LIST),
    route!(&[Dashboard], PUT, "/admin/v1/organizations/{organization}/secrets/{name}", Admin, Nothing, Body, Free, named::put_secret, named::PUT_SECRET),
    route!(&[Dashboard], DELETE, "/admin/v1/organizations/{organization}/secrets/{name}", Admin, Nothing, Bare, Free, secrets::delete, secrets::DELETE),
    route!(&[Dashboard], GET, "/admin/v1/organizations/{organization}/balance", Admin, Nothing, Bare, Free, billing::balance, billing::BALANCE),
    route!(&[Dashboard], POST, "/admin/v1/organizations/{organization}/balance/top-up", Admin, Nothing, Small, Free, named::top_up, named::TOP_UP),
    route!(&[Dashboard], GET, "/admin/v1/organizations/{organization}/usage", Admin, Nothing, Bare, Free, usage::report, usage::REPORT_OF),
    route!(&[Dashboard], GET, "/admin/v1/organizations/{organization}/ledger", Admin, Nothing, Bare, Free, billing::own_ledger, billing::LEDGER_OF),
    route!(&[Dashboard], GET, "/admin/v1/organizations/{organization}/members", Admin, Nothing, Bare, Free, members::list, members::LIST_OF),
    route!(&[Dashboard], PATCH, "/admin/v1/organizations/{organization}/members/{id}", Admin, Nothing, Small, Free, members::change, members::CHANGE_OF),
    route!(&[Dashboard], POST, "/admin/v1/organizations/{organization}/owner-link", Admin, Nothing, Bare, Free, named::owner_link, named::OWNER_LINK),

    route!(&[Control], POST, "/admin/keys", Local, Nothing, Body, Free, admin::create_key, admin::CREATE_KEY),
    route!(&[Control], GET, "/admin/keys", Local, Nothing, Bare, Free, admin::list_keys, admin::LIST_KEYS),
    route!(&[Control], PUT, "/admin/keys/{id}", Local, Nothing, Small, Free, admin::change_key, admin::CHANGE_KEY),
    route!(&[Control], POST, "/admin/keys/{id}/rotate", Local, Nothing, Small, Free, admin::rotate_key, admin::ROTATE_KEY),
    route!(&[Control], DELETE, "/admin/keys/{id}", Local, Nothing, Bare, Free, admin::delete_key, admin::DELETE_KEY),
    route!(&[Control], POST, "/admin/organizations", Local, Nothing, Body, Free, admin::create_organization, admin::CREATE_ORGANIZATION),
    route!(&[Control], POST, "/admin/owner-link", Local, Nothing, Body, Free, links::owner_link, links::OWNER_LINK),
    route!(&[Control], GET, "/admin/members", Local, Nothing, Bare, Free, members::list_all, members::LIST_ALL),
    route!(&[Control], GET, "/admin/organizations", Local, Nothing, Bare, Free, admin::list_organizations, admin::LIST_ORGANIZATIONS),
    route!(&[Control], GET, "/admin/organizations/{organization}", Local, Nothing, Bare, Free, limits::show, limits::SHOW),
    route!(&[Control], PUT, "/admin/organizations/{organization}/limits", Local, Nothing, Small, Free, limits::change, limits::CHANGE),
    route!(&[Control], POST, "/admin/organizations/{organization}/rename", Local, Nothing, Small, Free, organizations::rename, organizations::RENAME),
    route!(&[Control], GET, "/admin/organizations/{organization}/contents", Local, Nothing, Bare, Free, organizations::contents, organizations::CONTENTS),
    route!(&[Control], DELETE, "/admin/organizations/{organization}", Local, Nothing, Bare, Free, organizations::delete, organizations::DELETE),
    route!(&[Control], POST, "/admin/invitations", Local, Nothing, Small, Free, links::invite_to, links::INVITE_TO),
    route!(&[Control], PATCH, "/admin/members/{id}", Local, Nothing, Small, Free, members::change_by_operator, members::CHANGE_BY_OPERATOR),
    route!(&[Control], DELETE, "/admin/members/{id}", Local, Nothing, Bare, Free, members::remove_of, members::REMOVE_OF),
    route!(&[Control], DELETE, "/admin/members/{id}/totp", Local, Nothing, Bare, Free, second_factor::reset_of, second_factor::RESET_OF),
    route!(&[Control], POST, "/admin/chains", Local, Nothing, Body, Free, chains::create, chains::CREATE),
    route!(&[Control], PUT, "/admin/chains", Local, Nothing, Body, Free, chains::change, chains::CHANGE),
    route!(&[Control], GET, "/admin/chains", Local, Nothing, Bare, Free, chains::list, chains::LIST),
    route!(&[Control], DELETE, "/admin/chains", Local, Nothing, Bare, Free, chains::delete, chains::DELETE),
    route!(&[Control], PUT, "/admin/secrets", Local, Nothing, Body, Free, secrets::set_of, secrets::SET_OF),
    route!(&[Control], GET, "/admin/secrets", Local, Nothing, Bare, Free, secrets::list_of, secrets::LIST_OF),
    route!(&[Control], DELETE, "/admin/secrets", Local, Nothing, Bare, Free, secrets::delete_of, secrets::DELETE_OF),
    route!(&[Control], GET, "/admin/webhooks", Local, Nothing, Bare, Free, webhooks::list_of, webhooks::LIST_OF),
    route!(&[Control], GET, "/admin/webhooks/{execution}", Local, Nothing, Bare, Free, webhooks::get_of, webhooks::GET_OF),
    route!(&[Control], POST, "/admin/webhooks/{execution}/redeliver", Local, Nothing, Body, Free, webhooks::redeliver_of, webhooks::REDELIVER_OF),
    route!(&[Control], GET, "/admin/balance", Local, Nothing, Bare, Free, billing::show, billing::SHOW),
    route!(&[Control], POST, "/admin/balance/top-up", Local, Nothing, Body, Free, billing::top_up, billing::TOP_UP),
    route!(&[Control], GET, "/admin/balance/ledger", Local, Nothing, Bare, Free, billing::ledger, billing::LEDGER),
    route!(&[Control], GET, "/admin/activity", Local, Nothing, Bare, Free, activity::show, activity::SHOW),
    route!(&[Control], GET, "/admin/doctor", Local, Nothing, Bare, Free, doctor::find, doctor::FIND),
    route!(&[Control], POST, "/admin/alerts/test", Local, Nothing, Small, Free, alerts::test, alerts::TEST),
    route!(&[Control], GET, "/admin/executions", Local, Nothing, Bare, Free, operator::list, operator::LIST),
    route!(&[Control], GET, "/admin/executions/{execution}", Local, Nothing, Bare, Free, operator::get, operator::GET),
    route!(&[Control], POST, "/admin/executions/{execution}/cancel", Local, Nothing, Body, Free, operator::cancel, operator::CANCEL),
    route!(&[Control], POST, "/admin/resume", Local, Nothing, Body, Free, operator::resume, operator::RESUME),
    route!(&[Control], GET, "/admin/audit", Local, Nothing, Bare, Free, audit::list, audit::LIST),
    route!(&[Control], GET, "/admin/models", Local, Nothing, Bare, Free, admin::list_models, admin::LIST_MODELS),
    route!(&[Control], POST, "/admin/models/test", Local, Nothing, Body, Free, admin::test_model, admin::TEST_MODEL),
    route!(&[Control], POST, "/admin/chat", Local, Nothing, Body, Free, chat::converse, chat::CONVERSE),
    route!(&[Control], GET, "/admin/chat/models", Local, Nothing, Bare, Free, chat::models, chat::MODELS_OF),
    route!(&[Control], GET, "/admin/backup", Local, Nothing, Bare, Free, backup::write, backup::WRITE),
    route!(&[Control], POST, "/admin/agent/chat", Local, Nothing, Body, Free, agent::chat_for, agent::CHAT_FOR),
    route!(&[Control], POST, "/admin/decisions", Local, Nothing, Body, Free, decisions::decide_for, decisions::DECIDE_FOR),
    route!(&[Control], POST, "/admin/reload", Local, Nothing, Body, Free, admin::reload, admin::RELOAD),
];
