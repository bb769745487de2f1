//! `POST /v1/prediction/run`: each outcome, and the response if the prediction takes too long.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Provider, Service};

const RUN: &str = "/v1/prediction/run";

fn request(model: &str) -> Value {
    json!({"model": model, "version": "0.0.1", "input": {"n": 1}})
}

#[tokio::test]
async fn run_returns_output_on_success() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("echo", "/echo", ""));
    for path in [RUN, "/v1/prediction/run/"] {
        let body = service.post(path, &request("echo")).send().await.expect(200);
        let id = body["predictionID"].as_str().unwrap();
        let expected = json!({
            "status": "success",
            "message": "Prediction completed successfully",
            "predictionID": id,
            "output": {"n": 1},
            "error": "",
        });
        assert_eq!(body, expected);
        assert_eq!(service.ended(id).await["status"], "success");
    }
}

#[tokio::test]
async fn run_failure_returns_200_with_failed_status() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("broken", "/status/500", ""));
    let body = service.post(RUN, &request("broken")).send().await.expect(200);
    let expected = json!({
        "status": "failed",
        "message": "Prediction failed",
        "predictionID": body["predictionID"],
        "output": null,
        "error": "the model 'broken' answered 500: this is 500",
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn run_returns_when_cancelled() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let cancel = async {
        provider.arrived(1).await;
        service.cancel(&provider.newest_prediction()).await.expect(200)
    };
    let (ran, cancelled) = tokio::join!(service.post(RUN, &request("held")).send(), cancel);
    let expected = json!({
        "status": "cancelled",
        "message": "Prediction was cancelled",
        "predictionID": cancelled["predictionID"],
        "output": null,
        "error": "",
    });
    assert_eq!(ran.expect(200), expected);
}

#[tokio::test]
async fn run_past_sync_wait_returns_202_and_continues() {
    let short = Duration::from_millis(50);
    let service = Service::adjusted("", |config| config.limits.sync_wait = short).await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let body = service.post(RUN, &request("held")).send().await.expect(202);
    let id = body["predictionID"].as_str().unwrap();
    let expected = json!({
        "status": "success",
        "message": "Prediction created successfully",
        "predictionID": id,
    });
    assert_eq!(body, expected);
    provider.arrived(1).await;
    provider.release(1);
    assert_eq!(service.ended(id).await["output"], json!({"held": true}));
}
