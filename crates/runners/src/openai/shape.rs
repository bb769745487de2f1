//! Server dialects: failures with a success status, whole completions instead of a stream, and
//! usage in the format of other APIs.

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::failure::{Failure, cut, said_of};
use orrery_domain::chat::{Tokens, estimate};
use orrery_domain::classify::ErrorClass;
use orrery_domain::raw_object::RawObject;

/// Maximum plausible token count. Larger counts are replaced with an estimate.
const TOKENS_MAX: u64 = 100_000_000;

/// Returns the failure reported by a response or an event, in the dialects of common servers. An
/// object with choices is a failure only if it has an `error`.
pub fn failure_in(answer: &Value) -> Option<Failure> {
    let object = answer.as_object()?;
    let is_set = |value: &&Value| !matches!(value, Value::Null | Value::Bool(false));
    if let Some(error) = object.get("error").filter(is_set) {
        return Some(said_in_answer(error));
    }
    let choices = object.get("choices").and_then(Value::as_array);
    if choices.is_some_and(|choices| !choices.is_empty()) {
        return None;
    }
    if object.get("object").and_then(Value::as_str) == Some("error")
        || object.get("type").and_then(Value::as_str) == Some("error")
    {
        return Some(said_in_answer(answer));
    }
    // The first event of Anthropic's streams has this form.
    let is_begun = nested(object, "message", "usage").is_some();
    if is_begun || ["choices", "data", "usage"].iter().any(|name| object.contains_key(*name)) {
        return None;
    }
    let exception = object.iter().find(|(name, _)| name.ends_with("Exception"));
    let said = exception.map(|(_, value)| value);
    let said = said.or_else(|| {
        ["detail", "errors", "message", "Message"].iter().find_map(|name| object.get(*name))
    })?;
    let message = said.get("message").unwrap_or(said);
    let message = message.as_str().map_or_else(|| message.to_string(), str::to_owned);
    Some(Failure::new(502, ErrorClass::ProviderError, cut(&message)))
}

/// Returns the failure in a response with a success status.
fn said_in_answer(error: &Value) -> Failure {
    let failure = said_of(502, error.to_string().as_bytes());
    let is_moderated = failure.class == ErrorClass::ContentModeration;
    let class = if is_moderated { failure.class } else { ErrorClass::ProviderError };
    Failure { class, ..failure }
}

/// Converts a whole completion into the events of a stream; returns `None` if it has no choices.
pub fn events_of(text: &[u8]) -> Option<Bytes> {
    // Values stay raw, because a parsed response full of numbers takes many times its length.
    let mut answer: RawObject = serde_json::from_slice(text).ok()?;
    let choices: Vec<RawObject> = answer.value("choices")?;
    let choices: Result<Vec<RawObject>, _> = choices.into_iter().map(choice_of_chunk).collect();
    let choices = choices.ok().filter(|choices| !choices.is_empty())?;
    let usage: Option<Box<RawValue>> = answer.value("usage");
    answer.remove("usage");
    answer.set("object", "chat.completion.chunk").ok()?;
    answer.set("choices", &choices).ok()?;
    let mut events = Vec::with_capacity(text.len());
    add_event(&mut events, &answer)?;
    if let Some(usage) = usage.filter(|usage| usage.get().starts_with('{')) {
        answer.set::<[(); 0]>("choices", &[]).ok()?;
        answer.set("usage", &usage).ok()?;
        add_event(&mut events, &answer)?;
    }
    events.extend_from_slice(b"data: [DONE]\n\n");
    Some(events.into())
}

/// Converts a chunk whose choices have `message` in place of `delta` into an event; returns `None`
/// if it cannot be read.
#[must_use]
pub fn event_of(chunk: &[u8]) -> Option<Bytes> {
    let mut chunk: RawObject = serde_json::from_slice(chunk).ok()?;
    let mut choices: Vec<RawObject> = chunk.value("choices")?;
    for choice in &mut choices {
        if let Some(message) = choice.value::<Box<RawValue>>("message")
            && choice.get("delta").is_none()
        {
            choice.remove("message");
            choice.set("delta", &message).ok()?;
        }
    }
    chunk.set("choices", &choices).ok()?;
    let mut event = Vec::new();
    add_event(&mut event, &chunk)?;
    Some(event.into())
}

fn add_event(events: &mut Vec<u8>, chunk: &RawObject) -> Option<()> {
    let mut text = chunk.text().ok()?;
    // JSON has no line breaks inside strings; other line breaks become spaces.
    for byte in text.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
    for part in [b"data: ", &*text, b"\n\n"] {
        events.extend_from_slice(part);
    }
    Some(())
}

/// Converts a choice with a message into a choice with a delta.
fn choice_of_chunk(mut choice: RawObject) -> Result<RawObject, serde_json::Error> {
    let text: Option<String> = choice.value("text");
    let mut message: RawObject = choice.value("message").unwrap_or_default();
    if let Some(text) = text {
        choice.remove("text");
        message = RawObject::default();
        message.set("role", "assistant")?;
        message.set("content", &text)?;
    }
    if let Some(mut calls) = message.value::<Vec<RawObject>>("tool_calls") {
        for (index, call) in calls.iter_mut().enumerate() {
            if call.get("index").is_none() {
                call.set("index", &index)?;
            }
        }
        message.set("tool_calls", &calls)?;
    }
    choice.remove("message");
    choice.set("delta", &message)?;
    if choice.names().all(|name| name != "finish_reason") {
        choice.set("finish_reason", "stop")?;
    }
    Ok(choice)
}

/// The token counts reported by a server. Some servers report them in parts, in several events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub input: Option<u64>,
    pub output: Option<u64>,
}

impl Counts {
    /// Merges the counts of a later event.
    pub fn update(&mut self, later: Self) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
    }

    /// Returns the tokens used; missing counts are estimated from `prompt_tokens`, which is
    /// approximate, and from the bytes of the generated text.
    #[must_use]
    pub fn tokens(self, prompt_tokens: u64, answer_bytes: u64) -> Tokens {
        // Embeddings have no output tokens, and no server counts any.
        let is_estimated = self.input.is_none() || (self.output.is_none() && answer_bytes > 0);
        Tokens {
            input: self.input.unwrap_or(prompt_tokens),
            output: self.output.unwrap_or_else(|| estimate(answer_bytes)),
            is_estimated,
        }
    }
}

/// The fields of a response or an event in which servers report usage.
pub const USAGE_FIELDS: [&str; 7] =
    ["usage", "usageMetadata", "x_groq", "meta", "message", "prompt_eval_count", "eval_count"];

/// Returns the token counts of a response or an event, in the dialects of common servers, or `None`
/// if there are no plausible counts.
pub fn counts_in(object: &Map<String, Value>) -> Option<Counts> {
    let places = [
        object.get("usage"),
        // Google's format.
        object.get("usageMetadata"),
        nested(object, "x_groq", "usage"),
        // Cohere reports billed tokens.
        nested(object, "meta", "billed_units"),
        // Anthropic's format at the beginning of a stream.
        nested(object, "message", "usage"),
    ];
    let mut places = places.into_iter().flatten().filter_map(Value::as_object);
    // Ollama reports counts at the top level.
    places.find_map(counted).or_else(|| counted(object))
}

fn nested<'o>(object: &'o Map<String, Value>, outer: &str, name: &str) -> Option<&'o Value> {
    object.get(outer)?.get(name)
}

/// Returns the token counts of a usage object that uses the names of any common API, or `None` if
/// there are no plausible counts.
fn counted(usage: &Map<String, Value>) -> Option<Counts> {
    let first = |names: &[&str]| {
        let named = names.iter().filter_map(|name| usage.get(*name));
        named.map(count).find(|count| *count != Some(None))
    };
    let sum = |names: &[&str]| {
        let named = names.iter().filter_map(|name| usage.get(*name).and_then(count).flatten());
        named.fold(0, u64::saturating_add)
    };
    let named = first(&["prompt_tokens", "promptTokenCount", "prompt_eval_count", "inputTokens"]);
    let input = match named {
        Some(input) => input?,
        // In this format, cached tokens are counted in addition to the other input tokens;
        // elsewhere they are included.
        None => match first(&["input_tokens"]) {
            Some(input) => input?.map(|input| {
                let cached = ["cache_creation_input_tokens", "cache_read_input_tokens"];
                input.saturating_add(sum(&cached))
            }),
            None => None,
        },
    };
    let names = [
        "completion_tokens",
        "output_tokens",
        "candidatesTokenCount",
        "eval_count",
        "outputTokens",
    ];
    let thought = sum(&["thoughtsTokenCount"]);
    let output = match first(&names) {
        Some(output) => output?.map(|output| output.saturating_add(thought)),
        None => (thought > 0).then_some(thought),
    };
    let counts = Counts { input, output };
    (counts != Counts::default()).then_some(counts)
}

/// Parses a count given as a number or a string, or null for none; returns `None` if it is
/// implausible.
fn count(value: &Value) -> Option<Option<u64>> {
    let number = match value {
        Value::Null => return Some(None),
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    if !(0.0..=TOKENS_MAX as f64).contains(&number) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Some(Some(number.ceil() as u64))
}

#[cfg(test)]
#[path = "shape_tests.rs"]
mod tests;
