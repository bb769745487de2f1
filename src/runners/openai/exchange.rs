//! One request in the form of OpenAI's API, made of a prediction's input, and what its answer says.
//! Where it is sent, and over what, is the runner's matter.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Response};
use serde_json::{Map, Value, json};

use super::Kind;
use crate::domain::attempt::Failure;
use crate::domain::chat::{Tokens, estimate};
use crate::domain::classify::ErrorClass;
use crate::domain::model::Usage;
use crate::http::event_stream::{Event, EventReader};
use crate::http::places::Arriving;
use crate::http::{content, trace_context};
use crate::runners::Job;
use crate::runners::http::{excerpt, unreadable};
use crate::runners::options::Model;

/// The largest answer, and the longest text that a stream may add up to, in bytes.
pub const ANSWER_MAX: usize = 10 * 1024 * 1024;
/// The longest event of a stream, in bytes.
pub(super) const EVENT_MAX: usize = 1024 * 1024;

/// What is asked, of which model.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'m> {
    pub kind: Kind,
    pub model: &'m Model,
}

impl Exchange<'_> {
    /// The request of a job to the server at `url`, which calls the model `model`.
    ///
    /// # Errors
    /// When the address is none.
    pub fn request(&self, url: &str, model: &str, job: &Job) -> Result<Request<Bytes>, Failure> {
        let mut fields = job.input.as_object().cloned().unwrap_or_default();
        if self.kind == Kind::Chat {
            prompt_to_messages(&mut fields);
            fields.insert("stream".to_owned(), true.into());
            fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        fields.insert("model".to_owned(), model.into());
        let mut request = Request::post(format!("{url}{}", self.kind.path()))
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", &job.attempt_key);
        if let Some(headers) = request.headers_mut() {
            trace_context::pass_on(headers, &job.trace);
        }
        request.body(Bytes::from(Value::Object(fields).to_string())).map_err(|error| {
            let message = format!("the request cannot be made: {error}");
            self.failure(ErrorClass::InvalidModelConfig, &message)
        })
    }

    /// A failure of the model.
    #[must_use]
    pub fn failure(&self, class: ErrorClass, what: &str) -> Failure {
        Failure::new(class, format!("the model '{}': {what}", self.model.name))
    }

    /// Reads an answer to its end. Of a chat that comes as a stream, the text is reported as it comes.
    ///
    /// # Errors
    /// What the server refuses, or that it broke off.
    pub async fn read(
        &self,
        job: &Job,
        answer: Response<Arriving>,
    ) -> Result<(Value, Usage), Failure> {
        let status = answer.status().as_u16();
        let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        if is_stream && ErrorClass::of_http_status(status).is_none() {
            return self.read_stream(job, answer).await;
        }
        // A refusal, or a server that does not stream.
        let said = self.read_whole(answer).await?;
        self.parse(job, status, &said)
    }

    /// What an answer says that has come whole.
    ///
    /// # Errors
    /// What the server refuses, and answers that are not what was asked for.
    pub fn parse(&self, job: &Job, status: u16, said: &[u8]) -> Result<(Value, Usage), Failure> {
        if let Some(failure) = self.refusal(status, said) {
            return Err(failure);
        }
        let body: Value = content::parse(said)
            .map_err(|error| self.unexpected_response(&unreadable(&error), said))?;
        match self.kind {
            Kind::Chat => self.completion(job, &body, said),
            Kind::Embeddings | Kind::Images => self.items(job, &body, said),
        }
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

    async fn read_whole(&self, mut answer: Response<Arriving>) -> Result<Bytes, Failure> {
        let mut read = BytesMut::new();
        while let Some(data) = self.next(&mut answer).await? {
            if read.len().saturating_add(data.len()) > ANSWER_MAX {
                return Err(self.too_large());
            }
            read.extend_from_slice(&data);
        }
        Ok(read.freeze())
    }

    async fn next(&self, answer: &mut Response<Arriving>) -> Result<Option<Bytes>, Failure> {
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
        mut answer: Response<Arriving>,
    ) -> Result<(Value, Usage), Failure> {
        let mut stream = ChatStream::default();
        let mut reader = EventReader::new(EVENT_MAX);
        while let Some(data) = self.next(&mut answer).await? {
            reader.push(&data);
            while let Some(event) = reader.next_event().map_err(|_too_long| self.too_large())? {
                if self.add_event(&event, &mut stream)? {
                    stream.emit_delta(job);
                    return self.ended(job, stream);
                }
            }
            stream.emit_delta(job);
            if stream.text.len() > ANSWER_MAX {
                return Err(self.too_large());
            }
        }
        if let Some(event) = reader.rest() {
            self.add_event(&event, &mut stream)?;
        }
        self.ended(job, stream)
    }

    /// Adds an event of a stream; true when it is the last.
    fn add_event(&self, event: &Event, stream: &mut ChatStream) -> Result<bool, Failure> {
        let Some(data) = &event.data else { return Ok(false) };
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

    fn ended(&self, job: &Job, stream: ChatStream) -> Result<(Value, Usage), Failure> {
        if stream.moderated {
            let what = "its content filter stopped the answer";
            return Err(self.failure(ErrorClass::ContentModeration, what));
        }
        if !stream.finished {
            let what = "its stream ended before the answer did";
            return Err(self.failure(ErrorClass::ProviderUnavailable, what));
        }
        let usage = stream.usage.unwrap_or_else(|| estimated(job, stream.text.len()));
        Ok((Value::String(stream.text), usage))
    }

    /// The text of an answer that came whole.
    fn completion(&self, job: &Job, body: &Value, said: &[u8]) -> Result<(Value, Usage), Failure> {
        let choice = body.pointer("/choices/0");
        let text = choice.and_then(|choice| choice.pointer("/message/content"));
        let text = text.and_then(Value::as_str).ok_or_else(|| {
            self.unexpected_response("gave an answer without choices[0].message.content", said)
        })?;
        let mut stream =
            ChatStream { text: text.to_owned(), finished: true, ..ChatStream::default() };
        stream.add_end(choice.unwrap_or(&Value::Null));
        stream.usage = usage_of(body);
        self.ended(job, stream)
    }

    /// The embeddings or images of an answer.
    fn items(&self, job: &Job, body: &Value, said: &[u8]) -> Result<(Value, Usage), Failure> {
        let data = body.get("data").and_then(Value::as_array);
        let data =
            data.ok_or_else(|| self.unexpected_response("gave an answer without data", said))?;
        let items: Option<Vec<Value>> = match self.kind {
            Kind::Images => data.iter().map(image).collect(),
            Kind::Chat | Kind::Embeddings => {
                data.iter().map(|item| item.get("embedding").cloned()).collect()
            }
        };
        let mut items = items.filter(|items| !items.is_empty());
        let is_one =
            self.kind == Kind::Embeddings && job.input.get("input").is_some_and(Value::is_string);
        let output = match &mut items {
            None => {
                return Err(self
                    .unexpected_response("gave data without the requested kind of output", said));
            }
            Some(items) if is_one => items.swap_remove(0),
            Some(items) => Value::Array(std::mem::take(items)),
        };
        let usage = match (usage_of(body), self.kind) {
            (Some(usage), _) => usage,
            (None, Kind::Images) => Usage::default(),
            (None, Kind::Chat | Kind::Embeddings) => estimated(job, 0),
        };
        Ok((output, usage))
    }
}

/// The content of a stream so far.
#[derive(Debug, Default)]
struct ChatStream {
    text: String,
    /// Bytes of the text that were reported already.
    emitted: usize,
    usage: Option<Usage>,
    finished: bool,
    moderated: bool,
}

impl ChatStream {
    fn add(&mut self, chunk: &Value) {
        self.usage = usage_of(chunk).or(self.usage);
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
    let system = fields.shift_remove("system");
    let prompt = fields.shift_remove("prompt");
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

/// What the server counts, where that can be believed.
fn usage_of(body: &Value) -> Option<Usage> {
    Tokens::counted(body.get("usage")?).map(Usage::from)
}

/// The usage of a server that does not count, estimated from the length of the texts.
fn estimated(job: &Job, answer_bytes: usize) -> Usage {
    let input = estimate(job.input.to_string().len() as u64);
    Tokens { input, output: estimate(answer_bytes as u64), is_estimated: true }.into()
}

/// Whether an error says that the content, and not the request, was refused.
fn is_moderated(said: &[u8]) -> bool {
    let error: Option<Value> = serde_json::from_slice(said).ok();
    let code = error.as_ref().and_then(|error| error.pointer("/error/code")?.as_str());
    code.is_some_and(|code| ["content_filter", "content_policy_violation"].contains(&code))
}
