//! The costs of predictions: equal in their metrics, the ledger and the balance.

use orrery_domain::account::EntryKind;
use orrery_domain::money::Usd;
use serde_json::{Value, json};

use crate::support::{Provider, Service, Upstream};

const FIXED: &str = "[cost]\ntype = 'fixed'\namount = 0.002\n";

async fn balance(service: &Service) -> Usd {
    service.running.services.billing.balance(service.organization.id).await.unwrap()
}

#[tokio::test]
async fn cost_of_success_is_charged_once() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("priced", "/echo", FIXED));
    let mut charged = Vec::new();
    for _ in 0..3 {
        let id = service.create("priced", json!({})).await;
        let prediction = service.ended(&id).await;
        assert_eq!(prediction["metrics"]["cost"], 0.002);
        charged.insert(0, id);
    }
    let ledger = service.ledger().await;
    let executions: Vec<String> =
        ledger.iter().map(|entry| entry.execution.unwrap().to_string()).collect();
    assert_eq!(executions, charged);
    for entry in &ledger {
        assert_eq!((entry.kind, entry.amount), (EntryKind::Charge, Usd::from_micros(-2000)));
    }
    assert_eq!(balance(&service).await, Usd::from_micros(-6000));
    service.get("/v1/billing/balance").await.expect_text(200, r#"{"balance_usd":-0.006}"#);
    let service = service.restart().await;
    assert_eq!(balance(&service).await, Usd::from_micros(-6000));
    assert_eq!(service.ledger().await, ledger);
}

#[tokio::test]
async fn cost_reported_by_provider_wins_even_on_failure() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    for (slug, path, status) in
        [("good", "/billed/200", "success"), ("bad", "/billed/500", "error")]
    {
        service.manifest(&provider.manifest(slug, path, FIXED));
        let id = service.create(slug, json!({})).await;
        let prediction = service.ended(&id).await;
        let said = &prediction["status"];
        let cost = &prediction["metrics"]["cost"];
        assert_eq!((said, cost), (&json!(status), &json!(0.25)));
    }
    assert_eq!(balance(&service).await, Usd::from_micros(-500_000));
    assert_eq!(service.ledger().await.len(), 2);
}

#[tokio::test]
async fn cost_of_failure_or_unpriced_model_is_zero() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("broken", "/status/500", FIXED));
    service.manifest(&provider.manifest("free", "/echo", ""));
    for slug in ["broken", "free"] {
        let id = service.create(slug, json!({})).await;
        let prediction: Value = service.ended(&id).await;
        assert_eq!(prediction["metrics"]["cost"], 0.0, "{slug}");
    }
    assert!(service.ledger().await.is_empty());
    assert_eq!(balance(&service).await, Usd::ZERO);
}

#[tokio::test]
async fn cost_by_tokens_is_reserved_and_charged_as_counted() {
    let service = Service::configured("billing.enforce = true\n").await;
    let up = Upstream::start().await;
    let cost = "[cost]\ntype = 'usage_based'\nper_million_input_tokens = 100.0\n\
                per_million_output_tokens = 1000.0\n";
    service.manifest(&up.manifest("talker", "chat", cost));
    let billing = service.running.services.billing.clone();
    billing.top_up(service.organization.id, Usd::from_micros(10_000)).await.unwrap();
    let create = async |input: Value| {
        let body = json!({"model": "talker", "version": "1", "input": input});
        service.post("/v1/prediction/", &body).send().await
    };
    // If a request sets no maximum, the service reserves 16,384 output tokens.
    let open = create(json!({"prompt": "hello"})).await.expect(402);
    assert_eq!(open["details"]["needed_usd"], 16.3853);
    // 24 bytes of input and 5 output tokens: 7,400. The server exceeds the maximum.
    up.says("hi", 10, 8);
    let taken = create(json!({"prompt": "hello", "max_tokens": 5})).await.expect(200);
    let prediction = service.ended(taken["predictionID"].as_str().unwrap()).await;
    assert_eq!(prediction["metrics"]["cost"], 0.009);
    assert_eq!(balance(&service).await, Usd::from_micros(1000));
    create(json!({"prompt": "hello", "max_tokens": 5})).await.expect(402);
}
