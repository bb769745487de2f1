//! Tests the runner with servers that respond, refuse connections, hang or send garbage.

use std::sync::Arc;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::*;
use crate::RecordingProgress;
use orrery_domain::money::Usd;
use orrery_runtime::Tasks;

/// Starts a server that responds to one request with `answer`. Returns the port, the text of the
/// request, and a signal that the client disconnected.
async fn server(answer: String) -> (u16, oneshot::Receiver<String>, oneshot::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (asked, request) = oneshot::channel();
    let (left, closed) = oneshot::channel();
    Tasks::new().spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut text = Vec::new();
        let mut buffer = [0; 4096];
        // Read the head, and the body up to the end of its JSON.
        while !text.ends_with(b"}") && !text.ends_with(b"\r\n\r\n") {
            let count = stream.read(&mut buffer).await.unwrap();
            text.extend_from_slice(&buffer[..count]);
        }
        let _sent = asked.send(String::from_utf8(text).unwrap());
        stream.write_all(answer.as_bytes()).await.unwrap();
        while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
        let _sent = left.send(());
    });
    (port, request, closed)
}

fn answer(status: u16, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

fn runner(port: u16, timeout: Duration) -> HttpRunner {
    let options = Options {
        servers: Servers::of(&[&format!("http://127.0.0.1:{port}/predict")]),
        health: None,
        method: Method::POST,
        headers: vec![(hyper::header::AUTHORIZATION, HeaderValue::from_static("Bearer t0ken"))],
        body: Some(InputTemplate::parse(&json!({"image": "{{input.image}}"})).unwrap()),
        form: None,
        poll: None,
        output: Some("/caption".to_owned()),
    };
    let model = Model::of_test("caption", timeout);
    let servers = Pool::of_test(&options.servers.addresses, timeout);
    let sources = Sources::new(orrery_http::egress::Policy::default(), None);
    let client = Client::trusted();
    HttpRunner { options: Arc::new(options), model, client, sources, servers }
}

fn job() -> Job {
    Arc::<RecordingProgress>::default().job(json!({"image": "data:x", "other": 1}))
}

const PATIENT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn http_runner_builds_request_and_reads_output_per_manifest() {
    let (port, request, _) =
        server(answer(200, r#"{"caption":"a cat","metrics":{"cost":0.25}}"#)).await;
    let success = runner(port, PATIENT).run(job()).await.unwrap();
    assert_eq!(success.output, "a cat");
    assert_eq!(success.usage.cost, Some(Usd::from_micros(250_000)));
    let request = request.await.unwrap();
    assert!(request.starts_with("POST /predict HTTP/1.1\r\n"), "{request}");
    let traceparent = format!("traceparent: {}\r\n", job().trace.traceparent());
    for line in ["idempotency-key: e:s:1", "authorization: Bearer t0ken", &traceparent] {
        assert!(request.contains(line), "{request}");
    }
    assert!(request.ends_with("\r\n\r\n{\"image\":\"data:x\"}"), "{request}");
}

#[tokio::test]
async fn http_runner_fills_references_and_sends_credentials_of_url() {
    for (before, path, expect) in [
        ("al%40ice:p%40ss@", "/predict", "POST /predict HTTP/1.1\r\n"),
        ("al%40ice:p%40ss@", "/u/{{input.id}}/x", "POST /u/a%2F..%2Fb/x HTTP/1.1\r\n"),
        ("{{input.user}}:p%40ss@", "/?q={{input.id}}", "POST /?q=a%2F..%2Fb HTTP/1.1\r\n"),
    ] {
        let (port, request, _) = server(answer(200, r#"{"caption":"a cat"}"#)).await;
        let mut runner = runner(port, PATIENT);
        let servers = Servers::of(&[&format!("http://{before}127.0.0.1:{port}{path}")]);
        runner.servers = Pool::of_test(&servers.addresses, PATIENT);
        runner.options = Arc::new(Options {
            servers,
            health: None,
            method: Method::POST,
            headers: Vec::new(),
            body: None,
            form: None,
            poll: None,
            output: None,
        });
        let input = json!({"id": "a/../b", "user": "al@ice"});
        runner.run(Arc::<RecordingProgress>::default().job(input)).await.unwrap();
        let request = request.await.unwrap();
        assert!(request.starts_with(expect), "{request}");
        let header = format!("authorization: Basic {}\r\n", STANDARD.encode("al@ice:p@ss"));
        assert!(request.contains(&header), "{request}");
    }
    let mut runner = runner(1, PATIENT);
    let servers = Servers::of(&["http://127.0.0.1:1/u/{{input.id}}/x"]);
    runner.servers = Pool::of_test(&servers.addresses, PATIENT);
    for (input, says) in [(json!({"id": ".."}), "'..'"), (json!({}), "{{input.id}}")] {
        let error = runner.run(Arc::<RecordingProgress>::default().job(input)).await.unwrap_err();
        assert_eq!(error.failure.class, ErrorClass::InvalidUserInput, "{error}");
        assert!(error.failure.message.contains(says), "{error}");
    }
}

#[tokio::test]
async fn http_runner_maps_statuses_to_error_classes() {
    use ErrorClass::*;
    for (status, body, class, says) in [
        (400, "bad\nimage", InvalidUserInput, "answered 400: bad image"),
        (401, "", ProviderAuth, "answered 401: (nothing)"),
        (422, "{}", InvalidUserInput, "answered 422"),
        (429, "slow down", ProviderRateLimit, "slow down"),
        (500, "boom", ProviderError, "boom"),
        (503, "later", ProviderUnavailable, "later"),
        (302, "", ProviderError, "answered 302"),
        (200, "not json", ProviderError, "not valid JSON: not json"),
        (200, "{\"a\":1}", ProviderError, "without /caption"),
    ] {
        let (port, ..) = server(answer(status, body)).await;
        let error = runner(port, PATIENT).run(job()).await.unwrap_err();
        assert_eq!(error.failure.class, class, "{error}");
        let message = &error.failure.message;
        assert!(message.contains("'caption'") && message.contains(says), "{message}");
        assert!(!message.contains("t0ken"), "{message}");
    }
}

#[tokio::test]
async fn http_runner_blames_provider_for_garbage_refusal_and_oversize() {
    let (port, ..) = server("garbage\r\n\r\n".to_owned()).await;
    let garbage = runner(port, PATIENT).run(job()).await.unwrap_err();
    assert_eq!(garbage.failure.class, ErrorClass::ProviderError, "{garbage}");
    let head = format!("HTTP/1.1 200 X\r\nContent-Length: {}\r\n\r\n", ANSWER_MAX + 1);
    let (port, ..) = server(head + &"x".repeat(ANSWER_MAX + 1)).await;
    let oversize = runner(port, PATIENT).run(job()).await.unwrap_err();
    assert!(oversize.failure.message.contains("larger than"), "{oversize}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let refused = runner(port, PATIENT).run(job()).await.unwrap_err();
    assert_eq!(refused.failure.class, ErrorClass::ProviderUnavailable, "{refused}");
}

#[tokio::test]
async fn http_runner_times_out_on_hanging_server() {
    let (port, ..) = server(String::new()).await;
    let error = runner(port, Duration::from_millis(50)).run(job()).await.unwrap_err();
    assert_eq!(error.failure.class, ErrorClass::ExecutionTimeout, "{error}");
}

#[tokio::test]
async fn http_runner_closes_connection_when_run_is_dropped() {
    let (port, request, closed) = server(String::new()).await;
    let runner = runner(port, PATIENT);
    tokio::select! {
        _ = runner.run(job()) => panic!("it answered"),
        request = request => assert!(request.is_ok()),
    }
    assert_eq!(closed.await, Ok(()));
}
