//! The attributes of OpenTelemetry's conventions for generative AI that describe the request and
//! the answer of a chat call. Messages are exported only if the configuration enables them.

use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

use super::span::Span;
use crate::calls::Facts;
use orrery_domain::raw_object::RawObject;

/// Maximum size of a request's messages in a span, in bytes; older messages are left out.
const MESSAGES_MAX: usize = 64 * 1024;
/// Maximum length of a text, in characters; the rest is cut off.
const TEXT_MAX: usize = 8 * 1024;
/// Request parameters that are numbers, and their attributes.
const NUMBERS: [(&str, &str); 4] = [
    ("temperature", "gen_ai.request.temperature"),
    ("top_p", "gen_ai.request.top_p"),
    ("frequency_penalty", "gen_ai.request.frequency_penalty"),
    ("presence_penalty", "gen_ai.request.presence_penalty"),
];
/// Request parameters that are whole numbers, and their attributes.
const WHOLE: [(&str, &str); 3] = [
    ("max_tokens", "gen_ai.request.max_tokens"),
    ("max_completion_tokens", "gen_ai.request.max_tokens"),
    ("seed", "gen_ai.request.seed"),
];

/// Adds the attributes of a call to its span. Adds the messages only if `has_content` is set.
pub(super) fn describe(span: &mut Span, facts: &Facts, has_content: bool) {
    let request: RawObject = serde_json::from_slice(&facts.request).unwrap_or_default();
    for (field, attribute) in NUMBERS {
        if let Some(number) = request.value::<f64>(field) {
            span.set(attribute, number);
        }
    }
    for (field, attribute) in WHOLE {
        if let Some(number) = request.value::<i64>(field) {
            span.set(attribute, number);
        }
    }
    if !facts.finish_reasons.is_empty() {
        span.set("gen_ai.response.finish_reasons", facts.finish_reasons.clone());
    }
    if !has_content {
        return;
    }
    if let Some(messages) = request.value::<Vec<Box<RawValue>>>("messages") {
        span.set("gen_ai.input.messages", newest(&messages).to_string());
    } else if let Some(prompt) = request.value::<String>("prompt") {
        let asked = json!([{"role": "user", "parts": [text(&prompt)]}]);
        span.set("gen_ai.input.messages", asked.to_string());
    }
    if let Some(answer) = &facts.answer {
        let answers = match serde_json::from_str(answer.get()) {
            Ok(Json::Array(answers)) => answers,
            Ok(answer) => vec![answer],
            Err(_unreadable) => Vec::new(),
        };
        let mut reasons = facts.finish_reasons.iter();
        let answered = answers.iter().map(|answer| {
            let mut message = message(answer, "assistant");
            let reason = reasons.next().map_or("unknown", String::as_str);
            if let Some(fields) = message.as_object_mut() {
                fields.insert("finish_reason".to_owned(), reason.into());
            }
            message
        });
        span.set("gen_ai.output.messages", answered.collect::<Json>().to_string());
    }
}

/// Returns the newest messages that fit in [`MESSAGES_MAX`].
fn newest(messages: &[Box<RawValue>]) -> Json {
    let mut bytes = 0_usize;
    let mut kept: Vec<Json> = Vec::new();
    for raw in messages.iter().rev() {
        let Ok(parsed) = serde_json::from_str::<Json>(raw.get()) else { continue };
        let message = message(&parsed, "user");
        bytes = bytes.saturating_add(message.to_string().len());
        if bytes > MESSAGES_MAX {
            break;
        }
        kept.push(message);
    }
    kept.reverse();
    kept.into()
}

/// Converts a message from OpenAI's format.
fn message(message: &Json, default_role: &str) -> Json {
    let role = match message["role"].as_str().unwrap_or(default_role) {
        "developer" => "system",
        "function" => "tool",
        role => role,
    };
    let content = &message["content"];
    let mut parts: Vec<Json> = Vec::new();
    if role == "tool" {
        let id = &message["tool_call_id"];
        let response = content.as_str().map_or_else(|| cut(&content.to_string()), cut);
        parts.push(json!({"type": "tool_call_response", "id": id, "response": response}));
    } else {
        match content {
            Json::String(said) => parts.push(text(said)),
            Json::Array(listed) => parts.extend(listed.iter().map(part)),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_) => {}
        }
    }
    if let Some(refusal) = message["refusal"].as_str() {
        parts.push(text(refusal));
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().map(cut);
        let (id, name) = (&call["id"], &function["name"]);
        parts.push(json!({"type": "tool_call", "id": id, "name": name, "arguments": arguments}));
    }
    json!({"role": role, "parts": parts})
}

/// Converts a part of a message. An image, audio or a file is replaced by its type.
fn part(part: &Json) -> Json {
    match (part["text"].as_str(), part["type"].as_str()) {
        (Some(said), _) => text(said),
        (None, kind) => text(&format!("[{}]", kind.unwrap_or("unknown"))),
    }
}

fn text(said: &str) -> Json {
    json!({"type": "text", "content": cut(said)})
}

fn cut(said: &str) -> String {
    let end = said.char_indices().nth(TEXT_MAX).map(|(end, _)| end);
    match end.and_then(|end| said.get(..end)) {
        Some(begin) => format!("{begin}…"),
        None => said.to_owned(),
    }
}
