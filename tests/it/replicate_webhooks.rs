//! Webhooks in the format of Replicate's API: events, updates, signatures and cancellation.

use std::time::Duration;

use hyper::Method;
use orrery_api::Role;
use orrery_domain::signature;
use serde_json::{Value, json};

use crate::replicate::{create, ended};
use crate::support::{Provider, Receiver, Service, until};

fn chat(provider: &Provider) -> String {
    let url = provider.url("/stream");
    format!(
        "slug = 'chat'\noutput_type = 'string'\n\
         [runner]\ntype = 'openai'\nkind = 'chat'\nmodel = 'm'\nurl = '{url}'\n"
    )
}

fn body(receiver: &Receiver, input: Value, filter: Value) -> Value {
    json!({"input": input, "webhook": receiver.url(), "webhook_events_filter": filter})
}

#[tokio::test]
async fn replicate_webhook_is_the_signed_prediction() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let input = json!({"template": "a"});
    let fields = json!({"input": input, "webhook": receiver.url()});
    let made = create(&service, "text-template", fields).await;
    let hook = receiver.next().await;
    let prediction = ended(&service, &made["id"]).await;
    let mut sent = hook.json();
    // Each response and webhook contains a different link to the stream.
    sent["urls"]["stream"] = prediction["urls"]["stream"].clone();
    assert_eq!(sent, prediction);
    let secret = service.get("/replicate/v1/webhooks/default/secret").await.expect(200);
    let secret = secret["key"].as_str().unwrap();
    let header = |name: &str| hook.header(name).unwrap();
    let time: i64 = header("webhook-timestamp").parse().unwrap();
    let expected = signature::sign_standard(secret, header("webhook-id"), time, hook.bytes());
    assert_eq!(header("webhook-signature"), expected);
    assert_eq!(hook.header("x-webhook-secret"), None);
    let path = "/replicate/v1/webhooks/default/secret";
    let other = service.ask(Role::Base, Method::GET, path).key(&service.other_key).send().await;
    assert_ne!(other.expect(200)["key"], secret);
    // A webhook in the older field `webhook_completed` is notified only of the end.
    let fields = json!({"input": input, "webhook_completed": receiver.url()});
    let made = create(&service, "text-template", fields).await;
    assert_eq!(receiver.next().await.json()["id"], made["id"]);
    ended(&service, &made["id"]).await;
    assert!(receiver.is_empty());
}

#[tokio::test]
async fn replicate_webhook_filter_selects_events() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("slow", "/hold", ""));
    let fields = body(&receiver, json!({}), json!(["start", "completed"]));
    let made = create(&service, "slow", fields).await;
    let start = receiver.next().await.json();
    assert_eq!((&start["id"], &start["status"]), (&made["id"], &json!("processing")));
    assert_eq!((&start["output"], &start["completed_at"]), (&Value::Null, &Value::Null));
    provider.release(1);
    let end = receiver.next().await.json();
    assert_eq!((&end["status"], &end["output"]), (&json!("succeeded"), &json!({"held": true})));
    // The list of the execution's deliveries contains the update, which cannot be sent again.
    let path = format!("/v1/webhooks?execution={}", made["id"].as_str().unwrap());
    let list = service.get(&path).await.expect(200);
    assert_eq!(list["total_count"], 2, "{list}");

    let fields = body(&receiver, json!({}), json!(["start"]));
    let made = create(&service, "slow", fields).await;
    assert_eq!(receiver.next().await.json()["id"], made["id"]);
    provider.release(1);
    ended(&service, &made["id"]).await;
    assert!(receiver.is_empty());
}

#[tokio::test]
async fn replicate_webhook_reports_output_while_it_comes() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let provider = Provider::start().await;
    service.manifest(&chat(&provider));
    let fields = body(&receiver, json!({"prompt": "p"}), json!(["output", "completed"]));
    let made = create(&service, "chat", fields).await;
    provider.say("one");
    let update = receiver.next().await.json();
    assert_eq!((&update["id"], &update["status"]), (&made["id"], &json!("processing")));
    assert_eq!(update["output"], "one");
    provider.say(" two");
    let update = receiver.next().await.json();
    assert_eq!((&update["status"], &update["output"]), (&json!("processing"), &json!("one two")));
    provider.finish();
    let end = receiver.next().await.json();
    assert_eq!((&end["status"], &end["output"]), (&json!("succeeded"), &json!("one two")));
}

#[tokio::test]
async fn replicate_webhook_reports_logs_while_they_come() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let script = r#"read l; l=${l#*'"id":"'}; echo '{"id":"'${l%%'"'*}'","log":"one"}'; sleep 60"#;
    service.manifest(&format!(
        "slug = 'talker'\noutput_type = 'object'\n\
         [runner]\ntype = 'command'\ncommand = ['sh', '-c', '''{script}''']\n"
    ));
    let made = create(&service, "talker", body(&receiver, json!({}), json!(["logs"]))).await;
    let update = receiver.next().await.json();
    assert_eq!((&update["status"], &update["logs"]), (&json!("processing"), &json!("one")));
    // The delivery at the end is the last update.
    service.cancel(made["id"].as_str().unwrap()).await.expect(200);
    let end = receiver.next().await.json();
    assert_eq!((&end["status"], &end["logs"]), (&json!("canceled"), &json!("one")));
}

#[tokio::test]
async fn replicate_webhook_updates_wait_for_the_receiver() {
    let service = Service::configured("webhooks.schedule = ['1h']\n").await;
    let mut receiver = Receiver::held([500]).await;
    let provider = Provider::start().await;
    service.manifest(&chat(&provider));
    let fields = body(&receiver, json!({"prompt": "p"}), json!(["output", "completed"]));
    let made = create(&service, "chat", fields).await;
    provider.say("one");
    assert_eq!(receiver.next().await.json()["output"], "one");
    provider.say(" two");
    // Long enough for two more updates: while an update is pending, the service sends no other
    // update.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    provider.finish();
    // The delivery at the end does not wait for the pending update.
    let end = receiver.next().await.json();
    assert_eq!((&end["status"], &end["output"]), (&json!("succeeded"), &json!("one two")));
    receiver.let_go();
    receiver.let_go();
    // The update has failed, and is not retried.
    let path = format!("/v1/webhooks?execution={}", made["id"].as_str().unwrap());
    let failed = until("failed update", async || {
        let list = service.get(&path).await.expect(200);
        let list = list["webhooks"].as_array().unwrap();
        assert_eq!(list.len(), 2, "{list:?}");
        list.iter().find(|delivery| delivery["status"] == "failed").cloned()
    })
    .await;
    assert_eq!(failed["next_attempt_at"], Value::Null);
    let path = format!("/v1/webhooks/{}", failed["delivery_id"].as_str().unwrap());
    let delivery = service.get(&path).await.expect(200);
    assert_eq!(delivery["execution_id"], made["id"]);
    assert_eq!(delivery["attempts"].as_array().unwrap().len(), 1, "{delivery}");
    assert!(receiver.is_empty());
}

#[tokio::test]
async fn replicate_webhook_reports_cancellation_once() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("slow", "/hold", ""));
    let fields = body(&receiver, json!({}), json!(["completed"]));
    let made = create(&service, "slow", fields).await;
    provider.arrived(1).await;
    service.cancel(made["id"].as_str().unwrap()).await.expect(200);
    let end = receiver.next().await.json();
    assert_eq!((&end["id"], &end["status"]), (&made["id"], &json!("canceled")));
    assert_eq!(end["output"], Value::Null);
    assert!(receiver.is_empty());
}

#[tokio::test]
async fn replicate_webhook_survives_a_restart() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("slow", "/hold", ""));
    let fields = body(&receiver, json!({}), json!(["completed"]));
    let made = create(&service, "slow", fields).await;
    provider.arrived(1).await;
    let service = service.restart().await;
    provider.arrived(2).await;
    provider.release(1);
    let end = receiver.next().await.json();
    assert_eq!((&end["id"], &end["status"]), (&made["id"], &json!("succeeded")));
    assert_eq!(ended(&service, &made["id"]).await["output"], json!({"held": true}));
}

#[tokio::test]
async fn replicate_webhook_leaves_endpoints_in_their_own_form() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let mut endpoint = Receiver::start().await;
    let new = json!({"url": endpoint.url(), "events": ["prediction.completed"]});
    service.post("/v1/webhook-endpoints", &new).send().await.expect(201);
    let fields = body(&receiver, json!({"template": "a"}), json!(["completed"]));
    let made = create(&service, "text-template", fields).await;
    let event = endpoint.next().await.json();
    assert_eq!(
        (&event["type"], &event["data"]["execution_id"]),
        (&json!("prediction.completed"), &made["id"])
    );
    assert_eq!(event["data"]["status"], "completed");
    assert_eq!(receiver.next().await.json()["status"], "succeeded");
}

#[tokio::test]
async fn replicate_webhook_must_pass_the_egress_guard() {
    let service = Service::start().await;
    let url = json!("http://169.254.169.254/latest");
    for field in ["webhook", "webhook_completed"] {
        let body = json!({"input": {"template": "a"}, field: url});
        let path = "/replicate/v1/models/local/text-template/predictions";
        let answer = service.post(path, &body).send().await.expect(400);
        let detail = answer["detail"].as_str().unwrap();
        assert!(detail.starts_with(field), "{detail}");
    }
}
