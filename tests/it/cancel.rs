//! Cancellation: running work is stopped, queued work never starts, completed work stays unchanged.

use serde_json::{Value, json};

use crate::support::{Provider, Receiver, Service, lane_is_free};

fn cancelled(id: &str) -> Value {
    json!({
        "status": "cancelled",
        "message": "Prediction canceled successfully",
        "predictionID": id,
    })
}

#[tokio::test]
async fn cancel_stops_running_prediction_and_frees_its_slot() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    let priced = "concurrency = 1\n[cost]\ntype = 'fixed'\namount = 0.5\n";
    service.manifest(&provider.manifest("held", "/hold", priced));
    let hook = json!({"webhook_url": receiver.url()});
    let id = service.create_with("held", hook.clone()).await;
    provider.arrived(1).await;
    let behind = service.create_with("held", hook).await;
    assert_eq!(service.cancel(&id).await.expect(200), cancelled(&id));
    provider.hung_up(1).await;
    let prediction = service.ended(&id).await;
    assert_eq!(prediction["status"], "cancelled");
    assert_eq!((&prediction["error"], &prediction["output"]), (&Value::Null, &Value::Null));
    assert_eq!(prediction["metrics"]["cost"], 0.0);
    assert_eq!(prediction["attempts"][0]["status"], "cancelled");

    provider.arrived(2).await;
    provider.release(1);
    assert_eq!(service.ended(&behind).await["status"], "success");
    assert_eq!(service.ledger().await.len(), 1, "only the success costs");
    let hook = receiver.next().await.json();
    assert_eq!(hook["execution_id"], behind, "a cancel sends no webhook");
    assert!(receiver.is_empty());
    // A late response to the dropped request has no effect.
    provider.release(1);
    assert_eq!(service.cancel(&id).await.expect(200), cancelled(&id));
    assert_eq!(service.ended(&id).await["status"], "cancelled");
}

#[tokio::test]
async fn cancel_of_queued_prediction_prevents_its_start() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1"));
    let first = service.create("held", json!({"n": 1})).await;
    provider.arrived(1).await;
    let second = service.create("held", json!({"n": 2})).await;
    let third = service.create("held", json!({"n": 3})).await;
    assert_eq!(service.cancel(&second).await.expect(200), cancelled(&second));
    let prediction = service.ended(&second).await;
    assert_eq!((&prediction["status"], &prediction["attempts"]), (&json!("cancelled"), &json!([])));
    provider.release(2);
    for id in [&first, &third] {
        assert_eq!(service.ended(id).await["status"], "success");
    }
    let asked: Vec<Value> = provider
        .requests()
        .iter()
        .map(|request| serde_json::from_slice::<Value>(request.body()).unwrap()["n"].clone())
        .collect();
    assert_eq!(asked, [1, 3]);
}

#[tokio::test]
async fn cancel_after_completion_returns_409() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("broken", "/status/500", ""));
    service.manifest(&provider.manifest("echo", "/echo", ""));
    for (model, status) in [("echo", "success"), ("broken", "error")] {
        let id = service.create(model, json!({})).await;
        service.ended(&id).await;
        let refused = service.cancel(&id).await;
        let message = format!("Prediction has already ended with status {status}");
        refused.expect_error(409, &message);
        assert_eq!(service.ended(&id).await["status"], status);
    }
}

#[tokio::test]
async fn cancel_repeated_concurrently_returns_equal_responses() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let id = service.create("held", json!({})).await;
    let many = std::iter::repeat_with(|| service.cancel(&id)).take(16);
    for answer in futures_util::future::join_all(many).await {
        assert_eq!(answer.expect(200), cancelled(&id));
    }
    assert_eq!(service.ended(&id).await["status"], "cancelled");
    lane_is_free(&service, "held").await;
}
