//! Webhook endpoints: the events that they receive, the signatures, changes to endpoints, and that
//! endpoints and their secrets are private to the organization.

use hyper::Method;
use orrery_api::Role;
use orrery_domain::signature;
use serde_json::{Value, json};

use crate::support::{Answer, Provider, Receiver, Service, holds, until};

const PATH: &str = "/v1/webhook-endpoints";

async fn ask(service: &Service, method: Method, path: &str, body: Value) -> Answer {
    service.ask(Role::Base, method, path).key(&service.key).json(&body).send().await
}

/// Creates an endpoint; returns its id and its secret.
async fn make(service: &Service, body: Value) -> (String, String) {
    let made = ask(service, Method::POST, PATH, body).await.expect(201);
    let text = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
    (text("id"), text("secret"))
}

fn steps() -> Value {
    json!([{"step_id": "end", "type": "pass", "result": "done"}])
}

#[tokio::test]
async fn endpoint_receives_events_of_predictions_and_workflows() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let mut own = Receiver::start().await;
    let (id, secret) = make(&service, json!({"url": receiver.url()})).await;
    let fields = json!({"input": {"template": "hello"}, "webhook_url": own.url()});
    let prediction = service.create_with("text-template", fields).await;
    let mut seen = [receiver.next().await, receiver.next().await];
    seen.sort_by_key(|hook| hook.json()["type"] == "prediction.completed");
    let [started, completed] = &seen;
    assert_eq!(started.json()["type"], "prediction.started");
    assert_eq!(started.json()["data"]["execution_id"], prediction);
    assert_eq!(started.json()["data"]["model"], "text-template");
    let asked_for = own.next().await;
    let completed_event = completed.json();
    assert_eq!(completed_event["type"], "prediction.completed");
    assert_eq!(completed_event["data"], asked_for.json());
    assert!(completed_event["timestamp"].is_string());
    let header = |name| completed.header(name).unwrap();
    let time = header("webhook-timestamp").parse().unwrap();
    let signed = header("webhook-signature");
    let message = header("webhook-id");
    assert!(signature::verify_standard(&secret, message, time, completed.bytes(), signed));
    assert_eq!(message, header("x-webhook-delivery-id"));
    assert_eq!(completed.header("x-webhook-signature"), None);
    assert_eq!(completed.header("x-webhook-secret"), None);

    // The same history is available by the delivery's own id.
    let listed = until("all are delivered", async || {
        let path = format!("/v1/webhooks?execution={prediction}&status=delivered");
        let listed = service.get(&path).await.expect(200);
        (listed["total_count"] == 3).then_some(listed)
    })
    .await;
    let rows = listed["webhooks"].as_array().unwrap();
    let of_endpoint: Vec<_> = rows.iter().filter(|row| row["endpoint_id"] == id.as_str()).collect();
    assert_eq!(of_endpoint.len(), 2, "{listed}");
    assert!(rows.iter().all(|row| row["execution_id"] == prediction.as_str()), "{listed}");
    let one = service.get(&format!("/v1/webhooks/{message}")).await.expect(200);
    assert_eq!(
        (&one["event"], &one["delivery_id"]),
        (&json!("prediction.completed"), &json!(message))
    );
    assert_eq!(one["headers"]["webhook-signature"], "********");
    let again = format!("/v1/webhooks/{message}/redeliver");
    service.post(&again, &json!({})).send().await.expect(202);
    let redelivered = receiver.next().await;
    assert_eq!(redelivered.bytes(), completed.bytes());
    assert_eq!(redelivered.header("x-webhook-redelivery"), Some("true"));
    let path = format!("/v1/webhooks/{message}");
    let other = service.ask(Role::Base, Method::GET, &path).key(&service.other_key).send().await;
    other.expect_error(404, "webhook not found");

    let workflow = service.workflow(steps()).await;
    let execution = service.trigger(&workflow, json!({"inputs": {}})).await;
    let detail = service.completed(&execution).await;
    let mut seen = [receiver.next().await.json(), receiver.next().await.json()];
    seen.sort_by_key(|event| event["type"] == "workflow.completed");
    assert_eq!(seen[0]["type"], "workflow.started");
    assert_eq!(seen[0]["data"]["workflow_id"], workflow);
    assert_eq!((&seen[1]["type"], &seen[1]["data"]), (&json!("workflow.completed"), &detail));
    assert!(receiver.is_empty() && own.is_empty());
}

#[tokio::test]
async fn endpoint_filters_choose_events_models_and_workflows() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("broken", "/status/500", ""));
    let mut failures = Receiver::start().await;
    let mut flow = Receiver::start().await;
    let off = Receiver::start().await;
    let chosen = service.workflow(steps()).await;
    let other = service.workflow(steps()).await;
    let failed = ["prediction.failed"];
    make(&service, json!({"url": failures.url(), "events": failed, "models": ["broken"]})).await;
    let ended = ["workflow.completed"];
    make(&service, json!({"url": flow.url(), "events": ended, "workflow_ids": [chosen]})).await;
    make(&service, json!({"url": off.url(), "disabled": true})).await;
    // Another organization's endpoints receive no events of this one.
    let theirs = service.ask(Role::Base, Method::POST, PATH).key(&service.other_key);
    theirs.json(&json!({"url": off.url()})).send().await.expect(201);
    service.ended(&service.create("text-template", json!({"template": "x"})).await).await;
    let broken = service.create("broken", json!({})).await;
    for id in [&other, &chosen] {
        service.completed(&service.trigger(id, json!({"inputs": {}})).await).await;
    }
    assert_eq!(failures.next().await.json()["data"]["execution_id"], broken);
    assert_eq!(flow.next().await.json()["data"]["workflow_id"], chosen);
    assert!(failures.is_empty() && flow.is_empty() && off.is_empty());
}

#[tokio::test]
async fn endpoint_is_changed_rotated_tested_and_deleted() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let body = json!({"url": receiver.url(), "name": "orders", "events": ["prediction.completed"]});
    let (id, first) = make(&service, body).await;
    assert!(first.starts_with("whsec_"), "{first}");
    let one = format!("{PATH}/{id}");
    let change = json!({"name": "", "models": ["text-template"], "disabled": true});
    let changed = ask(&service, Method::PUT, &one, change).await.expect(200);
    assert_eq!((&changed["name"], &changed["disabled_reason"]), (&Value::Null, &json!("request")));
    assert_eq!((&changed["url"], &changed["disabled"]), (&json!(receiver.url()), &json!(true)));
    assert_eq!(service.get(&one).await.expect(200), changed);
    let listed = service.get(PATH).await.expect(200);
    assert_eq!(listed["webhook_endpoints"], json!([changed]));
    ask(&service, Method::PUT, &one, json!({"disabled": false})).await.expect(200);

    let rotate = format!("{one}/rotate");
    let rotated = ask(&service, Method::POST, &rotate, json!({"grace_seconds": 600})).await;
    let rotated = rotated.expect(200);
    let second = rotated["secret"].as_str().unwrap();
    assert!(second != first && rotated["previous_secret_until"].is_string(), "{rotated}");
    // The same works after a restart, which reads the endpoints from disk.
    let service = service.restart().await;
    let test = ask(&service, Method::POST, &format!("{one}/test"), json!({})).await.expect(200);
    assert_eq!((&test["status"], &test["status_code"]), (&json!("SUCCESS"), &json!(200)));
    let hook = receiver.next().await;
    assert_eq!(hook.json()["type"], "endpoint.test");
    let header = |name| hook.header(name).unwrap();
    let time = header("webhook-timestamp").parse().unwrap();
    for secret in [&*first, second] {
        let (id, signed) = (header("webhook-id"), header("webhook-signature"));
        assert!(signature::verify_standard(secret, id, time, hook.bytes(), signed), "{signed}");
    }
    service.ended(&service.create("text-template", json!({"template": "x"})).await).await;
    receiver.next().await;
    for seen in [
        service.get(PATH).await.text,
        service.get(&one).await.text,
        service.get("/v1/webhooks").await.text,
    ] {
        assert!(!seen.contains(&*first) && !seen.contains(second), "{seen}");
    }
    let acts =
        service.running.services.audit.list(&orrery_records::audit::Filter::default(), 100).await;
    let acts: Vec<String> = acts.unwrap().into_iter().map(|act| act.action).collect();
    for action in ["create", "change", "rotate"] {
        assert!(acts.contains(&format!("webhook_endpoint.{action}")), "{acts:?}");
    }
    let service = service.restart().await;
    for secret in [&*first, second] {
        assert!(!holds(&service.folder.path().join("data"), secret), "it is stored as it is");
    }
    assert_eq!(ask(&service, Method::DELETE, &one, json!({})).await.status, 204);
    for (method, path) in [
        (Method::GET, one.clone()),
        (Method::PUT, one.clone()),
        (Method::DELETE, one.clone()),
        (Method::POST, rotate),
        (Method::POST, format!("{one}/test")),
        (Method::GET, format!("{PATH}/17")),
    ] {
        let missing = ask(&service, method, &path, json!({})).await;
        missing.expect_error(404, "webhook endpoint not found");
    }
}

#[tokio::test]
async fn endpoint_of_another_organization_is_not_found() {
    let service = Service::start().await;
    let (id, _) = make(&service, json!({"url": "http://127.0.0.1:9/"})).await;
    for (method, path) in [
        (Method::GET, format!("{PATH}/{id}")),
        (Method::PUT, format!("{PATH}/{id}")),
        (Method::POST, format!("{PATH}/{id}/rotate")),
        (Method::POST, format!("{PATH}/{id}/test")),
        (Method::DELETE, format!("{PATH}/{id}")),
    ] {
        let asked = service.ask(Role::Base, method, &path).key(&service.other_key);
        let answer = asked.json(&json!({})).send().await;
        answer.expect_error(404, "webhook endpoint not found");
    }
}

#[tokio::test]
async fn endpoint_with_invalid_fields_is_rejected() {
    let service = Service::start().await;
    make(&service, json!({"url": "http://127.0.0.1:9/", "name": "taken"})).await;
    let valid = json!({"url": "https://hooks.example.com/"});
    for (field, value, status, message) in [
        ("url", json!(null), 400, "url is required"),
        ("url", json!("nowhere"), 400, "url must be"),
        ("url", json!("http://169.254.169.254/"), 400, "url must not point to a forbidden address"),
        (
            "events",
            json!(["prediction.done"]),
            400,
            "events[0] must be one of prediction.started, ",
        ),
        ("models", json!("m"), 400, "models must be an array of strings"),
        ("models", json!([""]), 400, "models[0] is required"),
        ("workflow_ids", json!(["w"]), 400, "workflow_ids[0] must be a UUID"),
        ("signature", json!("v2"), 400, "signature must be one of v1, v1a"),
        ("name", json!("a b"), 400, "name must have 1 to 64 characters"),
        ("name", json!("taken"), 409, "there is a webhook endpoint with the name taken already"),
        ("secret", json!("mine"), 400, "unknown field secret"),
    ] {
        let mut body = valid.clone();
        body[field] = value;
        let answer = ask(&service, Method::POST, PATH, body).await;
        let error = answer.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(answer.status == status && error.starts_with(message), "{field}: {error}");
    }
    let body = json!({"url": "http://127.0.0.1:9/", "signature": "v1a"});
    let made = ask(&service, Method::POST, PATH, body).await.expect(201);
    assert!(made["public_key"].as_str().unwrap().starts_with("whpk_"), "{made}");
    assert_eq!(made.get("secret"), None);
    let one = format!("{PATH}/{}", made["id"].as_str().unwrap());
    ask(&service, Method::PUT, &one, json!({"signature": "v1a"})).await.expect(200);
    let fixed = ask(&service, Method::PUT, &one, json!({"signature": "v1"})).await;
    fixed.expect_error(400, "signature cannot be changed; make another endpoint");
}

#[tokio::test]
async fn endpoint_sends_its_secret_only_on_request() {
    // The service's default applies only to webhooks that are given in requests.
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let body = json!({"url": receiver.url()});
    let made = service.post("/v1/webhook-endpoints", &body).send().await.expect(201);
    assert_eq!(made["send_plain_secret"], false);
    let path = format!("/v1/webhook-endpoints/{}", made["id"].as_str().unwrap());
    for (given, expected) in [
        (json!({}), None),
        (json!({"send_plain_secret": true}), made["secret"].as_str()),
        (json!({"disabled": false}), made["secret"].as_str()),
        (json!({"send_plain_secret": false}), None),
    ] {
        let change = service.ask(Role::Base, Method::PUT, &path).key(&service.key).json(&given);
        assert_eq!(change.send().await.expect(200)["send_plain_secret"], expected.is_some());
        let test = service.post(&format!("{path}/test"), &json!({})).send().await.expect(200);
        let shown = test["headers"].get("X-Webhook-Secret");
        assert_eq!(shown, expected.map(|_| json!("********")).as_ref(), "{test}");
        assert_eq!(receiver.next().await.header("x-webhook-secret"), expected, "{given}");
    }
    // The secret of the other scheme is a private key.
    let refused = "send_plain_secret is not possible with the signature v1a";
    let body = json!({"url": receiver.url(), "signature": "v1a", "send_plain_secret": true});
    let answer = service.post("/v1/webhook-endpoints", &body).send().await;
    assert!(answer.expect(400)["error"].as_str().unwrap().starts_with(refused));
    let body = json!({"url": receiver.url(), "signature": "v1a"});
    let made = service.post("/v1/webhook-endpoints", &body).send().await.expect(201);
    let path = format!("/v1/webhook-endpoints/{}", made["id"].as_str().unwrap());
    let change = json!({"send_plain_secret": true});
    let answer =
        service.ask(Role::Base, Method::PUT, &path).key(&service.key).json(&change).send().await;
    assert!(answer.expect(400)["error"].as_str().unwrap().starts_with(refused));
}
