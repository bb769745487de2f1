//! Files: the service stores bytes from a model's output and issues a URL for the stored file.
//! Anyone with the URL can safely read the file, completely or in part.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Answer, Provider, Service};

const GIF: &str = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw==";

/// Returns the model's output for the input.
async fn output(service: &Service, model: &str, input: Value) -> Value {
    let id = service.create(model, input).await;
    let prediction = service.ended(&id).await;
    assert_eq!(prediction["status"], "success", "{prediction}");
    prediction["output"].clone()
}

/// Sends a GET to a URL issued by the service, without a key.
async fn fetch(service: &Service, url: &Value, headers: &[(&str, &str)]) -> Answer {
    let path = url.as_str().unwrap().split_once("/v1").unwrap().1;
    let ask = service.ask(Role::Base, Method::GET, &format!("/v1{path}"));
    headers.iter().fold(ask, |ask, (name, value)| ask.header(name, value)).send().await
}

#[tokio::test]
async fn file_of_output_bytes_is_served_at_its_url() {
    let service = Service::start().await;
    let url = output(&service, "image-qr", json!({"text": "hi", "format": "svg"})).await;
    let base = format!("{}/v1/files/", service.url(Role::Base));
    assert!(url.as_str().unwrap().starts_with(&base), "{url}");
    let whole = fetch(&service, &url, &[]).await;
    assert_eq!((whole.status, whole.header("content-type")), (200, "image/svg+xml"));
    assert!(whole.text.contains("<svg"), "{}", whole.text);
    assert_eq!(whole.header("content-length"), whole.text.len().to_string());
    assert_eq!(whole.header("x-content-type-options"), "nosniff");
    assert!(whole.header("content-security-policy").starts_with("sandbox;"));
    assert_eq!(whole.header("cross-origin-resource-policy"), "cross-origin", "a link is for pages");
    assert_eq!(whole.header("referrer-policy"), "no-referrer");
    assert_eq!(whole.header("cache-control"), "private, no-cache");
    assert_eq!(whole.header("content-disposition"), "attachment", "an SVG may hold a script");

    let etag = whole.header("etag").to_owned();
    let part = fetch(&service, &url, &[("range", "bytes=2-5")]).await;
    assert_eq!((part.status, part.text.as_str()), (206, &whole.text[2..6]));
    let size = whole.text.len();
    assert_eq!(part.header("content-range"), format!("bytes 2-5/{size}"));
    let ranged = [("range", "bytes=2-5"), ("if-range", "\"other\"")];
    assert_eq!(fetch(&service, &url, &ranged).await.status, 200);
    let weak = format!("W/{etag}");
    let both = format!("\"other\", {etag}");
    for (tag, status) in [(&*etag, 206), (&*weak, 200), (&*both, 200), ("*", 200)] {
        let ranged = [("range", "bytes=2-5"), ("if-range", tag)];
        assert_eq!(fetch(&service, &url, &ranged).await.status, status, "{tag}");
    }
    for (tag, status) in [(&*etag, 200), (&*both, 200), ("*", 200), (&*weak, 412), ("\"x\"", 412)] {
        assert_eq!(fetch(&service, &url, &[("if-match", tag)]).await.status, status, "{tag}");
    }
    let signed = fetch(&service, &url, &[("range", "bytes=+1-+3")]).await;
    assert_eq!(signed.status, 200);
    let beyond = fetch(&service, &url, &[("range", &format!("bytes={size}-"))]).await;
    assert_eq!((beyond.status, beyond.header("content-range")), (416, &*format!("bytes */{size}")));
    for (range, status) in [("bytes=2-5", 200), ("bytes=-3", 200), ("bytes=9999999999-", 200)] {
        let path = url.as_str().unwrap().split_once("/v1").unwrap().1;
        let ask = service.ask(Role::Base, Method::HEAD, &format!("/v1{path}"));
        let head = ask.header("range", range).send().await;
        assert_eq!((head.status, head.header("content-length")), (status, &*size.to_string()));
    }
    let known = fetch(&service, &url, &[("if-none-match", &etag)]).await;
    assert_eq!((known.status, known.text.as_str()), (304, ""));

    // The result is the same after a restart, and identical content is stored once.
    let again = output(&service, "image-qr", json!({"text": "hi", "format": "svg"})).await;
    assert_ne!(url, again);
    let service = service.restart().await;
    assert_eq!(fetch(&service, &url, &[("x-other", "1")]).await.status, 200);
}

#[tokio::test]
async fn file_url_of_output_follows_public_url() {
    let mut service = Service::start().await;
    let prediction = service.create("image-qr", json!({"text": "hi", "format": "svg"})).await;
    let before = service.ended(&prediction).await["output"].clone();
    let workflow = service
        .workflow(json!([
            {"step_id": "qr", "type": "model", "model": "image-qr", "params": {"text": "x"}},
            {"step_id": "shown", "type": "pass", "result": {"see": "at {{qr.output}}"}},
        ]))
        .await;
    let execution = service.trigger(&workflow, json!({})).await;
    let shown = service.completed(&execution).await["output"]["see"].clone();
    let old = format!("{}/", service.url(Role::Base));
    assert!(shown.as_str().unwrap().starts_with(&format!("at {old}v1/files/")), "{shown}");

    service.config.hosts.base.public_url = "https://box.example".to_owned();
    let service = service.restart().await;
    let moved = |url: &Value| json!(url.as_str().unwrap().replace(&old, "https://box.example/"));
    let after = service.ended(&prediction).await["output"].clone();
    assert_eq!(after, moved(&before));
    assert_eq!(fetch(&service, &after, &[]).await.status, 200);
    let history = service.get("/v2/executions?type=prediction&model=image-qr").await.expect(200);
    let listed = history["executions"].as_array().unwrap();
    let text = after.to_string();
    assert!(listed.iter().any(|one| one["output"] == text), "{history}");
    let detail = service.completed(&execution).await;
    assert_eq!(detail["output"]["see"], moved(&shown));
    let step = detail["step_outputs"].to_string();
    assert!(step.contains("\"https://box.example/v1/files/") && !step.contains(&old), "{step}");
}

#[tokio::test]
async fn file_is_readable_only_by_its_organization_or_link() {
    let service = Service::start().await;
    let url = output(&service, "image-qr", json!({"text": "hi", "format": "svg"})).await;
    let path = url.as_str().unwrap().split_once("/v1").unwrap().1;
    let (path, _) = path.split_once('?').unwrap();
    let path = format!("/v1{path}");
    assert_eq!(service.get(&path).await.status, 200);
    let ask = |path: &str| service.ask(Role::Base, Method::GET, path);
    let unauthorized = r#"{"error":"Invalid or missing API key"}"#;
    ask(&path).send().await.expect_text(401, unauthorized);
    ask(&format!("{path}?token=AAAA")).send().await.expect_text(401, unauthorized);
    let other = ask(&path).key(&service.other_key).send().await;
    other.expect_error(404, "file not found");
    service.get("/v1/files/17/content").await.expect_error(404, "file not found");
    let absent = "/v1/files/01990000-0000-7000-8000-000000000000/content";
    service.get(absent).await.expect_error(404, "file not found");
}

#[tokio::test]
async fn file_output_feeds_next_model_without_http() {
    // The egress guard would block connections to this machine's own addresses.
    let service = Service::configured("egress.deny = [\"127.0.0.0/8\"]\n").await;
    let small = output(&service, "image-resize", json!({"image": GIF, "width": 3})).await;
    let larger = output(&service, "image-resize", json!({"image": small, "width": 9})).await;
    assert_eq!(fetch(&service, &larger, &[("range", "bytes=0-2")]).await.text, "GIF");
    let workflow = service
        .workflow(json!([
            {"step_id": "qr", "type": "model", "model": "image-qr", "params": {"text": "x"}},
            {"step_id": "small", "type": "model", "model": "image-resize",
             "params": {"image": "{{qr.output}}", "width": 8, "format": "gif"}},
        ]))
        .await;
    let id = service.trigger(&workflow, json!({"inputs": {}})).await;
    let execution = service.completed(&id).await;
    assert_eq!(execution["status"], "completed", "{execution}");
    assert_eq!(fetch(&service, &execution["output"], &[("range", "bytes=0-2")]).await.text, "GIF");
}

#[tokio::test]
async fn file_is_created_from_binary_provider_response() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let manifest = provider.manifest("speak", "/bytes", "").replace("'object'", "'audio'");
    service.manifest(&manifest.replace("output = '/output'", ""));
    let url = output(&service, "speak", json!({"text": "hello"})).await;
    let file = fetch(&service, &url, &[]).await;
    assert_eq!((file.text.as_str(), file.header("content-type")), ("RIFF", "audio/wav"));
}

#[tokio::test]
async fn file_that_cannot_be_stored_fails_its_prediction() {
    let service = Service::configured("files.max_bytes = 10\n").await;
    let provider = Provider::start().await;
    let manifest = provider.manifest("draw", "/echo", "").replace("'object'", "'image'");
    service.manifest(&manifest.replace("'/output'", "'/output/image'"));
    for (image, says) in [
        ("data:image/png;base64,!", "not a valid data: URI"),
        ("data:,12345678901", "larger than 10 bytes"),
    ] {
        let id = service.create("draw", json!({"image": image})).await;
        let prediction = service.ended(&id).await;
        assert_eq!(prediction["error_classification"], "provider_error");
        assert!(prediction["error"].as_str().unwrap().contains(says), "{prediction}");
    }
    let url = output(&service, "draw", json!({"image": "http://else/where.png"})).await;
    assert_eq!(url, "http://else/where.png", "what is a URL already stays");
}
