//! Replicate's API below `/replicate/v1`: predictions, streams, pages, files, models and errors.

use hyper::Method;
use orrery_api::Role;
use orrery_domain::key_policy::{KeyPolicy, Scope};
use serde_json::{Value, json};

use crate::support::{Answer, Ask, Provider, Service, until};

const PREDICTIONS: &str = "/replicate/v1/predictions";

fn ask(service: &Service, method: Method, path: &str) -> Ask {
    let path = format!("/replicate/v1/{path}");
    let bearer = format!("Bearer {}", service.key);
    service.ask(Role::Base, method, &path).header("authorization", bearer)
}

async fn get(service: &Service, path: &str) -> Answer {
    ask(service, Method::GET, path).send().await
}

fn post(service: &Service, path: &str, body: &Value) -> Ask {
    ask(service, Method::POST, path).json(body)
}

/// Creates a prediction with a model whose owner is `local`, and returns the prediction.
pub(crate) async fn create(service: &Service, model: &str, body: Value) -> Value {
    let path = format!("models/local/{model}/predictions");
    post(service, &path, &body).send().await.expect(201)
}

/// Waits for the end of a prediction and returns it.
pub(crate) async fn ended(service: &Service, id: &Value) -> Value {
    let path = format!("predictions/{}", id.as_str().unwrap());
    until("end", async || {
        let prediction = get(service, &path).await.expect(200);
        let status = prediction["status"].as_str().unwrap();
        ["succeeded", "failed", "canceled"].contains(&status).then_some(prediction)
    })
    .await
}

/// Checks an error in the format of Replicate's API; returns its message.
#[track_caller]
fn refused(answer: &Answer, status: u16) -> String {
    let body = answer.expect(status);
    assert_eq!(answer.header("content-type"), "application/problem+json");
    assert_eq!((&body["status"], body["title"].is_string()), (&json!(status), true), "{body}");
    body["detail"].as_str().unwrap().to_owned()
}

fn template(text: &str) -> Value {
    json!({"template": text})
}

#[tokio::test]
async fn replicate_creates_ordinary_predictions() {
    let service = Service::start().await;
    let model = get(&service, "models/local/text-template").await.expect(200);
    let version = model["latest_version"]["id"].as_str().unwrap();
    assert_eq!(version.len(), 64);
    for named in [
        version.to_owned(),
        "local/text-template".to_owned(),
        format!("local/text-template:{version}"),
    ] {
        let body = json!({"version": named, "input": template("hello"), "stream": true});
        let made = post(&service, "predictions", &body).header("prefer", "wait").send().await;
        let made = made.expect(201);
        assert_eq!((&made["status"], &made["output"]), (&json!("succeeded"), &json!("hello")));
        assert_eq!(
            (&made["model"], &made["version"]),
            (&json!("local/text-template"), &json!(version))
        );
        assert_eq!(made["input"]["template"], "hello");
        assert_eq!((&made["error"], &made["logs"]), (&Value::Null, &json!("")));
        assert!(made["metrics"]["predict_time"].is_number(), "{made}");
        let url =
            format!("{}{PREDICTIONS}/{}", service.url(Role::Base), made["id"].as_str().unwrap());
        assert_eq!(
            (&made["urls"]["get"], &made["urls"]["cancel"]),
            (&json!(url), &json!(format!("{url}/cancel")))
        );
        let own = service.ended(made["id"].as_str().unwrap()).await;
        assert_eq!((&own["status"], &own["model"]), (&json!("success"), &json!("text-template")));
    }
    let made = create(&service, "text-template", json!({"input": template("a")})).await;
    assert_eq!(ended(&service, &made["id"]).await["output"], "a");
    let own = service.create("text-template", template("b")).await;
    service.ended(&own).await;
    let list = get(&service, "predictions").await.expect(200);
    assert_eq!((&list["next"], &list["previous"]), (&Value::Null, &Value::Null));
    let results = list["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["id"]), (5, &json!(own)));
    assert_eq!(
        service.get("/v2/executions").await.expect(200)["executions"].as_array().unwrap().len(),
        5
    );
}

#[tokio::test]
async fn replicate_waits_as_the_request_prefers() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("slow", "/hold", ""));
    let body = json!({"input": {}});
    let path = "models/local/slow/predictions";
    let late = post(&service, path, &body).header("prefer", "wait=1").send().await.expect(202);
    // Clients treat any other status as final.
    assert_eq!((&late["status"], &late["output"]), (&json!("starting"), &Value::Null));
    let at_once = post(&service, path, &body).send().await.expect(201);
    assert_eq!(at_once["completed_at"], Value::Null);
    let key = ("idempotency-key", "replicate-1");
    let first = post(&service, path, &body).header(key.0, key.1).send().await.expect(201);
    let again = post(&service, path, &body).header(key.0, key.1).send().await.expect(201);
    assert_eq!(first["id"], again["id"]);
    provider.arrived(1).await;
    provider.release(3);
    for made in [late, at_once, first] {
        assert_eq!(ended(&service, &made["id"]).await["output"], json!({"held": true}));
    }
}

#[tokio::test]
async fn replicate_cancels_only_what_runs() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("slow", "/hold", ""));
    let made = create(&service, "slow", json!({"input": {}})).await;
    provider.arrived(1).await;
    let path = format!("predictions/{}/cancel", made["id"].as_str().unwrap());
    for _ in 0..2 {
        let canceled = ask(&service, Method::POST, &path).send().await.expect(200);
        assert_eq!((&canceled["id"], &canceled["status"]), (&made["id"], &json!("canceled")));
    }
    provider.hung_up(1).await;
    let body = json!({"version": "local/text-template", "input": template("a")});
    let made = post(&service, "predictions", &body).header("prefer", "wait=5").send().await;
    let path = format!("predictions/{}/cancel", made.expect(201)["id"].as_str().unwrap());
    let ended = ask(&service, Method::POST, &path).send().await.expect(200);
    assert_eq!(ended["status"], "succeeded");
}

#[tokio::test]
async fn replicate_errors_are_problems() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let plain = service.ask(Role::Base, Method::GET, PREDICTIONS).send().await;
    assert_eq!(refused(&plain, 401), "Invalid or missing API key");
    assert_eq!(plain.header("www-authenticate"), "Bearer");
    for (path, status, part) in [
        ("nothing", 404, "not found"),
        ("models/local/nothing", 404, "model not found"),
        ("models/local/text-templat", 404, "did you mean local/text-template?"),
        ("models/local/text-template/versions/abc", 404, "version not found"),
        ("predictions/none", 404, "Prediction not found"),
        ("predictions/none/stream", 404, "Prediction not found"),
        ("predictions?cursor=AAAA", 400, "invalid cursor"),
        ("predictions?created_after=soon", 400, "created_after"),
        ("models?cursor=x", 400, "cursor must be a whole number"),
        ("files/none", 404, "file not found"),
        ("files/%ff", 400, "the path is not UTF-8"),
    ] {
        let said = refused(&get(&service, path).await, status);
        assert!(said.contains(part), "{path}: {said}");
    }
    let without_place = service.post("/v1/predictions", &json!({})).send().await.expect(404);
    let hint = without_place["details"]["hint"].as_str().unwrap();
    assert!(
        hint.ends_with("the base URL of Replicate's clients has /replicate before /v1"),
        "{hint}"
    );
    let wrong_method = ask(&service, Method::PUT, "predictions").send().await;
    assert_eq!(refused(&wrong_method, 405), "method not allowed");
    let input = template("a");
    for (body, status, part) in [
        (json!({"input": input}), 400, "version is required"),
        (json!({"version": "local/text-template"}), 400, "input is required"),
        (json!({"version": "abc", "input": input}), 422, "the version does not exist"),
        (json!({"version": "local/text-template:abc", "input": input}), 422, "does not exist"),
        (json!({"version": "local/text-template", "input": {}}), 422, "missing required field"),
        (
            json!({"version": "local/text-template", "input": input, "webhook": "ftp://a/"}),
            400,
            "webhook must be an absolute http or https URL",
        ),
        (
            json!({"version": "local/text-template", "input": input, "webhook": "http://10.0.0.1/",
                "webhook_events_filter": ["end"]}),
            400,
            "webhook_events_filter",
        ),
    ] {
        let answer = post(&service, "predictions", &body).undocumented().send().await;
        let said = refused(&answer, status);
        assert!(said.contains(part), "{body}: {said}");
    }
    let body = json!({"version": "local/text-template", "input": {"template": 1}});
    let answer = post(&service, "predictions", &body).send().await.expect(422);
    assert_eq!(answer["invalid_fields"][0]["field"], "/template");
    let broken = ask(&service, Method::POST, "predictions").undocumented().body("{").send().await;
    assert!(refused(&broken, 400).starts_with("invalid JSON body: EOF"), "{}", broken.text);

    service.manifest(&provider.manifest("broken", "/status/500", ""));
    let failed = create(&service, "broken", json!({"input": {}})).await;
    let failed = ended(&service, &failed["id"]).await;
    assert_eq!((&failed["status"], &failed["output"]), (&json!("failed"), &Value::Null));
    assert!(failed["error"].as_str().unwrap().contains("500"), "{failed}");
}

#[tokio::test]
async fn replicate_hides_predictions_of_other_organizations() {
    let service = Service::start().await;
    let made = create(&service, "text-template", json!({"input": template("a")})).await;
    ended(&service, &made["id"]).await;
    let id = made["id"].as_str().unwrap();
    for path in [id.to_owned(), format!("{id}/stream")] {
        let path = format!("{PREDICTIONS}/{path}");
        let ask = service.ask(Role::Base, Method::GET, &path).key(&service.other_key);
        assert_eq!(refused(&ask.send().await, 404), "Prediction not found");
    }
    let list = service.ask(Role::Base, Method::GET, PREDICTIONS).key(&service.other_key);
    assert_eq!(list.send().await.expect(200)["results"], json!([]));
    let stream = made["urls"]["stream"].as_str().unwrap();
    let other = stream.replace(id, "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f");
    let path = other.strip_prefix(service.url(Role::Base)).unwrap();
    let answer = service.ask(Role::Base, Method::GET, path).send().await;
    assert_eq!(refused(&answer, 401), "Invalid or missing API key");
}

#[tokio::test]
async fn replicate_key_without_read_reads_what_it_created() {
    let service = Service::start().await;
    let scopes = Some([Scope::Predict, Scope::Files].into_iter().collect());
    let policy = KeyPolicy { scopes, ..KeyPolicy::default() };
    let accounts = &service.running.services.accounts;
    let organization = service.organization.id;
    let made = accounts.create_key_with(organization, "limited", "test", None, policy).await;
    let key = made.unwrap().1;
    let ask = |method, path: &str| {
        service.ask(Role::Base, method, &format!("/replicate/v1/{path}")).key(&key)
    };
    let body = json!({"version": "local/text-template", "input": template("a")});
    let made = ask(Method::POST, "predictions").json(&body).send().await.expect(201);
    let own = format!("predictions/{}", made["id"].as_str().unwrap());
    ask(Method::GET, &own).send().await.expect(200);
    let file = ask(Method::POST, "files").header("content-type", FORM).body(form("{}"));
    let file = file.send().await.expect(201);
    let file = format!("files/{}", file["id"].as_str().unwrap());
    ask(Method::GET, &file).send().await.expect(200);
    let other = service.create("text-template", template("b")).await;
    for (path, scope) in [
        (format!("predictions/{other}"), "read"),
        ("predictions".to_owned(), "read"),
        ("files".to_owned(), "read"),
        ("webhooks/default/secret".to_owned(), "secrets"),
    ] {
        let said = refused(&ask(Method::GET, &path).send().await, 403);
        assert_eq!(said, format!("this key may not do this: it needs the scope {scope}"));
    }
}

#[tokio::test]
async fn replicate_pages_lead_forth_and_back() {
    let service = Service::start().await;
    for _ in 0..201 {
        service.create("text-template", template("a")).await;
    }
    let page = async |url: &Value| {
        let path = url.as_str().unwrap().strip_prefix(service.url(Role::Base)).unwrap();
        let rest = path.strip_prefix("/replicate/v1/").unwrap();
        get(&service, rest).await.expect(200)
    };
    let ids = |page: &Value| -> Vec<Value> {
        page["results"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect()
    };
    let first = get(&service, "predictions?created_after=2020-01-01T00:00:00Z").await.expect(200);
    let second = page(&first["next"]).await;
    let third = page(&second["next"]).await;
    let mut all = [ids(&first), ids(&second), ids(&third)].concat();
    assert_eq!((ids(&third).len(), &third["next"]), (1, &Value::Null));
    all.sort_by_key(ToString::to_string);
    all.dedup();
    assert_eq!(all.len(), 201);
    assert_eq!(ids(&page(&third["previous"]).await), ids(&second));
    let back = page(&second["previous"]).await;
    assert_eq!((ids(&back), &back["previous"]), (ids(&first), &Value::Null));
    // A cursor is valid only for its own filter.
    let cursor = first["next"].as_str().unwrap().split_once("cursor=").unwrap().1.to_owned();
    let other = get(&service, &format!("predictions?cursor={cursor}")).await;
    assert_eq!(refused(&other, 400), "invalid cursor");

    let provider = Provider::start().await;
    for number in 0..30 {
        service.manifest(&provider.manifest(&format!("team/echo-{number}"), "/echo", ""));
    }
    let models = get(&service, "models").await.expect(200);
    assert_eq!(
        (models["results"].as_array().unwrap().len(), &models["previous"]),
        (25, &Value::Null)
    );
    let more = page(&models["next"]).await;
    assert_ne!(more["results"][0], models["results"][0]);
    assert_eq!(page(&more["previous"]).await, models);
}

/// The names and the data of the events in a stream.
fn events(answer: &Answer) -> Vec<(String, String)> {
    let mut events = Vec::new();
    for text in answer.text.split("\n\n").filter(|text| text.contains("event: ")) {
        let fields = |name: &str| {
            let lines = text.lines().filter_map(|line| line.strip_prefix(name));
            lines.collect::<Vec<_>>().join("\n")
        };
        assert!(!fields("id: ").is_empty(), "{text}");
        events.push((fields("event: "), fields("data: ")));
    }
    events
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, data)| ((*name).to_owned(), (*data).to_owned())).collect()
}

/// Streams a prediction with the link in its `urls`, without a key.
async fn stream(service: &Service, prediction: &Value) -> Answer {
    let url = prediction["urls"]["stream"].as_str().unwrap();
    let path = url.strip_prefix(service.url(Role::Base)).unwrap();
    service.ask(Role::Base, Method::GET, path).send().await
}

#[tokio::test]
async fn replicate_stream_has_output_and_done() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let url = provider.url("/stream");
    service.manifest(&format!(
        "slug = 'chat'\noutput_type = 'string'\n\
         [runner]\ntype = 'openai'\nkind = 'chat'\nmodel = 'm'\nurl = '{url}'\n"
    ));
    let made = create(&service, "chat", json!({"input": {"prompt": "p"}})).await;
    provider.say("one\n");
    provider.say("two");
    provider.finish();
    let streamed = stream(&service, &made).await;
    let expected = [("output", "one\n"), ("output", "two"), ("done", "{}")];
    assert_eq!(events(&streamed), pairs(&expected));
    assert_eq!(ended(&service, &made["id"]).await["output"], "one\ntwo");
    // A client that resumes gets the rest; a client that has received everything gets nothing.
    let path = format!("predictions/{}/stream", made["id"].as_str().unwrap());
    let ids: Vec<&str> =
        streamed.text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    let resume = |id: &str| ask(&service, Method::GET, &path).header("last-event-id", id).send();
    assert_eq!(events(&resume(ids[0]).await), pairs(&expected[1..]));
    assert_eq!(events(&resume(ids[1]).await), pairs(&expected[2..]));
    assert_eq!(resume(ids.last().unwrap()).await.status, 204);

    // If a model does not stream its output, the stream contains the whole output in one event.
    let made = create(&service, "text-template", json!({"input": template("a")})).await;
    assert_eq!(events(&stream(&service, &made).await), pairs(&[("output", "a"), ("done", "{}")]));
}

#[tokio::test]
async fn replicate_stream_reports_failure_and_cancellation() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("broken", "/status/500", ""));
    service.manifest(&provider.manifest("slow", "/hold", ""));
    let made = create(&service, "broken", json!({"input": {}})).await;
    let failed = ended(&service, &made["id"]).await;
    let detail = json!({"detail": failed["error"]}).to_string();
    let expected = [("error", detail.as_str()), ("done", r#"{"reason":"error"}"#)];
    assert_eq!(events(&stream(&service, &made).await), pairs(&expected));
    let made = create(&service, "slow", json!({"input": {}})).await;
    service.cancel(made["id"].as_str().unwrap()).await.expect(200);
    let expected = [("done", r#"{"reason":"canceled"}"#)];
    assert_eq!(events(&stream(&service, &made).await), pairs(&expected));
}

const FORM: &str = "multipart/form-data; boundary=b";

fn form(metadata: &str) -> String {
    format!(
        "--b\r\ncontent-disposition: form-data; name=\"content\"; filename=\"a.txt\"\r\n\
         content-type: text/plain\r\n\r\nabc\r\n\
         --b\r\ncontent-disposition: form-data; name=\"metadata\"; filename=\"blob\"\r\n\
         content-type: application/json\r\n\r\n{metadata}\r\n--b--\r\n"
    )
}

#[tokio::test]
async fn replicate_files_are_ordinary_files() {
    let service = Service::start().await;
    let upload = |body: String| {
        let ask = ask(&service, Method::POST, "files").header("content-type", FORM);
        ask.body(body).send()
    };
    let made = upload(form(r#"{"a": [1]}"#)).await.expect(201);
    assert_eq!((&made["name"], &made["content_type"]), (&json!("a.txt"), &json!("text/plain")));
    assert_eq!((&made["size"], &made["metadata"]), (&json!(3), &json!({"a": [1]})));
    assert_eq!(made["checksums"], json!({"sha256": made["etag"]}));
    let id = made["id"].as_str().unwrap();
    let path = format!("files/{id}");
    assert_eq!(get(&service, &path).await.expect(200), made);
    assert_eq!(get(&service, "files").await.expect(200)["results"], json!([made]));
    get(&service, &format!("{path}/download")).await.expect_text(200, "abc");
    let content = made["urls"]["get"].as_str().unwrap();
    let content = content.strip_prefix(service.url(Role::Base)).unwrap();
    service.ask(Role::Base, Method::GET, content).send().await.expect_text(200, "abc");
    service.get(content).await.expect_text(200, "abc");
    assert_eq!(service.get(&format!("/v1/files/{id}")).await.expect(200)["size"], 3);
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(4096));
    for (body, part) in [
        (form("[]"), "metadata must be a JSON object"),
        (form(&long), "a field other than the file may have at most 4096 bytes"),
        ("--b--\r\n".to_owned(), "content is required"),
        (form("{}").replace("\"content\"", "\"file\""), "only the fields content and metadata"),
    ] {
        let said = refused(&upload(body).await, 400);
        assert!(said.contains(part), "{said}");
    }
    let delete = ask(&service, Method::DELETE, &path).send().await;
    assert_eq!((delete.status, delete.text.as_str()), (204, ""));
    assert_eq!(refused(&get(&service, &path).await, 404), "file not found");
}

#[tokio::test]
async fn replicate_models_have_one_version_with_schemas() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("team/echo", "/echo", ""));
    let model = get(&service, "models/team/echo").await.expect(200);
    assert_eq!((&model["owner"], &model["name"]), (&json!("team"), &json!("echo")));
    let version = &model["latest_version"];
    let schemas = &version["openapi_schema"]["components"]["schemas"];
    assert_eq!(
        (&schemas["Input"]["type"], &schemas["Output"]["type"]),
        (&json!("object"), &json!("object"))
    );
    let list = get(&service, "models/team/echo/versions").await.expect(200);
    assert_eq!(list, json!({"previous": null, "next": null, "results": [version]}));
    let path = format!("models/team/echo/versions/{}", version["id"].as_str().unwrap());
    assert_eq!(get(&service, &path).await.expect(200), *version);
    let body = json!({"version": "team/echo", "input": {"n": 1}});
    let made = post(&service, "predictions", &body).header("prefer", "wait").send().await;
    let made = made.expect(201);
    assert_eq!((&made["model"], &made["output"]), (&json!("team/echo"), &json!({"n": 1})));
    let account = get(&service, "account").await.expect(200);
    assert_eq!(account, json!({"type": "organization", "username": "default", "name": "default"}));
}
