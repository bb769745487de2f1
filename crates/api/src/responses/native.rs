//! Responses of an upstream that has the Responses API itself (`docs/spec/responses.md`, "Upstreams
//! with the Responses API"). Requests and answers pass as they are, except for what this service
//! keeps itself: IDs, stored conversations, the model's name and the cost. The upstream stores
//! nothing, because all organizations share its key.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use hyper::StatusCode;
use orrery_dialects::responses::{code_of, input_id, item_id};
use orrery_domain::raw_object::RawObject;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::missing;
use crate::chat::identified;
use crate::{Context, Services};
use orrery_chat::{Answer, Caller};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::invalid_request::InvalidRequest;
use orrery_http::budget::Lease;
use orrery_http::event_stream::EventReader;
use orrery_http::request::busy;
use orrery_http::{Response, answers, response, sse};
use orrery_responses::{self as responses, NewResponse};
use orrery_wire::responses::ITEMS_MAX;

/// Maximum size of an event, in bytes: the router's own limit, and room for what it adds.
const EVENT_MAX: usize = 17 * 1024 * 1024;
/// Memory that a byte of an event takes while it is changed.
const EVENT_COPIES: usize = 4;
/// Events up to this size do not count toward the budget of bodies in flight.
const EVENT_FREE: usize = 64 * 1024;

/// What this service keeps of a request.
struct Kept {
    organization: OrganizationId,
    /// The `model` of the request.
    model: Value,
    store: bool,
    previous: Option<ExecutionId>,
    /// The items of its own input.
    input: Vec<Box<RawValue>>,
}

/// Passes a request to the upstream.
pub(super) async fn create(
    context: &Context,
    caller: Caller,
    given: &[u8],
    mut lease: Lease,
) -> Result<Response, crate::Error> {
    let (kept, body) = prepare(&context.services, caller.organization, given, &mut lease).await?;
    let services = &context.services;
    let asked = |id| context.origin(id);
    match services.chat.respond(caller, body, lease.sibling(), asked).await? {
        Answer::Whole { execution, body, .. } => {
            let response = kept.keep(services, execution, body).await?;
            Ok(identified(execution, response::json(StatusCode::OK, &response)))
        }
        Answer::Stream { execution, pieces, .. } => {
            let stream = Stream {
                services: Arc::clone(services),
                execution,
                kept: Some(kept),
                pieces,
                events: EventReader::new(EVENT_MAX),
                lease: lease.sibling(),
                _input: lease,
                begun: None,
                next: 0,
                is_over: false,
            };
            let pieces = stream::unfold(stream, |mut stream| async move {
                let piece = stream.next().await?;
                Some((piece, stream))
            });
            Ok(identified(execution, sse::stream(pieces)))
        }
    }
}

/// Returns what is kept of a request, and the request for the upstream.
async fn prepare(
    services: &Services,
    organization: OrganizationId,
    given: &[u8],
    lease: &mut Lease,
) -> Result<(Kept, Bytes), crate::Error> {
    let mut fields: RawObject =
        serde_json::from_slice(given).map_err(|error| InvalidRequest::body(given, &error))?;
    let mut own = own_items(&fields)?;
    services.responses.resolve_raw(organization, &mut own, lease).await?;
    let previous: Option<String> = fields.value("previous_response_id").unwrap_or_default();
    let previous = match &previous {
        Some(id) => Some(responses::id_of(id).ok_or_else(|| missing(id))?),
        None => None,
    };
    let mut items = match previous {
        Some(previous) => {
            services.responses.raw_conversation(organization, previous, lease).await?
        }
        None => Vec::new(),
    };
    let store = fields.value::<Option<bool>>("store").flatten().unwrap_or(true);
    if store {
        services.engine.check_room(organization).await?;
    }
    let model = fields.value("model").unwrap_or(Value::Null);
    let input = if store { own.clone() } else { Vec::new() };
    let kept = Kept { organization, model, store, previous, input };
    items.extend(own);
    let items: Vec<RawObject> = items.iter().filter_map(|item| sent(item)).collect();
    let set = fields.set("input", &items).and_then(|()| fields.set("store", &false));
    set.map_err(crate::Error::internal)?;
    fields.remove("previous_response_id");
    fields.remove("background");
    let body = Bytes::from(fields.text().map_err(crate::Error::internal)?);
    let mut bound = lease.sibling();
    bound.grow(body.len()).map_err(|_full| busy())?;
    Ok((kept, bound.bind(body)))
}

/// Returns the items of a request's input.
fn own_items(fields: &RawObject) -> Result<Vec<Box<RawValue>>, crate::Error> {
    let input = fields.get("input").unwrap_or("null");
    if let Ok(text) = serde_json::from_str::<String>(input) {
        let item = json!({"type": "message", "role": "user", "content": text});
        return Ok(vec![to_raw_value(&item).map_err(crate::Error::internal)?]);
    }
    let items: Vec<Box<RawValue>> = serde_json::from_str(input).unwrap_or_default();
    if items.is_empty() || items.len() > ITEMS_MAX {
        let message = format!("input must be a string, or 1 to {ITEMS_MAX} items");
        return Err(InvalidRequest::field("input", message).into());
    }
    Ok(items)
}

/// Returns an item as the upstream reads it: without its ID, by which the upstream would look for an
/// item that it has not stored. Reasoning that no server can read is left out.
fn sent(item: &RawValue) -> Option<RawObject> {
    let mut item: RawObject = serde_json::from_str(item.get()).ok()?;
    let is_filled = |name: &str| !matches!(item.get(name), None | Some("null" | "[]" | "\"\""));
    let is_reasoning = item.get("type") == Some("\"reasoning\"");
    if is_reasoning && !is_filled("encrypted_content") && !is_filled("content") {
        return None;
    }
    item.remove("id");
    Some(item)
}

impl Kept {
    /// Changes a response to the one that the client sees. Returns `None` if it is not a response.
    fn response(&self, execution: ExecutionId, response: Value) -> Option<Value> {
        let Value::Object(mut fields) = response else { return None };
        let id = responses::shown(execution);
        let output = fields.get_mut("output")?.as_array_mut()?;
        for (index, item) in output.iter_mut().enumerate() {
            rename(item.get_mut("id"), &id, index);
        }
        fields.extend([
            ("id".to_owned(), id.into()),
            ("model".to_owned(), self.model.clone()),
            ("store".to_owned(), self.store.into()),
            ("previous_response_id".to_owned(), self.previous.map(responses::shown).into()),
        ]);
        Some(Value::Object(fields))
    }

    /// Reads a complete response, and stores it as the client sees it.
    async fn keep(
        self,
        services: &Services,
        execution: ExecutionId,
        text: Bytes,
    ) -> Result<Value, crate::Error> {
        let length = text.len();
        let change = move || {
            let response = serde_json::from_slice(&text).ok()?;
            let response = self.response(execution, response)?;
            Some((self, response))
        };
        let changed = answers::parse_aside(length, change).await;
        let changed = changed.ok_or_else(|| crate::Error::internal("no translation"))?;
        let unreadable = || {
            let message = "the model's answer is not a response";
            crate::Error::status(StatusCode::BAD_GATEWAY, message)
        };
        let (kept, response) = changed.ok_or_else(unreadable)?;
        kept.put(services, execution, &response).await?;
        Ok(response)
    }

    /// Stores a response. When this returns, it is durable.
    async fn put(
        self,
        services: &Services,
        execution: ExecutionId,
        response: &Value,
    ) -> Result<(), crate::Error> {
        if !self.store {
            return Ok(());
        }
        let id = responses::shown(execution);
        let identified = |item: &RawValue, index: usize| {
            let mut item: RawObject = serde_json::from_str(item.get()).ok()?;
            let kind: String = item.value("type").unwrap_or_default();
            item.set("id", &input_id(&kind, &id, index)).ok()?;
            Some(item)
        };
        let input = self.input.iter().enumerate();
        let input: Vec<RawObject> =
            input.filter_map(|(index, item)| identified(item, index)).collect();
        let new = NewResponse {
            organization: self.organization,
            id: execution,
            previous: self.previous,
            input: to_raw_value(&input).map_err(crate::Error::internal)?,
            response: to_raw_value(response).map_err(crate::Error::internal)?,
        };
        Ok(services.responses.put(new).await?)
    }
}

/// Replaces the upstream's ID of an item of the response `response`.
fn rename(id: Option<&mut Value>, response: &str, index: usize) {
    if let Some(id) = id {
        *id = item_id(id.as_str().unwrap_or_default(), response, index).into();
    }
}

/// A stream whose events are changed.
struct Stream {
    services: Arc<Services>,
    execution: ExecutionId,
    /// `None` after the last event.
    kept: Option<Kept>,
    pieces: mpsc::Receiver<Bytes>,
    events: EventReader,
    /// Reserves memory for large events.
    lease: Lease,
    /// Reserves memory for the items of the input, until the response is stored.
    _input: Lease,
    /// The response of the first event.
    begun: Option<Value>,
    /// The number of the next event.
    next: u64,
    is_over: bool,
}

impl Stream {
    /// Returns the next events.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let mut sent = Vec::new();
            while let Ok(Some(event)) = self.events.next_event() {
                match event.data {
                    None => sent.extend_from_slice(&event.raw),
                    Some(data) => self.event(&data, &mut sent).await,
                }
            }
            if !sent.is_empty() {
                return Some(sent.into());
            }
            if self.is_over {
                return None;
            }
            match self.pieces.recv().await {
                Some(piece) => {
                    self.events.push(&piece);
                    let held = self.events.pending();
                    let needed = held.saturating_mul(EVENT_COPIES);
                    if held > EVENT_FREE && self.lease.grow_to(needed).is_err() {
                        let full = json!({"type": "rate_limit_error", "message": busy().message});
                        self.fail(full, &mut sent).await;
                        return Some(sent.into());
                    }
                }
                None => self.is_over = true,
            }
        }
    }

    /// Changes an event.
    async fn event(&mut self, data: &[u8], sent: &mut Vec<u8>) {
        let Ok(Value::Object(mut event)) = serde_json::from_slice(data) else { return };
        if let Some(error) = event.remove("error").filter(Value::is_object)
            && !event.contains_key("type")
        {
            return self.fail(error, sent).await;
        }
        self.change(&mut event);
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_last = ["response.completed", "response.incomplete"].contains(&kind.as_str());
        if let Some(response) = event.get("response") {
            self.begun.get_or_insert_with(|| response.clone());
            if is_last && let Some(kept) = self.kept.take() {
                self.is_over = true;
                if let Err(error) = kept.put(&self.services, self.execution, response).await {
                    let error = json!({"type": "server_error", "message": error.message});
                    return self.fail(error, sent).await;
                }
            }
        }
        self.send(&kind, event, sent);
    }

    /// Gives the response and the items of an event their own IDs.
    fn change(&self, event: &mut Map<String, Value>) {
        let Some(kept) = &self.kept else { return };
        let id = responses::shown(self.execution);
        let index = event.get("output_index").and_then(Value::as_u64).unwrap_or(0);
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(response) = event.get_mut("response") {
            let changed = kept.response(self.execution, response.take());
            *response = changed.unwrap_or(Value::Null);
        }
        rename(event.get_mut("item").and_then(|item| item.get_mut("id")), &id, index);
        rename(event.get_mut("item_id"), &id, index);
    }

    fn send(&mut self, kind: &str, mut event: Map<String, Value>, sent: &mut Vec<u8>) {
        event.insert("sequence_number".to_owned(), self.next.into());
        self.next = self.next.saturating_add(1);
        let event = Value::Object(event);
        sent.extend_from_slice(format!("event: {kind}\ndata: {event}\n\n").as_bytes());
    }

    /// Ends a stream that broke.
    async fn fail(&mut self, error: Value, sent: &mut Vec<u8>) {
        self.is_over = true;
        self.pieces.close();
        let kind = error.get("type").and_then(Value::as_str).unwrap_or_default();
        let code = code_of(kind);
        let message = error.get("message").cloned().unwrap_or(Value::Null);
        let event = json!({"type": "error", "code": code, "message": message, "param": null});
        if let Value::Object(event) = event {
            self.send("error", event, sent);
        }
        let Some(Value::Object(mut response)) = self.begun.take() else { return };
        response.insert("status".to_owned(), "failed".into());
        response.insert("error".to_owned(), json!({"code": code, "message": message}));
        let response = Value::Object(response);
        if let Some(kept) = self.kept.take()
            && let Err(error) = kept.put(&self.services, self.execution, &response).await
        {
            tracing::error!(message = error.message, "failed to store a failed response");
        }
        let event = Map::from_iter([
            ("type".to_owned(), "response.failed".into()),
            ("response".to_owned(), response),
        ]);
        self.send("response.failed", event, sent);
    }
}
