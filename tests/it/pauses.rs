//! Pausing and resuming executions over HTTP.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Provider, Service, until};

async fn post(service: &Service, path: &str) -> crate::support::Answer {
    service.flows(Method::POST, path).json(&json!({})).send().await
}

#[tokio::test]
async fn pause_holds_execution_across_restart_until_resume() {
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
    // The base host serves the same route.
    let mirror = format!("/v1/workflows/executions/{execution}/resume");
    let ask = || service.ask(Role::Base, Method::POST, &mirror).key(&service.key).json(&json!({}));
    assert_eq!(ask().send().await.expect(200)["paused"], false);
    let detail = service.completed(&execution).await;
    assert_eq!(detail["output"], 5);
    let message = "execution has already ended with status completed";
    ask().send().await.expect_error(409, message);
    post(&service, &pause).await.expect_error(409, message);
    let nothing = "/executions/0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e/pause";
    post(&service, nothing).await.expect_error(404, "execution not found");
}

#[tokio::test]
async fn step_with_exhausted_retries_pauses_execution_for_a_person() {
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

#[tokio::test]
async fn rows_of_runs_that_wait_for_somebody_say_so_and_are_found() {
    let service = Service::start().await;
    let wait = |what: Value| {
        let mut step = json!({"step_id": "w", "type": "wait"});
        step.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        step
    };
    let asks = wait(json!({"event": {"name": "approval"}}));
    let sleeps = wait(json!({"seconds": 3600}));
    let branches = json!({"step_id": "p", "type": "parallel",
                          "branches": [{"steps": [asks.clone()]},
                                       {"steps": [{"step_id": "x", "type": "pass", "result": 1}]}]});
    let mut runs = Vec::new();
    for step in [asks.clone(), branches, sleeps, asks] {
        let workflow = service.workflow(json!([step])).await;
        runs.push(service.trigger(&workflow, json!({})).await);
    }
    post(&service, &format!("/executions/{}/pause", runs[3])).await.expect(200);
    let list = async |query: &str| {
        let page = service.get(&format!("/v2/executions?{query}")).await.expect(200);
        let rows = page["executions"].as_array().unwrap().clone();
        let mut rows: Vec<(String, String)> = rows
            .iter()
            .map(|row| {
                let waits = row["waiting_for"].as_str().unwrap_or("nobody");
                (row["id"].as_str().unwrap().to_owned(), waits.to_owned())
            })
            .collect();
        rows.sort();
        rows
    };
    let shown = |run: usize, what: &str| (runs[run].clone(), what.to_owned());
    let mut all =
        vec![shown(0, "event"), shown(1, "event"), shown(2, "nobody"), shown(3, "paused")];
    all.sort();
    until("rows", async || (list("status=running,queued").await == all).then_some(())).await;
    let mut waiting = vec![shown(0, "event"), shown(1, "event")];
    waiting.sort();
    assert_eq!(list("waiting_for=event").await, waiting);
    assert_eq!(list("waiting_for=paused").await, [shown(3, "paused")]);
    assert_eq!(list("waiting_for=event&status=completed").await, []);
    let wrong = service.get("/v2/executions?waiting_for=godot").await;
    wrong.expect_error(400, "waiting_for must be one of event, paused");
    let event = format!("/executions/{}/events/approval", runs[0]);
    service.flows(Method::POST, &event).json(&json!({"payload": 5})).send().await.expect(202);
    service.completed(&runs[0]).await;
    assert_eq!(list("waiting_for=event").await, [shown(1, "event")]);
    assert_eq!(list("status=completed").await, [shown(0, "nobody")]);
}

#[tokio::test]
async fn refusals_after_the_end_name_the_status_of_an_execution() {
    let service = Service::start().await;
    let fails = json!([{"step_id": "f", "type": "pass", "result": "{{inputs.missing}}"}]);
    let workflow = service.workflow(fails).await;
    let execution = service.trigger(&workflow, json!({})).await;
    until("end", async || {
        (service.execution(&execution).await["status"] == "failed").then_some(())
    })
    .await;
    let message = "execution has already ended with status failed";
    for what in ["cancel", "pause", "events/e"] {
        let path = format!("/executions/{execution}/{what}");
        let ask = service.flows(Method::POST, &path).json(&json!({"payload": 5}));
        ask.send().await.expect_error(409, message);
    }
}
