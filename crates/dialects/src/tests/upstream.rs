//! Tests of the way to a server with Anthropic's API and back: a chat completion is read, written
//! for the server, and its answer is written as a chat completion.

use orrery_wire::messages::CreateRequest;
use orrery_wire::request::read as read_wire;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{assistant, request};
use crate::chat::{self, ModelServer};
use crate::messages::{self, Read};
use crate::{
    Answer, End, Event, Format, Message, Part, Reasoning, Request, Role, Thinking, ToolCall, Usage,
};

/// Returns what a request to Anthropic can express: messages of one author are joined, blank texts
/// and reasoning are left out.
fn essence(request: &Request) -> Value {
    let mut turns: Vec<(Role, Vec<Value>)> = Vec::new();
    for message in &request.messages {
        let parts: Vec<Value> = message.parts.iter().filter_map(shown).collect();
        if parts.is_empty() {
            continue;
        }
        match turns.last_mut().filter(|(role, _)| *role == message.role) {
            Some((_, earlier)) => earlier.extend(parts),
            None => turns.push((message.role, parts)),
        }
    }
    let turns: Vec<Value> =
        turns.into_iter().map(|(role, parts)| json!([format!("{role:?}"), parts])).collect();
    let tools = request.tools.iter().map(|tool| {
        let mut schema = tool.parameters.clone();
        schema.entry("type").or_insert_with(|| "object".into());
        json!([tool.name, tool.description, schema])
    });
    json!([
        request.model,
        turns,
        tools.collect::<Value>(),
        format!("{:?}", request.tool_choice),
        request.parallel_calls,
        request.token_limit,
        request.stops,
        request.is_stream,
        request.user,
    ])
}

fn shown(part: &Part) -> Option<Value> {
    match part {
        Part::Text(text) | Part::Refusal(text) => {
            Some(text.trim()).filter(|text| !text.is_empty()).map(Value::from)
        }
        Part::Reasoning(_) => None,
        Part::ToolResult { id, parts, .. } => {
            Some(json!([id, parts.iter().filter_map(shown).collect::<Value>()]))
        }
        Part::Image(_) | Part::ToolCall(_) => Some(format!("{part:?}").into()),
    }
}

fn sent(body: &Value) -> Value {
    messages::write(&chat::read(body).unwrap())
}

proptest! {
    #[test]
    fn request_for_anthropic_keeps_what_it_can_express(request in request(false)) {
        let body = chat::write(&request, ModelServer::Other);
        let written = sent(&body);
        let wire: CreateRequest = read_wire(written.clone()).unwrap();
        let read = messages::read(wire);
        prop_assert_eq!(essence(&read), essence(&request), "{}", written);
        let schema = |request: &Request| match &request.format {
            Some(Format::JsonSchema { schema, .. }) => Some(schema.clone()),
            Some(Format::JsonObject) | None => None,
        };
        prop_assert_eq!(schema(&read), schema(&request));
        let reasons = read.thinking != Thinking::Off;
        prop_assert!(!reasons || read.temperature.is_none());
    }

    #[test]
    fn answer_of_anthropic_becomes_a_chat_completion(message in assistant()) {
        let usage = Usage { input: 9, output: 4, cached: 2, ..Usage::default() };
        let answer = Answer { parts: message.parts.clone(), end: End::TokenLimit, usage };
        let written = messages::write_answer(answer, "msg_1", "m", true).unwrap();
        let text = serde_json::to_vec(&written).unwrap();
        let (origin, answer) = messages::read_answer(&text).unwrap();
        prop_assert_eq!((origin.id.as_str(), origin.model.as_str()), ("msg_1", "m"));
        let frame = chat::Frame { id: origin.id, model: origin.model, created: 5 };
        let completion = chat::write_answer(answer, &frame);
        let back = chat::read_answer(completion.to_string().as_bytes()).unwrap();
        let joined = |parts: &[Part]| parts.iter().map(of_answer).collect::<Vec<_>>();
        prop_assert_eq!(joined(&back.parts), joined(&message.parts));
        prop_assert_eq!((back.end, back.usage), (End::TokenLimit, usage));
    }

    #[test]
    fn stream_of_anthropic_becomes_a_stream_of_chunks(message in assistant()) {
        let mut events = events_of(&message);
        let usage = Usage { input: 9, output: 4, cached: 2, ..Usage::default() };
        events.extend([Event::End(End::ToolCalls), Event::Usage(usage)]);
        let mut writer =
            messages::StreamWriter::new("msg_1".into(), "m".into(), "r".into(), true);
        let mut written = vec![writer.start(7)];
        for event in events.clone() {
            writer.event(event, &mut written).unwrap();
        }
        writer.finish(&mut written);
        let mut reader = messages::StreamReader::default();
        let mut chunks = None;
        let mut is_done = false;
        let mut back = Vec::new();
        let mut chat_reader = chat::StreamReader::default();
        for event in written {
            match reader.event(&serde_json::to_vec(&event).unwrap()).unwrap() {
                Read::Begun(origin) => {
                    let frame = chat::Frame { id: origin.id, model: origin.model, created: 5 };
                    chunks = Some(chat::StreamWriter::new(frame));
                }
                Read::Events(read) => for event in read {
                    let chunk = chunks.as_mut().unwrap().event(event);
                    assert_eq!(chunk["model"], "m");
                    back.extend(chat_reader.event(chunk.to_string().as_bytes()).unwrap());
                },
                Read::Done => is_done = true,
            }
        }
        prop_assert!(is_done);
        let plain = |events: Vec<Event>| {
            let unsigned = |event| {
                if let Event::Reasoning(Reasoning { text, .. }) = &event {
                    return format!("reasoning {text}");
                }
                format!("{event:?}")
            };
            events.into_iter().map(unsigned).collect::<Vec<_>>()
        };
        prop_assert_eq!(plain(back), plain(events));
    }

    #[test]
    fn translation_for_anthropic_of_any_json_never_panics(fields in super::object()) {
        for body in [json!(fields), json!({"messages": [fields]}), json!({"tools": [fields]})] {
            if let Ok(request) = chat::read(&body) {
                let _written = messages::write(&request);
            }
            let text = body.to_string();
            let _answer = messages::read_answer(text.as_bytes());
            let _event = messages::StreamReader::default().event(text.as_bytes());
        }
    }
}

/// Returns a part of an answer without the field of its reasoning.
fn of_answer(part: &Part) -> String {
    match part {
        Part::Reasoning(Reasoning { text, .. }) => format!("reasoning {text}"),
        Part::Text(_)
        | Part::Image(_)
        | Part::ToolCall(_)
        | Part::ToolResult { .. }
        | Part::Refusal(_) => format!("{part:?}"),
    }
}

fn events_of(message: &Message) -> Vec<Event> {
    let mut events = Vec::new();
    let mut calls = 0;
    for part in &message.parts {
        match part {
            Part::Text(text) => events.push(Event::Text(text.clone())),
            Part::Reasoning(reasoning) => events.push(Event::Reasoning(reasoning.clone())),
            Part::ToolCall(ToolCall { id, name, arguments }) => {
                let (id, name, text) = (id.clone(), name.clone(), arguments.clone());
                events.push(Event::ToolStart { call: calls, id, name });
                events.push(Event::ToolArguments { call: calls, text });
                calls += 1;
            }
            Part::Image(_) | Part::ToolResult { .. } | Part::Refusal(_) => {}
        }
    }
    events
}

#[test]
fn request_for_anthropic_has_the_fields_that_it_requires() {
    let hello = json!([{"role": "user", "content": "hi"}]);
    let of = |more: Value| {
        let mut body = json!({"model": "m", "messages": hello});
        let fields: Map<String, Value> = serde_json::from_value(more).unwrap();
        body.as_object_mut().unwrap().extend(fields);
        sent(&body)
    };
    assert_eq!(of(json!({}))["max_tokens"], 4096);
    assert_eq!(of(json!({"max_completion_tokens": 7, "max_tokens": 9}))["max_tokens"], 7);
    let thinks = of(json!({"reasoning_effort": "high", "temperature": 0.5}));
    assert_eq!(thinks["thinking"], json!({"type": "enabled", "budget_tokens": 12_288}));
    assert_eq!((&thinks["max_tokens"], thinks.get("temperature")), (&json!(16_384), None));
    for (more, budget) in [
        (json!({"reasoning_effort": "low", "max_tokens": 2000}), json!(1024)),
        (json!({"reasoning_effort": "high", "max_tokens": 2000}), json!(1999)),
        (json!({"reasoning_effort": "high", "max_tokens": 1024}), Value::Null),
        (json!({"reasoning_effort": "none"}), Value::Null),
        (json!({}), Value::Null),
    ] {
        assert_eq!(of(more.clone())["thinking"]["budget_tokens"], budget, "{more}");
    }
    let json_only = of(json!({"response_format": {"type": "json_object"}}));
    assert_eq!(json_only["system"], "Answer with one JSON object and nothing else.");
    assert_eq!(of(json!({"temperature": 1.7}))["temperature"], 1.0);
}

#[test]
fn request_that_anthropic_cannot_express_is_refused() {
    for (body, what) in [
        (json!({"n": 2}), "n above 1"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
            "\"input_audio\"",
        ),
        (json!({"tools": [{"type": "web_search"}]}), "\"web_search\""),
    ] {
        let refused = chat::read(&body).unwrap_err().0;
        assert!(refused.contains(what) && refused.contains("does not support"), "{refused}");
    }
}

#[test]
fn results_of_tools_follow_their_calls_in_one_message() {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let body = json!({"messages": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "So \n"},
    ]});
    let result = |id: &str, text: &str| {
        let content = json!([{"type": "text", "text": text}]);
        json!({"type": "tool_result", "tool_use_id": id, "content": content})
    };
    let used = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let expected = json!([
        {"role": "user", "content": [text("go")]},
        {"role": "assistant", "content": [used("a"), used("b")]},
        {"role": "user", "content": [result("a", "1"), result("b", "2"), text("and?")]},
        {"role": "assistant", "content": [text("So")]},
    ]);
    assert_eq!(sent(&body)["messages"], expected);
}
