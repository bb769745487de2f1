//! Anthropic's Messages API: messages, streams, tools, errors, token counts, aliases, and the list
//! of models in its format.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::chat::{Reading, newest_row};
#[cfg(feature = "llama")]
use crate::support::gguf;
use crate::support::{Answer, Ask, Service, Upstream};

const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                     per_million_output_tokens = 1000.0 }]\n";
const UNAUTHORIZED: &str = r#"{"error":"Invalid or missing API key"}"#;

fn request(model: &str) -> Value {
    json!({
        "model": model, "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}],
    })
}

fn with(model: &str, more: Value) -> Value {
    let mut body = request(model);
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn ask(service: &Service, body: &Value) -> Ask {
    service.post("/v1/messages", body)
}

/// Checks an error in Anthropic's format; returns its message.
#[track_caller]
fn expect_error(answer: &Answer, status: u16, kind: &str) -> String {
    let body = answer.expect(status);
    let id = answer.header("x-request-id");
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)), "{body}");
    assert_eq!(body["request_id"], id);
    assert_eq!(answer.header("request-id"), id);
    body["error"]["message"].as_str().unwrap().to_owned()
}

/// Returns the events of a stream, whose names are also the types of their data.
#[track_caller]
fn events(text: &str) -> Vec<Value> {
    let event = |text: &str| {
        let (name, data) = text.split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        data
    };
    text.split_terminator("\n\n").map(event).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// Returns an upstream and a service that uses it.
async fn start(more: &str) -> (Upstream, Service) {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(more)).await;
    (up, service)
}

#[tokio::test]
async fn message_is_answered_by_a_chat_completion() {
    let (up, service) = start(PRICE).await;
    up.says("hi", 30, 20);
    let body = with(
        "far",
        json!({
            "system": [{"type": "text", "text": "Be nice.", "cache_control": {"type": "ephemeral"}}],
            "temperature": 0.5, "top_k": 3, "stop_sequences": ["END"],
            "metadata": {"user_id": "u1"},
        }),
    );
    let answer = ask(&service, &body).send().await;
    let said = answer.expect(200);
    let sent = json!({
        "model": "far", "max_tokens": 64, "temperature": 0.5, "top_k": 3, "stop": ["END"],
        "user": "u1", "messages": [
            {"role": "system", "content": "Be nice."}, {"role": "user", "content": "hello"},
        ],
    });
    assert_eq!(up.newest(), sent);
    let execution = answer.header("x-execution-id").to_owned();
    let expected = json!({
        "id": format!("msg_{}", execution.replace('-', "")),
        "type": "message", "role": "assistant", "model": "far",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {
            "input_tokens": 30, "output_tokens": 20, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0, "cost": 0.023,
        },
    });
    assert_eq!(said, expected);
    let row = newest_row(&service, 1).await;
    let found = (&row["id"], &row["type"], &row["execution_cost"]);
    assert_eq!(found, (&json!(execution), &json!("chat"), &json!(0.023)));
    let near = Upstream::start().await;
    service.manifest(&near.manifest("near", "chat", ""));
    near.says("here", 1, 1);
    let said = ask(&service, &request("near")).send().await.expect(200);
    assert_eq!(said["content"][0]["text"], "here");
    assert_eq!((&near.newest()["model"], &said["model"]), (&json!("real-near"), &json!("near")));
}

#[tokio::test]
async fn message_tools_make_a_round_trip() {
    let (up, service) = start("").await;
    let tool = json!({
        "name": "weather", "description": "Weather of a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    });
    let call = json!({"name": "weather", "arguments": r#"{"city":"Rome"}"#});
    let call = json!({"id": "call_1", "type": "function", "function": call});
    let message = json!({
        "role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call],
    });
    let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
    up.answers(200, json!({"choices": [choice]}).to_string());
    let mut body = with(
        "far",
        json!({
            "tools": [tool], "thinking": {"type": "enabled", "budget_tokens": 2000},
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        }),
    );
    let said = ask(&service, &body).send().await.expect(200);
    let sent = up.newest();
    assert_eq!(sent["tool_choice"], "required");
    assert_eq!(sent["parallel_tool_calls"], false);
    assert_eq!(sent["reasoning_effort"], "low");
    assert_eq!(sent["tools"][0]["function"]["parameters"], tool["input_schema"]);
    let used = json!({
        "type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"},
    });
    let thought = json!({"type": "thinking", "thinking": "hm", "signature": "reasoning_content"});
    assert_eq!(said["content"], json!([thought, used]));
    assert_eq!(said["stop_reason"], "tool_use");
    let result = json!({"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"});
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": said["content"]}));
    messages.push(json!({"role": "user", "content": [result]}));
    up.says("It is sunny.", 1, 1);
    ask(&service, &body).send().await.expect(200);
    let sent = up.newest()["messages"].clone();
    let expected = json!([
        {"role": "user", "content": "hello"}, message,
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]);
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn message_stream_has_all_kinds_of_events() {
    let (up, service) = start(PRICE).await;
    let feed = up.streams();
    let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
    let thinking = json!({"stream": true, "thinking": {"type": "adaptive"}});
    let mut reading = Reading::open(ask(&service, &with("far", thinking))).await;
    let first = events(&reading.until("message_start").await);
    assert_eq!(first[0]["message"]["content"], json!([]));
    assert!(first[0]["message"]["usage"]["input_tokens"].as_u64().unwrap() > 0);
    feed.event(&delta(json!({"reasoning": "hm"})));
    feed.event(&delta(json!({"content": "He"})));
    reading.until("\"He\"").await;
    feed.raw(": keep-alive\n\n");
    reading.until("{\"type\":\"ping\"}\n\n").await;
    feed.event(&delta(json!({"content": "y"})));
    let begin = json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}});
    feed.event(&delta(json!({"tool_calls": [begin]})));
    let more = json!({"index": 0, "function": {"arguments": "{}"}});
    feed.event(&delta(json!({"tool_calls": [more]})));
    feed.finish(30, 20);
    let rest = events(&reading.rest().await);
    let expected = [
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds(&rest), expected);
    let tool = json!({"type": "tool_use", "id": "a", "name": "f", "input": {}});
    assert_eq!((&rest[2]["index"], &rest[2]["content_block"]), (&json!(2), &tool));
    assert_eq!(rest[5]["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    assert_eq!(rest[5]["usage"]["input_tokens"], 30);
    assert_eq!(rest[5]["usage"]["cost"], 0.023);
    let row = newest_row(&service, 1).await;
    assert_eq!((&row["status"], &row["chat"]["stream"]), (&json!("success"), &json!(true)));
}

#[tokio::test]
async fn message_stream_shows_reasoning_only_on_request() {
    let (up, service) = start("").await;
    for (thinking, shown) in [
        (json!({"type": "enabled", "budget_tokens": 9}), true),
        (json!({"type": "disabled"}), false),
        (json!(null), false),
    ] {
        let feed = up.streams();
        feed.event(&json!({"choices": [{"delta": {"reasoning_content": "hm"}}]}));
        feed.say("so");
        feed.finish(1, 1);
        let body = with("far", json!({"stream": true, "thinking": thinking}));
        let answer = ask(&service, &body).send().await;
        assert_eq!(answer.text.contains("thinking_delta"), shown, "{}", answer.text);
        assert_eq!(answer.text.contains("signature_delta"), shown, "{}", answer.text);
        assert!(answer.text.contains("\"so\""));
    }
}

#[tokio::test]
async fn message_stream_that_breaks_ends_with_error_event() {
    let (up, service) = start("").await;
    let feeds: [fn(crate::support::upstream::Feed); 3] = [
        |feed| feed.cut(),
        |feed| feed.event(&json!({"error": {"message": "down", "type": "server_error"}})),
        |feed| feed.raw("data: {\"choices\": [\n\n"),
    ];
    for end in feeds {
        let feed = up.streams();
        feed.say("He");
        let body = with("far", json!({"stream": true}));
        let mut reading = Reading::open(ask(&service, &body)).await;
        reading.until("\"He\"").await;
        end(feed);
        let rest = reading.rest().await;
        let last = rest.split("event: ").last().unwrap();
        assert!(last.starts_with("error\n"), "{rest}");
        assert!(!rest.contains("message_stop"), "{rest}");
    }
}

#[tokio::test]
async fn message_stream_of_disconnected_client_stops_model() {
    let (up, service) = start(PRICE).await;
    let feed = up.streams();
    feed.say("12345678");
    let body = with("far", json!({"stream": true}));
    let mut reading = Reading::open(ask(&service, &body)).await;
    reading.until("12345678").await;
    drop(reading);
    up.hung_up(1).await;
    let row = newest_row(&service, 1).await;
    assert_eq!((&row["status"], &row["chat"]["output_tokens"]), (&json!("cancelled"), &json!(2)));
    drop(feed);
}

#[tokio::test]
async fn message_errors_have_anthropics_form() {
    let (up, service) = start("").await;
    for (status, expected, kind) in [
        (400, 400, "invalid_request_error"),
        (401, 502, "api_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (409, 409, "invalid_request_error"),
        (413, 413, "request_too_large"),
        (422, 422, "invalid_request_error"),
        (429, 429, "rate_limit_error"),
        (500, 500, "api_error"),
        (503, 503, "overloaded_error"),
        (504, 504, "timeout_error"),
    ] {
        let said = r#"{"error":{"message":"so it is"}}"#;
        up.answers_with(status, ("retry-after", "17"), said);
        let answer = ask(&service, &request("far")).send().await;
        let message = expect_error(&answer, expected, kind);
        assert!(message.contains("so it is") || status == 401, "{message}");
        if status == 429 {
            assert_eq!(answer.header("retry-after"), "17");
        }
    }
    up.answers(200, r#"{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":"x"}}]},"finish_reason":"stop"}]}"#);
    let answer = ask(&service, &request("far")).send().await;
    assert!(expect_error(&answer, 502, "api_error").contains("not a JSON object"));
    let wrong = service.ask(Role::Base, Method::POST, "/v1/messages").json(&request("far"));
    let answer = wrong.clone().send().await;
    expect_error(&answer, 401, "authentication_error");
    assert_eq!(answer.header("www-authenticate"), "Bearer");
    let answer = wrong.header("authorization", "Bearer smk_wrong").send().await;
    expect_error(&answer, 401, "authentication_error");
    let plain = service.ask(Role::Base, Method::POST, "/v1/chat/completions");
    plain.json(&request("far")).send().await.expect_text(401, UNAUTHORIZED);
}

#[tokio::test]
async fn message_is_checked_before_any_model_is_called() {
    let (up, service) = start("").await;
    let refused = async |body: &Value| ask(&service, body).undocumented().send().await;
    let tools: Vec<Value> =
        (0..100_000).map(|n| json!({"name": format!("t{n}"), "input_schema": {}})).collect();
    let blocks = vec![json!({"type": "text", "text": ""}); 5001];
    let pdf = json!({"type": "base64", "media_type": "application/pdf", "data": ""});
    let document = json!({"type": "document", "source": pdf});
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    for (more, message) in [
        (json!({"tools": tools}), "tools must have at most 1024 items"),
        (user(json!(blocks)), "messages[0].content must have at most 5000 items"),
        (
            user(json!([document])),
            "messages[0].content[0].source.type must be one of text, content",
        ),
        (json!({"messages": []}), "messages must not be empty"),
        (json!({"max_tokens": 0}), "max_tokens must be a whole number from 1 to 4294967295"),
    ] {
        let answer = refused(&with("far", more)).await;
        assert_eq!(expect_error(&answer, 400, "invalid_request_error"), message);
    }
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let body = request("far").to_string().replace("\"hello\"", &deep);
    let answer = service.post("/v1/messages", &json!({})).body(body).undocumented().send().await;
    expect_error(&answer, 400, "invalid_request_error");
    let large = service.refusal_of_large_body(Role::Base, "/v1/messages").await;
    assert!(large.contains("request_too_large"), "{large}");
    assert_eq!(up.requests().len(), 0);
}

#[tokio::test]
async fn message_ignores_unknown_parameters_and_reports_unknown_fields() {
    let (up, service) = start("").await;
    up.says("hi", 1, 1);
    let body = with("far", json!({"context_management": {"edits": []}}));
    let answer = service.post("/v1/messages?beta=true", &body).undocumented().send().await;
    let said = answer.expect(200);
    assert!(said["warnings"][0].as_str().unwrap().contains("context_management"), "{said}");
    let strict = ask(&service, &body).header("prefer", "handling=strict").undocumented();
    expect_error(&strict.send().await, 400, "invalid_request_error");
}

#[tokio::test]
async fn message_is_answered_by_the_agent() {
    let (up, service) = start("[agent]\nmodel = 'far'\n").await;
    up.follows(|_request| {
        let message = json!({"role": "assistant", "content": "I am here."});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        (200, json!({"choices": [choice]}))
    });
    let said = ask(&service, &request("orrery/beta")).send().await.expect(200);
    assert_eq!(said["content"], json!([{"type": "text", "text": "I am here."}]));
    let streamed = ask(&service, &with("orrery/beta", json!({"stream": true}))).send().await;
    let all = events(&streamed.text);
    assert_eq!(all.last().unwrap()["type"], "message_stop", "{}", streamed.text);
    assert!(streamed.text.contains("I am here."), "{}", streamed.text);
    let counted = service.post(
        "/v1/messages/count_tokens",
        &json!({"model": "orrery/beta", "messages": request("x")["messages"]}),
    );
    assert!(counted.send().await.expect(200)["input_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn message_tokens_are_counted_without_a_call() {
    let (up, service) = start("").await;
    let count = async |text: &str| {
        let body = json!({"model": "far", "messages": [{"role": "user", "content": text}]});
        let answer = service.post("/v1/messages/count_tokens", &body).send().await;
        answer.expect(200)["input_tokens"].as_u64().unwrap()
    };
    assert_eq!(count(&"word ".repeat(400)).await - count("").await, 500);
    assert_eq!(up.requests().len(), 0);
    let alone = Service::start().await;
    let body = json!({"model": "far", "messages": [{"role": "user", "content": "hi"}]});
    let answer = alone.post("/v1/messages/count_tokens", &body).send().await;
    expect_error(&answer, 404, "not_found_error");
}

#[cfg(feature = "llama")]
#[tokio::test]
async fn message_tokens_of_local_model_are_exact() {
    let service = Service::start().await;
    gguf::write(&service.models().join("small.gguf"), &gguf::SMALL, "Small", 7);
    service.manifest("slug = 'small'\n[runner]\ntype = 'llm'\nfile = 'small.gguf'\nthreads = 1\n");
    let tool = json!({"name": "weather", "input_schema": {"type": "object"}});
    let body = with("small", json!({"max_tokens": 1, "system": "Be nice.", "tools": [tool]}));
    let mut prompt = body.clone();
    prompt.as_object_mut().unwrap().shift_remove("max_tokens");
    let counted = service.post("/v1/messages/count_tokens", &prompt).send().await.expect(200);
    let said = ask(&service, &body).send().await.expect(200);
    assert_eq!(counted["input_tokens"], said["usage"]["input_tokens"]);
    assert_eq!(said["stop_reason"], "max_tokens");
    let rows = service.get("/v2/executions").await.expect(200);
    assert_eq!(rows["executions"].as_array().unwrap().len(), 1, "a count is no call");
    let long = json!({"role": "user", "content": "word ".repeat(100_000)});
    prompt["messages"] = json!([long]);
    let counted = service.post("/v1/messages/count_tokens", &prompt).send().await.expect(200);
    assert!(counted["input_tokens"].as_u64().unwrap() > 100_000, "estimated: it does not fit");
}

#[tokio::test]
async fn alias_stands_for_a_model_and_hides_none() {
    let near = Upstream::start().await;
    let aliases = "aliases = { 'claude-*' = 'near', 'gpt-4o' = 'far', 'listed' = 'near' }\n";
    let (up, service) = start(aliases).await;
    service.manifest(&near.manifest("near", "chat", ""));
    let list = json!({"object": "list", "data": [{"id": "listed"}, {"id": "far"}]});
    up.follows(move |request| {
        if request.is_null() {
            return (200, list.clone());
        }
        let message = json!({"role": "assistant", "content": "far away"});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        (200, json!({"model": request["model"], "choices": [choice]}))
    });
    near.says("here", 1, 1);
    let said = ask(&service, &request("claude-x")).send().await.expect(200);
    assert_eq!((&said["model"], &said["content"][0]["text"]), (&json!("claude-x"), &json!("here")));
    assert_eq!(near.newest()["model"], "real-near");
    let row = newest_row(&service, 1).await;
    assert_eq!((&row["model"], &row["requested_model"]), (&json!("near"), &json!("claude-x")));
    let chat = async |model: &str, is_stream: bool| {
        let body = json!({
            "model": model, "stream": is_stream, "messages": request(model)["messages"],
        });
        service.post("/v1/chat/completions", &body).send().await
    };
    assert_eq!(chat("gpt-4o", false).await.expect(200)["model"], "gpt-4o");
    assert_eq!(up.newest()["model"], "far");
    let streamed = chat("gpt-4o", true).await;
    assert!(streamed.text.contains(r#""model":"gpt-4o""#), "{}", streamed.text);
    assert!(!streamed.text.contains(r#""far""#), "{}", streamed.text);
    chat("listed", false).await.expect(200);
    assert_eq!(up.newest()["model"], "listed", "the upstream has this model itself");
    let counted = json!({"model": "claude-x", "messages": request("x")["messages"]});
    service.post("/v1/messages/count_tokens", &counted).send().await.expect(200);
}

#[tokio::test]
async fn alias_does_not_wait_for_a_silent_upstream() {
    let near = Upstream::start().await;
    let (up, service) = start("aliases = { 'claude-*' = 'near' }\n").await;
    service.manifest(&near.manifest("near", "chat", ""));
    up.is_silent();
    for _call in 0..3 {
        near.says("here", 1, 1);
        let started = orrery_runtime::monotonic_now();
        ask(&service, &request("claude-x")).send().await.expect(200);
        assert!(started.elapsed().as_secs() < 8, "it waited for the list: {:?}", started.elapsed());
    }
    assert_eq!(up.requests().len(), 1, "the list is still being fetched");
    let list = service.get("/v1/llm-router/model-catalog").await.expect(200);
    assert_eq!(list["upstream"]["stale"], true);
}

#[tokio::test]
async fn models_are_listed_in_anthropics_form() {
    let near = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&near.manifest("near", "chat", ""));
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    let get = async |path: &str, key: Option<&str>| {
        let ask = service.ask(Role::Base, Method::GET, path);
        let ask = ask.header("anthropic-version", "2023-06-01");
        match key {
            Some(key) => ask.key(key).send().await,
            None => ask.send().await,
        }
    };
    let key = Some(&*service.key);
    let list = get("/v1/models?limit=1000&after_id=x", key).await.expect(200);
    let model = json!({
        "type": "model", "id": "near", "display_name": "near",
        "created_at": "1970-01-01T00:00:00.000Z",
    });
    let expected =
        json!({"data": [model], "has_more": false, "first_id": "near", "last_id": "near"});
    assert_eq!(list, expected);
    assert_eq!(get("/v1/models/near", key).await.expect(200), model);
    let missing = get("/v1/models/vectors", key).await.expect(404);
    assert_eq!(missing["error"]["type"], "not_found_error");
    let answer = get("/v1/models/nobody", key).await;
    expect_error(&answer, 404, "not_found_error");
    get("/v1/models", None).await.expect(401);
    let by_format = service.get("/v1/models?format=anthropic").await.expect(200);
    assert_eq!(by_format, expected);
    let bearer = service.ask(Role::Base, Method::GET, "/v1/models");
    let bearer = bearer.header("authorization", format!("Bearer {}", service.key));
    assert_eq!(bearer.send().await.expect(200)["object"], "list");
}
