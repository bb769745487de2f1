//! Responses of an upstream that has the Responses API itself.

use http_body_util::BodyExt;
use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::chat::{Reading, newest_row};
use crate::responses::{ask, events, expect_error, kinds, start, with};
use crate::support::{Ask, Service, Upstream, within};

const NATIVE: &str = "responses = 'native'\n\
                      prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                      per_million_output_tokens = 1000.0 }]\n";

fn said(text: &str) -> Value {
    let search = json!({"id": "ws_1", "type": "web_search_call", "status": "completed"});
    let part = json!({"type": "output_text", "text": text, "annotations": []});
    let message = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [part],
    });
    json!({
        "id": "resp_up", "object": "response", "created_at": 1, "status": "completed",
        "model": "far-2026", "error": null, "output": [search, message], "store": false,
        "previous_response_id": null, "service_tier": "flex",
        "usage": {"input_tokens": 30, "output_tokens": 20, "total_tokens": 50},
    })
}

fn path(up: &Upstream) -> String {
    up.requests().last().unwrap().uri().path().to_owned()
}

/// Returns an answer, which may have items that the document does not list.
async fn answer_of(ask: Ask) -> Value {
    let answer = ask.open().await;
    assert_eq!(answer.status(), 200);
    let body = within("body", answer.into_body().collect()).await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

async fn stored(service: &Service, id: &str) -> Value {
    let path = format!("/v1/responses/{id}");
    answer_of(service.ask(Role::Base, Method::GET, &path).key(&service.key)).await
}

async fn create(service: &Service, up: &Upstream, more: Value) -> Value {
    up.answers(200, said("hi").to_string());
    answer_of(ask(service, &with(more))).await
}

#[tokio::test]
async fn native_response_passes_with_its_tools_and_is_charged() {
    let (up, service) = start(NATIVE).await;
    let more = json!({"tools": [{"type": "web_search"}], "max_output_tokens": 64, "x": 1});
    let response = create(&service, &up, more).await;
    assert_eq!(path(&up), "/v1/responses");
    let sent = json!({
        "model": "far", "tools": [{"type": "web_search"}], "max_output_tokens": 64, "x": 1,
        "input": [{"type": "message", "role": "user", "content": "hello"}], "store": false,
    });
    assert_eq!(up.newest(), sent);
    let row = newest_row(&service, 1).await;
    let digits = row["id"].as_str().unwrap().replace('-', "");
    for (field, expected) in [
        ("/id", json!(format!("resp_{digits}"))),
        ("/output/0/id", json!(format!("ws_{digits}_0"))),
        ("/output/1/id", json!(format!("msg_{digits}_1"))),
        ("/output/1/content/0/text", json!("hi")),
        ("/model", json!("far")),
        ("/store", json!(true)),
        ("/service_tier", json!("flex")),
        ("/usage/cost", json!(0.023)),
    ] {
        assert_eq!(response.pointer(field), Some(&expected), "{field}");
    }
    let call = &row["chat"];
    let found = (&call["input_tokens"], &call["output_tokens"], &row["execution_cost"]);
    assert_eq!(found, (&json!(30), &json!(20), &json!(0.023)));
    assert_eq!(service.ledger().await.len(), 1);
}

#[tokio::test]
async fn native_conversations_are_stored_here_and_sealed() {
    let (up, service) = start(NATIVE).await;
    let first = create(&service, &up, json!({})).await;
    let id = first["id"].as_str().unwrap();
    assert_eq!(stored(&service, id).await, first);
    let items = stored(&service, &format!("{id}/input_items")).await;
    assert_eq!(items["data"][0]["content"], "hello");
    let reasoning = json!({"type": "reasoning", "summary": []});
    let reference = json!({"type": "item_reference", "id": first["output"][1]["id"]});
    let user = json!({"role": "user", "content": "more"});
    let more = json!({"previous_response_id": first["id"], "input": [reasoning, reference, user]});
    let second = create(&service, &up, more.clone()).await;
    assert_eq!(second["previous_response_id"], first["id"]);
    let sent = up.newest();
    let message = json!({
        "type": "message", "role": "assistant", "status": "completed",
        "content": first["output"][1]["content"],
    });
    let expected = json!([
        {"type": "message", "role": "user", "content": "hello"},
        {"type": "web_search_call", "status": "completed"},
        message, message, user,
    ]);
    assert_eq!((&sent["input"], &sent["previous_response_id"]), (&expected, &Value::Null));
    let foreign = service.ask(Role::Base, Method::POST, "/v1/responses").key(&service.other_key);
    let foreign = foreign.json(&with(more)).undocumented().send().await;
    expect_error(&foreign, 404, "invalid_request_error");
    let unstored = create(&service, &up, json!({"store": false})).await;
    let path = format!("/v1/responses/{}", unstored["id"].as_str().unwrap());
    service.get(&path).await.expect(404);
    // A chat completion has no form for the item of the search.
    service.manifest(&up.manifest("near", "chat", ""));
    let near = with(json!({"model": "near", "previous_response_id": first["id"]}));
    let refused = expect_error(&ask(&service, &near).send().await, 400, "invalid_request_error");
    assert_eq!(refused["code"], "unsupported_items");
}

fn event(kind: &str, more: Value) -> Value {
    let mut event = json!({"type": kind, "sequence_number": 7});
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event
}

fn begun() -> Value {
    let mut response = said("");
    response["status"] = json!("in_progress");
    response["output"] = json!([]);
    event("response.created", json!({"response": response}))
}

fn delta(text: &str) -> Value {
    let place = json!({"item_id": "msg_1", "output_index": 1, "content_index": 0, "delta": text});
    event("response.output_text.delta", place)
}

#[tokio::test]
async fn native_stream_passes_its_events_and_is_stored() {
    let (up, service) = start(NATIVE).await;
    let feed = up.streams();
    let mut reading = {
        feed.event(&begun());
        feed.event(&delta("h"));
        let ask = ask(&service, &with(json!({"stream": true}))).undocumented();
        Reading::open(ask).await
    };
    let first = events(&reading.until("\"h\"").await);
    let id = first[0]["response"]["id"].as_str().unwrap().to_owned();
    assert_eq!(first[1]["item_id"], id.replace("resp_", "msg_") + "_1");
    feed.event(&event("response.completed", json!({"response": said("hi")})));
    let last = events(&reading.rest().await);
    assert_eq!(kinds(&last), ["response.completed"]);
    assert_eq!((&last[0]["sequence_number"], &last[0]["response"]["id"]), (&json!(2), &json!(id)));
    assert_eq!(last[0]["response"]["usage"]["cost"], 0.023);
    assert_eq!(stored(&service, &id).await, last[0]["response"]);
    let row = newest_row(&service, 1).await;
    let found = (&row["status"], &row["execution_cost"]);
    assert_eq!(found, (&json!("success"), &json!(0.023)));
    drop(feed);
}

#[tokio::test]
async fn native_stream_that_breaks_ends_with_failed_response() {
    let (up, service) = start(NATIVE).await;
    let mut failed = said("");
    failed["error"] = json!({"code": "server_error", "message": "down"});
    failed.as_object_mut().unwrap().remove("usage");
    let failed = event("response.failed", json!({"response": failed}));
    let ends: [Box<dyn Fn(crate::support::upstream::Feed)>; 3] = [
        Box::new(|feed| feed.cut()),
        Box::new(move |feed| feed.event(&failed)),
        Box::new(|feed| feed.raw("data: {\"type\": [\n\n")),
    ];
    for end in ends {
        let feed = up.streams();
        feed.event(&begun());
        feed.event(&delta("h"));
        let ask = ask(&service, &with(json!({"stream": true}))).undocumented();
        let mut reading = Reading::open(ask).await;
        reading.until("\"h\"").await;
        end(feed);
        let rest = events(&reading.rest().await);
        assert_eq!(kinds(&rest), ["error", "response.failed"]);
        assert_eq!(rest[1]["response"]["status"], "failed");
    }
    let feed = up.streams();
    feed.event(&begun());
    feed.event(&delta("12345678"));
    let mut reading =
        Reading::open(ask(&service, &with(json!({"stream": true}))).undocumented()).await;
    reading.until("12345678").await;
    drop(reading);
    up.hung_up(1).await;
    let row = newest_row(&service, 4).await;
    assert_eq!(row["status"], "cancelled");
    assert!(row["chat"]["output_tokens"].as_u64().unwrap() >= 2, "{row}");
}

#[tokio::test]
async fn native_requests_are_refused_with_the_reason() {
    let (up, service) = start(NATIVE).await;
    let refused = async |more: Value| ask(&service, &with(more)).undocumented().send().await;
    for input in [json!(null), json!([]), json!(5), json!(vec![json!({}); 10_001])] {
        let error =
            expect_error(&refused(json!({"input": input})).await, 400, "invalid_request_error");
        assert_eq!(error["param"], "input");
    }
    assert!(up.requests().is_empty());
    up.answers(400, r#"{"error":{"message":"no such tool","param":"tools","code":"bad"}}"#);
    let error = expect_error(&refused(json!({})).await, 400, "invalid_request_error");
    assert_eq!((&error["param"], &error["code"]), (&json!("tools"), &json!("bad")));
    for (text, words) in
        [("{}", "has no output"), ("[]", "not a JSON object"), ("<html>", "not a JSON object")]
    {
        up.answers(200, text);
        let error = expect_error(&refused(json!({})).await, 502, "upstream_error");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    assert!(service.ledger().await.is_empty());
}

#[tokio::test]
async fn native_setting_leaves_other_models_translated() {
    let (up, service) = start(NATIVE).await;
    service.manifest(&up.manifest("near", "chat", ""));
    up.says("hi", 1, 1);
    ask(&service, &with(json!({"model": "near"}))).send().await.expect(200);
    assert_eq!(path(&up), "/v1/chat/completions");
    up.says("hi", 1, 1);
    ask(&service, &with(json!({"background": true}))).send().await.expect(200);
    up.arrived(2).await;
    assert_eq!(path(&up), "/v1/chat/completions");
}
