//! Rotation of `seal.key`: interrupted after every step, and with a service that continues with the
//! new key.

use std::fs;
use std::path::Path;

use orrery_app as app;
use orrery_config::Config;
use orrery_domain::signature;
use orrery_storage::{Key, Options, Page, Sealer, Store, Table};
use serde_json::{Value, json};

use crate::support::{Provider, Receiver, Service};

const SECRET: &str = "whsec_of_theirs";
const TOKEN: &str = "Bearer of the vault";

/// Collects every sealed string in a value.
fn sealed_in(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if ["secret", "$sealed", "sealed"].contains(&name.as_str()) => {
                        found.push(text.to_owned());
                    }
                    _ => sealed_in(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| sealed_in(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns every sealed string of a stopped service, from rows and payload files.
async fn sealed(config: &Config) -> Vec<String> {
    let options = Options {
        folder: config.data_dir.clone(),
        inline_bytes: config.engine.payload_inline_bytes,
    };
    let store = Store::open(&options).unwrap();
    let mut found = Vec::new();
    for table in [
        Table::Execution,
        Table::Delivery,
        Table::Definition,
        Table::Secret,
        Table::WebhookEndpoint,
        Table::Schedule,
    ] {
        let prefix = Key::table(table);
        let page = Page { prefix, after: None, before: None, limit: 1000 };
        for (_, bytes) in store.page(page).await.unwrap() {
            if bytes.get(1) != Some(&b'{') {
                // This row is the counter among the endpoints' rows.
                continue;
            }
            let record: Value = serde_json::from_slice(&bytes[1..]).unwrap();
            sealed_in(&record, &mut found);
            if let Some(id) = record.pointer("/definition/file/id") {
                let id = id.as_str().unwrap().parse().unwrap();
                let text = fs::read(store.payload_path(id)).unwrap();
                sealed_in(&serde_json::from_slice(&text).unwrap(), &mut found);
            }
        }
    }
    store.close().await;
    found
}

fn opened(data: &Path, sealed: &[String]) -> Vec<Option<String>> {
    let sealer = Sealer::open_used(data).unwrap();
    sealed.iter().map(|sealed| sealer.unseal(sealed).ok()).collect()
}

/// Rotates the key of a stopped service, interrupted after each step; returns the number of
/// interruptions.
async fn rotate(config: &Config) -> usize {
    let data = config.data_dir.clone();
    let key = config.data_dir.join("seal.key");
    let before = sealed(config).await;
    let plain: Vec<Option<String>> = opened(&data, &before);
    assert!(plain.iter().all(Option::is_some) && before.len() >= 146, "{}", before.len());
    let old_key = fs::read(&key).unwrap();
    let mut interrupted = 0;
    let done = loop {
        let mut left: usize = interrupted;
        let rotated = app::rotate_seal(config, &mut |_done| {
            left = match left.checked_sub(1) {
                Some(left) => left,
                None => {
                    let reason = "interrupted".to_owned();
                    return Err(orrery_storage::Error::Unavailable { reason });
                }
            };
            Ok(())
        })
        .await;
        // Every sealed string can still be decrypted, regardless of the key that sealed it.
        let now = sealed(config).await;
        assert_eq!(opened(&data, &now), plain, "after step {interrupted}");
        match rotated {
            Ok(done) => break done,
            Err(error) => assert!(error.to_string().contains("interrupted"), "{error:#}"),
        }
        interrupted += 1;
    };
    assert!(interrupted >= 8, "{interrupted} steps");
    assert_eq!(done.unreadable, 0);
    assert_ne!(fs::read(&key).unwrap(), old_key);
    assert!(!data.join("seal.key.next").exists());
    assert!(sealed(config).await.iter().all(|sealed| !before.contains(sealed)));
    interrupted
}

#[tokio::test(flavor = "multi_thread")]
async fn seal_rotation_interrupted_anywhere_loses_no_secret() {
    let service = Service::configured("engine.payload_inline_bytes = 1024\n").await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    // Create more than one page of executions, with one definition in a row and one in a file.
    let mut ids = Vec::new();
    for _ in 0..70 {
        let fields = json!({
            "input": {"template": "x"},
            "webhook_url": "http://127.0.0.1:1/", "webhook_secret": SECRET,
        });
        ids.push(service.create_with("text-template", fields).await);
    }
    // Each prediction has a delivery once it has ended.
    for id in ids {
        service.ended(&id).await;
    }
    let step = |filler: usize| {
        json!([{
            "step_id": "call", "type": "http", "method": "GET", "url": provider.url("/echo"),
            "headers": {"authorization": TOKEN, "x-note": "n".repeat(filler)},
        }])
    };
    service.workflow(step(1)).await;
    let secrets = &service.running.services.secrets;
    secrets.set(service.organization.id, "token", TOKEN).await.unwrap();
    let large = service.workflow(step(3000)).await;
    // Add an endpoint with two valid secrets, and a schedule whose runs have webhooks.
    let mut hooks = Receiver::start().await;
    let endpoint = json!({"url": hooks.url(), "events": ["workflow.completed"]});
    let made = service.post("/v1/webhook-endpoints", &endpoint).send().await.expect(201);
    let path = format!("/v1/webhook-endpoints/{}/rotate", made["id"].as_str().unwrap());
    let rotated = service.post(&path, &json!({})).send().await.expect(200);
    let schedule =
        json!({"cron": "@yearly", "webhook_url": receiver.url(), "webhook_secret": SECRET});
    let schedules = format!("/v1/workflows/{large}/schedules");
    service.post(&schedules, &schedule).send().await.expect(201);
    let mut interrupted = 0;
    let service =
        service.restart_after(async |config: &Config| interrupted = rotate(config).await).await;

    // The service continues with the new key: credentials and webhook secrets are unchanged.
    let execution = service.trigger(&large, json!({})).await;
    service.completed(&execution).await;
    let requests = provider.requests();
    assert_eq!(requests.last().unwrap().headers()["authorization"], TOKEN);
    let hook = hooks.next().await;
    let header = |name| hook.header(name).unwrap();
    let (id, signed) = (header("webhook-id"), header("webhook-signature"));
    let time = header("webhook-timestamp").parse().unwrap();
    for secret in [&made["secret"], &rotated["secret"]] {
        let secret = secret.as_str().unwrap();
        assert!(signature::verify_standard(secret, id, time, hook.bytes(), signed), "{signed}");
    }
    let fields = json!({
        "input": {"template": "x"}, "webhook_url": receiver.url(), "webhook_secret": SECRET,
    });
    service.create_with("text-template", fields).await;
    assert_eq!(receiver.next().await.header("x-webhook-secret"), Some(SECRET));
    let names = ["token".to_owned()];
    let secrets = &service.running.services.secrets;
    let values = secrets.values(service.organization.id, &names).await.unwrap();
    assert_eq!(values.get("token"), Some(TOKEN));
    let audit = &service.running.services.audit;
    let filter = orrery_records::audit::Filter {
        action: Some("seal.rotate".to_owned()),
        ..orrery_records::audit::Filter::default()
    };
    let acts = audit.list(&filter, 100).await.unwrap();
    assert!(acts[0].subject.starts_with("done: "), "{}", acts[0].subject);
    assert_eq!(acts.iter().filter(|act| act.subject == "begun").count(), interrupted + 1);
}
