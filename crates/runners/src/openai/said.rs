//! Measures the text that a model has written: the bytes of its content, thinking and refusals, and
//! of the names and arguments of its tool calls, without JSON escapes.
//!
//! Roles, ids, indexes and media are not counted. No text is stored. Complete responses, stream
//! events and the deltas of predictions are measured in the same way.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Returns the bytes of text in a response, an event or a delta of OpenAI's API, or `None` if it is
/// not valid JSON.
#[must_use]
pub fn text_bytes(json: &[u8]) -> Option<u64> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    bytes_of(&mut reader).ok()
}

/// Returns the same as [`text_bytes`], for parsed JSON.
///
/// # Errors
/// The deserializer's error.
pub fn bytes_of<'de, D: Deserializer<'de>>(reader: D) -> Result<u64, D::Error> {
    Counter(Place::Fields).deserialize(reader)
}

/// Returns whether a delta contains part of an answer that clients can read. With `is_finished`,
/// also returns true for a delta that ends an empty answer.
#[must_use]
pub fn is_answer(delta: &Map<String, Value>, is_finished: bool) -> bool {
    let is_part = |(name, value): (&String, &Value)| match (name.as_str(), value) {
        ("content" | "refusal" | "reasoning" | "reasoning_content" | "thinking", value) => {
            !is_empty(value) && (value.is_string() || value.is_array())
        }
        ("tool_calls" | "function_call" | "images" | "audio" | "reasoning_details", value) => {
            !is_empty(value)
        }
        _ => false,
    };
    let is_end = || delta.iter().all(|(name, value)| name == "role" || is_empty(value));
    delta.iter().any(is_part) || (is_finished && is_end())
}

/// Returns whether a value is null or empty.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// What is counted at a location in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Fields that contain text.
    Fields,
    /// Fields that contain text, and the text itself.
    Text,
    /// All values, as in the arguments of a call, which some servers send as an object.
    Arguments,
}

/// The kind of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    At(Place),
    /// Thinking, which some servers send under two names; only one of them is counted.
    Thinking,
    Other,
}

impl Field {
    fn named(name: &str) -> Self {
        match name {
            "choices" | "delta" | "message" | "tool_calls" | "function_call" | "function"
            | "custom" | "audio" => Self::At(Place::Fields),
            "content" | "text" | "refusal" | "name" | "transcript" | "summary" => {
                Self::At(Place::Text)
            }
            "reasoning" | "reasoning_content" | "reasoning_details" | "thinking" => Self::Thinking,
            "arguments" | "input" => Self::At(Place::Arguments),
            _ => Self::Other,
        }
    }
}

struct Counter(Place);

impl Counter {
    /// Returns the bytes of a value that is not a string.
    fn scalar(&self, value: &dyn fmt::Display) -> u64 {
        if self.0 == Place::Arguments { length(&value.to_string()) } else { 0 }
    }
}

fn length(text: &str) -> u64 {
    text.len() as u64
}

impl<'de> DeserializeSeed<'de> for Counter {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<u64, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counter {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_bool<E>(self, value: bool) -> Result<u64, E> {
        Ok(self.scalar(&value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<u64, E> {
        Ok(self.scalar(&value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
        Ok(self.scalar(&value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<u64, E> {
        Ok(self.scalar(&value))
    }

    fn visit_str<E>(self, text: &str) -> Result<u64, E> {
        Ok(if self.0 == Place::Fields { 0 } else { length(text) })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<u64, A::Error> {
        let mut bytes = 0_u64;
        while let Some(more) = items.next_element_seed(Self(self.0))? {
            bytes = bytes.saturating_add(more);
        }
        Ok(bytes)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<u64, A::Error> {
        let mut bytes = 0_u64;
        let mut thought = 0_u64;
        while let Some((field, name)) = fields.next_key_seed(Name)? {
            if self.0 == Place::Arguments {
                let value = fields.next_value_seed(Self(Place::Arguments))?;
                bytes = bytes.saturating_add(name).saturating_add(value);
                continue;
            }
            match field {
                Field::At(place) => {
                    bytes = bytes.saturating_add(fields.next_value_seed(Self(place))?);
                }
                Field::Thinking => {
                    thought = thought.max(fields.next_value_seed(Self(Place::Text))?);
                }
                Field::Other => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(bytes.saturating_add(thought))
    }
}

/// Parses a field name into its kind and its length.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = (Field, u64);

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = (Field, u64);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok((Field::named(name), length(name)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deltas_without_readable_parts_are_no_answer() {
        for (delta, is_part, is_end) in [
            (json!({"content": "four"}), true, true),
            (json!({"content": [{"type": "text", "text": "four"}]}), true, true),
            (json!({"role": "assistant", "reasoning_content": "hm"}), true, true),
            (json!({"tool_calls": [{"index": 0}]}), true, true),
            (json!({"images": [{}]}), true, true),
            (json!({}), false, true),
            (json!({"role": "assistant", "content": "", "refusal": null}), false, true),
            (json!({"content": 4}), false, false),
            (json!({"text": "four"}), false, false),
            (json!({"message": {"content": "four"}}), false, false),
        ] {
            let delta = delta.as_object().unwrap();
            assert_eq!((is_answer(delta, false), is_answer(delta, true)), (is_part, is_end));
        }
    }

    #[test]
    fn text_bytes_count_only_what_the_model_writes() {
        for (message, bytes) in [
            (json!({"role": "assistant", "content": "12345"}), 5),
            (json!({"content": "1", "refusal": "23", "name": "4"}), 4),
            (json!({"content": "1", "reasoning": "23", "reasoning_content": "23"}), 3),
            (
                json!({"reasoning_details": [{"type": "reasoning.text", "text": "12"}, {"data": "x"}]}),
                2,
            ),
            (
                json!({"content": [{"type": "text", "text": "12"}, {"type": "thinking",
                "thinking": [{"type": "text", "text": "345"}]}]}),
                5,
            ),
            (
                json!({"tool_calls": [{"index": 0, "id": "call_1", "type": "function",
                "function": {"name": "f", "arguments": "{\"a\":1}"}}]}),
                8,
            ),
            (
                json!({"tool_calls": [{"function": {"name": "f", "arguments": {"ab": [1, true, "c"]}}}]}),
                9,
            ),
            (json!({"tool_calls": [{"custom": {"name": "f", "input": "abc"}}]}), 4),
            (json!({"function_call": {"name": "f", "arguments": "{}"}}), 3),
            (json!({"audio": {"id": "a", "data": "AAAA", "transcript": "12"}}), 2),
            (json!({"images": [{"image_url": {"url": "data:image/png;base64,AAAA"}}]}), 0),
            (json!({"choices": [{"delta": {"content": "12"}}, {"text": "3"}], "id": "x"}), 3),
            (json!("12"), 0),
        ] {
            assert_eq!(text_bytes(message.to_string().as_bytes()), Some(bytes), "{message}");
            assert_eq!(bytes_of(&message).unwrap(), bytes, "{message}");
        }
        assert_eq!(text_bytes(r#"{"content":"\u4e2d\ud83d\ude00\n"}"#.as_bytes()), Some(8));
        assert_eq!(text_bytes(b"{"), None);
        assert_eq!(bytes_of(&Value::Null).unwrap(), 0);
    }
}
