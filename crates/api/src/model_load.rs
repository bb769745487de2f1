//! Loading and unloading the servers that this service starts for its models.

use std::sync::Arc;

use hyper::StatusCode;

use super::doc::{Doc, ResponseDoc};
use super::{Context, models};
use orrery_catalog::{self as catalog, ManagedServer};
use orrery_domain::time::Timestamp;
use orrery_engine::Error as EngineError;
use orrery_http::{Response, response};
use orrery_wire::model::{ModelLoadState, ModelWorkers};

pub(crate) const GET: Doc = Doc {
    responses: RESPONSES,
    description: "Returns whether the server of a model runs. Only for models whose manifest has \
                  `start`.",
    ..Doc::new("models", "get_model_load", "Get the state of a model's server")
};

pub(crate) const LOAD: Doc = Doc {
    responses: RESPONSES,
    description: "Starts the server of a model, if it does not run, and returns its state at once. \
                  If other servers of its group need to give way, it waits for them.",
    ..Doc::new("models", "load_model", "Start a model's server")
};

pub(crate) const UNLOAD: Doc = Doc {
    responses: RESPONSES,
    description: "Stops the server of a model once its requests in flight have ended, and returns \
                  its state at once. The next request starts the server again.",
    ..Doc::new("models", "unload_model", "Stop a model's server")
};

const RESPONSES: &[ResponseDoc] = &[
    ResponseDoc::json::<ModelLoadState>(200, "The state of the server"),
    ResponseDoc::any_error(404, "Model not found"),
    ResponseDoc::any_error(409, "This service does not start the server of this model"),
];

/// `GET /v1/models/{slug}/load`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let server = server(&context)?;
    Ok(response::json(StatusCode::OK, &state(&server, context.services.clock.now())))
}

/// `POST /v1/models/{slug}/load`
pub(crate) async fn load(context: Context) -> Result<Response, crate::Error> {
    let server = server(&context)?;
    server.begin_open();
    tokio::task::yield_now().await;
    Ok(response::json(StatusCode::OK, &state(&server, context.services.clock.now())))
}

/// `POST /v1/models/{slug}/unload`
pub(crate) async fn unload(context: Context) -> Result<Response, crate::Error> {
    let server = server(&context)?;
    server.begin_hold();
    tokio::task::yield_now().await;
    Ok(response::json(StatusCode::OK, &state(&server, context.services.clock.now())))
}

/// Returns the server of the model in the path, which the key must be allowed to use.
fn server(context: &Context) -> Result<Arc<ManagedServer>, crate::Error> {
    let slug = context.request.param("slug");
    if let Ok(caller) = context.caller() {
        let policies = context.services.engine.policies();
        policies.check_model(caller.key, slug).map_err(EngineError::from)?;
    }
    let model = models::find(context, slug)?;
    model.runner.managed().cloned().ok_or_else(|| {
        let message = format!("the manifest of the model '{slug}' has no `start`");
        crate::Error::conflict(message)
    })
}

/// Returns the state of the server that this service starts for a model, if it does.
pub(crate) fn of_model(model: &catalog::Model, now: Timestamp) -> Option<ModelLoadState> {
    model.runner.managed().map(|server| state(server, now))
}

/// Returns the numbers of jobs and workers if the model's runner is `pull`.
pub(crate) fn workers_of(model: &catalog::Model) -> Option<ModelWorkers> {
    let situation = model.runner.pull()?.situation();
    let (workers, waiting, leased) = (situation.workers, situation.waiting, situation.leased);
    Some(ModelWorkers { workers, waiting, leased })
}

fn state(server: &ManagedServer, now: Timestamp) -> ModelLoadState {
    let situation = server.situation();
    ModelLoadState {
        state: situation.phase.as_str().to_owned(),
        since: now.before(situation.since).unwrap_or(now).into(),
        reason: situation.reason,
        memory: situation.memory,
        in_flight: situation.in_use,
    }
}
