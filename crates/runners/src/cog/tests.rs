//! Tests the runner with a stub container. Integration tests use a real container.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{RecordingProgress, stand_in};
use orrery_domain::money::Usd;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// Starts a stub that responds to each request according to its first line, and counts the
/// requests.
async fn container(answer: fn(&str, usize) -> (u16, String)) -> (CogRunner, Arc<AtomicUsize>) {
    let (url, count) = stand_in::server(move |line, _body, number| answer(line, number)).await;
    (of(url, Tasks::new()), count)
}

fn of(url: String, tasks: Tasks) -> CogRunner {
    let model = Model::of_test("m", Duration::from_secs(20));
    let servers = model.servers(&Servers::of(&[&url]), true, true, None, &Dependencies::none());
    CogRunner::new(model, Client::trusted(), tasks, servers)
}

async fn run(runner: &CogRunner) -> Result<Success, super::super::Error> {
    runner.run(Arc::<RecordingProgress>::default().job(json!({"text": "x"}))).await
}

#[tokio::test]
async fn cog_maps_responses_to_error_classes() {
    let (runner, _) = container(|line, number| {
        assert_eq!(line, "PUT /predictions/e-s-1 HTTP/1.1");
        let body = |text: &str| text.to_owned();
        match number {
            0 => (200, body(r#"{"status":"succeeded","output":"y","metrics":{"predict_time":1.5,"cost":0.5}}"#)),
            1 => (200, body(r#"{"status":"failed","error":"too dark"}"#)),
            2 => (200, body(r#"{"status":"canceled"}"#)),
            3 => (422, body(r#"{"detail":"no"}"#)),
            4 => (500, body("oh")),
            5 => (200, body("{")),
            _ => (200, body("{}")),
        }
    })
    .await;
    let done = run(&runner).await.unwrap();
    assert_eq!((done.output, done.usage.cost), (json!("y"), Some(Usd::from_micros(500_000))));
    assert_eq!(done.usage.run_time, Duration::from_millis(1500));
    for (class, says) in [
        (ErrorClass::ProviderError, "it failed: too dark"),
        (ErrorClass::ProviderError, "was cancelled by something other than this service"),
        (ErrorClass::InvalidUserInput, "it answered 422: {\"detail\":\"no\"}"),
        (ErrorClass::ProviderError, "it answered 500: oh"),
        (ErrorClass::ProviderError, "gave an answer that is not valid JSON"),
        (ErrorClass::ProviderError, "without a known status"),
    ] {
        let failure = run(&runner).await.unwrap_err().failure;
        assert_eq!(failure.class, class, "{failure:?}");
        assert!(
            failure.message.starts_with("the model 'm': ") && failure.message.contains(says),
            "{failure:?}"
        );
    }
}

#[tokio::test]
async fn cog_run_waits_for_busy_or_starting_but_not_failed_container() {
    let (runner, asked) = container(|line, number| {
        let starting = r#"{"status":"STARTING"}"#.to_owned();
        match (line.starts_with("GET /health-check"), number) {
            (true, _) => (200, starting),
            (false, 0) => (409, "{}".to_owned()),
            (false, 1) => (503, "{}".to_owned()),
            (false, 3) => (202, r#"{"status":"processing"}"#.to_owned()),
            _ => (200, r#"{"status":"succeeded","output":1}"#.to_owned()),
        }
    })
    .await;
    assert_eq!(run(&runner).await.unwrap().output, 1);
    assert_eq!(asked.load(Ordering::SeqCst), 5);
    let (runner, _) = container(|line, _| match line.starts_with("GET") {
        true => (200, r#"{"status":"SETUP_FAILED"}"#.to_owned()),
        false => (503, "{}".to_owned()),
    })
    .await;
    assert_eq!(run(&runner).await.unwrap_err().failure.class, ErrorClass::ProviderUnavailable);
    assert_eq!(
        runner.health(),
        Health::Failing("its setup failed: the container's log says why".to_owned())
    );
}

#[tokio::test]
async fn cog_health_and_schema_are_refreshed() {
    let (runner, _) = container(|line, number| match (line, number) {
        ("GET /health-check HTTP/1.1", 0) => (200, r#"{"status":"STARTING"}"#.to_owned()),
        ("GET /health-check HTTP/1.1", _) => (200, r#"{"status":"READY"}"#.to_owned()),
        ("GET /openapi.json HTTP/1.1", _) => {
            let schemas = r#"{"Input":{"type":"object"},"Output":{"type":"string"}}"#;
            (200, format!(r#"{{"components":{{"schemas":{schemas}}}}}"#))
        }
        other => panic!("{other:?}"),
    })
    .await;
    assert_eq!((runner.health(), runner.interface().is_none()), (Health::Starting, true));
    runner.maintain().await;
    assert_eq!((runner.health(), runner.interface().is_none()), (Health::Starting, true));
    runner.maintain().await;
    assert_eq!(runner.health(), Health::Good);
    let interface = runner.interface().unwrap();
    runner.maintain().await;
    runner.read_face(&runner.servers.usable().unwrap()).await;
    assert!(
        Arc::ptr_eq(&interface, &runner.interface().unwrap()),
        "the interface changes only with the document"
    );
    let gone = of("http://127.0.0.1:1".to_owned(), Tasks::new());
    gone.maintain().await;
    assert!(
        matches!(gone.health(), Health::Failing(reason) if reason.starts_with("its container does not answer"))
    );
}

#[tokio::test]
async fn cog_dropped_run_is_cancelled_in_container() {
    let (cancelled, was_cancelled) = tokio::sync::oneshot::channel::<()>();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let tasks = Tasks::new();
    let (asked, begun) = tokio::sync::oneshot::channel::<()>();
    tasks.spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        let _head = first.read(&mut buffer).await.unwrap();
        asked.send(()).unwrap();
        let (mut second, _) = listener.accept().await.unwrap();
        let count = second.read(&mut buffer).await.unwrap();
        assert!(buffer[..count].starts_with(b"POST /predictions/e-s-1/cancel HTTP/1.1"));
        cancelled.send(()).unwrap();
    });
    let runner = of(url, tasks);
    tokio::select! {
        _ = run(&runner) => panic!("it never answers"),
        _ = begun => {}
    }
    was_cancelled.await.unwrap();
}
