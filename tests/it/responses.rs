//! OpenAI's Responses API: whole answers, streams, tools and errors.

use serde_json::{Value, json};

use crate::chat::{Reading, newest_row};
use crate::support::{Answer, Ask, Service, Upstream};

const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                     per_million_output_tokens = 1000.0 }]\n";

pub(crate) fn with(more: Value) -> Value {
    let mut body = json!({"model": "far", "input": "hello"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

pub(crate) fn ask(service: &Service, body: &Value) -> Ask {
    service.post("/v1/responses", body)
}

/// Checks an error in OpenAI's format; returns its body.
#[track_caller]
pub(crate) fn expect_error(answer: &Answer, status: u16, kind: &str) -> Value {
    let body = answer.expect(status);
    assert_eq!(body["error"]["type"], kind, "{body}");
    body["error"].clone()
}

/// Returns the events of a stream, whose names are also the types of their data.
#[track_caller]
pub(crate) fn events(text: &str) -> Vec<Value> {
    let event = |text: &str| {
        let (name, data) = text.split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        data
    };
    text.split_terminator("\n\n").filter(|text| !text.starts_with(':')).map(event).collect()
}

pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// Returns an upstream and a service that uses it.
pub(crate) async fn start(more: &str) -> (Upstream, Service) {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(more)).await;
    (up, service)
}

#[tokio::test]
async fn response_is_the_answer_of_a_chat_completion() {
    let (up, service) = start(PRICE).await;
    up.says("hi", 30, 20);
    let body = with(json!({
        "instructions": "Be nice.", "temperature": 0.5, "max_output_tokens": 64, "user": "u1",
        "metadata": {"a": "b"}, "prompt_cache_key": "k", "truncation": "auto",
    }));
    let answer = ask(&service, &body).send().await;
    let said = answer.expect(200);
    let sent = json!({
        "model": "far", "max_tokens": 64, "temperature": 0.5, "user": "u1", "messages": [
            {"role": "system", "content": "Be nice."}, {"role": "user", "content": "hello"},
        ],
    });
    assert_eq!(up.newest(), sent);
    let execution = answer.header("x-execution-id").to_owned();
    let digits = execution.replace('-', "");
    let text = json!({"type": "output_text", "text": "hi", "annotations": [], "logprobs": []});
    let output = json!([{
        "id": format!("msg_{digits}_0"), "type": "message", "status": "completed",
        "role": "assistant", "content": [text],
    }]);
    let usage = json!({
        "input_tokens": 30, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 50, "cost": 0.023,
    });
    for (field, expected) in [
        ("id", json!(format!("resp_{digits}"))),
        ("object", json!("response")),
        ("status", json!("completed")),
        ("output", output),
        ("usage", usage),
        ("instructions", json!("Be nice.")),
        ("temperature", json!(0.5)),
        ("top_p", json!(1.0)),
        ("metadata", json!({"a": "b"})),
        ("tool_choice", json!("auto")),
        ("truncation", json!("auto")),
        ("text", json!({"format": {"type": "text"}, "verbosity": "medium"})),
        ("error", json!(null)),
    ] {
        assert_eq!(said[field], expected, "{field}");
    }
    assert!(said["completed_at"].as_i64() >= said["created_at"].as_i64());
    let row = newest_row(&service, 1).await;
    let found = (&row["id"], &row["type"], &row["execution_cost"]);
    assert_eq!(found, (&json!(execution), &json!("chat"), &json!(0.023)));
}

#[tokio::test]
async fn response_tools_make_a_round_trip() {
    let (up, service) = start("").await;
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tool = json!({
        "type": "function", "name": "weather", "parameters": parameters, "strict": true,
    });
    let call = json!({"name": "weather", "arguments": r#"{"city":"Rome"}"#});
    let call = json!({"id": "call_1", "type": "function", "function": call});
    let message = json!({
        "role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call],
    });
    let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
    up.answers(200, json!({"choices": [choice]}).to_string());
    let user = json!({"role": "user", "content": "hello"});
    let mut body = with(json!({
        "input": [user], "tools": [tool], "parallel_tool_calls": false,
        "tool_choice": {"type": "function", "name": "weather"}, "reasoning": {"effort": "low"},
    }));
    let said = ask(&service, &body).send().await.expect(200);
    let sent = up.newest();
    let chosen = json!({"type": "function", "function": {"name": "weather"}});
    assert_eq!((&sent["tool_choice"], &sent["reasoning_effort"]), (&chosen, &json!("low")));
    assert_eq!(sent["tools"][0]["function"]["parameters"], parameters);
    let output = &said["output"];
    assert_eq!(
        (&output[0]["type"], &output[1]["type"]),
        (&json!("reasoning"), &json!("function_call"))
    );
    assert_eq!(output[0]["content"], json!([{"type": "reasoning_text", "text": "hm"}]));
    assert_eq!(output[1]["call_id"], "call_1");
    assert_eq!(
        said["tools"][0],
        json!({
            "type": "function", "name": "weather", "description": null, "parameters": parameters,
            "strict": true,
        })
    );
    let items = body["input"].as_array_mut().unwrap();
    items.extend(output.as_array().unwrap().iter().cloned());
    let sunny = json!([{"type": "input_text", "text": "sunny"}]);
    items.push(json!({"type": "function_call_output", "call_id": "call_1", "output": sunny}));
    up.says("It is sunny.", 1, 1);
    ask(&service, &body).send().await.expect(200);
    let expected = json!([
        {"role": "user", "content": "hello"}, message,
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]);
    assert_eq!(up.newest()["messages"], expected);
}

#[tokio::test]
async fn response_stream_has_all_kinds_of_events() {
    let (up, service) = start(PRICE).await;
    let feed = up.streams();
    let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
    let mut reading = Reading::open(ask(&service, &with(json!({"stream": true})))).await;
    let first = events(&reading.until("response.in_progress\",").await);
    assert_eq!(first[0]["response"]["status"], "in_progress");
    feed.event(&delta(json!({"reasoning": "hm"})));
    feed.event(&delta(json!({"content": "He"})));
    reading.until("\"He\"").await;
    feed.raw(": keep-alive\n\n");
    reading.until(": keep-alive\n\n").await;
    feed.event(&delta(json!({"content": "y"})));
    let begin = json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}});
    feed.event(&delta(json!({"tool_calls": [begin]})));
    let more = json!({"index": 0, "function": {"arguments": "{}"}});
    feed.event(&delta(json!({"tool_calls": [more]})));
    feed.finish(30, 20);
    let rest = events(&reading.rest().await);
    let expected = [
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds(&rest), expected);
    let last = rest.last().unwrap();
    let output = &last["response"]["output"];
    assert_eq!(output[0]["content"][0]["text"], "hm");
    assert_eq!(output[1]["content"][0]["text"], "Hey");
    assert_eq!((&output[2]["arguments"], &output[2]["call_id"]), (&json!("{}"), &json!("a")));
    assert_eq!(last["response"]["usage"]["cost"], 0.023);
    assert_eq!(last["response"]["id"], first[0]["response"]["id"]);
    let row = newest_row(&service, 1).await;
    assert_eq!((&row["status"], &row["chat"]["stream"]), (&json!("success"), &json!(true)));
}

#[tokio::test]
async fn response_stream_that_breaks_ends_with_failed_response() {
    let (up, service) = start("").await;
    let feeds: [fn(crate::support::upstream::Feed); 3] = [
        |feed| feed.cut(),
        |feed| feed.event(&json!({"error": {"message": "down", "type": "server_error"}})),
        |feed| feed.raw("data: {\"choices\": [\n\n"),
    ];
    for end in feeds {
        let feed = up.streams();
        feed.say("He");
        let mut reading = Reading::open(ask(&service, &with(json!({"stream": true})))).await;
        reading.until("\"He\"").await;
        end(feed);
        let rest = events(&reading.rest().await);
        let kinds = kinds(&rest);
        assert_eq!(kinds[kinds.len() - 2..], ["error", "response.failed"]);
        let response = &rest.last().unwrap()["response"];
        assert_eq!(response["error"]["code"], "server_error");
        assert_eq!(response["output"][0]["content"][0]["text"], "He");
    }
}

#[tokio::test]
async fn response_stream_of_disconnected_client_stops_model() {
    let (up, service) = start(PRICE).await;
    let feed = up.streams();
    feed.say("12345678");
    let mut reading = Reading::open(ask(&service, &with(json!({"stream": true})))).await;
    reading.until("12345678").await;
    drop(reading);
    up.hung_up(1).await;
    let row = newest_row(&service, 1).await;
    assert_eq!((&row["status"], &row["chat"]["output_tokens"]), (&json!("cancelled"), &json!(2)));
    drop(feed);
}

#[tokio::test]
async fn response_errors_have_openais_form() {
    let (up, service) = start("").await;
    let refused = async |more: Value| ask(&service, &with(more)).undocumented().send().await;
    let tools = vec![json!({"type": "function", "name": "f"}); 1025];
    let metadata: serde_json::Map<String, Value> =
        (0..17).map(|n| (n.to_string(), json!("x"))).collect();
    for (more, param, message) in [
        (json!({"tools": tools}), "tools", "tools must have at most 1024 items"),
        (
            json!({"tools": [{"type": "web_search"}]}),
            "tools[0].type",
            "tools[0].type 'web_search' is not supported: only tools of the type function are",
        ),
        (json!({"metadata": metadata}), "metadata", "metadata must have 0 to 16 fields"),
        (
            json!({"metadata": {"a".repeat(65): "x"}}),
            "metadata",
            "metadata must have field names that each must have at most 64 characters",
        ),
        (
            json!({"metadata": {"a": "x".repeat(513)}}),
            "metadata.a",
            "metadata.a must have at most 512 characters",
        ),
        (
            json!({"max_output_tokens": 0}),
            "max_output_tokens",
            "max_output_tokens must be a whole number from 1 to 4294967295",
        ),
    ] {
        let error = expect_error(&refused(more).await, 400, "invalid_request_error");
        assert_eq!((&error["param"], &error["message"]), (&json!(param), &json!(message)));
    }
    assert_eq!(up.requests().len(), 0);
    up.answers(429, r#"{"error":{"message":"slow down"}}"#);
    let answer = ask(&service, &with(json!({}))).send().await;
    assert_eq!(expect_error(&answer, 429, "rate_limit_error")["message"], "slow down");
    let large = service.refusal_of_large_body(orrery_api::Role::Base, "/v1/responses").await;
    assert!(large.contains("invalid_request_error"), "{large}");
}

#[tokio::test]
async fn response_ignores_unknown_parameters_and_reports_unknown_fields() {
    let (up, service) = start("").await;
    up.says("hi", 1, 1);
    let body = with(json!({"conversation": "c"}));
    let answer = service.post("/v1/responses?x=1", &body).undocumented().send().await;
    let said = answer.expect(200);
    assert!(said["warnings"][0].as_str().unwrap().contains("conversation"), "{said}");
}

#[tokio::test]
async fn response_is_given_by_the_agent() {
    let (up, service) = start("[agent]\nmodel = 'far'\n").await;
    up.follows(|_request| {
        let message = json!({"role": "assistant", "content": "I am here."});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        (200, json!({"choices": [choice]}))
    });
    let of_agent = |more: Value| {
        let mut body = with(json!({"model": "orrery/beta"}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let said = ask(&service, &of_agent(json!({}))).send().await.expect(200);
    assert_eq!(said["output"][0]["content"][0]["text"], "I am here.");
    let streamed = ask(&service, &of_agent(json!({"stream": true}))).send().await;
    let all = events(&streamed.text);
    assert_eq!(all.last().unwrap()["type"], "response.completed", "{}", streamed.text);
    assert!(streamed.text.contains("I am here."), "{}", streamed.text);
}
