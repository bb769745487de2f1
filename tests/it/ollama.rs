//! Ollama's API: chats, prompts and embeddings, models, keys, and what it does not do.

use http_body_util::BodyExt;
use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::chat::newest_row;
use crate::support::{Answer, Ask, Service, Upstream};

const LISTEN: &str = "hosts.ollama.listen = '127.0.0.1:0'\n";
const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                     per_million_output_tokens = 1000.0 }]\n";

async fn start() -> (Upstream, Service) {
    let up = Upstream::start().await;
    let service = Service::configured(&format!("{LISTEN}{}", up.config(PRICE))).await;
    (up, service)
}

fn ask(service: &Service, method: Method, path: &str) -> Ask {
    let key = format!("Bearer {}", service.key);
    service.ask(Role::Ollama, method, path).header("authorization", key)
}

async fn post(service: &Service, path: &str, body: &Value) -> Answer {
    ask(service, Method::POST, path).json(body).send().await
}

/// Returns the lines of a stream.
fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), "application/x-ndjson", "{}", answer.text);
    answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn chat(model: &str, more: Value) -> Value {
    let mut body = json!({"model": model, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn ollama_host_is_off_by_default() {
    let service = Service::start().await;
    assert!(service.running.address(Role::Ollama).is_none());
}

#[tokio::test]
async fn ollama_chat_is_answered_whole_and_as_lines() {
    let (up, service) = start().await;
    up.says("Hi!", 3, 4);
    let options = json!({"temperature": 0.5, "num_predict": 9, "seed": 7, "num_ctx": 4096});
    let body = chat("far", json!({"stream": false, "options": options, "keep_alive": "5m"}));
    let whole = post(&service, "/api/chat", &body).await;
    let said = whole.expect(200);
    assert_eq!(said["message"], json!({"role": "assistant", "content": "Hi!"}));
    assert_eq!((&said["model"], &said["done"]), (&json!("far"), &json!(true)));
    assert_eq!((&said["done_reason"], &said["cost"]), (&json!("stop"), &json!(0.0043)));
    assert_eq!((&said["prompt_eval_count"], &said["eval_count"]), (&json!(3), &json!(4)));
    assert!(said["eval_duration"].as_u64().unwrap() > 0, "{said}");
    assert!(said["created_at"].as_str().unwrap().ends_with('Z'), "{said}");
    assert!(!whole.header("x-execution-id").is_empty());
    let sent = up.newest();
    assert_eq!((&sent["max_tokens"], &sent["seed"]), (&json!(9), &json!(7)));
    assert_eq!(sent["num_ctx"], Value::Null);
    let feed = up.streams();
    feed.event(&json!({"choices": [{"delta": {"reasoning_content": "hm"}}]}));
    feed.say("one");
    feed.say(" two");
    feed.finish(3, 4);
    let streamed = post(&service, "/api/chat", &chat("far", json!({}))).await;
    let all = lines(&streamed);
    let text: String = all.iter().filter_map(|one| one["message"]["content"].as_str()).collect();
    let thought: String =
        all.iter().filter_map(|one| one["message"]["thinking"].as_str()).collect();
    assert_eq!((text.as_str(), thought.as_str()), ("one two", "hm"));
    let (last, parts) = all.split_last().unwrap();
    assert!(parts.iter().all(|one| one["done"] == false), "{all:?}");
    assert_eq!((&last["done"], &last["eval_count"]), (&json!(true), &json!(4)));
    let row = newest_row(&service, 2).await;
    assert_eq!((&row["model"], &row["cost_usd"].is_null()), (&json!("far"), &true));
}

#[tokio::test]
async fn ollama_chat_calls_tools_and_takes_their_results() {
    let (up, service) = start().await;
    let tool = json!({"type": "function", "function": {"name": "weather", "description": "x",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}});
    let call = |arguments: &str| json!({"index": 0, "id": "c1", "function": {"name": "weather", "arguments": arguments}});
    let feed = up.streams();
    feed.event(&json!({"choices": [{"delta": {"tool_calls": [call("{\"city\":")]}}]}));
    feed.event(&json!({"choices": [{"delta": {"tool_calls":
        [{"index": 0, "function": {"arguments": "\"Rome\"}"}}]}}]}));
    feed.finish(3, 4);
    let streamed = post(&service, "/api/chat", &chat("far", json!({"tools": [tool]}))).await;
    let all = lines(&streamed);
    let expected =
        json!([{"id": "c1", "function": {"name": "weather", "arguments": {"city": "Rome"}}}]);
    assert_eq!(all[0]["message"]["tool_calls"], expected, "{all:?}");
    assert_eq!(up.newest()["tools"][0]["function"]["name"], "weather");
    up.says("sunny", 3, 4);
    let messages = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": expected},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]);
    let body = json!({"model": "far", "messages": messages, "stream": false, "format": "json"});
    post(&service, "/api/chat", &body).await.expect(200);
    let sent = up.newest();
    assert_eq!(sent["messages"][2]["tool_call_id"], "c1");
    assert_eq!(sent["response_format"]["type"], "json_object");
}

#[tokio::test]
async fn ollama_prompt_is_answered_and_loads_models() {
    let (up, service) = start().await;
    up.says("Hi!", 3, 4);
    let body = json!({"model": "far", "prompt": "hi", "system": "be nice", "stream": false,
        "images": ["iVBORw0KGgo="]});
    let said = post(&service, "/api/generate", &body).await.expect(200);
    assert_eq!((&said["response"], &said["message"]), (&json!("Hi!"), &Value::Null));
    assert_eq!(up.newest()["messages"][0]["role"], "system");
    for (path, body, reason) in [
        ("/api/generate", json!({"model": "far"}), "load"),
        ("/api/chat", json!({"model": "far", "messages": [], "keep_alive": 0}), "unload"),
    ] {
        let loaded = post(&service, path, &body).await.expect(200);
        assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!(reason)));
    }
    assert_eq!(up.requests().len(), 1);
}

#[tokio::test]
async fn ollama_raw_prompts_and_suffixes_become_text_completions() {
    let (up, service) = start().await;
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7});
    let choice = json!({"index": 0, "text": "return", "finish_reason": "length"});
    up.answers(200, json!({"choices": [choice], "usage": usage}).to_string());
    let body = json!({"model": "far", "prompt": "def f():", "suffix": "1", "stream": false,
        "options": {"num_predict": 5}});
    let said = post(&service, "/api/generate", &body).await.expect(200);
    assert_eq!((&said["response"], &said["done_reason"]), (&json!("return"), &json!("length")));
    assert_eq!((&said["eval_count"], &said["cost"]), (&json!(4), &json!(0.0043)));
    let sent = json!({"model": "far", "prompt": "def f():", "suffix": "1", "max_tokens": 5});
    assert_eq!(up.newest(), sent);
    assert!(up.requests().last().unwrap().uri().path() == "/v1/completions");
    let feed = up.streams();
    feed.event(&json!({"choices": [{"index": 0, "text": "a"}]}));
    feed.event(&json!({"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]}));
    feed.raw("data: [DONE]\n\n");
    let body = json!({"model": "far", "prompt": "x", "raw": true, "system": "", "images": []});
    let said = lines(&post(&service, "/api/generate", &body).await);
    let text: String = said.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!((text.as_str(), &said.last().unwrap()["done"]), ("ab", &json!(true)));
    for (field, value) in [
        ("system", json!("be nice")),
        ("images", json!(["iVBORw0KGgo="])),
        ("format", json!("json")),
    ] {
        let mut body = json!({"model": "far", "prompt": "hi", "raw": true});
        body[field] = value;
        let refused = post(&service, "/api/generate", &body).await.expect(400);
        assert!(refused["error"].as_str().unwrap().starts_with(field), "{refused}");
    }
    assert_eq!(up.requests().len(), 2);
}

#[tokio::test]
async fn ollama_stream_that_breaks_ends_with_its_error() {
    let (up, service) = start().await;
    let feed = up.streams();
    feed.say("one");
    let asked = || ask(&service, Method::POST, "/api/chat").json(&chat("far", json!({})));
    let mut body = asked().open().await.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let line = |text: &[u8]| serde_json::from_slice::<Value>(text).unwrap();
    assert_eq!(line(&first)["message"]["content"], "one");
    feed.cut();
    let rest = body.collect().await.unwrap().to_bytes();
    assert!(rest.ends_with(b"}\n") && line(&rest)["error"].is_string(), "{rest:?}");
    up.answers(429, r#"{"error":{"message":"slow down"}}"#);
    let refused = post(&service, "/api/chat", &chat("far", json!({}))).await.expect(429);
    assert!(refused["error"].as_str().unwrap().contains("slow down"), "{refused}");
    let feed = up.streams();
    feed.say("one");
    let answer =
        ask(&service, Method::POST, "/api/chat").json(&chat("far", json!({}))).open().await;
    let mut body = answer.into_body();
    http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap();
    drop(body);
    up.hung_up(1).await;
    drop(feed);
}

#[tokio::test]
async fn ollama_embeddings_have_both_forms() {
    let (up, service) = start().await;
    let answer = r#"{"data":[{"embedding":[0.5,1]},{"embedding":[2,3]}],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;
    up.answers(200, answer);
    let body = json!({"model": "far", "input": ["a", "b"], "truncate": true});
    let made = post(&service, "/api/embed", &body).await.expect(200);
    assert_eq!(made["embeddings"], json!([[0.5, 1], [2, 3]]));
    assert_eq!((&made["prompt_eval_count"], &made["cost"]), (&json!(5), &json!(0.0005)));
    assert_eq!(up.newest()["encoding_format"], "float");
    up.answers(200, answer);
    let body = json!({"model": "far", "prompt": "a"});
    let made = post(&service, "/api/embeddings", &body).await;
    made.expect_text(200, r#"{"embedding":[0.5,1]}"#);
}

#[tokio::test]
async fn ollama_lists_and_describes_models() {
    let (up, service) = start().await;
    let near = Upstream::start().await;
    service.manifest(&near.manifest("near", "chat", ""));
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    service.manifest(&near.manifest("texts", "completions", ""));
    up.answers(200, r#"{"data":[{"id":"far","created":7}]}"#);
    let tags = ask(&service, Method::GET, "/api/tags").send().await.expect(200);
    let names: Vec<&str> = tags["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["near", "vectors", "far"]);
    let model = &tags["models"][0];
    assert_eq!((&model["model"], &model["size"]), (&json!("near"), &json!(0)));
    assert_eq!(model["digest"].as_str().unwrap().len(), 64);
    assert_eq!(tags["models"][2]["modified_at"], "1970-01-01T00:00:07.000Z");
    let loaded = ask(&service, Method::GET, "/api/ps").send().await;
    loaded.expect_text(200, r#"{"models":[]}"#);
    for (name, capability) in [("near", "completion"), ("near:latest", "completion")] {
        let shown = post(&service, "/api/show", &json!({"model": name})).await.expect(200);
        assert_eq!(shown["capabilities"][0], capability);
    }
    let shown = post(&service, "/api/show", &json!({"name": "vectors"})).await.expect(200);
    assert_eq!(shown["capabilities"], json!(["embedding"]));
    let missing = post(&service, "/api/show", &json!({"model": "texts"})).await;
    missing.expect_error(404, "model 'texts' not found");
    near.says("Hi!", 1, 1);
    let body = chat("near:latest", json!({"stream": false}));
    let said = post(&service, "/api/chat", &body).await.expect(200);
    assert_eq!(said["model"], "near:latest");
    let root = service.ask(Role::Ollama, Method::GET, "/").send().await;
    assert_eq!((root.status, root.text.as_str()), (200, "Ollama is running"));
    let version = service.ask(Role::Ollama, Method::GET, "/api/version").send().await.expect(200);
    assert!(version["version"].is_string());
    for (method, path) in [
        (Method::POST, "/api/pull"),
        (Method::POST, "/api/push"),
        (Method::POST, "/api/create"),
        (Method::POST, "/api/copy"),
        (Method::DELETE, "/api/delete"),
    ] {
        let asked = ask(&service, method, path).json(&json!({"model": "x"}));
        let refused = asked.undocumented().send().await.expect(501);
        let verb = path.rsplit('/').next().unwrap();
        let message = refused["error"].as_str().unwrap();
        assert!(message.starts_with(&format!("{verb} is not supported: ")), "{message}");
    }
}

#[tokio::test]
async fn ollama_requests_of_this_machine_use_the_configured_key() {
    let mut service = Service::configured(LISTEN).await;
    let tags = |service: &Service| service.ask(Role::Ollama, Method::GET, "/api/tags");
    tags(&service).send().await.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
    let accounts = &service.running.services.accounts;
    let key = accounts.keys(service.organization.id).await.unwrap().remove(0);
    service.config.hosts.ollama.key_id = Some(key.id);
    let service = service.restart().await;
    tags(&service).send().await.expect(200);
    tags(&service).header("authorization", "Bearer ollama").send().await.expect(200);
    // A web page, and one that has rebound its name to this machine.
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "http://localhost:3000"),
        ("sec-fetch-site", "cross-site"),
        ("host", "evil.example"),
    ] {
        let answer = tags(&service).header(name, value).send().await;
        assert_eq!(answer.status, 401, "{name}: {value}");
    }
    let by_name = tags(&service).header("host", "localhost:11434").send().await;
    assert_eq!(by_name.status, 200, "{}", by_name.text);
    // The key opens no other host.
    assert_eq!(service.ask(Role::Base, Method::GET, "/v1/limits").send().await.status, 401);
    let accounts = &service.running.services.accounts;
    accounts.delete_key(service.organization.id, key.id).await.unwrap();
    assert_eq!(tags(&service).send().await.status, 401);
}
