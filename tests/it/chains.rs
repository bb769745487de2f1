//! Fallback chains: the outcome of predictions that name a chain, and the chains that are rejected.

use orrery_domain::chain::Entry;
use orrery_records::chains::Change;
use serde_json::{Value, json};

use crate::support::{Provider, Receiver, Service};

const SCHEMA: &str = "[request_schema]\ntype = 'object'\nrequired = ['n']\n\
                      properties.n = { type = 'integer' }\nproperties.m = { type = 'integer' }\n";

/// Returns a manifest that has its own request schema.
fn manifest(provider: &Provider, slug: &str, path: &str, more: &str) -> String {
    provider.manifest(slug, path, &format!("{more}{SCHEMA}"))
}

pub(crate) async fn save(service: &Service, model: &str, name: &str, entries: Value) {
    let entries: Vec<Entry> = serde_json::from_value(entries).unwrap();
    let services = &service.running.services;
    let schema_of = |slug: &str| {
        services.catalog.get(slug).map(|one| one.schema.text().clone()).ok_or_else(String::new)
    };
    let organization = service.organization.id;
    services.chains.create(organization, model, name, entries, &schema_of).await.unwrap();
}

async fn switch(service: &Service, model: &str, name: &str, enabled: bool) {
    let change = Change { entries: None, enabled: Some(enabled) };
    let chains = &service.running.services.chains;
    chains
        .change(service.organization.id, model, name, change, &|_| Err(String::new()))
        .await
        .unwrap();
}

#[tokio::test]
async fn chain_first_successful_model_completes_prediction() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    service.manifest(&manifest(&provider, "broken", "/billed/500", ""));
    service.manifest(&manifest(&provider, "hangs", "/hold", "timeout = '50ms'\n"));
    service.manifest(&manifest(&provider, "works", "/billed/200", ""));
    let entries = json!([
        {"model": "hangs"},
        {"model": "works", "input_map": {"n": 7, "m": "{{input.n}}"}},
    ]);
    save(&service, "broken", "safe", entries).await;
    let fields =
        json!({"input": {"n": 1}, "fallback_selector": "safe", "webhook_url": receiver.url()});
    let id = service.create_with("broken", fields.clone()).await;
    let hook = receiver.next().await.json();
    let prediction = service.ended(&id).await;
    assert_eq!(
        (&prediction["status"], &prediction["model"]),
        (&json!("success"), &json!("broken"))
    );
    assert_eq!(prediction["output"], json!({"n": 7, "m": 1}));
    let attempts = prediction["attempts"].as_array().unwrap().iter();
    let attempts: Vec<_> = attempts
        .map(|one| json!([one["model"], one["status"], one["error_classification"]]))
        .collect();
    let expected = json!([
        ["broken", "error", "provider_error"],
        ["hangs", "error", "execution_timeout"],
        ["works", "success", null],
    ]);
    assert_eq!(json!(attempts), expected);
    // The first model failed but was billed nevertheless.
    assert_eq!(prediction["metrics"]["cost"], 0.5);
    assert_eq!((&hook["execution_id"], &hook["status"]), (&json!(id), &json!("completed")));
    assert_eq!(service.ledger().await.len(), 1);
    assert!(receiver.is_empty(), "one webhook for the whole chain");

    let mut body = json!({"model": "broken", "version": "1"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body["fallback_selector"] = json!("saef");
    let refused = service.post("/v1/prediction/", &body).send().await.expect(400);
    let said = "unknown fallback_selector 'saef' for model 'broken': did you mean safe?";
    assert_eq!(refused["error"], said);

    // A disabled chain is rejected.
    switch(&service, "broken", "safe", false).await;
    let mut body = json!({"model": "broken", "version": "1"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let refused = service.post("/v1/prediction/", &body).send().await.expect(400);
    assert_eq!(refused["error"], "unknown fallback_selector 'safe' for model 'broken'");
}

#[tokio::test]
async fn chain_is_frozen_at_prediction_creation() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&manifest(&provider, "held", "/hold", "concurrency = 1\n"));
    service.manifest(&manifest(&provider, "echo", "/echo", ""));
    save(&service, "held", "safe", json!([{"model": "echo"}])).await;
    let fields = json!({"input": {"n": 1}, "fallback_selector": "safe"});
    let first = service.create_with("held", json!({"input": {"n": 0}})).await;
    let id = service.create_with("held", fields).await;
    provider.arrived(1).await;
    switch(&service, "held", "safe", false).await;
    service.manifest(&manifest(&provider, "held", "/status/503", "concurrency = 1\n"));
    provider.release(1);
    assert_eq!(service.ended(&first).await["status"], "success");
    let prediction = service.ended(&id).await;
    assert_eq!(
        (&prediction["status"], &prediction["output"]),
        (&json!("success"), &json!({"n": 1}))
    );
}

#[tokio::test]
async fn chain_is_not_tried_for_invalid_input() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&manifest(&provider, "invalid", "/status/422", ""));
    service.manifest(&manifest(&provider, "broken", "/status/500", ""));
    service.manifest(&manifest(&provider, "echo", "/echo", ""));
    save(&service, "invalid", "safe", json!([{"model": "echo"}])).await;
    // An entry whose mapping cannot be resolved for this input is skipped.
    let entries = json!([
        {"model": "invalid", "input_map": {"n": "{{input.m}}"}},
        {"model": "echo"},
    ]);
    save(&service, "broken", "safe", entries).await;
    let fields = json!({"input": {"n": 1}, "fallback_selector": "safe"});
    let id = service.create_with("invalid", fields.clone()).await;
    let prediction = service.ended(&id).await;
    assert_eq!(prediction["error_classification"], "invalid_user_input");
    assert_eq!(prediction["attempts"].as_array().unwrap().len(), 1);
    let id = service.create_with("broken", fields).await;
    let prediction = service.ended(&id).await;
    assert_eq!(prediction["status"], "success");
    assert_eq!(prediction["attempts"][1]["error_classification"], "invalid_model_config");
    assert!(
        prediction["attempts"][1]["error"].as_str().unwrap().contains("missing required field 'n'")
    );
    // Another organization's chain is not found.
    let body =
        json!({"model": "broken", "version": "1", "input": {"n": 1}, "fallback_selector": "safe"});
    let ask = service.ask(orrery_api::Role::Base, hyper::Method::POST, "/v1/prediction/");
    ask.key(&service.other_key).json(&body).send().await.expect(400);
}
