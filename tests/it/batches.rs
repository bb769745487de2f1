//! Batches over HTTP: files with a purpose, the states of a batch, its output files, charges, and
//! the rights of other organizations.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Answer, Service, Upstream, until};

const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 1000.0, \
                     per_million_output_tokens = 1000.0 }]\n";

pub(crate) fn chat(id: &str, content: &str) -> Value {
    let body = json!({"model": "far", "messages": [{"role": "user", "content": content}]});
    json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body})
}

/// Uploads lines as a form with the purpose `batch`; returns the record.
async fn upload(service: &Service, lines: &[Value]) -> Value {
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let form = format!(
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
         --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\
         Content-Type: application/jsonl\r\n\r\n{lines}\r\n--b--\r\n"
    );
    let upload = service.ask(Role::Base, Method::POST, "/v1/files").key(&service.key);
    let upload = upload.header("content-type", "multipart/form-data; boundary=b").body(form);
    upload.send().await.expect(201)
}

fn request(file: &Value) -> Value {
    json!({
        "input_file_id": file["id"], "endpoint": "/v1/chat/completions",
        "completion_window": "24h", "metadata": {"run": "nightly"},
    })
}

pub(crate) async fn create(service: &Service, lines: &[Value]) -> Value {
    let file = upload(service, lines).await;
    service.post("/v1/batches", &request(&file)).send().await.expect(200)
}

/// Waits until the batch has this status.
pub(crate) async fn reached(service: &Service, batch: &Value, status: &str) -> Value {
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    until(status, async || {
        let batch = service.get(&path).await.expect(200);
        (batch["status"] == status).then_some(batch)
    })
    .await
}

async fn lines(service: &Service, file: &Value) -> Vec<Value> {
    let path = format!("/v1/files/{}/content", file.as_str().unwrap());
    let content = service.get(&path).await;
    assert_eq!(content.status, 200);
    content.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn expect_error(answer: &Answer, status: u16, words: &str) {
    let body = answer.expect(status);
    assert!(body["error"]["message"].as_str().unwrap().contains(words), "{body}");
}

pub(crate) fn answers(upstream: &Upstream) {
    upstream.follows(|request| {
        let content = request["messages"][0]["content"].as_str().unwrap();
        if content == "bad" {
            return (400, json!({"error": {"message": "no such thing", "code": "bad"}}));
        }
        let message = json!({"role": "assistant", "content": content});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        let usage = json!({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2});
        (200, json!({"id": "c", "choices": [choice], "usage": usage}))
    });
}

#[tokio::test]
async fn batch_answers_lines_and_charges_each_once() {
    let upstream = Upstream::start().await;
    answers(&upstream);
    let service = Service::configured(&upstream.config(PRICE)).await;
    let lines_in = [
        chat("a", "one"),
        chat("b", "bad"),
        json!({"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": {}}),
        chat("d", "two"),
    ];
    let made = create(&service, &lines_in).await;
    assert_eq!((&made["object"], &made["status"]), (&json!("batch"), &json!("validating")));
    assert_eq!(made["metadata"], json!({"run": "nightly"}));
    assert_eq!(made["request_counts"], json!({"total": 0, "completed": 0, "failed": 0}));
    let ended = reached(&service, &made, "completed").await;
    assert_eq!(ended["request_counts"], json!({"total": 4, "completed": 2, "failed": 2}));
    let output = lines(&service, &ended["output_file_id"]).await;
    assert_eq!(output[1]["custom_id"], "d");
    let body = &output[1]["response"]["body"];
    assert_eq!(body["choices"][0]["message"]["content"], "two");
    assert_eq!(body["usage"]["cost"], 0.002);
    let errors = lines(&service, &ended["error_file_id"]).await;
    assert_eq!(errors[0]["response"]["body"]["error"]["code"], "bad");
    assert_eq!(errors[1]["response"]["status_code"], 400);
    assert_eq!(errors[1]["response"]["body"]["error"]["param"], "model");
    let charged: Vec<_> =
        service.ledger().await.iter().map(|entry| entry.amount.micros()).collect();
    assert_eq!(charged, [-2000, -2000]);
    let found = service.get("/v1/files?purpose=batch_output").await.expect(200);
    assert_eq!(
        (found["object"].as_str(), found["data"].as_array().unwrap().len()),
        (Some("list"), 2)
    );
    assert_eq!(found["data"][0]["status"], "processed");
    let page = service.get("/v1/batches?limit=1").await.expect(200);
    assert_eq!((&page["first_id"], &page["has_more"]), (&ended["id"], &json!(false)));
    assert_eq!(page["data"], json!([ended]));
}

#[tokio::test]
async fn batch_of_responses_is_answered_in_their_format() {
    let upstream = Upstream::start().await;
    answers(&upstream);
    let service = Service::configured(&upstream.config(PRICE)).await;
    let line = |id: &str, body: Value| json!({"custom_id": id, "method": "POST", "url": "/v1/responses", "body": body});
    let lines_in = [
        line("a", json!({"model": "far", "input": "hi"})),
        line("b", json!({"model": "far", "input": "hi", "background": true})),
    ];
    let file = upload(&service, &lines_in).await;
    let mut body = request(&file);
    body["endpoint"] = json!("/v1/responses");
    let made = service.post("/v1/batches", &body).send().await.expect(200);
    let ended = reached(&service, &made, "completed").await;
    let output = lines(&service, &ended["output_file_id"]).await;
    let response = &output[0]["response"];
    let answer = &response["body"];
    assert_eq!((&answer["object"], &answer["store"]), (&json!("response"), &json!(false)));
    assert_eq!(answer["output"][0]["content"][0]["text"], "hi");
    let id = answer["id"].as_str().unwrap().strip_prefix("resp_").unwrap();
    assert_eq!(id, response["request_id"].as_str().unwrap().replace('-', ""));
    let errors = lines(&service, &ended["error_file_id"]).await;
    assert_eq!(errors[0]["response"]["body"]["error"]["param"], "background");
}

#[tokio::test]
async fn batch_yields_to_live_calls_of_a_local_model() {
    let upstream = Upstream::start().await;
    answers(&upstream);
    let service = Service::configured("").await;
    service.manifest(&upstream.manifest("far", "chat", "concurrency = 1"));
    let first = upstream.streams();
    let made = create(&service, &[chat("a", "one"), chat("b", "two")]).await;
    upstream.arrived(1).await;
    // One line holds the only permit; the live call waits in front of the other line.
    let body = json!({"model": "far", "messages": [{"role": "user", "content": "live"}]});
    let live = service.post("/v1/chat/completions", &body).send();
    let answering = async {
        until("the live call waits", async || {
            (service.engine().load("far").queued == 1).then_some(())
        })
        .await;
        first.say("one");
        first.finish(1, 1);
    };
    tokio::join!(live, answering).0.expect(200);
    reached(&service, &made, "completed").await;
    let requests = upstream.requests();
    let contents = requests.iter().map(|request| {
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        body["messages"][0]["content"].as_str().unwrap().to_owned()
    });
    assert_eq!(contents.collect::<Vec<_>>()[1], "live", "the lines may come in any order");
}

#[tokio::test]
async fn batch_is_refused_with_the_reason() {
    let service = Service::start().await;
    let file = upload(&service, &[chat("a", "one")]).await;
    let mut wrong = request(&file);
    wrong["endpoint"] = json!("/v1/nothing");
    expect_error(&service.post("/v1/batches", &wrong).send().await, 400, "endpoint");
    let mut wrong = request(&file);
    wrong["completion_window"] = json!("1h");
    expect_error(&service.post("/v1/batches", &wrong).send().await, 400, "completion_window");
    let unknown = request(&json!({"id": "01a21c6e-019b-70fb-b055-5d0f3b8e0257"}));
    expect_error(&service.post("/v1/batches", &unknown).send().await, 400, "there is no file");
    expect_error(&service.get("/v1/batches/batch_1").await, 404, "batch not found");
    let made = service.post("/v1/batches", &request(&file)).send().await.expect(200);
    let path = format!("/v1/batches/{}", made["id"].as_str().unwrap());
    let foreign = service.ask(Role::Base, Method::GET, &path).key(&service.other_key).send().await;
    expect_error(&foreign, 404, "batch not found");
    let theirs = service.ask(Role::Base, Method::POST, "/v1/batches").key(&service.other_key);
    let theirs = theirs.json(&request(&file)).send().await;
    expect_error(&theirs, 400, "there is no file");
    // There is no upstream, so the line is refused without a call.
    let ended = reached(&service, &made, "completed").await;
    let errors = lines(&service, &ended["error_file_id"]).await;
    assert_eq!(errors[0]["response"]["body"]["error"]["code"], "model_not_found");
    let again = service.post(&format!("{path}/cancel"), &json!({})).send().await;
    expect_error(&again, 409, "already ended");
}
