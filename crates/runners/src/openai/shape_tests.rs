//! Tests how responses in the dialects of many servers are interpreted.

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
        (
            r#"{"choices":[{"message":{"content":""},"finish_reason":"error","error":{"message":"no"}}]}"#,
            "no",
        ),
        (r#"{"choices":[{"delta":{}},{"delta":{},"error":{"message":"no"}}]}"#, "no"),
        (r#"{"code":500,"msg":"no"}"#, "no"),
        (r#"{"code":500,"msg":"no","data":null}"#, "no"),
        (r#"{"error_code":336,"error_msg":"no"}"#, "no"),
        (r#"{"choices":null,"base_resp":{"status_code":1004,"status_msg":"no"}}"#, "no"),
        (r#"[{"error":{"code":400,"message":"no"}}]"#, "no"),
        (r#"{"fault":{"faultstring":"no","detail":{"errorcode":"x"}}}"#, "no"),
        (r#""no""#, "no"),
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
        r#"[{"error":"no"},{}]"#,
        r#"{"choices":[{"delta":{},"finish_reason":"stop","error":null}]}"#,
        r#"{"choices":[],"base_resp":{"status_code":0,"status_msg":""}}"#,
        "7",
    ] {
        assert_eq!(failure_in(&serde_json::from_str(answer).unwrap()), None, "{answer}");
    }
    let failed = failure_in(&json!({"choices": [{"delta": {}, "finish_reason": "error"}]}));
    assert_eq!(failed.unwrap().class, ErrorClass::ProviderError);
    for (data, message) in [
        (r#"{"error":{"message":"no"}}"#, "no"),
        (r#"{"code":"x"}"#, r#"{"code":"x"}"#),
        ("no", "no"),
    ] {
        assert_eq!(failure_in_error_event(data.as_bytes()).message, message);
    }
}

#[test]
fn event_begins_an_answer_with_its_first_part() {
    for (event, expected) in [
        (json!({"choices": [{"delta": {"role": "assistant", "content": ""}}]}), false),
        (json!({"choices": [], "prompt_filter_results": []}), false),
        (json!({"choices": [], "usage": {"prompt_tokens": 1}}), false),
        (json!({"usage": {"prompt_tokens": 1}}), false),
        (json!({"choices": [{"delta": {"content": "a"}}]}), true),
        (json!({"choices": [{"delta": {"reasoning_content": "a"}}]}), true),
        (json!({"choices": [{"delta": {"tool_calls": [{}]}}]}), true),
        (json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}), true),
        (json!({"choices": [{"text": "a"}]}), true),
        (json!({"type": "message_start", "message": {}}), true),
    ] {
        assert_eq!(has_answer(&event), expected, "{event}");
    }
}

#[test]
fn stream_that_was_not_requested_becomes_a_completion() {
    let event = |delta: &str, more: &str| {
        format!("data: {{\"id\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{delta}{more}}}]}}\n\n")
    };
    let stop = ",\"finish_reason\":\"length\"";
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n";
    let text = event("{\"role\":\"assistant\",\"content\":\"a\"}", "")
        + &event("{\"content\":\"b\"}", stop);
    let completion: Value =
        serde_json::from_slice(&completion_of(Operation::Chat, (text + usage).as_bytes()).unwrap())
            .unwrap();
    let expected = json!({"id": "x", "object": "chat.completion", "usage": {"prompt_tokens": 1}, "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "length"}]});
    assert_eq!(completion, expected);
    let begun = event("{\"content\":\"a\"}", "");
    assert_eq!(completion_of(Operation::Chat, begun.as_bytes()), None, "it is incomplete");
    assert!(
        completion_of(Operation::Chat, (begun.clone() + "data: [DONE]\n\n").as_bytes()).is_some()
    );
    for error in ["data: {\"error\":{\"message\":\"no\"}}\n\n", "event: error\ndata: no\n\n"] {
        let failed = completion_of(Operation::Chat, (begun.clone() + error).as_bytes()).unwrap();
        assert_eq!(failure_in(&serde_json::from_slice(&failed).unwrap()).unwrap().message, "no");
    }
    assert_eq!(completion_of(Operation::Chat, b"data: [DONE]\n\n"), None);
    assert_eq!(completion_of(Operation::Chat, b"<html>"), None);
}

#[test]
fn event_with_a_whole_message_becomes_a_delta() {
    let event =
        event_of(br#"{"object":"chat.completion","choices":[{"message":{"content":"a"}}]}"#)
            .unwrap();
    let expected = "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n";
    assert_eq!(str::from_utf8(&event).unwrap(), expected);
    assert_eq!(event_of(b"{}"), None);
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
        (json!({"usage": {"promptTokens": 3, "completionTokens": 4}}), (Some(3), Some(4))),
        (json!({"usage": [{"prompt_tokens": 3, "completion_tokens": 4}]}), (Some(3), Some(4))),
        (json!({"usage": {"tokens": {"input_tokens": 3, "output_tokens": 4}}}), (Some(3), Some(4))),
        (
            json!({"usage": {"billed_units": {"input_tokens": 1, "output_tokens": 2},
                "tokens": {"input_tokens": 3, "output_tokens": 4}}}),
            (Some(1), Some(2)),
        ),
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
    counts.update(Counts { input: Some(3), output: Some(1), total: None, ..Counts::default() });
    counts.update(Counts { input: None, output: Some(9), total: Some(12), ..Counts::default() });
    assert_eq!(
        counts,
        Counts { input: Some(3), output: Some(9), total: Some(12), ..Counts::default() }
    );
}

#[test]
fn cached_and_reasoning_tokens_are_read_in_every_dialect() {
    for (answer, cached, reasoning) in [
        (
            json!({"usage": {"prompt_tokens": 9, "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 3}}}),
            4,
            3,
        ),
        (
            json!({"usage": {"input_tokens": 9, "output_tokens": 5,
                "input_tokens_details": {"cached_tokens": 4},
                "output_tokens_details": {"reasoning_tokens": 3}}}),
            4,
            3,
        ),
        (
            json!({"usage": {"input_tokens": 5, "output_tokens": 5, "cache_read_input_tokens": 4}}),
            4,
            0,
        ),
        (
            json!({"usage": {"prompt_tokens": 9, "completion_tokens": 5,
                "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 5}}),
            4,
            0,
        ),
        (
            json!({"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 2,
                "thoughtsTokenCount": 3, "cachedContentTokenCount": 4}}),
            4,
            3,
        ),
        // More than there are.
        (
            json!({"usage": {"prompt_tokens": 9, "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 90},
                "completion_tokens_details": {"reasoning_tokens": 50}}}),
            9,
            5,
        ),
        (
            json!({"usage": {"prompt_tokens": 9, "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": -1},
                "completion_tokens_details": null}}),
            0,
            0,
        ),
    ] {
        let counts = counts_in(answer.as_object().unwrap()).unwrap();
        let expected = Tokens { input: 9, output: 5, cached, reasoning, is_estimated: false };
        assert_eq!(counts.tokens(7, 8), expected, "{answer}");
    }
}

#[test]
fn usage_of_the_total_completes_the_other_counts() {
    for (usage, bytes, input, output, is_estimated) in [
        // Embeddings.
        (json!({"total_tokens": 50}), 0, 50, 0, false),
        (json!({"prompt_tokens": 50, "total_tokens": 50}), 0, 50, 0, false),
        // Thinking is counted only in the total.
        (
            json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 105}),
            8,
            3,
            102,
            false,
        ),
        (json!({"prompt_tokens": 3, "total_tokens": 5}), 8, 3, 2, false),
        (json!({"completion_tokens": 2, "total_tokens": 5}), 8, 3, 2, false),
        // The total contradicts the other counts.
        (json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 1}), 8, 3, 2, false),
        (json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": -1}), 8, 3, 2, false),
        (json!({"total_tokens": 50}), 8, 7, 2, true),
    ] {
        let counts = counts_in(json!({"usage": usage}).as_object().unwrap()).unwrap();
        assert_eq!(
            counts.tokens(7, bytes),
            Tokens { input, output, is_estimated, ..Tokens::default() },
            "{usage}"
        );
    }
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
    // Numbers are unchanged, and `text` becomes a message.
    let answer = br#"{"choices":[{"text":"a","logprobs":[1.10000000000000000001]}],"usage":null}"#;
    let events = events_of(answer).unwrap();
    let expected = "data: {\"choices\":[{\"logprobs\":[1.10000000000000000001],\"delta\":{\"role\":\"assistant\",\
                    \"content\":\"a\"},\"finish_reason\":\"stop\"}],\"object\":\"chat.completion.chunk\"}\n\n\
                    data: [DONE]\n\n";
    assert_eq!(str::from_utf8(&events).unwrap(), expected);
    assert_eq!(events_of(br#"{"choices":[]}"#), None);
    assert_eq!(events_of(b"[1]"), None);
}

#[test]
fn json_with_impossible_logprobs_or_halves_of_characters_is_repaired() {
    for (json, expected) in [
        (r#"{"logprob":NaN}"#, r#"{"logprob":-9999.0}"#),
        ("{\"logprob\" :\n-Infinity}", r#"{"logprob" : -9999.0}"#),
        (r#"{"logprob": Infinity, "x": 1}"#, r#"{"logprob": -9999.0, "x": 1}"#),
        (r#"{"a":"\ud83d"}"#, r#"{"a":"\ufffd"}"#),
        (r#"{"a":"\uDE00x\ud83d\ude00"}"#, r#"{"a":"\ufffdx\ud83d\ude00"}"#),
        (r#"{"a":"é\n\ud83d\n"}"#, r#"{"a":"é\n\ufffd\n"}"#),
    ] {
        assert_eq!(repaired(json.as_bytes()).unwrap(), expected, "{json}");
        assert!(parse(json.as_bytes()).is_some(), "{json}");
    }
    for json in [
        r#"{"content":NaN}"#,
        r#"{"a":"\\ud83d"}"#,
        r#"{"a":"\ud83d\ude00 \u00e9"}"#,
        r#"{"a":"\"logprob\":NaN"}"#,
        "{",
    ] {
        assert_eq!(repaired(json.as_bytes()), None, "{json}");
    }
}
