//! The tokens that the chat router and predictions count, reserve and charge, regardless of the
//! client's parameters and the server's reports.

use orrery_domain::money::Usd;
use serde_json::{Value, json};

use crate::chat::{newest_row, request};
use crate::support::upstream::Feed;
use crate::support::{Answer, Service, Upstream};

const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                     per_million_output_tokens = 1000.0 }]\n";
const COST: &str = "[cost]\ntype = 'usage_based'\nper_million_input_tokens = 100.0\n\
                    per_million_output_tokens = 1000.0\n";
const ENFORCED: &str = "[billing]\nenforce = true\n";

async fn ask(service: &Service, fields: Value) -> Answer {
    let mut body = request("far");
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    service.post("/v1/chat/completions", &body).send().await
}

async fn predict(service: &Service, input: &Value) -> Answer {
    let body = json!({"model": "near", "version": "1", "input": input});
    service.post("/v1/prediction/", &body).send().await
}

async fn top_up(service: &Service, micros: i64) {
    let amount = Usd::from_micros(micros);
    service.running.services.billing.top_up(service.organization.id, amount).await.unwrap();
}

async fn balance(service: &Service) -> i64 {
    service.running.services.billing.balance(service.organization.id).await.unwrap().micros()
}

/// Streams a tool call in this many parts with four bytes of arguments each, without a usage.
fn call(feed: Feed, parts: usize) {
    let part = |call: Value| json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]});
    feed.event(&part(json!({"index": 0, "id": "call_1", "type": "function",
        "function": {"name": "find", "arguments": ""}})));
    for _ in 0..parts {
        feed.event(&part(json!({"index": 0, "function": {"arguments": " foo"}})));
    }
    feed.event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}));
    feed.raw("data: [DONE]\n\n");
}

#[tokio::test]
async fn accounting_of_tool_calls_counts_only_their_texts() {
    let up = Upstream::start().await;
    let service = Service::configured(&format!("{}{ENFORCED}", up.config(PRICE))).await;
    service.manifest(&up.manifest("near", "chat", COST));
    top_up(&service, 100_000_000).await;
    for (parts, most) in [(400, json!(1000)), (2000, Value::Null)] {
        call(up.streams(), parts);
        let answer = ask(&service, json!({"stream": true, "max_tokens": most})).await;
        let end = &answer.text[answer.text.len() - 60..];
        assert!(end.ends_with("data: [DONE]\n\n"), "{end}");
    }
    let row = newest_row(&service, 2).await;
    assert_eq!(row["chat"]["output_tokens"], 2001);
    call(up.streams(), 400);
    let created = predict(&service, &json!({"prompt": "hello", "max_tokens": 1000})).await;
    let ended = service.ended(created.expect(200)["predictionID"].as_str().unwrap()).await;
    // Two prompt tokens and 401 output tokens.
    assert_eq!(ended["metrics"]["cost"], 0.4012);
}

#[tokio::test]
async fn accounting_of_escaped_and_plain_texts_is_the_same() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    for (count, text) in [(1, "\u{4e2d}\u{6587}\u{1f600}ab"), (2, r"\u4e2d\u6587\ud83d\ude00ab")] {
        let feed = up.streams();
        feed.raw(&format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"));
        feed.raw("data: [DONE]\n\n");
        assert_eq!(ask(&service, json!({"stream": true})).await.status, 200);
        let row = newest_row(&service, count).await;
        assert_eq!(row["chat"]["output_tokens"], 3, "{text}");
    }
}

#[tokio::test]
async fn accounting_works_without_stream_options() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    let refusal = json!({"error": {"message": "Unrecognized argument: stream_options.x"}});
    let options = json!({"x": 1});
    up.answers(400, refusal.to_string());
    up.streams().finish(7, 9);
    assert_eq!(ask(&service, json!({"stream": true, "stream_options": options})).await.status, 200);
    let usage_only = json!({"include_usage": true});
    assert_eq!(up.newest()["stream_options"], usage_only, "counted all the same");
    up.streams().finish(7, 9);
    assert_eq!(ask(&service, json!({"stream": true})).await.status, 200);
    assert_eq!(up.newest()["stream_options"], usage_only, "nobody else is concerned");
    // If a server rejects `stream_options` entirely, the router sends each such request twice and
    // does not remember the rejection.
    for _ in 0..2 {
        up.answers(400, refusal.to_string());
    }
    up.streams().finish(7, 9);
    assert_eq!(ask(&service, json!({"stream": true, "stream_options": options})).await.status, 200);
    assert_eq!(up.newest().get("stream_options"), None);
}

#[tokio::test]
async fn accounting_reserves_larger_maximum_and_charges_counted_tokens() {
    let up = Upstream::start().await;
    let service = Service::configured(&format!("{}{ENFORCED}", up.config(PRICE))).await;
    service.manifest(&up.manifest("near", "chat", COST));
    top_up(&service, 50_000).await;
    for fields in [
        json!({"max_completion_tokens": 1, "max_tokens": 8192}),
        json!({"max_tokens": 1, "max_completion_tokens": 8192}),
        json!({"max_tokens": 20, "n": 3}),
        json!({"max_tokens": 1, "response_format": {"type": "json_schema", "x": "y".repeat(500)}}),
        json!({"max_tokens": 1, "functions": [{"name": "y".repeat(500)}]}),
        json!({"max_tokens": 1, "unknown": "y".repeat(500)}),
        json!({"max_tokens": 1, "messages": [{"role": "user", "content": "\u{4e2d}".repeat(170)}]}),
        json!({"max_tokens": 1, "messages": [{"role": "user", "x": "y".repeat(500), "content": ""}]}),
        json!({"max_tokens": 1, "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "https://h/a.png"}}]}]}),
    ] {
        ask(&service, fields).await.expect(402);
    }
    for input in [
        json!({"prompt": "a", "max_tokens": 1, "max_completion_tokens": 8192}),
        json!({"prompt": "a", "max_tokens": 20, "n": 3}),
        json!({"prompt": "a", "max_tokens": 1, "image": "data:image/png;base64,AAAA"}),
        json!({"prompt": "y".repeat(500), "max_tokens": 1}),
    ] {
        predict(&service, &input).await.expect(402);
    }
    assert!(up.requests().is_empty());
    // The server exceeds the maximum and reports the tokens that it generated.
    up.says("hi", 10, 60);
    let answer = ask(&service, json!({"max_tokens": 1})).await.expect(200);
    assert_eq!(answer["usage"]["cost"], 0.061);
    assert_eq!(balance(&service).await, 50_000 - 61_000);
    ask(&service, json!({"max_tokens": 1})).await.expect(402);
    top_up(&service, 61_000).await;
    up.says("hi", 10, 60);
    let created = predict(&service, &json!({"prompt": "hello", "max_tokens": 1})).await;
    let ended = service.ended(created.expect(200)["predictionID"].as_str().unwrap()).await;
    assert_eq!(ended["metrics"]["cost"], 0.061);
    assert_eq!(balance(&service).await, 50_000 - 61_000);
}

#[tokio::test]
async fn accounting_treats_maximum_of_zero_as_none() {
    let up = Upstream::start().await;
    let service = Service::configured(ENFORCED).await;
    service.manifest(&(up.manifest("near", "chat", COST) + "[request_schema]\ntype = 'object'\n"));
    top_up(&service, 50_000).await;
    for input in [
        json!({"prompt": "a", "max_tokens": 0}),
        json!({"prompt": "a", "max_tokens": -1}),
        json!({"prompt": "a", "max_tokens": "100"}),
        json!({"prompt": "a", "max_tokens": 60, "n": 0}),
        json!({"prompt": "a", "max_tokens": 20, "n": 3.0}),
    ] {
        predict(&service, &input).await.expect(402);
    }
    assert!(up.requests().is_empty());
}
