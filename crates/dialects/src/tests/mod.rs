//! Tests of whole translations: random conversations keep everything that all formats can express,
//! and a stream adds up to the same answer as a whole one.

mod cases;
mod responses;
mod upstream;

use orrery_wire::messages::CreateRequest;
use orrery_wire::messages::answer::Event as Sent;
use orrery_wire::request::read;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::chat::{ModelServer, StreamReader, read_answer, write};
use crate::messages::{self, StreamWriter, write_answer};
use crate::{
    Effort, Format, Image, Message, Part, Reasoning, Request, Role, Thinking, Tool, ToolCall,
    ToolChoice,
};

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z \"\\\\\n\u{e9}\u{1f600}]{1,12}"
}

fn name() -> impl Strategy<Value = String> {
    "[a-z_]{1,8}"
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    let value = prop_oneof![
        text().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        Just(json!([null, {"a": []}])),
    ];
    prop::collection::vec((name(), value), 0..3).prop_map(|fields| fields.into_iter().collect())
}

fn url(url: &str) -> Image {
    Image::Url { url: url.to_owned(), detail: None }
}

fn image() -> impl Strategy<Value = Part> {
    prop_oneof![
        Just(url("https://example.com/a.png")),
        Just(Image::Data { media_type: "image/png".to_owned(), base64: "aGk=".to_owned() }),
    ]
    .prop_map(Part::Image)
}

fn plain() -> impl Strategy<Value = Part> {
    prop_oneof![text().prop_map(Part::Text), image()]
}

/// A call whose arguments are canonical JSON.
fn call() -> impl Strategy<Value = Part> {
    (name(), name(), object()).prop_map(|(id, name, input)| {
        Part::ToolCall(ToolCall { id, name, arguments: Value::Object(input).to_string() })
    })
}

/// A result with a text, or, `is_rich`, with everything that a result may have.
fn result(is_rich: bool) -> impl Strategy<Value = Part> {
    let count = if is_rich { 0..3 } else { 1..2_usize };
    let part = if is_rich { plain().boxed() } else { text().prop_map(Part::Text).boxed() };
    (name(), prop::collection::vec(part, count), any::<bool>()).prop_map(
        move |(id, parts, is_error)| Part::ToolResult { id, parts, is_error: is_rich && is_error },
    )
}

fn user(is_rich: bool) -> impl Strategy<Value = Message> {
    let results = prop::collection::vec(result(is_rich), 0..3);
    let others = prop::collection::vec(plain(), 1..3);
    (results, others).prop_map(|(results, others)| Message {
        role: Role::User,
        parts: results.into_iter().chain(others).collect(),
    })
}

fn assistant() -> impl Strategy<Value = Message> {
    let reasoning = text().prop_map(|text| {
        Part::Reasoning(Reasoning { text, signature: Some("reasoning_content".to_owned()) })
    });
    let parts = (
        prop::option::of(reasoning),
        text().prop_map(Part::Text),
        prop::collection::vec(call(), 0..3),
    );
    parts.prop_map(|(reasoning, text, calls)| Message {
        role: Role::Assistant,
        parts: reasoning.into_iter().chain([text]).chain(calls).collect(),
    })
}

fn messages(is_rich: bool) -> impl Strategy<Value = Vec<Message>> {
    let system =
        text().prop_map(|text| Message { role: Role::System, parts: vec![Part::Text(text)] });
    let turns = prop::collection::vec((user(is_rich), assistant()), 1..4);
    (prop::option::of(system), turns).prop_map(|(system, turns)| {
        let turns = turns.into_iter().flat_map(|(user, assistant)| [user, assistant]);
        system.into_iter().chain(turns).collect()
    })
}

fn tool() -> impl Strategy<Value = Tool> {
    (name(), prop::option::of(text()), object(), prop::option::of(any::<bool>())).prop_map(
        |(name, description, parameters, is_strict)| Tool {
            name,
            description,
            parameters,
            is_strict,
        },
    )
}

fn choice() -> impl Strategy<Value = ToolChoice> {
    prop_oneof![
        Just(ToolChoice::Auto),
        Just(ToolChoice::Required),
        name().prop_map(ToolChoice::Named),
    ]
}

fn request(is_rich: bool) -> impl Strategy<Value = Request> {
    let thinking = prop_oneof![
        Just(if is_rich { Thinking::Off } else { Thinking::Unset }),
        Just(Thinking::On(Some(Effort::Low))),
        Just(Thinking::On(Some(Effort::High))),
    ];
    let numbers = (1..u64::from(u32::MAX), prop::option::of(0.0..1.0), prop::option::of(0..9_u32));
    let tools = (prop::collection::vec(tool(), 1..3), choice(), any::<bool>());
    let format = prop::option::of(object().prop_map(|schema| Format::JsonSchema {
        name: None,
        description: None,
        schema,
        is_strict: Some(true),
    }));
    let stops = prop::collection::vec(text(), 0..3);
    let others = (format, stops, thinking, any::<bool>(), prop::option::of(name()));
    (name(), messages(is_rich), tools, numbers, others).prop_map(
        |(model, messages, (tools, choice, parallel), (limit, temperature, top_k), others)| {
            let (format, stops, thinking, is_stream, user) = others;
            Request {
                model,
                messages,
                tools,
                tool_choice: Some(choice),
                parallel_calls: Some(parallel),
                format,
                verbosity: None,
                token_limit: Some(limit),
                temperature,
                top_p: temperature,
                top_k,
                stops,
                thinking,
                is_stream,
                user,
            }
        },
    )
}

/// Writes a request in Anthropic's format.
fn in_messages(request: &Request) -> Value {
    let part = |part: &Part| block(part);
    let message = |message: &Message| {
        let role = if message.role == Role::User { "user" } else { "assistant" };
        json!({"role": role, "content": message.parts.iter().map(part).collect::<Value>()})
    };
    let is_system = |message: &&Message| message.role == Role::System;
    let system = request.messages.iter().find(is_system);
    let system = system.map(|message| message.parts.iter().map(part).collect::<Value>());
    let others = request.messages.iter().filter(|message| !is_system(message));
    let single = request.parallel_calls.map(|parallel| !parallel);
    let choice = request.tool_choice.as_ref().map(|choice| match choice {
        ToolChoice::Auto => json!({"type": "auto", "disable_parallel_tool_use": single}),
        ToolChoice::Required => json!({"type": "any", "disable_parallel_tool_use": single}),
        ToolChoice::None => json!({"type": "none"}),
        ToolChoice::Named(name) => {
            json!({"type": "tool", "name": name, "disable_parallel_tool_use": single})
        }
    });
    let tool = |tool: &Tool| {
        json!({
            "name": tool.name, "description": tool.description,
            "input_schema": tool.parameters, "strict": tool.is_strict,
        })
    };
    let budget = match request.thinking {
        Thinking::On(Some(Effort::Low)) => Some(json!({"type": "enabled", "budget_tokens": 9})),
        Thinking::On(_) => Some(json!({"type": "enabled", "budget_tokens": 30_000})),
        Thinking::Unset | Thinking::Off => None,
    };
    let format = request.format.as_ref().map(|format| match format {
        Format::JsonSchema { schema, .. } => json!({"type": "json_schema", "schema": schema}),
        Format::JsonObject => unreachable!("messages have a schema"),
    });
    json!({
        "model": request.model,
        "messages": others.map(message).collect::<Value>(),
        "system": system,
        "tools": request.tools.iter().map(tool).collect::<Value>(),
        "tool_choice": choice,
        "output_config": {"format": format},
        "max_tokens": request.token_limit,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop_sequences": request.stops,
        "thinking": budget,
        "stream": request.is_stream,
        "metadata": {"user_id": request.user},
    })
}

fn block(part: &Part) -> Value {
    match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image(Image::Url { url, .. }) => {
            json!({"type": "image", "source": {"type": "url", "url": url}})
        }
        Part::Image(Image::Data { media_type, base64 }) => {
            let source = json!({"type": "base64", "media_type": media_type, "data": base64});
            json!({"type": "image", "source": source})
        }
        Part::ToolCall(call) => {
            let input: Value = serde_json::from_str(&call.arguments).unwrap();
            json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
        }
        Part::ToolResult { id, parts, is_error } => {
            let content: Value = parts.iter().map(block).collect();
            let kind = "tool_result";
            json!({"type": kind, "tool_use_id": id, "content": content, "is_error": is_error})
        }
        Part::Reasoning(reasoning) => {
            let Reasoning { text, signature } = reasoning;
            json!({"type": "thinking", "thinking": text, "signature": signature})
        }
        Part::Refusal(_) => unreachable!("a request has no refusal"),
    }
}

/// Reads a chat completion.
fn of_chat(fields: &Value) -> Request {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut messages: Vec<Message> = Vec::new();
    let mut is_after_result = false;
    for message in fields["messages"].as_array().unwrap() {
        let (role, parts) = match message["role"].as_str().unwrap() {
            "system" => (Role::System, parts_of(&message["content"])),
            "assistant" => (Role::Assistant, said(message)),
            "tool" => {
                let id = text(&message["tool_call_id"]).unwrap();
                let parts = parts_of(&message["content"]);
                (Role::User, vec![Part::ToolResult { id, parts, is_error: false }])
            }
            _ => (Role::User, parts_of(&message["content"])),
        };
        match messages.last_mut().filter(|_| is_after_result && role == Role::User) {
            Some(last) => last.parts.extend(parts),
            None => messages.push(Message { role, parts }),
        }
        is_after_result = message["role"] == "tool";
    }
    let tool = |tool: &Value| Tool {
        name: text(&tool["function"]["name"]).unwrap(),
        description: text(&tool["function"]["description"]),
        parameters: tool["function"]["parameters"].as_object().unwrap().clone(),
        is_strict: tool["function"]["strict"].as_bool(),
    };
    Request {
        model: text(&fields["model"]).unwrap(),
        messages,
        tools: fields["tools"].as_array().unwrap().iter().map(tool).collect(),
        tool_choice: Some(match fields["tool_choice"].as_str() {
            Some("auto") => ToolChoice::Auto,
            Some(_) => ToolChoice::Required,
            None => ToolChoice::Named(text(&fields["tool_choice"]["function"]["name"]).unwrap()),
        }),
        parallel_calls: fields["parallel_tool_calls"].as_bool(),
        format: fields["response_format"]["json_schema"].as_object().map(format_of),
        verbosity: None,
        token_limit: fields["max_tokens"].as_u64(),
        temperature: fields["temperature"].as_f64(),
        top_p: fields["top_p"].as_f64(),
        top_k: fields["top_k"].as_u64().map(|top_k| u32::try_from(top_k).unwrap()),
        stops: fields["stop"].as_array().into_iter().flatten().filter_map(text).collect(),
        thinking: match fields["reasoning_effort"].as_str() {
            Some("low") => Thinking::On(Some(Effort::Low)),
            Some(_) => Thinking::On(Some(Effort::High)),
            None => Thinking::Unset,
        },
        is_stream: fields["stream"].as_bool().unwrap_or(false),
        user: text(&fields["user"]),
    }
}

/// Returns a format; the name of those that have none does not count.
fn format_of(fields: &Map<String, Value>) -> Format {
    Format::JsonSchema {
        name: fields["name"].as_str().filter(|name| *name != "answer").map(str::to_owned),
        description: None,
        schema: fields["schema"].as_object().unwrap().clone(),
        is_strict: fields["strict"].as_bool(),
    }
}

fn parts_of(content: &Value) -> Vec<Part> {
    if let Value::String(text) = content {
        return vec![Part::Text(text.clone())];
    }
    let part = |part: &Value| {
        let Some(url) = part["image_url"]["url"].as_str() else {
            return Part::Text(part["text"].as_str().unwrap().to_owned());
        };
        Part::Image(image_of(url))
    };
    content.as_array().unwrap().iter().map(part).collect()
}

fn image_of(text: &str) -> Image {
    match text.strip_prefix("data:").and_then(|data| data.split_once(";base64,")) {
        Some((media_type, base64)) => {
            Image::Data { media_type: media_type.to_owned(), base64: base64.to_owned() }
        }
        None => url(text),
    }
}

fn said(message: &Value) -> Vec<Part> {
    let whole = json!({"choices": [{"message": message}]});
    read_answer(whole.to_string().as_bytes()).unwrap().parts
}

/// Adds up the events of a stream to an answer.
fn added_up(events: &[Sent]) -> Value {
    let mut answer = json!(null);
    let mut arguments = String::new();
    for event in events {
        let event = serde_json::to_value(event).unwrap();
        let at = event["index"].as_u64().and_then(|at| usize::try_from(at).ok()).unwrap_or(0);
        let delta = &event["delta"];
        let mut append = |field: &str, text: &Value| {
            let held = &mut answer["content"][at][field];
            *held = format!("{}{}", held.as_str().unwrap(), text.as_str().unwrap()).into();
        };
        match event["type"].as_str().unwrap() {
            "content_block_delta" => match delta["type"].as_str().unwrap() {
                "text_delta" => append("text", &delta["text"]),
                "thinking_delta" => append("thinking", &delta["thinking"]),
                "signature_delta" => append("signature", &delta["signature"]),
                _ => arguments.push_str(delta["partial_json"].as_str().unwrap()),
            },
            "message_start" => answer = event["message"].clone(),
            "content_block_start" => {
                let content = answer["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), at, "blocks begin in order");
                content.push(event["content_block"].clone());
            }
            "content_block_stop" if !arguments.is_empty() => {
                answer["content"][at]["input"] = serde_json::from_str(&arguments).unwrap();
                arguments.clear();
            }
            "message_delta" => {
                answer["stop_reason"] = delta["stop_reason"].clone();
                answer["stop_sequence"] = delta["stop_sequence"].clone();
                answer["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    answer
}

/// Returns an assistant's message as the deltas of a stream, in pieces of `size` characters.
fn deltas(message: &Message, size: usize) -> Vec<Value> {
    let mut deltas = vec![json!({"role": "assistant", "content": ""})];
    let pieces = |text: &str| -> Vec<String> {
        let all: Vec<char> = text.chars().collect();
        all.chunks(size).map(|piece| piece.iter().collect()).collect()
    };
    let mut calls = 0;
    for part in &message.parts {
        match part {
            Part::Text(text) => {
                deltas.extend(pieces(text).iter().map(|text| json!({"content": text})));
            }
            Part::Reasoning(Reasoning { text, .. }) => {
                let pieces = pieces(text);
                deltas.extend(pieces.iter().map(|text| json!({"reasoning_content": text})));
            }
            Part::ToolCall(call) => {
                let function = json!({"name": call.name, "arguments": ""});
                let begin = json!({"index": calls, "id": call.id, "function": function});
                deltas.push(json!({"tool_calls": [begin]}));
                for text in pieces(&call.arguments) {
                    let more = json!({"index": calls, "function": {"arguments": text}});
                    deltas.push(json!({"tool_calls": [more]}));
                }
                calls += 1;
            }
            Part::Image(_) | Part::ToolResult { .. } | Part::Refusal(_) => {}
        }
    }
    deltas
}

proptest! {
    #[test]
    fn request_in_messages_format_keeps_everything(request in request(true)) {
        let wire: CreateRequest = read(in_messages(&request)).unwrap();
        prop_assert_eq!(messages::read(wire), request);
    }

    #[test]
    fn request_in_chat_format_keeps_everything(request in request(false)) {
        prop_assert_eq!(of_chat(&write(&request, ModelServer::Other)), request);
    }

    #[test]
    fn stream_adds_up_to_the_whole_answer(message in assistant(), size in 1..6_usize) {
        let usage = json!({"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.5,
            "prompt_tokens_details": {"cached_tokens": 2}});
        let sent = write(
            &Request { messages: vec![message.clone()], ..Request::default() },
            ModelServer::Other,
        );
        let choice = json!({"message": sent["messages"][0], "finish_reason": "stop"});
        let whole = json!({"choices": [choice], "usage": usage});
        let whole = read_answer(whole.to_string().as_bytes()).unwrap();
        let whole = write_answer(whole, "msg_1", "m", true).unwrap();
        let mut reader = StreamReader::default();
        let mut writer = StreamWriter::new("msg_1".into(), "m".into(), "r".into(), true);
        let mut events = vec![writer.start(7)];
        let deltas = deltas(&message, size);
        let chunks = deltas.iter().map(|delta| json!({"choices": [{"index": 0, "delta": delta}]}));
        let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        for chunk in chunks.chain([end, json!({"choices": [], "usage": usage})]) {
            for event in reader.event(chunk.to_string().as_bytes()).unwrap() {
                writer.event(event, &mut events).unwrap();
            }
        }
        writer.finish(&mut events);
        prop_assert_eq!(added_up(&events), serde_json::to_value(&whole).unwrap());
    }

    #[test]
    fn translation_of_any_json_never_panics(delta in object(), field in name()) {
        let chunk = json!({"choices": [{"delta": {"tool_calls": [delta], field: [1]}}]});
        let text = chunk.to_string();
        let mut writer = StreamWriter::new(String::new(), String::new(), String::new(), true);
        for event in StreamReader::default().event(text.as_bytes()).unwrap() {
            let _result = writer.event(event, &mut Vec::new());
        }
        let _answer = read_answer(text.as_bytes()).unwrap();
    }
}
