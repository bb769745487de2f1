//! Server dialects: failures with a success status, completions that are not streamed although a
//! stream was requested, and usage in the format of other APIs.

use std::sync::LazyLock;

use bytes::Bytes;
use regex::bytes::{Captures, Regex};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::failure::{Failure, cut, said_of};
use super::message::Messages;
use super::said;
use orrery_domain::chat::{Operation, Tokens, estimate};
use orrery_domain::classify::ErrorClass;
use orrery_domain::raw_object::RawObject;
use orrery_http::event_stream::EventReader;

/// Maximum plausible token count. Larger counts are replaced with an estimate.
const TOKENS_MAX: u64 = 100_000_000;

/// Fields in which servers describe a failure.
const FAILURE_FIELDS: [&str; 8] =
    ["detail", "errors", "message", "Message", "msg", "error_msg", "status_msg", "fault"];

/// Returns the failure reported by a response or an event, in the dialects of common servers. An
/// object with choices is a failure only if it or a choice has an `error`.
pub fn failure_in(answer: &Value) -> Option<Failure> {
    let object = match answer {
        Value::Object(object) => object,
        // Google's streams are lists.
        Value::Array(items) => {
            return if let [one @ Value::Object(_)] = &items[..] { failure_in(one) } else { None };
        }
        Value::String(_) => return Some(said_in_answer(answer)),
        Value::Null | Value::Bool(_) | Value::Number(_) => return None,
    };
    let is_set = |value: &&Value| !matches!(value, Value::Null | Value::Bool(false));
    let status = nested(object, "base_resp", "status_code").and_then(Value::as_i64);
    let error = object.get("error").filter(is_set);
    let error = error.or_else(|| object.get("base_resp").filter(|_| status.unwrap_or(0) != 0));
    if let Some(error) = error {
        return Some(said_in_answer(error));
    }
    let choices = object.get("choices").and_then(Value::as_array);
    if let Some(choices) = choices.filter(|choices| !choices.is_empty()) {
        let failed = choices.iter().find(|choice| is_failed(choice))?;
        return Some(said_in_answer(failed.get("error").filter(is_set).unwrap_or(failed)));
    }
    if object.get("object").and_then(Value::as_str) == Some("error")
        || object.get("type").and_then(Value::as_str) == Some("error")
    {
        return Some(said_in_answer(answer));
    }
    // The first event of Anthropic's streams has this form.
    let is_begun = nested(object, "message", "usage").is_some();
    let has = |name: &&str| object.get(*name).is_some_and(|value| !value.is_null());
    if is_begun || ["choices", "data", "usage"].iter().any(has) {
        return None;
    }
    let exception = object.iter().find(|(name, _)| name.ends_with("Exception"));
    let said = exception.map(|(_, value)| value);
    let said = said.or_else(|| FAILURE_FIELDS.iter().find_map(|name| object.get(*name)))?;
    Some(Failure { said: Box::default(), ..said_in_answer(said) })
}

/// Returns whether a choice reports a failure, as OpenRouter's choices do.
fn is_failed(choice: &Value) -> bool {
    choice.get("error").is_some_and(|error| !matches!(error, Value::Null | Value::Bool(false)))
        || choice.get("finish_reason").and_then(Value::as_str) == Some("error")
}

/// Returns the failure in an event named `error`.
pub fn failure_in_error_event(data: &[u8]) -> Failure {
    let text = String::from_utf8_lossy(data);
    let value = serde_json::from_slice(data).unwrap_or_else(|_text| Value::from(&*text));
    let named = failure_in(&value);
    named.unwrap_or_else(|| Failure::new(502, ErrorClass::ProviderError, cut(text.trim())))
}

/// Returns whether an event contains part of an answer, or has an unknown form. Other events, such
/// as those with only a role or the usage, may precede a failure.
pub fn has_answer(event: &Value) -> bool {
    let Some(choices) = event.get("choices").and_then(Value::as_array) else {
        return event.get("usage").is_none();
    };
    choices.iter().any(|choice| {
        let text = |name: &str| choice.get(name).and_then(Value::as_str);
        let delta = ["delta", "message"].iter().find_map(|name| choice.get(*name)?.as_object());
        let is_finished = text("finish_reason").is_some();
        delta.is_some_and(|delta| said::is_answer(delta, is_finished))
            || text("text").is_some_and(|text| !text.is_empty())
    })
}

/// Returns the failure in a response with a success status.
fn said_in_answer(error: &Value) -> Failure {
    let failure = said_of(502, error.to_string().as_bytes());
    let is_moderated = failure.class == ErrorClass::ContentModeration;
    let class = if is_moderated { failure.class } else { ErrorClass::ProviderError };
    Failure { class, ..failure }
}

/// Matches a log-probability of NaN or infinity, which Python's JSON allows but JSON does not.
static LOGPROB: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"("logprob"\s*:\s*)(?:NaN|-?Infinity)"#).ok());
/// Matches each escape sequence in a string. The group matches an unpaired UTF-16 surrogate.
static ESCAPE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let pair = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}";
    Regex::new(&format!(r"(?s-u)\\(?:{pair}|(u[dD][89a-fA-F][0-9a-fA-F]{{2}})|.)")).ok()
});

/// Repairs server mistakes in JSON text that is otherwise readable: log-probabilities that are not
/// finite, and unpaired surrogates. Returns `None` if the text has neither.
pub fn repaired(json: &[u8]) -> Option<Bytes> {
    let numbers = LOGPROB.as_ref()?.replace_all(json, &b"${1}-9999.0"[..]);
    let whole = ESCAPE.as_ref()?.replace_all(&numbers, |escape: &Captures<'_>| {
        if escape.get(1).is_some() { br"\ufffd".to_vec() } else { escape[0].to_vec() }
    });
    // In JSON, line breaks occur only between values. Line breaks would split an event, so replace
    // them.
    let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let text: Vec<u8> =
        whole.iter().map(|byte| if is_break(byte) { b' ' } else { *byte }).collect();
    (whole != json).then(|| text.into())
}

/// Parses an event, and repairs it if necessary.
pub fn parse(event: &[u8]) -> Option<Value> {
    let parsed = serde_json::from_slice(event).ok();
    parsed.or_else(|| serde_json::from_slice(&repaired(event)?).ok())
}

/// Converts a complete response into the events of a stream; returns `None` if it has no choices.
pub fn events_of(text: &[u8]) -> Option<Bytes> {
    // Values stay raw, because a parsed response full of numbers takes many times its length in
    // memory.
    let mut answer: RawObject = serde_json::from_slice(text).ok()?;
    let usage: Option<Box<RawValue>> = answer.value("usage");
    answer.remove("usage");
    to_chunk(&mut answer)?;
    with_usage_event(answer, usage)
}

/// Returns the events of a stream with one chunk, its usage, and the end.
fn with_usage_event(mut answer: RawObject, usage: Option<Box<RawValue>>) -> Option<Bytes> {
    let mut events = Vec::new();
    add_event(&mut events, &answer)?;
    if let Some(usage) = usage.filter(|usage| usage.get().starts_with('{')) {
        answer.set::<[(); 0]>("choices", &[]).ok()?;
        answer.set("usage", &usage).ok()?;
        add_event(&mut events, &answer)?;
    }
    events.extend_from_slice(b"data: [DONE]\n\n");
    Some(events.into())
}

/// Converts a whole text completion into the events of a stream; returns `None` if it has no
/// choices.
pub fn text_events_of(text: &[u8]) -> Option<Bytes> {
    let mut answer: RawObject = serde_json::from_slice(text).ok()?;
    let choices: Vec<RawObject> = answer.value("choices")?;
    if choices.is_empty() {
        return None;
    }
    let usage: Option<Box<RawValue>> = answer.value("usage");
    answer.remove("usage");
    with_usage_event(answer, usage)
}

/// Converts an event that contains a whole completion into an event of a stream.
pub fn event_of(text: &[u8]) -> Option<Bytes> {
    let mut answer: RawObject = serde_json::from_slice(text).ok()?;
    to_chunk(&mut answer)?;
    let mut event = Vec::with_capacity(text.len());
    add_event(&mut event, &answer)?;
    Some(event.into())
}

fn to_chunk(answer: &mut RawObject) -> Option<()> {
    let choices: Vec<RawObject> = answer.value("choices")?;
    let choices: Result<Vec<RawObject>, _> = choices.into_iter().map(choice_of_chunk).collect();
    let choices = choices.ok().filter(|choices| !choices.is_empty())?;
    answer.set("object", "chat.completion.chunk").ok()?;
    answer.set("choices", &choices).ok()
}

/// Converts the events of a stream into a whole completion; returns `None` if the stream is
/// incomplete. A failure in the stream becomes the completion's `error`. `operation` is what was
/// requested.
pub fn completion_of(operation: Operation, text: &[u8]) -> Option<Vec<u8>> {
    let mut reader = EventReader::new(usize::MAX);
    reader.push(text);
    let mut completion = Map::new();
    let mut messages = Messages::new(text.len().saturating_mul(2));
    let mut reasons: Vec<Value> = Vec::new();
    let mut is_done = false;
    while let Some(event) = reader.next_event().ok().flatten().or_else(|| reader.rest()) {
        let data = event.data.as_ref().map(|data| data.trim_ascii()).unwrap_or_default();
        is_done |= data == b"[DONE]";
        if event.is_named("error") {
            completion.insert("error".to_owned(), String::from_utf8_lossy(data).into());
        }
        let Ok(Value::Object(mut chunk)) = serde_json::from_slice(data) else { continue };
        let choices = chunk.shift_remove("choices");
        for choice in choices.iter().filter_map(Value::as_array).flatten() {
            let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
            let index = usize::try_from(index).ok()?;
            let delta = ["delta", "message"].iter().find_map(|name| choice.get(*name)?.as_object());
            let text =
                || Some(Map::from_iter([("content".to_owned(), choice.get("text")?.clone())]));
            if !messages.add(index, delta.cloned().or_else(text).unwrap_or_default()) {
                return None;
            }
            reasons.resize(reasons.len().max(index.saturating_add(1)), Value::Null);
            let reason = choice.get("finish_reason").filter(|reason| reason.is_string());
            if let (Some(reason), Some(known)) = (reason, reasons.get_mut(index)) {
                *known = reason.clone();
            }
        }
        completion.extend(chunk.into_iter().filter(|(_, value)| !value.is_null()));
    }
    let is_open = reasons.is_empty() || (!is_done && reasons.contains(&Value::Null));
    if is_open && !completion.contains_key("error") {
        return None;
    }
    let whole = messages.finish().zip(reasons).enumerate().map(|(index, (message, reason))| {
        let reason = if reason.is_null() { "stop".into() } else { reason };
        if operation == Operation::Completions {
            let text = message.get("content").and_then(Value::as_str).unwrap_or_default();
            return json!({"index": index, "text": text, "finish_reason": reason, "logprobs": null});
        }
        json!({"index": index, "message": message, "finish_reason": reason})
    });
    let is_text = operation == Operation::Completions;
    let object = if is_text { "text_completion" } else { "chat.completion" };
    completion.insert("object".to_owned(), object.into());
    completion.insert("choices".to_owned(), whole.collect());
    serde_json::to_vec(&completion).ok()
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
    pub total: Option<u64>,
    /// Input tokens that the model read from its cache.
    pub cached: Option<u64>,
    /// Reasoning tokens in the output.
    pub reasoning: Option<u64>,
}

impl Counts {
    /// Merges the counts of a later event.
    pub fn update(&mut self, later: Self) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.total = later.total.or(self.total);
        self.cached = later.cached.or(self.cached);
        self.reasoning = later.reasoning.or(self.reasoning);
    }

    /// Returns the tokens used; missing counts are estimated from `prompt_tokens`, which is
    /// approximate, and from the bytes of the generated text. Some servers count thinking only in
    /// the total.
    #[must_use]
    pub fn tokens(self, prompt_tokens: u64, answer_bytes: u64) -> Tokens {
        // Embeddings have no output tokens, and no server counts any.
        let has_output = answer_bytes > 0;
        let Self { input, output, total, cached, reasoning } = self;
        let (input, output) = match (input, output, total) {
            (None, None, Some(total)) if !has_output => (Some(total), None),
            (None, Some(output), Some(total)) => (total.checked_sub(output), Some(output)),
            (Some(input), output, Some(total)) if has_output => {
                (Some(input), output.max(total.checked_sub(input)))
            }
            (input, output, _) => (input, output),
        };
        let is_estimated = input.is_none() || (output.is_none() && has_output);
        let input = input.unwrap_or(prompt_tokens);
        let output = output.unwrap_or_else(|| estimate(answer_bytes));
        Tokens {
            input,
            output,
            cached: cached.unwrap_or(0).min(input),
            reasoning: reasoning.unwrap_or(0).min(output),
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
    let usage = object.get("usage").map(|usage| usage.get(0).unwrap_or(usage));
    let within = |name: &str| usage?.get(name);
    let places = [
        // Cohere reports both the billed tokens and all tokens; prefer the billed ones.
        within("billed_units"),
        within("tokens"),
        usage,
        // Google's format.
        object.get("usageMetadata"),
        nested(object, "x_groq", "usage"),
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
    let named = first(&[
        "prompt_tokens",
        "promptTokenCount",
        "prompt_eval_count",
        "inputTokens",
        "promptTokens",
    ]);
    let input = match named {
        Some(input) => input?,
        // If the field is named `input_tokens`, cached tokens are counted in addition to this
        // field; counts in other fields include the cached tokens.
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
        "completionTokens",
    ];
    let thought = sum(&["thoughtsTokenCount"]);
    let output = match first(&names) {
        Some(output) => output?.map(|output| output.saturating_add(thought)),
        None => (thought > 0).then_some(thought),
    };
    let total = first(&["total_tokens", "totalTokenCount", "totalTokens"]).flatten().flatten();
    let counts = Counts { input, output, total, ..Counts::default() };
    if counts == Counts::default() {
        return None;
    }
    let within = |objects: [&str; 2], name: &str| {
        let mut details = objects.iter().filter_map(|object| usage.get(*object)?.get(name));
        details.find_map(|detail| count(detail).flatten())
    };
    let cached = within(["prompt_tokens_details", "input_tokens_details"], "cached_tokens");
    let names = ["cache_read_input_tokens", "prompt_cache_hit_tokens", "cachedContentTokenCount"];
    let cached = cached.or_else(|| first(&names).flatten().flatten());
    let objects = ["completion_tokens_details", "output_tokens_details"];
    let reasoning = within(objects, "reasoning_tokens").or((thought > 0).then_some(thought));
    Some(Counts { cached, reasoning, ..counts })
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
