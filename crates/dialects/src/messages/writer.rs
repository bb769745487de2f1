//! Writes a request.

use serde_json::{Map, Value, json};

use crate::{
    Effort, Format, Image, Message, Part, Request, Role, Thinking, Tool, ToolCall, ToolChoice,
};

/// The token limit of a request without one, which the format requires.
const TOKEN_LIMIT: u64 = 4096;
/// Smallest budget of reasoning that the format allows, in tokens.
const BUDGET_MIN: u64 = 1024;
/// What asks for a JSON object, for which the format has no field.
const JSON_ONLY: &str = "Answer with one JSON object and nothing else.";

/// Writes the JSON of a request.
#[must_use]
pub fn write(request: &Request) -> Value {
    let mut fields = Map::new();
    fields.insert("model".to_owned(), request.model.as_str().into());
    let budget = budget(request);
    let limit = match (request.token_limit, budget) {
        (Some(limit), _) => limit,
        (None, budget) => TOKEN_LIMIT.saturating_add(budget.unwrap_or(0)),
    };
    fields.insert("max_tokens".to_owned(), limit.into());
    fields.insert("messages".to_owned(), messages(&request.messages));
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    set("system", system(request));
    let has_tools = !request.tools.is_empty();
    set("tools", has_tools.then(|| request.tools.iter().map(tool).collect()));
    set("tool_choice", if has_tools { choice(request) } else { None });
    // Reasoning excludes other samplers than the default.
    let is_sampled = budget.is_none();
    let temperature = request.temperature.filter(|_| is_sampled).map(|one| one.min(1.0));
    set("temperature", temperature.map(Value::from));
    set("top_p", request.top_p.filter(|_| is_sampled).map(Value::from));
    set("top_k", request.top_k.filter(|_| is_sampled).map(Value::from));
    set("stop_sequences", (!request.stops.is_empty()).then(|| request.stops.clone().into()));
    set("thinking", budget.map(|budget| json!({"type": "enabled", "budget_tokens": budget})));
    if let Some(Format::JsonSchema { schema, .. }) = &request.format {
        let format = json!({"type": "json_schema", "schema": schema});
        set("output_config", Some(json!({"format": format})));
    }
    set("metadata", request.user.as_ref().map(|user| json!({"user_id": user})));
    set("stream", request.is_stream.then(|| true.into()));
    Value::Object(fields)
}

/// Returns the budget of reasoning in tokens. Reasoning is left out where the format excludes it: if
/// a tool must be called, and after tool calls, whose own reasoning other formats do not return.
fn budget(request: &Request) -> Option<u64> {
    let Thinking::On(effort) = request.thinking else { return None };
    let budget = match effort {
        Some(Effort::None) => return None,
        Some(Effort::Minimal | Effort::Low) => BUDGET_MIN,
        Some(Effort::Medium) | None => 4096,
        Some(Effort::High | Effort::Xhigh) => 12_288,
    };
    let must_call =
        matches!(request.tool_choice, Some(ToolChoice::Required | ToolChoice::Named(_)));
    let is_call = |part: &Part| matches!(part, Part::ToolCall(_));
    if must_call || request.messages.iter().any(|message| message.parts.iter().any(is_call)) {
        return None;
    }
    let most = request.token_limit.map_or(u64::MAX, |limit| limit.saturating_sub(1));
    (most >= BUDGET_MIN).then(|| budget.min(most))
}

/// Returns the texts of all system messages.
fn system(request: &Request) -> Option<Value> {
    let messages = request.messages.iter().filter(|message| message.role == Role::System);
    let mut texts: Vec<&str> =
        messages.flat_map(|message| &message.parts).filter_map(text).collect();
    if request.format == Some(Format::JsonObject) {
        texts.push(JSON_ONLY);
    }
    (!texts.is_empty()).then(|| texts.join("\n\n").into())
}

fn text(part: &Part) -> Option<&str> {
    match part {
        Part::Text(text) | Part::Refusal(text) => Some(text).filter(|text| !text.trim().is_empty()),
        Part::Image(_) | Part::ToolCall(_) | Part::ToolResult { .. } | Part::Reasoning(_) => None,
    }
    .map(String::as_str)
}

/// Returns the messages. Consecutive messages of one author are joined, because the results of tool
/// calls must be in one message.
fn messages(messages: &[Message]) -> Value {
    let mut written: Vec<(Role, Vec<Value>)> = Vec::new();
    for message in messages.iter().filter(|message| message.role != Role::System) {
        let blocks: Vec<Value> = message.parts.iter().filter_map(block).collect();
        if blocks.is_empty() {
            continue;
        }
        match written.last_mut().filter(|(role, _)| *role == message.role) {
            Some((_, earlier)) => earlier.extend(blocks),
            None => written.push((message.role, blocks)),
        }
    }
    let last = written.len();
    let with_role = |(index, (role, mut blocks)): (usize, (Role, Vec<Value>))| {
        let role = if role == Role::Assistant { "assistant" } else { "user" };
        if role == "assistant" && index + 1 == last {
            // A beginning of the answer must not end with white space.
            if let Some(Value::String(text)) = blocks.last_mut().and_then(|it| it.get_mut("text")) {
                text.truncate(text.trim_end().len());
            }
        }
        json!({"role": role, "content": blocks})
    };
    Value::Array(written.into_iter().enumerate().map(with_role).collect())
}

fn block(part: &Part) -> Option<Value> {
    match part {
        Part::Text(_) | Part::Refusal(_) => Some(json!({"type": "text", "text": text(part)?})),
        Part::Image(image) => Some(image_block(image)),
        Part::ToolCall(ToolCall { id, name, arguments }) => {
            let input: Map<String, Value> = serde_json::from_str(arguments).unwrap_or_default();
            Some(json!({"type": "tool_use", "id": id, "name": name, "input": input}))
        }
        Part::ToolResult { id, parts, is_error } => {
            let content: Vec<Value> = parts.iter().filter_map(block).collect();
            let mut result = json!({"type": "tool_result", "tool_use_id": id, "content": content});
            if let (true, Some(fields)) = (*is_error, result.as_object_mut()) {
                fields.insert("is_error".to_owned(), true.into());
            }
            Some(result)
        }
        Part::Reasoning(_) => None,
    }
}

fn image_block(image: &Image) -> Value {
    let source = match image {
        Image::Url { url, .. } => json!({"type": "url", "url": url}),
        Image::Data { media_type, base64 } => {
            json!({"type": "base64", "media_type": media_type, "data": base64})
        }
    };
    json!({"type": "image", "source": source})
}

fn tool(tool: &Tool) -> Value {
    let mut schema = tool.parameters.clone();
    schema.entry("type").or_insert_with(|| "object".into());
    let mut written = json!({"name": tool.name, "input_schema": schema});
    if let (Some(description), Some(fields)) = (&tool.description, written.as_object_mut()) {
        fields.insert("description".to_owned(), description.as_str().into());
    }
    written
}

fn choice(request: &Request) -> Option<Value> {
    let is_single = request.parallel_calls == Some(false);
    let mut choice = match &request.tool_choice {
        Some(ToolChoice::None) => return Some(json!({"type": "none"})),
        Some(ToolChoice::Required) => json!({"type": "any"}),
        Some(ToolChoice::Named(name)) => json!({"type": "tool", "name": name}),
        Some(ToolChoice::Auto) => json!({"type": "auto"}),
        None if is_single => json!({"type": "auto"}),
        None => return None,
    };
    if let (Some(parallel), Some(fields)) = (request.parallel_calls, choice.as_object_mut()) {
        fields.insert("disable_parallel_tool_use".to_owned(), (!parallel).into());
    }
    Some(choice)
}
