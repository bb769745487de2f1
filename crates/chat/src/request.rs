//! Parses a request: validates the fields that the router depends on, and forwards the others.
//!
//! Fields that are not named in this file are forwarded unchanged. An invalid value of a named
//! field is rejected, with the name of the field, before any model is called.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use orrery_domain::chat::Operation;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::json_object::JsonObject;
use orrery_domain::raw_object::RawObject;
use orrery_domain::token_bound::TokenBound;
use orrery_runners::openai::stream_options::StreamOptions;

/// Maximum length of a model id, in characters.
const MODEL_CHARS_MAX: usize = 256;
/// Maximum number of messages in a conversation.
const MESSAGES_MAX: usize = 10_000;
/// Maximum number of inputs in an embeddings request.
const INPUTS_MAX: usize = 2048;
/// Maximum number of stop strings in a request.
const STOPS_MAX: usize = 64;
/// Maximum number of answers (`n`) to a request.
const ANSWERS_MAX: u64 = 128;

/// The option that requests the usage at the end of a stream.
const INCLUDE_USAGE: &str = "include_usage";

/// A valid request.
#[derive(Debug)]
pub struct Request {
    pub operation: Operation,
    /// The model id, exactly as the client sent it.
    pub model: String,
    /// The fallback chain that the request names.
    pub selector: Option<String>,
    pub is_stream: bool,
    /// Whether the client wants the usage at the end of a stream.
    pub wants_usage: bool,
    /// The limit on the request's tokens.
    pub bound: TokenBound,
    fields: RawObject,
}

impl Request {
    /// Parses and validates a body.
    ///
    /// # Errors
    /// [`InvalidRequest`], which names the field.
    pub fn read(operation: Operation, body: &[u8]) -> Result<Self, InvalidRequest> {
        let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
        let mut fields: RawObject =
            serde_json::from_slice(body).map_err(|error| InvalidRequest::body(body, &error))?;
        let mut known = known_fields(&fields)?;
        let model = known.text("model")?.filter(|model| !model.is_empty());
        let model = model.ok_or_else(|| InvalidRequest::missing("model"))?;
        if model.chars().nth(MODEL_CHARS_MAX).is_some() || model.chars().any(char::is_control) {
            let message = format!(
                "model must have at most {MODEL_CHARS_MAX} characters and no control characters"
            );
            return Err(InvalidRequest::field("model", message));
        }
        let selector = known.text("fallback_selector")?.filter(|name| !name.is_empty());
        fields.remove("fallback_selector");
        let is_chat = operation == Operation::Chat;
        if is_chat {
            remove_open_limits(&mut fields, &mut known);
        }
        let bound = TokenBound::of(&fields);
        let mut request = Self {
            operation,
            model,
            selector,
            is_stream: false,
            wants_usage: false,
            bound: if is_chat { bound } else { bound.without_answer() },
            fields,
        };
        match operation {
            Operation::Chat => request.check_chat(&mut known)?,
            Operation::Embeddings => request.check_embeddings(&mut known)?,
        }
        Ok(request)
    }

    fn check_chat(&mut self, known: &mut JsonObject) -> Result<(), InvalidRequest> {
        self.is_stream = known.flag("stream")?.unwrap_or(false);
        if let Some(mut options) = known.object("stream_options")?.map(JsonObject::from) {
            let wrong = |_mismatch| {
                let message = "stream_options.include_usage must be true or false";
                InvalidRequest::field("stream_options", message)
            };
            self.wants_usage = options.flag(INCLUDE_USAGE).map_err(wrong)?.unwrap_or(false);
        }
        known.whole("n", &(1..=ANSWERS_MAX))?;
        known.whole("max_tokens", &(1..=u64::from(u32::MAX)))?;
        known.whole("max_completion_tokens", &(1..=u64::from(u32::MAX)))?;
        known.number("temperature", &(0.0..=2.0))?;
        known.number("top_p", &(0.0..=1.0))?;
        known.number("presence_penalty", &(-2.0..=2.0))?;
        known.number("frequency_penalty", &(-2.0..=2.0))?;
        known.whole("top_logprobs", &(0..=20))?;
        check_stop(known.take("stop").as_ref())?;
        let messages =
            self.fields.get("messages").ok_or_else(|| InvalidRequest::missing("messages"))?;
        check_messages(messages)
    }

    fn check_embeddings(&mut self, known: &mut JsonObject) -> Result<(), InvalidRequest> {
        known.whole("dimensions", &(1..=u64::from(u32::MAX)))?;
        let input = self.fields.get("input").ok_or_else(|| InvalidRequest::missing("input"))?;
        check_input(input)
    }

    /// Returns the request that a fallback chain's mapping builds from these fields; `None` if it
    /// is invalid.
    #[must_use]
    pub fn mapped(&self, fields: &Map<String, Value>) -> Option<Self> {
        let mut body = self.fields.clone();
        let kept = ["model", "stream", "stream_options"];
        let stays = |name: &str| kept.contains(&name);
        body.retain(stays);
        for (name, value) in fields.iter().filter(|(name, _)| !stays(name)) {
            body.set(name, value).ok()?;
        }
        Self::read(self.operation, &body.text().ok()?).ok()
    }

    /// Returns the body to send to a model. `model` is the server's name for the model; with
    /// `None`, the client's name is used. A stream is requested with its usage, unless the server
    /// rejects `stream_options`.
    ///
    /// # Errors
    /// Returns an error if the body cannot be serialized.
    pub fn body(
        &self,
        model: Option<&str>,
        options: StreamOptions,
    ) -> Result<Bytes, serde_json::Error> {
        let mut body = self.fields.clone();
        if let Some(model) = model {
            body.set("model", model)?;
        }
        if options == StreamOptions::Omitted {
            body.remove("stream_options");
        } else if self.is_stream {
            let mut own: RawObject = body.value("stream_options").unwrap_or_default();
            own.retain(|name| options == StreamOptions::AsSent || name == INCLUDE_USAGE);
            own.set(INCLUDE_USAGE, &true)?;
            body.set("stream_options", &own)?;
        }
        Ok(body.text()?.into())
    }

    /// Returns whether the client set any `stream_options` other than the one that the router sets.
    #[must_use]
    pub fn has_own_stream_options(&self) -> bool {
        let options: Option<RawObject> = self.fields.value("stream_options");
        options.is_some_and(|options| options.names().any(|name| name != INCLUDE_USAGE))
    }

    /// Returns the request as a JSON value for a fallback chain's mapping.
    ///
    /// # Errors
    /// Returns an error if the request is nested too deeply.
    pub fn value(&self) -> Result<Value, serde_json::Error> {
        serde_json::from_slice(&self.fields.text()?)
    }
}

/// Parses the fields that are validated here.
fn known_fields(fields: &RawObject) -> Result<JsonObject, InvalidRequest> {
    const KNOWN: [&str; 14] = [
        "model",
        "fallback_selector",
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "stop",
        "dimensions",
    ];
    let mut known = Map::new();
    for name in KNOWN {
        let Some(text) = fields.get(name) else { continue };
        let value: Value = serde_json::from_str(text).map_err(|error| {
            InvalidRequest::field(name, format!("{name} cannot be read: {error}"))
        })?;
        known.insert(name.to_owned(), value);
    }
    Ok(known.into())
}

fn check_stop(stop: Option<&Value>) -> Result<(), InvalidRequest> {
    let wrong = || {
        let message = format!("stop must be a string, or an array of at most {STOPS_MAX} strings");
        InvalidRequest::field("stop", message)
    };
    match stop {
        None | Some(Value::String(_)) => Ok(()),
        Some(Value::Array(stops)) => {
            let is_good = stops.len() <= STOPS_MAX && stops.iter().all(Value::is_string);
            if is_good { Ok(()) } else { Err(wrong()) }
        }
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => Err(wrong()),
    }
}

/// The fields of a message that are validated.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

fn check_messages(messages: &str) -> Result<(), InvalidRequest> {
    let wrong = |message: String| InvalidRequest::field("messages", message);
    let all: Vec<&RawValue> = serde_json::from_str(messages)
        .map_err(|_other| wrong("messages must be an array of objects".to_owned()))?;
    if all.is_empty() {
        return Err(wrong("messages must not be empty".to_owned()));
    }
    if all.len() > MESSAGES_MAX {
        return Err(wrong(format!("messages must have at most {MESSAGES_MAX} items")));
    }
    for (index, message) in all.iter().enumerate() {
        let Ok(message) = serde_json::from_str::<Message<'_>>(message.get()) else {
            return Err(wrong(format!("messages[{index}] must be an object")));
        };
        if !message.role.is_some_and(|role| role.get().starts_with('"')) {
            return Err(wrong(format!("messages[{index}].role must be a string")));
        }
        if !message.content.is_none_or(is_content) {
            let rule = "must be a string or an array of objects";
            return Err(wrong(format!("messages[{index}].content {rule}")));
        }
    }
    Ok(())
}

fn is_content(content: &RawValue) -> bool {
    let content = content.get();
    let is_list = || serde_json::from_str::<Vec<Part>>(content).is_ok();
    content.starts_with('"') || is_list()
}

/// A content part: an object of any shape.
#[derive(Deserialize)]
struct Part {}

/// Validates the input of an embeddings request: a string, several strings, or lists of tokens.
fn check_input(input: &str) -> Result<(), InvalidRequest> {
    let wrong = |message: String| InvalidRequest::field("input", message);
    if input == "\"\"" || input == "[]" {
        return Err(wrong("input must not be empty".to_owned()));
    }
    if input.starts_with('"') {
        return Ok(());
    }
    let shape = || wrong("input must be a string, or an array of strings or of tokens".to_owned());
    let all: Vec<&RawValue> = serde_json::from_str(input).map_err(|_other| shape())?;
    if all.iter().all(|item| serde_json::from_str::<u64>(item.get()).is_ok()) {
        return Ok(());
    }
    if all.len() > INPUTS_MAX {
        return Err(wrong(format!("input must have at most {INPUTS_MAX} items")));
    }
    for item in all.iter().map(|item| item.get()) {
        if !item.starts_with('"') {
            serde_json::from_str::<Vec<u64>>(item).map_err(|_other| shape())?;
        }
    }
    Ok(())
}

/// Removes token limits of -1, which some clients send to mean "no limit" and some servers reject.
fn remove_open_limits(fields: &mut RawObject, known: &mut JsonObject) {
    for field in ["max_tokens", "max_completion_tokens"] {
        if fields.get(field) == Some("-1") {
            fields.remove(field);
            known.take(field);
        }
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
