//! Responses in the background: queued, followed, cancelled, and failed.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::chat::Reading;
use crate::responses::{ask, events, expect_error, kinds, start, with};
use crate::support::{Answer, Service, until};

const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                     per_million_output_tokens = 1000.0 }]\n";

async fn create(service: &Service, more: Value) -> Value {
    let mut body = with(more);
    body["background"] = json!(true);
    ask(service, &body).send().await.expect(200)
}

fn path(response: &Value, more: &str) -> String {
    format!("/v1/responses/{}{more}", response["id"].as_str().unwrap())
}

async fn ended(service: &Service, response: &Value) -> Value {
    until("the response ends", async || {
        let now = service.get(&path(response, "")).await.expect(200);
        let status = now["status"].as_str().unwrap();
        (!["queued", "in_progress"].contains(&status)).then_some(now)
    })
    .await
}

async fn cancel(service: &Service, response: &Value) -> Answer {
    let path = path(response, "/cancel");
    service.ask(Role::Base, Method::POST, &path).key(&service.key).send().await
}

#[tokio::test]
async fn background_response_is_queued_and_completed() {
    let (up, service) = start(PRICE).await;
    up.says("hi", 30, 20);
    let queued = create(&service, json!({"metadata": {"a": "b"}})).await;
    assert_eq!((&queued["status"], &queued["output"]), (&json!("queued"), &json!([])));
    let done = ended(&service, &queued).await;
    assert_eq!(done["status"], "completed");
    assert_eq!(done["output"][0]["content"][0]["text"], "hi");
    assert_eq!((&done["usage"]["cost"], &done["metadata"]), (&json!(0.023), &json!({"a": "b"})));
    assert_eq!(done["created_at"], queued["created_at"]);
    assert_eq!(up.newest()["messages"], json!([{"role": "user", "content": "hello"}]));
    let rows = service.get("/v2/executions?type=chat").await.expect(200);
    let rows = rows["executions"].as_array().unwrap();
    let found = (&rows[0]["status"], &rows[0]["execution_cost"], &rows[0]["output"]);
    assert_eq!(rows.len(), 1);
    assert_eq!(found, (&json!("success"), &json!(0.023), &json!(null)));
    up.says("well", 1, 1);
    let next = with(json!({"previous_response_id": done["id"]}));
    ask(&service, &next).send().await.expect(200);
    assert_eq!(up.newest()["messages"][1]["content"], "hi");
    let same = cancel(&service, &done).await.expect(200);
    assert_eq!(same, done, "it has ended");
}

#[tokio::test]
async fn background_response_with_same_idempotency_key_is_created_once() {
    let (up, service) = start(PRICE).await;
    up.says("hi", 30, 20);
    let body = with(json!({"background": true}));
    let keyed = |body: &Value| ask(&service, body).header("idempotency-key", "one").send();
    let first = keyed(&body).await;
    let created = first.expect(200);
    let done = ended(&service, &created).await;
    let again = keyed(&body).await;
    assert_eq!(again.expect(200), done);
    assert_eq!(again.header("x-execution-id"), first.header("x-execution-id"));
    let mut other = body.clone();
    other["input"] = json!("other");
    expect_error(&keyed(&other).await, 422, "invalid_request_error");
    assert_eq!(up.requests().len(), 1);
    let mut stream = body.clone();
    stream["stream"] = json!(true);
    let streamed = ask(&service, &stream).header("idempotency-key", "two");
    up.says("hi", 1, 1);
    let first = events(&streamed.clone().send().await.text);
    assert_eq!(events(&streamed.send().await.text), first);
    let restarted = service.restart().await;
    let again = ask(&restarted, &body).header("idempotency-key", "one").send().await.expect(200);
    assert_eq!(again, done);
    restarted.ask(Role::Base, Method::DELETE, &path(&done, "")).key(&restarted.key).send().await;
    let gone = ask(&restarted, &body).header("idempotency-key", "one").send().await;
    expect_error(&gone, 404, "invalid_request_error");
    for text in ["a", "b"] {
        up.says(text, 1, 1);
        let whole = ask(&restarted, &with(json!({}))).header("idempotency-key", "three");
        let said = whole.send().await.expect(200);
        assert_eq!(said["output"][0]["content"][0]["text"], text, "the key is ignored");
    }
}

#[tokio::test]
async fn background_stream_waits_for_the_end() {
    let (up, service) = start("").await;
    up.is_silent();
    let mut body = with(json!({"background": true, "stream": true}));
    let mut reading = Reading::open(ask(&service, &body)).await;
    let first = events(&reading.until("\"sequence_number\":1}\n\n").await);
    assert_eq!(kinds(&first), ["response.created", "response.queued"]);
    let response = first[0]["response"].clone();
    up.arrived(1).await;
    let cancelled = cancel(&service, &response).await.expect(200);
    assert_eq!(cancelled["status"], "cancelled");
    let rest = events(&reading.rest().await);
    assert_eq!(kinds(&rest), ["response.in_progress", "response.failed"]);
    assert_eq!(rest[1]["response"], cancelled);
    assert_eq!(rest[1]["sequence_number"], 3);
    up.hung_up(1).await;
    assert_eq!(cancel(&service, &response).await.expect(200), cancelled);
    let again = service.get(&path(&response, "?stream=true&starting_after=1")).await;
    assert_eq!(events(&again.text), rest);
    body["stream"] = json!(null);
    up.says("hi", 1, 1);
    let queued = ask(&service, &body).send().await.expect(200);
    let all = service.get(&path(&queued, "?stream=true")).await;
    assert_eq!(events(&all.text).last().unwrap()["type"], "response.completed");
}

#[tokio::test]
async fn background_response_that_fails_says_why() {
    let (up, service) = start("").await;
    up.answers(500, r#"{"error":{"message":"out of memory"}}"#);
    let queued = create(&service, json!({})).await;
    let failed = ended(&service, &queued).await;
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("server_error"))
    );
    assert!(failed["error"]["message"].as_str().unwrap().contains("out of memory"), "{failed}");
    let rows = service.get("/v2/executions?type=chat&status=error").await.expect(200);
    assert_eq!(rows["executions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn background_response_that_is_deleted_is_cancelled() {
    let (up, service) = start("").await;
    up.is_silent();
    let queued = create(&service, json!({})).await;
    until("the model is asked", async || (!up.requests().is_empty()).then_some(())).await;
    assert_eq!(service.get(&path(&queued, "")).await.expect(200)["status"], "in_progress");
    let rows = service.get("/v2/executions?type=chat&status=processing").await.expect(200);
    assert_eq!(rows["executions"].as_array().unwrap().len(), 1);
    let early = with(json!({"previous_response_id": queued["id"]}));
    let error = expect_error(&ask(&service, &early).send().await, 400, "invalid_request_error");
    assert_eq!(error["code"], "previous_response_not_ended");
    let deleted = service.ask(Role::Base, Method::DELETE, &path(&queued, "")).key(&service.key);
    deleted.send().await.expect(200);
    up.hung_up(1).await;
    service.get(&path(&queued, "")).await.expect(404);
    let rows = service.get("/v2/executions?type=chat&status=cancelled").await.expect(200);
    assert_eq!(rows["executions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn background_response_is_refused_where_it_cannot_be_kept() {
    let (_up, service) = start("[agent]\nmodel = 'far'\n").await;
    let refused = async |more: Value| {
        let mut body = with(more);
        body["background"] = json!(true);
        ask(&service, &body).undocumented().send().await
    };
    let answer = refused(json!({"store": false})).await;
    assert_eq!(expect_error(&answer, 400, "invalid_request_error")["param"], "background");
    let answer = refused(json!({"model": "orrery/beta"})).await;
    assert_eq!(expect_error(&answer, 400, "invalid_request_error")["param"], "background");
    let alone = Service::start().await;
    let mut body = with(json!({}));
    body["background"] = json!(true);
    let answer = ask(&alone, &body).send().await;
    assert_eq!(expect_error(&answer, 404, "invalid_request_error")["code"], "model_not_found");
}

#[tokio::test]
async fn background_response_continues_after_a_restart() {
    let (up, service) = start(PRICE).await;
    up.is_silent();
    let queued = create(&service, json!({})).await;
    up.arrived(1).await;
    up.says("hi", 30, 20);
    let service = service.restart().await;
    let done = ended(&service, &queued).await;
    assert_eq!((&done["status"], &done["usage"]["cost"]), (&json!("completed"), &json!(0.023)));
    let rows = service.get("/v2/executions?type=chat").await.expect(200);
    assert_eq!(rows["executions"].as_array().unwrap().len(), 1, "one row for both calls");
    let balance = service.get("/v1/billing/balance").await.expect(200);
    assert_eq!(balance["balance_usd"], -0.023);
}
