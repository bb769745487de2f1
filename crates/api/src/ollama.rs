//! Ollama's API (`docs/spec/ollama.md`, "Routes"), on a host of its own. Chats and prompts become chat
//! completions, so routing, prices, fallback chains and the history are those of `chat`.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt as _;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use orrery_dialects::chat as dialect;
use orrery_dialects::ollama::{
    Finish, Piece, Read, StreamWriter, is_thinking_hidden, read_chat, read_generate, unloads,
    write_answer, write_completion,
};
use orrery_wire::ollama::{
    Answer, AnswerMessage, ChatRequest, EmbedInput, EmbedRequest, Embedding, Embeddings,
    EmbeddingsRequest, Figures, Format, FormatName, GenerateRequest, KeepAlive,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::chat::{self, EXECUTION, X_EXECUTION_ID, X_ORRERY_CACHE};
use super::completion::{self, Came, Incoming, Keeps};
use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::{Context, Services};
use orrery_domain::chat::Operation;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::time::Timestamp;
use orrery_http::budget::Lease;
use orrery_http::request::busy;
use orrery_http::{Response, answers, response, sse};
use orrery_runtime as runtime;

/// The media type of JSON texts in lines.
const LINES: &str = "application/x-ndjson";
/// The tag that Ollama's clients add to names without a tag.
const LATEST: &str = ":latest";

pub(crate) const CHAT: Doc = Doc {
    request: Some(RequestDoc::json::<ChatRequest>()),
    responses: chat::failures!(ResponseDoc::json::<Answer>(200, "The answer, or its lines")),
    ..Doc::new("ollama", "ollama_chat", "Continue a conversation")
};

/// `POST /api/chat`
pub(crate) async fn chat(mut context: Context) -> Result<Response, crate::Error> {
    let request: ChatRequest = context.request.json().await?;
    let shape = Shape::new(&request.model, true, is_thinking_hidden(request.think), &context);
    if request.messages.as_ref().is_none_or(Vec::is_empty) {
        return shape.load(&context, request.keep_alive.as_ref());
    }
    converse(context, read_chat(request), shape).await
}

pub(crate) const GENERATE: Doc = Doc {
    request: Some(RequestDoc::json::<GenerateRequest>()),
    responses: chat::failures!(ResponseDoc::json::<Answer>(200, "The answer, or its lines")),
    ..Doc::new("ollama", "ollama_generate", "Answer a prompt")
};

/// `POST /api/generate`
pub(crate) async fn generate(mut context: Context) -> Result<Response, crate::Error> {
    let request: GenerateRequest = context.request.json().await?;
    let is_filled = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let shape = Shape::new(&request.model, false, is_thinking_hidden(request.think), &context);
    let has_suffix = is_filled(&request.suffix);
    let has_images = request.images.as_ref().is_some_and(|images| !images.is_empty());
    if !is_filled(&request.prompt) && !has_suffix && !has_images {
        return shape.load(&context, request.keep_alive.as_ref());
    }
    if !has_suffix && request.raw != Some(true) {
        return converse(context, read_generate(request), shape).await;
    }
    let has_format = !matches!(request.format, None | Some(Format::Name(FormatName::Text)));
    let unavailable =
        [("images", has_images), ("system", is_filled(&request.system)), ("format", has_format)];
    if let Some((field, _)) = unavailable.iter().find(|(_, is_set)| *is_set) {
        let message = format!(
            "{field} is not available with raw or suffix: the model continues the prompt as it is"
        );
        return Err(InvalidRequest::field(*field, message).into());
    }
    let body = write_completion(GenerateRequest { model: shape.id.clone(), ..request });
    answer(context, Operation::Completions, &body, shape).await
}

/// Answers a conversation.
async fn converse(context: Context, read: Read, shape: Shape) -> Result<Response, crate::Error> {
    let Read { mut request, more } = read;
    request.model = shape.id.clone();
    let server = completion::server_of(&context.services, &request.model).await;
    let mut body = dialect::write(&request, server);
    if let Value::Object(fields) = &mut body {
        fields.extend(more);
    }
    answer(context, Operation::Chat, &body, shape).await
}

/// Sends a request to the router, and translates its answer.
async fn answer(
    context: Context,
    operation: Operation,
    body: &Value,
    shape: Shape,
) -> Result<Response, crate::Error> {
    let lease = context.services.bodies.lease(&context.request.peer);
    let answer = ask(context, operation, body).await?;
    if completion::is_stream(&answer) {
        return Ok(shape.stream(answer, lease));
    }
    shape.whole(answer).await
}

/// Sends a request to the router.
async fn ask(
    context: Context,
    operation: Operation,
    body: &Value,
) -> Result<Response, crate::Error> {
    let caller = chat::caller_of(&context)?;
    let body = Bytes::from(body.to_string());
    let mut bound = context.services.bodies.lease(&context.request.peer);
    bound.grow(body.len()).map_err(|_full| busy())?;
    let body = bound.bind(body);
    chat::respond(context, caller, operation, body).await
}

/// Returns the ID of the model that a client names: without the tag that it adds, unless a model
/// has that ID.
pub(crate) fn id_of(services: &Services, name: &str) -> String {
    let known = |id: &str| services.catalog.get(id).is_some() || chat::is_agent(services, id);
    match name.strip_suffix(LATEST).filter(|id| !known(name) && known(id)) {
        Some(id) => id.to_owned(),
        None => name.to_owned(),
    }
}

/// The shape of an answer.
struct Shape {
    /// The `model` of the request.
    model: String,
    /// The ID of the model.
    id: String,
    is_chat: bool,
    hides_thinking: bool,
    services: Arc<Services>,
    started: Instant,
    /// When the answer began.
    begun: Option<Instant>,
}

impl Shape {
    fn new(model: &str, is_chat: bool, hides_thinking: bool, context: &Context) -> Self {
        let services = Arc::clone(&context.services);
        let id = id_of(&services, model);
        let started = runtime::monotonic_now();
        Self {
            model: model.to_owned(),
            id,
            is_chat,
            hides_thinking,
            services,
            started,
            begun: None,
        }
    }

    /// Answers a request without a prompt, by which clients load a model. Models load by themselves.
    fn load(
        &self,
        context: &Context,
        keep_alive: Option<&KeepAlive>,
    ) -> Result<Response, crate::Error> {
        if !chat::is_agent(&context.services, &self.id) {
            context.services.chat.bind(&self.id)?;
        }
        let reason = if unloads(keep_alive) { "unload" } else { "load" };
        let answer =
            Answer { done: true, done_reason: Some(reason), ..self.line(Piece::default()) };
        Ok(response::json(StatusCode::OK, &answer))
    }

    /// Returns a part of the answer.
    fn line(&self, piece: Piece) -> Answer {
        let Piece { text, thinking, calls } = piece;
        let thinking = (!thinking.is_empty()).then_some(thinking);
        let (message, response, thinking) = if self.is_chat {
            let role = "assistant";
            let message = AnswerMessage { role, content: text, thinking, tool_calls: calls };
            (Some(message), None, None)
        } else {
            (None, Some(text), thinking)
        };
        Answer {
            model: self.model.clone(),
            created_at: self.now().into(),
            message,
            response,
            thinking,
            done: false,
            done_reason: None,
            figures: None,
        }
    }

    fn now(&self) -> Timestamp {
        self.services.clock.now()
    }

    /// Returns the last part of the answer.
    fn last(&self, piece: Piece, finish: Finish) -> Answer {
        let nanos = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
        };
        let end = runtime::monotonic_now();
        let begun = self.begun.unwrap_or(end);
        let figures = Figures {
            total_duration: nanos(self.started, end),
            load_duration: 0,
            prompt_eval_count: finish.usage.input,
            prompt_eval_duration: nanos(self.started, begun),
            eval_count: finish.usage.output,
            // Clients divide by it.
            eval_duration: nanos(begun, end).max(1),
            cost: finish.usage.cost,
        };
        Answer {
            done: true,
            done_reason: Some(finish.reason),
            figures: Some(figures),
            ..self.line(piece)
        }
    }

    async fn whole(mut self, answer: Response) -> Result<Response, crate::Error> {
        let hides_thinking = self.hides_thinking;
        let translate = move |answer| write_answer(answer, hides_thinking);
        let (headers, (piece, finish)) = completion::translate(answer, translate).await?;
        // The answer arrived at once, so all of the time counts as the time to write it.
        self.begun = Some(self.started);
        Ok(with_execution(response::json(StatusCode::OK, &self.last(piece, finish)), &headers))
    }

    fn stream(self, answer: Response, lease: Lease) -> Response {
        let (parts, body) = answer.into_parts();
        let lines = Lines {
            incoming: Incoming::new(body, Keeps::Calls, lease),
            writer: StreamWriter::new(self.hides_thinking),
            shape: self,
            is_over: false,
        };
        let lines = stream::unfold(lines, |mut lines| async move {
            let piece = lines.next().await?;
            Some((piece, lines))
        });
        let mut answer = sse::stream(lines);
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(LINES));
        with_execution(answer, &parts.headers)
    }
}

async fn whole_of(answer: Response) -> Result<(hyper::http::response::Parts, Bytes), crate::Error> {
    let (parts, body) = answer.into_parts();
    Ok((parts, body.collect().await.map_err(crate::Error::internal)?.to_bytes()))
}

/// Adds the ID of the call in the history, and whether the answer comes from the cache.
fn with_execution(mut answer: Response, headers: &HeaderMap) -> Response {
    for name in [X_EXECUTION_ID, X_ORRERY_CACHE] {
        if let Some(value) = headers.get(&name) {
            answer.headers_mut().insert(name, value.clone());
        }
    }
    answer
}

/// Returns the error for an answer that cannot be translated.
fn unreadable(error: impl std::fmt::Display) -> crate::Error {
    crate::Error::status(StatusCode::BAD_GATEWAY, error.to_string())
}

/// A stream that is being translated. Dropping it drops the model's stream, which ends the call.
struct Lines {
    shape: Shape,
    incoming: Incoming,
    writer: StreamWriter,
    is_over: bool,
}

impl Lines {
    /// Returns the next lines.
    async fn next(&mut self) -> Option<Bytes> {
        while !self.is_over {
            let mut sent = Vec::new();
            let mut piece = Piece::default();
            let mut next = Some(self.incoming.next(runtime::monotonic_now()).await);
            // Parts that arrive together become one line.
            while let Some(came) = next {
                if let Err(message) = self.translate(came, &mut piece, &mut sent) {
                    piece = Piece::default();
                    self.fail(&message, &mut sent);
                }
                next = if self.is_over { None } else { self.incoming.ready() };
            }
            if !piece.is_empty() {
                self.shape.begun.get_or_insert_with(runtime::monotonic_now);
                add_line(&mut sent, &self.shape.line(piece));
            }
            if !sent.is_empty() {
                return Some(sent.into());
            }
        }
        None
    }

    fn translate(
        &mut self,
        came: Came,
        piece: &mut Piece,
        sent: &mut Vec<u8>,
    ) -> Result<(), String> {
        match came {
            Came::Silence => {}
            Came::Events(events) => {
                for event in events {
                    self.writer.event(event, piece)?;
                }
            }
            Came::Done => {
                if !piece.is_empty() {
                    add_line(sent, &self.shape.line(std::mem::take(piece)));
                }
                let (last, finish) = self.writer.finish().map_err(|error| error.to_string())?;
                if !last.is_empty() {
                    add_line(sent, &self.shape.line(last));
                }
                add_line(sent, &self.shape.last(Piece::default(), finish));
                self.is_over = true;
            }
            Came::Broken(fault) => return Err(fault.message),
        }
        Ok(())
    }

    fn fail(&mut self, message: &str, sent: &mut Vec<u8>) {
        self.is_over = true;
        add_line(sent, &json!({"error": message}));
    }
}

fn add_line(sent: &mut Vec<u8>, line: &impl serde::Serialize) {
    // The types have only string keys, so serialization cannot fail.
    sent.extend(serde_json::to_vec(line).unwrap_or_default());
    sent.push(b'\n');
}

pub(crate) const EMBED: Doc = Doc {
    request: Some(RequestDoc::json::<EmbedRequest>()),
    responses: chat::failures!(ResponseDoc::json::<Embeddings>(200, "The vectors")),
    ..Doc::new("ollama", "ollama_embed", "Embed texts")
};

/// `POST /api/embed`
pub(crate) async fn embed(mut context: Context) -> Result<Response, crate::Error> {
    let request: EmbedRequest = context.request.json().await?;
    let shape = Shape::new(&request.model, false, true, &context);
    let (parts, vectors, usage) =
        vectors_of(context, &shape, &request.input, request.dimensions).await?;
    let finish = Finish { reason: "stop", usage };
    let figures = shape.last(Piece::default(), finish).figures.unwrap_or_default();
    let body = Embeddings { model: request.model, embeddings: vectors, figures };
    Ok(with_execution(response::json(StatusCode::OK, &body), &parts.headers))
}

pub(crate) const EMBEDDINGS: Doc = Doc {
    request: Some(RequestDoc::json::<EmbeddingsRequest>()),
    responses: chat::failures!(ResponseDoc::json::<Embedding>(200, "The vector")),
    ..Doc::new("ollama", "ollama_embeddings", "Embed a text, in the older form")
};

/// `POST /api/embeddings`
pub(crate) async fn embeddings(mut context: Context) -> Result<Response, crate::Error> {
    let request: EmbeddingsRequest = context.request.json().await?;
    let shape = Shape::new(&request.model, false, true, &context);
    let input = EmbedInput::Text(request.prompt);
    let (parts, vectors, _usage) = vectors_of(context, &shape, &input, None).await?;
    let embedding = vectors.into_iter().next();
    let embedding = embedding.ok_or_else(|| unreadable("the model's answer has no vector"))?;
    let body = Embedding { embedding };
    Ok(with_execution(response::json(StatusCode::OK, &body), &parts.headers))
}

/// Returns the vectors of texts, and the tokens.
async fn vectors_of(
    context: Context,
    shape: &Shape,
    input: &EmbedInput,
    dimensions: Option<u32>,
) -> Result<(hyper::http::response::Parts, Vec<Box<RawValue>>, orrery_dialects::Usage), crate::Error>
{
    #[derive(Deserialize)]
    struct Given {
        data: Vec<Vector>,
        usage: Option<Usage>,
    }
    #[derive(Deserialize)]
    struct Vector {
        embedding: Box<RawValue>,
    }
    #[derive(Deserialize)]
    struct Usage {
        prompt_tokens: Option<u64>,
        cost: Option<f64>,
    }
    let mut body = json!({"model": shape.id, "input": input, "encoding_format": "float"});
    if let (Some(fields), Some(dimensions)) = (body.as_object_mut(), dimensions) {
        fields.insert("dimensions".to_owned(), dimensions.into());
    }
    let answer = ask(context, Operation::Embeddings, &body).await?;
    let (parts, text) = whole_of(answer).await?;
    let length = text.len();
    let parse = move || serde_json::from_slice::<Given>(&text);
    let parsed = answers::parse_aside(length, parse).await;
    let parsed = parsed.ok_or_else(|| crate::Error::internal("no translation"))?;
    let given = parsed.map_err(|_other| unreadable("the model's answer has no vectors"))?;
    let usage =
        given.usage.map_or_else(orrery_dialects::Usage::default, |usage| orrery_dialects::Usage {
            input: usage.prompt_tokens.unwrap_or(0),
            cost: usage.cost,
            ..orrery_dialects::Usage::default()
        });
    Ok((parts, given.data.into_iter().map(|one| one.embedding).collect(), usage))
}
