//! Writes a request as a chat completion.

use serde_json::{Map, Value, json};

use super::REASONING_FIELDS;
use crate::{
    Detail, Effort, Format, Image, Message, Part, Reasoning, Request, Role, Thinking, Tool,
    ToolCall, ToolChoice, ToolChoice as Choice, Verbosity,
};

/// The name of a schema that has none.
const FORMAT_NAME: &str = "answer";

/// The kind of server that runs the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelServer {
    /// This service's own, which passes `chat_template_kwargs` to the model's template.
    Own,
    /// Any other, which may reject fields that OpenAI does not define.
    Other,
}

/// Writes the JSON of a request.
#[must_use]
pub fn write(request: &Request, server: ModelServer) -> Value {
    let mut fields = Map::new();
    fields.insert("model".to_owned(), request.model.as_str().into());
    let messages = request.messages.iter().flat_map(message).collect();
    fields.insert("messages".to_owned(), Value::Array(messages));
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    let has_tools = !request.tools.is_empty();
    set("tools", has_tools.then(|| request.tools.iter().map(tool).collect()));
    set("tool_choice", request.tool_choice.as_ref().and_then(|one| choice(one, has_tools)));
    set("parallel_tool_calls", request.parallel_calls.filter(|_| has_tools).map(Value::from));
    set("response_format", request.format.as_ref().map(format));
    set("verbosity", request.verbosity.map(verbosity));
    set("max_tokens", request.token_limit.map(Value::from));
    set("temperature", request.temperature.map(Value::from));
    set("top_p", request.top_p.map(Value::from));
    set("top_k", request.top_k.map(Value::from));
    set("stop", (!request.stops.is_empty()).then(|| request.stops.clone().into()));
    set("reasoning_effort", effort(request.thinking));
    set("user", request.user.as_deref().map(Value::from));
    let thinks = match request.thinking {
        Thinking::On(effort) => Some(effort != Some(Effort::None)),
        Thinking::Off => Some(false),
        Thinking::Unset => None,
    };
    if let Some(thinks) = thinks.filter(|_| server == ModelServer::Own) {
        set("chat_template_kwargs", Some(json!({"enable_thinking": thinks})));
    }
    if request.is_stream {
        set("stream", Some(true.into()));
        set("stream_options", Some(json!({"include_usage": true})));
    }
    Value::Object(fields)
}

fn effort(thinking: Thinking) -> Option<Value> {
    let Thinking::On(Some(effort)) = thinking else { return None };
    let word = match effort {
        Effort::None => "none",
        Effort::Minimal => "minimal",
        Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High => "high",
        Effort::Xhigh => "xhigh",
    };
    Some(word.into())
}

fn verbosity(verbosity: Verbosity) -> Value {
    match verbosity {
        Verbosity::Low => "low".into(),
        Verbosity::Medium => "medium".into(),
        Verbosity::High => "high".into(),
    }
}

fn tool(tool: &Tool) -> Value {
    let mut function = json!({"name": tool.name, "parameters": tool.parameters});
    if let Some(fields) = function.as_object_mut() {
        if let Some(description) = &tool.description {
            fields.insert("description".to_owned(), description.as_str().into());
        }
        if let Some(is_strict) = tool.is_strict {
            fields.insert("strict".to_owned(), is_strict.into());
        }
    }
    json!({"type": "function", "function": function})
}

/// Servers reject a choice without tools. One that has no effect is left out.
fn choice(choice: &ToolChoice, has_tools: bool) -> Option<Value> {
    match choice {
        Choice::Auto | Choice::None if !has_tools => None,
        Choice::Auto => Some("auto".into()),
        Choice::None => Some("none".into()),
        Choice::Required => Some("required".into()),
        Choice::Named(name) => Some(json!({"type": "function", "function": {"name": name}})),
    }
}

fn format(format: &Format) -> Value {
    let Format::JsonSchema { name, description, schema, is_strict } = format else {
        return json!({"type": "json_object"});
    };
    let mut format = json!({"name": name.as_deref().unwrap_or(FORMAT_NAME), "schema": schema});
    if let Some(fields) = format.as_object_mut() {
        if let Some(description) = description {
            fields.insert("description".to_owned(), description.as_str().into());
        }
        if let Some(is_strict) = is_strict {
            fields.insert("strict".to_owned(), (*is_strict).into());
        }
    }
    json!({"type": "json_schema", "json_schema": format})
}

/// Returns the messages that express a message. Results of tools are messages of their own, which
/// directly follow the calls; only a user's message may have images, so those of results follow in
/// one.
fn message(message: &Message) -> Vec<Value> {
    let mut written = Vec::new();
    match message.role {
        Role::System => {
            let texts: Vec<&str> = message.parts.iter().filter_map(text_of).collect();
            written.push(json!({"role": "system", "content": texts.join("\n\n")}));
        }
        Role::User => {
            let mut rest = Vec::new();
            for part in &message.parts {
                match part {
                    Part::ToolResult { id, parts, is_error } => {
                        written.push(result(id, parts, *is_error));
                        images_of_result(id, parts, &mut rest);
                    }
                    Part::Text(_) | Part::Refusal(_) | Part::Image(_) => {}
                    Part::ToolCall(_) | Part::Reasoning(_) => {}
                }
            }
            rest.extend(message.parts.iter().filter_map(plain));
            if !rest.is_empty() || written.is_empty() {
                written.push(json!({"role": "user", "content": content(rest)}));
            }
        }
        Role::Assistant => written.push(assistant(&message.parts)),
    }
    written
}

fn text_of(part: &Part) -> Option<&str> {
    match part {
        Part::Text(text) => Some(text),
        Part::Image(_)
        | Part::ToolCall(_)
        | Part::ToolResult { .. }
        | Part::Reasoning(_)
        | Part::Refusal(_) => None,
    }
}

/// Returns a text or an image as a part of a user's message.
fn plain(part: &Part) -> Option<Value> {
    match part {
        Part::Text(text) => Some(json!({"type": "text", "text": text})),
        Part::Image(Image::Url { url, detail }) => {
            let mut image = json!({"url": url});
            if let (Some(fields), Some(detail)) = (image.as_object_mut(), detail) {
                let word = match detail {
                    Detail::Low => "low",
                    Detail::High => "high",
                    Detail::Auto => "auto",
                };
                fields.insert("detail".to_owned(), word.into());
            }
            Some(json!({"type": "image_url", "image_url": image}))
        }
        Part::Image(Image::Data { media_type, base64 }) => {
            let url = ["data:", media_type, ";base64,", base64].concat();
            Some(json!({"type": "image_url", "image_url": {"url": url}}))
        }
        Part::ToolCall(_) | Part::ToolResult { .. } | Part::Reasoning(_) | Part::Refusal(_) => None,
    }
}

/// Returns the content of a message: a string for one text, which every server understands.
fn content(mut parts: Vec<Value>) -> Value {
    match parts.as_mut_slice() {
        [] => "".into(),
        [only] if only.get("text").is_some() => {
            only.get_mut("text").map(Value::take).unwrap_or_default()
        }
        _ => Value::Array(parts),
    }
}

fn result(id: &str, parts: &[Part], is_error: bool) -> Value {
    let texts: Vec<&str> = parts.iter().filter_map(text_of).collect();
    let mut text = texts.join("\n\n");
    if is_error {
        text.insert_str(0, if text.is_empty() { "Error" } else { "Error: " });
    }
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

fn images_of_result(id: &str, parts: &[Part], rest: &mut Vec<Value>) {
    let images = parts.iter().filter(|part| matches!(part, Part::Image(_)));
    let images: Vec<Value> = images.filter_map(plain).collect();
    if !images.is_empty() {
        let text = format!("Images of the tool result {id}:");
        rest.push(json!({"type": "text", "text": text}));
        rest.extend(images);
    }
}

fn assistant(parts: &[Part]) -> Value {
    let mut text = String::new();
    let mut refusal = String::new();
    let mut calls = Vec::new();
    let mut fields = Map::new();
    fields.insert("role".to_owned(), "assistant".into());
    for part in parts {
        match part {
            Part::Text(said) => text.push_str(said),
            Part::Refusal(said) => refusal.push_str(said),
            Part::ToolCall(call) => calls.push(tool_call(call)),
            Part::Reasoning(reasoning) => add_reasoning(&mut fields, reasoning),
            Part::Image(_) | Part::ToolResult { .. } => {}
        }
    }
    let has_text = !text.is_empty() || (calls.is_empty() && refusal.is_empty());
    fields.insert("content".to_owned(), if has_text { text.into() } else { Value::Null });
    if !refusal.is_empty() {
        fields.insert("refusal".to_owned(), refusal.into());
    }
    if !calls.is_empty() {
        fields.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    Value::Object(fields)
}

fn tool_call(call: &ToolCall) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

/// Returns reasoning to the model that wrote it, in the field in which it came. The reasoning of
/// other models is left out, as their own servers do: many servers reject the field.
fn add_reasoning(fields: &mut Map<String, Value>, reasoning: &Reasoning) {
    let field = reasoning.signature.as_deref();
    let Some(field) = field.filter(|field| REASONING_FIELDS.contains(field)) else { return };
    match fields.get_mut(field) {
        Some(Value::String(text)) => text.push_str(&reasoning.text),
        _ => {
            fields.insert(field.to_owned(), reasoning.text.as_str().into());
        }
    }
}
