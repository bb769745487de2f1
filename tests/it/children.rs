//! Steps that run other workflows, over HTTP: links in both directions, cycles, failures,
//! cancellation.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Answer, Service, until};

fn child(workflow: &str, inputs: Value) -> Value {
    json!({"step_id": "c", "type": "workflow", "workflow": workflow, "inputs": inputs})
}

fn pass(result: &str) -> Value {
    json!({"step_id": "p", "type": "pass", "result": result})
}

fn with(mut step: Value, name: &str, value: Value) -> Value {
    step[name] = value;
    step
}

#[tokio::test]
async fn child_workflow_runs_and_is_linked_to_its_parent() {
    let service = Service::start().await;
    let schema = json!({"type": "object", "required": ["n"],
        "properties": {"n": {"type": "integer"}, "m": {"type": "integer", "default": 7}}});
    let definition = json!({"input_schema": schema, "steps": [
        {"step_id": "p", "type": "pass", "result": {"n": "{{inputs.n}}", "m": "{{inputs.m}}"}}]});
    let inner = service.workflow_of(definition).await;
    let outer = service.workflow(json!([child(&inner, json!({"n": "{{inputs.n}}"}))])).await;
    let execution = service.trigger(&outer, json!({"inputs": {"n": 3}})).await;
    let detail = service.completed(&execution).await;
    assert_eq!(detail["output"], json!({"n": 3, "m": 7}), "{detail:#}");
    let step = &detail["step_outputs"]["c"];
    assert_eq!(step["input"], json!({"n": 3}));
    let id = step["metadata"]["execution_id"].as_str().unwrap();
    let made = service.completed(id).await;
    assert_eq!(
        (&made["parent_execution_id"], &made["parent_step_id"], &made["source"]),
        (&json!(execution), &json!("c"), &json!("workflow"))
    );
    assert_eq!(made["workflow_id"], json!(inner));
    let rows = format!("/v2/executions?workflow_execution_id={execution}");
    let rows = service.ask(Role::Base, Method::GET, &rows).key(&service.key).send().await;
    assert_eq!(rows.expect(200)["executions"][0]["id"], json!(id));

    // Inputs that violate the child workflow's schema fail the step.
    let execution = service.trigger(&outer, json!({"inputs": {"n": "three"}})).await;
    let failed = service.completed(&execution).await;
    assert_eq!(
        (&failed["error"], &failed["error_classification"]),
        (&json!("StepFailed"), &json!("invalid_user_input")),
        "{failed:#}"
    );
    // Running a deleted child workflow fails with a clear error.
    let path = format!("/workflows/{inner}");
    service.flows(Method::DELETE, &path).send().await;
    let execution = service.trigger(&outer, json!({"inputs": {"n": 1}})).await;
    let failed = service.completed(&execution).await;
    let cause = failed["error_cause"].as_str().unwrap();
    assert!(
        cause.starts_with("step 'c': the workflow") && cause.ends_with("no longer exists"),
        "{cause}"
    );
}

#[tokio::test]
async fn child_workflow_failure_names_its_execution_and_detached_parent_continues() {
    let service = Service::start().await;
    let bad = service.workflow(json!([pass("{{inputs.nothing}}")])).await;
    let outer = service.workflow(json!([child(&bad, json!({}))])).await;
    let failed = service.trigger(&outer, json!({})).await;
    let failed = service.completed(&failed).await;
    let id = failed["step_outputs"]["c"]["metadata"]["execution_id"].as_str().unwrap();
    let cause = failed["error_cause"].as_str().unwrap();
    assert!(
        cause.starts_with(&format!("step 'c': the child execution {id} failed: step 'p'")),
        "{cause}"
    );
    let apart = with(child(&bad, json!({})), "wait", json!(false));
    let outer = service.workflow(json!([apart])).await;
    let execution = service.trigger(&outer, json!({})).await;
    let detail = service.completed(&execution).await;
    assert_eq!(detail["status"], "completed");
    let made = service.completed(detail["output"].as_str().unwrap()).await;
    assert_eq!(made["status"], "failed");
}

#[tokio::test]
async fn child_workflow_that_is_unknown_or_in_a_cycle_is_rejected() {
    let service = Service::start().await;
    let create = |definition: Value| {
        let body = json!({"name": "a", "description": "d", "definition": definition});
        service.flows(Method::POST, "/workflows").json(&body)
    };
    let steps = |step: Value| json!({"steps": [step]});
    let refused = |answer: Answer, message: &str| assert_eq!(answer.expect(400)["error"], message);
    let message = "step 'c': workflow 'nothing' does not exist";
    refused(create(steps(child("nothing", json!({})))).send().await, message);
    // The error details name the step, regardless of the block that contains it.
    let branches = json!({"step_id": "p", "type": "parallel", "branches": [
        {"steps": [{"step_id": "x", "type": "pass", "result": {"steps": [{"step_id": "c"}]}}]},
        {"steps": [child("nothing", json!({}))]},
    ]});
    let event = json!({"name": "e", "schema": {"type": "nothing"}});
    for (step, place) in [
        (child("nothing", json!({})), "/steps/0/workflow"),
        (branches, "/steps/0/branches/1/steps/0/workflow"),
        (json!({"step_id": "w", "type": "wait", "event": event}), "/steps/0/event/schema/type"),
    ] {
        let refused = create(steps(step)).send().await.expect(400);
        assert_eq!(refused["details"][0]["path"], place, "{refused}");
        assert_eq!(refused["details"][0]["message"], refused["error"]);
    }
    let made = create(steps(pass("a"))).send().await.expect(201);
    let a = made["slug"].as_str().unwrap().to_owned();
    let versioned = with(child(&a, json!({})), "version_id", json!("v9"));
    let message = format!("step 'c': workflow '{a}' has no version 'v9'");
    refused(create(steps(versioned)).send().await, &message);
    let b = create(steps(child(&a, json!({})))).send().await.expect(201)["slug"].clone();
    let c = create(steps(child(b.as_str().unwrap(), json!({})))).send().await.expect(201);
    let c = c["slug"].as_str().unwrap();
    let put = |version: &str, step: Value| {
        let path = format!("/workflows/{a}/versions/{version}");
        let body = json!({"version_id": version, "definition": steps(step)});
        service.flows(Method::PUT, &path).json(&body)
    };
    let b = b.as_str().unwrap();
    let message =
        format!("step 'c': workflows run each other in a cycle: '{a}' → '{c}' → '{b}' → '{a}'");
    refused(put("v2", child(c, json!({}))).send().await, &message);
    let message = format!("step 'c': workflows run each other in a cycle: '{a}' → '{a}'");
    refused(put("v2", child(&a, json!({}))).send().await, &message);
    // A pinned earlier version without child workflows does not create a cycle.
    let pinned = with(child(&a, json!({})), "version_id", json!("v1"));
    put("v2", pinned).send().await.expect(200);
    let execution = service.trigger(&a, json!({})).await;
    assert_eq!(service.completed(&execution).await["output"], "a");
}

#[tokio::test]
async fn child_workflow_is_cancelled_with_its_parent() {
    let service = Service::start().await;
    let waits = json!([{"step_id": "w", "type": "wait", "event": {"name": "e"}}]);
    let inner = service.workflow(waits).await;
    let map = json!([{"step_id": "m", "type": "map", "items": [1, 2, 3],
        "steps": [child(&inner, json!({}))]}]);
    let outer = service.workflow(map).await;
    let execution = service.trigger(&outer, json!({})).await;
    let list = format!("/workflows/{inner}/executions?status=running");
    let count = async |list: &str| {
        let found = service.flows(Method::GET, list).send().await.expect(200);
        found["total_count"].as_u64().unwrap()
    };
    until("three children", async || (count(&list).await == 3).then_some(())).await;
    let service = {
        // Both executions are found after a restart.
        service.restart().await
    };
    let count = async |list: &str| {
        let found = service.flows(Method::GET, list).send().await.expect(200);
        found["total_count"].as_u64().unwrap()
    };
    let cancel = format!("/executions/{execution}/cancel");
    service.flows(Method::POST, &cancel).json(&json!({})).send().await.expect(200);
    until("no child", async || (count(&list).await == 0).then_some(())).await;
    let cancelled = format!("/workflows/{inner}/executions?status=cancelled");
    assert_eq!(count(&cancelled).await, 3);
}
