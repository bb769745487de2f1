//! The forms in which servers answer: failures that come with a success status, completions in place of
//! a stream, and usage in the dialects of other APIs.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::error::Failure;
use super::meter::{cut, said_of};
use crate::domain::classify::ErrorClass;

/// The failure in an answer or an event that has no choices, in the dialects of the common servers.
pub fn failure_in(object: &Map<String, Value>) -> Option<Failure> {
    let is_set = |value: &&Value| !matches!(value, Value::Null | Value::Bool(false));
    if let Some(error) = object.get("error").filter(is_set) {
        return Some(said_of(502, error.to_string().as_bytes()));
    }
    if object.get("object").and_then(Value::as_str) == Some("error")
        || object.get("type").and_then(Value::as_str) == Some("error")
    {
        return Some(said_of(502, Value::Object(object.clone()).to_string().as_bytes()));
    }
    if ["choices", "data", "usage"].iter().any(|name| object.contains_key(*name)) {
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

/// The events of a stream with the content of a completion that came whole; `None` without choices.
pub fn events_of(text: &[u8]) -> Option<Bytes> {
    let mut answer: Map<String, Value> = serde_json::from_slice(text).ok()?;
    let choices = answer.get("choices")?.as_array().filter(|choices| !choices.is_empty())?;
    let choices: Vec<Value> = choices.iter().map(choice_of_chunk).collect();
    let usage = answer.shift_remove("usage").filter(Value::is_object);
    answer.insert("object".to_owned(), "chat.completion.chunk".into());
    answer.insert("choices".to_owned(), choices.into());
    let mut events = format!("data: {}\n\n", Value::Object(answer.clone()));
    if let Some(usage) = usage {
        answer.insert("choices".to_owned(), json!([]));
        answer.insert("usage".to_owned(), usage);
        events.push_str(&format!("data: {}\n\n", Value::Object(answer)));
    }
    events.push_str("data: [DONE]\n\n");
    Some(events.into())
}

/// A choice whose message becomes a delta.
fn choice_of_chunk(choice: &Value) -> Value {
    let mut choice = choice.as_object().cloned().unwrap_or_default();
    let mut message = choice.shift_remove("message").unwrap_or_else(|| json!({}));
    if let Some(text) = choice.shift_remove("text").filter(Value::is_string) {
        message = json!({"role": "assistant", "content": text});
    }
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for (index, call) in calls.into_iter().flatten().enumerate() {
        if let Some(call) = call.as_object_mut() {
            call.entry("index").or_insert_with(|| index.into());
        }
    }
    choice.insert("delta".to_owned(), message);
    choice.entry("finish_reason").or_insert_with(|| "stop".into());
    Value::Object(choice)
}

#[cfg(test)]
#[path = "shape_tests.rs"]
mod tests;
