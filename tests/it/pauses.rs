//! Pausing and resuming executions over HTTP.

use hyper::Method;
use orrery::api::Role;
use serde_json::{Value, json};

use crate::support::{Provider, Service, until};

async fn post(service: &Service, path: &str) -> crate::support::Answer {
    service.flows(Method::POST, path).json(&json!({})).send().await
}

#[tokio::test]
async fn pause_holds_execution_over_restart_until_resume() {
    let service = Service::start().await;
    let waits = json!({"step_id": "w", "type": "wait", "event": {"name": "e"}});
    let steps = json!([waits, {"step_id": "p", "type": "pass", "result": "{{w.output}}"}]);
    let workflow = service.workflow(steps).await;
    let execution = service.trigger(&workflow, json!({})).await;
    let pause = format!("/executions/{execution}/pause");
    let expected = json!({"execution_id": execution, "status": "running", "paused": true});
    until("start", async || {
        let detail = service.execution(&execution).await;
        (detail["status"] == "running").then_some(())
    })
    .await;
    for _ in 0..2 {
        assert_eq!(post(&service, &pause).await.expect(200), expected);
    }
    let waiting = |detail: &Value| detail["waiting_for"][0].clone();
    let shown = waiting(&service.execution(&execution).await);
    assert_eq!(shown["reason"], "paused");
    assert!(shown["by"].as_str().unwrap().starts_with("key "), "{shown}");
    let event = format!("/executions/{execution}/events/e");
    service.flows(Method::POST, &event).json(&json!({"payload": 5})).send().await.expect(202);
    let service = service.restart().await;
    let detail = service.execution(&execution).await;
    assert_eq!(
        (&detail["status"], &waiting(&detail)["reason"]),
        (&json!("running"), &json!("paused"))
    );
    // The mirror under the base host.
    let mirror = format!("/v1/workflows/executions/{execution}/resume");
    let ask = || service.ask(Role::Base, Method::POST, &mirror).key(&service.key).json(&json!({}));
    assert_eq!(ask().send().await.expect(200)["paused"], false);
    let detail = service.completed(&execution).await;
    assert_eq!(detail["output"], 5);
    let message = "execution has already ended: it is completed";
    ask().send().await.expect_error(409, message);
    post(&service, &pause).await.expect_error(409, message);
    let nothing = "/executions/0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e/pause";
    post(&service, nothing).await.expect_error(404, "execution not found");
}

#[tokio::test]
async fn pause_by_step_that_is_exhausted_keeps_execution_for_a_person() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("broken", "/status/500", ""));
    let step = json!({"step_id": "a", "type": "model", "model": "broken", "on_exhausted": "pause"});
    let workflow = service.workflow(json!([step])).await;
    let execution = service.trigger(&workflow, json!({})).await;
    let attempts = async |at_least: usize| {
        until("a pause", async || {
            let detail = service.execution(&execution).await;
            let by = detail["waiting_for"][0]["by"].as_str().map(str::to_owned);
            let attempts = detail["step_outputs"]["a"]["attempts"].as_array().unwrap().len();
            by.filter(|_| attempts >= at_least)
        })
        .await
    };
    assert!(attempts(1).await.starts_with("step 'a': "));
    post(&service, &format!("/executions/{execution}/resume")).await.expect(200);
    attempts(2).await;
    post(&service, &format!("/executions/{execution}/cancel")).await.expect(200);
    let refused = json!({"step_id": "a", "type": "pass", "on_exhausted": "pause"});
    let body = json!({"name": "a", "description": "d", "definition": {"steps": [refused]}});
    let made = service.flows(Method::POST, "/workflows").json(&body).send().await;
    assert_eq!(made.status, 400);
}
