//! Responses in the background: creating, following and cancelling them.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use hyper::StatusCode;
use orrery_dialects::Request;
use orrery_dialects::responses::{Head, Ids, begun, replay, replay_begin};
use serde_json::Value;
use serde_json::value::RawValue;

use super::stored::{missing, named_id};
use super::stream::KEEP_ALIVE;
use super::{Keep, TAG};
use crate::chat::identified;
use crate::completion;
use crate::doc::{Doc, ErrorForm, ResponseDoc};
use crate::idempotency_key::{self, OptionalClaim};
use crate::{Context, Services};
use orrery_chat::Caller;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::invalid_request::InvalidRequest;
use orrery_engine as engine;
use orrery_http::sse::{self, HEARTBEAT};
use orrery_http::{Response, response};
use orrery_records::idempotency::StoredResponse;
use orrery_responses::{self as responses, NewBackground};
use orrery_runtime as runtime;
use orrery_wire::responses::answer::{Response as Answer, Settings, Status};

/// A response to create.
pub(super) struct Wanted {
    pub keep: Keep,
    pub settings: Settings,
    pub shows_reasoning: bool,
    pub request: Request,
    /// The claim to the request's `Idempotency-Key`, which is held until the response is durable.
    pub claim: OptionalClaim,
}

/// Accepts a response, and answers with it or its stream.
pub(super) async fn create(
    context: &Context,
    caller: Caller,
    wanted: Wanted,
) -> Result<Response, crate::Error> {
    let Wanted { keep, settings, shows_reasoning, request, claim } = wanted;
    let services = &context.services;
    let is_stream = request.is_stream;
    // The engine reads the answer as a whole.
    let request = Request { is_stream: false, ..request };
    let body = completion::write(&context.services, &request).await?;
    let body = String::from_utf8(body.into()).map_err(crate::Error::internal)?;
    let body = RawValue::from_string(body).map_err(crate::Error::internal)?;
    let id: ExecutionId = runtime::new_id();
    let ids = Ids { response: responses::shown(id), shows_reasoning };
    let created_at = services.clock.now().unix_seconds();
    let queued = Head { ids, created_at, settings }.with(begun(Status::Queued));
    let wanted = NewBackground {
        new: keep.of(&queued)?,
        body,
        model: request.model,
        shows_reasoning,
        origin: context.origin(id),
        beside: claim.commit(StoredResponse::created(id))?,
    };
    services.background.start(caller, wanted).await?;
    let answer = if is_stream {
        let stream = follow(services, caller.organization, id, 0).await?;
        stream.ok_or_else(|| crate::Error::internal("the response is gone"))?
    } else {
        response::json(StatusCode::OK, &queued)
    };
    Ok(identified(id, answer))
}

/// Returns the response that an earlier request with the same `Idempotency-Key` created.
pub(super) async fn again(
    context: &Context,
    answered: &StoredResponse,
    is_stream: bool,
) -> Result<Response, crate::Error> {
    let services = &context.services;
    let organization = context.caller()?.organization;
    let id: ExecutionId = idempotency_key::created_id(answered)?;
    let found = if is_stream {
        follow(services, organization, id, 0).await?
    } else {
        services.background.find(organization, id).await?.map(|response| {
            response::json_text(StatusCode::OK, Bytes::from(response.get().to_owned()))
        })
    };
    let gone = || {
        let id = responses::shown(id);
        let message = format!("this Idempotency-Key created the response '{id}', which is gone");
        crate::Error::not_found(message)
    };
    Ok(identified(id, found.ok_or_else(gone)?))
}

/// Returns the events of a response from the number `skipped` on: those of one that has not ended
/// follow its end. Returns `None` if the organization has no such response.
pub(super) async fn follow(
    services: &Arc<Services>,
    organization: OrganizationId,
    id: ExecutionId,
    skipped: usize,
) -> Result<Option<Response>, crate::Error> {
    let Some(response) = services.background.find(organization, id).await? else {
        return Ok(None);
    };
    let response: Value = serde_json::from_str(response.get()).map_err(crate::Error::internal)?;
    if is_ended(&response) {
        let events: Vec<Bytes> = replay(&response).iter().skip(skipped).map(text_of).collect();
        return Ok(Some(sse::stream(stream::iter(events))));
    }
    let first = replay_begin(&response);
    let count = first.len();
    let first: Vec<Bytes> = first.iter().skip(skipped).map(text_of).collect();
    let wait = Wait { services: Arc::clone(services), organization, id, is_over: false };
    let rest = stream::unfold(wait, move |mut wait| async move {
        let piece = wait.next(skipped.max(count)).await?;
        Some((piece, wait))
    });
    Ok(Some(sse::stream(stream::iter(first).chain(rest))))
}

fn is_ended(response: &Value) -> bool {
    !matches!(response.get("status").and_then(Value::as_str), Some("queued" | "in_progress"))
}

/// Returns an event as text. Its type is also its name.
fn text_of(event: &Value) -> Bytes {
    let name = event.get("type").and_then(Value::as_str).unwrap_or_default();
    format!("event: {name}\ndata: {event}\n\n").into()
}

/// A stream that waits for the end of a response.
struct Wait {
    services: Arc<Services>,
    organization: OrganizationId,
    id: ExecutionId,
    is_over: bool,
}

impl Wait {
    /// Returns the events from the number `skipped` on once the response has ended, or a comment
    /// after a silence.
    async fn next(&mut self, skipped: usize) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let (organization, id) = (self.organization, self.id);
        let services = &self.services;
        // If the service stops, the client asks again after the restart.
        services.engine.check_running().ok()?;
        match services.engine.wait(organization, id, HEARTBEAT).await {
            Ok(execution) if !execution.status.is_final() => {
                return Some(Bytes::from_static(KEEP_ALIVE));
            }
            Ok(_) | Err(engine::Error::NotFound) => {}
            Err(_) => return None,
        }
        self.is_over = true;
        let response = services.background.find(organization, id).await.ok()??;
        let response: Value = serde_json::from_str(response.get()).ok()?;
        let events = replay(&response);
        let events = events.iter().skip(skipped).map(text_of);
        Some(events.collect::<Vec<_>>().concat().into())
    }
}

pub(crate) const CANCEL: Doc = Doc {
    errors: ErrorForm::OpenAi,
    responses: &[
        ResponseDoc::json::<Answer>(200, "The response, which has ended"),
        ResponseDoc::error(404, "The organization has no such response"),
    ],
    description: "Cancels a response in the background, and returns it. One that has ended stays as \
                  it is. A response that is not in the background returns 400.",
    ..Doc::new(TAG, "cancel_response", "Cancel a response")
};

/// `POST /v1/responses/{id}/cancel`
pub(crate) async fn cancel(context: Context) -> Result<Response, crate::Error> {
    let (organization, id) = named_id(&context)?;
    let background = &context.services.background;
    let find = || background.find(organization, id);
    let response = find().await?.ok_or_else(|| missing(&context))?;
    let fields: Value = serde_json::from_str(response.get()).map_err(crate::Error::internal)?;
    if fields.get("background") != Some(&Value::Bool(true)) {
        let message = "only a response in the background can be cancelled: close the connection of \
                       others";
        return Err(InvalidRequest::whole(message).into());
    }
    background.cancel(organization, id).await?;
    let response = find().await?.ok_or_else(|| missing(&context))?;
    Ok(response::json_text(StatusCode::OK, Bytes::from(response.get().to_owned())))
}
