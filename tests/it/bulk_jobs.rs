//! Bulk jobs over HTTP: parameters, progress, completion.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Service, until};

async fn ended(service: &Service, id: &str) -> Value {
    let path = format!("/executions/bulk/{id}");
    until("end of the job", async || {
        let job = service.flows(Method::GET, &path).send().await.expect(200);
        (job["status"] != "running").then_some(job)
    })
    .await
}

#[tokio::test]
async fn bulk_job_redrives_and_deletes_filtered_executions() {
    let service = Service::start().await;
    let steps = json!([{"step_id": "p", "type": "pass", "result": "{{inputs.n}}"}]);
    let workflow = service.workflow(steps).await;
    for _ in 0..3 {
        let id = service.trigger(&workflow, json!({})).await;
        assert_eq!(service.completed(&id).await["status"], "failed");
    }
    let other = service.trigger(&workflow, json!({"inputs": {"n": 1}})).await;
    service.completed(&other).await;
    let start = |body: Value, key: &str| {
        let ask = service.flows(Method::POST, "/executions/bulk").json(&body);
        ask.header("idempotency-key", key)
    };
    let filter = json!({"status": "failed", "workflow_id": workflow});
    let redrive = json!({"action": "redrive", "filter": filter});
    let made = start(redrive.clone(), "one").send().await.expect(202);
    let again = start(redrive.clone(), "one").send().await.expect(202);
    assert_eq!(made, again);
    let id = made["job_id"].as_str().unwrap();
    let job = ended(&service, id).await;
    assert_eq!(
        (&job["status"], &job["total"], &job["done"], &job["failed"]),
        (&json!("completed"), &json!(3), &json!(3), &json!(0)),
        "{job}"
    );
    assert!(job["completed_at"].is_string() && job["action"] == "redrive", "{job}");
    let list = format!("/workflows/{workflow}/executions");
    let count =
        async || service.flows(Method::GET, &list).send().await.expect(200)["total_count"].clone();
    assert_eq!(count().await, 7);

    // The base host serves the same route, and only for the organization itself.
    let mirror = format!("/v1/workflows/executions/bulk/{id}");
    let get = || service.ask(Role::Base, Method::GET, &mirror);
    assert_eq!(get().key(&service.key).send().await.expect(200), job);
    get().send().await.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
    let cancelled = format!("/executions/bulk/{id}/cancel");
    let cancelled = service.flows(Method::POST, &cancelled).json(&json!({})).send().await;
    assert_eq!(cancelled.expect(200), job, "it has ended already");
    let nothing = "/executions/bulk/0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e";
    service.flows(Method::GET, nothing).send().await.expect_error(404, "job not found");

    let delete = json!({"action": "delete", "filter": {"type": "workflow"}, "limit": 100});
    let made = start(delete, "two").send().await.expect(202);
    let job = ended(&service, made["job_id"].as_str().unwrap()).await;
    assert_eq!((&job["done"], &job["failed"]), (&json!(7), &json!(0)), "{job}");
    let path = format!("/executions/{other}?timeout=0");
    service.flows(Method::GET, &path).send().await.expect_error(404, "execution not found");
}

#[tokio::test]
async fn bulk_job_rejects_unknown_fields() {
    let service = Service::start().await;
    for (body, part) in [
        (json!({}), "action"),
        (json!({"action": "explode"}), "action must be one of cancel, redrive"),
        (json!({"action": "cancel", "filter": {"status": "odd"}}), "status must be one or more of"),
        (json!({"action": "cancel", "filter": {"state": "odd"}}), "state"),
        (json!({"action": "cancel", "filter": {"model": ""}}), "filter.model must not be empty"),
        (
            json!({"action": "cancel", "filter": {"workflow_id": ""}}),
            "filter.workflow_id must be a UUID",
        ),
        (
            json!({"action": "cancel", "filter": {"from": ""}}),
            "filter.from is not an RFC 3339 time",
        ),
        (json!({"action": "cancel", "limit": 0}), "limit must be a whole number from 1 to 100000"),
    ] {
        let refused = service.flows(Method::POST, "/executions/bulk").json(&body).send().await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.text.contains(part), "{body}: {}", refused.text);
    }
}
