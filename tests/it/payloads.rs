//! Payloads above the store's inline limit of 64 KiB: they are stored in separate files, without a
//! difference for clients.

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Provider, Receiver, Service};

fn files(service: &Service) -> usize {
    fn count(folder: &std::path::Path) -> usize {
        let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
        entries
            .map(|entry| entry.unwrap().path())
            .map(|path| if path.is_dir() { count(&path) } else { 1 })
            .sum()
    }
    count(&service.config.data_dir.join("payloads"))
}

#[tokio::test]
async fn payload_large_inputs_outputs_and_webhooks_round_trip() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    service.manifest(&provider.manifest("echo", "/echo", ""));
    let small = service.create("echo", json!({"text": "small"})).await;
    service.ended(&small).await;
    assert_eq!(files(&service), 0);

    let text: String = ('a'..='z').cycle().take(300_000).collect();
    let input = json!({"text": text, "unicode": "\u{1f30c}".repeat(1000)});
    let fields = json!({"input": input, "webhook_url": receiver.url()});
    let id = service.create_with("echo", fields).await;
    let prediction = service.ended(&id).await;
    assert_eq!(prediction["input"], input);
    assert_eq!(prediction["output"], input);
    assert_eq!(files(&service), 2, "an input that is the output too, a webhook's body");
    let hook = receiver.next().await;
    assert_eq!(hook.json()["output"], input);

    let service = service.restart().await;
    let again: Value = service.ended(&id).await;
    assert_eq!((&again["input"], &again["output"]), (&input, &input));
}

#[tokio::test]
async fn body_limit_is_inclusive() {
    let service = Service::configured("limits.body_bytes = '64KiB'\n").await;
    let body = |length: usize| {
        let empty = r#"{"model":"text-template","version":"1","input":{"template":""}}"#;
        let text = "x".repeat(length - empty.len());
        empty.replace(r#""template":"""#, &format!(r#""template":"{text}""#))
    };
    let ask = |text: String| {
        let post = service.post("/v1/prediction/", &Value::Null);
        post.body(text).send()
    };
    ask(body(65_536)).await.expect(200);
    let refused = ask(body(65_537)).await;
    refused.expect_error(413, "the request body is larger than 65536 bytes");
}

fn bytes(service: &Service) -> u64 {
    fn sum(folder: &std::path::Path) -> u64 {
        let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
        entries
            .map(|entry| entry.unwrap().path())
            .map(|path| if path.is_dir() { sum(&path) } else { path.metadata().unwrap().len() })
            .sum()
    }
    sum(&service.config.data_dir.join("payloads"))
}

/// Returns `count` steps that pass on their execution's input, each output slightly longer if
/// `grow`.
fn passing(count: usize, grow: bool) -> Value {
    let result = |number: usize| {
        let number = if grow { number } else { 0 };
        json!({"number": number, "text": "{{inputs.text}}"})
    };
    let step = |number: usize| json!({"step_id": format!("s{number}"), "type": "pass", "result": result(number)});
    (0..count).map(step).collect()
}

#[tokio::test]
async fn payload_equal_within_execution_is_written_once() {
    let service = Service::start().await;
    let id = service.workflow(passing(100, false)).await;
    let inputs = json!({"text": "x".repeat(1_000_000)});
    let execution = service.trigger(&id, json!({"inputs": inputs})).await;
    let ended = service.completed(&execution).await;
    assert_eq!(ended["status"], "completed");
    // There is one file for the input, one for the steps' output, and none for a webhook.
    assert_eq!(files(&service), 2);
    assert!(bytes(&service) < 2_100_000, "{}", bytes(&service));
}

#[tokio::test]
async fn payload_execution_over_byte_limit_fails_alone() {
    let service = Service::configured("engine.execution_bytes = '4MiB'\n").await;
    let id = service.workflow(passing(100, true)).await;
    let inputs = json!({"text": "x".repeat(1_000_000)});
    let execution = service.trigger(&id, json!({"inputs": inputs})).await;
    let ended = service.completed(&execution).await;
    assert_eq!((&ended["status"], &ended["error"]), (&json!("failed"), &json!("StepFailed")));
    let cause = ended["error_cause"].as_str().unwrap();
    assert!(cause.contains("more than 4194304 bytes (engine.execution_bytes)"), "{cause}");
    assert!(bytes(&service) < 4_300_000, "{}", bytes(&service));
    let small = service.trigger(&id, json!({"inputs": {"text": "x"}})).await;
    assert_eq!(service.completed(&small).await["status"], "completed");
}

#[tokio::test]
async fn payload_organization_over_quota_gets_no_new_work() {
    let service = Service::configured("engine.organization_bytes = '1MiB'\n").await;
    let id = service.workflow(passing(1, false)).await;
    let inputs = json!({"text": "x".repeat(600_000)});
    let execution = service.trigger(&id, json!({"inputs": inputs})).await;
    let ended = service.completed(&execution).await;
    assert_eq!(ended["status"], "failed");
    let cause = ended["error_cause"].as_str().unwrap();
    assert!(cause.contains("more than 1048576 bytes (engine.organization_bytes)"), "{cause}");
    let again = service.flows(Method::POST, &format!("/{id}/trigger"));
    let refused = again.json(&json!({"inputs": inputs})).send().await;
    assert_eq!(refused.expect(413)["details"]["quota_bytes"], 1_048_576);
}

#[tokio::test]
async fn payload_damaged_output_is_named_and_lists_continue() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("echo", "/echo", ""));
    let good = service.create("echo", json!({"text": "small"})).await;
    let id = service.create("echo", json!({"text": "x".repeat(100_000)})).await;
    for id in [&good, &id] {
        service.ended(id).await;
    }
    for shard in std::fs::read_dir(service.config.data_dir.join("payloads")).unwrap() {
        for file in std::fs::read_dir(shard.unwrap().path()).unwrap() {
            std::fs::write(file.unwrap().path(), "\"damaged\"").unwrap();
        }
    }
    let prediction = service.get(&format!("/v1/prediction/{id}")).await.expect(200);
    assert_eq!((&prediction["output"], &prediction["status"]), (&Value::Null, &json!("success")));
    let error = prediction["output_error"].as_str().unwrap();
    assert!(error.ends_with("is damaged: its content differs from what was written"), "{error}");
    let list = service.get("/v2/executions").await.expect(200);
    assert_eq!(list["executions"].as_array().unwrap().len(), 2);
    assert_eq!(list["executions"][0]["output_error"], prediction["output_error"]);
    assert!(list["executions"][1]["output_error"].is_null());
}
