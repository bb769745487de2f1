//! What an answer used: the model's own count of tokens, or an estimate by the length of its texts.
//!
//! It reads the events of a stream and whole answers, only as far as that takes, and changes none.
//! An answer in a form that it does not know is counted by its bytes.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::content::Content;
use super::error::{self, Failure};
use super::request::text_bytes;
use super::shape;
use crate::domain::chat::{Operation, Tokens, estimate};
use crate::domain::classify::ErrorClass;
use crate::domain::raw_object::RawObject;

/// The longest sentence of a model's server that is passed on, in characters.
const SAID_MAX: usize = 1000;

/// What an event of a stream is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// A part of the answer.
    Part,
    /// The usage, and nothing of the answer.
    Usage,
    /// The model has failed.
    Failed(Box<Failure>),
}

/// Counts one answer.
#[derive(Debug)]
pub struct Meter {
    /// What the prompt has, estimated.
    prompt_tokens: u64,
    /// As the model counts.
    counted: Option<Tokens>,
    /// Bytes of text that came.
    bytes: u64,
    is_finished: bool,
    has_answer: bool,
    /// What is kept of the answer, where it is.
    content: Option<Content>,
}

/// An event of a stream, or a whole answer, as far as it is looked at.
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
}

/// One of the answers.
#[derive(Debug, Deserialize)]
pub struct Choice<'a> {
    pub index: Option<u64>,
    #[serde(borrow)]
    delta: Option<Message<'a>>,
    #[serde(borrow)]
    message: Option<Message<'a>>,
    finish_reason: Option<IgnoredAny>,
}

/// What a model says.
#[derive(Debug, Deserialize)]
pub struct Message<'a> {
    #[serde(borrow)]
    pub content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    pub tool_calls: Option<&'a RawValue>,
}

impl Chunk<'_> {
    /// The usage, wherever the server puts it.
    fn usage(&self) -> Option<Value> {
        let read = |text: &RawValue| serde_json::from_str(text.get()).ok().filter(Value::is_object);
        let nested = |text: Option<&RawValue>, name: &str| {
            text.and_then(read).and_then(|mut outer| Some(outer.get_mut(name)?.take()))
        };
        let usage = self.usage.or(self.google).and_then(read);
        usage.or_else(|| nested(self.x_groq, "usage")).or_else(|| {
            // Cohere counts what it bills.
            let units = nested(self.meta, "billed_units");
            units.filter(|units| units.get("input_tokens").is_some())
        })
    }
}

impl<'a> Choice<'a> {
    /// What it adds to the answer.
    pub const fn said(&self) -> Option<&Message<'a>> {
        match &self.delta {
            Some(delta) => Some(delta),
            None => self.message.as_ref(),
        }
    }
}

impl Message<'_> {
    fn bytes(&self) -> u64 {
        let texts = [self.content, self.reasoning.or(self.reasoning_content), self.refusal];
        let texts = texts.into_iter().flatten().map(|text| text_bytes(text.get()));
        let calls = self.tool_calls.map_or(0, |calls| calls.get().len() as u64);
        texts.fold(calls, u64::saturating_add)
    }
}

impl Meter {
    /// Counts the answer to a prompt of so many tokens; `keeps` says that the answer is kept.
    #[must_use]
    pub fn new(prompt_tokens: u64, keeps: bool) -> Self {
        let content = keeps.then(Content::default);
        Self {
            prompt_tokens,
            counted: None,
            bytes: 0,
            is_finished: false,
            has_answer: false,
            content,
        }
    }

    /// Reads the data of an event.
    ///
    /// # Errors
    /// [`Failure`] when it is not JSON.
    pub fn event(&mut self, data: &[u8]) -> Result<Seen, Failure> {
        if data.trim_ascii().is_empty() {
            return Ok(Seen::Part);
        }
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else {
            if serde_json::from_slice::<IgnoredAny>(data).is_err() {
                let message = "the model's stream contains an event that is not valid JSON";
                return Err(Failure::new(502, ErrorClass::ProviderError, message));
            }
            if let Some(failure) = failure_of(data) {
                return Ok(Seen::Failed(Box::new(failure)));
            }
            self.bytes = self.bytes.saturating_add(data.len() as u64);
            self.has_answer = true;
            return Ok(Seen::Part);
        };
        let has_choices = chunk.choices.as_ref().is_some_and(|choices| !choices.is_empty());
        let is_failure = chunk.error.is_some() || !has_choices;
        if is_failure && let Some(failure) = failure_of(data) {
            return Ok(Seen::Failed(Box::new(failure)));
        }
        let has_usage = chunk.usage().is_some();
        self.add(&chunk);
        Ok(if has_usage && !has_choices { Seen::Usage } else { Seen::Part })
    }

    /// Reads a whole answer.
    pub fn whole(&mut self, operation: Operation, answer: &RawObject, text: &[u8]) {
        self.is_finished = true;
        match serde_json::from_slice::<Chunk<'_>>(text) {
            Ok(chunk) => self.add(&chunk),
            Err(_unknown_form) => {
                self.counted = answer.value("usage").as_ref().and_then(Tokens::counted);
                if operation == Operation::Chat {
                    self.bytes = text.len() as u64;
                }
            }
        }
    }

    fn add(&mut self, chunk: &Chunk<'_>) {
        if let Some(usage) = chunk.usage() {
            self.counted = Tokens::counted(&usage).or(self.counted);
        }
        for choice in chunk.choices.iter().flatten() {
            self.has_answer = true;
            let bytes = choice.said().map_or(0, Message::bytes);
            self.bytes = self.bytes.saturating_add(bytes);
            self.is_finished |= choice.finish_reason.is_some();
            if let Some(content) = &mut self.content {
                content.add(choice);
            }
        }
    }

    /// Bytes of text that came.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the answer has come to its end, as the model says.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Whether any choice has come, or something that may be one.
    #[must_use]
    pub const fn has_answer(&self) -> bool {
        self.has_answer
    }

    /// Whether nothing of an answer has come.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.counted.is_none() && self.bytes == 0 && !self.is_finished
    }

    /// What was used. Of an answer of which nothing came, nothing.
    #[must_use]
    pub fn tokens(&self) -> Tokens {
        if let Some(counted) = self.counted {
            return counted;
        }
        if self.is_empty() {
            return Tokens::default();
        }
        Tokens { input: self.prompt_tokens, output: estimate(self.bytes), is_estimated: true }
    }

    /// What is kept of the answer, as JSON.
    #[must_use]
    pub fn take_content(&mut self) -> Option<Box<RawValue>> {
        self.content.take()?.into_json()
    }
}

/// The failure that an event is, if it is one.
fn failure_of(data: &[u8]) -> Option<Failure> {
    shape::failure_in(&serde_json::from_slice(data).ok()?)
}

/// What the `error` of OpenAI's error body says; a text is its message.
#[must_use]
pub fn said_of(status: u16, error: &[u8]) -> Failure {
    let class = ErrorClass::of_http_status(status).unwrap_or(ErrorClass::ProviderError);
    let value: serde_json::Value = serde_json::from_slice(error).unwrap_or_default();
    let text = |name: &str| {
        let field = value.get(name)?;
        let number = || field.as_number().map(serde_json::Number::to_string);
        field.as_str().map(cut).or_else(number)
    };
    let code = text("code");
    let is_moderated =
        code.as_deref().is_some_and(|code| code.starts_with("content_") || code == "moderation");
    let message = text("message").or_else(|| value.as_str().map(cut));
    let message = message.unwrap_or_else(|| format!("the model answered {status}"));
    let class = if is_moderated { ErrorClass::ContentModeration } else { class };
    let kind = text("type");
    let param = text("param");
    let said = error::Said { kind, param, code, retry_after: None };
    Failure { said: Box::new(said), ..Failure::new(status, class, message) }
}

/// The text up to the most that is passed on.
#[must_use]
pub fn cut(text: &str) -> String {
    text.chars().take(SAID_MAX).collect()
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
