//! The webhook at the end of a prediction: its body, headers, signatures and retries, and rejected
//! URLs.

use hyper::Method;
use orrery_api::Role;
use orrery_domain::signature;
use serde_json::{Value, json};

use crate::support::{Provider, Receiver, Service};

const SECRET: &str = "a secret of theirs";

#[tokio::test]
async fn webhook_reports_success_with_output() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    let priced = "[cost]\ntype = 'fixed'\namount = 0.002\n";
    service.manifest(&provider.manifest("echo", "/echo", priced));
    let fields = json!({"input": {"n": 1}, "webhook_url": receiver.url()});
    let id = service.create_with("echo", fields).await;
    let hook = receiver.next().await;
    let prediction = service.ended(&id).await;
    let expected = json!({
        "execution_id": id,
        "exec_id": id,
        "flow_id": null,
        "status": "completed",
        "output": {"n": 1},
        "error": "",
        "error_cause": null,
        "started_at": prediction["started_at"],
        "metrics": prediction["metrics"],
    });
    assert_eq!(hook.json(), expected);
    assert_eq!(hook.json()["metrics"]["cost"], 0.002);
    assert_eq!(hook.method(), "POST");
    assert_eq!(hook.header("content-type"), Some("application/json"));
    let agent = format!("orrery/{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(hook.header("user-agent"), Some(agent.as_str()));
    assert!(hook.header("x-webhook-delivery-id").is_some());
    for unsigned in [
        "x-webhook-timestamp",
        "x-webhook-signature",
        "x-webhook-secret",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "x-webhook-redelivery",
    ] {
        assert_eq!(hook.header(unsigned), None, "{unsigned}");
    }
    assert!(receiver.is_empty());
}

#[tokio::test]
async fn webhook_reports_failure_with_cause() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    service.manifest(&provider.manifest("broken", "/status/500", ""));
    service.manifest(&provider.manifest("slow", "/hold", "timeout = '50ms'"));
    for (model, error) in [("broken", "StepFailed"), ("slow", "ExecutionTimeout")] {
        let id = service.create_with(model, json!({"webhook_url": receiver.url()})).await;
        let hook = receiver.next().await.json();
        let prediction = service.ended(&id).await;
        assert_eq!(hook["execution_id"], id);
        assert_eq!((&hook["status"], &hook["output"]), (&json!("failed"), &Value::Null));
        assert_eq!((&hook["error"], &hook["error_cause"]), (&json!(error), &prediction["error"]));
    }
}

#[tokio::test]
async fn webhook_secret_signs_in_both_formats() {
    for (lines, plain) in [("", Some(SECRET)), ("webhooks.send_plain_secret = false\n", None)] {
        let service = Service::configured(lines).await;
        let mut receiver = Receiver::start().await;
        let fields = json!({
            "input": {"template": "hello"},
            "webhook_url": receiver.url(),
            "webhook_secret": SECRET,
        });
        service.create_with("text-template", fields).await;
        let hook = receiver.next().await;
        let header = |name| hook.header(name).unwrap_or_else(|| panic!("no {name}"));
        let time: i64 = header("x-webhook-timestamp").parse().unwrap();
        let body = hook.bytes();
        let signed = header("x-webhook-signature");
        assert!(signature::verify(SECRET, time, body, signed), "{signed}");
        assert!(!signature::verify("another", time, body, signed));
        let id = header("webhook-id");
        let time_again = header("webhook-timestamp");
        assert_eq!((id, time_again), (header("x-webhook-delivery-id"), &*time.to_string()));
        let standard = header("webhook-signature");
        assert!(signature::verify_standard(SECRET, id, time, body, standard), "{standard}");
        assert_eq!(hook.header("x-webhook-secret"), plain);
    }
}

#[tokio::test]
async fn webhook_decides_whether_it_carries_its_secret() {
    let workflow = json!({"steps": [{"id": "a", "type": "pass", "result": 1}]});
    for (lines, default) in [("", true), ("webhooks.send_plain_secret = false\n", false)] {
        let service = Service::configured(lines).await;
        let mut receiver = Receiver::start().await;
        let workflow = service.workflow_of(workflow.clone()).await;
        for (given, sends) in [(json!(true), true), (json!(false), false), (Value::Null, default)] {
            let fields = json!({
                "webhook_url": receiver.url(),
                "webhook_secret": SECRET,
                "webhook_send_plain_secret": given,
            });
            let expected = sends.then_some(SECRET);
            service.trigger(&workflow, fields.clone()).await;
            assert_eq!(receiver.next().await.header("x-webhook-secret"), expected, "{given}");
            let mut fields = fields;
            fields["input"] = json!({"template": "hello"});
            let id = service.create_with("text-template", fields).await;
            let hook = receiver.next().await;
            assert!(hook.header("x-webhook-signature").is_some());
            assert_eq!(hook.header("x-webhook-secret"), expected, "{given}");
            let record = service.get(&format!("/v1/webhooks/{id}")).await.expect(200);
            let shown = record["headers"].get("X-Webhook-Secret");
            assert_eq!(shown.is_some(), sends, "{record}");
            let test = json!({
                "url": receiver.url(), "webhook_secret": SECRET, "webhook_send_plain_secret": given,
            });
            service.post("/v1/webhooks/test", &test).send().await.expect(200);
            assert_eq!(receiver.next().await.header("x-webhook-secret"), expected, "{given}");
        }
    }
}

#[tokio::test]
async fn schedule_keeps_whether_its_webhooks_carry_the_secret() {
    let service = Service::start().await;
    let schedule = json!({
        "cron": "0 9 * * *", "model": "text-template", "version": "1",
        "input": {"template": "hello"}, "webhook_url": "http://a.example/",
        "webhook_secret": SECRET, "webhook_send_plain_secret": false,
    });
    let made = service.post("/v1/schedules", &schedule).send().await.expect(201);
    assert_eq!(made["webhook_send_plain_secret"], false);
    let path = format!("/v1/schedules/{}", made["schedule_id"].as_str().unwrap());
    for (change, expected) in [
        (json!({"webhook_url": "http://b.example/"}), json!(false)),
        (json!({"webhook_send_plain_secret": null}), Value::Null),
        (json!({"webhook_send_plain_secret": true}), json!(true)),
    ] {
        let change = service.ask(Role::Base, Method::PUT, &path).key(&service.key).json(&change);
        let changed = change.send().await.expect(200);
        assert_eq!(changed["webhook_send_plain_secret"], expected);
    }
}

#[tokio::test]
async fn webhook_retry_has_same_id_and_bytes() {
    let service = Service::configured("webhooks.schedule = ['1ms', '1ms']\n").await;
    let mut receiver = Receiver::answering([500, 302]).await;
    let fields = json!({
        "input": {"template": "hello"},
        "webhook_url": receiver.url(),
        "webhook_secret": SECRET,
    });
    service.create_with("text-template", fields).await;
    let first = receiver.next().await;
    for _ in 0..2 {
        let again = receiver.next().await;
        assert_eq!(again.bytes(), first.bytes());
        let one = first.header("x-webhook-delivery-id");
        let two = again.header("x-webhook-delivery-id");
        assert!(one.is_some() && one == two);
        let time: i64 = again.header("x-webhook-timestamp").unwrap().parse().unwrap();
        let signed = again.header("x-webhook-signature").unwrap();
        assert!(signature::verify(SECRET, time, again.bytes(), signed));
    }
    assert!(receiver.is_empty());
}

#[tokio::test]
async fn webhook_pending_delivery_is_sent_after_restart() {
    // No attempt succeeds before the restart; the next attempt is due immediately after it.
    let service = Service::configured("webhooks.schedule = ['300ms', '300ms']\n").await;
    let mut receiver = Receiver::answering([500]).await;
    let fields = json!({"input": {"template": "hello"}, "webhook_url": receiver.url()});
    let id = service.create_with("text-template", fields).await;
    let first = receiver.next().await;
    let service = service.restart().await;
    let again = receiver.next().await;
    assert_eq!(again.bytes(), first.bytes());
    assert_eq!(again.json()["execution_id"], id);
    service.running.stop().await;
}

#[tokio::test]
async fn webhook_with_empty_url_is_not_sent() {
    let service = Service::start().await;
    let fields = json!({"input": {"template": "x"}, "webhook_url": "", "webhook_secret": ""});
    let id = service.create_with("text-template", fields).await;
    assert_eq!(service.ended(&id).await["status"], "success");
    assert_eq!(service.running.services.outbox.metrics().borrow().held, 0);
}

#[tokio::test]
async fn webhook_forbidden_address_is_rejected_at_creation() {
    let service = Service::start().await;
    for (url, address, reason) in [
        ("http://169.254.169.254/latest", "169.254.169.254", "cloud metadata"),
        ("http://[::1]:8080/", "::1", "loopback"),
        ("http://0.0.0.0/", "0.0.0.0", "unspecified"),
        ("http://[::ffff:169.254.1.1]/", "::ffff:169.254.1.1", "link-local"),
        ("http://224.0.0.1/", "224.0.0.1", "multicast"),
        ("http://2852039166/", "169.254.169.254", "cloud metadata"),
    ] {
        let body = json!({
            "model": "text-template", "version": "1", "input": {"template": "x"},
            "webhook_url": url,
        });
        let answer = service.post("/v1/prediction/", &body).send().await;
        let message = format!(
            "webhook_url must not point to a forbidden address: \
             the address {address} is not allowed ({reason})"
        );
        answer.expect_error(400, &message);
    }
}

#[tokio::test]
async fn webhook_name_resolving_to_forbidden_address_is_blocked() {
    // `localhost` may resolve to this machine's ::1 or 127.0.0.1; the configuration denies both.
    let deny = "egress.deny = ['127.0.0.0/8', '::1/128']\nwebhooks.schedule = []\n";
    let service = Service::adjusted(deny, |config| config.egress.allow.clear()).await;
    let receiver = Receiver::start().await;
    let url = receiver.url().replace("127.0.0.1", "localhost");
    let fields = json!({"input": {"template": "x"}, "webhook_url": url});
    let id = service.create_with("text-template", fields).await;
    assert_eq!(service.ended(&id).await["status"], "success");
    let mut figures = service.running.services.outbox.metrics();
    let given_up = figures.wait_for(|figures| figures.held == 0);
    tokio::time::timeout(std::time::Duration::from_secs(20), given_up).await.unwrap().unwrap();
    assert!(receiver.is_empty(), "it was connected to");
}
