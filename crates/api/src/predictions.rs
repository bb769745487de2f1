//! Predictions: create, run, get, cancel (`docs/spec/predictions.md`, "Create").

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderValue, LINK};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value};

use super::body::{self, validation_error};
use super::doc::{Doc, Kind, Param, RequestDoc, ResponseDoc};
use super::idempotency_key::{self, Creation, OptionalClaim};
use super::{Context, Role, Services, chat, models};
use orrery_chat::CacheOutcome;
use orrery_domain::chain::Entry;
use orrery_domain::delivery::Webhook;
use orrery_domain::execution::{self, Candidate, Execution, Source, Status, Work};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::logs::append_logs;
use orrery_domain::payload::Payload;
use orrery_engine::{self as engine, Submission};
use orrery_http::request::parse_value;
use orrery_http::{Response, response};
use orrery_records::accounts::Caller;
use orrery_records::chains;
use orrery_records::idempotency::StoredResponse;
use orrery_runtime::new_id;
use orrery_wire::Text;
use orrery_wire::prediction::{Accepted, Ended, NewPrediction, Prediction, Shown, Urls};
use orrery_wire::request::{self, Mismatch, MismatchKind};
use orrery_workflows as workflows;

/// Maximum `wait` of a `GET`, in seconds.
const WAIT_MAX: u64 = 60;

/// The header with the link to a prediction's events.
const MONITOR: (&str, &str) =
    ("Link", "`rel=\"monitor\"`: a link to the events, valid for a day without a key");
const UNPAID: ResponseDoc = ResponseDoc::error(402, "Insufficient balance");
const NO_MODEL: ResponseDoc = ResponseDoc::error(404, "Model not found");
const NO_PREDICTION: ResponseDoc = ResponseDoc::error(404, "Prediction not found");

pub(crate) const CREATE: Doc = Doc {
    request: Some(RequestDoc::json::<NewPrediction>()),
    is_idempotent: true,
    responses: &[
        ResponseDoc {
            headers: &[MONITOR],
            ..ResponseDoc::json::<Accepted<'static>>(
                200,
                "The prediction was accepted and is durable",
            )
        },
        UNPAID,
        NO_MODEL,
    ],
    description: "Creates a prediction and returns its ID at once; the prediction is durable \
                  before the response is sent. Poll `GET /v1/prediction/{id}`, follow its events, \
                  or pass a `webhook_url` to learn the result. An input that violates the model's \
                  schema returns 400 with every violation in `details`; a full queue returns 429. \
                  Send an `Idempotency-Key` to retry safely.",
    ..Doc::new("predictions", "create_prediction", "Create a prediction")
};

/// `POST /v1/prediction/`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let id = submit(&mut context, "prediction").await?;
    Ok(with_monitor_link(&context, id, response::json(StatusCode::OK, &created(id))))
}

pub(crate) const RUN: Doc = Doc {
    responses: &[
        ResponseDoc {
            headers: &[chat::CACHE],
            ..ResponseDoc::json::<Ended<'static>>(
                200,
                "The prediction has ended, successfully or not",
            )
        },
        ResponseDoc {
            headers: &[MONITOR],
            ..ResponseDoc::json::<Accepted<'static>>(
                202,
                "The prediction is still running after the maximum wait",
            )
        },
        UNPAID,
        NO_MODEL,
    ],
    tag: "predictions",
    id: "run_prediction",
    summary: "Create a prediction and wait until it ends",
    description: "Creates a prediction and returns when it has ended, with 200 whether it \
                  succeeded, failed or was cancelled: read `status`. If the prediction is still \
                  running after `limits.sync_wait` of the configuration, the response is 202 and \
                  the prediction continues; poll it like any other prediction. A model with a result \
                  cache may return an earlier output, unless the request has `Cache-Control: \
                  no-cache`. Errors and `Idempotency-Key` work as for `POST /v1/prediction`.",
    ..CREATE
};

/// `POST /v1/prediction/run`: creates a prediction and waits until it ends.
pub(crate) async fn run(mut context: Context) -> Result<Response, crate::Error> {
    let id = submit(&mut context, "prediction/run").await?;
    let organization = context.caller()?.organization;
    let services = &context.services;
    let patience = services.settings.sync_wait;
    let execution = services.engine.wait(organization, id, patience).await?;
    let (status, message) = match execution.status {
        Status::Created | Status::Processing => {
            let accepted = response::json(StatusCode::ACCEPTED, &created(id));
            return Ok(with_monitor_link(&context, id, accepted));
        }
        Status::Success => ("success", "Prediction completed successfully"),
        Status::Error => ("failed", "Prediction failed"),
        Status::Cancelled => ("cancelled", "Prediction was cancelled"),
    };
    let output = shown_output(services, &execution).await?;
    let body = Ended {
        status,
        message,
        prediction_id: id,
        output: output.text,
        output_error: output.error,
        error: execution.fault.as_ref().map_or("", |fault| fault.cause.as_str()),
    };
    let cache = cache_outcome(services, &execution);
    Ok(chat::with_cache(cache, response::json(StatusCode::OK, &body)))
}

/// Returns whether the output of a prediction comes from the result cache of its model; `None` if
/// the model has no cache.
fn cache_outcome(services: &Services, execution: &Execution) -> Option<CacheOutcome> {
    let prediction = execution.prediction()?;
    services.catalog.get(prediction.model())?.cache()?;
    Some(if prediction.is_cached { CacheOutcome::Hit } else { CacheOutcome::Miss })
}

pub(crate) const GET: Doc = Doc {
    query: &[Param::new(
        "wait",
        Kind::Whole { min: 0, max: WAIT_MAX, default: 0 },
        "How many seconds to wait for the prediction to end",
    )],
    responses: &[
        ResponseDoc {
            headers: &[MONITOR],
            ..ResponseDoc::json::<Prediction<'static>>(200, "The prediction")
        },
        NO_PREDICTION,
    ],
    description: "Returns the prediction with its output, logs, costs and attempts. With `wait`, \
                  the response is delayed until the prediction has ended or that many seconds have \
                  passed, whichever comes first, and then shows the current state. A final status \
                  never changes.",
    ..Doc::new("predictions", "get_prediction", "Get a prediction")
};

/// `GET /v1/prediction/{id}?wait=`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let wait = context.request.query.number("wait", 0..=WAIT_MAX, 0)?;
    let id = id_of(&context)?;
    let organization = context.caller()?.organization;
    let services = &context.services;
    let patience = Duration::from_secs(wait);
    let execution = services.engine.wait(organization, id, patience).await.map_err(not_found)?;
    let text = detail(services, &execution).await?;
    Ok(with_monitor_link(&context, id, response::json_text(StatusCode::OK, text.into())))
}

/// Returns a prediction's view as JSON text.
pub(crate) async fn detail(
    services: &Services,
    execution: &Execution,
) -> Result<String, crate::Error> {
    let is_hidden = is_of_foreign_step(services, execution).await?;
    let input = (!is_hidden).then_some(&execution.input);
    let prediction = execution.prediction().ok_or_else(missing)?;
    let url = format!("{}/v1/prediction/{}", services.url_of(Role::Base), execution.id);
    let view = Prediction::of(
        execution,
        prediction,
        Shown {
            input: shown(services, input).await?,
            output: shown_output(services, execution).await?,
            logs: logs(services, execution, prediction),
            urls: Urls { cancel: format!("{url}/cancel"), get: url },
        },
    );
    serde_json::to_string(&view).map_err(crate::Error::internal)
}

/// Returns whether this prediction is a step of another organization's workflow. In that case, the
/// step's input is hidden, because it belongs to the workflow's owner.
pub(crate) async fn is_of_foreign_step(
    services: &Services,
    execution: &Execution,
) -> Result<bool, crate::Error> {
    let step = execution.prediction().and_then(|prediction| prediction.step.as_ref());
    let Some(step) = step.filter(|_| !execution.input.is_nothing()) else { return Ok(false) };
    match services.workflows.by_id(step.workflow).await {
        Ok(workflow) => Ok(workflow.organization != execution.organization),
        Err(workflows::Error::NotFound { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

pub(crate) const CANCEL: Doc = Doc {
    responses: &[
        ResponseDoc::json::<Accepted<'static>>(200, "The prediction is cancelled"),
        NO_PREDICTION,
        ResponseDoc::error(409, "The prediction has already ended"),
    ],
    description: "Stops the work and releases its slot. Repeating the request returns 200 again; a \
                  prediction that has ended otherwise returns 409. A cancelled prediction sends no \
                  webhook and costs nothing beyond what its runner has reported.",
    ..Doc::new("predictions", "cancel_prediction", "Cancel a prediction")
};

/// `POST /v1/prediction/{id}/cancel`
pub(crate) async fn cancel(context: Context) -> Result<Response, crate::Error> {
    let id = id_of(&context)?;
    let organization = context.caller()?.organization;
    let engine = &context.services.engine;
    if engine.get(organization, id).await.map_err(not_found)?.prediction().is_none() {
        return Err(missing());
    }
    engine.cancel(organization, id).await.map_err(|error| {
        if let engine::Error::AlreadyEnded(word) = &error {
            return crate::Error::conflict(format!(
                "Prediction has already ended with status {word}"
            ));
        }
        not_found(error)
    })?;
    let body = Accepted {
        status: "cancelled",
        message: "Prediction canceled successfully",
        prediction_id: id,
    };
    Ok(response::json(StatusCode::OK, &body))
}

/// Validity of a link to a prediction's events. Each response contains a new link.
pub(crate) const EVENTS_LINK: Duration = Duration::from_secs(24 * 3600);

/// Adds a link to the prediction's events. The link needs no key, because a browser's `EventSource`
/// cannot send one.
fn with_monitor_link(context: &Context, id: ExecutionId, mut answer: Response) -> Response {
    let Ok(grant) = context.grant() else { return answer };
    let services = &context.services;
    let link = grant.link(services.clock.now().plus(EVENTS_LINK));
    let path = ["/v1/prediction/", &id.to_string(), "/events"].concat();
    let url = services.signed_urls.url(link, &path);
    if let Ok(link) = HeaderValue::try_from(["<", &url, ">; rel=\"monitor\""].concat()) {
        answer.headers_mut().insert(LINK, link);
    }
    answer
}

const fn created(id: ExecutionId) -> Accepted<'static> {
    let message = "Prediction created successfully";
    Accepted { status: "success", message, prediction_id: id }
}

pub(crate) fn id_of(context: &Context) -> Result<ExecutionId, crate::Error> {
    context.request.param("id").parse().map_err(|_no_id| missing())
}

fn missing() -> crate::Error {
    crate::Error::not_found("Prediction not found")
}

pub(crate) fn not_found(error: engine::Error) -> crate::Error {
    if matches!(error, engine::Error::NotFound) {
        return missing();
    }
    error.into()
}

/// Validates the request and submits it to the engine. Returns the ID of the new prediction, or of
/// the prediction that an earlier request with the same `Idempotency-Key` created.
async fn submit(context: &mut Context, route: &str) -> Result<ExecutionId, crate::Error> {
    let caller = context.caller()?;
    let bytes = context.request.body().await?;
    let claim = match idempotency_key::begin(context, caller.organization, route, &bytes).await? {
        Creation::New(claim) => claim,
        Creation::Replay(answered) => return idempotency_key::created_id(&answered),
    };
    let services = &context.services;
    let new = read(services, &bytes)?;
    let (url, secret) = (new.webhook_url.as_ref(), new.webhook_secret.as_ref());
    body::warn_of_secret_alone(&context.request, url, secret);
    let webhook = body::webhook(
        new.webhook_url,
        new.webhook_secret,
        new.webhook_send_plain_secret,
        services,
    )?;
    let wanted = Wanted {
        model: new.model,
        version: new.version,
        input: new.input,
        fallback: new.fallback_selector,
        webhook,
    };
    start(context, &claim, wanted).await
}

/// A prediction to start.
pub(crate) struct Wanted {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) input: Map<String, Value>,
    /// The name of a fallback chain.
    pub(crate) fallback: Option<String>,
    pub(crate) webhook: Option<Webhook>,
}

/// Validates a prediction and submits it to the engine.
///
/// # Errors
/// 404 for an unknown model, 400 for an invalid input, and the errors of the engine.
pub(crate) async fn start(
    context: &Context,
    claim: &OptionalClaim,
    wanted: Wanted,
) -> Result<ExecutionId, crate::Error> {
    let services = &context.services;
    let mut submission = check(services, context.caller()?, context.source(), wanted).await?;
    if let Work::Prediction(prediction) = &mut submission.work {
        prediction.skips_cache = context.skips_cache();
    }
    let id = submission.id;
    submission.origin = context.origin(id);
    let commit = claim.commit(StoredResponse::created(id))?;
    services.engine.submit(vec![submission], commit).await?;
    Ok(id)
}

/// Reads the body. If the version is optional and missing, it is set to an empty string.
fn read(services: &Services, bytes: &[u8]) -> Result<NewPrediction, crate::Error> {
    let mut body = parse_value(bytes)?;
    let has_version = services.settings.fill_version(&mut body);
    let mut new: NewPrediction = request::read(body).map_err(required_field)?;
    if !has_version {
        new.version.clear();
    }
    Ok(new)
}

/// Returns the error for an invalid body. The message about a missing field is part of the
/// specification.
fn required_field(mismatch: Mismatch) -> crate::Error {
    if mismatch.kind == MismatchKind::Missing {
        return crate::Error::bad_request(format!("{} field is required", mismatch.path));
    }
    mismatch.into()
}

/// Validates the request and converts it to a submission.
async fn check(
    services: &Services,
    caller: Caller,
    source: Source,
    wanted: Wanted,
) -> Result<Submission, crate::Error> {
    let Wanted { model: slug, version, input, fallback, webhook } = wanted;
    let model =
        services.catalog.get(&slug).ok_or_else(|| models::not_found(&services.catalog, &slug))?;
    let input = model.check_input(Value::Object(input)).await.map_err(validation_error)?;
    let selector = fallback.filter(|name| !name.is_empty());
    let chain =
        chain(services, caller.organization, model.slug.as_str(), selector.as_deref()).await?;
    Ok(Submission {
        id: new_id(),
        organization: caller.organization,
        key: caller.key,
        source,
        work: Work::Prediction(execution::Prediction::new(version, chain)),
        input: to_raw_value(&input).map_err(crate::Error::internal)?,
        webhook,
        origin: None,
    })
}

/// Returns the model, followed by the current models of its fallback chain.
async fn chain(
    services: &Services,
    organization: OrganizationId,
    model: &str,
    selector: Option<&str>,
) -> Result<Vec<Candidate>, crate::Error> {
    let mut candidates = vec![Candidate::new(model)];
    let Some(name) = selector else { return Ok(candidates) };
    let found = services.chains.enabled(organization, model, name).await;
    let chain = found.map_err(|error| {
        if let chains::Error::NotFound { hint, .. } = error {
            let shown: String = name.chars().take(50).collect();
            let message = format!("unknown fallback_selector '{shown}' for model '{model}'{hint}");
            return crate::Error::bad_request(message);
        }
        error.into()
    })?;
    candidates.extend(chain.entries.into_iter().map(|entry| {
        let Entry { model, input_map } = entry;
        Candidate { model, input_map }
    }));
    Ok(candidates)
}

/// Returns a payload's text. For a missing or damaged payload, returns the reason, so that the rest
/// of the record can still be read.
pub(crate) async fn shown(
    services: &Services,
    payload: Option<&Payload>,
) -> Result<Text, crate::Error> {
    let Some(payload) = payload else { return Ok(Text::default()) };
    match services.store.read_payload(payload).await {
        Ok(text) => Ok(Text::of(text)),
        Err(error) if error.is_final() => {
            tracing::error!(%error, "payload missing or damaged");
            Ok(Text::missing(error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the output's text with current file URLs.
pub(crate) async fn shown_output(
    services: &Services,
    execution: &Execution,
) -> Result<Text, crate::Error> {
    let Text { text, error } = shown(services, execution.output.as_ref()).await?;
    let text = text.map(|text| services.signed_urls.render(execution.organization, text));
    Ok(Text { text, error })
}

/// Returns the log output of the attempts so far. A queued prediction without output shows its
/// position in the queue.
fn logs(
    services: &Services,
    execution: &Execution,
    prediction: &execution::Prediction,
) -> Option<String> {
    let mut logs = prediction.logs.clone();
    if !execution.status.is_final() {
        append_logs(&mut logs, services.engine.logs_so_far(execution.id));
    }
    logs.or_else(|| services.engine.waiting_for(execution))
}
