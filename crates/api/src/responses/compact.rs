//! `POST /v1/responses/compact`: a model summarizes a conversation, and an item with the summary
//! stands for it in later requests.

use std::sync::Arc;

use orrery_dialects::Unreadable;
use orrery_dialects::responses::{Ids, ask_for_summary, read, write_compaction};
use serde_json::json;

use super::{Conversation, ITEM_COPIES, TAG, conversation};
use crate::Context;
use crate::chat::{self, EXECUTION};
use crate::completion::{self, execution_of};
use crate::doc::{Doc, ErrorForm, RequestDoc, ResponseDoc};
use orrery_domain::chat::Operation;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_http::Response;
use orrery_http::request::{self as http_request, busy};
use orrery_responses as responses;
use orrery_runtime as runtime;
use orrery_wire::request;
use orrery_wire::responses::answer::Compaction;
use orrery_wire::responses::{CompactRequest, CreateRequest};

pub(crate) const COMPACT: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<CompactRequest>()),
    responses: chat::failures!(ResponseDoc::json::<Compaction>(
        200,
        "The compaction, whose item stands for the conversation in later requests"
    )),
    description: "Summarizes a conversation with the model, as a chat completion with its price \
                  and limits. The item of type `compaction` in the output stands for the \
                  conversation in the `input` of later requests. Nothing is stored.",
    ..Doc::new(TAG, "compact_response", "Compact a conversation")
};

/// `POST /v1/responses/compact`
pub(crate) async fn compact(mut context: Context) -> Result<Response, crate::Error> {
    let given = context.request.body().await?;
    let asked = request::read(http_request::parse_value(&given)?);
    let asked: CompactRequest = asked.map_err(InvalidRequest::from)?;
    if asked.input.is_none() && asked.previous_response_id.is_none() {
        return Err(InvalidRequest::missing("input").into());
    }
    let caller = chat::caller_of(&context)?;
    let services = Arc::clone(&context.services);
    let mut lease = services.bodies.lease(&context.request.peer);
    lease.grow(given.len().saturating_mul(ITEM_COPIES)).map_err(|_full| busy())?;
    drop(given);
    let fields = json!({
        "model": asked.model, "input": [], "store": false, "instructions": asked.instructions,
        "previous_response_id": asked.previous_response_id,
    });
    let mut create: CreateRequest =
        serde_json::from_value(fields).map_err(crate::Error::internal)?;
    if let Some(input) = asked.input {
        create.input = input;
    }
    let Conversation { items, request, .. } =
        conversation(&services, caller.organization, create, &mut lease).await?;
    let mut request = read(request, items);
    ask_for_summary(&mut request.messages);
    let body = completion::write(&services, &request).await?;
    let mut bound = lease.sibling();
    bound.grow(body.len()).map_err(|_full| busy())?;
    let answer = chat::respond(context, caller, Operation::Chat, bound.bind(body)).await?;
    let execution = execution_of(&answer).and_then(|id| id.parse().ok());
    let execution = execution.unwrap_or_else(runtime::new_id);
    let ids = Ids { response: responses::shown(execution), shows_reasoning: false };
    let now = services.clock.now().unix_seconds();
    let translate = move |answer| {
        let compaction = write_compaction(answer, &ids, now);
        compaction.ok_or_else(|| Unreadable("has no text".to_owned()))
    };
    let (headers, compaction) = completion::translate(answer, translate).await?;
    Ok(completion::respond(&headers, &compaction))
}
