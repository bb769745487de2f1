//! Reads answers and streams of chat completions, and of text completions, whose choices have a
//! text in place of a message.

use std::mem::{Discriminant, discriminant};

use serde_json::{Map, Value};

use super::REASONING_FIELDS;
use crate::{Answer, End, Event, Part, Reasoning, ToolCall, Unreadable, Usage};

/// Maximum number of tool calls in a streamed answer.
const CALLS_MAX: usize = 1024;
/// Maximum number of changes between text, reasoning and tool calls in a streamed answer: each
/// begins a part of the translated answer, which may be larger than its text.
const PARTS_MAX: usize = 10_000;

/// Reads a complete answer: its first choice.
///
/// # Errors
/// [`Unreadable`] if it is not JSON or has no choice.
pub fn read_answer(text: &[u8]) -> Result<Answer, Unreadable> {
    let answer: Value = serde_json::from_slice(text)
        .map_err(|error| Unreadable(format!("is not valid JSON: {error}")))?;
    let choice = answer.pointer("/choices/0");
    let choice = choice.ok_or_else(|| Unreadable("has no choice".to_owned()))?;
    let empty = Map::new();
    let message = choice.get("message").or(choice.get("delta")).and_then(Value::as_object);
    let message = message.unwrap_or(&empty);
    let mut parts = Vec::new();
    parts.extend(reasoning_of(message).map(Part::Reasoning));
    let text = Some(text_of(message)).filter(|text| !text.is_empty());
    parts.extend(text.or_else(|| filled_text(choice)).map(Part::Text));
    parts.extend(filled(message, "refusal").map(|text| Part::Refusal(text.to_owned())));
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let legacy = message.get("function_call").filter(|call| call.is_object());
    for call in calls {
        let function = call.get("function").unwrap_or(&Value::Null);
        parts.push(Part::ToolCall(whole_call(string(call, "id"), function)));
    }
    parts.extend(legacy.map(|function| Part::ToolCall(whole_call("", function))));
    let has_calls = parts.iter().any(|part| matches!(part, Part::ToolCall(_)));
    let is_refused = parts.iter().any(|part| matches!(part, Part::Refusal(_)));
    let end = end_of(choice).unwrap_or_default().of_parts(has_calls, is_refused);
    let usage = answer.get("usage").and_then(usage_of).unwrap_or_default();
    Ok(Answer { parts, end, usage })
}

fn whole_call(id: &str, function: &Value) -> ToolCall {
    ToolCall {
        id: id.to_owned(),
        name: string(function, "name").to_owned(),
        arguments: arguments_of(function),
    }
}

/// Returns the arguments of a call as text; some servers send them as an object.
fn arguments_of(function: &Value) -> String {
    match function.get("arguments") {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    }
}

fn string<'v>(value: &'v Value, field: &str) -> &'v str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn filled<'v>(fields: &'v Map<String, Value>, field: &str) -> Option<&'v str> {
    fields.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Returns the text of a message or delta. Some servers send it as a list of parts.
fn text_of(message: &Map<String, Value>) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().map(|part| string(part, "text")).collect(),
        _ => String::new(),
    }
}

/// Returns the text of a text completion's choice.
fn filled_text(choice: &Value) -> Option<String> {
    let text = string(choice, "text");
    (!text.is_empty()).then(|| text.to_owned())
}

fn reasoning_of(message: &Map<String, Value>) -> Option<Reasoning> {
    let said = REASONING_FIELDS.iter().find_map(|field| Some((field, filled(message, field)?)));
    if let Some((field, text)) = said {
        let signature = Some((*field).to_owned());
        return Some(Reasoning { text: text.to_owned(), signature });
    }
    // Mistral's servers send reasoning as parts of the content.
    let parts = message.get("content")?.as_array()?;
    let thinking = parts.iter().filter_map(|part| part.get("thinking")?.as_array()).flatten();
    let text: String = thinking.map(|part| string(part, "text")).collect();
    (!text.is_empty()).then_some(Reasoning { text, signature: None })
}

/// Returns why a choice ended; `None` if it goes on.
fn end_of(choice: &Value) -> Option<End> {
    let end = match choice.get("finish_reason")?.as_str()? {
        "length" | "max_tokens" | "model_length" => End::TokenLimit,
        "tool_calls" | "function_call" | "tool_use" => End::ToolCalls,
        "content_filter" | "refusal" | "safety" => End::Refused,
        _ => {
            // The stop string, as vLLM and SGLang name it.
            let stop = ["stop_reason", "matched_stop"];
            let stop = stop.iter().find_map(|field| choice.get(field)?.as_str());
            stop.map_or(End::Complete, |stop| End::StopString(stop.to_owned()))
        }
    };
    Some(end)
}

fn usage_of(usage: &Value) -> Option<Usage> {
    let usage = usage.as_object()?;
    let count = |value: Option<&Value>| value.and_then(Value::as_u64);
    let first = |names: [&str; 2]| names.iter().find_map(|name| count(usage.get(*name)));
    let detail = |object: &str, field: &str| count(usage.get(object)?.get(field));
    let cached = detail("prompt_tokens_details", "cached_tokens");
    Some(Usage {
        input: first(["prompt_tokens", "input_tokens"]).unwrap_or(0),
        output: first(["completion_tokens", "output_tokens"]).unwrap_or(0),
        cached: cached.or(count(usage.get("prompt_cache_hit_tokens"))).unwrap_or(0),
        reasoning: detail("completion_tokens_details", "reasoning_tokens").unwrap_or(0),
        cost: usage.get("cost").and_then(Value::as_f64),
    })
}

/// Reads the data of a stream's events.
#[derive(Debug, Default)]
pub struct StreamReader {
    /// The calls that have begun: their numbers in the stream, and their IDs.
    calls: Vec<(u64, String)>,
    /// The kind of the last part.
    last: Option<Discriminant<Event>>,
    /// The number of parts that have begun.
    parts: usize,
}

impl StreamReader {
    /// Reads the data of an event, without `[DONE]`.
    ///
    /// # Errors
    /// [`Unreadable`] if it is not JSON, or if the answer has too many parts.
    pub fn event(&mut self, data: &[u8]) -> Result<Vec<Event>, Unreadable> {
        let chunk: Value = serde_json::from_slice(data)
            .map_err(|error| Unreadable(format!("has an event that is not JSON: {error}")))?;
        let mut events = Vec::new();
        if let Some(error) = chunk.get("error").filter(|error| error.is_object()) {
            let text = |field: &str| string(error, field).to_owned();
            events.push(Event::Failure { kind: text("type"), message: text("message") });
            return Ok(events);
        }
        let choices = chunk.get("choices").and_then(Value::as_array).into_iter().flatten();
        let is_first = |choice: &&Value| {
            choice.get("index").and_then(Value::as_u64).is_none_or(|index| index == 0)
        };
        for choice in choices.filter(is_first) {
            let delta = choice.get("delta").or(choice.get("message")).and_then(Value::as_object);
            match delta {
                Some(delta) => self.delta(delta, &mut events),
                None => events.extend(filled_text(choice).map(Event::Text)),
            }
            events.extend(end_of(choice).map(Event::End));
        }
        events.extend(chunk.get("usage").and_then(usage_of).map(Event::Usage));
        self.check(&events)?;
        Ok(events)
    }

    /// Checks the number of parts.
    fn check(&mut self, events: &[Event]) -> Result<(), Unreadable> {
        for event in events {
            let kind = Some(discriminant(event));
            let begins = match event {
                Event::Text(_) | Event::Refusal(_) | Event::Reasoning(_) => self.last != kind,
                Event::ToolStart { .. } => true,
                Event::ToolArguments { .. } => false,
                Event::End(_) | Event::Usage(_) | Event::Failure { .. } => continue,
            };
            self.last = kind;
            self.parts = self.parts.saturating_add(usize::from(begins));
        }
        if self.calls.len() > CALLS_MAX {
            return Err(Unreadable(format!("has more than {CALLS_MAX} tool calls")));
        }
        if self.parts > PARTS_MAX {
            return Err(Unreadable(format!("has more than {PARTS_MAX} parts")));
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Map<String, Value>, events: &mut Vec<Event>) {
        events.extend(reasoning_of(delta).map(Event::Reasoning));
        let text = text_of(delta);
        events.extend(Some(text).filter(|text| !text.is_empty()).map(Event::Text));
        events.extend(filled(delta, "refusal").map(|text| Event::Refusal(text.to_owned())));
        let calls = delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
        for call in calls {
            let function = call.get("function").unwrap_or(&Value::Null);
            self.call(
                call.get("index").and_then(Value::as_u64),
                string(call, "id"),
                function,
                events,
            );
        }
        if let Some(function) = delta.get("function_call").filter(|call| call.is_object()) {
            self.call(Some(0), "", function, events);
        }
    }

    /// Reads a part of a tool call. A part with another ID, or without a number but with a name,
    /// begins a call.
    fn call(&mut self, number: Option<u64>, id: &str, function: &Value, events: &mut Vec<Event>) {
        let name = string(function, "name");
        let known = match number {
            Some(number) => self.calls.iter().rposition(|(known, _)| *known == number),
            None if name.is_empty() => self.calls.len().checked_sub(1),
            None => None,
        };
        let continues = |at: &usize| {
            let known = self.calls.get(*at).map(|(_, id)| id.as_str());
            known.is_some_and(|known| id.is_empty() || known.is_empty() || known == id)
        };
        let call = known.filter(continues).unwrap_or_else(|| {
            let call = self.calls.len();
            self.calls.push((number.unwrap_or(u64::MAX), id.to_owned()));
            events.push(Event::ToolStart { call, id: id.to_owned(), name: name.to_owned() });
            call
        });
        let text = arguments_of(function);
        if !text.is_empty() {
            events.push(Event::ToolArguments { call, text });
        }
    }
}
