//! Chat completions: which model answers, what the router forwards, what a call costs, and which
//! requests it rejects.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use orrery_api::Role;
use orrery_domain::account::EntryKind;
use orrery_domain::money::Usd;
use serde_json::{Value, json};

use crate::support::{Answer, Ask, Service, Upstream, upstream, within};

const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                     per_million_output_tokens = 1000.0 }]\n";
const COST: &str = "[cost]\ntype = 'usage_based'\nper_million_input_tokens = 100.0\n\
                    per_million_output_tokens = 1000.0\n";

pub(crate) fn request(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hello"}]})
}

fn stream(model: &str) -> Value {
    json!({"stream": true, "model": model, "messages": [{"role": "user", "content": "hello"}]})
}

pub(crate) fn ask(service: &Service, body: &Value) -> Ask {
    service.post("/v1/chat/completions", body)
}

/// Returns the newest row of the history, once the history has this many rows.
pub(crate) async fn newest_row(service: &Service, count: usize) -> Value {
    crate::support::until("row of the call", async || {
        let rows = service.get("/v2/executions").await.expect(200)["executions"].clone();
        (rows.as_array().unwrap().len() == count).then(|| rows[0].clone())
    })
    .await
}

async fn balance(service: &Service) -> Usd {
    service.running.services.billing.balance(service.organization.id).await.unwrap()
}

/// Checks an error in OpenAI's format.
#[track_caller]
fn expect_error(answer: &Answer, status: u16, kind: &str, param: Option<&str>, code: Option<&str>) {
    let body = answer.expect(status);
    let error = &body["error"];
    let found = (&error["type"], &error["param"], &error["code"]);
    assert_eq!(found, (&json!(kind), &json!(param), &json!(code)), "{body}");
}

/// A stream being read.
pub(crate) struct Reading {
    body: Incoming,
    text: String,
}

impl Reading {
    pub(crate) async fn open(ask: Ask) -> Self {
        let answer = ask.open().await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self::of(answer)
    }

    pub(crate) fn of(answer: hyper::Response<Incoming>) -> Self {
        Self { body: answer.into_body(), text: String::new() }
    }

    /// Reads until `text` has arrived; returns all text since the last call.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        within(text, async {
            while !self.text.contains(text) {
                let frame = self.body.frame().await.unwrap().unwrap();
                self.text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
            }
        })
        .await;
        std::mem::take(&mut self.text)
    }

    /// Reads the rest of the stream.
    pub(crate) async fn rest(mut self) -> String {
        let rest = within("end of the stream", self.body.collect()).await.unwrap().to_bytes();
        self.text.push_str(std::str::from_utf8(&rest).unwrap());
        self.text
    }
}

#[tokio::test]
async fn chat_upstream_model_gets_request_unchanged() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    up.says("hi", 30, 20);
    let mut body = request("far");
    body["seed"] = json!(7);
    body["unknown"] = json!({"x": [1.5]});
    let answer = ask(&service, &body).send().await;
    let said = answer.expect(200);
    assert_eq!(up.newest(), body);
    let sent = &up.requests()[0];
    assert_eq!(sent.uri().path(), "/v1/chat/completions");
    assert_eq!(sent.headers()["authorization"], "Bearer sk-up");
    assert_eq!(said["choices"][0]["message"]["content"], "hi");
    assert_eq!(said["usage"]["cost"], 0.023);
    assert!(!answer.header("x-request-id").is_empty());
    let row = newest_row(&service, 1).await;
    assert_eq!(row["id"], answer.header("x-execution-id"));
    let found = json!({
        "type": row["type"], "source": row["source"], "model": row["model"],
        "requested_model": row["requested_model"], "status": row["status"],
        "cost": row["execution_cost"], "output": row["output"], "error": row["error"],
    });
    let expected = json!({
        "type": "chat", "source": "api", "model": "far", "requested_model": "far",
        "status": "success", "cost": 0.023, "output": null, "error": null,
    });
    assert_eq!(found, expected);
    let mut call = row["chat"].clone();
    assert!(call["first_byte_time"].as_f64().unwrap() < row["run_time"].as_f64().unwrap() + 1.0);
    call.as_object_mut().unwrap().shift_remove("first_byte_time");
    let expected = json!({
        "operation": "chat", "upstream": true, "stream": false, "input_tokens": 30,
        "output_tokens": 20, "tokens_estimated": false, "priced": true,
    });
    assert_eq!(call, expected);
    let ledger = service.ledger().await;
    assert_eq!(ledger.len(), 1);
    assert_eq!((ledger[0].kind, ledger[0].amount), (EntryKind::Charge, Usd::from_micros(-23_000)));
    assert_eq!(ledger[0].execution.unwrap().to_string(), row["id"].as_str().unwrap());
    assert_eq!(balance(&service).await, Usd::from_micros(-23_000));
}

#[tokio::test]
async fn chat_catalog_model_answers_under_its_slug() {
    let up = Upstream::start().await;
    let near = Upstream::start().await;
    let service = Service::configured(&up.config("platform_fee = 0.5\n")).await;
    service.manifest(&near.manifest("near", "chat", COST));
    near.says("hi", 10, 10);
    let said = ask(&service, &request("near")).send().await.expect(200);
    assert_eq!(near.newest()["model"], "real-near");
    assert_eq!(near.requests()[0].headers()["authorization"], "Bearer sk-local");
    assert_eq!(said["usage"]["cost"], 0.0165, "with the fee");
    assert_eq!(up.requests().len(), 0);
    let row = newest_row(&service, 1).await;
    assert_eq!((&row["model"], &row["chat"]["upstream"]), (&json!("near"), &json!(false)));
    service.get(&format!("/v1/prediction/{}", row["id"].as_str().unwrap())).await.expect(404);
}

#[tokio::test]
async fn chat_unknown_model_is_not_found() {
    let service = Service::start().await;
    let answer = ask(&service, &request("far")).send().await;
    expect_error(&answer, 404, "invalid_request_error", Some("model"), Some("model_not_found"));
    let near = Upstream::start().await;
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    let answer = ask(&service, &request("vectors")).send().await;
    expect_error(&answer, 400, "invalid_request_error", Some("model"), Some("invalid_value"));
    let rows = service.get("/v2/executions").await.expect(200);
    assert_eq!(rows["executions"], json!([]), "nothing was called");
}

#[tokio::test]
async fn chat_call_without_price_is_recorded_and_not_charged() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    up.says("hi", 30, 20);
    let said = ask(&service, &request("another")).send().await.expect(200);
    assert_eq!(said["usage"]["cost"], 0.0);
    let row = newest_row(&service, 1).await;
    assert_eq!((&row["chat"]["priced"], &row["execution_cost"]), (&json!(false), &json!(0.0)));
    assert!(service.ledger().await.is_empty());
}

#[tokio::test]
async fn chat_invalid_request_calls_no_server() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let refused = async |body: &Value| ask(&service, body).undocumented().send().await;
    let mut wrong = request("far");
    wrong["n"] = json!(0);
    expect_error(
        &refused(&wrong).await,
        400,
        "invalid_request_error",
        Some("n"),
        Some("invalid_value"),
    );
    let empty = json!({"model": "far", "messages": []});
    let answer = refused(&empty).await;
    expect_error(&answer, 400, "invalid_request_error", Some("messages"), Some("invalid_value"));
    let missing = Some("missing_required_parameter");
    let answer = refused(&json!({})).await;
    expect_error(&answer, 400, "invalid_request_error", Some("model"), missing);
    let garbage = service.post("/v1/chat/completions", &json!({})).body("{\"n\": NaN}");
    expect_error(&garbage.send().await, 400, "invalid_request_error", None, Some("invalid_value"));
    let large = service.refusal_of_large_body(Role::Base, "/v1/chat/completions").await;
    assert!(large.starts_with("HTTP/1.1 413"), "{large}");
    let body = r#"{"error":{"message":"the request body is larger than 8388608 bytes","type":"invalid_request_error","param":null,"code":null}}"#;
    assert!(large.ends_with(body), "{large}");
    let path = "/v1/chat/completions";
    let anonymous = service.ask(orrery_api::Role::Base, hyper::Method::POST, path);
    anonymous.send().await.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
    assert_eq!(up.requests().len(), 0);
}

#[tokio::test]
async fn chat_server_error_keeps_status_and_retry_after() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    let said = r#"{"error":{"message":"slow down","type":"requests","param":null,"code":"rpm"}}"#;
    up.answers_with(429, ("retry-after", "17"), said);
    let answer = ask(&service, &request("far")).send().await;
    expect_error(&answer, 429, "requests", None, Some("rpm"));
    assert_eq!((answer.header("retry-after"), answer.status), ("17", 429));
    let row = newest_row(&service, 1).await;
    assert_eq!(row["id"], answer.header("x-execution-id"));
    let found = (&row["status"], &row["error_classification"], &row["error_cause"]);
    let class = json!("provider_rate_limit");
    assert_eq!(found, (&json!("error"), &class, &json!("slow down")));
    for (status, text, expected, kind) in [
        (400, "plain text with sk-up in it", 400, "invalid_request_error"),
        (401, said, 502, "upstream_error"),
        (402, said, 502, "upstream_error"),
        (500, "", 500, "server_error"),
        (503, "{}", 503, "upstream_error"),
        (200, "<html>", 502, "upstream_error"),
    ] {
        up.answers(status, text);
        let answer = ask(&service, &request("far")).send().await;
        expect_error(&answer, expected, kind, None, answer.json()["error"]["code"].as_str());
        assert!(!answer.text.contains("sk-up"), "{}", answer.text);
    }
    assert!(service.ledger().await.is_empty());
}

#[tokio::test]
async fn chat_unreachable_model_is_unavailable_and_never_falls_back_to_upstream() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let closed = "slug = 'near'\noutput_type = 'string'\n[runner]\ntype = 'openai'\nurl = 'http://127.0.0.1:9/v1'\n\
                  model = 'm'\nkind = 'chat'\n";
    service.manifest(closed);
    let answer = ask(&service, &request("near")).send().await;
    expect_error(&answer, 503, "upstream_error", None, None);
    assert_eq!(up.requests().len(), 0);
    let row = newest_row(&service, 1).await;
    assert_eq!(row["error_classification"], "provider_unavailable");
}

#[tokio::test]
async fn chat_answer_that_never_begins_times_out() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("first_byte_timeout = '50ms'\n")).await;
    let vectors = json!({"model": "far", "input": "hello"});
    for (path, body) in [
        ("/v1/chat/completions", request("far")),
        ("/v1/chat/completions", stream("far")),
        ("/v1/embeddings", vectors),
    ] {
        up.is_silent();
        let answer = service.post(path, &body).send().await;
        expect_error(&answer, 504, "timeout", None, None);
    }
    up.hung_up(3).await;
    let feed = up.streams();
    let answer = ask(&service, &stream("far")).send().await;
    expect_error(&answer, 504, "timeout", None, None);
    drop(feed);
}

#[tokio::test]
async fn chat_falls_back_along_chain_of_slug() {
    let first = Upstream::start().await;
    let second = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&first.manifest("first", "chat", COST));
    service.manifest(&second.manifest("second", "chat", COST));
    let organization = service.organization.id;
    let entries = |map: Value| {
        serde_json::from_value(json!([{"model": "second", "input_map": map}])).unwrap()
    };
    let models = service.running.services.catalog.clone();
    let schema = |slug: &str| {
        models.get(slug).map(|model| model.schema.text().clone()).ok_or_else(String::new)
    };
    let chains = &service.running.services.chains;
    chains.create(organization, "first", "a", entries(Value::Null), &schema).await.unwrap();
    let mapped = json!({"messages": "{{input.messages}}", "temperature": 0});
    chains.create(organization, "first", "b", entries(mapped), &schema).await.unwrap();
    first.answers(500, "down");
    second.says("hi", 1, 1);
    ask(&service, &request("first")).send().await.expect(200);
    let row = newest_row(&service, 1).await;
    assert_eq!((&row["model"], &row["requested_model"]), (&json!("second"), &json!("first")));
    for model in ["first", "second"] {
        let found = service.get(&format!("/v2/executions?model={model}")).await.expect(200);
        assert_eq!(found["executions"][0]["id"], row["id"]);
    }
    let mut named = request("first");
    named["fallback_selector"] = json!("b");
    first.answers(500, "down");
    second.says("hi", 1, 1);
    ask(&service, &named).send().await.expect(200);
    let expected = json!({
        "model": "real-second", "messages": [{"role": "user", "content": "hello"}], "temperature": 0,
    });
    assert_eq!(second.newest(), expected);
    first.answers(400, "wrong");
    ask(&service, &request("first")).send().await.expect(400);
    assert_eq!(second.requests().len(), 2, "a wrong request is wrong for every model");
    named["fallback_selector"] = json!("none");
    let answer = ask(&service, &named).send().await;
    let param = Some("fallback_selector");
    expect_error(&answer, 400, "invalid_request_error", param, Some("invalid_value"));
}

#[tokio::test]
async fn chat_fallback_has_its_own_timeout() {
    let first = Upstream::start().await;
    let second = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&first.manifest("first", "chat", "timeout = '2s'"));
    service.manifest(&second.manifest("second", "chat", "timeout = '2s'"));
    let models = service.running.services.catalog.clone();
    let schema = |slug: &str| {
        models.get(slug).map(|model| model.schema.text().clone()).ok_or_else(String::new)
    };
    let entries = serde_json::from_value(json!([{"model": "second"}])).unwrap();
    let chains = &service.running.services.chains;
    chains.create(service.organization.id, "first", "a", entries, &schema).await.unwrap();
    first.is_silent();
    second.says("hi", 1, 1);
    ask(&service, &request("first")).send().await.expect(200);
}

#[tokio::test]
async fn chat_queue_of_a_model_is_bounded() {
    let near = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&near.manifest("near", "chat", "concurrency = 1\nqueue_limit = 1"));
    let feed = near.streams();
    feed.say("x");
    let mut reading = Reading::open(ask(&service, &stream("near"))).await;
    reading.until("x").await;
    near.says("hi", 1, 1);
    let mut answers: FuturesUnordered<_> =
        (0..3).map(|_| ask(&service, &request("near")).send()).collect();
    for _ in 0..2 {
        let refused = within("refusal", answers.next()).await.unwrap();
        expect_error(&refused, 429, "rate_limit_error", None, None);
        assert_eq!(refused.header("retry-after"), "5");
    }
    feed.finish(1, 1);
    reading.rest().await;
    within("answer", answers.next()).await.unwrap().expect(200);
}

#[tokio::test]
async fn chat_stream_forwards_events_as_they_arrive() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    let feed = up.streams();
    feed.say("He");
    let mut reading = Reading::open(ask(&service, &stream("far"))).await;
    let first = format!("data: {}\n\n", upstream::delta("He"));
    assert_eq!(reading.until("He").await, first);
    assert_eq!(up.newest()["stream_options"], json!({"include_usage": true}));
    feed.raw(": a comment\n\ndata: {\"choices\":[{\"delta\":{\"con");
    assert_eq!(reading.until("comment\n\n").await, ": a comment\n\n");
    feed.raw("tent\":\"y\"}}]}\r\n\r\n");
    let second = "data: {\"choices\":[{\"delta\":{\"content\":\"y\"}}]}\r\n\r\n";
    assert_eq!(reading.until("\r\n\r\n").await, second);
    feed.finish(30, 20);
    let rest = reading.rest().await;
    let stop = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    assert_eq!(rest, format!("data: {stop}\n\ndata: [DONE]\n\n"), "without the usage");
    let row = newest_row(&service, 1).await;
    let found = (&row["status"], &row["execution_cost"], &row["chat"]["stream"]);
    assert_eq!(found, (&json!("success"), &json!(0.023), &json!(true)));
}

#[tokio::test]
async fn chat_stream_ends_with_usage_and_cost_if_asked() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    let feed = up.streams();
    feed.say("hi");
    feed.finish(30, 20);
    let mut body = stream("far");
    body["stream_options"] = json!({"include_usage": true});
    let answer = ask(&service, &body).send().await;
    let mut usage = upstream::usage(30, 20);
    usage["usage"]["cost"] = json!(0.023);
    assert!(
        answer.text.ends_with(&format!("data: {usage}\n\ndata: [DONE]\n\n")),
        "{}",
        answer.text
    );
    assert!(!answer.header("x-execution-id").is_empty());
    assert_eq!(service.ledger().await.len(), 1, "the record is on the disk before [DONE] is sent");
}

#[tokio::test]
async fn chat_stream_of_disconnected_client_stops_model_and_charges_received_tokens() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    let feed = up.streams();
    feed.say("12345678");
    let mut reading = Reading::open(ask(&service, &stream("far"))).await;
    reading.until("12345678").await;
    drop(reading);
    up.hung_up(1).await;
    let row = newest_row(&service, 1).await;
    let call = &row["chat"];
    let found = (&row["status"], &call["output_tokens"], &call["tokens_estimated"]);
    assert_eq!(found, (&json!("cancelled"), &json!(2), &json!(true)));
    assert_eq!(row["execution_cost"], 0.0022, "two tokens in, two out");
    assert_eq!(balance(&service).await, Usd::from_micros(-2200));
}

#[tokio::test]
async fn chat_client_that_disconnects_before_answer_stops_model() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    for (count, body) in [(1, request("far")), (2, stream("far"))] {
        up.is_silent();
        let text = body.to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {}\r\ncontent-length: {}\r\n\r\n",
            service.key,
            text.len()
        );
        let address = service.address(orrery_api::Role::Base);
        let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = [head.as_bytes(), text.as_bytes()].concat();
        tokio::io::AsyncWriteExt::write_all(&mut client, &request).await.unwrap();
        up.arrived(count).await;
        drop(client);
        up.hung_up(count).await;
        let row = newest_row(&service, count).await;
        let found = (&row["status"], &row["execution_cost"]);
        assert_eq!(found, (&json!("cancelled"), &json!(0.0)));
    }
}

#[tokio::test]
async fn chat_stream_broken_by_model_ends_with_error_event() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    type Break = (&'static str, fn(upstream::Feed));
    let breaks: [Break; 4] = [
        ("its stream ended before the answer was complete", drop),
        ("its stream broke", upstream::Feed::cut),
        ("not valid JSON", |feed| feed.raw("data: <html>\n\n")),
        ("overloaded", |feed| feed.event(&json!({"error": {"message": "overloaded"}}))),
    ];
    for (index, (message, break_off)) in breaks.into_iter().enumerate() {
        let feed = up.streams();
        feed.say("1234");
        let mut reading = Reading::open(ask(&service, &stream("far"))).await;
        reading.until("1234").await;
        break_off(feed);
        let rest = reading.rest().await;
        let error: Value = serde_json::from_str(rest.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(error["error"]["type"], "upstream_error", "{rest}");
        assert!(error["error"]["message"].as_str().unwrap().contains(message), "{rest}");
        let row = newest_row(&service, index + 1).await;
        let found = (&row["status"], &row["execution_cost"], &row["chat"]["tokens_estimated"]);
        assert_eq!(found, (&json!("error"), &json!(0.0012), &json!(true)));
    }
}

#[tokio::test]
async fn chat_stream_that_pauses_too_long_is_ended() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("idle_timeout = '50ms'\n")).await;
    let feed = up.streams();
    feed.say("1234");
    let answer = ask(&service, &stream("far")).send().await;
    assert!(answer.text.contains("\"type\":\"timeout\""), "{}", answer.text);
    up.hung_up(1).await;
    drop(feed);
    // The router also ends a stream whose first event never completes.
    let feed = up.streams();
    feed.raw("data: {");
    let answer = ask(&service, &stream("far")).send().await;
    assert!(answer.text.contains("\"type\":\"timeout\""), "{}", answer.text);
    drop(feed);
}

#[tokio::test]
async fn chat_call_over_balance_is_rejected() {
    let up = Upstream::start().await;
    let lines = format!("{}[billing]\nenforce = true\n", up.config(PRICE));
    let service = Service::configured(&lines).await;
    let answer = ask(&service, &request("far")).send().await;
    expect_error(&answer, 402, "insufficient_quota", None, Some("insufficient_quota"));
    let billing = service.running.services.billing.clone();
    let organization = service.organization.id;
    billing.top_up(organization, Usd::from_micros(100_000)).await.unwrap();
    // 100 output tokens cost 0.1 USD, in addition to the prompt.
    let mut large = request("far");
    large["max_tokens"] = json!(100);
    ask(&service, &large).send().await.expect(402);
    large["max_tokens"] = json!(60);
    let mut large_stream = large.clone();
    large_stream["stream"] = json!(true);
    let feed = up.streams();
    feed.say("x");
    let mut reading = Reading::open(ask(&service, &large_stream)).await;
    reading.until("x").await;
    ask(&service, &large).send().await.expect(402);
    feed.finish(1, 1);
    reading.rest().await;
    up.says("hi", 1, 1);
    ask(&service, &large).send().await.expect(200);
    assert_eq!(balance(&service).await, Usd::from_micros(100_000 - 2 * 1100));
    assert_eq!(up.requests().len(), 2);
}

#[tokio::test]
async fn chat_key_over_daily_budget_is_rejected() {
    let up = Upstream::start().await;
    let lines = format!("limits.tokens_per_day = 50\n{}", up.config(""));
    let service = Service::configured(&lines).await;
    up.says("hi", 30, 20);
    ask(&service, &request("far")).send().await.expect(200);
    let answer = ask(&service, &request("far")).send().await;
    expect_error(&answer, 429, "rate_limit_error", None, Some("tokens_per_day"));
    let seconds: u64 = answer.header("retry-after").parse().unwrap();
    assert!((1..=86_400).contains(&seconds));
    let service = service.restart().await;
    ask(&service, &request("far")).send().await.expect(429);
    up.says("hi", 30, 20);
    let other = service.ask(orrery_api::Role::Base, hyper::Method::POST, "/v1/chat/completions");
    other.key(&service.other_key).json(&request("far")).send().await.expect(200);
}

/// Sends a hundred concurrent requests; the model answers each with a stream of 505 tokens.
async fn flood(service: &Service, up: &Upstream, body: &Value) -> Vec<Answer> {
    for _ in 0..100 {
        let feed = up.streams();
        feed.say(&"word".repeat(500));
        feed.finish(5, 500);
    }
    let asks = std::iter::repeat_with(|| ask(service, body).send()).take(100);
    futures_util::future::join_all(asks).await
}

fn count_of(answers: &[Answer], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

#[tokio::test]
async fn chat_cut_off_streams_never_overdraw_balance() {
    let up = Upstream::start().await;
    let lines = format!("{}[billing]\nenforce = true\n", up.config(PRICE));
    let service = Service::configured(&lines).await;
    let billing = service.running.services.billing.clone();
    billing.top_up(service.organization.id, Usd::from_micros(80_000)).await.unwrap();
    // If a request sets no maximum, the router reserves 16,384 output tokens.
    let answers = flood(&service, &up, &stream("far")).await;
    assert_eq!(count_of(&answers, 402), 100);
    // Each call reserves 8,200: 72 bytes of prompt and one output token, which the model exceeds.
    let mut short = stream("far");
    short["max_tokens"] = json!(1);
    let answers = flood(&service, &up, &short).await;
    let taken = count_of(&answers, 200);
    assert!((1..=9).contains(&taken) && count_of(&answers, 402) == 100 - taken, "{taken}");
    for answer in answers.iter().filter(|answer| answer.status == 200) {
        let text = &answer.text;
        assert!(text.contains("ignored max_tokens") && !text.contains("[DONE]"), "{text}");
    }
    let left = 80_000 - 8200 * i64::try_from(taken).unwrap();
    assert_eq!(balance(&service).await, Usd::from_micros(left));
    assert_eq!(up.requests().len(), taken);
}

#[tokio::test]
async fn chat_concurrent_streams_exceed_daily_budget_by_at_most_one_call() {
    let up = Upstream::start().await;
    let lines = format!("limits.tokens_per_day = 1000\n{}", up.config(""));
    let service = Service::configured(&lines).await;
    let answers = flood(&service, &up, &stream("far")).await;
    let taken = count_of(&answers, 200);
    assert!((1..=2).contains(&taken) && count_of(&answers, 429) == 100 - taken, "{taken}");
    let reserved = answers.iter().find(|answer| answer.status == 429).unwrap();
    expect_error(reserved, 429, "rate_limit_error", None, Some("tokens_per_day"));
}

#[tokio::test]
async fn chat_implausible_usage_is_estimated() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    let absurd = [json!(1_u64 << 63), json!(-1), json!("many"), json!(1e308), json!([1])];
    for (index, tokens) in absurd.iter().enumerate() {
        let feed = up.streams();
        feed.say("12345678");
        feed.event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
        feed.event(&json!({
            "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens},
        }));
        feed.raw("data: [DONE]\n\n");
        ask(&service, &stream("far")).send().await;
        let row = newest_row(&service, index + 1).await;
        let used = (&row["chat"]["output_tokens"], &row["chat"]["tokens_estimated"]);
        assert_eq!(used, (&json!(2), &json!(true)), "{tokens}");
        let charged = 2200 * (i64::try_from(index).unwrap() + 1);
        assert_eq!(balance(&service).await, Usd::from_micros(-charged), "{tokens}");
    }
}

#[tokio::test]
async fn chat_content_is_kept_only_if_configured() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("keep_content = true\n")).await;
    let feed = up.streams();
    feed.say("He");
    feed.say("y");
    feed.finish(1, 1);
    ask(&service, &stream("far")).send().await;
    let row = newest_row(&service, 1).await;
    assert_eq!(row["output"], r#"{"role":"assistant","content":"Hey"}"#);
    let id = row["id"].as_str().unwrap().parse().unwrap();
    let now = service.running.services.clock.now().plus(Duration::from_secs(1));
    let organization = service.organization.id;
    service.engine().purge_payloads_before(organization, now).await.unwrap();
    assert_eq!(newest_row(&service, 1).await["output"], Value::Null);
    service.engine().purge_before(organization, now).await.unwrap();
    assert!(service.engine().get(organization, id).await.is_err());
    newest_row_is_absent(&service).await;
}

async fn newest_row_is_absent(service: &Service) {
    let rows = service.get("/v2/executions?type=chat").await.expect(200);
    assert_eq!(rows["executions"], json!([]));
}

#[tokio::test]
async fn chat_calls_are_filtered_in_the_history() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    up.says("hi", 1, 1);
    ask(&service, &request("a")).send().await.expect(200);
    up.answers(500, "no");
    ask(&service, &request("b")).send().await.expect(500);
    let id = service.create("text-keywords", json!({"text": "one two"})).await;
    service.ended(&id).await;
    for (query, models) in [
        ("type=chat", vec!["b", "a"]),
        ("type=prediction", vec!["text-keywords"]),
        ("type=chat&status=success", vec!["a"]),
        ("status=error", vec!["b"]),
        ("model=a", vec!["a"]),
        ("error_classification=provider_error", vec!["b"]),
        ("", vec!["text-keywords", "b", "a"]),
    ] {
        let rows = service.get(&format!("/v2/executions?{query}")).await.expect(200);
        let found: Vec<&str> = rows["executions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["model"].as_str().unwrap())
            .collect();
        assert_eq!(found, models, "{query}");
    }
    let other = service.ask(orrery_api::Role::Base, hyper::Method::GET, "/v2/executions");
    let rows = other.key(&service.other_key).send().await.expect(200);
    assert_eq!(rows["executions"], json!([]));
}

#[tokio::test]
async fn chat_calls_share_concurrency_of_model_with_predictions() {
    let near = Upstream::start().await;
    let service = Service::configured("router.first_byte_timeout = '30s'\n").await;
    service.manifest(&near.manifest("near", "chat", "concurrency = 1"));
    let feed = near.streams();
    feed.say("x");
    let mut reading = Reading::open(ask(&service, &stream("near"))).await;
    reading.until("x").await;
    let second = near.streams();
    second.say("said");
    second.finish(1, 1);
    let id = service.create("near", json!({"prompt": "hello"})).await;
    let waiting = service.get(&format!("/v1/prediction/{id}")).await.expect(200);
    assert_eq!(waiting["status"], "created");
    assert_eq!(near.requests().len(), 1);
    feed.finish(1, 1);
    reading.rest().await;
    assert_eq!(service.ended(&id).await["output"], "said");
}
