//! Creating and reading predictions: every error with its text, the record, the queue, and `wait`.

use std::time::Duration;

use hyper::Method;
use orrery_api::Role;
use orrery_runtime as runtime;
use serde_json::{Value, json};

use crate::support::{Provider, Service};

const CREATE: &str = "/v1/prediction/";
const CREATED: &str = "Prediction created successfully";

const PROMPT: &str = r#"
[request_schema]
type = 'object'
required = ['prompt']
properties.prompt = { type = 'string', maxLength = 5 }
properties.size = { type = 'integer', default = 3, minimum = 1 }
properties.style = { type = 'object', properties.tone = { default = 'plain' } }
"#;

/// Returns a valid request for the built-in template model with `changes` applied; null removes a
/// field.
fn request(changes: Value) -> Value {
    let mut body = json!({
        "model": "text-template",
        "version": "0.0.1",
        "input": {"template": "hello"},
    });
    let fields = body.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        fields.insert(name.clone(), value.clone());
        if value.is_null() {
            fields.shift_remove(name);
        }
    }
    body
}

#[tokio::test]
async fn prediction_create_returns_id_and_completes() {
    let service = Service::start().await;
    for path in ["/v1/prediction/", "/v1/prediction"] {
        let answer = service.post(path, &request(json!({}))).send().await;
        let body = answer.expect(200);
        let id = body["predictionID"].as_str().unwrap();
        assert_eq!(uuid::Uuid::parse_str(id).unwrap().get_version_num(), 7);
        let text = format!(r#"{{"status":"success","message":"{CREATED}","predictionID":"{id}"}}"#);
        answer.expect_text(200, &text);
        assert_eq!(service.ended(id).await["output"], "hello");
    }
    let ask = service.ask(Role::Base, Method::POST, CREATE).key(&service.key);
    let plain = ask.header("content-type", "text/plain").body(request(json!({})).to_string());
    plain.send().await.expect(200);
    for version in ["1", "0.0.1", "anything at all"] {
        let body = request(json!({"version": version}));
        service.post(CREATE, &body).send().await.expect(200);
    }
}

#[tokio::test]
async fn prediction_create_refusals_have_specified_texts() {
    let service = Service::start().await;
    let url = "webhook_url must be an absolute http or https URL";
    let cases = [
        (json!({"model": null}), "model field is required"),
        (json!({"model": ""}), "model field is required"),
        (json!({"model": 7}), "model must be a string"),
        (json!({"version": null}), "version field is required"),
        (json!({"version": ""}), "version field is required"),
        (json!({"version": 1}), "version must be a string"),
        (json!({"model": null, "version": null}), "model field is required"),
        (json!({"input": null}), "input field is required"),
        (json!({"input": "text"}), "input must be an object"),
        (json!({"input": [1]}), "input must be an object"),
        (json!({"webhook_url": "example.com/hook"}), url),
        (json!({"webhook_url": "/hook"}), url),
        (json!({"webhook_url": "ftp://example.com"}), url),
        (json!({"webhook_url": "http://"}), url),
        (json!({"webhook_url": 7}), "webhook_url must be a string"),
        (
            json!({"webhook_url": "https://user:word@example.com/"}),
            "webhook_url must not carry a user name or password",
        ),
        (
            json!({"webhook_url": "https://example.com/", "webhook_secret": "x".repeat(257)}),
            "webhook_secret must have at most 256 characters",
        ),
        (
            json!({"webhook_url": "https://example.com/", "webhook_secret": "line\nbreak"}),
            "webhook_secret must not contain control characters",
        ),
        (json!({"webhook_secret": 7}), "webhook_secret must be a string"),
        (
            json!({"fallback_selector": "spare"}),
            "unknown fallback_selector 'spare' for model 'text-template'",
        ),
    ];
    for (changes, message) in cases {
        for path in [CREATE, "/v1/prediction/run"] {
            let answer = service.post(path, &request(changes.clone())).send().await;
            assert_eq!(answer.status, 400, "{changes}: {}", answer.text);
            answer.expect_error(400, message);
        }
    }
    for body in [json!([]), json!("text"), json!(7), json!(null)] {
        let answer = service.post(CREATE, &body).send().await;
        answer.expect_error(400, "the request body must be a JSON object");
    }
    let unknown = service.post(CREATE, &request(json!({"model": "of-nobody"}))).send().await;
    unknown.expect_text(404, r#"{"error":"Failed to fetch model: model not found"}"#);
    let empty = service.ask(Role::Base, Method::POST, CREATE).key(&service.key);
    let empty = empty.header("content-type", "application/json").send().await;
    empty.expect_error(400, "model field is required");
    assert_eq!(service.engine().totals(), (0, 0), "something was created");
}

#[tokio::test]
async fn prediction_create_reports_position_of_invalid_json() {
    let service = Service::start().await;
    for (text, line, column) in [("{\n  \"a\": nope}", 2, 9), ("{", 1, 1), ("hello", 1, 1)] {
        let ask = service.ask(Role::Base, Method::POST, CREATE).key(&service.key).body(text);
        let body = ask.send().await.expect(400);
        assert_eq!((&body["error"], &body["status"]), (&json!("invalid JSON body"), &json!(400)));
        let details = &body["details"];
        assert_eq!(
            (&details["line"], &details["column"]),
            (&json!(line), &json!(column)),
            "{text}"
        );
        assert!(!details["message"].as_str().unwrap().is_empty());
        assert_eq!(details.as_object().unwrap().len(), 3);
    }
}

#[tokio::test]
async fn prediction_create_lists_every_schema_violation() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("prompted", "/echo", PROMPT));
    let ask = |input: Value| {
        let body = request(json!({"model": "prompted", "input": input}));
        service.post(CREATE, &body).send()
    };
    let missing = "missing required field 'prompt'";
    let text = format!(
        r#"{{"error":"invalid input: {missing}","status":400,"details":[{{"path":"/prompt","message":"{missing}"}}]}}"#
    );
    ask(json!({})).await.expect_text(400, &text);
    let body = ask(json!({"prompt": "too long", "size": 0})).await.expect(400);
    let details = body["details"].as_array().unwrap();
    let paths: Vec<&str> = details.iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/prompt", "/size"]);
    let first = details[0]["message"].as_str().unwrap();
    assert_eq!(body["error"], format!("invalid input: {first}"));
    assert!(!body.to_string().contains("too long"), "the value is repeated: {body}");
    assert!(provider.requests().is_empty());
}

#[tokio::test]
async fn prediction_input_gets_schema_defaults() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("prompted", "/echo", PROMPT));
    let id = service.create("prompted", json!({"prompt": "hi", "style": {}})).await;
    let prediction = service.ended(&id).await;
    let filled = json!({"prompt": "hi", "style": {"tone": "plain"}, "size": 3});
    assert_eq!(prediction["input"], filled);
    assert_eq!(prediction["output"], filled);
}

#[tokio::test]
async fn prediction_version_is_optional_if_configured() {
    let service = Service::configured("compat.optional_version = true\n").await;
    for changes in [json!({"version": null}), json!({"version": ""}), json!({})] {
        service.post(CREATE, &request(changes)).undocumented().send().await.expect(200);
    }
}

#[tokio::test]
async fn prediction_record_has_every_field_in_every_state() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1"));
    let id = service.create("held", json!({"n": 1})).await;
    provider.arrived(1).await;
    let behind = service.create("held", json!({})).await;
    let waiting = service.get(&format!("/v1/prediction/{behind}")).await.expect(200);
    assert_eq!(waiting["status"], "created");
    assert_eq!(waiting["logs"], "queued: position 1 in lane held, 1 running");
    for field in ["output", "error", "error_classification", "started_at", "completed_at"] {
        assert_eq!(waiting.get(field), Some(&Value::Null), "{field}");
    }
    assert_eq!(waiting["attempts"], json!([]));
    provider.release(2);
    let done = service.ended(&id).await;
    let fields: Vec<&String> = done.as_object().unwrap().keys().collect();
    let expected = [
        "id",
        "model",
        "status",
        "input",
        "output",
        "logs",
        "error",
        "error_classification",
        "metrics",
        "urls",
        "created_at",
        "started_at",
        "completed_at",
        "attempts",
    ];
    assert_eq!(fields, expected);
    let url = format!("{}/v1/prediction/{id}", service.url(Role::Base));
    assert_eq!(done["urls"], json!({"get": url, "cancel": format!("{url}/cancel")}));
    assert_eq!((&done["id"], &done["model"]), (&json!(id), &json!("held")));
    assert_eq!((&done["status"], &done["output"]), (&json!("success"), &json!({"held": true})));
    assert_eq!((&done["error"], &done["error_classification"]), (&Value::Null, &Value::Null));
    for field in ["created_at", "started_at", "completed_at"] {
        let time = done[field].as_str().unwrap();
        assert!(time.len() == 24 && time.ends_with('Z') && &time[19..20] == ".", "{field}: {time}");
    }
    assert!(done["metrics"]["predict_time"].as_f64().unwrap() >= 0.0);
    assert!(done["metrics"]["queue_time"].as_f64().unwrap() >= 0.0);
    assert_eq!(done["metrics"]["cost"], 0.0);
    let [attempt] = done["attempts"].as_array().unwrap().as_slice() else { panic!("{done}") };
    let fields: Vec<&String> = attempt.as_object().unwrap().keys().collect();
    let expected =
        ["model", "status", "error", "error_classification", "started_at", "completed_at"];
    assert_eq!(fields, expected);
    assert_eq!((&attempt["model"], &attempt["status"]), (&json!("held"), &json!("success")));
    assert_eq!(service.ended(&behind).await["status"], "success");
}

#[tokio::test]
async fn prediction_failure_shows_provider_message_and_error_class() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    for (path, class, said) in [
        ("/status/401", "provider_auth", "answered 401: this is 401"),
        ("/status/403", "provider_auth", "answered 403"),
        ("/status/429", "provider_rate_limit", "answered 429"),
        ("/status/400", "invalid_user_input", "answered 400"),
        ("/status/404", "invalid_user_input", "answered 404"),
        ("/status/422", "invalid_user_input", "answered 422"),
        ("/status/500", "provider_error", "answered 500"),
        ("/status/502", "provider_unavailable", "answered 502"),
        ("/status/503", "provider_unavailable", "answered 503"),
        ("/status/504", "provider_unavailable", "answered 504"),
        ("/garbage", "provider_error", "not valid JSON"),
        ("/no-output", "provider_error", "without /output"),
        ("/hold", "execution_timeout", "50ms"),
    ] {
        let slug = path.trim_start_matches('/').replace('/', "-");
        service.manifest(&provider.manifest(&slug, path, "timeout = '50ms'\n"));
        let id = service.create(&slug, json!({})).await;
        let prediction = service.ended(&id).await;
        assert_eq!(prediction["status"], "error", "{path}");
        assert_eq!(prediction["error_classification"], class, "{path}");
        let error = prediction["error"].as_str().unwrap();
        assert!(error.contains(said) && error.contains(&slug), "{error}");
        assert_eq!(prediction["output"], Value::Null);
        assert_eq!(prediction["attempts"][0]["status"], "error");
        assert_eq!(prediction["attempts"][0]["error_classification"], class);
    }
    service.manifest(&provider.manifest("gone", "/echo", "").replace(
        &provider.url("/echo"),
        // The port of a closed listener, so nothing listens there.
        &format!("http://{}/", unused_address()),
    ));
    let id = service.create("gone", json!({})).await;
    assert_eq!(service.ended(&id).await["error_classification"], "provider_unavailable");
}

fn unused_address() -> std::net::SocketAddr {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn prediction_single_artefact_output_is_a_string() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    for (kind, expected) in [("image", json!("a://one")), ("array", json!(["a://one"]))] {
        let manifest = provider.manifest(kind, "/list", "");
        service.manifest(&manifest.replace("'object'", &format!("'{kind}'")));
        let id = service.create(kind, json!({})).await;
        assert_eq!(service.ended(&id).await["output"], expected, "{kind}");
    }
}

#[tokio::test]
async fn prediction_create_on_full_queue_returns_429() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let limits = "concurrency = 1\nqueue_limit = 1";
    service.manifest(&provider.manifest("narrow", "/hold", limits));
    let first = service.create("narrow", json!({})).await;
    provider.arrived(1).await;
    let second = service.create("narrow", json!({})).await;
    for path in [CREATE, "/v1/prediction/run"] {
        let body = request(json!({"model": "narrow", "input": {}}));
        let refused = service.post(path, &body).send().await;
        refused.expect_error(429, "queue is full");
        assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    }
    let other = service.create("text-template", json!({"template": "free"})).await;
    assert_eq!(service.ended(&other).await["output"], "free");
    provider.release(3);
    for id in [first, second] {
        assert_eq!(service.ended(&id).await["status"], "success");
    }
    let third = service.create("narrow", json!({})).await;
    assert_eq!(service.ended(&third).await["status"], "success");
}

#[tokio::test]
async fn prediction_wait_holds_response_until_end_or_timeout() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let id = service.create("held", json!({})).await;
    provider.arrived(1).await;
    let path = format!("/v1/prediction/{id}");
    for query in ["", "?wait=0"] {
        let status = service.get(&format!("{path}{query}")).await.expect(200)["status"].clone();
        assert!(["created", "processing"].contains(&status.as_str().unwrap()), "{status}");
    }
    let started = runtime::monotonic_now();
    let status = service.get(&format!("{path}?wait=1")).await.expect(200)["status"].clone();
    assert_eq!(status, "processing");
    let held = started.elapsed();
    assert!(held >= Duration::from_secs(1) && held < Duration::from_secs(10), "{held:?}");
    let waiting = format!("{path}?wait=60");
    let (ended, ()) = tokio::join!(service.get(&waiting), async { provider.release(1) });
    assert_eq!(ended.expect(200)["status"], "success");
    assert_eq!(service.get(&waiting).await.expect(200)["status"], "success");
    for wait in ["61", "-1", "x", "", "0.5"] {
        let answer = service.get(&format!("{path}?wait={wait}")).await;
        answer.expect_error(400, "wait must be a whole number from 0 to 60");
    }
}
