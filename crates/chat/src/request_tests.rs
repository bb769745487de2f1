//! Tests of request parsing: rejected fields, and the forwarded body.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::*;
use orrery_wire::chat::{INPUTS_MAX, MESSAGES_MAX};

fn chat(body: &Value) -> Result<Request, (String, Option<Cow<'static, str>>, &'static str)> {
    read(Operation::Chat, &body.to_string())
}

fn read(
    operation: Operation,
    body: &str,
) -> Result<Request, (String, Option<Cow<'static, str>>, &'static str)> {
    let read = Request::read(operation, body.as_bytes());
    read.map_err(|InvalidRequest { message, param, code }| (message, param, code))
}

/// Returns a valid request with some fields replaced.
fn with(fields: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn chat_request_error_names_the_invalid_field() {
    let stops: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
    let many = vec![json!({"role": "user", "content": ""}); MESSAGES_MAX + 1];
    for (fields, param, message) in [
        (json!({"model": null}), "model", "model is required"),
        (json!({"model": ""}), "model", "model is required"),
        (json!({"model": 7}), "model", "model must be a string"),
        (json!({"model": "a\u{0}b"}), "model", "model must not contain control characters"),
        (json!({"model": "x".repeat(257)}), "model", "model must have at most 256 characters"),
        (json!({"messages": null}), "messages", "messages is required"),
        (json!({"messages": []}), "messages", "messages must not be empty"),
        (json!({"messages": "hi"}), "messages", "messages must be an array of objects"),
        (json!({"messages": many}), "messages", "messages must have at most 10000 items"),
        (json!({"messages": [1]}), "messages", "messages[0] must be an object"),
        (json!({"messages": [{"content": "a"}]}), "messages", "messages[0].role is required"),
        (
            json!({"messages": [{"role": "user", "content": 1}]}),
            "messages",
            "messages[0].content must be a string or an array of objects",
        ),
        (json!({"stream": "yes"}), "stream", "stream must be true or false"),
        (json!({"stream_options": []}), "stream_options", "stream_options must be an object"),
        (
            json!({"stream_options": {"include_usage": 1}}),
            "stream_options",
            "stream_options.include_usage must be true or false",
        ),
        (json!({"n": 0}), "n", "n must be a whole number from 1 to 128"),
        (json!({"n": 1.5}), "n", "n must be a whole number from 1 to 128"),
        (json!({"max_tokens": -2}), "max_tokens", "max_tokens must be -1 or a whole number from 1"),
        (json!({"max_completion_tokens": "9"}), "max_completion_tokens", "or a whole number"),
        (json!({"temperature": 3}), "temperature", "temperature must be a number from 0 to 2"),
        (json!({"top_p": -0.1}), "top_p", "top_p must be a number from 0 to 1"),
        (json!({"presence_penalty": 9}), "presence_penalty", "must be a number from -2 to 2"),
        (json!({"frequency_penalty": []}), "frequency_penalty", "must be a number from -2 to 2"),
        (json!({"top_logprobs": 21}), "top_logprobs", "must be a whole number from 0 to 20"),
        (json!({"stop": stops}), "stop", "stop must have at most 64 items"),
        (json!({"stop": [1]}), "stop", "stop[0] must be a string"),
        (json!({"stop": {}}), "stop", "stop must be a string or an array of strings"),
        (json!({"fallback_selector": 1}), "fallback_selector", "must be a string"),
    ] {
        let (found, of, _) = chat(&with(fields)).unwrap_err();
        assert_eq!(of.as_deref(), Some(param), "{found}");
        assert!(found.contains(message), "{found} is not {message}");
    }
    let (_, _, code) = chat(&json!({"messages": []})).unwrap_err();
    assert_eq!(code, "missing_required_parameter");
}

#[test]
fn chat_request_rejects_non_objects() {
    for (body, message) in [
        ("", "model is required"),
        ("{", "invalid JSON body: EOF while parsing"),
        ("{\"n\": NaN}", "invalid JSON body: expected value"),
        ("[]", "invalid request body: invalid type: sequence, expected a JSON object"),
        ("{\"stop\":[[[", "invalid JSON body: EOF while parsing"),
        (
            "model=a&b=c",
            "invalid JSON body: expected value at line 1 column 1: this looks like a form",
        ),
        (
            "---\nmodel: a",
            "invalid JSON body: invalid number at line 1 column 2: this looks like YAML",
        ),
    ] {
        let (found, _, _) = read(Operation::Chat, body).unwrap_err();
        assert!(found.starts_with(message), "{found}");
    }
    let deep = format!("{{\"model\":\"m\",\"stop\":{}{}}}", "[".repeat(9999), "]".repeat(9999));
    let (_, param, _) = read(Operation::Chat, &deep).unwrap_err();
    assert_eq!(param.as_deref(), Some("stop"));
}

#[test]
fn chat_request_body_changes_only_what_the_router_needs() {
    let sent = r#"{"model":"a","messages":[{"role":"user","content":"x"}],"seed":12345678901234567890123,"x":{ }}"#;
    let request = read(Operation::Chat, sent).unwrap();
    assert_eq!(request.body(None, StreamOptions::AsSent).unwrap(), sent);
    let renamed = sent.replace(r#""a""#, r#""b""#);
    assert_eq!(request.body(Some("b"), StreamOptions::AsSent).unwrap(), renamed);
}

#[test]
fn chat_stream_always_requests_usage() {
    let body = with(json!({"stream": true, "stream_options": {"x": 1, "include_usage": false}}));
    let request = chat(&body).unwrap();
    assert!(request.is_stream && !request.wants_usage);
    let sent: Value =
        serde_json::from_slice(&request.body(None, StreamOptions::AsSent).unwrap()).unwrap();
    assert_eq!(sent["stream_options"], json!({"x": 1, "include_usage": true}));
    assert!(request.has_own_stream_options());
    let usage_only = request.body(None, StreamOptions::UsageOnly).unwrap();
    let sent: Value = serde_json::from_slice(&usage_only).unwrap();
    assert_eq!(sent["stream_options"], json!({"include_usage": true}));
    let omitted = request.body(None, StreamOptions::Omitted).unwrap();
    let sent: Value = serde_json::from_slice(&omitted).unwrap();
    assert_eq!(sent.get("stream_options"), None);
    let request = chat(&with(json!({"stream": true}))).unwrap();
    assert!(!request.has_own_stream_options());
    let sent: Value =
        serde_json::from_slice(&request.body(None, StreamOptions::AsSent).unwrap()).unwrap();
    assert_eq!(sent["stream_options"], json!({"include_usage": true}));
}

#[test]
fn chat_request_of_a_chain_entry_keeps_model_and_stream() {
    let request = chat(&with(json!({"stream": true, "seed": 1}))).unwrap();
    let messages = json!([{"role": "user", "content": "12345678"}]);
    let fields = json!({"messages": messages, "model": "evil", "stream": false, "max_tokens": 9});
    let mapped = request.mapped(fields.as_object().unwrap()).unwrap();
    let bound = mapped.bound;
    assert_eq!((bound.prompt_estimate(), bound.tokens(None).output), (2, 9));
    let sent: Value =
        serde_json::from_slice(&mapped.body(Some("b"), StreamOptions::AsSent).unwrap()).unwrap();
    let expected = json!({
        "model": "b", "stream": true, "messages": messages, "max_tokens": 9,
        "stream_options": {"include_usage": true},
    });
    assert_eq!(sent, expected);
    for wrong in [json!({"messages": []}), json!({"x": 1}), json!({"messages": messages, "n": 0})] {
        assert!(request.mapped(wrong.as_object().unwrap()).is_none(), "{wrong}");
    }
}

#[test]
fn chat_request_selector_is_not_passed_on() {
    let request = chat(&with(json!({"fallback_selector": "safe"}))).unwrap();
    assert_eq!(request.selector.as_deref(), Some("safe"));
    let body = request.body(None, StreamOptions::AsSent).unwrap();
    assert!(!String::from_utf8(body.to_vec()).unwrap().contains("fallback_selector"));
}

#[test]
fn chat_request_bounds_its_tokens() {
    let request = chat(&with(json!({"n": 3, "max_tokens": 10}))).unwrap();
    assert_eq!(request.bound.prompt_estimate(), 2);
    assert_eq!(request.bound.tokens(None).output, 30);
    for fields in [json!({}), json!({"max_tokens": -1}), json!({"max_completion_tokens": -1})] {
        let open = chat(&with(fields)).unwrap();
        assert!(!open.bound.is_limited());
        let body = open.body(None, StreamOptions::AsSent).unwrap();
        assert!(
            !String::from_utf8(body.to_vec()).unwrap().contains("-1"),
            "not every server takes it"
        );
    }
}

#[test]
fn embeddings_request_takes_texts_and_tokens() {
    let read = |input: Value| {
        read(Operation::Embeddings, &json!({"model": "m", "input": input}).to_string())
            .map(|request| (request.bound.prompt_estimate(), request.bound.tokens(None).output))
    };
    for (input, tokens) in [
        (json!("12345"), 2),
        (json!(["1234", "1234"]), 2),
        (json!([1, 2, 3]), 3),
        (json!([[1, 2], [3]]), 3),
    ] {
        assert_eq!(read(input.clone()), Ok((tokens, 0)), "{input}");
    }
    for input in [json!(null), json!(""), json!([]), json!({}), json!([{}]), json!([1, "a"])] {
        let (message, param, _) = read(input).unwrap_err();
        assert_eq!(param.as_deref(), Some("input"), "{message}");
    }
    let (message, ..) = read(json!(vec!["x"; INPUTS_MAX + 1])).unwrap_err();
    assert_eq!(message, "input must have at most 2048 items");
}

proptest::proptest! {
    #[test]
    fn request_reader_never_panics(body in "[\\[\\]{}:,\"a-z0-9 .-]{0,60}") {
        let _read = Request::read(Operation::Chat, body.as_bytes());
        let wrapped = format!("{{\"model\":\"m\",\"messages\":{body},\"input\":{body}}}");
        let _read = Request::read(Operation::Chat, wrapped.as_bytes());
        let _read = Request::read(Operation::Embeddings, wrapped.as_bytes());
    }
}

#[test]
fn embeddings_reserve_the_context_for_each_input() {
    let long = "x".repeat(5000);
    for (input, tokens) in [(json!(long), 2048), (json!([long, long, long]), 3 * 2048)] {
        let body = json!({"input": input, "model": "m"}).to_string();
        let most = read(Operation::Embeddings, &body).unwrap().bound.tokens(Some(2048));
        assert_eq!((most.input, most.output), (tokens, 0));
    }
}
