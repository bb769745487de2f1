//! What is kept of an answer where `router.keep_content` asks for it: the messages that the model has
//! written, put together from the events of a stream. What is past the limit is left out, and the
//! message says so.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::meter::{self, Choice};

/// Bytes of text that are kept of one call.
const CONTENT_MAX: usize = 1024 * 1024;
/// Answers, and tool calls of one answer, that are kept.
const ITEMS_MAX: usize = 128;

/// The messages so far.
#[derive(Debug, Default)]
pub struct Content {
    messages: Vec<Message>,
    bytes: usize,
}

#[derive(Debug, Default, Serialize)]
struct Message {
    role: Assistant,
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// Who has written it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
enum Assistant {
    #[default]
    Assistant,
}

#[derive(Debug, Default, Serialize)]
struct ToolCall {
    id: String,
    function: Function,
}

#[derive(Debug, Default, Serialize)]
struct Function {
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
struct ToolPart {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionPart>,
}

#[derive(Deserialize)]
struct FunctionPart {
    name: Option<String>,
    arguments: Option<String>,
}

impl Content {
    /// Adds what a choice says.
    pub fn add(&mut self, choice: &Choice<'_>) {
        let index = choice.index.and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
        let Some(said) = choice.said() else { return };
        let Self { messages, bytes } = self;
        let Some(message) = at(messages, index) else { return };
        add(message, said, bytes);
    }

    /// The message, or all of them where there are several; `None` where nothing came.
    #[must_use]
    pub fn into_json(mut self) -> Option<Box<RawValue>> {
        let json = match self.messages.len() {
            0 => return None,
            1 => to_raw_value(&self.messages.swap_remove(0)),
            _ => to_raw_value(&self.messages),
        };
        json.ok()
    }
}

fn add(message: &mut Message, said: &meter::Message<'_>, bytes: &mut usize) {
    let text = said.content.and_then(|text| serde_json::from_str::<String>(text.get()).ok());
    if let Some(text) = text {
        let is_whole = append(message.content.get_or_insert_default(), &text, bytes);
        message.truncated |= !is_whole;
    }
    let parts = said.tool_calls.and_then(|calls| serde_json::from_str(calls.get()).ok());
    let parts: Vec<ToolPart> = parts.unwrap_or_default();
    for (place, part) in parts.into_iter().enumerate() {
        let Some(call) = at(&mut message.tool_calls, part.index.unwrap_or(place)) else {
            message.truncated = true;
            continue;
        };
        let function = part.function;
        let (name, arguments) = function.map_or((None, None), |part| (part.name, part.arguments));
        let texts = [
            (&mut call.id, part.id),
            (&mut call.function.name, name),
            (&mut call.function.arguments, arguments),
        ];
        for (to, text) in texts {
            message.truncated |= !append(to, text.as_deref().unwrap_or_default(), bytes);
        }
    }
}

/// The item of that number, made with those before it where it is new; `None` past the limit.
fn at<T: Default>(items: &mut Vec<T>, index: usize) -> Option<&mut T> {
    if index >= ITEMS_MAX {
        return None;
    }
    while items.len() <= index {
        items.push(T::default());
    }
    items.get_mut(index)
}

/// Adds a text as a whole, or nothing of it where it is too long; whether it was added.
fn append(to: &mut String, text: &str, bytes: &mut usize) -> bool {
    let sum = bytes.saturating_add(text.len());
    if sum > CONTENT_MAX {
        return false;
    }
    *bytes = sum;
    to.push_str(text);
    true
}

#[cfg(test)]
mod tests {
    use super::super::meter::Meter;
    use super::*;

    fn kept(events: &[&str]) -> Option<String> {
        let mut meter = Meter::new(0, true);
        for event in events {
            meter.event(event.as_bytes()).unwrap();
        }
        meter.take_content().map(|json| json.get().to_owned())
    }

    #[test]
    fn content_is_put_together_from_stream_events() {
        let said = kept(&[
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"He"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"y"}}]}"#,
        ]);
        assert_eq!(said.as_deref(), Some(r#"{"role":"assistant","content":"Hey"}"#));
        assert_eq!(kept(&[r#"{"choices":[]}"#]), None);
    }

    #[test]
    fn content_joins_tool_calls_by_index_and_keeps_each_choice() {
        let said = kept(&[
            r#"{"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"a\""}}]}}]}"#,
            r#"{"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}}]}"#,
        ]);
        let expected = r#"[{"role":"assistant","content":null},{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"a\":1}"}}]}]"#;
        assert_eq!(said.as_deref(), Some(expected));
    }

    #[test]
    fn content_past_the_limit_is_marked() {
        let long = "x".repeat(CONTENT_MAX);
        let event = |text: &str| format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#);
        let said = kept(&[&event(&long), &event("y")]).unwrap();
        assert!(said.ends_with(r#"x","truncated":true}"#), "{}", &said[said.len() - 40..]);
    }
}
