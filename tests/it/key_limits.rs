//! Restricted API keys: scopes on every route, models, budgets, rates, requests in flight, blocking
//! and rotation.

use std::time::Duration;

use futures_util::future::join_all;
use hyper::Method;
use orrery_api::{Access, ROUTES, Role};
use orrery_domain::key_policy::{KeyPolicy, Scope};
use orrery_domain::money::Usd;
use serde_json::{Value, json};

use crate::chat::request;
use crate::routes::path_of;
use crate::support::{Answer, Service, Upstream, until};

/// A call of this model reserves 0.1 USD and costs 0.05 USD.
const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 0.0, \
                     per_million_output_tokens = 1000.0 }]\n";

/// Creates a key with a policy and returns its text.
async fn key(service: &Service, policy: KeyPolicy) -> String {
    let accounts = &service.running.services.accounts;
    let organization = service.organization.id;
    let made = accounts.create_key_with(organization, "limited", "test", None, policy).await;
    made.unwrap().1
}

fn only(scopes: &[Scope]) -> KeyPolicy {
    let scopes = Some(scopes.iter().copied().collect());
    KeyPolicy { scopes, ..KeyPolicy::default() }
}

async fn get(service: &Service, key: &str, path: &str) -> Answer {
    service.ask(Role::Base, Method::GET, path).key(key).send().await
}

async fn post(service: &Service, key: &str, path: &str, body: &Value) -> Answer {
    service.ask(Role::Base, Method::POST, path).key(key).json(body).send().await
}

async fn info(service: &Service, key: &str) -> Value {
    get(service, key, "/v1/key/info").await.expect(200)
}

/// Sends each route's request with a key for each scope: 403 exactly where the route table says so.
#[tokio::test]
async fn each_route_refuses_keys_without_its_scope() {
    let service = Service::start().await;
    let hosts = [Role::Base, Role::Workflows, Role::Flows, Role::Agent];
    for scope in Scope::ALL {
        let key = key(&service, only(&[scope])).await;
        for role in hosts {
            let rows = ROUTES.iter().filter(|route| route.hosts.contains(&role));
            for route in rows.filter(|route| matches!(route.access, Access::Key | Access::Link)) {
                let path = path_of(route);
                let ask = service.ask(role, route.method.clone(), &path).key(&key);
                let answer = ask.undocumented().body("{}").open().await;
                let (needed, _) = route.needs.scopes();
                let is_allowed = needed.iter().all(|needed| *needed == scope);
                let is_refused = answer.status() == 403;
                let (method, name) = (&route.method, scope.as_str());
                assert_ne!(is_refused, is_allowed, "{method} {path} with {name}: {answer:?}");
            }
        }
    }
}

#[tokio::test]
async fn key_without_read_may_read_and_cancel_what_it_created() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let predicts = key(&service, only(&[Scope::Predict, Scope::Files])).await;
    let prediction = json!({"model": "text-template", "version": "1",
        "input": {"template": "a", "values": {}}});
    let made = post(&service, &predicts, "/v1/prediction", &prediction).await.expect(200);
    let own = format!("/v1/prediction/{}", made["predictionID"].as_str().unwrap());
    get(&service, &predicts, &format!("{own}?wait=5")).await.expect(200);
    let cancelled = post(&service, &predicts, &format!("{own}/cancel"), &json!({})).await;
    assert_ne!(cancelled.status, 403, "{}", cancelled.text);

    let others = service.create("text-template", prediction["input"].clone()).await;
    let others = format!("/v1/prediction/{others}");
    let refused = get(&service, &predicts, &others).await;
    refused.expect_error(403, "this key may not do this: it needs the scope read");
    get(&service, &predicts, "/v1/executions").await.expect(403);
    let upload = json!({"content_type": "text/plain", "filename": "a.txt"});
    let upload = post(&service, &predicts, "/v1/upload/presign", &upload).await.expect(200);
    let id = upload["id"].as_str().unwrap();
    let put = service.ask(Role::Base, Method::PUT, &format!("/v1/upload/{id}")).key(&predicts);
    put.header("content-type", "text/plain").body("hello").send().await.expect(200);
    get(&service, &predicts, &format!("/v1/files/{id}")).await.expect(200);
    get(&service, &predicts, "/v1/files").await.expect(403);
    let delete = service.ask(Role::Base, Method::DELETE, &format!("/v1/files/{id}"));
    assert_eq!(delete.key(&predicts).send().await.status, 204);

    let refused = post(&service, &predicts, "/v1/chat/completions", &request("far")).await;
    let error = refused.expect(403)["error"].clone();
    assert_eq!(error["type"], "permission_error");
    assert_eq!(error["message"], "this key may not do this: it needs the scope chat");
    assert_eq!(info(&service, &predicts).await["scopes"], json!(["predict", "files"]));
    assert_eq!(up.requests().len(), 0);
}

#[tokio::test]
async fn key_may_use_its_models_and_the_chains_of_its_organization() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let models = Some(vec!["text-*".to_owned(), "far".to_owned()]);
    let few = key(&service, KeyPolicy { models, ..KeyPolicy::default() }).await;
    let input = json!({"model": "image-qr", "version": "1", "input": {"text": "a"}});
    let refused = post(&service, &few, "/v1/prediction/run", &input).await;
    refused.expect_error(403, "this key may not use the model 'image-qr'");
    up.says("hello", 1, 1);
    post(&service, &few, "/v1/chat/completions", &request("far")).await.expect(200);
    let refused = post(&service, &few, "/v1/chat/completions", &request("other")).await;
    assert_eq!(refused.expect(403)["error"]["message"], "this key may not use the model 'other'");
    assert_eq!(up.requests().len(), 1);

    let step = json!([{"step_id": "qr", "type": "model", "model": "image-qr",
        "params": {"text": "a"}}]);
    let workflow = service.workflow(step).await;
    let path = format!("/v1/workflows/{workflow}/trigger");
    let run = post(&service, &few, &path, &json!({})).await.expect(202);
    let run = run["execution_id"].as_str().unwrap().to_owned();
    let failed = until("the end", async || {
        let run = service.execution(&run).await;
        (run["status"] == "failed").then_some(run)
    })
    .await;
    assert!(failed.to_string().contains("this key may not use the model 'image-qr'"), "{failed}");
}

#[tokio::test]
async fn batch_lines_of_a_key_fail_for_models_that_it_may_not_use() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let models = Some(vec!["near".to_owned()]);
    let few = key(&service, KeyPolicy { models, ..KeyPolicy::default() }).await;
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
        "body": request("far")});
    let form = format!(
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
         --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\
         Content-Type: application/jsonl\r\n\r\n{line}\n\r\n--b--\r\n"
    );
    let upload = service.ask(Role::Base, Method::POST, "/v1/files").key(&few);
    let upload = upload.header("content-type", "multipart/form-data; boundary=b").body(form);
    let file = upload.send().await.expect(201);
    let batch = json!({"input_file_id": file["id"], "endpoint": "/v1/chat/completions",
        "completion_window": "24h"});
    let batch = post(&service, &few, "/v1/batches", &batch).await.expect(200);
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    let ended = until("the end", async || {
        let batch = get(&service, &few, &path).await.expect(200);
        (batch["status"] == "completed").then_some(batch)
    })
    .await;
    assert_eq!(ended["request_counts"], json!({"total": 1, "completed": 0, "failed": 1}));
    let errors = format!("/v1/files/{}/content", ended["error_file_id"].as_str().unwrap());
    let errors = get(&service, &few, &errors).await.text;
    assert!(errors.contains("this key may not use the model 'far'"), "{errors}");
    assert_eq!(up.requests().len(), 0);
}

/// 64 calls at the same time, each of which may cost a tenth of the budget.
#[tokio::test]
async fn budget_of_a_key_is_never_exceeded_by_parallel_calls() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    up.follows(|_| {
        let usage = json!({"prompt_tokens": 1, "completion_tokens": 50, "total_tokens": 51});
        let message = json!({"role": "assistant", "content": "hello"});
        let choices = json!([{"index": 0, "message": message, "finish_reason": "stop"}]);
        (
            200,
            json!({"id": "c", "object": "chat.completion", "created": 1, "model": "far",
            "choices": choices, "usage": usage}),
        )
    });
    let max_budget = Some(Usd::from_micros(1_000_000));
    let rich = key(&service, KeyPolicy { max_budget, ..KeyPolicy::default() }).await;
    let mut body = request("far");
    body["max_tokens"] = json!(100);
    let ask = || post(&service, &rich, "/v1/chat/completions", &body);
    let mut answered = 0;
    loop {
        let answers = join_all((0..64).map(|_| ask())).await;
        let good = answers.iter().filter(|answer| answer.status == 200).count();
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            let error = answer.expect(402)["error"]["message"].as_str().unwrap().to_owned();
            assert!(error.starts_with("the budget of this key is 1.000000 USD, "), "{error}");
        }
        answered += good;
        if good == 0 {
            break;
        }
    }
    // A call is admitted while 0.1 USD are left, and costs 0.05 USD.
    assert_eq!(answered, 19);
    let info = info(&service, &rich).await;
    assert_eq!((&info["spend"], &info["max_budget"]), (&json!(0.95), &json!(1.0)));
    up.says("hello", 1, 1);
    service.post("/v1/chat/completions", &body).send().await.expect(200);
}

#[tokio::test]
async fn rates_of_a_key_are_exact_for_parallel_calls() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let mut body = request("far");
    body["max_tokens"] = json!(90);
    let policy = KeyPolicy {
        rpm_limit: Some(40),
        tpm_limit: Some(100_000),
        max_parallel_requests: Some(3),
        ..KeyPolicy::default()
    };
    let limited = key(&service, policy).await;
    let silent: Vec<_> = (0..3).map(|_| up.is_silent()).collect();
    assert_eq!(silent.len(), 3);
    let path = "/v1/chat/completions";
    let running: Vec<_> = (0..3)
        .map(|_| {
            let ask = service.ask(Role::Base, Method::POST, path).key(&limited).json(&body);
            Box::pin(ask.open())
        })
        .collect();
    let mut running = Box::pin(join_all(running));
    let rest = async {
        up.arrived(3).await;
        let answers = join_all((0..20).map(|_| post(&service, &limited, path, &body))).await;
        for answer in answers {
            let error = answer.expect(429);
            assert_eq!(error["error"]["message"], "this key may have 3 requests in flight");
        }
    };
    tokio::select! {
        _answers = &mut running => panic!("a silent upstream answered"),
        () = rest => {}
    }
    let mut left = 40 - 3;
    up.says("hello", 1, 1);
    let answer = until("a free place", async || {
        // The clients above have gone; the service notices it soon.
        let answer = post(&service, &limited, path, &body).await;
        (answer.status == 200).then_some(answer)
    });
    drop(running);
    let answer = answer.await;
    left -= 1;
    assert_eq!(answer.header("x-ratelimit-limit-requests"), "40");
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), left.to_string());
    assert!(answer.header("x-ratelimit-reset-requests").ends_with('s'));
    assert_eq!(answer.header("x-ratelimit-limit-tokens"), "100000");
}

#[tokio::test]
async fn tokens_per_minute_are_reserved_and_settled() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let limited = key(&service, KeyPolicy { tpm_limit: Some(1000), ..KeyPolicy::default() }).await;
    let path = "/v1/chat/completions";
    let endless = post(&service, &limited, path, &request("far")).await.expect(400);
    let message = endless["error"]["message"].as_str().unwrap();
    assert!(message.ends_with("limit the answer, for example with max_tokens"), "{message}");
    let mut body = request("far");
    body["max_tokens"] = json!(400);
    up.follows(|_| {
        let usage = json!({"prompt_tokens": 100, "completion_tokens": 300, "total_tokens": 400});
        let message = json!({"role": "assistant", "content": "hello"});
        let choices = json!([{"index": 0, "message": message, "finish_reason": "stop"}]);
        (
            200,
            json!({"id": "c", "object": "chat.completion", "created": 1, "model": "far",
            "choices": choices, "usage": usage}),
        )
    });
    let mut answered = 0;
    loop {
        let answers = join_all((0..16).map(|_| post(&service, &limited, path, &body))).await;
        let good = answers.iter().filter(|answer| answer.status == 200).count();
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            let error = answer.expect(429);
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.starts_with("this key may use 1000 tokens per minute"), "{message}");
            assert!(answer.header("retry-after").parse::<u64>().unwrap() <= 60);
            assert_eq!(answer.header("x-ratelimit-limit-tokens"), "1000");
        }
        answered += good;
        if good == 0 {
            break;
        }
    }
    assert_eq!(answered, 2, "the third call would exceed the limit");
}

#[tokio::test]
async fn key_can_be_changed_blocked_and_rotated() {
    let service = Service::start().await;
    let accounts = &service.running.services.accounts;
    let organization = service.organization.id;
    let (made, first) = accounts.create_key(organization, "ci", "test", None).await.unwrap();
    let block = |on: bool| {
        accounts.change_key(organization, made.id, move |key| {
            key.policy.blocked = on;
        })
    };
    block(true).await.unwrap();
    get(&service, &first, "/v1/limits").await.expect_error(403, "this key is blocked");
    get(&service, &first, "/v1/models").await.expect_error(403, "this key is blocked");
    block(false).await.unwrap();
    get(&service, &first, "/v1/limits").await.expect(200);

    let hour = Duration::from_secs(3600);
    let (same, second) = accounts.rotate_key(organization, made.id, hour).await.unwrap();
    assert_eq!(same.id, made.id);
    for key in [&first, &second] {
        assert_eq!(info(&service, key).await["key_id"], json!(made.id));
    }
    let (_, third) = accounts.rotate_key(organization, made.id, Duration::ZERO).await.unwrap();
    get(&service, &first, "/v1/limits").await.expect(401);
    get(&service, &second, "/v1/limits").await.expect(401);
    get(&service, &third, "/v1/limits").await.expect(200);
    accounts.change_key(organization, made.id, |key| key.policy.rpm_limit = Some(7)).await.unwrap();
    assert_eq!(accounts.keys(organization).await.unwrap().len(), 2);

    let service = service.restart().await;
    assert_eq!(info(&service, &third).await["rpm_limit"], 7);
    get(&service, &second, "/v1/limits").await.expect(401);
    let accounts = &service.running.services.accounts;
    accounts.delete_key(organization, made.id).await.unwrap();
    get(&service, &third, "/v1/limits").await.expect(401);
}
