//! Normalizes the messages of a request before they are passed to a chat template.

use serde_json::{Map, Value};

use super::request::Refusal;

/// Validates and normalizes messages.
///
/// # Errors
/// Names the first invalid message.
pub(super) fn plain(messages: Vec<Value>) -> Result<Vec<Value>, Refusal> {
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(index, message)| plain_one(index, message));
    let mut messages = messages.collect::<Result<Vec<_>, _>>()?;
    name_results(&mut messages);
    Ok(messages)
}

/// Normalizes a message: joins text parts, applies current role names, and removes empty fields.
fn plain_one(index: usize, mut message: Value) -> Result<Value, Refusal> {
    let param = |field: &str| format!("messages[{index}]{field}");
    let Some(fields) = message.as_object_mut() else {
        return Err(Refusal::of(&param(""), "a message must be an object"));
    };
    let role = fields.get("role").and_then(Value::as_str);
    let role = role.ok_or_else(|| Refusal::of(&param(".role"), "a message needs a role"))?;
    let role = match role {
        "developer" => "system",
        "function" => "tool",
        other => other,
    };
    let role = role.to_owned();
    fields.insert("role".to_owned(), role.into());
    // Some clients echo messages with every possible field, so remove empty fields.
    fields.retain(|name, value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty() || name == "content",
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => true,
    });
    let text = text_of(fields.get("content"), &param(".content"))?;
    let refusal = fields.remove("refusal").unwrap_or_default();
    let text = if text.is_empty() { refusal.as_str().unwrap_or_default().to_owned() } else { text };
    fields.insert("content".to_owned(), text.into());
    if let Some(reasoning) = fields.remove("reasoning") {
        fields.entry("reasoning_content").or_insert(reasoning);
    }
    if let Some(call) = fields.remove("function_call") {
        let id = call.get("name").cloned().unwrap_or_default();
        let call = serde_json::json!([{"id": id, "type": "function", "function": call}]);
        fields.entry("tool_calls").or_insert(call);
    }
    // Templates serialize the arguments of a call as JSON, so pass the object instead of its text.
    let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut);
    for (number, call) in calls.into_iter().flatten().enumerate() {
        let place = param(&format!(".tool_calls[{number}].function"));
        let function = call.get_mut("function").and_then(Value::as_object_mut);
        let function =
            function.filter(|function| function.get("name").is_some_and(Value::is_string));
        let function =
            function.ok_or_else(|| Refusal::of(&place, "a call needs a function with a name"))?;
        let arguments = function.entry("arguments").or_insert(Value::Null);
        let text = match arguments {
            Value::Object(_) => continue,
            Value::Null => String::new(),
            Value::String(text) => text.trim().to_owned(),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) => arguments.to_string(),
        };
        let text = if text.is_empty() { "{}".to_owned() } else { text };
        let object = serde_json::from_str::<Value>(&text).ok().filter(Value::is_object);
        *arguments = object.unwrap_or_else(|| text.into());
    }
    Ok(message)
}

/// Returns the text of a message, with its parts joined.
fn text_of(content: Option<&Value>, param: &str) -> Result<String, Refusal> {
    let wrong = || Refusal::of(param, "content must be a string or a list of parts");
    let parts = match content {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        Some(_) => return Err(wrong()),
    };
    let mut text = String::new();
    for part in parts {
        match part.get("type").and_then(Value::as_str) {
            Some("text" | "refusal") => {
                let said = part.get("text").or(part.get("refusal"));
                text.push_str(said.and_then(Value::as_str).ok_or_else(wrong)?);
            }
            Some(kind) => {
                let kind: String = kind.chars().take(40).collect();
                let message = format!("this model only accepts text, not parts of type '{kind}'");
                return Err(Refusal::of(param, message));
            }
            None => return Err(wrong()),
        }
    }
    Ok(text)
}

/// Adds the function name to each tool result, and call ids to function results.
fn name_results(messages: &mut [Value]) {
    let mut names: Map<String, Value> = Map::new();
    for message in messages {
        let calls = message.get("tool_calls").and_then(Value::as_array);
        for call in calls.into_iter().flatten() {
            if let (Some(id), Some(name)) = (call["id"].as_str(), call.pointer("/function/name")) {
                names.insert(id.to_owned(), name.clone());
            }
        }
        let Some(fields) = message.as_object_mut().filter(|one| one["role"] == "tool") else {
            continue;
        };
        let id = fields.get("tool_call_id").or(fields.get("name")).cloned().unwrap_or_default();
        if let Some(name) = id.as_str().and_then(|id| names.get(id)) {
            fields.entry("name").or_insert(name.clone());
        }
        fields.entry("tool_call_id").or_insert(id);
    }
}
