//! Assembles a model's messages from the deltas of a stream: texts are appended, tool calls are
//! matched by index or id, and unknown fields are merged by the same rules.

use serde_json::{Map, Value, json};

use super::said;

/// Maximum number of choices of a request, and of list items in a choice, that are assembled.
const ITEMS_MAX: usize = 128;
/// Size counted for an item or a field in addition to its texts, in bytes.
const VALUE_BYTES: usize = 64;
/// Fields that a message may have in addition to its text.
const CARRIED: [&str; 5] = ["tool_calls", "function_call", "refusal", "images", "audio"];

/// The messages of all choices so far, up to a limit.
#[derive(Debug)]
pub struct Messages {
    messages: Vec<Map<String, Value>>,
    /// Number of bytes left.
    room: usize,
    /// Bytes of all texts, thinking and tool calls received.
    bytes: u64,
}

impl Messages {
    /// Creates an empty set of messages, which may take up to this many bytes.
    #[must_use]
    pub const fn new(bytes_max: usize) -> Self {
        Self { messages: Vec::new(), room: bytes_max, bytes: 0 }
    }

    /// Adds a delta of the choice `index`; returns false if part of it did not fit.
    pub fn add(&mut self, index: usize, mut delta: Map<String, Value>) -> bool {
        if index >= ITEMS_MAX {
            return false;
        }
        self.bytes = self.bytes.saturating_add(said::bytes_of(&delta).unwrap_or(0));
        if self.messages.len() <= index {
            self.messages.resize_with(index.saturating_add(1), Map::new);
        }
        if let Some(content) = delta.get_mut("content")
            && let Some(text) = joined_texts(content)
        {
            *content = text.into();
        }
        let Some(message) = self.messages.get_mut(index) else { return false };
        merge(message, delta, &mut self.room)
    }

    /// Returns the number of bytes that the model has written.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the text of the first choice.
    #[must_use]
    pub fn text(&self) -> &str {
        self.messages.first().map_or("", |message| text_of(message))
    }

    /// Returns each message in the form that clients expect: its role, its text, and further
    /// fields.
    pub fn finish(self) -> impl ExactSizeIterator<Item = Map<String, Value>> {
        self.messages.into_iter().map(|mut message| {
            let content = message.shift_remove("content").unwrap_or(Value::Null);
            let mut finished = Map::new();
            finished.insert("role".to_owned(), json!("assistant"));
            finished.insert("content".to_owned(), content);
            for name in CARRIED {
                let Some(mut value) = message.shift_remove(name) else { continue };
                if !said::is_empty(&value) {
                    drop_indices(&mut value);
                    finished.insert(name.to_owned(), value);
                }
            }
            finished
        })
    }

    /// Returns the output of a prediction: a string, or the message if it has more than text, or a
    /// list if several choices were requested.
    #[must_use]
    pub fn output(self) -> Value {
        let mut outputs: Vec<Value> = self.finish().map(output_of).collect();
        if outputs.len() == 1 { outputs.swap_remove(0) } else { outputs.into() }
    }
}

fn output_of(mut message: Map<String, Value>) -> Value {
    let is_text = message.get("content").is_none_or(|content| !content.is_array());
    if is_text && !CARRIED.iter().any(|name| message.contains_key(*name)) {
        return message.remove("content").filter(Value::is_string).unwrap_or_else(|| json!(""));
    }
    if text_of(&message).is_empty() && is_text {
        message.insert("content".to_owned(), Value::Null);
    }
    message.into()
}

fn text_of(message: &Map<String, Value>) -> &str {
    message.get("content").and_then(Value::as_str).unwrap_or_default()
}

/// Joins the texts of content in parts, without thinking; returns `None` if there are other parts.
fn joined_texts(content: &Value) -> Option<String> {
    let mut text = String::new();
    for part in content.as_array()? {
        match part.get("type").and_then(Value::as_str)? {
            "text" | "output_text" => text.push_str(part.get("text")?.as_str()?),
            "thinking" | "reasoning" => {}
            _ => return None,
        }
    }
    Some(text)
}

/// Takes this many bytes if they are available, and returns whether they were.
fn take(room: &mut usize, bytes: usize) -> bool {
    let left = room.checked_sub(bytes);
    *room = left.unwrap_or(*room);
    left.is_some()
}

/// Merges the fields of a delta; returns false if anything was omitted.
fn merge(into: &mut Map<String, Value>, delta: Map<String, Value>, room: &mut usize) -> bool {
    let mut fits = true;
    for (name, value) in delta {
        if value.is_null() || name.starts_with("reasoning") {
            continue;
        }
        if !into.contains_key(&name) {
            if !take(room, VALUE_BYTES.saturating_add(name.len())) {
                fits = false;
                continue;
            }
            into.insert(name.clone(), empty_like(&value));
        }
        let Some(held) = into.get_mut(&name) else { continue };
        fits &= match (held, value) {
            (Value::String(held), Value::String(more)) => append(&name, held, &more, room),
            (Value::Object(held), Value::Object(more)) => merge(held, more, room),
            (Value::Array(held), Value::Array(more)) => merge_items(held, more, room),
            (held, value) => {
                *held = value;
                true
            }
        };
    }
    fits
}

/// Returns the empty value of the same type.
fn empty_like(value: &Value) -> Value {
    match value {
        Value::String(_) => String::new().into(),
        Value::Array(_) => Vec::<Value>::new().into(),
        Value::Object(_) => Map::new().into(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Value::Null,
    }
}

/// Appends to a string. Names are stored once, because some servers repeat them in each event.
fn append(name: &str, held: &mut String, more: &str, room: &mut usize) -> bool {
    let is_kept = match name {
        "id" | "type" | "role" => !held.is_empty(),
        "name" => held == more,
        _ => false,
    };
    if is_kept {
        return true;
    }
    let fits = take(room, more.len());
    if fits {
        held.push_str(more);
    }
    fits
}

fn merge_items(held: &mut Vec<Value>, items: Vec<Value>, room: &mut usize) -> bool {
    let mut fits = true;
    for item in items {
        let Value::Object(item) = item else {
            let has_room = held.len() < ITEMS_MAX && take(room, item.to_string().len());
            fits &= has_room;
            if has_room {
                held.push(item);
            }
            continue;
        };
        let place =
            held.iter_mut().filter_map(Value::as_object_mut).rfind(|one| goes_on(one, &item));
        if let Some(one) = place {
            fits &= merge(one, item, room);
        } else if held.len() < ITEMS_MAX && take(room, VALUE_BYTES) {
            let mut new = Map::new();
            fits &= merge(&mut new, item, room);
            held.push(new.into());
        } else {
            fits = false;
        }
    }
    fits
}

/// Returns whether an item of a delta continues an earlier item: it has the same index, and no
/// different id. Without an index, an item with an id or a name is a new item.
fn goes_on(begun: &Map<String, Value>, item: &Map<String, Value>) -> bool {
    let text = |fields: &Map<String, Value>, name: &str| {
        fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let (begun_id, id) = (text(begun, "id"), text(item, "id"));
    let is_other = begun_id.is_some() && id.is_some() && begun_id != id;
    let index = item.get("index").and_then(Value::as_u64);
    if is_other || index != begun.get("index").and_then(Value::as_u64) {
        return false;
    }
    let is_named = item.get("function").and_then(|function| function.get("name")).is_some();
    index.is_some() || id.is_some() || (!is_named && item.contains_key("function"))
}

/// Removes the indices that match stream items to each other.
fn drop_indices(value: &mut Value) {
    for item in value.as_array_mut().into_iter().flatten() {
        if let Some(item) = item.as_object_mut() {
            item.shift_remove("index");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_together(deltas: &[Value]) -> Value {
        let mut messages = Messages::new(10_000);
        for delta in deltas {
            assert!(messages.add(0, delta.as_object().unwrap().clone()), "{delta}");
        }
        messages.output()
    }

    fn call(id: &str, name: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    #[test]
    fn messages_without_other_fields_are_texts() {
        for (deltas, expected) in [
            (vec![json!({"role": "assistant", "content": ""})], json!("")),
            (vec![json!({"content": "a"}), json!({"content": "b", "refusal": null})], json!("ab")),
            (vec![json!({"reasoning_content": "hm"}), json!({"content": "b"})], json!("b")),
            (
                vec![
                    json!({"content": [{"type": "thinking", "thinking": [1]},
                    {"type": "text", "text": "a"}]}),
                    json!({"content": "b", "tool_calls": []}),
                ],
                json!("ab"),
            ),
        ] {
            assert_eq!(put_together(&deltas), expected, "{deltas:?}");
        }
    }

    #[test]
    fn messages_carry_refusals_images_and_calls() {
        let parts = |parts: [&str; 2], id: Value| {
            let first = json!({"tool_calls": [{"index": 0, "id": "a", "type": "function",
                "function": {"name": "f", "arguments": parts[0]}}]});
            let second = json!({"tool_calls": [{"index": 0, "id": id, "type": "function",
                "function": {"arguments": parts[1]}}]});
            vec![first, second]
        };
        let one = json!({"role": "assistant", "content": null,
            "tool_calls": [call("a", "f", "{\"x\":1}")]});
        let two = json!({"role": "assistant", "content": null,
            "tool_calls": [call("a", "f", "{}"), call("b", "f", "{}")]});
        let whole = |id: &str, index: Value| {
            let mut call = call(id, "f", "{}");
            call["index"] = index;
            json!({"tool_calls": [call]})
        };
        for (deltas, expected) in [
            (parts(["{\"x\"", ":1}"], Value::Null), &one),
            (parts(["{\"x\"", ":1}"], json!("a")), &one),
            (parts(["{\"x\"", ":1}"], json!("")), &one),
            (vec![whole("a", json!(0)), whole("b", json!(1))], &two),
            (vec![whole("a", json!(0)), whole("b", json!(0))], &two),
            (vec![whole("a", Value::Null), whole("b", Value::Null)], &two),
            (
                vec![json!({"refusal": "I can"}), json!({"refusal": "not"})],
                &json!({"role": "assistant", "content": null, "refusal": "I cannot"}),
            ),
            (
                vec![
                    json!({"content": "Here:"}),
                    json!({"images": [{"type": "image_url",
                    "image_url": {"url": "data:x"}}]}),
                ],
                &json!({"role": "assistant", "content": "Here:", "images": [{"type": "image_url",
                    "image_url": {"url": "data:x"}}]}),
            ),
            (
                vec![json!({"audio": {"id": "q", "data": "AA"}}), json!({"audio": {"data": "BB"}})],
                &json!({"role": "assistant", "content": null, "audio": {"id": "q", "data": "AABB"}}),
            ),
        ] {
            assert_eq!(put_together(&deltas), *expected, "{deltas:?}");
        }
    }

    #[test]
    fn messages_of_several_answers_are_a_list() {
        let mut messages = Messages::new(1000);
        for (index, text) in [(1, "b"), (0, "a"), (1, "c")] {
            assert!(messages.add(index, Map::from_iter([("content".to_owned(), text.into())])));
        }
        assert_eq!(messages.text(), "a");
        assert_eq!(messages.output(), json!(["a", "bc"]));
    }

    #[test]
    fn messages_over_the_limit_are_truncated() {
        let mut messages = Messages::new(200);
        let text = |text: String| Map::from_iter([("content".to_owned(), text.into())]);
        assert!(messages.add(0, text("x".repeat(100))));
        assert!(!messages.add(0, text("y".repeat(100))));
        assert!(!messages.add(ITEMS_MAX, text("y".to_owned())));
        assert_eq!(messages.output().as_str().unwrap().len(), 100);
        let mut messages = Messages::new(100_000);
        let items: Vec<Value> = (0..=ITEMS_MAX).map(|index| json!({"index": index})).collect();
        assert!(!messages.add(0, Map::from_iter([("tool_calls".to_owned(), items.into())])));
    }
}
