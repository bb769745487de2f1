//! The runner `openai`: any server that speaks OpenAI's API (llama-server, vLLM, Ollama, …), for
//! chat, embeddings and images.
//!
//! Chat is always asked for as a stream, so that a cancel, which drops the run, closes the
//! connection and the server stops. What the server counts is reported as usage. It asks once:
//! retries and fallbacks belong to the engine.

use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, body::Incoming};
use serde_json::{Map, Value, json};

use super::health_tracked::HealthTracked;
use super::http::{excerpt, failure_of};
use super::options::{self, Dependencies, Model, Type, base_url, secret_header};
use super::{Job, Run, Runner, Success};
use crate::config::reader::Section;
use crate::config::values::{self, one_of};
use crate::domain::attempt::Failure;
use crate::domain::chat::Operation;
use crate::domain::classify::ErrorClass;
use crate::domain::model::Usage;
use crate::http::client::{Client, Limits, Overflow};
use crate::runtime;

/// The largest answer, and the longest text that a stream may add up to, in bytes.
pub const ANSWER_MAX: usize = 10 * 1024 * 1024;
/// The longest line of a stream, in bytes.
const LINE_MAX: usize = 1024 * 1024;

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Chat,
    Embeddings,
    Images,
}

/// What manifests say of a runner of this type.
pub const TYPE: Type = Type {
    name: "openai",
    read: |section, folder| Some(Arc::new(Options::read(section, folder)?)),
};

/// How one model is asked.
#[derive(Debug, PartialEq)]
pub struct Options {
    /// With its `/v1`, without a slash at its end.
    url: String,
    /// What the server calls the model.
    model: String,
    kind: Kind,
    /// `Bearer …`, marked as sensitive.
    authorization: Option<HeaderValue>,
}

/// Where a server answers for one model.
#[derive(Debug, Clone, Copy)]
pub struct Server<'o> {
    /// With its `/v1`, without a slash at its end.
    pub url: &'o str,
    /// What the server calls the model.
    pub model: &'o str,
    /// `Bearer …`, marked as sensitive.
    pub authorization: Option<&'o HeaderValue>,
}

impl Options {
    /// The server, if the model is for this operation.
    #[must_use]
    pub fn server(&self, operation: Operation) -> Option<Server<'_>> {
        let is_for = match self.kind {
            Kind::Chat => operation == Operation::Chat,
            Kind::Embeddings => operation == Operation::Embeddings,
            Kind::Images => false,
        };
        is_for.then_some(Server {
            url: &self.url,
            model: &self.model,
            authorization: self.authorization.as_ref(),
        })
    }

    fn read(section: &mut Section<'_>, folder: &Path) -> Option<Self> {
        let url = section.required("url", base_url);
        let model = section.required("model", values::text);
        let kind = section.required("kind", one_of(&Kind::ALL, Kind::as_str));
        let bearer = |value: &values::Value<'_>| secret_header(value, "Bearer ", folder);
        let authorization = section.optional("key", bearer);
        Some(Self { url: url?, model: model?, kind: kind?, authorization })
    }
}

impl options::Options for Options {
    fn schema(&self) -> Option<Value> {
        Some(self.kind.schema())
    }

    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        let client = dependencies.client.clone();
        Arc::new(HealthTracked::new(Arc::new(OpenAiRunner { options: self, model, client })))
    }
}

/// The runner of one model.
#[derive(Debug)]
struct OpenAiRunner {
    options: Arc<Options>,
    model: Model,
    client: Client,
}

impl Kind {
    /// All of them.
    const ALL: [Self; 3] = [Self::Chat, Self::Embeddings, Self::Images];

    /// As manifests spell it.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Embeddings => "embeddings",
            Self::Images => "images",
        }
    }

    /// The request schema of a manifest that gives none.
    fn schema(self) -> Value {
        match self {
            Self::Chat => json!({
                "type": "object",
                "properties": {
                    "prompt": {"type": "string", "description": "The user's message"},
                    "system": {"type": "string", "description": "The system message"},
                    "messages": {
                        "type": "array", "minItems": 1, "items": {"type": "object"},
                        "description": "A whole conversation, instead of prompt",
                    },
                    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
                    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
                    "max_tokens": {"type": "integer", "minimum": 1},
                },
                "anyOf": [{"required": ["prompt"]}, {"required": ["messages"]}],
            }),
            Self::Embeddings => json!({
                "type": "object",
                "required": ["input"],
                "properties": {"input": {
                    "type": ["string", "array"], "items": {"type": "string"},
                    "description": "One text, or several",
                }},
            }),
            Self::Images => json!({
                "type": "object",
                "required": ["prompt"],
                "properties": {
                    "prompt": {"type": "string"},
                    "n": {"type": "integer", "minimum": 1, "maximum": 10},
                    "size": {"type": "string"},
                },
            }),
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Chat => Operation::Chat.path(),
            Self::Embeddings => Operation::Embeddings.path(),
            Self::Images => "/images/generations",
        }
    }
}

impl OpenAiRunner {
    fn request(&self, job: &Job) -> Result<Request<Bytes>, Failure> {
        let Options { url, kind, model, authorization } = &*self.options;
        let mut fields = job.input.as_object().cloned().unwrap_or_default();
        if *kind == Kind::Chat {
            prompt_to_messages(&mut fields);
            fields.insert("stream".to_owned(), true.into());
            fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        fields.insert("model".to_owned(), model.as_str().into());
        let mut request = Request::post(format!("{url}{}", kind.path()))
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", &job.attempt_key);
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Bytes::from(Value::Object(fields).to_string())).map_err(|error| {
            let message = format!("the request cannot be made: {error}");
            self.failure(ErrorClass::InvalidModelConfig, &message)
        })
    }

    fn failure(&self, class: ErrorClass, what: &str) -> Failure {
        Failure::new(class, format!("the model '{}': {what}", self.model.name))
    }

    /// What a server said that is not what was asked for.
    fn unexpected_response(&self, what: &str, said: &[u8]) -> Failure {
        self.failure(ErrorClass::ProviderError, &format!("{what}: {}", excerpt(said)))
    }

    /// The failure that a status means, if it is one.
    fn refusal(&self, status: u16, said: &[u8]) -> Option<Failure> {
        let class = ErrorClass::of_http_status(status)?;
        let class = if is_moderated(said) { ErrorClass::ContentModeration } else { class };
        Some(self.failure(class, &format!("it answered {status}: {}", excerpt(said))))
    }

    async fn chat(&self, job: &Job, request: Request<Bytes>) -> Result<(Value, Usage), Failure> {
        let answer = self.client.open(request).await;
        let answer = answer.map_err(|error| failure_of(&self.model.name, &error))?;
        let status = answer.status().as_u16();
        let is_stream = answer
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .is_some_and(|kind| kind.starts_with("text/event-stream"));
        if !is_stream || ErrorClass::of_http_status(status).is_some() {
            // A refusal, or a server that does not stream.
            let said = self.read_whole(answer).await?;
            if let Some(failure) = self.refusal(status, &said) {
                return Err(failure);
            }
            return self.completion(&said);
        }
        self.read_stream(job, answer).await
    }

    async fn read_whole(&self, mut answer: Response<Incoming>) -> Result<Bytes, Failure> {
        let mut read = BytesMut::new();
        while let Some(data) = self.next(&mut answer).await? {
            if read.len().saturating_add(data.len()) > ANSWER_MAX {
                return Err(self.too_large());
            }
            read.extend_from_slice(&data);
        }
        Ok(read.freeze())
    }

    async fn next(&self, answer: &mut Response<Incoming>) -> Result<Option<Bytes>, Failure> {
        loop {
            match answer.body_mut().frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => {
                    let what = format!("its answer was cut off: {error}");
                    return Err(self.failure(ErrorClass::ProviderUnavailable, &what));
                }
            }
        }
    }

    fn too_large(&self) -> Failure {
        let what = format!("its answer is larger than {ANSWER_MAX} bytes");
        self.failure(ErrorClass::ProviderError, &what)
    }

    /// Reads server-sent events up to `[DONE]` or the end.
    async fn read_stream(
        &self,
        job: &Job,
        mut answer: Response<Incoming>,
    ) -> Result<(Value, Usage), Failure> {
        let mut stream = ChatStream::default();
        let mut pending = BytesMut::new();
        while let Some(data) = self.next(&mut answer).await? {
            // Bytes that were searched already hold no end of a line.
            let mut searched = pending.len();
            pending.extend_from_slice(&data);
            while let Some(end) = pending.iter().skip(searched).position(|byte| *byte == b'\n') {
                let line = pending.split_to(searched.saturating_add(end).saturating_add(1));
                searched = 0;
                if self.parse_line(line.trim_ascii(), &mut stream)? {
                    stream.emit_delta(job);
                    return self.ended(stream);
                }
            }
            stream.emit_delta(job);
            if pending.len() > LINE_MAX || stream.text.len() > ANSWER_MAX {
                return Err(self.too_large());
            }
        }
        self.parse_line(pending.trim_ascii(), &mut stream)?;
        self.ended(stream)
    }

    /// Parses one line of a stream; true when it is the last.
    fn parse_line(&self, line: &[u8], stream: &mut ChatStream) -> Result<bool, Failure> {
        let Some(data) = line.strip_prefix(b"data:") else { return Ok(false) };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            return Ok(true);
        }
        let Ok(chunk) = serde_json::from_slice::<Value>(data) else {
            return Err(self
                .unexpected_response("its stream contains an event that is not valid JSON", data));
        };
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            let class = if is_moderated(data) {
                ErrorClass::ContentModeration
            } else {
                ErrorClass::ProviderError
            };
            return Err(self.failure(class, &format!("it broke off: {}", excerpt(data))));
        }
        stream.add(&chunk);
        Ok(false)
    }

    fn ended(&self, stream: ChatStream) -> Result<(Value, Usage), Failure> {
        if stream.moderated {
            let what = "its content filter stopped the answer";
            return Err(self.failure(ErrorClass::ContentModeration, what));
        }
        if !stream.finished {
            let what = "its stream ended before the answer did";
            return Err(self.failure(ErrorClass::ProviderUnavailable, what));
        }
        Ok((Value::String(stream.text), stream.usage))
    }

    /// The text of an answer that came whole.
    fn completion(&self, said: &[u8]) -> Result<(Value, Usage), Failure> {
        let body: Value = serde_json::from_slice(said).map_err(|_garbage| {
            self.unexpected_response("gave an answer that is not valid JSON", said)
        })?;
        let choice = body.pointer("/choices/0");
        let text = choice.and_then(|choice| choice.pointer("/message/content"));
        let text = text.and_then(Value::as_str).ok_or_else(|| {
            self.unexpected_response("gave an answer without choices[0].message.content", said)
        })?;
        let mut stream =
            ChatStream { text: text.to_owned(), finished: true, ..ChatStream::default() };
        stream.add_end(choice.unwrap_or(&Value::Null));
        stream.usage = usage_of(&body);
        self.ended(stream)
    }

    /// Asks for embeddings or images.
    async fn ask(&self, job: &Job, request: Request<Bytes>) -> Result<(Value, Usage), Failure> {
        let limits = Limits {
            total: self.model.timeout,
            answer_bytes: ANSWER_MAX,
            overflow: Overflow::Fail,
        };
        let answer = self.client.send_when_able(request, &limits).await;
        let answer = answer.map_err(|error| failure_of(&self.model.name, &error))?;
        if let Some(failure) = self.refusal(answer.status.as_u16(), &answer.body) {
            return Err(failure);
        }
        let said = &answer.body;
        let body: Value = serde_json::from_slice(said).map_err(|_garbage| {
            self.unexpected_response("gave an answer that is not valid JSON", said)
        })?;
        let data = body.get("data").and_then(Value::as_array);
        let data =
            data.ok_or_else(|| self.unexpected_response("gave an answer without data", said))?;
        let items: Option<Vec<Value>> = match self.options.kind {
            Kind::Images => data.iter().map(image).collect(),
            Kind::Chat | Kind::Embeddings => {
                data.iter().map(|item| item.get("embedding").cloned()).collect()
            }
        };
        let mut items = items.filter(|items| !items.is_empty());
        let is_one = self.options.kind == Kind::Embeddings
            && job.input.get("input").is_some_and(Value::is_string);
        let output = match &mut items {
            None => {
                return Err(self
                    .unexpected_response("gave data without the requested kind of output", said));
            }
            Some(items) if is_one => items.swap_remove(0),
            Some(items) => Value::Array(std::mem::take(items)),
        };
        Ok((output, usage_of(&body)))
    }
}

impl Runner for OpenAiRunner {
    fn openai(&self) -> Option<&Options> {
        Some(&self.options)
    }

    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let request = self.request(&job)?;
            let started = runtime::monotonic_now();
            let (output, usage) = match self.options.kind {
                Kind::Chat => self.chat(&job, request).await?,
                Kind::Embeddings | Kind::Images => self.ask(&job, request).await?,
            };
            let usage = Usage { run_time: started.elapsed(), ..usage };
            Ok(Success::new(output, usage))
        })
    }
}

/// The content of a stream so far.
#[derive(Debug, Default)]
struct ChatStream {
    text: String,
    /// Bytes of the text that were reported already.
    emitted: usize,
    usage: Usage,
    finished: bool,
    moderated: bool,
}

impl ChatStream {
    fn add(&mut self, chunk: &Value) {
        if chunk.get("usage").is_some_and(Value::is_object) {
            self.usage = usage_of(chunk);
        }
        let Some(choice) = chunk.pointer("/choices/0") else { return };
        if let Some(text) = choice.pointer("/delta/content").and_then(Value::as_str) {
            self.text.push_str(text);
        }
        self.add_end(choice);
    }

    /// Reports the text since the last call.
    fn emit_delta(&mut self, job: &Job) {
        if let Some(part) = self.text.get(self.emitted..).filter(|part| !part.is_empty()) {
            job.progress.output(&part.into());
            self.emitted = self.text.len();
        }
    }

    fn add_end(&mut self, choice: &Value) {
        let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) else { return };
        self.finished = true;
        self.moderated = reason == "content_filter";
    }
}

/// Turns `prompt` and `system` into the conversation that they stand for.
fn prompt_to_messages(fields: &mut Map<String, Value>) {
    let (system, prompt) = (fields.shift_remove("system"), fields.shift_remove("prompt"));
    if fields.contains_key("messages") {
        return;
    }
    let says = |role: &str, content: Value| json!({"role": role, "content": content});
    let messages = system
        .map(|system| says("system", system))
        .into_iter()
        .chain(prompt.map(|prompt| says("user", prompt)));
    fields.insert("messages".to_owned(), messages.collect());
}

/// An image: its URL, or its bytes as a `data:` URI.
fn image(item: &Value) -> Option<Value> {
    if let Some(url) = item.get("url").filter(|url| url.is_string()) {
        return Some(url.clone());
    }
    let bytes = item.get("b64_json")?.as_str()?;
    Some(format!("data:image/png;base64,{bytes}").into())
}

fn usage_of(body: &Value) -> Usage {
    let count = |name: &str| body.pointer("/usage").and_then(|usage| usage.get(name)?.as_u64());
    Usage {
        input_tokens: count("prompt_tokens"),
        output_tokens: count("completion_tokens"),
        ..Usage::default()
    }
}

/// Whether an error says that the content, and not the request, was refused.
fn is_moderated(said: &[u8]) -> bool {
    let error: Option<Value> = serde_json::from_slice(said).ok();
    let code = error.as_ref().and_then(|error| error.pointer("/error/code")?.as_str());
    code.is_some_and(|code| ["content_filter", "content_policy_violation"].contains(&code))
}

#[cfg(test)]
#[path = "openai_tests.rs"]
mod tests;
