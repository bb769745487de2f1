//! OpenAI's API below `/openai/v1`, and errors for vendors' paths that are not served.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Answer, Service, Upstream};

const UNAUTHORIZED: &str = r#"{"error":{"message":"Invalid or missing API key","type":"authentication_error","param":null,"code":"invalid_api_key"}}"#;

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hi"}]})
}

/// Checks an error in OpenAI's format; returns its message.
#[track_caller]
fn refused(answer: &Answer, status: u16) -> String {
    let body = answer.expect(status);
    assert_eq!(body["error"]["type"], "invalid_request_error", "{body}");
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn openai_place_serves_the_same_answers() {
    let near = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&near.manifest("near", "chat", ""));
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    near.says("Hi!", 1, 1);
    let said = service.post("/openai/v1/chat/completions", &chat("near")).send().await.expect(200);
    assert_eq!(said["choices"][0]["message"]["content"], "Hi!");
    near.answers(200, r#"{"data":[{"embedding":[0.5]}]}"#);
    let body = json!({"model": "vectors", "input": "a"});
    let made = service.post("/openai/v1/embeddings?x=1", &body).send().await.expect(200);
    assert_eq!(made["data"][0]["embedding"], json!([0.5]));
    let rows = service.get("/v2/executions?type=chat").await.expect(200);
    assert_eq!(rows["executions"].as_array().unwrap().len(), 2);
    for header in ["x-api-key", "authorization"] {
        let key = if header == "x-api-key" {
            service.key.clone()
        } else {
            format!("Bearer {}", service.key)
        };
        let get = |path: &str| {
            let ask = service.ask(Role::Base, Method::GET, path).header(header, &key);
            ask.header("anthropic-version", "2023-06-01").send()
        };
        let list = get("/openai/v1/models?format=catalog&limit=0").await.expect(200);
        assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("near")));
        assert_eq!(get("/openai/v1/models/near").await.expect(200)["object"], "model");
        let missing = get("/openai/v1/models/nobody/schemas/openapi").await.expect(404);
        assert_eq!(missing["error"]["code"], "model_not_found");
        let files = get("/openai/v1/files?order=asc").await.expect(200);
        assert_eq!((&files["object"], &files["data"]), (&json!("list"), &json!([])));
        assert_eq!(refused(&get("/openai/v1/files/no-id").await, 404), "file not found");
        assert_eq!(refused(&get("/openai/v1/models/%ff").await, 400), "the path is not UTF-8");
    }
}

/// Typed clients, such as those for Go and Java, require OpenAI's types and status.
#[tokio::test]
async fn openai_place_returns_files_in_the_form_of_openai() {
    let service = Service::start().await;
    let form = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n{}\r\n\
                --b\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b--\r\n";
    let made = service
        .ask(Role::Base, Method::POST, "/openai/v1/files")
        .key(&service.key)
        .header("content-type", "multipart/form-data; boundary=b")
        .body(form)
        .send()
        .await
        .expect(200);
    let (created, expires) = (made["created_at"].as_i64(), made["expires_at"].as_i64());
    assert!(created > Some(1_600_000_000) && expires > created, "{made}");
    let expected = json!({
        "id": made["id"], "object": "file", "bytes": 2, "created_at": created,
        "expires_at": expires, "filename": "a.jsonl", "purpose": "batch", "status": "processed",
    });
    assert_eq!(made, expected);
    let path = format!("/openai/v1/files/{}", made["id"].as_str().unwrap());
    assert_eq!(service.get(&path).await.expect(200), expected);
    let list = service.get("/openai/v1/files?purpose=batch").await.expect(200);
    let id = &made["id"];
    let page = json!({"object": "list", "data": [expected], "first_id": id, "last_id": id, "has_more": false});
    assert_eq!(list, page);
    assert!(service.get(&path.replace("/openai", "")).await.expect(200)["created_at"].is_string());
}

#[tokio::test]
async fn openai_place_requires_a_key_in_its_own_form() {
    let service = Service::start().await;
    for (method, path) in [
        (Method::GET, "/openai/v1/models"),
        (Method::GET, "/openai/v1/models/text-summary"),
        (Method::GET, "/openai/v1/files"),
        (Method::GET, "/openai/v1/files/0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f/content"),
        (Method::POST, "/openai/v1/chat/completions"),
        (Method::POST, "/openai/v1/embeddings"),
    ] {
        let ask = || service.ask(Role::Base, method.clone(), path);
        let answer = ask().send().await;
        answer.expect_text(401, UNAUTHORIZED);
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        assert!(!answer.header("x-error-hint").is_empty());
        ask().header("authorization", "Bearer smk_x").send().await.expect_text(401, UNAUTHORIZED);
    }
    // Below `/v1` it is the error of all other routes.
    let plain = service.ask(Role::Base, Method::POST, "/v1/chat/completions").send().await;
    plain.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
}

#[tokio::test]
async fn vendors_path_without_route_says_what_is_there() {
    let service = Service::start().await;
    let ask = async |method: Method, path: &str| {
        service.ask(Role::Base, method, path).key(&service.key).send().await
    };
    for (method, path, status, part) in [
        (Method::POST, "/v1/assistants", 404, "POST /v1/chat/completions answers"),
        (Method::GET, "/v1/threads/t/runs", 404, "POST /v1/chat/completions answers"),
        (Method::POST, "/v1/moderations", 404, "POST /v1/decisions"),
        (Method::POST, "/v1/fine_tuning/jobs", 404, "not trained here"),
        (Method::GET, "/v1/vector_stores", 404, "POST /v1/embeddings"),
        (Method::POST, "/openai/v1/assistants", 404, "POST /v1/chat/completions answers"),
        (Method::GET, "/openai/v1/nothing", 404, "below /openai/v1 are audio, batches, chat, "),
        (Method::POST, "/openai/chat/completions", 404, "ends with /openai/v1"),
        (Method::GET, "/v1/chat/completions", 405, "there is POST /v1/chat/completions"),
        (Method::DELETE, "/v1/models/x", 405, "there is GET /v1/models, GET /v1/models/{slug}"),
        (Method::PUT, "/openai/v1/embeddings", 405, "there is POST /openai/v1/embeddings"),
    ] {
        let answer = ask(method.clone(), path).await;
        let message = refused(&answer, status);
        assert!(message.starts_with(&format!("{method} {path} is not served: ")), "{message}");
        assert!(message.contains(part), "{message}");
        assert_eq!(answer.header("allow").is_empty(), status == 404, "{path}");
    }
    for (method, path, status, kind) in [
        (Method::GET, "/v1/messages", 405, "invalid_request_error"),
        (Method::POST, "/v1/messages/batches", 404, "not_found_error"),
    ] {
        let answer = ask(method, path).await;
        let body = answer.expect(status);
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("there is POST /v1/messages, POST"), "{message}");
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)));
        assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    }
    // Other hosts and other paths keep the plain form.
    ask(Method::GET, "/v1/nothing").await.expect_error(404, "not found");
    let agent = service.ask(Role::Agent, Method::GET, "/v1/chat/completions").send().await;
    agent.expect_error(405, "method not allowed");
}

#[tokio::test]
async fn vendors_routes_ignore_unknown_query_parameters() {
    let near = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&near.manifest("near", "chat", ""));
    near.says("Hi!", 1, 1);
    service.post("/v1/chat/completions?api-version=1", &chat("near")).send().await.expect(200);
    let key = format!("Bearer {}", service.key);
    let models = service.ask(Role::Base, Method::GET, "/v1/models?order=asc&order=desc");
    models.header("authorization", key).send().await.expect(200);
    let catalog = service.get("/v1/models?order=asc").await.expect(400);
    assert!(catalog["error"].as_str().unwrap().starts_with("unknown query parameter order"));
}

#[tokio::test]
async fn openai_place_is_served_through_one_port() {
    let service = Service::configured("hosts.one_port = '127.0.0.2:0'\n").await;
    let answer = service.ask(Role::Base, Method::GET, "/openai/v1/models").send().await;
    answer.expect_text(401, UNAUTHORIZED);
    service.get("/openai/v1/models").await.expect(200);
}

#[tokio::test]
async fn agent_on_base_host_has_openais_defaults() {
    let up = Upstream::start().await;
    let service = Service::configured(&(up.config("") + "[agent]\nmodel = 'far'\n")).await;
    up.follows(|_request| {
        let message = json!({"role": "assistant", "content": "I am here."});
        (200, json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}))
    });
    // The fields that OpenAI's clients send for other models.
    let mut body = chat("orrery/beta");
    let more = json!({"temperature": 0.5, "top_p": 1, "max_completion_tokens": 9, "n": 1, "seed": 1,
        "tools": [], "response_format": {"type": "text"}, "user": "x", "metadata": {"a": "b"}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    for path in ["/v1/chat/completions", "/openai/v1/chat/completions"] {
        let said = service.post(path, &body).send().await.expect(200);
        assert_eq!(said["object"], "chat.completion");
        assert_eq!(said["choices"][0]["message"]["content"], "I am here.");
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let answer = service.post(path, &streamed).send().await;
        assert_eq!(answer.header("content-type"), "text/event-stream", "{}", answer.text);
        assert!(answer.text.ends_with("data: [DONE]\n\n"), "{}", answer.text);
    }
    let own = service.ask(Role::Agent, Method::POST, "/v1/chat/completions").key(&service.key);
    let streamed = own.json(&chat("orrery/beta")).send().await;
    assert_eq!(streamed.header("content-type"), "text/event-stream", "its own host streams");
}
