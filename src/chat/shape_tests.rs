//! Answers of many servers, and what they are taken for.

use super::*;

#[test]
fn failure_is_found_in_every_dialect() {
    for (answer, message) in [
        (r#"{"error":{"message":"no"}}"#, "no"),
        (r#"{"error":"no"}"#, "no"),
        (r#"{"object":"error","message":"no","code":500}"#, "no"),
        (r#"{"type":"error","message":"no"}"#, "no"),
        (r#"{"detail":"no"}"#, "no"),
        (r#"{"message":"no"}"#, "no"),
        (r#"{"internalServerException":{"message":"no"}}"#, "no"),
    ] {
        let object = serde_json::from_str(answer).unwrap();
        assert_eq!(failure_in(&object).unwrap().message, message, "{answer}");
    }
    for answer in [
        r#"{"error":null,"choices":[]}"#,
        r#"{"choices":[],"message":"a greeting"}"#,
        r#"{"type":"ping"}"#,
        r#"{"usage":{},"detail":"x"}"#,
    ] {
        assert_eq!(failure_in(&serde_json::from_str(answer).unwrap()), None, "{answer}");
    }
}

#[test]
fn completion_becomes_the_events_of_a_stream() {
    let answer = br#"{"id":"x","object":"chat.completion","choices":[{"index":0,"message":
        {"role":"assistant","content":null,"tool_calls":[{"id":"a"}]},"finish_reason":"tool_calls"}],
        "usage":{"prompt_tokens":1}}"#;
    let events = events_of(answer).unwrap();
    let events: Vec<&str> = str::from_utf8(&events).unwrap().split_terminator("\n\n").collect();
    assert_eq!(events.len(), 3);
    let first: Value = serde_json::from_str(events[0].strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(first["choices"][0]["delta"]["tool_calls"][0], json!({"id": "a", "index": 0}));
    assert_eq!(first["choices"][0]["finish_reason"], "tool_calls");
    let usage: Value = serde_json::from_str(events[1].strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"], json!({"prompt_tokens": 1}));
    assert_eq!(events[2], "data: [DONE]");
    assert_eq!(events_of(br#"{"choices":[]}"#), None);
    assert_eq!(events_of(b"[1]"), None);
}
