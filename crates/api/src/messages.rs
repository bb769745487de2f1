//! The routes for Anthropic's clients (`docs/spec/messages.md`, "Routes"): messages, token counts,
//! and the list of models in their format. A message is converted to a chat completion, so routing,
//! prices, fallback chains and the history work as in `chat`.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use hyper::StatusCode;
use orrery_dialects::messages::{StreamWriter, read, read_prompt, shows_thinking, write_answer};
use serde::Deserialize;
use tokio::time::Instant;

use super::chat::{self, EXECUTION};
use super::completion::{self, Came, Incoming, Keeps, execution_of};
use super::doc::{Doc, ErrorForm, RequestDoc, ResponseDoc};
use super::{Context, Services};
use orrery_chat::{Answer as RouterAnswer, MessageHeaders};
use orrery_domain::chat::Operation;
use orrery_domain::raw_object::RawObject;
use orrery_domain::time::Timestamp;
use orrery_domain::token_bound::TokenBound;
use orrery_http::budget::Lease;
use orrery_http::request::{self as http_request, busy};
use orrery_http::{Response, response, sse};
use orrery_runtime as runtime;
use orrery_wire::chat::{Model as ChatModel, ModelKind};
use orrery_wire::messages::answer::{Answer, Event, TokenCount};
use orrery_wire::messages::models::{Model, Models};
use orrery_wire::messages::{CountRequest, CreateRequest};

pub(crate) const CREATE: Doc = Doc {
    errors: ErrorForm::Anthropic,
    request: Some(RequestDoc::json::<CreateRequest>()),
    responses: chat::failures!(ResponseDoc::json_or_events::<Answer, Event>(
        200,
        "The answer; with `stream`, server-sent events that end with `message_stop`"
    )),
    description: "Answers a conversation in Anthropic's format with any model that can be called \
                  by chat completions: a local chat model, the agent, an alias, or a model of the \
                  upstream. The request is translated to a chat completion, and its answer back, \
                  unless the upstream has the same API: then both pass as they are. Content that a chat completion cannot express, such as PDF documents and tools \
                  that run on Anthropic's servers, returns 400. The cost is in `usage.cost`. \
                  Errors have Anthropic's format.",
    ..Doc::new("messages", "create_message", "Create a message")
};

/// `POST /v1/messages`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let given = context.request.body().await?;
    if passes(&context.services, &given).await {
        return pass(&context, given).await;
    }
    let request: CreateRequest = http_request::parse(&given)?;
    let shows_thinking = shows_thinking(&request);
    let request = read(request);
    let body = completion::write(&context.services, &request).await?;
    drop(given);
    let caller = chat::caller_of(&context)?;
    let services = Arc::clone(&context.services);
    let mut bound = services.bodies.lease(&context.request.peer);
    bound.grow(body.len()).map_err(|_full| busy())?;
    let request_id = context.request.request_id.clone();
    let estimate = if request.is_stream { estimate(&body) } else { 0 };
    let lease = bound.sibling();
    let body = bound.bind(body);
    let answer = chat::respond(context, caller, Operation::Chat, body).await?;
    let translation = Translation {
        id: id_of(&answer, &request_id),
        model: request.model,
        shows_thinking,
        request_id,
    };
    if completion::is_stream(&answer) {
        return Ok(translation.stream(answer, estimate, lease));
    }
    translation.whole(answer).await
}

/// Returns whether a request passes to the upstream of its model as it is.
async fn passes(services: &Services, given: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        model: Cow<'a, str>,
    }
    match serde_json::from_slice::<Named<'_>>(given) {
        Ok(named) => services.chat.passes_messages(&named.model).await,
        Err(_) => false,
    }
}

/// Passes a request to the upstream of its model, with what the client's header enables.
async fn pass(context: &Context, body: Bytes) -> Result<Response, crate::Error> {
    let caller = chat::caller_of(context)?;
    let services = &context.services;
    let lease = services.bodies.lease(&context.request.peer);
    let beta = context.request.headers.get("anthropic-beta").cloned();
    let headers = MessageHeaders { beta, request_id: context.request.request_id.clone() };
    let asked = |id| context.origin(id);
    Ok(match services.chat.message(caller, body, headers, lease, asked).await? {
        RouterAnswer::Whole { execution, body, .. } => {
            chat::identified(execution, response::json_text(StatusCode::OK, body))
        }
        RouterAnswer::Stream { execution, pieces, .. } => {
            let pieces = stream::unfold(pieces, |mut pieces| async move {
                let piece: Bytes = pieces.recv().await?;
                Some((piece, pieces))
            });
            chat::identified(execution, sse::stream(pieces))
        }
    })
}

pub(crate) const COUNT_TOKENS: Doc = Doc {
    errors: ErrorForm::Anthropic,
    request: Some(RequestDoc::json::<CountRequest>()),
    responses: &[
        ResponseDoc::json::<TokenCount>(200, "The number of tokens"),
        ResponseDoc::error(404, "Model not found"),
    ],
    description: "Returns the number of tokens of a prompt. The number is exact for a model that \
                  the service itself runs; for other models, it is an estimate of one token for \
                  every four bytes of text, and 1000 for each image. Nothing is charged or \
                  recorded. Errors have Anthropic's format.",
    ..Doc::new("messages", "count_message_tokens", "Count the tokens of a prompt")
};

/// `POST /v1/messages/count_tokens`
pub(crate) async fn count_tokens(mut context: Context) -> Result<Response, crate::Error> {
    let request = read_prompt(context.request.json().await?);
    let services = &context.services;
    let body = completion::write(&context.services, &request).await?;
    let mut bound = services.bodies.lease(&context.request.peer);
    bound.grow(body.len()).map_err(|_full| busy())?;
    let counted = if chat::is_agent(services, &request.model) {
        None
    } else {
        services.chat.count_prompt(&request.model, body.clone(), bound.sibling()).await?
    };
    let input_tokens = counted.unwrap_or_else(|| estimate(&body));
    Ok(response::json(StatusCode::OK, &TokenCount { input_tokens }))
}

/// Estimates the tokens of a prompt.
fn estimate(completion: &[u8]) -> u64 {
    let fields = serde_json::from_slice::<RawObject>(completion);
    fields.map_or(0, |fields| TokenBound::of(&fields).prompt_estimate())
}

/// Returns the ID of an answer, which is the ID of the call in the history.
fn id_of(answer: &Response, request_id: &str) -> String {
    format!("msg_{}", execution_of(answer).unwrap_or(request_id).replace('-', ""))
}

/// Translates an answer of a chat completion.
struct Translation {
    id: String,
    model: String,
    shows_thinking: bool,
    request_id: String,
}

impl Translation {
    async fn whole(self, answer: Response) -> Result<Response, crate::Error> {
        let translate =
            move |answer| write_answer(answer, &self.id, &self.model, self.shows_thinking);
        let (headers, translated) = completion::translate(answer, translate).await?;
        Ok(completion::respond(&headers, &translated))
    }

    fn stream(self, answer: Response, estimate: u64, lease: Lease) -> Response {
        let Self { id, model, shows_thinking, request_id } = self;
        let (parts, body) = answer.into_parts();
        let mut stream = Stream {
            incoming: Incoming::new(body, Keeps::Nothing, lease),
            writer: StreamWriter::new(id, model, request_id, shows_thinking),
            is_over: false,
            last_sent: runtime::monotonic_now(),
        };
        let first = text_of(&[stream.writer.start(estimate)]);
        let rest = stream::unfold(stream, |mut stream| async move {
            let piece = stream.next().await?;
            Some((piece, stream))
        });
        let answer = sse::stream(stream::once(async { first }).chain(rest));
        completion::with_headers(answer, &parts.headers)
    }
}

/// A stream that is being translated.
struct Stream {
    incoming: Incoming,
    writer: StreamWriter,
    is_over: bool,
    last_sent: Instant,
}

impl Stream {
    /// Returns the next events as text, or a ping if no event arrives for a while.
    async fn next(&mut self) -> Option<Bytes> {
        while !self.is_over {
            let mut sent = Vec::new();
            let mut came = Some(self.incoming.next(self.last_sent).await);
            while let Some(part) = came {
                self.translate(part, &mut sent);
                came = if self.is_over { None } else { self.incoming.ready() };
            }
            if !sent.is_empty() {
                self.last_sent = runtime::monotonic_now();
                return Some(text_of(&sent));
            }
        }
        None
    }

    fn translate(&mut self, came: Came, sent: &mut Vec<Event>) {
        match came {
            Came::Silence => sent.push(Event::Ping),
            Came::Events(events) => {
                for event in events {
                    self.is_over |= matches!(event, orrery_dialects::Event::Failure { .. });
                    if let Err(error) = self.writer.event(event, sent) {
                        return self.fail("api_error", error.to_string(), sent);
                    }
                }
            }
            Came::Done => {
                self.writer.finish(sent);
                self.is_over = true;
            }
            Came::Broken(fault) => self.fail(fault.kind, fault.message, sent),
        }
    }

    fn fail(&mut self, kind: &str, message: String, sent: &mut Vec<Event>) {
        self.is_over = true;
        sent.push(self.writer.failure(kind, message));
    }
}

/// Serializes events as server-sent events.
fn text_of(events: &[Event]) -> Bytes {
    let mut text = String::new();
    for event in events {
        // The types have only string keys, so serialization cannot fail.
        let data = serde_json::to_string(event).unwrap_or_default();
        for part in ["event: ", event.name(), "\ndata: ", &data, "\n\n"] {
            text.push_str(part);
        }
    }
    text.into()
}

/// Lists the models that Anthropic's clients can call, in their format.
pub(crate) async fn list_callable(context: &Context) -> Response {
    let services = &context.services;
    let catalog = services.chat.models().await;
    let models = chat::callable(services, &catalog);
    let data: Vec<Model<'_>> = models.iter().filter_map(shown).collect();
    let first_id = data.first().map(|model| model.id);
    let last_id = data.last().map(|model| model.id);
    response::json(StatusCode::OK, &Models { has_more: false, first_id, last_id, data })
}

/// Returns one of the models that Anthropic's clients can call; a 404 in their format for others.
pub(crate) async fn find_callable(context: &Context, id: &str) -> Response {
    let services: &Services = &context.services;
    let catalog = services.chat.models().await;
    let models = chat::callable(services, &catalog);
    match models.iter().filter_map(shown).find(|model| model.id == id) {
        Some(model) => response::json(StatusCode::OK, &model),
        None => {
            let message = format!("no model '{id}' can be called; GET /v1/models lists all");
            crate::Error::not_found(message).into_anthropic_response(&context.request.request_id)
        }
    }
}

/// Returns a model in Anthropic's format; `None` if it does not support chat.
fn shown<'a>(model: &ChatModel<'a>) -> Option<Model<'a>> {
    if !matches!(model.kind, None | Some(ModelKind::Chat)) {
        return None;
    }
    let created = Timestamp::from_micros(model.created.saturating_mul(1_000_000));
    Some(Model { kind: "model", id: model.id, display_name: model.id, created_at: created.into() })
}
