//! Tests of both transports against a scripted service.

use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::service::service_fn;
use serde_json::json;

use super::*;
use orrery_runtime::Tasks;

type Seen = Arc<Mutex<Vec<(Method, String, Value)>>>;

fn config(folder: &Path) -> Config {
    Config { data_dir: folder.to_path_buf(), ..Config::defaults() }
}

async fn no_store(_config: Config) -> anyhow::Result<InProcess> {
    bail!("the store is not to be opened")
}

/// Starts a service on a control socket that records each request and responds with `status` and
/// `answer`.
fn service(folder: &Path, status: StatusCode, answer: &'static str) -> (Seen, Tasks) {
    let seen = Seen::default();
    let tasks = Tasks::new();
    std::fs::write(folder.join(TOKEN), "t0ken").unwrap();
    let listener = tokio::net::UnixListener::bind(folder.join(SOCKET)).unwrap();
    let noted = Arc::clone(&seen);
    let token = tasks.token();
    tasks.spawn(async move {
        while let Some(Ok((stream, _))) = token.run_until_cancelled(listener.accept()).await {
            let noted = Arc::clone(&noted);
            let respond = service_fn(move |request: Request<hyper::body::Incoming>| {
                let noted = Arc::clone(&noted);
                async move {
                    let (head, body) = request.into_parts();
                    assert_eq!(head.headers[AUTHORIZATION], "Bearer t0ken");
                    let bytes = body.collect().await?.to_bytes();
                    let value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                    noted.lock().unwrap().push((head.method, head.uri.to_string(), value));
                    let mut reply =
                        hyper::Response::new(Full::new(Bytes::from_static(answer.as_bytes())));
                    *reply.status_mut() = status;
                    Ok::<_, hyper::Error>(reply)
                }
            });
            // Ignore errors: a client that only checks for a listener closes its connection
            // immediately.
            let _ended = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), respond)
                .await;
        }
    });
    (seen, tasks)
}

#[tokio::test]
async fn admin_uses_control_socket_of_running_service() {
    let folder = tempfile::tempdir().unwrap();
    let (seen, tasks) = service(folder.path(), StatusCode::CREATED, r#"{"id":"1"}"#);
    let admin = Admin::open(&config(folder.path()), no_store).await.unwrap();
    let answer = admin.post("/admin/keys", &json!({"name": "n"})).await.unwrap();
    assert_eq!(answer, json!({"id": "1"}));
    admin.get("/admin/keys?organization=o").await.unwrap();
    assert_eq!(
        *seen.lock().unwrap(),
        [
            (Method::POST, "/admin/keys".to_owned(), json!({"name": "n"})),
            (Method::GET, "/admin/keys?organization=o".to_owned(), Value::Null),
        ]
    );
    tasks.stop();
}

#[tokio::test]
async fn admin_opens_store_in_process_without_running_service() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("store")).unwrap();
    // A socket that a killed service left behind does not count as a running service.
    drop(std::os::unix::net::UnixListener::bind(folder.path().join(SOCKET)).unwrap());
    let offline = |_config| async {
        let answer: InProcess = Box::new(|request| {
            Box::pin(async move {
                let path = request.uri().path().to_owned();
                orrery_http::response::json(StatusCode::OK, &json!({"path": path}))
            })
        });
        Ok(answer)
    };
    let admin = Admin::open(&config(folder.path()), offline).await.unwrap();
    assert_eq!(admin.get("/admin/models").await.unwrap(), json!({"path": "/admin/models"}));
    let error = Admin::open(&config(folder.path()), no_store).await.err().unwrap();
    assert!(super::super::output::chain(&error).contains("is not to be opened"));
    std::fs::remove_dir(folder.path().join("store")).unwrap();
    let error = Admin::open(&config(folder.path()), no_store).await.err().unwrap();
    assert!(error.to_string().contains("`orrery serve` creates it"), "{error}");
}

#[tokio::test]
async fn admin_error_shows_message_of_service() {
    for (status, answer, message) in [
        (StatusCode::NOT_FOUND, r#"{"error":"organization not found"}"#, "organization not found"),
        (StatusCode::INTERNAL_SERVER_ERROR, "", "the service answered 500 Internal Server Error"),
        (StatusCode::OK, "<html>", "answered 200 OK with something other than JSON"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (_seen, tasks) = service(folder.path(), status, answer);
        let admin = Admin::open(&config(folder.path()), no_store).await.unwrap();
        let error = admin.get("/admin/organizations").await.unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        tasks.stop();
    }
}

#[tokio::test]
async fn admin_delete_accepts_empty_response() {
    let folder = tempfile::tempdir().unwrap();
    let (seen, tasks) = service(folder.path(), StatusCode::NO_CONTENT, "");
    let admin = Admin::open(&config(folder.path()), no_store).await.unwrap();
    admin.delete("/admin/keys/17").await.unwrap();
    assert_eq!(seen.lock().unwrap()[0].0, Method::DELETE);
    tasks.stop();
}
