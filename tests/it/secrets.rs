//! The secrets of a workflow's owner: sealed at rest, masked in every response, and invisible to
//! the organizations that run the workflow.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Provider, Receiver, Service, holds};

/// A substring of every secret.
const SECRET: &str = "hunter2-of-the-owner";
/// A substring of the owner's texts whose field names do not mark them as secrets.
const WORDS: &str = "wording-of-the-owner";

fn steps(provider: &Provider) -> Value {
    let host = provider.url("");
    json!([
        {"step_id": "ask", "type": "http", "method": "POST",
         "url": format!("{host}/list?api_key={SECRET}&n=1"),
         "headers": {"X-Vault-Token": SECRET, "X-Kind": WORDS},
         "query_params": {"sig": SECRET},
         "body": {"password": SECRET, "note": WORDS},
         "auth": {"type": "bearer", "token": SECRET}},
        {"step_id": "think", "type": "model", "model": "lists",
         "params": {"prompt": WORDS, "api_token": SECRET}},
        {"step_id": "fail", "type": "http", "url": format!("{host}/status/500"),
         "headers": {"X-Vault-Token": SECRET}, "fail_when": "non_2xx"},
    ])
}

async fn start() -> (Service, Provider, String) {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("lists", "/list", ""));
    let id = service.workflow(steps(&provider)).await;
    (service, provider, id)
}

fn version(id: &str) -> String {
    format!("/workflows/{id}/versions/v1")
}

/// Shares the version by writing back the masked form that the service shows.
async fn share(service: &Service, id: &str) {
    let seen = service.flows(Method::GET, &version(id)).send().await.expect(200);
    let put =
        json!({"version_id": "v1", "allowed_to_share": true, "definition": seen["definition"]});
    service.flows(Method::PUT, &version(id)).json(&put).send().await.expect(200);
}

#[tokio::test]
async fn secrets_of_public_workflow_are_hidden_from_callers() {
    let (service, provider, id) = start().await;
    share(&service, &id).await;
    let mut receiver = Receiver::start().await;
    let body = json!({"api_key": service.other_key, "inputs": {}, "webhook_url": receiver.url()});
    let path = format!("/api/v1/public/{id}/versions/v1/trigger");
    let taken = service.ask(Role::Workflows, Method::POST, &path).json(&body).send().await;
    let execution = taken.expect(202)["execution_id"].as_str().unwrap().to_owned();
    let webhook = receiver.next().await.json();
    let other = async |role, method, path: &str| {
        let asked = service.ask(role, method, path).key(&service.other_key).send().await;
        assert!(asked.status < 300, "{}", asked.text);
        asked.text
    };
    let path = format!("/api/v1/executions/{execution}");
    let detail = other(Role::Workflows, Method::GET, &path).await;
    let read: Value = serde_json::from_str(&detail).unwrap();
    assert_eq!(read["status"], "failed");
    for step in ["ask", "think", "fail"] {
        assert_eq!(read["step_outputs"][step]["input"], Value::Null, "{step}");
    }
    let prediction = read["step_outputs"]["think"]["metadata"]["prediction_id"].as_str().unwrap();
    let redriven = other(Role::Workflows, Method::POST, &format!("{path}/redrive")).await;
    let redriven: Value = serde_json::from_str(&redriven).unwrap();
    let again = redriven["execution_id"].as_str().unwrap();
    let seen = [
        detail,
        webhook.to_string(),
        other(Role::Base, Method::GET, &format!("/v1/prediction/{prediction}")).await,
        other(Role::Base, Method::GET, &format!("/v1/prediction/{prediction}/events")).await,
        other(Role::Workflows, Method::GET, &format!("/api/v1/executions/{again}")).await,
        other(Role::Base, Method::GET, "/v2/executions").await,
        other(Role::Base, Method::GET, &format!("/v1/webhooks/{execution}")).await,
    ];
    let host = provider.url("").replace("http://", "");
    for seen in seen {
        for hidden in [SECRET, WORDS, &host, "this is 500"] {
            assert!(!seen.contains(hidden), "{hidden}: {seen}");
        }
    }
    // The requests contain the secrets.
    let sent = &provider.requests()[0];
    assert_eq!(sent.headers()["x-vault-token"], SECRET);
    assert_eq!(sent.headers()["authorization"], format!("Bearer {SECRET}"));
    assert_eq!(sent.uri().query().unwrap(), format!("api_key={SECRET}&n=1&sig={SECRET}"));
}

#[tokio::test]
async fn secrets_are_masked_in_requests_shown_to_owner() {
    let (service, provider, id) = start().await;
    let mut receiver = Receiver::start().await;
    let fields = json!({"inputs": {}, "webhook_url": receiver.url()});
    let execution = service.trigger(&id, fields).await;
    let webhook = receiver.next().await.json();
    let detail = service.completed(&execution).await;
    assert_eq!(webhook["step_outputs"], detail["step_outputs"]);
    assert!(!detail.to_string().contains(SECRET), "{detail}");
    let ask = &detail["step_outputs"]["ask"]["input"];
    assert_eq!(ask["url"], format!("{}/list?api_key=***&n=1", provider.url("")));
    assert_eq!(ask["headers"]["X-Vault-Token"], "***");
    assert_eq!(ask["headers"]["X-Kind"], WORDS);
    assert_eq!(ask["body"], json!({"password": "***", "note": WORDS}));
    let think = &detail["step_outputs"]["think"];
    assert_eq!(think["input"], json!({"prompt": WORDS, "api_token": "***"}));
    let prediction = think["metadata"]["prediction_id"].as_str().unwrap();
    let prediction = service.get(&format!("/v1/prediction/{prediction}")).await.expect(200);
    assert_eq!(prediction["input"], think["input"]);
    assert!(detail["error_cause"].as_str().unwrap().contains("this is 500"));
}

#[tokio::test]
async fn secrets_in_definition_are_sealed_masked_and_restored() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut steps = steps(&provider);
    // A body and model parameters are not credentials, so they remain as written.
    steps[0]["body"] = json!(null);
    steps.as_array_mut().unwrap().truncate(1);
    let id = service.workflow(steps.clone()).await;
    assert!(!holds(&service.folder.path().join("data"), SECRET), "a credential is on the disk");
    let seen = service.flows(Method::GET, &version(&id)).send().await.expect(200);
    assert!(!seen.to_string().contains(SECRET), "{seen}");
    assert_eq!(seen["definition"]["steps"][0]["auth"], json!({"type": "bearer", "token": "***"}));
    let old = format!("/api/v1/{id}");
    let old = service.ask(Role::Flows, Method::GET, &old).key(&service.key).send().await;
    assert!(!old.expect(200).to_string().contains(SECRET), "{}", old.text);

    share(&service, &id).await;
    let service = service.restart().await;
    let execution = service.trigger(&id, json!({"inputs": {}})).await;
    assert_eq!(service.completed(&execution).await["status"], "completed");
    assert_eq!(provider.requests()[0].headers()["x-vault-token"], SECRET);

    let body = json!({"name": "n", "description": "d", "definition": seen["definition"]});
    let refused = service.flows(Method::POST, "/workflows").json(&body).send().await.expect(400);
    let message = refused["error"].as_str().unwrap();
    assert!(message.starts_with("step 'ask': url is masked"), "{refused}");
    let mut moved = seen["definition"].clone();
    moved["steps"][0]["url"] = json!("http://127.0.0.2/");
    let put = json!({"version_id": "v1", "definition": moved});
    let put = service.flows(Method::PUT, &version(&id)).json(&put).send().await.expect(400);
    assert_eq!(put["details"][0]["path"], "/steps/0/auth/token");
}
