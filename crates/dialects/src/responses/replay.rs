//! Repeats a stored response as the events of a stream. Each part is sent as one piece, so the
//! numbers of the events are the same each time.

use serde_json::{Map, Value, json};

/// Returns the data of the events; their type is also their name. The last one has the response as
/// it is stored.
#[must_use]
pub fn replay(response: &Value) -> Vec<Value> {
    let mut events = begin(response);
    let output = response.get("output").and_then(Value::as_array);
    for (index, item) in output.into_iter().flatten().enumerate() {
        repeat(item, index, &mut events);
    }
    let (status, error) = (text(response, "status"), response.get("error"));
    if let Some(error) = error.filter(|error| error.is_object()) {
        events.push(json!({
            "type": "error", "code": error.get("code"), "message": error.get("message"),
            "param": null,
        }));
    }
    let last = match status {
        "completed" => "response.completed",
        "incomplete" => "response.incomplete",
        _ => "response.failed",
    };
    events.push(json!({"type": last, "response": response}));
    number(&mut events);
    events
}

/// Returns the first events of a background response that waits. They are also the first ones of
/// [`replay`].
#[must_use]
pub fn replay_begin(response: &Value) -> Vec<Value> {
    let mut events = begin(response);
    events.pop();
    number(&mut events);
    events
}

fn number(events: &mut [Value]) {
    for (number, event) in events.iter_mut().enumerate() {
        if let Some(fields) = event.as_object_mut() {
            fields.insert("sequence_number".to_owned(), number.into());
        }
    }
}

fn begin(response: &Value) -> Vec<Value> {
    let mut fields = response.as_object().cloned().unwrap_or_default();
    for unknown in ["completed_at", "error", "incomplete_details", "usage"] {
        fields.insert(unknown.to_owned(), Value::Null);
    }
    fields.insert("output".to_owned(), json!([]));
    let mut with = |status: &str, name: &str| {
        fields.insert("status".to_owned(), status.into());
        json!({"type": name, "response": fields})
    };
    if response.get("background") == Some(&Value::Bool(true)) {
        return vec![
            with("queued", "response.created"),
            with("queued", "response.queued"),
            with("in_progress", "response.in_progress"),
        ];
    }
    vec![with("in_progress", "response.created"), with("in_progress", "response.in_progress")]
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn repeat(item: &Value, output_index: usize, events: &mut Vec<Value>) {
    let id = text(item, "id");
    let mut empty = item.as_object().cloned().unwrap_or_default();
    empty.insert("status".to_owned(), "in_progress".into());
    let kind = text(item, "type");
    match kind {
        "function_call" => empty.insert("arguments".to_owned(), "".into()),
        _ => empty.insert("content".to_owned(), json!([])),
    };
    events.push(json!({
        "type": "response.output_item.added", "output_index": output_index, "item": empty,
    }));
    if kind == "function_call" {
        let at = |name: &str| json!({"type": name, "item_id": id, "output_index": output_index});
        let arguments = text(item, "arguments");
        let delta = json!({"delta": arguments});
        events.push(with(at("response.function_call_arguments.delta"), delta));
        let done = json!({"name": text(item, "name"), "arguments": arguments});
        events.push(with(at("response.function_call_arguments.done"), done));
    }
    let parts = item.get("content").and_then(Value::as_array);
    for (content_index, part) in parts.into_iter().flatten().enumerate() {
        let at = |name: &str| {
            json!({
                "type": name, "item_id": id, "output_index": output_index,
                "content_index": content_index,
            })
        };
        repeat_part(part, at, events);
    }
    events.push(json!({
        "type": "response.output_item.done", "output_index": output_index, "item": item,
    }));
}

fn repeat_part(part: &Value, at: impl Fn(&str) -> Value, events: &mut Vec<Value>) {
    let (kind, field) = match text(part, "type") {
        "refusal" => ("refusal", "refusal"),
        "reasoning_text" => ("reasoning_text", "text"),
        _ => ("output_text", "text"),
    };
    let said = text(part, field);
    let logprobs = if kind == "output_text" { json!({"logprobs": []}) } else { json!({}) };
    let mut empty = part.as_object().cloned().unwrap_or_default();
    empty.insert(field.to_owned(), "".into());
    events.push(with(at("response.content_part.added"), json!({"part": empty})));
    let delta = with(at(&format!("response.{kind}.delta")), json!({"delta": said}));
    events.push(with(delta, logprobs.clone()));
    let done = Map::from_iter([(field.to_owned(), said.into())]);
    let done = with(at(&format!("response.{kind}.done")), Value::Object(done));
    events.push(with(done, logprobs));
    events.push(with(at("response.content_part.done"), json!({"part": part})));
}

/// Adds fields to an object.
fn with(mut event: Value, more: Value) -> Value {
    if let (Some(fields), Value::Object(more)) = (event.as_object_mut(), more) {
        fields.extend(more);
    }
    event
}
