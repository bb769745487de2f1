//! Builds an OpenAI API request from a prediction's input, and interprets the response. The runner
//! decides where and how to send the request.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use hyper::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

use super::Kind;
use super::answer::{self, Body, begin, is_event_stream, not_json, refusal, refused, utf8};
use super::failure::{self, broken, misunderstood};
use super::message::Messages;
use super::said;
use super::shape::{self, Counts};
use super::stream_options::StreamOptions;
use crate::Job;
use crate::http::excerpt;
use crate::options::Model;
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::Usage;
use orrery_domain::token_bound::TokenBound;
use orrery_http::event_stream::{Event, EventReader};
use orrery_http::places::Arriving;
use orrery_http::{answers, content, trace_context};
use orrery_runtime as runtime;

/// Maximum size of a response, and of all events of a stream together, in bytes: enough for an
/// image in a chat.
pub const ANSWER_MAX: usize = answer::EVENT_MAX;

/// Builds a request to a model and parses its response.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'m> {
    pub kind: Kind,
    pub model: &'m Model,
    /// The header `Bearer …`, marked as sensitive.
    pub authorization: Option<&'m HeaderValue>,
}

impl Exchange<'_> {
    /// Builds the request of a job to the server at `url`, which serves the model under the name
    /// `model`. A stream must end with its usage if the server supports `stream_options`.
    ///
    /// # Errors
    /// Fails if the URL is invalid.
    pub fn request(
        &self,
        url: &str,
        model: &str,
        job: &Job,
        options: StreamOptions,
    ) -> Result<Request<Bytes>, failure::Failure> {
        let mut fields = job.input.as_object().cloned().unwrap_or_default();
        if self.kind == Kind::Chat {
            prompt_to_messages(&mut fields);
        }
        if self.kind.writes_text() {
            fields.insert("stream".to_owned(), true.into());
            fields.shift_remove("stream_options");
            if options != StreamOptions::Omitted {
                fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
            }
        }
        fields.insert("model".to_owned(), model.into());
        let mut request = Request::post(format!("{url}{}", self.kind.path()))
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT_ENCODING, "identity")
            .header("idempotency-key", &job.attempt_key);
        if let Some(headers) = request.headers_mut() {
            trace_context::pass_on(headers, &job.trace);
            if let Some(authorization) = self.authorization {
                headers.insert(AUTHORIZATION, authorization.clone());
            }
        }
        request.body(Bytes::from(Value::Object(fields).to_string())).map_err(|error| {
            let message = format!("the request cannot be made: {error}");
            failure::Failure::new(502, ErrorClass::InvalidModelConfig, message)
        })
    }

    /// Creates a failure that includes the name of the model.
    #[must_use]
    pub fn failure(&self, class: ErrorClass, what: &str) -> Failure {
        self.model.failure(class, what)
    }

    /// Adds the model's name to a failure, as shown in predictions.
    #[must_use]
    pub fn named(&self, mut failure: failure::Failure) -> Failure {
        if let Some(authorization) = self.authorization {
            failure.mask(authorization);
        }
        let name = format!("the model '{}'", self.model.name);
        if failure.message.contains(&name) {
            failure.recorded()
        } else {
            Failure::new(failure.class, format!("{name}: {}", failure.message))
        }
    }

    /// Adds the status to an error response whose text does not mention it.
    fn answered(&self, status: u16, mut failure: failure::Failure) -> failure::Failure {
        let name = format!("the model '{}'", self.model.name);
        if !failure.message.contains(&name) {
            failure.message = format!("{name} answered {status}: {}", failure.message);
        }
        failure
    }

    /// Reads a response to its end. The text of a streamed chat is reported as it arrives.
    ///
    /// # Errors
    /// The server's error, or an interrupted response.
    pub async fn read(
        &self,
        job: &Job,
        answer: Response<Arriving>,
    ) -> Result<(Value, Usage), failure::Failure> {
        let name = &self.model.name;
        let (head, arriving) = answer.into_parts();
        if !head.status.is_success() {
            let failure = refusal(name, &head, arriving, self.authorization).await;
            return Err(self.answered(head.status.as_u16(), failure));
        }
        let mut body = Body::of(name, &head.headers, arriving)?;
        let declared = is_event_stream(&head.headers);
        let now = runtime::monotonic_now();
        let until = now.checked_add(self.model.timeout).unwrap_or(now);
        let (is_stream, first) = begin(name, &mut body, until, declared).await?;
        if is_stream {
            return self.read_stream(job, first.unwrap_or_default(), body).await;
        }
        // The server does not support streaming.
        let said = self.read_whole(first.unwrap_or_default(), body).await?;
        let said = utf8(name, &head.headers, said)?;
        self.parse_whole(job, said).await
    }

    /// Interprets a complete response.
    ///
    /// # Errors
    /// The server's error, or a response without the requested contents.
    pub async fn parse(
        &self,
        job: &Job,
        status: u16,
        headers: &HeaderMap,
        said: &Bytes,
    ) -> Result<(Value, Usage), failure::Failure> {
        let name = &self.model.name;
        if ErrorClass::of_http_status(status).is_some() {
            let failure = refused(name, status, headers, said, self.authorization);
            return Err(self.answered(status, failure));
        }
        if self.kind == Kind::Speech {
            return self.speech(job, headers, said);
        }
        self.parse_whole(job, utf8(name, headers, said.clone())?).await
    }

    /// Returns the audio of a response as a `data:` URL.
    fn speech(
        &self,
        job: &Job,
        headers: &HeaderMap,
        said: &Bytes,
    ) -> Result<(Value, Usage), failure::Failure> {
        let kind = answer::audio_type(&self.model.name, headers, said)?;
        let output = format!("data:{kind};base64,{}", STANDARD.encode(said));
        let text = job.input.get("input").and_then(Value::as_str).unwrap_or_default();
        let characters = Some(text.chars().count() as u64);
        Ok((output.into(), Usage { characters, ..Usage::default() }))
    }

    async fn parse_whole(
        &self,
        job: &Job,
        said: Bytes,
    ) -> Result<(Value, Usage), failure::Failure> {
        let (kind, text) = (self.kind, said.clone());
        let whole = self.parse_aside(said.len(), move |name| Whole::parse(kind, name, &text));
        let events = match whole.await? {
            Whole::Events(events) => events,
            Whole::Items(body) => return self.items(job, &body, &said),
        };
        let mut stream = ChatStream::default();
        let mut reader = EventReader::new(usize::MAX);
        reader.push(&events);
        while let Ok(Some(event)) = reader.next_event() {
            self.add_event(event, &mut stream).await?;
        }
        self.ended(job, stream)
    }

    /// Parses the text of a response of this many bytes; a large text is parsed on a blocking
    /// thread. `parse` receives the model's name.
    async fn parse_aside<T: Send + 'static>(
        &self,
        bytes: usize,
        parse: impl FnOnce(&str) -> Result<T, failure::Failure> + Send + 'static,
    ) -> Result<T, failure::Failure> {
        let name = self.model.name.clone();
        let parsed = answers::parse_aside(bytes, move || parse(&name)).await;
        parsed.unwrap_or_else(|| {
            let what = format!("the answer from the model '{}' cannot be read", self.model.name);
            Err(failure::Failure::new(500, ErrorClass::InternalError, what))
        })
    }

    /// Returns the failure for a response that is not what was requested.
    fn unexpected_response(&self, what: &str, said: &[u8]) -> failure::Failure {
        unexpected(&self.model.name, what, said)
    }

    async fn read_whole(&self, first: Bytes, mut body: Body) -> Result<Bytes, failure::Failure> {
        let mut read = BytesMut::from(first);
        while let Some(data) = self.next(&mut body).await? {
            if read.len().saturating_add(data.len()) > ANSWER_MAX {
                return Err(self.too_large());
            }
            read.extend_from_slice(&data);
        }
        Ok(read.freeze())
    }

    async fn next(&self, body: &mut Body) -> Result<Option<Bytes>, failure::Failure> {
        let next = body.next().await;
        next.map_err(|error| broken(&self.model.name, &format!("its answer was cut off: {error}")))
    }

    fn too_large(&self) -> failure::Failure {
        let what = format!("its answer is larger than {ANSWER_MAX} bytes");
        misunderstood(&self.model.name, &what)
    }

    /// Reads server-sent events up to `[DONE]` or the end.
    async fn read_stream(
        &self,
        job: &Job,
        first: Bytes,
        mut body: Body,
    ) -> Result<(Value, Usage), failure::Failure> {
        let mut stream = ChatStream::default();
        let mut reader = EventReader::new(answer::EVENT_MAX);
        let mut came = Some(first);
        while let Some(data) = came {
            reader.push(&data);
            while let Some(event) = reader.next_event().map_err(|_too_long| self.too_large())? {
                self.add_event(event, &mut stream).await?;
                if stream.is_done {
                    stream.emit_delta(job);
                    return self.ended(job, stream);
                }
            }
            stream.emit_delta(job);
            came = self.next(&mut body).await?;
        }
        if let Some(event) = reader.rest() {
            self.add_event(event, &mut stream).await?;
        }
        self.ended(job, stream)
    }

    /// Adds an event of a stream.
    async fn add_event(
        &self,
        event: Event,
        stream: &mut ChatStream,
    ) -> Result<(), failure::Failure> {
        let is_error = event.is_named("error");
        let Some(data) = event.data else { return Ok(()) };
        if is_error {
            return Err(shape::failure_in_error_event(&data));
        }
        let data = data.slice_ref(data.trim_ascii());
        if data == b"[DONE]"[..] {
            stream.is_done = true;
        }
        if data.is_empty() || stream.is_done {
            return Ok(());
        }
        let chunk = self.parse_aside(data.len(), move |name| {
            shape::parse(&data).ok_or_else(|| unexpected(name, &not_json().message, &data))
        });
        let chunk = chunk.await?;
        if let Some(failure) = shape::failure_in(&chunk) {
            return Err(failure);
        }
        if stream.add(chunk) { Ok(()) } else { Err(self.too_large()) }
    }

    fn ended(&self, job: &Job, stream: ChatStream) -> Result<(Value, Usage), failure::Failure> {
        let name = &self.model.name;
        if stream.moderated {
            let what = format!("the model '{name}': its content filter stopped the answer");
            return Err(failure::Failure::new(502, ErrorClass::ContentModeration, what));
        }
        if !stream.has_answer && stream.is_done {
            return Err(misunderstood(name, "its stream has no answer"));
        }
        if !stream.finished && !stream.is_done {
            return Err(broken(name, "its stream ended before the answer was complete"));
        }
        let bytes = stream.messages.bytes();
        let usage = used(job, stream.counts, bytes);
        let output = stream.messages.output();
        if output == "" && bytes > 0 && stream.is_cut {
            let what = "it reached its token limit while it was thinking: raise max_tokens";
            return Err(misunderstood(name, what));
        }
        Ok((output, usage))
    }

    /// Returns the embeddings, images or relevances in a response.
    fn items(
        &self,
        job: &Job,
        body: &Value,
        said: &[u8],
    ) -> Result<(Value, Usage), failure::Failure> {
        let results = body.get("results").filter(|_| self.kind == Kind::Rerank);
        let data = results.or(body.get("data")).and_then(Value::as_array);
        let data =
            data.ok_or_else(|| self.unexpected_response("gave an answer without data", said))?;
        let items: Option<Vec<Value>> = match self.kind {
            Kind::Images => data.iter().map(image).collect(),
            Kind::Rerank => data.iter().map(relevance).collect(),
            Kind::Chat
            | Kind::Completions
            | Kind::Embeddings
            | Kind::Transcriptions
            | Kind::Speech => data.iter().map(|item| item.get("embedding").cloned()).collect(),
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
        let counts = body.as_object().and_then(shape::counts_in).unwrap_or_default();
        let mut usage = match self.kind {
            Kind::Images if counts == Counts::default() => Usage::default(),
            Kind::Chat
            | Kind::Completions
            | Kind::Embeddings
            | Kind::Rerank
            | Kind::Images
            | Kind::Transcriptions
            | Kind::Speech => used(job, counts, 0),
        };
        if self.kind == Kind::Images {
            usage.images = output.as_array().map(|images| images.len() as u64);
        }
        Ok((output, usage))
    }
}

/// A response that was not streamed.
enum Whole {
    /// A chat completion, as the events that a stream would have.
    Events(Bytes),
    /// Embeddings, images or relevances.
    Items(Value),
}

impl Whole {
    fn parse(kind: Kind, name: &str, said: &[u8]) -> Result<Self, failure::Failure> {
        let unread =
            |error: content::Error| unexpected(name, &format!("its answer: {error}"), said);
        content::check_values(said).map_err(unread)?;
        let operation = Some(kind.predicts()).filter(|operation| operation.writes_text());
        let repaired = answer::parse(operation, name, said).err().map(|failure| {
            let text = shape::repaired(said).ok_or(failure)?;
            answer::parse(operation, name, &text).map(|_answer| text)
        });
        let repaired = repaired.transpose()?;
        let said = repaired.as_deref().unwrap_or(said);
        if kind.writes_text() {
            let events = shape::events_of(said).map(Self::Events);
            return events.ok_or_else(|| misunderstood(name, "its answer has no choices"));
        }
        content::parse(said).map(Self::Items).map_err(unread)
    }
}

/// Returns the failure for a response that is not what was requested.
fn unexpected(name: &str, what: &str, said: &[u8]) -> failure::Failure {
    misunderstood(name, &format!("{what}: {}", excerpt(said)))
}

/// The contents of a stream so far.
#[derive(Debug)]
struct ChatStream {
    messages: Messages,
    /// Bytes of the first choice's text that have already been reported.
    emitted: usize,
    counts: Counts,
    has_answer: bool,
    finished: bool,
    /// Whether `[DONE]` has arrived.
    is_done: bool,
    moderated: bool,
    /// Whether the answer reached its token limit.
    is_cut: bool,
}

impl Default for ChatStream {
    fn default() -> Self {
        Self {
            messages: Messages::new(ANSWER_MAX),
            emitted: 0,
            counts: Counts::default(),
            has_answer: false,
            finished: false,
            is_done: false,
            moderated: false,
            is_cut: false,
        }
    }
}

impl ChatStream {
    /// Adds a chunk; returns false if it exceeds the limit.
    fn add(&mut self, mut chunk: Value) -> bool {
        if let Some(counts) = chunk.as_object().and_then(shape::counts_in) {
            self.counts.update(counts);
        }
        let Some(choices) = chunk.get_mut("choices").and_then(Value::as_array_mut) else {
            return true;
        };
        let mut fits = true;
        for choice in choices.iter_mut().filter_map(Value::as_object_mut) {
            let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
            // Some servers send `message` in place of `delta`.
            let mut delta = ["delta", "message"].into_iter().find_map(|name| {
                if let Some(Value::Object(delta)) = choice.shift_remove(name) {
                    Some(delta)
                } else {
                    None
                }
            });
            if let Some(text) = choice.shift_remove("text").filter(Value::is_string) {
                delta.get_or_insert_default().insert("content".to_owned(), text);
            }
            let is_finished = choice.get("finish_reason").is_some_and(Value::is_string);
            self.has_answer |=
                delta.as_ref().is_some_and(|delta| said::is_answer(delta, is_finished));
            let delta = delta.unwrap_or_default();
            fits &= self.messages.add(usize::try_from(index).unwrap_or(usize::MAX), delta);
            if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
                self.finished = true;
                self.moderated |= reason == "content_filter";
                self.is_cut |= reason == "length";
            }
        }
        fits
    }

    /// Reports the text added since the last call.
    fn emit_delta(&mut self, job: &Job) {
        let text = self.messages.text();
        if let Some(part) = text.get(self.emitted..).filter(|part| !part.is_empty()) {
            job.progress.output(&part.into());
            self.emitted = text.len();
        }
    }
}

/// Converts `prompt` and `system` into a conversation.
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

/// Returns an image: its URL, or its bytes as a `data:` URI.
fn image(item: &Value) -> Option<Value> {
    if let Some(url) = item.get("url").filter(|url| url.is_string()) {
        return Some(url.clone());
    }
    let bytes = item.get("b64_json")?.as_str()?;
    Some(format!("data:image/png;base64,{bytes}").into())
}

/// Returns the relevance of a document: its index and its score.
fn relevance(item: &Value) -> Option<Value> {
    let index = item.get("index")?.as_u64()?;
    let score = ["relevance_score", "score"].iter().find_map(|name| item.get(*name)?.as_f64())?;
    Some(json!({"index": index, "relevance_score": score}))
}

/// Returns the usage reported by the server, or an estimate from the length of the texts.
fn used(job: &Job, counts: Counts, answer_bytes: u64) -> Usage {
    let prompt_tokens = match to_raw_value(&*job.input) {
        Ok(input) => TokenBound::of_input(&input).prompt_estimate(),
        Err(_unwritable) => 0,
    };
    counts.tokens(prompt_tokens, answer_bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_http::answers::MODEL_VALUES_MAX;

    #[test]
    fn whole_answers_of_too_many_values_are_refused() {
        let zeros = "0,".repeat(MODEL_VALUES_MAX);
        let many = format!("{{\"data\":[{{\"embedding\":[{zeros}0]}}]}}");
        for kind in [Kind::Chat, Kind::Embeddings, Kind::Images] {
            let refused = Whole::parse(kind, "m", many.as_bytes()).err().unwrap();
            assert!(refused.message.contains("more than 4000000 JSON values"), "{refused:?}");
        }
        let few = b"{\"data\":[{\"embedding\":[0,0]}]}";
        assert!(matches!(Whole::parse(Kind::Embeddings, "m", few), Ok(Whole::Items(_))));
    }
}
