//! Predictions: create, wait, list, read and cancel.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName};
use url::form_urlencoded::Serializer;

use super::account::webhook_secret;
use super::{
    CURSOR, Context, Doc, Kind, NO_MODEL, NO_PREDICTION, Param, Position, ResponseDoc, Role,
    Services, doc, models, url_of,
};
use crate::body;
use crate::context::Grant;
use crate::doc::RequestDoc;
use crate::idempotency_key::{self, Creation};
use crate::predictions::{
    EVENTS_LINK, Wanted, id_of, is_of_foreign_step, not_found, shown, shown_output, start,
};
use orrery_catalog::Model;
use orrery_domain::delivery::Webhook;
use orrery_domain::execution::{Execution, Kind as WorkKind, Status};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::logs::append_logs;
use orrery_domain::payload::Payload;
use orrery_domain::replicate::Event;
use orrery_engine as engine;
use orrery_engine::query::history::Filter;
use orrery_http::query::read_time;
use orrery_http::request::parse;
use orrery_http::{Response, response};
use orrery_wire::replicate::{
    NewPrediction, NewRun, Page, Prediction, PredictionStatus, Shown, Urls, stream_path,
};

/// Number of predictions in a page.
const PAGE: usize = 100;
/// Maximum total size of the inputs and outputs on one page, in bytes. An input or output that would
/// exceed this limit is null.
const SHOWN_MAX: usize = 4 * 1024 * 1024;
/// Maximum and default number of seconds for `Prefer: wait`.
const WAIT_MAX: u64 = 60;
const PREFER: HeaderName = HeaderName::from_static("prefer");

const INVALID: ResponseDoc = ResponseDoc::error(
    422,
    "The version does not exist, or the input does not match the model's schema",
);
const CREATED: ResponseDoc = ResponseDoc::json::<Prediction<'static>>(
    201,
    "The prediction was created; if the request waited, it has also ended",
);
const STARTED: ResponseDoc = ResponseDoc::json::<Prediction<'static>>(
    202,
    "The prediction has not ended within the time in `Prefer: wait`; its status is `starting`",
);
const UNPAID: ResponseDoc = ResponseDoc::error(402, "Insufficient balance");

pub(crate) const CREATE: Doc = Doc {
    request: Some(RequestDoc::json::<NewPrediction>()),
    is_idempotent: true,
    responses: &[CREATED, STARTED, UNPAID, INVALID],
    description: "Creates a prediction with the model to which the version belongs. With the header `Prefer: wait` \
                  or `Prefer: wait=N`, the response is delayed until the prediction has ended, for \
                  at most 60 or N seconds. The prediction is durable before the response is sent. \
                  The service notifies the URL in `webhook` of the events in `webhook_events_filter`; updates with \
                  output and logs are sent at most every 500 ms.",
    ..doc("replicate_create_prediction", "Create a prediction with a version")
};

/// `POST /replicate/v1/predictions`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let read = |context: &Context, bytes: &[u8]| {
        let NewPrediction { version, run } = parse(bytes)?;
        Ok((models::of_version(&context.services, &version)?, run))
    };
    submit(&mut context, "replicate/predictions", read).await
}

pub(crate) const CREATE_WITH_MODEL: Doc = Doc {
    request: Some(RequestDoc::json::<NewRun>()),
    is_idempotent: true,
    responses: &[CREATED, STARTED, UNPAID, NO_MODEL, INVALID],
    description: "Creates a prediction with the model in the path. Otherwise, the request does the \
                  same as `POST /replicate/v1/predictions`.",
    ..doc("replicate_create_model_prediction", "Create a prediction with a model")
};

/// `POST /replicate/v1/models/{owner}/{name}/predictions`
pub(crate) async fn create_with_model(mut context: Context) -> Result<Response, crate::Error> {
    let read = |context: &Context, bytes: &[u8]| {
        let run = parse(bytes)?;
        Ok((models::in_path(context)?, run))
    };
    let model = [context.request.param("owner"), context.request.param("name")].join("/");
    let route = format!("replicate/models/{model}");
    submit(&mut context, &route, read).await
}

/// Creates a prediction and waits for its end for as long as `Prefer` requests. `read` returns the model and the
/// run.
async fn submit(
    context: &mut Context,
    route: &str,
    read: impl FnOnce(&Context, &[u8]) -> Result<(Arc<Model>, NewRun), crate::Error>,
) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let bytes = context.request.body().await?;
    let id = match idempotency_key::begin(context, organization, route, &bytes).await? {
        Creation::Replay(answered) => idempotency_key::created_id(&answered)?,
        Creation::New(claim) => {
            let (model, run) = read(context, &bytes)?;
            let wanted = Wanted {
                model: model.slug.to_string(),
                version: model.version_id().to_owned(),
                webhook: webhook(&context.services, organization, &run)?,
                input: run.input,
                fallback: None,
            };
            start(context, &claim, wanted).await.map_err(|mut error| {
                // Replicate's API distinguishes an invalid input from an invalid request.
                if error.status == StatusCode::BAD_REQUEST {
                    error.status = StatusCode::UNPROCESSABLE_ENTITY;
                }
                error
            })?
        }
    };
    let patience = patience(&context.request.headers);
    let services = &context.services;
    let execution = services.engine.wait(organization, id, patience.unwrap_or_default()).await?;
    let mut view = view(services, &context.grant()?, &execution, usize::MAX).await?;
    let is_late = patience.is_some() && !execution.status.is_final();
    if is_late {
        // After a wait, clients treat any other status as final.
        view.status = PredictionStatus::Starting;
    }
    let status = if is_late { StatusCode::ACCEPTED } else { StatusCode::CREATED };
    Ok(response::json(status, &view))
}

/// Returns the webhook of a run, which is signed with the organization's secret.
///
/// # Errors
/// 400 for an invalid URL, and for a URL that the egress guard denies.
fn webhook(
    services: &Services,
    organization: OrganizationId,
    run: &NewRun,
) -> Result<Option<Webhook>, crate::Error> {
    let named = body::webhook_url("webhook", run.webhook.clone(), services)?;
    let (url, events) = match named {
        Some(url) => {
            let filter = run.webhook_events_filter.as_deref().unwrap_or_default();
            let mut events: Vec<Event> = filter.iter().copied().map(Event::from).collect();
            if events.is_empty() {
                events = Event::DEFAULT.to_vec();
            }
            (url, events)
        }
        None => {
            let url = run.webhook_completed.clone();
            let url = body::webhook_url("webhook_completed", url, services)?;
            let Some(url) = url else { return Ok(None) };
            (url, vec![Event::Completed])
        }
    };
    let secret = webhook_secret(services, organization)?;
    Ok(Some(Webhook {
        secret: Some(body::sealed_secret(&secret, services)?),
        send_plain_secret: Some(false),
        replicate: Some(events),
        ..Webhook::unsigned(url)
    }))
}

/// Returns how long the request prefers to wait (RFC 7240, section 4.3). Invalid preferences are
/// ignored.
fn patience(headers: &HeaderMap) -> Option<Duration> {
    let preferences = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    let wait = |preference: &str| {
        let preference = preference.split(';').next().unwrap_or_default();
        let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
        if !name.trim().eq_ignore_ascii_case("wait") {
            return None;
        }
        match value.trim().trim_matches('"') {
            "" => Some(WAIT_MAX),
            seconds => seconds.parse::<u64>().ok().map(|seconds| seconds.clamp(1, WAIT_MAX)),
        }
    };
    preferences.flat_map(|text| text.split(',')).find_map(wait).map(Duration::from_secs)
}

pub(crate) const LIST: Doc = Doc {
    query: &[
        CURSOR,
        Param::new("created_after", Kind::Time, "Only predictions created at or after this time"),
        Param::new("created_before", Kind::Time, "Only predictions created before this time"),
    ],
    responses: &[ResponseDoc::json::<Page<Prediction<'static>>>(
        200,
        "A page of predictions, newest first",
    )],
    description: "Returns a page of 100 predictions of the organization, over all keys and both \
                  APIs. The inputs and outputs of a page are limited to 4 MiB; beyond that, they \
                  are null.",
    ..doc("replicate_list_predictions", "List predictions")
};

/// `GET /replicate/v1/predictions?cursor=&created_after=&created_before=`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let grant = context.grant()?;
    let organization = grant.organization;
    let services = &context.services;
    let query = &context.request.query;
    let moment = |name: &str| query.get(name).map(|text| read_time(name, text)).transpose();
    let filter = Filter {
        standings: Some(Status::ALL.map(|status| (WorkKind::Prediction, status)).to_vec()),
        from: moment("created_after")?,
        to: moment("created_before")?,
        ..Filter::default()
    };
    let filters = ["created_after", "created_before"].map(|name| Some((name, query.get(name)?)));
    let filters = filters.into_iter().flatten();
    let filters = Serializer::new(String::new()).extend_pairs(filters).finish();
    let path = match filters.as_str() {
        "" => "predictions".to_owned(),
        filters => format!("predictions?{filters}"),
    };
    let asked = format!("replicate predictions {organization} {filters}");
    let position: Position<ExecutionId> = Position::read(&context, asked, url_of(services, &path))?;
    let found = services.engine.history(organization, &filter, position.after(), PAGE).await?;
    let mut results = Vec::with_capacity(found.executions.len());
    let mut left = SHOWN_MAX;
    for execution in &found.executions {
        let view = view(services, &grant, execution, left).await?;
        let texts = [&view.input, &view.output].into_iter().flatten();
        left = left.saturating_sub(texts.map(|text| text.get().len()).sum());
        results.push(view);
    }
    let page = Page {
        previous: position.previous(services),
        next: position.next(services, found.more_after),
        results,
    };
    Ok(response::json(StatusCode::OK, &page))
}

pub(crate) const GET: Doc = Doc {
    responses: &[ResponseDoc::json::<Prediction<'static>>(200, "The prediction"), NO_PREDICTION],
    description: "Returns a prediction, created with this API or with the service's own API. A final status never changes.",
    ..doc("replicate_get_prediction", "Get a prediction")
};

/// `GET /replicate/v1/predictions/{id}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    answer(&context).await
}

pub(crate) const CANCEL: Doc = Doc {
    responses: &[ResponseDoc::json::<Prediction<'static>>(200, "The prediction"), NO_PREDICTION],
    description: "Stops the work and releases its slot. A prediction that has already ended is \
                  returned unchanged.",
    ..doc("replicate_cancel_prediction", "Cancel a prediction")
};

/// `POST /replicate/v1/predictions/{id}/cancel`
pub(crate) async fn cancel(context: Context) -> Result<Response, crate::Error> {
    let id = id_of(&context)?;
    let organization = context.caller()?.organization;
    let engine = &context.services.engine;
    if engine.get(organization, id).await.map_err(not_found)?.prediction().is_some() {
        match engine.cancel(organization, id).await {
            Ok(_) | Err(engine::Error::AlreadyEnded(_)) => {}
            Err(error) => return Err(not_found(error)),
        }
    }
    answer(&context).await
}

/// Returns the prediction in the path.
async fn answer(context: &Context) -> Result<Response, crate::Error> {
    let grant = context.grant()?;
    let services = &context.services;
    let id = id_of(context)?;
    let found = services.engine.wait(grant.organization, id, Duration::ZERO).await;
    let execution = found.map_err(not_found)?;
    let view = view(services, &grant, &execution, usize::MAX).await?;
    Ok(response::json(StatusCode::OK, &view))
}

/// Returns the view of a prediction. An input or output with more than `most` bytes is
/// null.
async fn view<'e>(
    services: &Services,
    grant: &Grant,
    execution: &'e Execution,
    most: usize,
) -> Result<Prediction<'e>, crate::Error> {
    let missing = || not_found(engine::Error::NotFound);
    let prediction = execution.prediction().ok_or_else(missing)?;
    let mut left = most;
    let mut fits = |payload: &Payload| {
        let rest = usize::try_from(payload.len()).ok().and_then(|len| left.checked_sub(len));
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    let is_hidden = is_of_foreign_step(services, execution).await?;
    let input = (!is_hidden && fits(&execution.input)).then_some(&execution.input);
    let output = match execution.output.as_ref().is_some_and(fits) {
        true => shown_output(services, execution).await?.text,
        false => None,
    };
    let mut logs = prediction.logs.clone();
    if !execution.status.is_final() {
        append_logs(&mut logs, services.engine.logs_so_far(execution.id));
    }
    let link = grant.link(services.clock.now().plus(EVENTS_LINK));
    let stream = services.signed_urls.url(link, &stream_path(execution.id));
    let shown = Shown {
        input: shown(services, input).await?,
        output,
        logs,
        urls: Urls::of(services.url_of(Role::Base), execution.id, stream),
    };
    Ok(Prediction::of(execution, prediction, shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_wait_is_limited() {
        for (text, seconds) in [
            ("wait", Some(60)),
            ("wait=5", Some(5)),
            ("respond-async, Wait = \"7\"; x=1", Some(7)),
            ("wait=0", Some(1)),
            ("wait=3600", Some(60)),
            ("wait=soon", None),
            ("handling=strict", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(PREFER, text.parse().unwrap());
            assert_eq!(patience(&headers), seconds.map(Duration::from_secs), "{text}");
        }
        assert_eq!(patience(&HeaderMap::new()), None);
    }
}
