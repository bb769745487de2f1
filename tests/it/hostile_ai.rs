//! Hostile requests to the routes of AI clients, and hostile models: each is refused in the format of
//! its route with the name of the field, or bounded by a budget, and leaves nothing behind.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::chat::{Reading, newest_row};
use crate::support::upstream::Feed;
use crate::support::{Ask, Service, Upstream, until, within};

const OLLAMA: &str = "hosts.ollama.listen = '127.0.0.1:0'\n";
const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                     per_million_output_tokens = 1000.0 }]\n";
/// More tokens than the streams of these tests have.
const NO_LIMIT: u64 = 4_000_000_000;
const MIB: usize = 1024 * 1024;

/// The format of a route's errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    OpenAi,
    Anthropic,
    Plain,
}

/// A route, and a request that it accepts.
struct Route {
    role: Role,
    path: &'static str,
    form: Form,
    body: Value,
}

impl Route {
    fn with(&self, field: &str, value: Value) -> Value {
        let mut body = self.body.clone();
        body[field] = value;
        body
    }

    fn ask(&self, service: &Service, body: impl Into<bytes::Bytes>) -> Ask {
        let ask = service.ask(self.role, Method::POST, self.path).key(&service.key);
        ask.header("content-type", "application/json").body(body).undocumented()
    }

    /// Checks the format of an error; returns its message and the name of the field.
    #[track_caller]
    fn refusal(&self, status: u16, body: &Value, expected: u16) -> (String, Value) {
        assert_eq!(status, expected, "{}: {body}", self.path);
        let error = &body["error"];
        let message = match self.form {
            Form::OpenAi => &error["message"],
            Form::Anthropic => {
                assert_eq!(body["type"], "error", "{body}");
                &error["message"]
            }
            Form::Plain => error,
        };
        let message = message.as_str().unwrap_or_else(|| panic!("{}: {body}", self.path));
        assert!(message.len() < 1000, "{message}");
        (message.to_owned(), error["param"].clone())
    }

    /// Sends a body that is refused.
    async fn refused(
        &self,
        service: &Service,
        body: impl Into<bytes::Bytes>,
        status: u16,
    ) -> String {
        let answer = self.ask(service, body).send().await;
        self.refusal(answer.status, &answer.json(), status).0
    }
}

fn routes() -> Vec<Route> {
    use Form::{Anthropic, OpenAi, Plain};
    use Role::{Base, Ollama};
    let messages = json!([{"role": "user", "content": "hi"}]);
    let route = |role, path, form, body| Route { role, path, form, body };
    vec![
        route(Base, "/v1/responses", OpenAi, json!({"model": "far", "input": "hi"})),
        route(
            Base,
            "/v1/messages",
            Anthropic,
            json!({"model": "far", "max_tokens": 9, "messages": messages}),
        ),
        route(
            Base,
            "/v1/messages/count_tokens",
            Anthropic,
            json!({"model": "far", "messages": messages}),
        ),
        route(Base, "/v1/completions", OpenAi, json!({"model": "far", "prompt": "hi"})),
        route(
            Base,
            "/v1/rerank",
            OpenAi,
            json!({"model": "far", "query": "hi", "documents": ["a"]}),
        ),
        route(
            Base,
            "/v1/batches",
            OpenAi,
            json!({
                "input_file_id": "01a21c6e-019b-70fb-b055-5d0f3b8e0257",
                "endpoint": "/v1/responses", "completion_window": "24h",
            }),
        ),
        route(Ollama, "/api/chat", Plain, json!({"model": "far", "messages": messages})),
        route(Ollama, "/api/generate", Plain, json!({"model": "far", "prompt": "hi"})),
        route(Ollama, "/api/embed", Plain, json!({"model": "far", "input": "hi"})),
    ]
}

async fn start(more: &str) -> (Upstream, Service) {
    let up = Upstream::start().await;
    let service = Service::configured(&format!("{OLLAMA}{more}{}", up.config(PRICE))).await;
    (up, service)
}

/// Sends bytes to the host of a route; returns the status and the JSON of the answer.
async fn raw(service: &Service, route: &Route, request: &[u8]) -> (u16, Value) {
    let mut stream = TcpStream::connect(service.address(route.role)).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let _ended = within("end of the connection", stream.read_to_end(&mut answer)).await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
}

async fn memory_is_free(service: &Service) {
    until("the budget is free", async || {
        (service.running.services.bodies.used() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn hostile_body_sizes_and_paces_are_refused_in_the_format_of_the_route() {
    let (up, service) = start("limits.body_timeout = '200ms'\n").await;
    for route in routes() {
        for (length, start, status, words) in
            [(9_000_000, "", 413, "larger than 8388608 bytes"), (100, "{", 408, "byte")]
        {
            let request = format!(
                "POST {} HTTP/1.1\r\nhost: x\r\nx-api-key: {}\r\ncontent-length: {length}\r\n\
                 connection: close\r\n\r\n{start}",
                route.path, service.key
            );
            let (found, body) = raw(&service, &route, request.as_bytes()).await;
            let (message, _) = route.refusal(found, &body, status);
            assert!(message.contains(words), "{}: {message}", route.path);
        }
    }
    assert!(up.requests().is_empty());
    memory_is_free(&service).await;
}

#[tokio::test]
async fn hostile_nesting_is_refused_in_every_known_field() {
    let (up, service) = start("").await;
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for route in routes() {
        for field in route.body.as_object().unwrap().keys() {
            let body = route.with(field, json!("@")).to_string().replace("\"@\"", &nested);
            let message = route.refused(&service, body, 400).await;
            let names = message.contains(field) || message.contains("invalid JSON body");
            assert!(names, "{} {field}: {message}", route.path);
        }
    }
    assert!(up.requests().is_empty());
    memory_is_free(&service).await;
}

#[tokio::test]
async fn hostile_numbers_of_items_are_refused_with_the_field() {
    const MANY: usize = 100_000;
    let (up, service) = start("").await;
    let message = json!({"role": "user", "content": "hi"});
    let tool = json!({"type": "function", "name": "f"});
    let anthropic = json!({"name": "f", "input_schema": {}});
    let function = json!({"type": "function", "function": {"name": "f"}});
    let metadata: serde_json::Map<_, _> =
        (0..MANY).map(|number| (number.to_string(), json!("x"))).collect();
    let many = |item: &Value| Value::from(vec![item.clone(); MANY]);
    let cases = [
        ("/v1/responses", "input", many(&message)),
        ("/v1/responses", "tools", many(&tool)),
        ("/v1/responses", "include", many(&json!("x"))),
        ("/v1/responses", "metadata", metadata.clone().into()),
        ("/v1/messages", "messages", many(&message)),
        ("/v1/messages", "tools", many(&anthropic)),
        ("/v1/messages", "stop_sequences", many(&json!("x"))),
        ("/v1/messages/count_tokens", "messages", many(&message)),
        ("/v1/messages/count_tokens", "tools", many(&anthropic)),
        ("/v1/completions", "prompt", many(&json!("x"))),
        ("/v1/completions", "stop", many(&json!("x"))),
        ("/v1/rerank", "documents", many(&json!("x"))),
        ("/v1/batches", "metadata", metadata.into()),
        ("/api/chat", "messages", many(&message)),
        ("/api/chat", "tools", many(&function)),
        ("/api/generate", "images", many(&json!("x"))),
        ("/api/embed", "input", many(&json!("x"))),
    ];
    let routes = routes();
    for (path, field, value) in cases {
        let route = routes.iter().find(|route| route.path == path).unwrap();
        let message = route.refused(&service, route.with(field, value).to_string(), 400).await;
        assert!(message.contains(field), "{path} {field}: {message}");
    }
    let zeros = format!("[{}0]", "0,".repeat(1_100_000));
    for route in routes {
        let body = route.with("unknown", json!("@")).to_string().replace("\"@\"", &zeros);
        let message = route.refused(&service, body, 413).await;
        assert!(message.contains("more than 1000000 JSON values"), "{message}");
    }
    assert!(up.requests().is_empty());
    memory_is_free(&service).await;
}

/// Returns the streams of routes, with a limit of this many tokens.
fn streams(tokens: u64) -> Vec<(Route, Value)> {
    let limits = [
        ("/v1/responses", "max_output_tokens", json!(tokens)),
        ("/v1/messages", "max_tokens", json!(tokens)),
        ("/v1/completions", "max_tokens", json!(tokens)),
        ("/api/chat", "options", json!({"num_predict": tokens})),
        ("/api/generate", "options", json!({"num_predict": tokens})),
    ];
    let stream = |route: Route| {
        let (_, field, value) = limits.iter().find(|(path, ..)| *path == route.path)?;
        let mut body = route.with(field, value.clone());
        body["stream"] = json!(true);
        Some((route, body))
    };
    routes().into_iter().filter_map(stream).collect()
}

#[tokio::test]
async fn stream_of_a_client_that_leaves_reserves_nothing() {
    let (up, service) = start("billing.enforce = true\n").await;
    let billing = service.running.services.billing.clone();
    // One call reserves more than half of the balance.
    let amount = orrery_domain::money::Usd::from_micros(100_000);
    billing.top_up(service.organization.id, amount).await.unwrap();
    for (count, (route, body)) in (1..).zip(streams(60)) {
        let feed = up.streams();
        let chunk = json!({"choices": [{"index": 0, "delta": {"content": "12345678"},
                                        "text": "12345678"}]});
        feed.event(&chunk);
        let answer = route.ask(&service, body.to_string()).open().await;
        assert_eq!(answer.status(), 200, "{}", route.path);
        let mut reading = Reading::of(answer);
        reading.until("12345678").await;
        drop(reading);
        up.hung_up(count).await;
        let row = newest_row(&service, count).await;
        assert_eq!(row["status"], "cancelled", "{}", route.path);
        drop(feed);
    }
    memory_is_free(&service).await;
}

/// What an endless stream repeats.
fn endless(event: &Value) -> String {
    format!("data: {event}\n\n")
}

#[tokio::test]
async fn stream_without_end_is_bounded_by_the_budget_of_bodies() {
    let limits = "limits.body_bytes = '64KiB'\nlimits.bodies_in_flight = '4MiB'\n";
    let (up, service) = start(limits).await;
    let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
    let long = "x".repeat(32 * 1024);
    let text = endless(&delta(json!({"content": long})));
    let begin = json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}});
    let begin = endless(&delta(json!({"tool_calls": [begin]})));
    let more = json!({"index": 0, "function": {"arguments": long}});
    let more = endless(&delta(json!({"tool_calls": [more]})));
    // An event that never ends.
    let event = [text.as_str(), "data: {\"x\":\""].concat();
    let mut count = 0;
    for (path, first, repeated) in [
        ("/v1/responses", text.as_str(), text.as_str()),
        ("/v1/responses", begin.as_str(), more.as_str()),
        ("/v1/responses", event.as_str(), long.as_str()),
        ("/v1/messages", event.as_str(), long.as_str()),
        ("/v1/completions", event.as_str(), long.as_str()),
        ("/api/chat", begin.as_str(), more.as_str()),
        ("/api/chat", event.as_str(), long.as_str()),
    ] {
        count += 1;
        let feed = up.streams();
        feed.raw(first);
        fill(&feed, repeated, 16 * MIB);
        let (route, body) =
            streams(NO_LIMIT).into_iter().find(|(route, _)| route.path == path).unwrap();
        let answer = route.ask(&service, body.to_string()).send().await;
        let end = &answer.text[answer.text.len().saturating_sub(2000)..];
        assert_eq!(answer.status, 200, "{path}: {end}");
        let message = "too many bodies are in flight";
        assert!(answer.text.len() < 16 * MIB, "{path}");
        assert!(answer.text.contains(message), "{path}: {end}");
        up.hung_up(count).await;
    }
    memory_is_free(&service).await;
}

fn fill(feed: &Feed, repeated: &str, bytes: usize) {
    for _ in 0..bytes / repeated.len() {
        feed.raw(repeated);
    }
}

#[tokio::test]
async fn stream_with_too_many_parts_ends_with_an_error() {
    let (up, service) = start("").await;
    let delta = |delta: Value| endless(&json!({"choices": [{"index": 0, "delta": delta}]}));
    let call = |number: usize| {
        let call = json!({"index": number, "id": format!("c{number}"), "function": {"name": "f"}});
        delta(json!({"tool_calls": [call]}))
    };
    let calls: String = (0..1100).map(call).collect();
    let turns = [delta(json!({"content": "a"})), delta(json!({"reasoning": "b"}))].concat();
    let turns = turns.repeat(5001);
    for (events, words) in
        [(calls, "has more than 1024 tool calls"), (turns, "has more than 10000 parts")]
    {
        for path in ["/v1/responses", "/v1/messages", "/api/chat"] {
            let feed = up.streams();
            feed.raw(&events);
            feed.finish(1, 1);
            let (route, body) =
                streams(NO_LIMIT).into_iter().find(|(route, _)| route.path == path).unwrap();
            let answer = route.ask(&service, body.to_string()).send().await;
            let end = &answer.text[answer.text.len().saturating_sub(2000)..];
            assert!(answer.text.contains(words), "{path}: {end}");
        }
    }
    memory_is_free(&service).await;
}

#[tokio::test]
async fn deeply_nested_answers_are_failures_of_the_model() {
    let (up, service) = start("").await;
    let nested = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let message = json!({"role": "assistant", "content": "hi", "x": "@"});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let answer = json!({"choices": [choice]}).to_string().replace("\"@\"", &nested);
    for (route, _) in streams(60) {
        if route.path == "/v1/completions" {
            continue;
        }
        up.answers(200, answer.clone());
        let body = route.with("stream", json!(false));
        let message = route.refused(&service, body.to_string(), 502).await;
        assert!(message.contains("the model"), "{}: {message}", route.path);
    }
}

/// Uploads a file for a batch.
async fn upload(service: &Service, lines: &[u8]) -> Value {
    let head =
        "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n";
    let form = [head.as_bytes(), lines, b"\r\n--b--\r\n"].concat();
    let upload = service.ask(Role::Base, Method::POST, "/v1/files").key(&service.key);
    let upload = upload.header("content-type", "multipart/form-data; boundary=b").body(form);
    upload.send().await.expect(201)
}

async fn ended(service: &Service, lines: &[u8], endpoint: &str) -> Value {
    let file = upload(service, lines).await;
    let body = json!({"input_file_id": file["id"], "endpoint": endpoint,
                      "completion_window": "24h"});
    let made = service.post("/v1/batches", &body).send().await.expect(200);
    let path = format!("/v1/batches/{}", made["id"].as_str().unwrap());
    until("the batch ends", async || {
        let batch = service.get(&path).await.expect(200);
        ["failed", "completed"].contains(&batch["status"].as_str().unwrap()).then_some(batch)
    })
    .await
}

#[tokio::test]
async fn hostile_batch_files_are_refused_by_line() {
    let (up, service) = start("").await;
    let line = |id: &str| {
        let body = json!({"model": "far", "input": "hi"});
        json!({"custom_id": id, "method": "POST", "url": "/v1/responses", "body": body}).to_string()
    };
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let text = format!("\"{}\"", "x".repeat(2 * MIB));
    let lines: Vec<Vec<u8>> = vec![
        line("a").into(),
        [b"{\"custom_id\": \"", [0xff, 0xfe].as_slice(), b"\"}"].concat(),
        nested.clone().into(),
        line("b").replace("\"b\"", &nested).into(),
        text.clone().into(),
        line("c").replace("\"c\"", &text).into(),
        line("a").into(),
    ];
    let failed = ended(&service, &lines.join(&b'\n'), "/v1/responses").await;
    assert_eq!(failed["status"], "failed");
    let errors = failed["errors"]["data"].as_array().unwrap();
    let found: Vec<_> =
        errors.iter().map(|error| (error["line"].as_u64(), error["code"].as_str())).collect();
    let invalid = |line| (Some(line), Some("invalid_json_line"));
    let expected = [
        invalid(2),
        invalid(3),
        invalid(4),
        invalid(5),
        (Some(6), Some("invalid_custom_id")),
        (Some(7), Some("duplicate_custom_id")),
    ];
    assert_eq!(found, expected);
    assert!(failed.to_string().len() < 4000, "messages quote no long values");
    assert!(up.requests().is_empty());
}

#[tokio::test]
async fn batch_lines_that_take_too_much_memory_are_refused_alone() {
    let (up, service) = start("").await;
    up.says("hi", 1, 1);
    let zeros = format!("[{}0]", "0,".repeat(1_100_000));
    for (url, field) in [("/v1/chat/completions", "messages"), ("/v1/responses", "input")] {
        let line = |id: &str, body: Value| {
            json!({"custom_id": id, "method": "POST", "url": url, "body": body}).to_string()
        };
        let message = json!([{"role": "user", "content": "hi"}]);
        let lines = [
            line("large", json!({"model": "far", field: "@"})).replace("\"@\"", &zeros),
            line("small", json!({"model": "far", field: message})),
        ];
        up.says("hi", 1, 1);
        let ended = ended(&service, lines.join("\n").as_bytes(), url).await;
        assert_eq!(ended["request_counts"], json!({"total": 2, "completed": 1, "failed": 1}));
        let path = format!("/v1/files/{}/content", ended["error_file_id"].as_str().unwrap());
        let errors = service.get(&path).await.json();
        assert_eq!(errors["response"]["status_code"], 413, "{errors}");
    }
    memory_is_free(&service).await;
}
