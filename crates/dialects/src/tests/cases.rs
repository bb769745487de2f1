//! The forms of servers, and what has no counterpart in the other format.

use orrery_wire::messages::CreateRequest;
use orrery_wire::request::read;
use serde_json::{Value, json};

use crate::chat::{ModelServer, StreamReader, read_answer, write};
use crate::messages::{self, StreamWriter, shows_thinking, write_answer};
use crate::{End, Event, Reasoning};

fn request(more: Value) -> Value {
    let mut body = json!({
        "model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[track_caller]
fn chat(more: Value) -> Value {
    let wire: CreateRequest = read(request(more)).unwrap();
    write(&messages::read(wire), ModelServer::Other)
}

#[test]
fn results_of_tools_follow_the_calls_and_images_follow_the_results() {
    let image = json!({
        "type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "AA=="},
    });
    let content = json!([
        {"type": "text", "text": "And now?"},
        {"type": "tool_result", "tool_use_id": "a", "content": [
            {"type": "text", "text": "seen"}, image,
        ]},
        {"type": "tool_result", "tool_use_id": "b", "content": "broke", "is_error": true},
        {"type": "tool_result", "tool_use_id": "c"},
    ]);
    let found = chat(json!({"messages": [{"role": "user", "content": content}]}));
    let url = "data:image/gif;base64,AA==";
    let expected = json!([
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: broke"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": [
            {"type": "text", "text": "Images of the tool result a:"},
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": "And now?"},
        ]},
    ]);
    assert_eq!(found["messages"], expected);
}

#[test]
fn documents_become_text_with_their_titles() {
    let document = json!({
        "type": "document", "title": "Log", "context": "of today",
        "source": {"type": "text", "media_type": "text/plain", "data": "all well"},
        "citations": {"enabled": false}, "cache_control": {"type": "ephemeral"},
    });
    let found = chat(json!({"messages": [{"role": "user", "content": [document]}]}));
    let expected = json!([
        {"type": "text", "text": "Log\n\nof today"}, {"type": "text", "text": "all well"},
    ]);
    assert_eq!(found["messages"][0]["content"], expected);
}

#[test]
fn what_no_answer_could_have_is_rejected_by_name() {
    let block = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    let pdf = json!({"type": "base64", "media_type": "application/pdf", "data": "AA=="});
    let cited = json!({
        "type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": true},
    });
    let redacted =
        json!({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]});
    for (more, message) in [
        (
            block(json!({"type": "document", "source": pdf})),
            "messages[0].content[0].source.type must be one of text, content",
        ),
        (block(cited), "messages[0].content[0].citations.enabled must be one of false"),
        (
            json!({"messages": [redacted]}),
            "messages[0].content[0].type must be one of text, tool_use, thinking",
        ),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            "tools[0].type must be one of custom",
        ),
        (json!({"tools": [{"name": "x"}]}), "tools[0].input_schema is required"),
        (
            json!({"messages": [{"role": "system", "content": "x"}]}),
            "messages[0].role must be one of user, assistant",
        ),
        (
            block(json!({"type": "tool_use", "id": "a", "name": "b", "input": {}})),
            "messages[0].content[0].type must be one of text, image, document, tool_result",
        ),
        (json!({"max_tokens": null}), "max_tokens is required"),
        (json!({"temperature": 1.5}), "temperature must be a number from 0 to 1"),
    ] {
        let error = read::<CreateRequest>(request(more)).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn thinking_selects_effort_and_visibility() {
    let budget = |tokens: u64| json!({"type": "enabled", "budget_tokens": tokens});
    let max = json!({"effort": "max"});
    for (thinking, config, effort, is_shown) in [
        (json!(null), json!(null), json!(null), false),
        (json!(null), json!({"effort": "low"}), json!(null), false),
        (json!({"type": "disabled"}), max.clone(), json!(null), false),
        (budget(1024), json!(null), json!("low"), true),
        (budget(4096), json!(null), json!("medium"), true),
        (budget(16_384), json!(null), json!("high"), true),
        (budget(1024), max.clone(), json!("high"), true),
        (json!({"type": "adaptive"}), json!(null), json!(null), true),
        (json!({"type": "adaptive", "display": "omitted"}), max, json!("high"), false),
    ] {
        let fields = json!({"thinking": thinking, "output_config": config});
        let wire: CreateRequest = read(request(fields.clone())).unwrap();
        assert_eq!(shows_thinking(&wire), is_shown, "{fields}");
        let own = write(&messages::read(wire), ModelServer::Own);
        assert_eq!(own.get("reasoning_effort").cloned().unwrap_or_default(), effort, "{fields}");
        let kind = &thinking["type"];
        let thinks = kind == "enabled" || kind == "adaptive";
        assert_eq!(own["chat_template_kwargs"]["enable_thinking"], thinks, "{fields}");
        assert!(chat(fields).get("chat_template_kwargs").is_none());
    }
}

#[test]
fn reasoning_returns_to_the_field_from_which_it_came() {
    let answer = |signature: Value| {
        let thinking = json!({"type": "thinking", "thinking": "hm", "signature": signature});
        let content = json!([thinking, {"type": "text", "text": "so"}]);
        chat(json!({"messages": [{"role": "assistant", "content": content}]}))
    };
    assert_eq!(answer(json!("reasoning"))["messages"][0]["reasoning"], "hm");
    assert_eq!(answer(json!("thinking"))["messages"][0]["thinking"], "hm");
    for foreign in [json!("EqQBCgIYAhIM"), json!("content"), json!(""), json!(null)] {
        let expected = json!({"role": "assistant", "content": "so"});
        assert_eq!(answer(foreign)["messages"][0], expected);
    }
}

#[test]
fn choices_without_tools_are_left_out_unless_they_demand_one() {
    let choice = |choice: Value| chat(json!({"tool_choice": choice})).get("tool_choice").cloned();
    assert_eq!(choice(json!({"type": "auto"})), None);
    assert_eq!(choice(json!({"type": "none"})), None);
    assert_eq!(choice(json!({"type": "any"})), Some(json!("required")));
}

/// Returns an answer of a chat completion in Anthropic's format.
fn whole(choice: &Value) -> Result<Value, String> {
    let answer = json!({"choices": [choice], "usage": {"prompt_tokens": 3}});
    let answer = read_answer(answer.to_string().as_bytes()).map_err(|error| error.to_string())?;
    let answer = write_answer(answer, "msg_7", "m", true).map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(answer).unwrap())
}

#[test]
fn answers_of_all_servers_are_read() {
    let call = |arguments: Value| json!({"function": {"name": "f", "arguments": arguments}});
    let used =
        |id: &str, input: Value| json!({"type": "tool_use", "id": id, "name": "f", "input": input});
    let text = |text: &str| json!({"type": "text", "text": text});
    let thinking =
        |signature: &str| json!({"type": "thinking", "thinking": "hm", "signature": signature});
    let mistral = json!([
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "so"},
    ]);
    for (message, finish, content, stop) in [
        (json!({"content": "hi"}), "stop", json!([text("hi")]), "end_turn"),
        (json!({"content": null}), "length", json!([]), "max_tokens"),
        (json!({"refusal": "no"}), "stop", json!([text("no")]), "refusal"),
        (json!({"content": ""}), "content_filter", json!([]), "refusal"),
        (json!({"content": mistral}), "stop", json!([thinking(""), text("so")]), "end_turn"),
        (
            json!({"content": "so", "reasoning": "hm", "reasoning_content": null}),
            "stop",
            json!([thinking("reasoning"), text("so")]),
            "end_turn",
        ),
        (
            json!({"tool_calls": [call(json!("")), call(json!({"a": 1})), call(json!("null"))]}),
            "stop",
            json!([
                used("toolu_7_0", json!({})),
                used("toolu_7_1", json!({"a": 1})),
                used("toolu_7_2", json!({}))
            ]),
            "tool_use",
        ),
        (json!({"tool_calls": [call(json!("{\"a"))]}), "length", json!([]), "max_tokens"),
        (
            json!({"function_call": {"name": "f", "arguments": "{}"}}),
            "function_call",
            json!([used("toolu_7_0", json!({}))]),
            "tool_use",
        ),
    ] {
        let answer = whole(&json!({"message": message, "finish_reason": finish})).unwrap();
        assert_eq!((&answer["content"], &answer["stop_reason"]), (&content, &json!(stop)));
    }
    let stopped =
        json!({"message": {"content": "a"}, "finish_reason": "stop", "stop_reason": "END"});
    let answer = whole(&stopped).unwrap();
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("stop_sequence"), &json!("END"))
    );
    let broken = json!({"message": {"tool_calls": [call(json!("[1]"))]}, "finish_reason": "stop"});
    assert!(whole(&broken).unwrap_err().contains("not a JSON object"));
    assert!(read_answer(b"{}").unwrap_err().to_string().contains("no choice"));
    assert!(read_answer(b"<html>").unwrap_err().to_string().contains("not valid JSON"));
}

fn events(chunks: &[Value]) -> Vec<Event> {
    let mut reader = StreamReader::default();
    let read = |chunk: &Value| reader.event(chunk.to_string().as_bytes()).unwrap();
    chunks.iter().flat_map(read).collect()
}

fn calls(calls: Value) -> Value {
    json!({"choices": [{"delta": {"tool_calls": calls}}]})
}

#[test]
fn calls_without_numbers_or_with_repeated_numbers_are_told_apart() {
    let named = |id: &str| json!({"id": id, "function": {"name": "f", "arguments": "{}"}});
    let numbered =
        |id: &str| json!({"index": 0, "id": id, "function": {"name": "f", "arguments": "{}"}});
    for stream in [
        [calls(json!([named("a")])), calls(json!([named("b")]))],
        [calls(json!([numbered("a")])), calls(json!([numbered("b")]))],
    ] {
        let begun = events(&stream).into_iter().filter_map(|event| {
            let Event::ToolStart { call, id, .. } = event else { return None };
            Some((call, id))
        });
        assert_eq!(begun.collect::<Vec<_>>(), [(0, "a".to_owned()), (1, "b".to_owned())]);
    }
    let again = events(&[
        calls(json!([numbered("a")])),
        calls(json!([{"index": 0, "id": "a", "function": {"arguments": " "}}])),
        calls(json!([{"function": {"arguments": " "}}])),
    ]);
    let begun = again.iter().filter(|event| matches!(event, Event::ToolStart { .. })).count();
    assert_eq!((begun, again.len()), (1, 4), "{again:?}");
}

#[test]
fn stream_of_other_choices_is_ignored_and_errors_are_failures() {
    let other =
        json!({"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": "stop"}]});
    assert_eq!(events(&[other]), []);
    let error = json!({"error": {"type": "timeout", "message": "late"}});
    let expected = Event::Failure { kind: "timeout".to_owned(), message: "late".to_owned() };
    assert_eq!(events(&[error]), [expected]);
    assert!(StreamReader::default().event(b"nonsense").is_err());
}

#[test]
fn stream_hides_reasoning_that_nobody_asked_for() {
    let mut writer = StreamWriter::new("msg_1".into(), "m".into(), "r".into(), false);
    let mut sent = Vec::new();
    let reasoning = Reasoning { text: "hm".to_owned(), signature: None };
    writer.event(Event::Reasoning(reasoning), &mut sent).unwrap();
    assert!(sent.is_empty());
    writer.event(Event::Refusal("no".to_owned()), &mut sent).unwrap();
    writer.event(Event::End(End::Complete), &mut sent).unwrap();
    writer.finish(&mut sent);
    let names: Vec<&str> = sent.iter().map(|event| event.name()).collect();
    let expected = [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expected);
    let end = serde_json::to_value(&sent[3]).unwrap();
    assert_eq!(end["delta"]["stop_reason"], "refusal");
}

#[test]
fn stream_with_mixed_calls_is_refused() {
    let mut writer = StreamWriter::new("msg_1".into(), "m".into(), "r".into(), false);
    let mut sent = Vec::new();
    for call in [0, 1] {
        let begin = Event::ToolStart { call, id: String::new(), name: "f".to_owned() };
        writer.event(begin, &mut sent).unwrap();
    }
    let late = Event::ToolArguments { call: 0, text: "{}".to_owned() };
    let error = writer.event(late, &mut sent).unwrap_err();
    assert!(error.to_string().contains("mixes the parts"));
}
