//! Tests the runner with servers that stream, reject requests, break off or send garbage.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::answer::EVENT_MAX;
use super::*;
use crate::{RecordingProgress, test_call};
use orrery_domain::classify::ErrorClass;
use orrery_runtime::Tasks;

/// Starts a server that responds to one request with `answer` and then closes the connection or
/// keeps it open. Returns the port, the request's body, and a signal that the client has
/// disconnected.
async fn server(
    answer: String,
    holds: bool,
) -> (u16, oneshot::Receiver<String>, oneshot::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (asked, request) = oneshot::channel();
    let (left, gone) = oneshot::channel();
    Tasks::new().spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut text = String::new();
        let mut buffer = [0; 8192];
        while !text.ends_with('}') {
            let count = stream.read(&mut buffer).await.unwrap();
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        let _sent = asked.send(text);
        stream.write_all(answer.as_bytes()).await.unwrap();
        if holds {
            while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
            let _sent = left.send(());
        }
    });
    (port, request, gone)
}

fn whole(status: u16, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

fn stream(events: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{events}"
    )
}

fn runner(port: u16, kind: Kind) -> OpenAiRunner {
    let options = Options {
        servers: Servers::of(&[&format!("http://127.0.0.1:{port}/v1")]),
        model: "llama".to_owned(),
        kind,
        authorization: Some(HeaderValue::from_static("Bearer t0ken")),
    };
    let model = Model::of_test("talker", Duration::from_secs(20));
    let servers = Arc::new(Pool::of_test(&options.servers.addresses, model.timeout));
    OpenAiRunner {
        options: Arc::new(options),
        model,
        client: Client::trusted(),
        servers,
        is_probed: false,
    }
}

async fn run(
    kind: Kind,
    input: Value,
    answer: String,
) -> (Result<Success, super::super::Error>, String) {
    let (port, request, _gone) = server(answer, false).await;
    let job = Arc::<RecordingProgress>::default().job(input);
    let result = runner(port, kind).run(job).await;
    (result, request.await.unwrap())
}

fn body(request: &str) -> Value {
    serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap()
}

const DELTAS: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n\
    : a comment\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\r\n\r\n\
    data:{\"choices\":[{\"delta\":{\"content\":\"lo\"},\"finish_reason\":\"stop\"}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n\
    data: [DONE]\n\n";

#[tokio::test]
async fn openai_chat_is_streamed_and_tokens_counted() {
    let input = json!({"prompt": "Hi", "system": "Be brief", "temperature": 0.5});
    let (result, request) = run(Kind::Chat, input, stream(DELTAS)).await;
    let success = result.unwrap();
    assert_eq!(success.output, "Hello");
    assert_eq!((success.usage.input_tokens, success.usage.output_tokens), (Some(3), Some(2)));
    assert!(request.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: Bearer t0ken\r\n"));
    assert!(request.contains("idempotency-key: e:s:1\r\n"));
    let traceparent = format!("traceparent: {}\r\n", test_call().traceparent());
    assert!(request.contains(&traceparent), "{request}");
    let expected = json!({
        "temperature": 0.5,
        "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}],
        "stream": true, "stream_options": {"include_usage": true}, "model": "llama",
    });
    assert_eq!(body(&request), expected);
    // The text is reported as it arrives.
    let (port, _request, _gone) = server(stream(DELTAS), false).await;
    let heard = Arc::<RecordingProgress>::default();
    runner(port, Kind::Chat).run(heard.job(json!({"prompt": "Hi"}))).await.unwrap();
    let parts: Vec<_> = heard.parts.lock().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(parts.concat().replace("\"\"", ""), "\"Hello\"");
    // A conversation is sent unchanged; a server that does not support streaming works too.
    let messages = json!([{"role": "user", "content": "x"}]);
    let answer = r#"{"choices":[{"message":{"content":"y"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}"#;
    let (result, request) =
        run(Kind::Chat, json!({"messages": messages}), whole(200, answer)).await;
    assert_eq!(result.unwrap().output, "y");
    assert_eq!(body(&request)["messages"], messages);
}

#[tokio::test]
async fn openai_implausible_usage_is_estimated() {
    for usage in [
        r#""usage":{"prompt_tokens":9223372036854775808,"completion_tokens":1}"#,
        r#""usage":{"prompt_tokens":1,"completion_tokens":-1}"#,
        r#""usage":{"prompt_tokens":1,"completion_tokens":1e308}"#,
        r#""usage":{"prompt_tokens":"many"}"#,
        r#""usage":null"#,
    ] {
        let choice = r#"{"message":{"content":"12345678"},"finish_reason":"stop"}"#;
        let answer = format!("{{\"choices\":[{choice}],{usage}}}");
        let (result, _request) = run(Kind::Chat, json!({"prompt": "x"}), whole(200, &answer)).await;
        let usage = result.unwrap().usage;
        assert_eq!((usage.input_tokens, usage.output_tokens), (Some(1), Some(2)), "{answer}");
    }
}

#[tokio::test]
async fn openai_embeddings_and_images_return_one_or_several() {
    let two = r#"{"data":[{"embedding":[1,2]},{"embedding":[3]}],"usage":{"prompt_tokens":5}}"#;
    let one = r#"{"data":[{"embedding":[1,2]}]}"#;
    for (input, answer, expect) in [
        (json!({"input": "a"}), one, json!([1, 2])),
        (json!({"input": ["a"]}), one, json!([[1, 2]])),
        (json!({"input": ["a", "b"]}), two, json!([[1, 2], [3]])),
    ] {
        let (result, request) = run(Kind::Embeddings, input.clone(), whole(200, answer)).await;
        assert_eq!(result.unwrap().output, expect);
        assert!(request.starts_with("POST /v1/embeddings "));
        assert_eq!(body(&request), json!({"input": input["input"], "model": "llama"}));
    }
    let images = r#"{"data":[{"url":"https://h/a.png"},{"b64_json":"AAAA"}]}"#;
    let (result, request) = run(Kind::Images, json!({"prompt": "a cat"}), whole(200, images)).await;
    assert_eq!(result.unwrap().output, json!(["https://h/a.png", "data:image/png;base64,AAAA"]));
    assert!(request.starts_with("POST /v1/images/generations "));
}

#[tokio::test]
async fn openai_failures_have_error_class_and_name_the_model() {
    let unfinished = "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n";
    let filtered = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"content_filter\"}]}\n\n";
    let broken = "data: {\"error\":{\"message\":\"out of memory\"}}\n\n";
    let policy = r#"{"error":{"code":"content_policy_violation","message":"no"}}"#;
    let vllm = r#"{"object":"error","message":"CUDA out of memory","code":500}"#;
    let late = format!("{unfinished}data: {vllm}\n\ndata: [DONE]\n\n");
    for (kind, answer, class, message) in [
        (
            Kind::Chat,
            whole(401, "no"),
            ErrorClass::ProviderAuth,
            "rejects this service's credentials (401)",
        ),
        (Kind::Chat, whole(429, "slow"), ErrorClass::ProviderRateLimit, "answered 429: slow"),
        (Kind::Chat, whole(400, policy), ErrorClass::ContentModeration, "answered 400: no"),
        (Kind::Chat, whole(503, ""), ErrorClass::ProviderUnavailable, "answered 503"),
        (Kind::Chat, whole(200, "<p>"), ErrorClass::ProviderError, "HTML"),
        (Kind::Chat, whole(200, ""), ErrorClass::ProviderUnavailable, "before the answer began"),
        (Kind::Chat, whole(200, "{}"), ErrorClass::ProviderError, "none of the requested content"),
        (Kind::Chat, whole(200, vllm), ErrorClass::ProviderError, "CUDA out of memory"),
        (Kind::Chat, stream(unfinished), ErrorClass::ProviderUnavailable, "ended before"),
        (Kind::Chat, stream(filtered), ErrorClass::ContentModeration, "content filter"),
        (Kind::Chat, stream(broken), ErrorClass::ProviderError, "out of memory"),
        (Kind::Chat, stream(&late), ErrorClass::ProviderError, "CUDA out of memory"),
        (Kind::Chat, stream("data: [DONE]\n\n"), ErrorClass::ProviderError, "has no answer"),
        (
            Kind::Chat,
            stream("data: {\"choices\":[]}\n\ndata: [DONE]\n\n"),
            ErrorClass::ProviderError,
            "has no answer",
        ),
        (Kind::Chat, stream(": hi\n\n"), ErrorClass::ProviderUnavailable, "ended before"),
        (
            Kind::Chat,
            stream("data: {nonsense\n\n"),
            ErrorClass::ProviderError,
            "an event that is not valid JSON",
        ),
        (Kind::Embeddings, whole(200, "{}"), ErrorClass::ProviderError, "without data"),
        (Kind::Embeddings, whole(200, vllm), ErrorClass::ProviderError, "CUDA out of memory"),
        (
            Kind::Images,
            whole(200, r#"{"data":[{}]}"#),
            ErrorClass::ProviderError,
            "without the requested",
        ),
        (Kind::Images, whole(500, "x"), ErrorClass::ProviderError, "answered 500: x"),
    ] {
        let (result, _) = run(kind, json!({"prompt": "x", "input": "x"}), answer).await;
        let failure = result.unwrap_err().failure;
        assert_eq!(failure.class, class, "{failure:?}");
        assert!(failure.message.contains(message), "{failure:?}");
        assert!(failure.message.starts_with("the model 'talker'"), "{failure:?}");
    }
    let endless = format!("data: {}", "x".repeat(EVENT_MAX + 1));
    let (result, _) = run(Kind::Chat, json!({"prompt": "x"}), stream(&endless)).await;
    assert!(result.unwrap_err().failure.message.contains("larger than"));
}

#[tokio::test]
async fn openai_stream_needs_a_readable_answer() {
    for (choice, output) in [
        (r#""delta":{"content":"four"}"#, Some("four")),
        (r#""message":{"content":"four"}"#, Some("four")),
        (r#""delta":null,"message":{"content":"four"},"finish_reason":"stop""#, Some("four")),
        (r#""text":"four""#, Some("four")),
        (r#""delta":{},"finish_reason":"stop""#, Some("")),
        (r#""delta":{}"#, None),
        (r#""finish_reason":"stop""#, None),
        (r#""delta":{"text":"four"},"finish_reason":"stop""#, None),
        (r#""delta":{"content":4},"finish_reason":"stop""#, None),
    ] {
        let events = format!("data: {{\"choices\":[{{{choice}}}]}}\n\ndata: [DONE]\n\n");
        let (result, _) = run(Kind::Chat, json!({"prompt": "x"}), stream(&events)).await;
        match (result, output) {
            (Ok(success), Some(output)) => assert_eq!(success.output, output, "{choice}"),
            (Err(error), None) => {
                assert_eq!(error.failure.class, ErrorClass::ProviderError);
                assert!(error.failure.message.contains("its stream has no answer"), "{error}");
            }
            (result, _) => panic!("{choice}: {result:?}"),
        }
    }
}

#[tokio::test]
async fn openai_closes_connection_when_run_is_dropped() {
    let (port, request, gone) = server(stream("data: {\"choices\":[]}\n\n"), true).await;
    let runner = runner(port, Kind::Chat);
    let job = Arc::<RecordingProgress>::default().job(json!({"prompt": "x"}));
    let mut run = runner.run(job);
    tokio::select! {
        _ = &mut run => panic!("the run has finished"),
        asked = request => assert!(asked.is_ok()),
    }
    drop(run);
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap().unwrap();
}

#[test]
fn openai_each_kind_has_a_compilable_schema() {
    for kind in Kind::ALL {
        let schema = orrery_schema::Schema::compile(&kind.schema()).unwrap();
        assert!(schema.check(json!({})).is_err(), "{kind:?}");
    }
}

/// Compares the output for a stream of these events with the output for the same response if it is
/// not streamed.
#[tokio::test]
async fn openai_chat_output_carries_more_than_text() {
    let call = json!({"id": "c", "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\":\"Paris\"}"}});
    for (message, reason, expected) in [
        (json!({"content": "hi"}), "stop", json!("hi")),
        (json!({"content": null}), "stop", json!("")),
        (
            json!({"content": null, "tool_calls": [call]}),
            "tool_calls",
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        ),
        (
            json!({"content": "Let me see", "tool_calls": [call]}),
            "tool_calls",
            json!({"role": "assistant", "content": "Let me see", "tool_calls": [call]}),
        ),
        (
            json!({"content": null, "refusal": "I cannot"}),
            "stop",
            json!({"role": "assistant", "content": null, "refusal": "I cannot"}),
        ),
    ] {
        let body = json!({"choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"input_tokens": 3, "output_tokens": 2}});
        let mut delta = message.clone();
        if let Some(call) = delta.pointer_mut("/tool_calls/0") {
            call["index"] = json!(0);
        }
        let chunk = json!({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
            "usage": {"input_tokens": 3, "output_tokens": 2}});
        for answer in
            [whole(200, &body.to_string()), stream(&format!("data: {chunk}\n\ndata: [DONE]\n\n"))]
        {
            let (result, _) = run(Kind::Chat, json!({"prompt": "x"}), answer).await;
            let success = result.unwrap();
            assert_eq!(success.output, expected, "{message}");
            let tokens = (success.usage.input_tokens, success.usage.output_tokens);
            assert_eq!(tokens, (Some(3), Some(2)));
        }
    }
    let two = "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"b\"}},{\"index\":0,\"delta\":\
               {\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n";
    let (result, _) = run(Kind::Chat, json!({"prompt": "x", "n": 2}), stream(two)).await;
    assert_eq!(result.unwrap().output, json!(["a", "b"]));
    let image = format!("data:image/png;base64,{}", "A".repeat(3 * 1024 * 1024));
    let event = json!({"choices": [{"delta": {"images": [{"image_url": {"url": image}}]},
        "finish_reason": "stop"}]});
    let (result, _) =
        run(Kind::Chat, json!({"prompt": "x"}), stream(&format!("data: {event}\n\n"))).await;
    assert_eq!(result.unwrap().output["images"][0]["image_url"]["url"], image);
}
