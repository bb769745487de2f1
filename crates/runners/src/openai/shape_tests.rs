//! Responses of many servers, and how they are interpreted.

use serde_json::json;

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
        r#"{"object":"error","choices":[{"delta":{}}]}"#,
        r#"["error"]"#,
    ] {
        assert_eq!(failure_in(&serde_json::from_str(answer).unwrap()), None, "{answer}");
    }
}

#[test]
fn usage_is_counted_in_every_dialect() {
    for (answer, expected) in [
        (json!({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}), (Some(3), Some(4))),
        (
            json!({"usage": {"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": 10,
                "cache_creation_input_tokens": 100}}),
            (Some(113), Some(4)),
        ),
        (
            json!({"type": "message_start", "message": {"usage":
                {"input_tokens": 3, "cache_read_input_tokens": 10, "output_tokens": 1}}}),
            (Some(13), Some(1)),
        ),
        (
            json!({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 9}}),
            (None, Some(9)),
        ),
        (
            json!({"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4,
                "thoughtsTokenCount": 5}}),
            (Some(3), Some(9)),
        ),
        (json!({"usageMetadata": {"promptTokenCount": 3}}), (Some(3), None)),
        (json!({"prompt_eval_count": 3, "eval_count": 4, "done": true}), (Some(3), Some(4))),
        (json!({"usage": {"prompt_eval_count": 3, "eval_count": 4}}), (Some(3), Some(4))),
        (json!({"eval_count": 4, "message": {"content": "x"}}), (None, Some(4))),
        (json!({"usage": null, "x_groq": {"usage": {"prompt_tokens": 3}}}), (Some(3), None)),
        (
            json!({"meta": {"billed_units": {"input_tokens": 3, "output_tokens": 4}}}),
            (Some(3), Some(4)),
        ),
        (json!({"usage": {"inputTokens": 3, "outputTokens": 4}}), (Some(3), Some(4))),
        (json!({"usage": {"prompt_tokens": 3.0, "completion_tokens": "4"}}), (Some(3), Some(4))),
        (
            json!({"usage": {"prompt_tokens": TOKENS_MAX, "completion_tokens": 0}}),
            (Some(TOKENS_MAX), Some(0)),
        ),
        (json!({"usage": {"prompt_tokens": TOKENS_MAX + 1, "completion_tokens": 1}}), (None, None)),
        (json!({"usage": {"prompt_tokens": 1, "completion_tokens": u64::MAX}}), (None, None)),
        (json!({"usage": {"prompt_tokens": 1, "completion_tokens": 1e308}}), (None, None)),
        (json!({"usage": {"prompt_tokens": 1, "completion_tokens": "NaN"}}), (None, None)),
        (json!({"usage": {"prompt_tokens": -1, "completion_tokens": 4}}), (None, None)),
        (json!({"usage": {"prompt_tokens": 1, "completion_tokens": -4}}), (None, None)),
        (json!({"usage": {"prompt_tokens": "many"}}), (None, None)),
        (json!({"usage": {"prompt_tokens": null}}), (None, None)),
        (json!({"usage": {"prompt_tokens": [1]}}), (None, None)),
        (json!({"usage": {}, "meta": {}}), (None, None)),
        (json!({"usage": "none"}), (None, None)),
    ] {
        let counts = counts_in(answer.as_object().unwrap()).unwrap_or_default();
        assert_eq!((counts.input, counts.output), expected, "{answer}");
    }
    let wide = r#"{"usage":{"prompt_tokens":18446744073709551616}}"#;
    assert_eq!(counts_in(&serde_json::from_str(wide).unwrap()), None);
}

#[test]
fn usage_in_parts_is_combined() {
    let mut counts = Counts::default();
    counts.update(Counts { input: Some(3), output: Some(1) });
    counts.update(Counts { input: None, output: Some(9) });
    assert_eq!(counts, Counts { input: Some(3), output: Some(9) });
}

#[test]
fn completion_is_converted_to_stream_events() {
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
    // Numbers are unchanged, and a text becomes a message.
    let answer = br#"{"choices":[{"text":"a","logprobs":[1.10000000000000000001]}],"usage":null}"#;
    let events = events_of(answer).unwrap();
    let expected = "data: {\"choices\":[{\"logprobs\":[1.10000000000000000001],\"delta\":{\"role\":\"assistant\",\
                    \"content\":\"a\"},\"finish_reason\":\"stop\"}],\"object\":\"chat.completion.chunk\"}\n\n\
                    data: [DONE]\n\n";
    assert_eq!(str::from_utf8(&events).unwrap(), expected);
    assert_eq!(events_of(br#"{"choices":[]}"#), None);
    assert_eq!(events_of(b"[1]"), None);
}
