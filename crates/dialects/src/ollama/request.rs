//! Reads a request. Everything that the schema of the request allows can be expressed, so this never
//! fails.

use std::collections::VecDeque;

use orrery_wire::chat::Texts;
use orrery_wire::ollama::{
    self as wire, ChatRequest, Format, FormatName, GenerateRequest, KeepAlive, Options, Think,
};
use serde_json::{Map, Value, json};

use crate::{Effort, Image, Message, Part, Reasoning, Request, Role, Thinking, Tool, ToolCall};

/// The field in which most servers expect reasoning.
const REASONING_FIELD: &str = "reasoning_content";
/// The beginnings of images in base64, and their types.
const IMAGE_TYPES: [(&str, &str); 4] = [
    ("/9j/", "image/jpeg"),
    ("iVBORw0KGgo", "image/png"),
    ("R0lGOD", "image/gif"),
    ("UklGR", "image/webp"),
];

/// A request, with the fields that only chat completions have.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    pub request: Request,
    /// Fields to add to the chat completion.
    pub more: Map<String, Value>,
}

/// Returns whether the client does not want to see the reasoning.
#[must_use]
pub fn is_thinking_hidden(think: Option<Think>) -> bool {
    matches!(think, Some(Think::Flag(false)))
}

/// Reads a conversation.
#[must_use]
pub fn read_chat(request: ChatRequest) -> Read {
    let ChatRequest { model, messages, tools, format, options, stream, think, keep_alive: _ } =
        request;
    let common = common(model, format, options.unwrap_or_default(), stream, think);
    let mut pending = Pending::default();
    let messages = messages.into_iter().flatten().map(|one| message(one, &mut pending));
    let request = Request {
        messages: messages.collect(),
        tools: tools.into_iter().flatten().map(tool).collect(),
        ..common.request
    };
    Read { request, ..common }
}

/// Returns whether the client wants to unload the model.
#[must_use]
pub fn unloads(keep_alive: Option<&KeepAlive>) -> bool {
    match keep_alive {
        Some(KeepAlive::Seconds(seconds)) => *seconds == 0.0,
        Some(KeepAlive::Text(text)) => ["0", "0s", "0m"].contains(&text.as_str()),
        None => false,
    }
}

/// Writes a prompt that the model continues without a chat template, as a text completion.
#[must_use]
pub fn write_completion(request: GenerateRequest) -> Value {
    let GenerateRequest { model, prompt, suffix, options, stream, .. } = request;
    let common = common(model, None, options.unwrap_or_default(), stream, None);
    let Read { request, more: mut fields } = common;
    let stops = request.stops;
    let set = [
        ("model", Some(request.model.into())),
        ("prompt", Some(prompt.unwrap_or_default().into())),
        ("suffix", suffix.filter(|suffix| !suffix.is_empty()).map(Value::from)),
        ("max_tokens", request.token_limit.map(Value::from)),
        ("temperature", request.temperature.map(Value::from)),
        ("top_p", request.top_p.map(Value::from)),
        ("top_k", request.top_k.map(Value::from)),
        ("stop", (!stops.is_empty()).then(|| stops.into())),
        ("stream", request.is_stream.then(|| true.into())),
        ("stream_options", request.is_stream.then(|| json!({"include_usage": true}))),
    ];
    fields.extend(set.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    Value::Object(fields)
}

/// Reads a prompt.
#[must_use]
pub fn read_generate(request: GenerateRequest) -> Read {
    let GenerateRequest {
        model,
        prompt,
        system,
        images,
        format,
        options,
        stream,
        think,
        suffix: _,
        raw: _,
        keep_alive: _,
    } = request;
    let common = common(model, format, options.unwrap_or_default(), stream, think);
    let system = system.filter(|system| !system.is_empty());
    let system = system.map(|text| Message { role: Role::System, parts: vec![Part::Text(text)] });
    let images = images.into_iter().flatten().map(image);
    let parts = prompt.map(Part::Text).into_iter().chain(images).collect();
    let prompt = Message { role: Role::User, parts };
    let messages = system.into_iter().chain([prompt]).collect();
    Read { request: Request { messages, ..common.request }, ..common }
}

fn common(
    model: String,
    format: Option<Format>,
    options: Options,
    stream: Option<bool>,
    think: Option<Think>,
) -> Read {
    let mut more = Map::new();
    let format = match format {
        None | Some(Format::Name(FormatName::Text)) => None,
        Some(Format::Name(FormatName::Json)) => Some(crate::Format::JsonObject),
        Some(Format::Schema(schema)) => Some(crate::Format::JsonSchema {
            name: None,
            description: None,
            schema,
            is_strict: Some(true),
        }),
    };
    let numbers = [
        ("seed", options.seed.map(Value::from)),
        ("presence_penalty", options.presence_penalty.map(Value::from)),
        ("frequency_penalty", options.frequency_penalty.map(Value::from)),
    ];
    let set = numbers.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    more.extend(set);
    let stops = match options.stop {
        None => Vec::new(),
        Some(Texts::One(text)) => vec![text],
        Some(Texts::Several(texts)) => texts,
    };
    let request = Request {
        model,
        format,
        // Zero and negative values set no limit.
        token_limit: options
            .num_predict
            .and_then(|limit| u64::try_from(limit).ok())
            .filter(|n| *n > 0),
        temperature: options.temperature,
        top_p: options.top_p,
        top_k: options.top_k,
        stops,
        thinking: match think {
            None => Thinking::Unset,
            Some(Think::Flag(false)) => Thinking::Off,
            Some(Think::Flag(true)) => Thinking::On(None),
            Some(Think::Effort(wire::Effort::Low)) => Thinking::On(Some(Effort::Low)),
            Some(Think::Effort(wire::Effort::Medium)) => Thinking::On(Some(Effort::Medium)),
            Some(Think::Effort(wire::Effort::High)) => Thinking::On(Some(Effort::High)),
        },
        is_stream: stream.unwrap_or(true),
        ..Request::default()
    };
    Read { request, more }
}

fn tool(tool: wire::Tool) -> Tool {
    let wire::ToolFunction { name, description, parameters } = tool.function;
    let parameters = parameters.unwrap_or_default();
    Tool { name, description, parameters, is_strict: None }
}

/// The calls without a result: IDs and names. Results name their calls only by the order, or by the
/// tool.
#[derive(Debug, Default)]
struct Pending {
    calls: VecDeque<(String, String)>,
    made: usize,
}

impl Pending {
    /// Returns the ID of a new call.
    fn add(&mut self, id: Option<String>, name: &str) -> String {
        self.made += 1;
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{}", self.made));
        self.calls.push_back((id.clone(), name.to_owned()));
        id
    }

    /// Returns the ID of the call that a result is for.
    fn take(&mut self, id: Option<String>, name: Option<&str>) -> String {
        let at = match (&id, name) {
            (Some(id), _) => self.calls.iter().position(|(known, _)| known == id),
            (None, Some(name)) => self.calls.iter().position(|(_, known)| known == name),
            (None, None) => None,
        };
        let found = self.calls.remove(at.unwrap_or(0)).map(|(found, _)| found);
        id.or(found).unwrap_or_else(|| format!("call_{}", self.made))
    }
}

fn message(message: wire::Message, pending: &mut Pending) -> Message {
    let wire::Message { role, content, thinking, images, tool_calls, tool_name, tool_call_id } =
        message;
    let text = content.filter(|text| !text.is_empty()).map(Part::Text);
    let images = images.into_iter().flatten().map(image);
    match role {
        wire::Role::System => Message { role: Role::System, parts: text.into_iter().collect() },
        wire::Role::User => {
            Message { role: Role::User, parts: text.into_iter().chain(images).collect() }
        }
        wire::Role::Tool => {
            let id = pending.take(tool_call_id, tool_name.as_deref());
            let parts = text.into_iter().chain(images).collect();
            let result = Part::ToolResult { id, parts, is_error: false };
            Message { role: Role::User, parts: vec![result] }
        }
        wire::Role::Assistant => {
            let reasoning = thinking.filter(|text| !text.is_empty()).map(|text| {
                let signature = Some(REASONING_FIELD.to_owned());
                Part::Reasoning(Reasoning { text, signature })
            });
            let calls = tool_calls.into_iter().flatten().map(|call| {
                let wire::Function { name, arguments } = call.function;
                let id = pending.add(call.id, &name);
                let arguments = Value::Object(arguments).to_string();
                Part::ToolCall(ToolCall { id, name, arguments })
            });
            let parts = reasoning.into_iter().chain(text).chain(calls).collect();
            Message { role: Role::Assistant, parts }
        }
    }
}

/// Reads an image in base64, whose type is in its first bytes. Some clients send a URL.
fn image(image: String) -> Part {
    if ["data:", "http://", "https://"].iter().any(|scheme| image.starts_with(scheme)) {
        return Part::Image(Image::Url { url: image, detail: None });
    }
    let known = IMAGE_TYPES.iter().find(|(start, _)| image.starts_with(start));
    let media_type = known.map_or("image/png", |(_, media_type)| media_type).to_owned();
    Part::Image(Image::Data { media_type, base64: image })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{ModelServer, write};

    fn chat(body: Value) -> Value {
        let Read { request, more } = read_chat(serde_json::from_value(body).unwrap());
        let mut written = write(&request, ModelServer::Other);
        written.as_object_mut().unwrap().extend(more);
        written
    }

    #[test]
    fn results_belong_to_open_calls_by_tool_and_order() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"a": 1}}});
        let written = chat(json!({"model": "m", "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call("f"), call("g"), call("f")]},
            {"role": "tool", "content": "one", "tool_name": "g"},
            {"role": "tool", "content": "two"},
            {"role": "tool", "content": "three", "tool_call_id": "call_3"},
            {"role": "tool", "content": "four"},
        ]}));
        let messages = written["messages"].as_array().unwrap();
        assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], r#"{"a":1}"#);
        let results: Vec<_> = messages[2..]
            .iter()
            .map(|one| (one["tool_call_id"].as_str().unwrap(), one["content"].as_str().unwrap()))
            .collect();
        let expected =
            [("call_2", "one"), ("call_1", "two"), ("call_3", "three"), ("call_3", "four")];
        assert_eq!(results, expected);
    }

    #[test]
    fn options_formats_and_images_are_written_as_a_chat_completion() {
        let options = json!({
            "temperature": 0.5, "num_predict": 7, "top_k": 3, "seed": -1, "stop": ["x"], "num_ctx": 9,
        });
        let written = chat(json!({
            "model": "m", "format": "json", "options": options, "think": "low",
            "messages": [{"role": "user", "content": "hi", "images": ["iVBORw0KGgo=", "data:x"]}],
        }));
        let expected = json!({
            "model": "m",
            "messages": [{"role": "user", "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                {"type": "image_url", "image_url": {"url": "data:x"}},
            ]}],
            "max_tokens": 7, "temperature": 0.5, "top_k": 3, "stop": ["x"],
            "reasoning_effort": "low", "stream": true, "stream_options": {"include_usage": true},
            "response_format": {"type": "json_object"}, "seed": -1,
        });
        assert_eq!(written, expected);
        let schema = json!({"type": "object"});
        let limited = json!({"num_predict": -1, "stop": "x"});
        let written = chat(json!({
            "model": "m", "stream": false, "format": schema, "options": limited, "messages": [],
        }));
        assert_eq!(written["response_format"]["json_schema"]["schema"], schema);
        assert_eq!((&written["max_tokens"], &written["stream"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn raw_prompts_and_suffixes_are_written_as_text_completions() {
        let options = json!({"num_predict": 7, "stop": ["x"], "seed": 3, "num_ctx": 9});
        let body = json!({
            "model": "m", "prompt": "def f(", "suffix": "return 1", "raw": true, "options": options,
        });
        let written = write_completion(serde_json::from_value(body).unwrap());
        let expected = json!({
            "model": "m", "prompt": "def f(", "suffix": "return 1", "max_tokens": 7, "stop": ["x"],
            "seed": 3, "stream": true, "stream_options": {"include_usage": true},
        });
        assert_eq!(written, expected);
        let body = json!({"model": "m", "suffix": "", "stream": false});
        let written = write_completion(serde_json::from_value(body).unwrap());
        assert_eq!(written, json!({"model": "m", "prompt": ""}));
    }

    #[test]
    fn prompt_is_a_conversation_of_its_own() {
        let body = json!({"model": "m", "prompt": "hi", "system": "be nice", "raw": false});
        let read = read_generate(serde_json::from_value(body).unwrap());
        let written = write(&read.request, ModelServer::Other);
        let expected = json!([
            {"role": "system", "content": "be nice"}, {"role": "user", "content": "hi"},
        ]);
        assert_eq!(written["messages"], expected);
    }
}
