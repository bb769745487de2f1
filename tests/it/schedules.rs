//! Schedules over HTTP: their fields and errors, and that they start executions.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Receiver, Service, until};

fn steps() -> Value {
    json!([{"step_id": "p", "type": "pass", "result": "{{inputs.n}}"}])
}

async fn read(service: &Service, path: &str) -> Value {
    service.flows(Method::GET, path).send().await.expect(200)
}

#[tokio::test]
async fn schedule_of_workflow_starts_executions() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let workflow = service.workflow(steps()).await;
    let path = format!("/workflows/{workflow}/schedules");
    let body = json!({
        "cron": "* * * * * *", "timezone": "Europe/Berlin", "inputs": {"n": 7},
        "webhook_url": receiver.url(), "webhook_secret": "whsec_of_theirs", "overlap": "queue",
    });
    let made = service.flows(Method::POST, &path).json(&body).send().await.expect(201);
    let id = made["schedule_id"].as_str().unwrap().to_owned();
    assert_eq!(made["next_runs"].as_array().unwrap().len(), 10);
    assert_eq!((&made["workflow_id"], &made["last_run"]), (&json!(workflow), &Value::Null));
    assert!(!made.to_string().contains("whsec_of_theirs"), "{made}");
    let webhook = receiver.next().await;
    assert_eq!(webhook.header("x-webhook-secret"), Some("whsec_of_theirs"));
    let webhook = webhook.json();
    assert_eq!((&webhook["status"], &webhook["output"]), (&json!("completed"), &json!(7)));
    let execution = service.execution(webhook["execution_id"].as_str().unwrap()).await;
    assert_eq!((&execution["source"], &execution["schedule_id"]), (&json!("schedule"), &json!(id)));
    let one = format!("{path}/{id}");
    let last = until("last run", async || {
        let last = read(&service, &one).await["last_run"].clone();
        (last["status"] == "completed").then_some(last)
    })
    .await;
    assert!(last["execution_id"].is_string(), "{last}");

    let paused = service.flows(Method::PUT, &one).json(&json!({"paused": true})).send().await;
    let paused = paused.expect(200);
    assert_eq!((&paused["next_runs"], &paused["cron"]), (&json!([]), &json!("* * * * * *")));
    let listed = read(&service, &path).await;
    assert_eq!(
        (&listed["total_count"], &listed["schedules"][0]["paused"]),
        (&json!(1), &json!(true))
    );
    let service = service.restart().await;
    let change = json!({"paused": false, "cron": "@daily", "ends_at": "2099-01-01T00:00:00Z"});
    let mirror = format!("/v1/workflows/{workflow}/schedules/{id}");
    let ask = |method, path: &str| service.ask(Role::Base, method, path).key(&service.key);
    let changed = ask(Method::PUT, &mirror).json(&change).send().await.expect(200);
    assert_eq!(changed["next_runs"].as_array().unwrap().len(), 10);
    assert_eq!(changed["ends_at"], "2099-01-01T00:00:00.000Z");
    assert_eq!(ask(Method::GET, &format!("/v1/schedules/{id}")).send().await.expect(200), changed);
    assert_eq!(ask(Method::DELETE, &mirror).send().await.status, 204);
    ask(Method::DELETE, &mirror).send().await.expect_error(404, "schedule not found");
}

#[tokio::test]
async fn schedule_change_keeps_or_replaces_only_webhook_secret() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let workflow = service.workflow(steps()).await;
    let path = format!("/workflows/{workflow}/schedules");
    let body = json!({
        "cron": "* * * * * *", "inputs": {"n": 1}, "webhook_url": receiver.url(),
        "webhook_secret": "whsec_first",
    });
    let made = service.flows(Method::POST, &path).json(&body).send().await.expect(201);
    let one = format!("{path}/{}", made["schedule_id"].as_str().unwrap());
    let moved = format!("{}?moved", receiver.url());
    for (change, secret) in [
        (json!({ "webhook_url": moved, "inputs": {"n": 2} }), Some("whsec_first")),
        (json!({"webhook_secret": "whsec_second", "inputs": {"n": 3}}), Some("whsec_second")),
        (json!({"webhook_secret": "", "inputs": {"n": 4}}), None),
    ] {
        let changed = service.flows(Method::PUT, &one).json(&change).send().await.expect(200);
        assert_eq!(changed["webhook_url"], moved);
        let sent = loop {
            let sent = receiver.next().await;
            if sent.json()["output"] == change["inputs"]["n"] {
                break sent;
            }
        };
        assert_eq!(sent.header("x-webhook-secret"), secret, "{change}");
    }
}

#[tokio::test]
async fn schedule_of_model_creates_predictions() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let ask = |method, path: &str| service.ask(Role::Base, method, path).key(&service.key);
    let body = json!({
        "model": "text-template", "version": "0.0.1", "input": {"template": "tick"},
        "cron": "* * * * * *", "webhook_url": receiver.url(),
    });
    let made = ask(Method::POST, "/v1/schedules").json(&body).send().await.expect(201);
    assert_eq!(
        (&made["model"], &made["inputs"]),
        (&json!("text-template"), &json!({"template": "tick"}))
    );
    let webhook = receiver.next().await.json();
    assert_eq!(webhook["output"], "tick", "{webhook}");
    let rows = service.get("/v2/executions").await.expect(200);
    assert_eq!(rows["executions"][0]["source"], "schedule");
    assert_eq!(rows["executions"][0]["schedule_id"], made["schedule_id"]);
    let id = made["schedule_id"].as_str().unwrap();
    assert_eq!(ask(Method::DELETE, &format!("/v1/schedules/{id}")).send().await.status, 204);
}

#[tokio::test]
async fn schedule_with_invalid_fields_is_rejected() {
    let service = Service::start().await;
    let definition = json!({"steps": steps(), "input_schema": {"type": "object",
        "required": ["n"], "properties": {"n": {"type": "integer"}}}});
    let workflow = service.workflow_of(definition).await;
    let path = format!("/workflows/{workflow}/schedules");
    let valid = json!({"cron": "@daily", "inputs": {"n": 1}});
    for (field, value, message) in [
        ("cron", json!(null), "cron is required"),
        ("cron", json!("* * *"), "cron must be 5 or 6 fields"),
        ("cron", json!("0 0 30 2 *"), "cron never fires: no date has that day and month"),
        ("cron", json!("0 25 * * *"), "cron: the hour '25' is wrong: 25 is not from 0 to 23"),
        (
            "timezone",
            json!("Europe/Berln"),
            "timezone must be the name of a time zone, such as Europe/Berlin or UTC; did you mean Europe/Berlin?",
        ),
        ("name", json!("a\u{0}b"), "name must not contain control characters"),
        ("timezone", json!("Mars/Olympus"), "timezone must be the name of a time zone"),
        ("inputs", json!({}), "invalid input: missing required field 'n'"),
        (
            "inputs",
            json!({"n": 1, "x": "x".repeat(50_000)}),
            "inputs must have at most 49152 bytes",
        ),
        ("overlap", json!("both"), "overlap must be one of skip, queue, cancel_other, allow"),
        ("jitter_seconds", json!(86401), "jitter_seconds must be a whole number from 0 to 86400"),
        ("catch_up_seconds", json!(-1), "catch_up_seconds must be a whole number from 0 to"),
        (
            "ends_at",
            json!("2020-01-01T00:00:00Z"),
            "cron never fires between starts_at and ends_at",
        ),
        ("starts_at", json!("tomorrow"), "starts_at is not an RFC 3339 time"),
        (
            "starts_at",
            json!("0000-01-01T00:00:00+12:00"),
            "starts_at is outside the years 0000 to 9999 in UTC",
        ),
        (
            "ends_at",
            json!("9999-12-31T23:59:59-12:00"),
            "ends_at is outside the years 0000 to 9999 in UTC",
        ),
        ("version_id", json!("v9"), "version not found"),
        ("webhook_url", json!("nowhere"), "webhook_url"),
        ("model", json!("x"), "unknown field model"),
    ] {
        let mut body = valid.clone();
        body[field] = value;
        let refused = service.flows(Method::POST, &path).json(&body).send().await.expect(400);
        let said = refused["error"].as_str().unwrap();
        assert!(said.starts_with(message), "{field}: {said}");
    }
    let made = service.flows(Method::POST, &path).json(&valid).send().await.expect(201);
    let id = made["schedule_id"].as_str().unwrap();
    let theirs = |path: &str| {
        let ask = service.ask(Role::Base, Method::GET, path);
        ask.key(&service.other_key).send()
    };
    theirs(&format!("/v1/schedules/{id}")).await.expect_error(404, "schedule not found");
    theirs(&format!("/v1/workflows/{workflow}/schedules"))
        .await
        .expect_error(404, "workflow not found");
    assert_eq!(theirs("/v1/schedules").await.expect(200)["total_count"], 0);
    let other = service.workflow(steps()).await;
    let elsewhere = format!("/workflows/{other}/schedules/{id}");
    service.flows(Method::GET, &elsewhere).send().await.expect_error(404, "schedule not found");
}

#[tokio::test]
async fn schedule_of_deleted_workflow_starts_nothing_and_is_paused() {
    let service = Service::start().await;
    let workflow = service.workflow(steps()).await;
    let path = format!("/workflows/{workflow}/schedules");
    let mut ids = Vec::new();
    // One schedule fires every second, one fires far ahead, and one is paused.
    for more in [
        json!({"cron": "* * * * * *"}),
        json!({"cron": "@yearly"}),
        json!({"cron": "* * * * * *", "paused": true}),
    ] {
        let mut body = json!({"timezone": "UTC", "inputs": {"n": 1}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let made = service.flows(Method::POST, &path).json(&body).send().await.expect(201);
        ids.push(made["schedule_id"].as_str().unwrap().to_owned());
    }
    until("first run", async || {
        let found = service.get("/v2/executions?type=workflow").await.expect(200);
        (!found["executions"].as_array().unwrap().is_empty()).then_some(())
    })
    .await;
    let deleted = service.flows(Method::DELETE, &format!("/workflows/{workflow}")).send().await;
    assert_eq!(deleted.status, 204, "{}", deleted.text);
    let runs = async || {
        let found = service.get("/v2/executions?type=workflow&limit=100").await.expect(200);
        found["executions"].as_array().unwrap().len()
    };
    let before = runs().await;
    let schedules = &service.running.services.schedules;
    until("pause of the one that was due", async || {
        let found = schedules.list(service.organization.id).await.unwrap();
        let due = found.into_iter().find(|one| one.id.to_string() == ids[0])?;
        (due.paused && due.next.is_none()).then_some(())
    })
    .await;
    assert_eq!(runs().await, before);
}
