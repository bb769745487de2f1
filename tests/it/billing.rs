//! The balance: its route, its rate limit, and its error if billing is off; also requests that the
//! service rejects because the balance does not cover their cost.

use hyper::Method;
use orrery_api::Role;
use orrery_domain::money::Usd;
use serde_json::{Value, json};

use crate::support::{Answer, Provider, Service};

const ENFORCED: &str = "billing.enforce = true\n";
const PRICED: &str = "concurrency = 100\n[cost]\ntype = 'fixed'\namount = 0.25\n";

async fn top_up(service: &Service, dollars: f64) {
    let amount = Usd::from_dollars(dollars).unwrap();
    let billing = &service.running.services.billing;
    billing.top_up(service.organization.id, amount).await.unwrap();
}

async fn create(service: &Service, model: &str) -> Answer {
    let body = json!({"model": model, "version": "1", "input": {}});
    service.post("/v1/prediction/", &body).send().await
}

/// Checks that the response is a 402 with these amounts in dollars: the balance, the amount
/// reserved for running work, and the price.
#[track_caller]
fn expect_unpaid(answer: &Answer, dollars: [f64; 3]) {
    let [balance, reserved, needed] = dollars;
    let details = json!({"balance_usd": balance, "reserved_usd": reserved, "needed_usd": needed});
    let body = json!({"error": "payment required", "status": 402, "details": details});
    assert_eq!((answer.status, answer.json()), (402, body));
}

#[tokio::test]
async fn balance_too_low_rejects_work_with_402() {
    let service = Service::configured(ENFORCED).await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", PRICED));
    service.manifest(&provider.manifest("free", "/echo", ""));
    expect_unpaid(&create(&service, "held").await, [0.0, 0.0, 0.25]);
    let free = service.create("free", json!({})).await;
    assert_eq!(
        service.ended(&free).await["status"],
        "success",
        "what costs nothing needs no balance"
    );
    top_up(&service, 0.6).await;
    let first = service.create("held", json!({})).await;
    let second = service.create("held", json!({})).await;
    expect_unpaid(&create(&service, "held").await, [0.6, 0.5, 0.25]);
    // Reservations for running work survive a restart.
    provider.arrived(2).await;
    let service = service.restart().await;
    expect_unpaid(&create(&service, "held").await, [0.6, 0.5, 0.25]);
    provider.arrived(4).await;
    service.cancel(&first).await.expect(200);
    let third = service.create("held", json!({})).await;
    provider.release(10);
    for id in [&second, &third] {
        assert_eq!(service.ended(id).await["status"], "success");
    }
    expect_unpaid(&create(&service, "held").await, [0.1, 0.0, 0.25]);
    service.get("/v1/billing/balance").await.expect_text(200, r#"{"balance_usd":0.1}"#);
}

#[tokio::test]
async fn balance_is_never_overdrawn_by_concurrent_creates() {
    let service = Service::configured(ENFORCED).await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", PRICED));
    top_up(&service, 2.5).await;
    let many = std::iter::repeat_with(|| create(&service, "held")).take(60);
    let answers = futures_util::future::join_all(many).await;
    let taken = answers.iter().filter(|answer| answer.status == 200).count();
    assert!(answers.iter().all(|answer| [200, 402].contains(&answer.status)));
    assert!((1..=10).contains(&taken), "{taken}");
    provider.release(taken);
    for answer in answers.iter().filter(|answer| answer.status == 200) {
        let id = answer.json()["predictionID"].as_str().unwrap().to_owned();
        assert_eq!(service.ended(&id).await["status"], "success");
    }
    let balance: Value = service.get("/v1/billing/balance").await.expect(200);
    assert!(balance["balance_usd"].as_f64().unwrap() >= 0.0, "{balance}");
}

#[tokio::test]
async fn balance_must_cover_workflow_steps_and_metered_models() {
    let service = Service::configured(ENFORCED).await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("priced", "/echo", PRICED));
    let metered = "timeout = '5s'\n[cost]\ntype = 'usage_based'\nper_second = 0.1\n";
    service.manifest(&provider.manifest("metered", "/echo", metered));
    let step = |id: &str, of: &str| json!({"step_id": id, "type": "model", "model": "priced", "params": {"of": of}});
    let steps = json!([step("a", "nothing"), step("b", "{{a.status}}")]);
    let workflow = service.workflow(steps).await;
    let trigger = service.flows(Method::POST, &format!("/{workflow}/trigger")).json(&json!({}));
    expect_unpaid(&trigger.clone().send().await, [0.0, 0.0, 0.0]);
    top_up(&service, 0.4).await;
    let taken = trigger.clone().send().await.expect(202);
    let execution = service.completed(taken["execution_id"].as_str().unwrap()).await;
    assert_eq!(
        (&execution["status"], &execution["metrics"]["cost"]),
        (&json!("failed"), &json!(0.25)),
        "{execution}"
    );
    let cause = execution["error_cause"].as_str().unwrap();
    assert!(cause.contains("payment required: the call may cost 0.25"), "{cause}");
    top_up(&service, 0.35).await;
    let taken = trigger.send().await.expect(202);
    let execution = service.completed(taken["execution_id"].as_str().unwrap()).await;
    assert_eq!(
        (&execution["status"], &execution["metrics"]["cost"]),
        (&json!("completed"), &json!(0.5))
    );
    // The price is a tenth of a dollar per second of the model's timeout.
    top_up(&service, 0.4).await;
    expect_unpaid(&create(&service, "metered").await, [0.4, 0.0, 0.5]);
    top_up(&service, 0.1).await;
    assert_eq!(create(&service, "metered").await.status, 200);
}

/// Runs a workflow with a map over 100 items; returns its cost, or 0 if the trigger is rejected
/// because another run has spent the balance.
async fn map_of_calls(service: &Service, workflow: &str) -> f64 {
    let inputs = json!({"inputs": {"l": (0..100).collect::<Vec<_>>()}});
    let trigger = service.flows(Method::POST, &format!("/{workflow}/trigger")).json(&inputs);
    let taken = trigger.send().await;
    if taken.status == 402 {
        return 0.0;
    }
    let taken = taken.expect(202);
    let execution = service.completed(taken["execution_id"].as_str().unwrap()).await;
    assert_eq!(execution["status"], "completed", "{execution}");
    execution["metrics"]["cost"].as_f64().unwrap()
}

#[tokio::test]
async fn balance_pays_for_only_three_calls_of_a_map() {
    let service = Service::configured(ENFORCED).await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("priced", "/echo", PRICED));
    service.manifest(&provider.manifest("failing", "/status/500", PRICED));
    let map = |step: Value| {
        json!([{"step_id": "m", "type": "map", "items": "{{inputs.l}}", "max_concurrency": 100,
                "steps": [step]}])
    };
    let call = json!({"step_id": "a", "type": "model", "model": "priced", "params": {},
                      "continue_on_error": true});
    let mut falls_back = call.clone();
    falls_back["model"] = json!("failing");
    falls_back["fallback"] = json!({"model": "priced", "params": {}});
    for step in [call, falls_back] {
        let workflow = service.workflow(map(step)).await;
        top_up(&service, 0.75).await;
        let runs = [map_of_calls(&service, &workflow), map_of_calls(&service, &workflow)];
        let cost: f64 = futures_util::future::join_all(runs).await.iter().sum();
        assert!((0.25..=0.75).contains(&cost), "{cost}");
        let balance = service.get("/v1/billing/balance").await.expect(200);
        let left = balance["balance_usd"].as_f64().unwrap();
        assert!((0.0..=0.5).contains(&left), "{balance}");
        let calls = match format!("{left}").as_str() {
            "0" => 0,
            "0.25" => 1,
            "0.5" => 2,
            other => panic!("{other}"),
        };
        // No reservation is left.
        for _ in 0..calls {
            let id = service.create("priced", json!({})).await;
            assert_eq!(service.ended(&id).await["status"], "success");
        }
    }
}

#[tokio::test]
async fn balance_is_per_organization_in_dollars() {
    let service = Service::start().await;
    let billing = &service.running.services.billing;
    service.get("/v1/billing/balance").await.expect_text(200, r#"{"balance_usd":0.0}"#);
    billing.top_up(service.organization.id, Usd::from_micros(53_475_000)).await.unwrap();
    service.get("/v1/billing/balance").await.expect_text(200, r#"{"balance_usd":53.475}"#);
    let other = service.ask(Role::Base, Method::GET, "/v1/billing/balance");
    other.key(&service.other_key).send().await.expect_text(200, r#"{"balance_usd":0.0}"#);
}

#[tokio::test]
async fn balance_requests_over_three_a_second_get_429() {
    let service = Service::start().await;
    let many = std::iter::repeat_with(|| service.get("/v1/billing/balance")).take(30);
    let answers = futures_util::future::join_all(many).await;
    let passed = answers.iter().filter(|answer| answer.status == 200).count();
    assert!((3..30).contains(&passed), "{passed} passed");
    for refused in answers.iter().filter(|answer| answer.status != 200) {
        refused.expect_error(429, "too many requests");
        assert_eq!(refused.header("retry-after"), "1");
    }
    let other = service.ask(Role::Base, Method::GET, "/v1/billing/balance");
    other.key(&service.other_key).send().await.expect(200);
    // The rate limit lets members read the balance as often as dashboard pages show it.
    let owner = service.owner().await;
    for _ in 0..10 {
        let ask = service.asks(&owner, Method::GET, "/api/base/v1/billing/balance");
        ask.send().await.expect(200);
    }
}

#[tokio::test]
async fn balance_when_disabled_returns_503() {
    let service = Service::configured("billing.enabled = false\n").await;
    let answer = service.get("/v1/billing/balance").await;
    answer.expect_error(503, "service unavailable");
}
