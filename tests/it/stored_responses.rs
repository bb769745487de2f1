//! Stored responses: reading, following, continuing and deleting them, and their limits.

use std::time::Duration;

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::chat::Reading;
use crate::responses::{ask, events, expect_error, kinds, start, with};
use crate::support::{Answer, Service};

async fn create(service: &Service, more: Value) -> Value {
    ask(service, &with(more)).send().await.expect(200)
}

async fn delete(service: &Service, response: &Value) -> Answer {
    service.ask(Role::Base, Method::DELETE, &path(response, "")).key(&service.key).send().await
}

fn path(response: &Value, more: &str) -> String {
    format!("/v1/responses/{}{more}", response["id"].as_str().unwrap())
}

fn id(item: &Value) -> &str {
    item["id"].as_str().unwrap()
}

#[tokio::test]
async fn stored_response_is_read_followed_and_deleted() {
    let (up, service) = start("").await;
    up.says("hi", 30, 20);
    let said = create(&service, json!({"metadata": {"a": "b"}})).await;
    assert_eq!(said["store"], true);
    assert_eq!(service.get(&path(&said, "")).await.expect(200), said);
    let all = service.get(&path(&said, "?stream=true")).await;
    assert_eq!(all.header("content-type"), "text/event-stream");
    let all = events(&all.text);
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds(&all), expected);
    assert_eq!(all.last().unwrap()["response"], said);
    let rest = service.get(&path(&said, "?stream=true&starting_after=6")).await;
    assert_eq!(events(&rest.text), all[7..]);
    let deleted = delete(&service, &said).await.expect(200);
    assert_eq!(deleted, json!({"id": said["id"], "object": "response", "deleted": true}));
    let answer = service.get(&path(&said, "")).await;
    let error = expect_error(&answer, 404, "invalid_request_error");
    assert_eq!(error["message"], format!("there is no stored response '{}'", id(&said)));
    expect_error(&delete(&service, &said).await, 404, "invalid_request_error");
}

#[tokio::test]
async fn stored_response_is_sealed_to_its_organization() {
    let (up, service) = start("").await;
    up.says("hi", 1, 1);
    let said = create(&service, json!({})).await;
    for (method, more) in [
        (Method::GET, ""),
        (Method::DELETE, ""),
        (Method::POST, "/cancel"),
        (Method::GET, "/input_items"),
    ] {
        let foreign = service.ask(Role::Base, method, &path(&said, more)).key(&service.other_key);
        expect_error(&foreign.send().await, 404, "invalid_request_error");
    }
    for more in [
        json!({"previous_response_id": said["id"]}),
        json!({"input": [{"type": "item_reference", "id": said["output"][0]["id"]}]}),
    ] {
        let foreign =
            service.ask(Role::Base, Method::POST, "/v1/responses").key(&service.other_key);
        let answer = foreign.json(&with(more)).send().await;
        expect_error(&answer, 404, "invalid_request_error");
    }
    service.get(&path(&said, "")).await.expect(200);
}

#[tokio::test]
async fn response_continues_the_conversation_of_its_predecessors() {
    let (up, service) = start("").await;
    up.says("hi", 1, 1);
    let first = create(&service, json!({"instructions": "Be nice."})).await;
    up.says("well", 1, 1);
    let input = json!([{"role": "user", "content": "how?"}]);
    let next = json!({"input": input, "previous_response_id": first["id"]});
    let second = create(&service, next).await;
    assert_eq!(second["previous_response_id"], first["id"]);
    up.says("why?", 1, 1);
    let more = json!({"input": "bye", "previous_response_id": second["id"], "store": false});
    let third = create(&service, more).await;
    let expected = json!([
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "how?"}, {"role": "assistant", "content": "well"},
        {"role": "user", "content": "bye"},
    ]);
    assert_eq!(up.newest()["messages"], expected, "without the instructions");
    assert_eq!(third["store"], false);
    service.get(&path(&third, "")).await.expect(404);
    let items = service.get(&path(&second, "/input_items")).await.expect(200);
    assert_eq!(items["data"].as_array().unwrap().len(), 1, "only its own");
    delete(&service, &first).await.expect(200);
    let broken = with(json!({"previous_response_id": second["id"]}));
    let answer = ask(&service, &broken).send().await;
    let error = expect_error(&answer, 404, "invalid_request_error");
    assert_eq!(error["message"], format!("there is no stored response '{}'", id(&first)));
    assert_eq!(error["code"], "previous_response_not_found");
    for unknown in ["resp_1", "x", &id(&second).to_uppercase()] {
        let answer = ask(&service, &with(json!({"previous_response_id": unknown}))).send().await;
        assert_eq!(
            expect_error(&answer, 404, "invalid_request_error")["param"],
            "previous_response_id"
        );
    }
}

#[tokio::test]
async fn item_references_stand_for_stored_items() {
    let (up, service) = start("").await;
    up.says("hi", 1, 1);
    let first = create(&service, json!({})).await;
    let asked = service.get(&path(&first, "/input_items")).await.expect(200);
    let reference = |item: &Value| json!({"type": "item_reference", "id": item["id"]});
    let input = json!([
        reference(&asked["data"][0]), reference(&first["output"][0]),
        {"role": "user", "content": "how?"},
    ]);
    up.says("well", 1, 1);
    let second = create(&service, json!({"input": input})).await;
    let expected = json!([
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "how?"},
    ]);
    assert_eq!(up.newest()["messages"], expected);
    delete(&service, &first).await.expect(200);
    let items = service.get(&path(&second, "/input_items?order=asc")).await.expect(200);
    assert_eq!(items["data"][0]["content"][0]["text"], "hello", "a copy");
    let gone = with(json!({"input": [reference(&first["output"][0])]}));
    let error = expect_error(&ask(&service, &gone).send().await, 404, "invalid_request_error");
    assert_eq!((&error["param"], &error["code"]), (&json!("input"), &json!("item_not_found")));
}

#[tokio::test]
async fn input_items_are_listed_in_pages() {
    let (up, service) = start("").await;
    up.says("hi", 1, 1);
    let say = |text: &str| json!({"role": "user", "content": text});
    let input = json!([say("a"), say("b"), say("c"), {
        "type": "function_call_output", "call_id": "x", "output": "ok",
    }]);
    let said = create(&service, json!({"input": input})).await;
    let list = async |query: &str| {
        service.get(&path(&said, &format!("/input_items{query}"))).await.expect(200)
    };
    let all = list("").await;
    let ids: Vec<&str> = all["data"].as_array().unwrap().iter().map(id).collect();
    assert_eq!(all["data"][0]["type"], "function_call_output", "the last one first");
    assert_eq!((&all["first_id"], &all["last_id"]), (&json!(ids[0]), &json!(ids[3])));
    assert_eq!((&all["object"], &all["has_more"]), (&json!("list"), &json!(false)));
    let page = list(&format!("?limit=1&after={}", ids[1])).await;
    assert_eq!((&page["first_id"], &page["has_more"]), (&json!(ids[2]), &json!(true)));
    let page = list(&format!("?order=asc&before={}", ids[1])).await;
    assert_eq!((&page["first_id"], &page["last_id"]), (&json!(ids[3]), &json!(ids[2])));
    let page = list(&format!("?after={}", ids[3])).await;
    assert_eq!((&page["data"], &page["first_id"]), (&json!([]), &json!(null)));
    for query in ["?limit=0", "?limit=101", "?after=x"] {
        let answer = service.get(&path(&said, &format!("/input_items{query}"))).await;
        expect_error(&answer, 400, "invalid_request_error");
    }
}

#[tokio::test]
async fn streamed_response_is_stored_before_its_end() {
    let (up, service) = start("").await;
    let feed = up.streams();
    feed.say("hi");
    feed.finish(1, 1);
    let answer = ask(&service, &with(json!({"stream": true}))).send().await;
    let last = events(&answer.text).pop().unwrap();
    let stored = service.get(&path(&last["response"], "")).await.expect(200);
    assert_eq!(stored, last["response"]);
    let feed = up.streams();
    feed.say("He");
    let mut reading = Reading::open(ask(&service, &with(json!({"stream": true})))).await;
    reading.until("\"He\"").await;
    feed.cut();
    let last = events(&reading.rest().await).pop().unwrap();
    let stored = service.get(&path(&last["response"], "")).await.expect(200);
    assert_eq!((&stored["status"], &stored), (&json!("failed"), &last["response"]));
    let again = service.get(&path(&stored, "?stream=true")).await;
    let again = events(&again.text);
    assert_eq!(kinds(&again)[again.len() - 2..], ["error", "response.failed"]);
}

#[tokio::test]
async fn stored_responses_survive_a_restart_until_retention_deletes_them() {
    let (up, service) = start("").await;
    up.says("hi", 1, 1);
    let said = create(&service, json!({})).await;
    let service = service.restart().await;
    assert_eq!(service.get(&path(&said, "")).await.expect(200), said);
    let (services, organization) = (&service.running.services, service.organization.id);
    let later = services.clock.now().plus(Duration::from_secs(3600));
    assert_eq!(services.responses.purge_before(organization, later).await.unwrap(), 1);
    service.get(&path(&said, "")).await.expect(404);
}
