//! Upstreams of the chat router with Azure's and Anthropic's APIs.

use serde_json::json;

use crate::support::upstream::Feed;
use crate::support::{Service, Upstream};
use crate::upstreams::{answers_as, chat, fails, request, said, table};

#[tokio::test]
async fn azure_upstream_has_its_deployments_in_the_path() {
    let up = Upstream::start().await;
    let more = "kind = 'azure'\napi_version = '2024-10-21'\nmodels = ['gpt-4o']\nkey = 'az-secret'\n\
                headers = { X-Team = 'blue' }";
    let url = up.url().replace("/v1", "");
    let service = Service::configured(&table("azure", &url, more)).await;
    answers_as(&up, "azure");
    assert_eq!(said(&service, "gpt-4o").await, "azure");
    let sent = &up.requests()[0];
    assert_eq!(sent.uri(), "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21");
    assert_eq!(sent.headers()["api-key"], "az-secret");
    assert_eq!(sent.headers()["x-team"], "blue");
    assert!(!sent.headers().contains_key("authorization"));
    // A key that a server repeats does not reach the client.
    fails(&up, 400);
    up.answers(400, r#"{"error":{"message":"bad key az-secret"}}"#);
    let answer = chat(&service, &request("gpt-4o")).await;
    assert!(answer.status == 400 && !answer.text.contains("az-secret"), "{}", answer.text);
}

/// Starts a service whose upstream has Anthropic's API.
async fn with_anthropic(up: &Upstream) -> Service {
    let price = "{ model = 'claude-x', per_million_input_tokens = 1000.0, \
                 per_million_output_tokens = 0.0 }";
    let more = format!(
        "kind = 'anthropic'\nmodels = ['claude-*']\nkey = 'ant-secret'\nprices = [{price}]"
    );
    Service::configured(&table("anthropic", &up.url(), &more)).await
}

fn anthropic_answer() -> String {
    let call = json!({"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sky"}});
    let usage = json!({"input_tokens": 7, "cache_read_input_tokens": 3, "output_tokens": 5,
        "cache_creation_input_tokens": 0});
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x-1",
        "content": [{"type": "text", "text": "Let me look."}, call],
        "stop_reason": "tool_use", "stop_sequence": null, "usage": usage,
    })
    .to_string()
}

#[tokio::test]
async fn anthropic_upstream_answers_chat_completions() {
    let up = Upstream::start().await;
    let service = with_anthropic(&up).await;
    up.answers(200, anthropic_answer());
    let function = json!({"name": "look", "parameters": {"type": "object"}});
    let body = json!({
        "model": "claude-x", "max_tokens": 50, "stop": "END", "temperature": 1.5,
        "tools": [{"type": "function", "function": function}],
        "messages": [
            {"role": "system", "content": "Be short."}, {"role": "user", "content": "Sky?"},
        ],
    });
    let said = chat(&service, &body).await.expect(200);
    let choice = &said["choices"][0];
    assert_eq!(choice["message"]["content"], "Let me look.");
    let called = json!({"name": "look", "arguments": "{\"at\":\"sky\"}"});
    assert_eq!(choice["message"]["tool_calls"][0]["function"], called);
    assert_eq!(
        (&choice["finish_reason"], &said["model"]),
        (&json!("tool_calls"), &json!("claude-x"))
    );
    let usage = &said["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["cost"]), (&json!(10), &json!(0.01)));
    let sent = up.newest();
    assert_eq!(sent["system"], "Be short.");
    let text = json!([{"type": "text", "text": "Sky?"}]);
    assert_eq!(sent["messages"], json!([{"role": "user", "content": text}]));
    assert_eq!((&sent["stop_sequences"], &sent["temperature"]), (&json!(["END"]), &json!(1.0)));
    assert_eq!(sent["tools"], json!([{"name": "look", "input_schema": {"type": "object"}}]));
    let sent = &up.requests()[0];
    assert_eq!(sent.uri(), "/v1/messages");
    assert_eq!(sent.headers()["x-api-key"], "ant-secret");
    assert_eq!(sent.headers()["anthropic-version"], "2023-06-01");
}

/// Writes a stream of an answer; without `is_complete`, it breaks after its text.
fn write_stream(feed: &Feed, is_complete: bool) {
    let usage = json!({"input_tokens": 4, "output_tokens": 1,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0});
    let message = json!({"id": "msg_2", "type": "message", "role": "assistant", "model": "x",
        "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage});
    let mut last = usage;
    let block = json!({"type": "text", "text": ""});
    last["output_tokens"] = 2.into();
    let delta = json!({"type": "text_delta", "text": "Blue"});
    let end = json!({"stop_reason": "end_turn", "stop_sequence": null});
    let events = [
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
        json!({"type": "ping"}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": end, "usage": last}),
        json!({"type": "message_stop"}),
    ];
    let count = if is_complete { events.len() } else { 4 };
    for event in &events[..count] {
        feed.raw(&format!("event: {}\n", event["type"].as_str().unwrap()));
        feed.event(event);
    }
}

#[tokio::test]
async fn anthropic_upstream_streams_chat_completions() {
    let up = Upstream::start().await;
    let service = with_anthropic(&up).await;
    let feed = up.streams();
    let mut body = request("claude-x");
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    write_stream(&feed, true);
    drop(feed);
    let said = chat(&service, &body).await;
    assert_eq!(said.status, 200, "{}", said.text);
    for part in [
        "\"content\":\"Blue\"",
        "\"finish_reason\":\"stop\"",
        "\"model\":\"claude-x\"",
        "\"prompt_tokens\":4",
        "\"completion_tokens\":2",
        "data: [DONE]",
    ] {
        assert!(said.text.contains(part), "{part}: {}", said.text);
    }
}

#[tokio::test]
async fn anthropic_upstream_passes_messages_as_they_are() {
    let up = Upstream::start().await;
    let service = with_anthropic(&up).await;
    up.answers(200, anthropic_answer());
    let cached = json!({"type": "text", "text": "Sky?", "cache_control": {"type": "ephemeral"}});
    let messages = json!([{"role": "user", "content": [cached]}]);
    let message = json!({
        "model": "claude-x", "max_tokens": 9, "messages": messages,
        "tools": [{"type": "web_search_20250305", "name": "web_search"}], "brand_new": 1,
    });
    let ask = service.post("/v1/messages", &message).undocumented();
    let answer = ask.header("anthropic-beta", "new-2026").send().await;
    let said = answer.expect(200);
    assert_eq!(said["content"][1]["input"], json!({"at": "sky"}));
    assert_eq!((&said["model"], &said["usage"]["cost"]), (&json!("claude-x"), &json!(0.01)));
    assert_eq!(up.newest(), message);
    let sent = &up.requests()[0];
    assert_eq!(
        (sent.uri().path(), &sent.headers()["anthropic-beta"]),
        ("/v1/messages", &"new-2026".parse().unwrap())
    );
    assert_eq!(sent.headers()["x-api-key"], "ant-secret");
    let rows = service.get("/v2/executions?type=chat").await.expect(200);
    let call = &rows["executions"][0]["chat"];
    let found = (&call["input_tokens"], &call["output_tokens"]);
    assert_eq!(found, (&json!(10), &json!(5)));

    let error = r#"{"type":"error","error":{"type":"invalid_request_error","message":"too odd"}}"#;
    up.answers(400, error);
    let error = service.post("/v1/messages", &message).undocumented().send().await.expect(400);
    assert_eq!(error["error"]["type"], "invalid_request_error");
    assert!(error["error"]["message"].as_str().unwrap().starts_with("too odd"), "{error}");
}

#[tokio::test]
async fn anthropic_upstream_passes_streams_of_messages() {
    let up = Upstream::start().await;
    let service = with_anthropic(&up).await;
    let body = json!({"model": "claude-x", "max_tokens": 9, "stream": true,
        "messages": [{"role": "user", "content": "Sky?"}]});
    let whole = async |breaks: bool| {
        let feed = up.streams();
        write_stream(&feed, !breaks);
        drop(feed);
        let said = service.post("/v1/messages", &body).send().await;
        assert_eq!(said.status, 200, "{}", said.text);
        said.text
    };
    let text = whole(false).await;
    for part in [
        "event: message_start\ndata: ",
        "\"model\":\"claude-x\"",
        "\"text\":\"Blue\"",
        "\"cost\":0.004",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("[DONE]"), "{text}");
    let text = whole(true).await;
    let broken = "event: error\ndata: {\"type\":\"error\",";
    assert!(text.ends_with("\n\n") && text.contains(broken), "{text}");
    up.answers(503, r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#);
    let error = service.post("/v1/messages", &body).send().await.expect(503);
    assert_eq!(error["error"], json!({"type": "overloaded_error", "message": "busy"}));
}

#[tokio::test]
async fn anthropic_upstream_has_no_other_operations() {
    let up = Upstream::start().await;
    let service = with_anthropic(&up).await;
    let embeddings = json!({"model": "claude-x", "input": "a"});
    let error = service.post("/v1/embeddings", &embeddings).send().await.expect(400);
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("chat completions, not embeddings"), "{message}");
    let error = r#"{"type":"error","error":{"type":"invalid_request_error","message":"too odd"}}"#;
    up.answers(400, error);
    let error = chat(&service, &request("claude-x")).await.expect(400);
    assert_eq!(error["error"]["message"], "too odd");
    let mut many = request("claude-x");
    many["n"] = 2.into();
    let error = chat(&service, &many).await.expect(400);
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("does not support n above 1"), "{message}");
    assert_eq!(up.requests().len(), 1);
}
