//! Reads a chat completion request.

use serde_json::{Map, Value};

use super::super::{
    Detail, Effort, Format, Image, Message, Part, Request, Role, Thinking, Tool, ToolCall,
    ToolChoice, Unreadable, Verbosity,
};

/// Reads the JSON of a request whose fields the router has checked. Fields that no other format has
/// are ignored.
///
/// # Errors
/// [`Unreadable`] for what other formats cannot express: several answers, and content other than
/// texts and images.
pub fn read(body: &Value) -> Result<Request, Unreadable> {
    if number(body, "n").is_some_and(|answers| answers > 1) {
        return Err(unreadable("n above 1"));
    }
    let messages = body.get("messages").and_then(Value::as_array).into_iter().flatten();
    let limit = number(body, "max_completion_tokens").or_else(|| number(body, "max_tokens"));
    let float = |name: &str| body.get(name).and_then(Value::as_f64);
    let text = |name: &str| body.get(name).and_then(Value::as_str);
    let top_k = number(body, "top_k").and_then(|top_k| u32::try_from(top_k).ok());
    Ok(Request {
        model: string(body, "model"),
        messages: messages.map(message).collect::<Result<_, _>>()?,
        tools: tools(body)?,
        tool_choice: body.get("tool_choice").and_then(choice),
        parallel_calls: body.get("parallel_tool_calls").and_then(Value::as_bool),
        format: body.get("response_format").and_then(format),
        verbosity: match text("verbosity") {
            Some("low") => Some(Verbosity::Low),
            Some("medium") => Some(Verbosity::Medium),
            Some("high") => Some(Verbosity::High),
            Some(_) | None => None,
        },
        token_limit: limit,
        temperature: float("temperature"),
        top_p: float("top_p"),
        top_k,
        stops: match body.get("stop") {
            Some(Value::String(stop)) => vec![stop.clone()],
            Some(Value::Array(stops)) => {
                stops.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        },
        thinking: text("reasoning_effort").map_or(Thinking::Unset, thinking),
        is_stream: body.get("stream").and_then(Value::as_bool).unwrap_or(false),
        user: text("user").map(str::to_owned),
    })
}

fn unreadable(what: &str) -> Unreadable {
    Unreadable(format!("cannot be requested: its server does not support {what}"))
}

fn string(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(value: &Value, field: &str) -> Option<u64> {
    value.get(field).and_then(Value::as_u64)
}

fn thinking(effort: &str) -> Thinking {
    match effort {
        "none" => Thinking::Off,
        "minimal" => Thinking::On(Some(Effort::Minimal)),
        "low" => Thinking::On(Some(Effort::Low)),
        "medium" => Thinking::On(Some(Effort::Medium)),
        "high" => Thinking::On(Some(Effort::High)),
        "xhigh" => Thinking::On(Some(Effort::Xhigh)),
        _ => Thinking::On(None),
    }
}

fn message(message: &Value) -> Result<Message, Unreadable> {
    let content = message.get("content").unwrap_or(&Value::Null);
    let parts = parts(content)?;
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    Ok(match role {
        "system" | "developer" => Message { role: Role::System, parts },
        "assistant" => Message { role: Role::Assistant, parts: said(message, parts) },
        "tool" | "function" => {
            let id = string(message, "tool_call_id");
            let parts = vec![Part::ToolResult { id, parts, is_error: false }];
            Message { role: Role::User, parts }
        }
        _ => Message { role: Role::User, parts },
    })
}

/// Returns the parts of an assistant's message: its content, refusal and calls.
fn said(message: &Value, mut parts: Vec<Part>) -> Vec<Part> {
    let refusal = message.get("refusal").and_then(Value::as_str);
    parts.extend(refusal.map(|text| Part::Refusal(text.to_owned())));
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    parts.extend(calls.map(|call| {
        let function = call.get("function").unwrap_or(&Value::Null);
        let (id, name) = (string(call, "id"), string(function, "name"));
        Part::ToolCall(ToolCall { id, name, arguments: string(function, "arguments") })
    }));
    parts
}

fn parts(content: &Value) -> Result<Vec<Part>, Unreadable> {
    match content {
        Value::String(text) => Ok(vec![Part::Text(text.clone())]),
        Value::Array(parts) => parts.iter().map(part).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Ok(Vec::new()),
    }
}

fn part(part: &Value) -> Result<Part, Unreadable> {
    match part.get("type").and_then(Value::as_str) {
        Some("text") => Ok(Part::Text(string(part, "text"))),
        Some("refusal") => Ok(Part::Refusal(string(part, "refusal"))),
        Some("image_url") => {
            let image = part.get("image_url").unwrap_or(&Value::Null);
            let detail = match image.get("detail").and_then(Value::as_str) {
                Some("low") => Some(Detail::Low),
                Some("high") => Some(Detail::High),
                Some("auto") => Some(Detail::Auto),
                Some(_) | None => None,
            };
            let url = image.as_str().map_or_else(|| string(image, "url"), str::to_owned);
            Ok(Part::Image(image_of(url, detail)))
        }
        Some(other) => Err(unreadable(&format!("content of the type {other:?}"))),
        None => Err(unreadable("content without a type")),
    }
}

fn image_of(url: String, detail: Option<Detail>) -> Image {
    let data = url.strip_prefix("data:").and_then(|data| data.split_once(";base64,"));
    match data {
        Some((media_type, base64)) => {
            Image::Data { media_type: media_type.to_owned(), base64: base64.to_owned() }
        }
        None => Image::Url { url, detail },
    }
}

fn tools(body: &Value) -> Result<Vec<Tool>, Unreadable> {
    let tools = body.get("tools").and_then(Value::as_array).into_iter().flatten();
    let read = |tool: &Value| {
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
        let function = tool.get("function").filter(|_| kind == "function");
        let function =
            function.ok_or_else(|| unreadable(&format!("tools of the type {kind:?}")))?;
        let fields = function.get("parameters").and_then(Value::as_object);
        Ok(Tool {
            name: string(function, "name"),
            description: function.get("description").and_then(Value::as_str).map(str::to_owned),
            parameters: fields.cloned().unwrap_or_default(),
            is_strict: function.get("strict").and_then(Value::as_bool),
        })
    };
    tools.map(read).collect()
}

fn choice(choice: &Value) -> Option<ToolChoice> {
    match choice.as_str() {
        Some("auto") => Some(ToolChoice::Auto),
        Some("none") => Some(ToolChoice::None),
        Some("required") => Some(ToolChoice::Required),
        Some(_) => None,
        None => Some(ToolChoice::Named(choice.pointer("/function/name")?.as_str()?.to_owned())),
    }
}

fn format(format: &Value) -> Option<Format> {
    match format.get("type")?.as_str()? {
        "json_object" => Some(Format::JsonObject),
        "json_schema" => {
            let schema = format.get("json_schema")?;
            let text = |name: &str| schema.get(name).and_then(Value::as_str).map(str::to_owned);
            let empty = Map::new();
            Some(Format::JsonSchema {
                name: text("name"),
                description: text("description"),
                schema: schema.get("schema").and_then(Value::as_object).unwrap_or(&empty).clone(),
                is_strict: schema.get("strict").and_then(Value::as_bool),
            })
        }
        _ => None,
    }
}
