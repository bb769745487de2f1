//! Measures the usage of an answer: the model's own token counts, or an estimate from the length of
//! the text.
//!
//! The meter parses only the fields that it needs from stream events or a complete answer, and
//! changes nothing. The usage of an answer in an unknown format is estimated from its size in
//! bytes.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::content::Content;
use super::error::Failure;
use orrery_domain::chat::{Operation, Tokens};
use orrery_domain::raw_object::RawObject;
use orrery_runners::openai::answer::not_json;
use orrery_runners::openai::said;
use orrery_runners::openai::shape::{self, Counts, failure_in_error_event};

/// Maximum number of finish reasons in a trace, and maximum size of each reason in bytes.
const FINISH_REASONS_MAX: usize = 8;
const FINISH_REASON_BYTES_MAX: usize = 32;

/// The kind of a stream event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A part of the answer.
    Part,
    /// A part of the answer in `message`, where clients expect `delta`.
    Message,
    /// Only the usage, without any output.
    Usage,
    /// The model has failed.
    Failed(Box<Failure>),
}

/// The kind of an event of Anthropic's Messages API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessagePart {
    Start,
    Other,
    /// The usage at the end.
    Usage,
    /// The last event.
    Stop,
}

/// An event of OpenAI's Responses API.
#[derive(Debug, Deserialize)]
struct ResponseEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
}

/// Measures the usage of one answer.
#[derive(Debug)]
pub(crate) struct Meter {
    /// The estimated tokens of the prompt.
    prompt_tokens: u64,
    /// The token counts that the model reported.
    counted: Counts,
    /// Bytes of text received.
    bytes: u64,
    is_finished: bool,
    has_answer: bool,
    finish_reasons: Vec<String>,
    /// The answer for the history, if the history stores answers.
    content: Option<Content>,
}

/// The fields of a stream event or a whole answer that the meter reads.
#[derive(Debug, Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow, rename = "usageMetadata")]
    google: Option<&'a RawValue>,
    #[serde(borrow)]
    x_groq: Option<&'a RawValue>,
    #[serde(borrow)]
    meta: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_eval_count: Option<&'a RawValue>,
    #[serde(borrow)]
    eval_count: Option<&'a RawValue>,
    /// The event type that other APIs send; OpenAI's events have no type.
    #[serde(rename = "type")]
    kind: Option<IgnoredAny>,
}

/// One choice of the answer.
#[derive(Debug, Deserialize)]
pub(crate) struct Choice<'a> {
    pub index: Option<u64>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    /// The text of legacy completions, which have no messages.
    pub text: Option<String>,
    #[serde(borrow)]
    finish_reason: Option<&'a RawValue>,
    error: Option<IgnoredAny>,
}

/// The fields of a model's message that the history stores.
#[derive(Debug, Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow)]
    pub content: Option<&'a RawValue>,
    #[serde(borrow)]
    pub refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    pub tool_calls: Option<&'a RawValue>,
}

impl Chunk<'_> {
    /// Returns the server's token counts. Different servers return the counts in different fields.
    fn counts(&self) -> Option<Counts> {
        let texts = [
            self.usage,
            self.google,
            self.x_groq,
            self.meta,
            self.message,
            self.prompt_eval_count,
            self.eval_count,
        ];
        let fields = shape::USAGE_FIELDS.into_iter().zip(texts);
        let fields: Map<String, Value> = fields
            .filter_map(|(name, text)| {
                Some((name.to_owned(), serde_json::from_str(text?.get()).ok()?))
            })
            .collect();
        if fields.is_empty() { None } else { shape::counts_in(&fields) }
    }
}

impl<'a> Choice<'a> {
    /// Returns the message or delta, reduced to the fields that the history stores.
    pub(crate) fn said(&self) -> Option<Message<'a>> {
        serde_json::from_str(self.delta.or(self.message)?.get()).ok()
    }

    /// Returns whether the choice contains part of an answer, or ends an answer, which may be
    /// empty.
    fn is_answer(&self) -> bool {
        let is_finished = self.finish_reason.is_some();
        match (self.delta.or(self.message), &self.text) {
            (Some(said), _) => serde_json::from_str(said.get())
                .is_ok_and(|delta| said::is_answer(&delta, is_finished)),
            (None, Some(text)) => is_finished || !text.is_empty(),
            (None, None) => false,
        }
    }

    /// Whether the choice may report a failure.
    fn may_fail(&self) -> bool {
        self.error.is_some() || self.finish_reason.is_some_and(|reason| reason.get() == "\"error\"")
    }

    /// Returns the number of bytes of text in this choice.
    fn bytes(&self) -> u64 {
        match (self.delta.or(self.message), &self.text) {
            (Some(said), _) => said::text_bytes(said.get().as_bytes()).unwrap_or_default(),
            (None, text) => text.as_ref().map_or(0, |text| text.len() as u64),
        }
    }
}

impl Meter {
    /// Creates a meter for the answer to a prompt of `prompt_tokens` tokens. With `keeps`, the
    /// meter also assembles the answer for the history.
    #[must_use]
    pub(crate) fn new(prompt_tokens: u64, keeps: bool) -> Self {
        let content = keeps.then(Content::default);
        Self {
            prompt_tokens,
            counted: Counts::default(),
            bytes: 0,
            is_finished: false,
            has_answer: false,
            finish_reasons: Vec::new(),
            content,
        }
    }

    /// Reads the data of an event.
    ///
    /// # Errors
    /// [`Failure`] if the data is not JSON.
    pub(crate) fn event(&mut self, data: &[u8]) -> Result<Seen, Failure> {
        if data.trim_ascii().is_empty() {
            return Ok(Seen::Part);
        }
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else {
            if serde_json::from_slice::<IgnoredAny>(data).is_err() {
                return Err(not_json());
            }
            if let Some(failure) = failure_of(data) {
                return Ok(Seen::Failed(Box::new(failure)));
            }
            self.bytes = self.bytes.saturating_add(unknown_bytes(data));
            self.has_answer = true;
            return Ok(Seen::Part);
        };
        let has_choices = chunk.choices.as_ref().is_some_and(|choices| !choices.is_empty());
        let mut choices = chunk.choices.iter().flatten();
        let may_be_failure = chunk.error.is_some() || !has_choices || choices.any(Choice::may_fail);
        if may_be_failure && let Some(failure) = failure_of(data) {
            return Ok(Seen::Failed(Box::new(failure)));
        }
        let is_usage = chunk.kind.is_none()
            && [chunk.usage, chunk.google, chunk.x_groq].iter().any(|text| is_object(*text));
        self.add(&chunk);
        let is_message = |choice: &Choice<'_>| choice.delta.is_none() && choice.message.is_some();
        Ok(match chunk.choices {
            _ if is_usage && !has_choices => Seen::Usage,
            Some(choices) if choices.iter().any(is_message) => Seen::Message,
            _ => Seen::Part,
        })
    }

    /// Reads the data of an event of OpenAI's Responses API. Returns whether it is the last one of a
    /// complete answer.
    ///
    /// # Errors
    /// [`Failure`] if the data is not JSON, or if the response has failed.
    pub(crate) fn response_event(&mut self, data: &[u8]) -> Result<bool, Failure> {
        let event: ResponseEvent<'_> = serde_json::from_slice(data).map_err(|_other| not_json())?;
        match event.kind.as_deref().unwrap_or_default() {
            "response.completed" | "response.incomplete" => {
                let response: Option<RawObject> =
                    event.response.and_then(|text| serde_json::from_str(text.get()).ok());
                self.response(&response.unwrap_or_default());
                return Ok(true);
            }
            "error" | "response.failed" => {
                let failed = event.response.map_or(data, |response| response.get().as_bytes());
                return Err(failure_in_error_event(failed));
            }
            kind if kind.ends_with(".delta") => {
                let text = event.delta.map_or("", RawValue::get);
                self.bytes = self.bytes.saturating_add(text.len() as u64);
                self.has_answer = true;
            }
            _ => {}
        }
        Ok(false)
    }

    /// Reads a complete response of OpenAI's Responses API.
    pub(crate) fn response(&mut self, response: &RawObject) {
        self.is_finished = true;
        self.has_answer = true;
        let usage = response.value("usage").unwrap_or(Value::Null);
        match shape::counts_in(&Map::from_iter([("usage".to_owned(), usage)])) {
            Some(counts) => self.counted.update(counts),
            None => {
                let output = response.get("output").unwrap_or_default();
                self.bytes = self.bytes.max(output.len() as u64);
            }
        }
    }

    /// Reads the data of an event of Anthropic's Messages API.
    ///
    /// # Errors
    /// [`Failure`] if the data is not JSON, or if the message has failed.
    pub(crate) fn message_event(&mut self, data: &[u8]) -> Result<MessagePart, Failure> {
        let event: RawObject = serde_json::from_slice(data).map_err(|_other| not_json())?;
        let kind: String = event.value("type").unwrap_or_default();
        match kind.as_str() {
            "message_start" => {
                let message: RawObject = event.value("message").unwrap_or_default();
                self.message_usage(&message);
                return Ok(MessagePart::Start);
            }
            "content_block_delta" => {
                let delta: Map<String, Value> = event.value("delta").unwrap_or_default();
                let texts = ["text", "thinking", "partial_json"];
                let text = texts.iter().find_map(|name| delta.get(*name)?.as_str());
                self.bytes = self.bytes.saturating_add(text.map_or(0, str::len) as u64);
                self.has_answer = true;
            }
            "message_delta" => {
                self.message_usage(&event);
                self.is_finished = true;
                self.has_answer = true;
                return Ok(MessagePart::Usage);
            }
            "message_stop" => return Ok(MessagePart::Stop),
            "error" => return Err(failure_in_error_event(data)),
            _ => {}
        }
        Ok(MessagePart::Other)
    }

    /// Reads a complete message of Anthropic's Messages API.
    pub(crate) fn message(&mut self, message: &RawObject) {
        self.is_finished = true;
        self.has_answer = true;
        let content = message.get("content").unwrap_or_default();
        self.bytes = self.bytes.max(content.len() as u64);
        self.message_usage(message);
    }

    /// Updates the counts with the `usage` of an object.
    fn message_usage(&mut self, object: &RawObject) {
        let usage = object.value("usage").unwrap_or(Value::Null);
        if let Some(counts) = shape::counts_in(&Map::from_iter([("usage".to_owned(), usage)])) {
            self.counted.update(counts);
        }
    }

    /// Reads a non-streamed answer.
    pub(crate) fn whole(&mut self, operation: Operation, answer: &RawObject, text: &[u8]) {
        self.is_finished = true;
        match serde_json::from_slice::<Chunk<'_>>(text) {
            Ok(chunk) => self.add(&chunk),
            Err(_unknown_form) => {
                let usage = answer.value("usage").unwrap_or(Value::Null);
                let fields = Map::from_iter([("usage".to_owned(), usage)]);
                self.counted = shape::counts_in(&fields).unwrap_or_default();
                if operation.writes_text() {
                    self.bytes = unknown_bytes(text);
                }
            }
        }
    }

    fn add(&mut self, chunk: &Chunk<'_>) {
        if let Some(counts) = chunk.counts() {
            self.counted.update(counts);
        }
        for choice in chunk.choices.iter().flatten() {
            self.has_answer = self.has_answer || choice.is_answer();
            self.bytes = self.bytes.saturating_add(choice.bytes());
            self.is_finished |= choice.finish_reason.is_some();
            if let Some(reason) = choice.finish_reason
                && self.finish_reasons.len() < FINISH_REASONS_MAX
                && reason.get().len() <= FINISH_REASON_BYTES_MAX
            {
                self.finish_reasons.push(reason.get().trim_matches('"').to_owned());
            }
            if let Some(content) = &mut self.content {
                content.add(choice);
            }
        }
    }

    /// Returns the number of bytes of text received.
    #[must_use]
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the model has reported the end of its answer.
    #[must_use]
    pub(crate) const fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Returns whether a choice, or an event of unknown format that may be a choice, has arrived.
    #[must_use]
    pub(crate) const fn has_answer(&self) -> bool {
        self.has_answer
    }

    /// Returns whether no part of an answer has arrived.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.counted == Counts::default() && self.bytes == 0 && !self.is_finished
    }

    /// Returns the usage so far; zero if no part of an answer has arrived.
    #[must_use]
    pub(crate) fn tokens(&self) -> Tokens {
        if self.is_empty() {
            return Tokens::default();
        }
        self.counted.tokens(self.prompt_tokens, self.bytes)
    }

    /// Takes the finish reasons of the choices.
    #[must_use]
    pub(crate) fn take_finish_reasons(&mut self) -> Vec<String> {
        std::mem::take(&mut self.finish_reasons)
    }

    /// Takes the assembled answer, as JSON.
    #[must_use]
    pub(crate) fn take_content(&mut self) -> Option<Box<RawValue>> {
        self.content.take()?.into_json()
    }
}

fn failure_of(event: &[u8]) -> Option<Failure> {
    shape::failure_in(&serde_json::from_slice(event).ok()?)
}

/// Returns the bytes of text in an answer of unknown format: its full size if no known field has
/// text.
fn unknown_bytes(json: &[u8]) -> u64 {
    said::text_bytes(json).filter(|bytes| *bytes > 0).unwrap_or(json.len() as u64)
}

fn is_object(text: Option<&RawValue>) -> bool {
    text.is_some_and(|text| text.get().starts_with('{'))
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
