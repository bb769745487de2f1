//! A request as it came: checked as far as the router depends on it, passed on otherwise.
//!
//! Fields that this file does not name go to the model as they are. Of those that it names, each
//! wrong one is refused with its name before anything is called.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::domain::chat::{Operation, estimate};
use crate::domain::invalid_request::InvalidRequest;
use crate::domain::json_object::JsonObject;
use crate::domain::raw_object::RawObject;

/// Characters of a model id.
const MODEL_CHARS_MAX: usize = 256;
/// Messages of one conversation.
const MESSAGES_MAX: usize = 10_000;
/// Texts of one request for embeddings.
const INPUTS_MAX: usize = 2048;
/// Stop strings of one request.
const STOPS_MAX: usize = 64;
/// Answers to one request.
const ANSWERS_MAX: u64 = 128;
/// What an image or another part that is not text counts for, in tokens.
const PART_TOKENS: u64 = 1000;

/// A request that is well formed.
#[derive(Debug)]
pub struct Request {
    pub operation: Operation,
    /// The model id, exactly as it was sent.
    pub model: String,
    /// The fallback chain that it names.
    pub selector: Option<String>,
    pub is_stream: bool,
    /// Whether the client wants the usage at the end of a stream.
    pub wants_usage: bool,
    /// How many tokens the prompt has, estimated.
    pub prompt_tokens: u64,
    /// The most tokens that an answer may have, where the request limits them.
    pub answer_tokens_max: Option<u64>,
    /// How many answers it asks for.
    pub answers: u64,
    fields: RawObject,
}

impl Request {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// [`InvalidRequest`], which names the field.
    pub fn read(operation: Operation, body: &[u8]) -> Result<Self, InvalidRequest> {
        let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
        let mut fields: RawObject =
            serde_json::from_slice(body).map_err(|error| InvalidRequest::body(&error))?;
        let mut known = known_fields(&fields)?;
        let model = known.text("model")?.filter(|model| !model.is_empty());
        let model = model.ok_or_else(|| InvalidRequest::missing("model"))?;
        if model.chars().nth(MODEL_CHARS_MAX).is_some() || model.chars().any(char::is_control) {
            let message =
                format!("model must have at most {MODEL_CHARS_MAX} characters, none of control");
            return Err(InvalidRequest::field("model", message));
        }
        let selector = known.text("fallback_selector")?.filter(|name| !name.is_empty());
        fields.remove("fallback_selector");
        let mut request = Self {
            operation,
            model,
            selector,
            is_stream: false,
            wants_usage: false,
            prompt_tokens: 0,
            answer_tokens_max: None,
            answers: 1,
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
            self.wants_usage = options.flag("include_usage").map_err(wrong)?.unwrap_or(false);
        }
        self.answers = known.whole("n", &(1..=ANSWERS_MAX))?.unwrap_or(1);
        let older = self.take_maximum(known, "max_tokens")?;
        self.answer_tokens_max = self.take_maximum(known, "max_completion_tokens")?.or(older);
        known.number("temperature", &(0.0..=2.0))?;
        known.number("top_p", &(0.0..=1.0))?;
        known.number("presence_penalty", &(-2.0..=2.0))?;
        known.number("frequency_penalty", &(-2.0..=2.0))?;
        known.whole("top_logprobs", &(0..=20))?;
        check_stop(known.take("stop").as_ref())?;
        let messages =
            self.fields.get("messages").ok_or_else(|| InvalidRequest::missing("messages"))?;
        let tools = self.fields.get("tools").map_or(0, str::len);
        self.prompt_tokens = tokens_of_messages(messages)?.saturating_add(estimate(tools as u64));
        Ok(())
    }

    /// A maximum of tokens. Some clients write -1 for none, which not every server takes.
    fn take_maximum(
        &mut self,
        known: &mut JsonObject,
        field: &'static str,
    ) -> Result<Option<u64>, InvalidRequest> {
        if self.fields.get(field) == Some("-1") {
            self.fields.remove(field);
            return Ok(None);
        }
        Ok(known.whole(field, &(1..=u64::from(u32::MAX)))?)
    }

    fn check_embeddings(&mut self, known: &mut JsonObject) -> Result<(), InvalidRequest> {
        known.whole("dimensions", &(1..=u64::from(u32::MAX)))?;
        let input = self.fields.get("input").ok_or_else(|| InvalidRequest::missing("input"))?;
        self.prompt_tokens = tokens_of_input(input)?;
        self.answer_tokens_max = Some(0);
        Ok(())
    }

    /// The request that a fallback chain makes of it, with these fields; `None` where that is not one.
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

    /// The body for a model: `model` is what its server calls it (`None`: as the client did). A stream has
    /// to end with its usage, unless the server does not take `stream_options`.
    ///
    /// # Errors
    /// When it has no JSON form.
    pub fn body(
        &self,
        model: Option<&str>,
        takes_options: bool,
    ) -> Result<Bytes, serde_json::Error> {
        let mut body = self.fields.clone();
        if let Some(model) = model {
            body.set("model", model)?;
        }
        if !takes_options {
            body.remove("stream_options");
        } else if self.is_stream {
            let mut options: RawObject = body.value("stream_options").unwrap_or_default();
            options.set("include_usage", &true)?;
            body.set("stream_options", &options)?;
        }
        Ok(body.text()?.into())
    }

    /// The request as a fallback chain's mapping reads it.
    ///
    /// # Errors
    /// When it nests too deeply to be read as a whole.
    pub fn value(&self) -> Result<Value, serde_json::Error> {
        serde_json::from_slice(&self.fields.text()?)
    }
}

/// The fields that are read here, parsed.
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

/// As much of a message as is looked at.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}

/// Checks the messages and estimates their tokens.
fn tokens_of_messages(messages: &str) -> Result<u64, InvalidRequest> {
    let wrong = |message: String| InvalidRequest::field("messages", message);
    let all: Vec<&RawValue> = serde_json::from_str(messages)
        .map_err(|_other| wrong("messages must be an array of objects".to_owned()))?;
    if all.is_empty() {
        return Err(wrong("messages must not be empty".to_owned()));
    }
    if all.len() > MESSAGES_MAX {
        return Err(wrong(format!("messages must have at most {MESSAGES_MAX} items")));
    }
    let mut tokens = 0_u64;
    for (index, message) in all.iter().enumerate() {
        let Ok(message) = serde_json::from_str::<Message<'_>>(message.get()) else {
            return Err(wrong(format!("messages[{index}] must be an object")));
        };
        if !message.role.is_some_and(|role| role.get().starts_with('"')) {
            return Err(wrong(format!("messages[{index}].role must be a string")));
        }
        let content = content_tokens(message.content).ok_or_else(|| {
            wrong(format!("messages[{index}].content must be a string or an array of objects"))
        })?;
        let calls = message.tool_calls.map_or(0, |calls| calls.get().len() as u64);
        tokens = tokens.saturating_add(content).saturating_add(estimate(calls));
    }
    Ok(tokens)
}

/// The tokens of a message's content; `None` when it is neither text nor a list of parts.
fn content_tokens(content: Option<&RawValue>) -> Option<u64> {
    let Some(content) = content.map(RawValue::get) else { return Some(0) };
    if content.starts_with('"') {
        return Some(estimate(text_bytes(content)));
    }
    let parts: Vec<Part<'_>> = serde_json::from_str(content).ok()?;
    let of_part = |part: &Part<'_>| match part.text {
        Some(text) => estimate(text_bytes(text.get())),
        None => PART_TOKENS,
    };
    Some(parts.iter().map(of_part).fold(0, u64::saturating_add))
}

/// Checks the input of embeddings and estimates its tokens: a text, several, or lists of tokens.
fn tokens_of_input(input: &str) -> Result<u64, InvalidRequest> {
    let wrong = |message: String| InvalidRequest::field("input", message);
    if input == "\"\"" || input == "[]" {
        return Err(wrong("input must not be empty".to_owned()));
    }
    if input.starts_with('"') {
        return Ok(estimate(text_bytes(input)));
    }
    let shape = || wrong("input must be a string, or an array of strings or of tokens".to_owned());
    let all: Vec<&RawValue> = serde_json::from_str(input).map_err(|_other| shape())?;
    if all.iter().all(|item| serde_json::from_str::<u64>(item.get()).is_ok()) {
        return Ok(all.len() as u64);
    }
    if all.len() > INPUTS_MAX {
        return Err(wrong(format!("input must have at most {INPUTS_MAX} items")));
    }
    let mut tokens = 0_u64;
    for item in all.iter().map(|item| item.get()) {
        let of_item = if item.starts_with('"') {
            estimate(text_bytes(item))
        } else {
            serde_json::from_str::<Vec<u64>>(item).map_err(|_other| shape())?.len() as u64
        };
        tokens = tokens.saturating_add(of_item);
    }
    Ok(tokens)
}

/// The bytes between the quotes of a JSON string.
pub fn text_bytes(string: &str) -> u64 {
    (string.len() as u64).saturating_sub(2)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
