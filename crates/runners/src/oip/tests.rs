//! Tests the runner with a stub server. Integration tests use a real server.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::*;
use crate::RecordingProgress;
use crate::stand_in::server;
use orrery_domain::money::Usd;

fn of(urls: &[&str]) -> OipRunner {
    let servers_of = Servers::of(urls);
    let model = Model::of_test("m", Duration::from_secs(20));
    let servers = model.servers(&servers_of, true, true, None, &Dependencies::none());
    let options = Arc::new(Options { servers: servers_of, path: "/v2/models/a%2Fb".to_owned() });
    OipRunner { options, model, client: Client::trusted(), servers, known: Mutex::default() }
}

async fn run(runner: &OipRunner, input: Value) -> Result<Success, super::super::Error> {
    runner.run(Arc::<RecordingProgress>::default().job(input)).await
}

fn metadata() -> String {
    json!({"name": "a/b", "inputs": [{"name": "x", "datatype": "INT8", "shape": [-1]}]}).to_string()
}

const GET: &str = "GET /v2/models/a%2Fb HTTP/1.1";
const READY: &str = "GET /v2/models/a%2Fb/ready HTTP/1.1";
const INFER: &str = "POST /v2/models/a%2Fb/infer HTTP/1.1";

#[tokio::test]
async fn oip_maps_responses_to_error_classes() {
    let (url, _) = server(|line, body, number| {
        let own = |text: &str| text.to_owned();
        match (line, number) {
            (GET, 0) => (200, metadata()),
            (INFER, 1) => {
                let sent: Value = serde_json::from_str(body).unwrap();
                let data = json!([{"name": "x", "shape": [2], "datatype": "INT8", "data": [1, 2]}]);
                assert_eq!(sent, json!({"id": "e:s:1", "inputs": data}));
                let output =
                    json!({"name": "y", "shape": [1, 2], "datatype": "INT8", "data": [3, 4]});
                (200, json!({"outputs": [output], "metrics": {"cost": 0.5}}).to_string())
            }
            (INFER, 2) => (400, own(r#"{"error":"too short"}"#)),
            (INFER, 3) => (422, own(r#"{"detail":"no"}"#)),
            (INFER, 4) => (500, own("oh")),
            (INFER, 5) => (503, own("{}")),
            (INFER, 6) => (429, own("{}")),
            (INFER, 7) => (200, own("<html>")),
            (INFER, 8) => (200, own("{}")),
            other => panic!("{other:?}"),
        }
    })
    .await;
    let runner = of(&[&url]);
    let input = || json!({"x": [1, 2.0]});
    let done = run(&runner, input()).await.unwrap();
    assert_eq!(done.output, json!({"y": [[3, 4]]}));
    assert_eq!(done.usage.cost, Some(Usd::from_micros(500_000)));
    for (class, says) in [
        (ErrorClass::InvalidUserInput, "it answered 400: too short"),
        (ErrorClass::InvalidUserInput, "it answered 422: {\"detail\":\"no\"}"),
        (ErrorClass::ProviderError, "it answered 500: oh"),
        (ErrorClass::ProviderUnavailable, "it answered 503: {}"),
        (ErrorClass::ProviderRateLimit, "it answered 429: {}"),
        (ErrorClass::ProviderError, "gave an answer that is not valid JSON: <html>"),
        (ErrorClass::ProviderError, "its answer has no outputs"),
    ] {
        let failure = run(&runner, input()).await.unwrap_err().failure;
        assert_eq!(failure.class, class, "{failure:?}");
        let said = failure.message;
        assert!(said.starts_with("the model 'm': ") && said.contains(says), "{said}");
    }
    let failure = run(&runner, json!({"y": 1})).await.unwrap_err().failure;
    assert_eq!(failure.class, ErrorClass::InvalidUserInput, "{failure:?}");
}

#[tokio::test]
async fn oip_oversized_answer_is_rejected() {
    let (url, _) = server(|line, _, _| match line {
        GET => (200, metadata()),
        _ => (200, " ".repeat(ANSWER_MAX + 1)),
    })
    .await;
    let failure = run(&of(&[&url]), json!({"x": 1})).await.unwrap_err().failure;
    assert_eq!(failure.class, ErrorClass::ProviderError);
    assert!(failure.message.contains("the answer is larger than 10485760 bytes"), "{failure:?}");
}

#[tokio::test]
async fn oip_health_and_schema_are_refreshed() {
    let (url, _) = server(|line, _, number| match (line, number) {
        (READY, 0) => (404, r#"{"error":"Model a/b not found"}"#.to_owned()),
        (READY, _) => (200, String::new()),
        (GET, _) => (200, metadata()),
        other => panic!("{other:?}"),
    })
    .await;
    let runner = of(&[&url]);
    assert_eq!((runner.health(), runner.interface().is_none()), (Health::Starting, true));
    runner.maintain().await;
    let Health::Failing(reason) = runner.health() else { panic!("it is not ready") };
    assert_eq!(reason, "its server reports that it is not ready (404)");
    runner.servers.probe_now(&url, |url| runner.probe(url)).await;
    runner.maintain().await;
    assert_eq!(runner.health(), Health::Good);
    let interface = runner.interface().unwrap();
    assert!(interface.schema.check(json!({"x": [127]})).is_ok());
    assert!(interface.schema.check(json!({"x": [128]})).is_err());
    runner.describe(&url).await;
    assert!(Arc::ptr_eq(&interface, &runner.interface().unwrap()), "the metadata is unchanged");
}

#[tokio::test]
async fn oip_without_metadata_accepts_only_native_form() {
    let (url, _) = server(|line, _, _| match line {
        GET => (404, r#"{"error":"none"}"#.to_owned()),
        _ => (200, r#"{"outputs":[]}"#.to_owned()),
    })
    .await;
    let own = json!({"inputs": [{"name": "x", "shape": [1], "datatype": "INT8", "data": [1]}]});
    assert_eq!(run(&of(&[&url]), own).await.unwrap().output, json!({}));
    let failure = run(&of(&[&url]), json!({"x": 1})).await.unwrap_err().failure;
    let says = "the model 'm': its metadata is not available: the server answered 404";
    assert_eq!((failure.class, &*failure.message), (ErrorClass::InvalidUserInput, says));
    let failure = run(&of(&["http://127.0.0.1:1"]), json!({"x": 1})).await.unwrap_err().failure;
    assert_eq!(failure.class, ErrorClass::ProviderUnavailable);
}

#[tokio::test]
async fn oip_removes_dead_endpoint_from_rotation() {
    let (url, count) = server(|line, _, _| match line {
        GET => (200, metadata()),
        _ => (200, r#"{"outputs":[]}"#.to_owned()),
    })
    .await;
    let runner = of(&["http://127.0.0.1:1", &url]);
    run(&runner, json!({"x": 1})).await.unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 2, "requests for the metadata and the run");
    runner.maintain().await;
    for _ in 0..8 {
        run(&runner, json!({"x": 1})).await.unwrap();
    }
    assert_eq!(count.load(Ordering::SeqCst), 12, "a probe, the metadata, and the runs");
    let states = runner.endpoints();
    assert_eq!((states[0].word(), states[1].word()), ("left out", "used"));
}
