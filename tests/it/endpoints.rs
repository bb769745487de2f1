//! Models with several endpoints: load balancing, failover and reloads. Also retries of
//! predictions.

use std::net::TcpListener;

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Provider, Receiver, Service, lane_is_free, until};

/// Returns a URL on which nothing listens.
fn nowhere() -> String {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    format!("http://{address}")
}

fn manifest(slug: &str, top: &str, runner: &str) -> String {
    format!("slug = '{slug}'\noutput_type = 'object'\n{top}\n[runner]\n{runner}\n")
}

fn http(urls: &str) -> String {
    format!("type = 'http'\noutput = '/output'\nurls = [{urls}]")
}

async fn metrics(service: &Service) -> String {
    service.ask(Role::Metrics, Method::GET, "/metrics").send().await.text
}

#[tokio::test]
async fn predictions_fail_over_from_dead_endpoint() {
    let service = Service::start().await;
    let (one, two) = (Provider::start().await, Provider::start().await);
    let urls = format!("'{}/echo', '{}', '{}'", nowhere(), one.url("/echo"), two.url("/echo"));
    service.manifest(&manifest("m", "concurrency = 4", &http(&urls)));
    let mut ids = Vec::new();
    for n in 0..40 {
        ids.push(service.create("m", json!({"n": n})).await);
    }
    for (n, id) in ids.iter().enumerate() {
        let done = service.ended(id).await;
        assert_eq!((&done["status"], &done["output"]["n"]), (&json!("success"), &json!(n)));
        assert_eq!(done["attempts"].as_array().unwrap().len(), 1, "{done}");
    }
    let shares = [one.requests().len(), two.requests().len()];
    assert_eq!(shares.iter().sum::<usize>(), 40);
    assert!(shares.iter().all(|share| *share >= 10), "{shares:?}");
    let text = metrics(&service).await;
    for line in [
        format!("orrery_endpoint_used{{model=\"m\",endpoint=\"{}/echo\"}} 1", one.authority()),
        "orrery_endpoint_requests_total{model=\"m\",endpoint=".to_owned(),
        "outcome=\"missed\"} 3".to_owned(),
    ] {
        assert!(text.contains(&line), "{line}: {text}");
    }
    let health = service.running.services.catalog.get("m").unwrap().runner.health();
    assert_eq!(health, orrery_runners::Health::Good);
}

#[tokio::test]
async fn chat_fails_over_from_dead_endpoint() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let urls = format!("urls = ['{}', '{}']", nowhere(), provider.url("/do"));
    let runner = format!("type = 'openai'\nkind = 'chat'\nmodel = 'm'\n{urls}");
    service.manifest(&manifest("talk", "", &runner));
    let body = json!({"model": "talk", "messages": [{"role": "user", "content": "good"}]});
    for _ in 0..4 {
        let answer = service.post("/v1/chat/completions", &body).send().await.expect(200);
        assert_eq!(answer["choices"][0]["message"]["content"], "said");
    }
    // Predictions and the router share the count of failures.
    let states = || service.running.services.catalog.get("talk").unwrap().runner.endpoints();
    until("ejection", async || {
        let id = service.create("talk", json!({"prompt": "good"})).await;
        assert_eq!(service.ended(&id).await["output"], "said");
        (!states()[0].is_used()).then_some(())
    })
    .await;
    assert_eq!((states()[1].word(), states()[1].in_flight), ("used", 0));
}

#[tokio::test]
async fn reload_lets_removed_endpoint_finish_its_requests() {
    let service = Service::start().await;
    let (old, new) = (Provider::start().await, Provider::start().await);
    service.manifest(&manifest("m", "", &http(&format!("'{}'", old.url("/hold")))));
    let held = service.create("m", json!({})).await;
    old.arrived(1).await;
    service.manifest(&manifest("m", "", &http(&format!("'{}'", new.url("/echo")))));
    let next = service.create("m", json!({"n": 1})).await;
    assert_eq!(service.ended(&next).await["output"], json!({"n": 1}));
    old.release(1);
    assert_eq!(service.ended(&held).await["output"], json!({"held": true}));
}

#[tokio::test]
async fn endpoint_concurrency_is_enforced() {
    let service = Service::start().await;
    let (one, two) = (Provider::start().await, Provider::start().await);
    let limited = |provider: &Provider, most: usize| {
        format!("{{url = '{}', concurrency = {most}}}", provider.url("/hold"))
    };
    let urls = format!("{}, {}", limited(&one, 1), limited(&two, 2));
    service.manifest(&manifest("m", "", &http(&urls)));
    let listed = service.running.services.catalog.get("m").unwrap();
    assert_eq!(listed.concurrency, 3, "what its servers may have");
    // There are more runs than the endpoints allow, so the others wait for an endpoint.
    service.manifest(&manifest("m", "concurrency = 8", &http(&urls)));
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(service.create("m", json!({})).await);
    }
    one.arrived(1).await;
    two.arrived(2).await;
    let listed = service.running.services.catalog.get("m").unwrap();
    let in_flight: Vec<usize> =
        listed.runner.endpoints().iter().map(|endpoint| endpoint.in_flight).collect();
    assert_eq!(in_flight, [1, 2]);
    one.release(6);
    two.release(6);
    for id in &ids {
        assert_eq!(service.ended(id).await["status"], "success");
    }
}

#[tokio::test]
async fn prediction_is_retried_as_configured_by_manifest() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    let retry = "[retry]\nmax_attempts = 3\ninitial_delay_seconds = 0.01\n";
    let cost = "[cost]\ntype = 'fixed'\namount = 0.25\n";
    let runner = format!("type = 'http'\nurl = '{}'", provider.url("/billed/500"));
    service.manifest(&manifest("m", &format!("{retry}{cost}"), &runner));
    let id = service.create_with("m", json!({"webhook_url": receiver.url()})).await;
    let failed = service.ended(&id).await;
    let attempts: Vec<(&Value, &Value)> = failed["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| (&attempt["model"], &attempt["status"]))
        .collect();
    assert_eq!(attempts, [(&json!("m"), &json!("error")); 3], "{failed}");
    assert_eq!(failed["metrics"]["cost"], 0.75, "what its attempts have reported");
    assert_eq!(service.ledger().await.len(), 1, "in one charge");
    assert_eq!(receiver.next().await.json()["status"], "failed");
    assert!(receiver.is_empty());
    let keys: Vec<String> = provider
        .requests()
        .iter()
        .map(|one| one.headers()["idempotency-key"].to_str().unwrap().to_owned())
        .collect();
    assert_eq!(keys, [1, 2, 3].map(|number| format!("{id}:prediction:{number}")));
    // A permanent error is not retried.
    let runner = format!("type = 'http'\nurl = '{}'", provider.url("/status/400"));
    service.manifest(&manifest("once", retry, &runner));
    let refused = service.ended(&service.create("once", json!({})).await).await;
    assert_eq!(refused["attempts"].as_array().unwrap().len(), 1, "{refused}");
}

#[tokio::test]
async fn prediction_waiting_for_retry_survives_restart() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let retry = "[retry]\nmax_attempts = 2\ninitial_delay_seconds = 3600\n";
    let top = format!("{retry}[cost]\ntype = 'fixed'\namount = 0.25\n");
    let runner = format!("type = 'http'\nurl = '{}'", provider.url("/status/503"));
    service.manifest(&manifest("m", &top, &runner));
    let id = service.create("m", json!({})).await;
    let path = format!("/v1/prediction/{id}");
    let waits = async |service: &Service| {
        until("wait", async || {
            let shown = service.get(&path).await.expect(200);
            let logs = shown["logs"].as_str().unwrap_or_default().to_owned();
            logs.contains("waiting for attempt 2")
                .then(|| assert_eq!(shown["status"], "processing"))
        })
        .await;
    };
    waits(&service).await;
    lane_is_free(&service, "m").await;
    let service = service.restart().await;
    waits(&service).await;
    assert_eq!(provider.requests().len(), 1);
    service.cancel(&id).await.expect(200);
    let cancelled = service.ended(&id).await;
    assert_eq!((&cancelled["status"], service.ledger().await.len()), (&json!("cancelled"), 0));
}
