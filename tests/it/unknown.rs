//! Names and paths unknown to a host, the responses to such requests, and the compression of large
//! responses.

use std::io::Read as _;

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Provider, Service, until};

#[tokio::test]
async fn query_parameter_unknown_is_rejected_with_nearest_name() {
    let service = Service::start().await;
    let asked = async |path: &str| service.get(path).await;
    let answer = asked("/v2/executions?modle=echo").await;
    answer.expect_error(400, "unknown query parameter modle: did you mean model?");
    let answer = asked("/v1/billing/balance?x=1").await;
    answer.expect_error(400, "unknown query parameter x: none are accepted here");
    let answer = asked("/v2/executions?limit=1&zzzz=%22%0d%0a").await.expect(400);
    let said = answer["error"].as_str().unwrap();
    assert!(said.starts_with("unknown query parameter zzzz: expected one of "), "{said}");
    asked("/v2/executions?limit=1&model=echo").await.expect(200);
    // The key is checked first, so requests without a key fail with 401; health checks accept any
    // parameters.
    let anonymous = service.ask(Role::Base, Method::GET, "/v2/executions?modle=echo").send().await;
    assert_eq!(anonymous.status, 401);
    service.ask(Role::Base, Method::GET, "/health?probe=1").send().await.expect(200);
}

#[tokio::test]
async fn query_parameter_given_twice_is_rejected() {
    let service = Service::start().await;
    for (path, message) in [
        (
            "/v1/workflows?limit=1&limit=2",
            "limit is in the query more than once: it takes one value",
        ),
        (
            "/v1/workflows?keyword=&keyword=a",
            "keyword is in the query more than once: it takes one value",
        ),
        (
            "/v2/executions?status=failed&status=completed",
            "status is in the query more than once: separate its values by commas",
        ),
        (
            "/v1/executions?error_classification=unknown&error_classification=unknown",
            "error_classification is in the query more than once: separate its values by commas",
        ),
    ] {
        service.get(path).await.expect_error(400, message);
    }
}

#[tokio::test]
async fn body_field_unknown_is_ignored_and_named() {
    let service = Service::start().await;
    let input = json!({"text": "What a beautiful night!"});
    let body =
        json!({"model": "text-sentiment", "version": "1", "input": input, "webhook": "http://x"});
    let sentence = "unknown field webhook: did you mean webhook_url?";
    let taken = service.post("/v1/prediction", &body).undocumented().send().await;
    let answer = taken.expect(200);
    assert_eq!(taken.header("warning"), format!("299 - \"{sentence}\""));
    assert_eq!(answer["warnings"], json!([sentence]));
    service.ended(answer["predictionID"].as_str().unwrap()).await;

    let strict =
        || service.post("/v1/prediction", &body).header("prefer", "wait=1, handling=strict");
    strict().send().await.expect_error(400, sentence);
    for prefer in ["handling=\"strict\"", "handling=strict; x=1", "wait=1, Handling = strict"] {
        let strict = service.post("/v1/prediction", &body).header("prefer", prefer);
        strict.send().await.expect_error(400, sentence);
    }
    let listed = service.get("/v2/executions").await.expect(200);
    assert_eq!(listed["executions"].as_array().unwrap().len(), 1, "a refused one does nothing");

    let id = service.workflow(json!([{"step_id": "one", "type": "pass", "result": 1}])).await;
    let trigger = service.flows(Method::POST, &format!("/{id}/trigger"));
    let triggered = trigger.json(&json!({"version": "x"})).undocumented().send().await;
    let answer = triggered.expect(202);
    assert_eq!(answer["warnings"], json!(["unknown field version: did you mean version_id?"]));
    let known =
        service.flows(Method::POST, &format!("/{id}/trigger")).header("prefer", "handling=strict");
    let taken = known.json(&json!({"inputs": {}})).send().await;
    assert_eq!((taken.status, taken.header("preference-applied")), (202, "handling=strict"));
}

#[tokio::test]
async fn path_of_another_host_names_that_host() {
    let service = Service::start().await;
    let asked = service.post("/api/v1/workflows", &json!({})).send().await.expect(404);
    let url = service.url(Role::Workflows).to_owned();
    assert_eq!(asked["error"], "not found");
    assert_eq!(asked["details"], json!({"host": "workflows", "url": url}));
    service.get("/v1/nothing").await.expect_error(404, "not found");
}

#[tokio::test]
async fn workflow_deletion_cancels_running_executions_unless_told_otherwise() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1"));
    let steps = json!([{"step_id": "one", "type": "model", "model": "held", "params": {}}]);
    for (query, status) in [("", "cancelled"), ("?keep_running=false", "cancelled")] {
        let id = service.workflow(steps.clone()).await;
        let mut executions = Vec::new();
        for _ in 0..3 {
            executions.push(service.trigger(&id, json!({})).await);
        }
        let path = format!("/workflows/{id}{query}");
        let deleted = service.flows(Method::DELETE, &path).send().await;
        assert_eq!((deleted.status, deleted.text.as_str()), (204, ""));
        for execution in &executions {
            assert_eq!(service.execution(execution).await["status"], status, "{query}");
        }
    }
    let id = service.workflow(steps.clone()).await;
    let kept = service.trigger(&id, json!({})).await;
    let wrong = service.flows(Method::DELETE, &format!("/workflows/{id}?keep_running=yes"));
    wrong.send().await.expect_error(400, "keep_running must be true or false");
    let deleted = service.flows(Method::DELETE, &format!("/workflows/{id}?keep_running=true"));
    assert_eq!(deleted.send().await.status, 204);
    assert_ne!(service.execution(&kept).await["status"], "cancelled");
    until("the call of the one that goes on", async || {
        provider.release(1);
        (service.execution(&kept).await["status"] == "completed").then_some(())
    })
    .await;
}

#[tokio::test]
async fn workflow_locked_keeps_its_executions() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1"));
    let steps = json!([{"step_id": "one", "type": "model", "model": "held", "params": {}}]);
    let id = service.workflow(steps).await;
    let execution = service.trigger(&id, json!({})).await;
    let path = format!("/workflows/{id}");
    service.flows(Method::PUT, &path).json(&json!({"locked": true})).send().await.expect(200);
    assert_eq!(service.flows(Method::DELETE, &path).send().await.status, 403);
    assert_ne!(service.execution(&execution).await["status"], "cancelled");
}

#[tokio::test]
async fn large_responses_are_compressed_on_request() {
    let service = Service::start().await;
    for (role, path) in [(Role::Base, "/v1/models"), (Role::Metrics, "/metrics")] {
        let plain = service.ask(role, Method::GET, path).send().await;
        assert_eq!(
            (plain.header("content-encoding"), plain.header("vary")),
            ("", "accept-encoding")
        );
        for coding in ["gzip", "zstd"] {
            let ask = service.ask(role, Method::GET, path).header("accept-encoding", coding);
            let answer = ask.open().await;
            assert_eq!(answer.headers()["content-encoding"], coding, "{path}");
            let packed =
                http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
            let mut text = String::new();
            if coding == "gzip" {
                flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
            } else {
                zstd::Decoder::new(&packed[..]).unwrap().read_to_string(&mut text).unwrap();
            }
            assert!(packed.len() < text.len() / 2, "{path} by {coding}: {}", packed.len());
            if path == "/v1/models" {
                let (read, sent): (Value, Value) =
                    (serde_json::from_str(&text).unwrap(), plain.json());
                assert_eq!(read, sent);
            }
        }
    }
    let small = service.get("/v1/billing/balance").await;
    assert_eq!((small.header("content-encoding"), small.header("vary")), ("", ""));
}

#[tokio::test]
async fn disk_below_reserve_is_reported() {
    let service = Service::configured("limits.disk_reserve = \"64TiB\"\n").await;
    let ready = service.ask(Role::Base, Method::GET, "/ready").send().await.expect(200);
    let warning = ready["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("disk: ") && warning.contains("limits.disk_reserve"), "{warning}");
    assert!(warning.contains("new work is refused"), "{warning}");
    // The gauges belong to the entire process, so a service in another test may set them at the
    // same time.
    until("gauges of the disk", async || {
        let metrics = service.ask(Role::Metrics, Method::GET, "/metrics").send().await.text;
        let lines = ["\norrery_disk_low 1\n", "\norrery_disk_reserve_bytes 70368744177664\n"];
        lines.iter().all(|line| metrics.contains(line)).then_some(())
    })
    .await;
    let calm = Service::configured("limits.disk_reserve = \"1MiB\"\n").await;
    let ready = calm.ask(Role::Base, Method::GET, "/ready").send().await.expect(200);
    assert_eq!(ready.get("warnings"), None);
}

#[tokio::test]
async fn webhook_secret_without_url_is_a_warning() {
    let service = Service::start().await;
    let id = service.workflow(json!([{"step_id": "one", "type": "pass", "result": 1}])).await;
    let said = "webhook_secret has no effect without webhook_url";
    let prediction = json!({
        "model": "text-template", "version": "1", "input": {"template": "x"}, "webhook_secret": "s"
    });
    let made = service.post("/v1/prediction/", &prediction).send().await.expect(200);
    assert_eq!(made["warnings"], json!([said]));
    let run = service.post("/v1/prediction/run", &prediction).send().await.expect(200);
    assert_eq!(run["warnings"], json!([said]));
    let trigger =
        |fields: Value| service.flows(Method::POST, &format!("/{id}/trigger")).json(&fields);
    let triggered = trigger(json!({"inputs": {}, "webhook_secret": "s"})).send().await;
    assert_eq!(triggered.header("warning"), format!("299 - \"{said}\""));
    assert_eq!(triggered.expect(202)["warnings"], json!([said]));
    for silent in [json!({"webhook_secret": ""}), json!({"webhook_secret": null}), json!({})] {
        let triggered = trigger(silent).send().await.expect(202);
        assert_eq!(triggered["warnings"], Value::Null);
    }

    let of_workflow = format!("/workflows/{id}/schedules");
    let schedule = json!({"cron": "@daily", "webhook_secret": "s"});
    let made = service.flows(Method::POST, &of_workflow).json(&schedule).send().await.expect(201);
    assert_eq!(made["warnings"], json!([said]));
    let mut of_model = prediction.clone();
    of_model["cron"] = json!("@daily");
    let made = service.post("/v1/schedules", &of_model).send().await.expect(201);
    assert_eq!(made["warnings"], json!([said]));
    let path = format!("/v1/schedules/{}", made["schedule_id"].as_str().unwrap());
    let put = async |change: Value| {
        let asked = service.ask(Role::Base, Method::PUT, &path).key(&service.key);
        asked.json(&change).send().await.expect(200)
    };
    assert_eq!(put(json!({"webhook_secret": "t"})).await["warnings"], json!([said]));
    let with_url = json!({"webhook_secret": "t", "webhook_url": "http://127.0.0.1:9/"});
    assert_eq!(put(with_url).await["warnings"], Value::Null);
    assert_eq!(put(json!({"webhook_secret": "u"})).await["warnings"], Value::Null, "it has a URL");
}

#[tokio::test]
async fn workflow_with_taken_name_is_a_warning() {
    let service = Service::start().await;
    let steps = json!({"steps": [{"step_id": "a", "type": "pass", "result": 1}]});
    let new = |name: &str| json!({"name": name, "description": "d", "definition": steps});
    let create = async |name: &str| {
        service.flows(Method::POST, "/workflows").json(&new(name)).send().await.expect(201)
    };
    assert_eq!(create("Mood").await["warnings"], Value::Null);
    let second = create("Mood").await;
    assert_eq!(second["slug"], "mood-2");
    let said = "the slug mood is taken, so this workflow has the slug mood-2; PUT \
                workflows/mood/versions/v2 changes the existing workflow";
    assert_eq!(second["warnings"], json!([said]));
    let of_base = service.post("/v1/workflows", &new("mood")).send().await.expect(201);
    assert!(of_base["warnings"][0].as_str().unwrap().contains("has the slug mood-3"), "{of_base}");
    assert_eq!(create("Mood 7").await["warnings"], Value::Null, "a number of its own");
    let alias = service.post("/v1/workflows/create", &new("Mood")).send().await.expect(201);
    assert!(alias["warnings"][0].as_str().unwrap().contains("has the slug mood-4"), "{alias}");
    let step = json!({"id": "a", "name": "A", "type": "1019Model", "model_slug": "text-template",
        "model_version": "1", "params": {"template": "x"}});
    let legacy = json!({"name": "MOOD", "description": "d", "inputs": [], "outputs": [],
        "steps": [step]});
    let asked = service.ask(Role::Flows, Method::POST, "/api/v1/").key(&service.key);
    let legacy = asked.json(&legacy).send().await.expect(200);
    let said = "the slug mood is taken, so this workflow has the slug mood-5; POST /api/v1/mood \
                changes the existing workflow";
    assert_eq!(legacy["warnings"], json!([said]));
}
