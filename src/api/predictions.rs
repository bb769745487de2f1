//! Predictions: create, run, get, cancel (`spec/decisions.md` part 3).

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderValue, LINK};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::fields::{Fields, unfit};
use super::idempotent::{self, Turn};
use super::{Context, Role, Services, models};
use crate::accounts::Caller;
use crate::chains;
use crate::domain::attempt::Attempt;
use crate::domain::chain::Entry;
use crate::domain::execution::{self, Candidate, Execution, Source, Status, Work};
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::payload::Payload;
use crate::engine::outcome::Metrics;
use crate::engine::{self, Submission};
use crate::http::{self, Reply, reply};
use crate::idempotency::Answered;
use crate::runtime::fresh;
use crate::storage::Commit;
use crate::workflows;

/// The longest `wait` of a `GET`, in seconds.
const WAIT_MAX: u64 = 60;

/// `POST /v1/prediction/`
pub async fn create(mut context: Context) -> Result<Reply, http::Error> {
    let id = submit(&mut context, "prediction").await?;
    Ok(followed(&context, id, reply::json(StatusCode::OK, &created(id))))
}

/// `POST /v1/prediction/run`: as create, and waits for the end.
pub async fn run(mut context: Context) -> Result<Reply, http::Error> {
    let id = submit(&mut context, "prediction/run").await?;
    let organization = context.caller()?.organization;
    let services = &context.services;
    let patience = services.settings.sync_wait;
    let execution = services.engine.wait(organization, id, patience).await?;
    let (status, message) = match execution.status {
        Status::Created | Status::Processing => {
            let accepted = reply::json(StatusCode::ACCEPTED, &created(id));
            return Ok(followed(&context, id, accepted));
        }
        Status::Success => ("success", "Prediction completed successfully"),
        Status::Error => ("failed", "Prediction failed"),
        Status::Cancelled => ("cancelled", "Prediction was cancelled"),
    };
    let (output, output_error) = shown(services, execution.output.as_ref()).await?;
    let output = output.map(|text| services.links.render(execution.organization, text));
    let body = Ended {
        status,
        message,
        prediction_id: id.to_string(),
        output,
        output_error,
        error: execution.fault.as_ref().map_or("", |fault| fault.cause.as_str()),
    };
    Ok(reply::json(StatusCode::OK, &body))
}

/// `GET /v1/prediction/{id}?wait=`
pub async fn get(context: Context) -> Result<Reply, http::Error> {
    let wait = context.call.query.number("wait", 0..=WAIT_MAX, 0)?;
    let id = id_of(&context)?;
    let organization = context.caller()?.organization;
    let services = &context.services;
    let patience = Duration::from_secs(wait);
    let execution = services.engine.wait(organization, id, patience).await.map_err(not_found)?;
    let text = detail(services, &execution).await?;
    Ok(followed(&context, id, reply::json_text(StatusCode::OK, text.into())))
}

/// A prediction as clients read it: JSON text.
pub async fn detail(services: &Services, execution: &Execution) -> Result<String, http::Error> {
    let is_hidden = is_of_foreign_step(services, execution).await?;
    let input = (!is_hidden).then_some(&execution.input);
    let (input, input_error) = shown(services, input).await?;
    let (output, output_error) = shown(services, execution.output.as_ref()).await?;
    let output = output.map(|text| services.links.render(execution.organization, text));
    let input = input.unwrap_or_else(|| RawValue::NULL.to_owned());
    let mut view = view(services, execution, &input, output.as_deref())?;
    (view.input_error, view.output_error) = (input_error, output_error);
    serde_json::to_string(&view).map_err(http::Error::internal)
}

/// Whether it is the run of a step of another organization's workflow, which does not show what the
/// owner wrote into the step.
async fn is_of_foreign_step(
    services: &Services,
    execution: &Execution,
) -> Result<bool, http::Error> {
    let step = execution.prediction().and_then(|prediction| prediction.step.as_ref());
    let Some(step) = step.filter(|_| !execution.input.is_nothing()) else { return Ok(false) };
    match services.workflows.by_id(step.workflow).await {
        Ok(workflow) => Ok(workflow.organization != execution.organization),
        Err(workflows::Error::NotFound) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// `POST /v1/prediction/{id}/cancel`
pub async fn cancel(context: Context) -> Result<Reply, http::Error> {
    let id = id_of(&context)?;
    let organization = context.caller()?.organization;
    let engine = &context.services.engine;
    if engine.get(organization, id).await.map_err(not_found)?.prediction().is_none() {
        return Err(missing());
    }
    engine.cancel(organization, id).await.map_err(|error| {
        if let engine::Error::AlreadyEnded(status) = &error {
            let word = status.prediction_word();
            return http::Error::conflict(format!(
                "Prediction has already ended with status {word}"
            ));
        }
        not_found(error)
    })?;
    let body = json!({
        "status": "cancelled",
        "message": "Prediction canceled successfully",
        "predictionID": id.to_string(),
    });
    Ok(reply::json(StatusCode::OK, &body))
}

/// How long a link to a prediction's events opens them. Each answer that names one names a new one.
const EVENTS_LINK: Duration = Duration::from_secs(24 * 3600);

/// The answer with a link to the prediction's events, which needs no key: a browser's
/// `EventSource` cannot send one.
fn followed(context: &Context, id: ExecutionId, mut answer: Reply) -> Reply {
    let Ok(grant) = context.grant() else { return answer };
    let services = &context.services;
    let link = grant.link(services.clock.now().plus(EVENTS_LINK));
    let url = services.links.url(link, &format!("/v1/prediction/{id}/events"));
    if let Ok(link) = HeaderValue::from_str(&format!("<{url}>; rel=\"monitor\"")) {
        answer.headers_mut().insert(LINK, link);
    }
    answer
}

fn created(id: ExecutionId) -> Value {
    json!({
        "status": "success",
        "message": "Prediction created successfully",
        "predictionID": id.to_string(),
    })
}

pub fn id_of(context: &Context) -> Result<ExecutionId, http::Error> {
    context.call.param("id").parse().map_err(|_no_id| missing())
}

fn missing() -> http::Error {
    http::Error::not_found("Prediction not found")
}

pub fn not_found(error: engine::Error) -> http::Error {
    if matches!(error, engine::Error::NotFound) {
        return missing();
    }
    error.into()
}

/// Checks the request and hands it to the engine; the id of what was created, now or under the same
/// `Idempotency-Key` before.
async fn submit(context: &mut Context, route: &str) -> Result<ExecutionId, http::Error> {
    let caller = context.caller()?;
    let bytes = context.call.body().await?;
    let fields = Fields::parse(&bytes)?;
    let ticket = match idempotent::turn(context, caller.organization, route, &bytes).await? {
        Turn::Create(ticket) => ticket,
        Turn::Repeat(answered) => {
            return answered.subject.parse().map_err(http::Error::internal);
        }
    };
    let services = &context.services;
    let submission = check(services, caller, fields).await?;
    let (id, mut beside) = (submission.id, Commit::new());
    if let Some(ticket) = &ticket {
        let answered = Answered::created(id);
        ticket.record(&mut beside, answered).map_err(http::Error::internal)?;
    }
    services.engine.submit(vec![submission], beside).await?;
    Ok(id)
}

/// The request as work for the engine.
async fn check(
    services: &Services,
    caller: Caller,
    mut fields: Fields,
) -> Result<Submission, http::Error> {
    let input = fields.take("input");
    let slug = fields.text("model")?.filter(|slug| !slug.is_empty());
    let slug = slug.ok_or_else(|| http::Error::bad_request("model field is required"))?;
    let version = fields.text("version")?.filter(|version| !version.is_empty());
    if version.is_none() && !services.settings.optional_version {
        return Err(http::Error::bad_request("version field is required"));
    }
    let input = match input {
        None => return Err(http::Error::bad_request("input field is required")),
        Some(input @ Value::Object(_)) => input,
        Some(_) => return Err(http::Error::bad_request("input must be an object")),
    };
    let webhook = fields.webhook(services)?;
    let model = services.catalog.get(slug).ok_or_else(models::not_found)?;
    let input = model.check_input(input).await.map_err(unfit)?;
    let selector = fields.text("fallback_selector")?.filter(|name| !name.is_empty());
    let chain = chain(services, caller.organization, model.slug.as_str(), selector).await?;
    Ok(Submission {
        id: fresh(),
        organization: caller.organization,
        key: caller.key,
        source: Source::Api,
        work: Work::Prediction(execution::Prediction::new(
            version.unwrap_or_default().to_owned(),
            chain,
        )),
        input: to_raw_value(&input).map_err(http::Error::internal)?,
        webhook,
    })
}

/// The model, and those that stand in for it as the named chain has them at this moment.
async fn chain(
    services: &Services,
    organization: OrganizationId,
    model: &str,
    selector: Option<&str>,
) -> Result<Vec<Candidate>, http::Error> {
    let mut candidates = vec![Candidate::new(model)];
    let Some(name) = selector else { return Ok(candidates) };
    let found = services.chains.enabled(organization, model, name).await;
    let chain = found.map_err(|error| {
        if matches!(error, chains::Error::NotFound { .. }) {
            let shown: String = name.chars().take(50).collect();
            let message = format!("unknown fallback_selector '{shown}' for model '{model}'");
            return http::Error::bad_request(message);
        }
        error.into()
    })?;
    candidates.extend(chain.entries.into_iter().map(|entry| {
        let Entry { model, input_map } = entry;
        Candidate { model, input_map }
    }));
    Ok(candidates)
}

/// A payload's text; of one that is lost or damaged, what is wrong with it in a sentence, so that the
/// rest of the record can be read.
pub async fn shown(
    services: &Services,
    payload: Option<&Payload>,
) -> Result<(Option<Box<RawValue>>, Option<String>), http::Error> {
    let Some(payload) = payload else { return Ok((None, None)) };
    match services.store.read_payload(payload).await {
        Ok(text) => Ok((Some(text), None)),
        Err(error) if error.is_final() => {
            tracing::error!(%error, "a record is shown without a payload");
            Ok((None, Some(error.to_string())))
        }
        Err(error) => Err(error.into()),
    }
}

/// The answer of a run that has ended.
#[derive(Serialize)]
struct Ended<'a> {
    status: &'static str,
    message: &'static str,
    #[serde(rename = "predictionID")]
    prediction_id: String,
    output: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_error: Option<String>,
    error: &'a str,
}

/// A prediction as clients read it.
#[derive(Serialize)]
struct Prediction<'a> {
    id: String,
    model: &'a str,
    status: &'static str,
    input: &'a RawValue,
    /// Why the input is missing: its payload is lost or damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    input_error: Option<String>,
    output: Option<&'a RawValue>,
    /// Why the output is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_error: Option<String>,
    logs: Option<String>,
    error: Option<&'a str>,
    error_classification: Option<&'static str>,
    metrics: Metrics,
    urls: Urls,
    created_at: String,
    started_at: Option<String>,
    completed_at: Option<String>,
    attempts: Vec<Tried<'a>>,
}

#[derive(Serialize)]
struct Urls {
    get: String,
    cancel: String,
}

#[derive(Serialize)]
struct Tried<'a> {
    model: &'a str,
    status: &'static str,
    error: Option<&'a str>,
    error_classification: Option<&'static str>,
    started_at: String,
    completed_at: Option<String>,
}

fn view<'a>(
    services: &Services,
    execution: &'a Execution,
    input: &'a RawValue,
    output: Option<&'a RawValue>,
) -> Result<Prediction<'a>, http::Error> {
    let prediction = execution.prediction().ok_or_else(missing)?;
    let fault = execution.fault.as_ref();
    let url = format!("{}/v1/prediction/{}", services.url_of(Role::Base), execution.id);
    Ok(Prediction {
        id: execution.id.to_string(),
        model: prediction.requested_model(),
        status: execution.status.prediction_word(),
        input,
        input_error: None,
        output,
        output_error: None,
        logs: logs(services, execution, prediction),
        error: fault.map(|fault| fault.cause.as_str()),
        error_classification: fault.map(|fault| fault.class.as_str()),
        metrics: Metrics::of(execution),
        urls: Urls { cancel: format!("{url}/cancel"), get: url },
        created_at: execution.created_at.to_string(),
        started_at: execution.started_at.map(|time| time.to_string()),
        completed_at: execution.completed_at.map(|time| time.to_string()),
        attempts: prediction.attempts.iter().map(tried).collect(),
    })
}

/// What its attempts have written until now; of one that waits and has written nothing, why it
/// waits.
fn logs(
    services: &Services,
    execution: &Execution,
    prediction: &execution::Prediction,
) -> Option<String> {
    let mut logs = prediction.logs.clone();
    if !execution.status.is_final() {
        execution::append_logs(&mut logs, services.engine.logs_so_far(execution.id));
    }
    logs.or_else(|| services.engine.waiting_for(execution))
}

fn tried(attempt: &Attempt) -> Tried<'_> {
    Tried {
        model: &attempt.model,
        status: attempt.outcome.as_str(),
        error: attempt.failure.as_ref().map(|failure| failure.message.as_str()),
        error_classification: attempt.failure.as_ref().map(|failure| failure.class.as_str()),
        started_at: attempt.started_at.to_string(),
        completed_at: attempt.completed_at.map(|time| time.to_string()),
    }
}
