//! `Idempotency-Key`: a repeated create takes effect once.

use hyper::Method;
use orrery_api::Role;
use orrery_records::idempotency::{Begin, StoredResponse};
use orrery_storage::Commit;
use serde_json::{Value, json};

use crate::support::{Answer, Provider, Service, until};

const CREATE: &str = "/v1/prediction/";
const RUN: &str = "/v1/prediction/run";

fn request(text: &str) -> Value {
    json!({"model": "text-template", "version": "1", "input": {"template": text}})
}

async fn send(service: &Service, path: &str, key: &str, body: &Value) -> Answer {
    service.post(path, body).header("idempotency-key", key).send().await
}

fn id_of(answer: &Answer) -> String {
    answer.expect(200)["predictionID"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn idempotency_same_key_and_body_replay_across_restart() {
    let service = Service::start().await;
    let longest = "k".repeat(255);
    for key in ["k", "order 7: a/b", &longest] {
        let first = send(&service, CREATE, key, &request("a")).await;
        let second = send(&service, "/v1/prediction", key, &request("a")).await;
        assert_eq!((second.status, &second.text), (200, &first.text));
    }
    let first = send(&service, CREATE, "k", &request("a")).await;
    let service = service.restart().await;
    let again = send(&service, CREATE, "k", &request("a")).await;
    assert_eq!(again.text, first.text);
    assert_eq!(service.ended(&id_of(&again)).await["output"], "a");
}

#[tokio::test]
async fn idempotency_key_is_scoped_to_organization_and_route() {
    let service = Service::start().await;
    let mine = send(&service, CREATE, "k", &request("a")).await;
    let ran = send(&service, RUN, "k", &request("a")).await;
    let other = service.ask(Role::Base, Method::POST, CREATE).key(&service.other_key);
    let others = other.json(&request("b")).header("idempotency-key", "k").send().await;
    let mine = id_of(&mine);
    let ran = id_of(&ran);
    let others = id_of(&others);
    assert!(mine != ran && mine != others && ran != others);
    let again = send(&service, RUN, "k", &request("a")).await;
    assert_eq!(again.expect(200)["output"], "a");
    assert_eq!(id_of(&again), ran);
}

#[tokio::test]
async fn idempotency_rejects_other_body_and_invalid_key() {
    let service = Service::start().await;
    send(&service, CREATE, "k", &request("a")).await.expect(200);
    let other = send(&service, CREATE, "k", &request("b")).await;
    other.expect_error(422, "this Idempotency-Key was used with another request body");
    for key in ["", &"k".repeat(256)] {
        let answer = send(&service, CREATE, key, &request("a")).await;
        answer.expect_error(400, "Idempotency-Key must have 1 to 255 characters");
    }
    let answer = send(&service, CREATE, "schl\u{fc}ssel", &request("a")).await;
    answer.expect_error(400, "Idempotency-Key must be visible ASCII");
}

#[tokio::test]
async fn idempotency_key_stays_free_after_refused_request() {
    let service = Service::start().await;
    let mut bad = request("a");
    bad["model"] = "of-nobody".into();
    assert_eq!(send(&service, CREATE, "k", &bad).await.status, 404);
    send(&service, CREATE, "k", &request("a")).await.expect(200);
}

#[tokio::test]
async fn idempotency_concurrent_creates_yield_one_prediction() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let priced = "[cost]\ntype = 'fixed'\namount = 0.002\n";
    service.manifest(&provider.manifest("echo", "/echo", priced));
    let body = json!({"model": "echo", "version": "1", "input": {"n": 1}});
    let many = std::iter::repeat_with(|| send(&service, CREATE, "k", &body)).take(32);
    let answers = futures_util::future::join_all(many).await;
    let first = id_of(&answers[0]);
    for answer in &answers {
        assert_eq!(id_of(answer), first);
    }
    service.ended(&first).await;
    assert_eq!(provider.requests().len(), 1);
    assert_eq!(service.ledger().await.len(), 1);
}

#[tokio::test]
async fn idempotency_repeated_trigger_replays_response_after_new_version_archive_and_delete() {
    let service = Service::start().await;
    let steps = json!([{"step_id": "a", "type": "pass"}]);
    let workflow = service.workflow(steps.clone()).await;
    let path = format!("/workflows/{workflow}");
    let change = |body: Value| service.flows(Method::PUT, &path).json(&body).send();
    let again = async || {
        let mut answers = Vec::new();
        for (path, inputs) in [("trigger", json!({})), ("bulk-trigger", json!([{}]))] {
            let ask = service.flows(Method::POST, &format!("/{workflow}/{path}"));
            let ask = ask.header("idempotency-key", "k").json(&json!({ "inputs": inputs }));
            answers.push(ask.send().await.expect(202));
        }
        answers
    };
    let first = again().await;
    let second = service.flows(Method::PUT, &format!("{path}/versions/v2"));
    let second = second.json(&json!({"version_id": "v2", "definition": {"steps": steps}}));
    second.send().await.expect(200);
    assert_eq!(again().await, first, "the latest version is another one now");
    change(json!({"status": "archived"})).await.expect(200);
    assert_eq!(again().await, first, "new work is refused now");
    let key_less = service.flows(Method::POST, &format!("/{workflow}/trigger")).json(&json!({}));
    key_less.send().await.expect_error(409, "workflow is archived and cannot be triggered");

    let id = first[0]["execution_id"].as_str().unwrap();
    until("the execution is deleted", async || {
        let delete = json!({"action": "delete", "filter": {"workflow_id": workflow}});
        service.flows(Method::POST, "/executions/bulk").json(&delete).send().await;
        let read = service.flows(Method::GET, &format!("/executions/{id}")).send().await;
        (read.status == 404).then_some(())
    })
    .await;
    let gone = again().await;
    assert_eq!(gone[0]["execution_id"], first[0]["execution_id"]);
    assert_eq!(gone[1], first[1]);
}

#[tokio::test]
async fn idempotency_repeated_schedule_is_created_once() {
    let service = Service::start().await;
    let workflow = service.workflow(json!([{"step_id": "a", "type": "pass"}])).await;
    let model = json!({"cron": "@daily", "model": "text-template", "version": "1",
        "input": {"template": "x"}});
    let of_workflow = format!("/v1/workflows/{workflow}/schedules");
    for (path, body) in [("/v1/schedules", model), (&of_workflow, json!({"cron": "@daily"}))] {
        let first = send(&service, path, "k", &body).await.expect(201);
        assert_eq!(send(&service, path, "k", &body).await.expect(201), first, "{path}");
        let refused = send(&service, path, &"k".repeat(256), &body).await;
        refused.expect_error(400, "Idempotency-Key must have 1 to 255 characters");
        let mut other = body.clone();
        other["name"] = "other".into();
        assert_eq!(send(&service, path, "k", &other).await.status, 422, "{path}");
    }
    assert_eq!(service.get("/v1/schedules").await.expect(200)["total_count"], 2);
}

/// Releases up to 0.1.0 recorded the idempotency key of a trigger under the version that ran.
#[tokio::test]
async fn idempotency_key_of_an_earlier_release_is_found() {
    let service = Service::start().await;
    let workflow = service.workflow(json!([{"step_id": "a", "type": "pass"}])).await;
    let execution = service.trigger(&workflow, json!({})).await;
    let services = &service.running.services;
    let body = json!({"inputs": {}});
    let route = format!("trigger/{workflow}/v1");
    let text = body.to_string();
    let begun = services.idempotency.begin(service.organization.id, &route, "old", text.as_bytes());
    let Begin::New(claim) = begun.await.unwrap() else { panic!("the key is new") };
    let mut commit = Commit::new();
    claim.record(&mut commit, StoredResponse::created(&execution)).unwrap();
    services.store.commit(commit).await.unwrap();
    drop(claim);
    let ask = service.flows(Method::POST, &format!("/{workflow}/trigger")).json(&body);
    let taken = ask.header("idempotency-key", "old").send().await.expect(202);
    assert_eq!(taken["execution_id"], execution);
}
