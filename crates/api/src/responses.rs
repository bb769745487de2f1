//! The routes for clients of OpenAI's Responses API (`docs/spec/responses.md`, "Routes"). A
//! response is the answer of a chat completion, so routing, prices, fallback chains and the history
//! are those of `chat`.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use orrery_dialects::responses::{
    Head, PREFIX, StreamWriter, read, settings, shows_reasoning, write_answer,
};
use tokio::time::Instant;

use super::chat::{self, EXECUTION};
use super::completion::{self, Came, Incoming, execution_of};
use super::doc::{Doc, ErrorForm, RequestDoc, ResponseDoc};
use super::{Context, Services};
use orrery_domain::chat::Operation;
use orrery_domain::ids::ExecutionId;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_http::budget::Lease;
use orrery_http::error::OpenAi;
use orrery_http::request::{self as http_request, busy};
use orrery_http::{Response, sse};
use orrery_runtime as runtime;
use orrery_wire::request;
use orrery_wire::responses::answer::{Event, Response as Answer};
use orrery_wire::responses::{
    CreateRequest, Input, InputContent, InputMessage, InputRole, Item, MessageTag,
};

/// The group of the operations.
pub(crate) const TAG: &str = "responses";

/// Streams up to this size, in bytes, are not counted in the budget of bodies.
const STREAM_FREE: usize = 64 * 1024;
/// Memory that a stream takes for each byte of the model's stream: its text is in the item and in
/// the last events.
const STREAM_COPIES: usize = 3;
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

pub(crate) const CREATE: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<CreateRequest>()),
    responses: chat::failures!(ResponseDoc::json_or_events::<Answer, Event>(
        200,
        "The response; with `stream`, server-sent events that end with `response.completed`, \
         `response.incomplete` or `response.failed`"
    )),
    description: "Answers in the format of OpenAI's Responses API with any model that can be called \
                  by chat completions: a local chat model, the agent, an alias, or a model of the \
                  upstream. The request is translated to a chat completion, and its answer back. \
                  Tools other than functions return 400. The cost is in `usage.cost`. Errors have \
                  OpenAI's format.",
    ..Doc::new(TAG, "create_response", "Create a response")
};

/// `POST /v1/responses`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let given = context.request.body().await?;
    let request = request::read(http_request::parse_value(&given)?);
    let request: CreateRequest = request.map_err(InvalidRequest::from)?;
    check(&request)?;
    let mut settings = settings(&request);
    settings.store = false;
    let shows_reasoning = shows_reasoning(&request);
    let (items, request) = items_of(request)?;
    let request = read(request, items);
    if request.messages.is_empty() {
        let message = "input has only reasoning that no model can read";
        return Err(InvalidRequest::field("input", message).into());
    }
    let body = completion::write(&context, &request).await?;
    drop(given);
    let caller = chat::caller_of(&context)?;
    let services = Arc::clone(&context.services);
    let lease = services.bodies.lease(&context.request.peer);
    let mut bound = lease.sibling();
    bound.grow(body.len()).map_err(|_full| busy())?;
    let body = bound.bind(body);
    let created_at = services.clock.now().unix_seconds();
    let answer = chat::respond(context, caller, Operation::Chat, body).await?;
    let head = Head { id: id_of(&answer), created_at, settings, shows_reasoning };
    if completion::is_stream(&answer) {
        return Ok(stream_of(services, answer, head, lease));
    }
    let now = services.clock.now().unix_seconds();
    let translate = move |answer| Ok(write_answer(answer, &head, now));
    let (headers, response) = completion::translate(answer, translate).await?;
    Ok(completion::respond(&headers, &response))
}

/// Checks what no schema can state.
fn check(request: &CreateRequest) -> Result<(), crate::Error> {
    if request.background == Some(true) {
        let message =
            "background is not supported: leave it out, and read the answer or its stream";
        return Err(InvalidRequest::field("background", message).into());
    }
    match &request.previous_response_id {
        Some(id) => Err(not_found("previous_response_id", id)),
        None => Ok(()),
    }
}

fn not_found(param: &str, id: &str) -> crate::Error {
    let open_ai = OpenAi {
        kind: None,
        param: Some(param.to_owned()),
        code: Some("previous_response_not_found".to_owned()),
    };
    crate::Error::not_found(format!("there is no response '{id}'")).with_open_ai(open_ai)
}

/// Takes the items of the input out of a request.
fn items_of(mut request: CreateRequest) -> Result<(Vec<Item>, CreateRequest), crate::Error> {
    let items = match std::mem::replace(&mut request.input, Input::Items(Vec::new())) {
        Input::Items(items) => items,
        Input::Text(text) => vec![Item::Message(InputMessage {
            kind: MessageTag::default(),
            role: InputRole::User,
            content: InputContent::Text(text),
            id: None,
        })],
    };
    for item in &items {
        if let Item::Reference(reference) = item {
            return Err(not_found("input", &reference.id));
        }
    }
    Ok((items, request))
}

/// Returns the ID of a response: that of its call in the history.
fn id_of(answer: &Response) -> String {
    let execution = execution_of(answer).map(str::to_owned);
    let execution = execution.unwrap_or_else(|| runtime::new_id::<ExecutionId>().to_string());
    format!("{PREFIX}{}", execution.replace('-', ""))
}

fn stream_of(services: Arc<Services>, answer: Response, head: Head, lease: Lease) -> Response {
    let (parts, body) = answer.into_parts();
    let stream = Stream {
        services,
        incoming: Incoming::new(body),
        writer: StreamWriter::new(head),
        lease,
        is_begun: false,
        is_over: false,
        last_sent: runtime::monotonic_now(),
    };
    let pieces = stream::unfold(stream, |mut stream| async move {
        let piece = stream.next().await?;
        Some((piece, stream))
    });
    completion::with_headers(sse::stream(pieces), &parts.headers)
}

/// A stream that is being translated.
struct Stream {
    services: Arc<Services>,
    incoming: Incoming,
    writer: StreamWriter,
    /// Covers the answer, which the last event repeats.
    lease: Lease,
    is_begun: bool,
    is_over: bool,
    last_sent: Instant,
}

impl Stream {
    /// Returns the next events as text, or a comment after a silence.
    async fn next(&mut self) -> Option<Bytes> {
        let mut sent = Vec::new();
        if !self.is_begun {
            self.is_begun = true;
            self.writer.start(&mut sent);
            return Some(text_of(&sent));
        }
        while !self.is_over {
            let mut came = Some(self.incoming.next(self.last_sent).await);
            let mut is_silent = false;
            while let Some(part) = came {
                is_silent |= matches!(part, Came::Silence);
                self.translate(part, &mut sent);
                came = if self.is_over { None } else { self.incoming.ready() };
            }
            if !sent.is_empty() || is_silent {
                self.last_sent = runtime::monotonic_now();
                let is_only_silent = sent.is_empty();
                let text = text_of(&sent);
                return Some(if is_only_silent { Bytes::from_static(KEEP_ALIVE) } else { text });
            }
        }
        None
    }

    fn translate(&mut self, came: Came, sent: &mut Vec<Event>) {
        match came {
            Came::Silence => {}
            Came::Events(events) => {
                let held = self.incoming.bytes();
                if held > STREAM_FREE
                    && self.lease.grow_to(held.saturating_mul(STREAM_COPIES)).is_err()
                {
                    return self.fail("rate_limit_error", busy().message, sent);
                }
                for event in events {
                    if let Some(_failed) = self.writer.event(event, sent) {
                        self.is_over = true;
                        return;
                    }
                }
            }
            Came::Done => {
                self.is_over = true;
                let response = self.writer.finish(sent, self.services.clock.now().unix_seconds());
                self.writer.last(response, sent);
            }
            Came::Broken(reason) => self.fail("upstream_error", reason, sent),
        }
    }

    fn fail(&mut self, kind: &str, message: String, sent: &mut Vec<Event>) {
        self.is_over = true;
        let _failed = self.writer.fail(kind, message, sent);
    }
}

/// Returns events as text.
fn text_of(events: &[Event]) -> Bytes {
    let mut text = String::new();
    for event in events {
        // The types have only string keys, so serialization cannot fail.
        let data = serde_json::to_string(event).unwrap_or_default();
        for part in ["event: ", event.kind.name(), "\ndata: ", &data, "\n\n"] {
            text.push_str(part);
        }
    }
    text.into()
}
