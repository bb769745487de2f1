//! Named secrets: set, listed and deleted over HTTP and on the command line; used in the requests
//! of workflows; never stored in plain text, displayed, or sent elsewhere.

use std::process::Stdio;

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::support::{Provider, Receiver, Service, holds, until, within};

const SECRET: &str = "correct-horse-battery";
const ROTATED: &str = "another-horse-battery";

async fn put(service: &Service, name: &str, value: &str) -> u16 {
    let path = format!("/v1/secrets/{name}");
    let ask = service.ask(Role::Base, Method::PUT, &path).key(&service.key);
    ask.json(&json!({"value": value})).send().await.status
}

fn steps(provider: &Provider) -> Value {
    json!([
        {"step_id": "ask", "type": "http", "method": "POST", "url": provider.url("/echo"),
         "headers": {"X-Plain": "is {{secrets.token}}"},
         "body": {"text": "{{secrets.token}}"},
         "auth": {"type": "bearer", "token": "{{secrets.token}}"}},
        {"step_id": "end", "type": "pass", "result": {"said": "{{ask.output}}"}},
    ])
}

#[tokio::test]
async fn named_secret_reaches_the_receiver_and_nothing_else() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    assert_eq!(put(&service, "token", SECRET).await, 201);
    let id = service.workflow(steps(&provider)).await;
    let fields = json!({"inputs": {}, "webhook_url": receiver.url()});
    let execution = service.trigger(&id, fields).await;
    let webhook = receiver.next().await.json();
    let detail = service.completed(&execution).await;
    assert_eq!(detail["output"], json!({"said": {"output": {"text": "***"}}}), "{detail}");
    assert_eq!(detail["step_outputs"]["ask"]["input"]["headers"]["X-Plain"], "is ***");
    let sent = &provider.requests()[0];
    assert_eq!(sent.headers()["authorization"], format!("Bearer {SECRET}"));
    assert_eq!(sent.headers()["x-plain"], format!("is {SECRET}"));
    for seen in [
        webhook.to_string(),
        detail.to_string(),
        service.get("/v1/secrets").await.text,
        service.get("/v2/executions").await.text,
        service.get(&format!("/v1/webhooks/{execution}")).await.text,
        service.flows(Method::GET, &format!("/workflows/{id}/versions/v1")).send().await.text,
    ] {
        assert!(!seen.contains(SECRET), "{seen}");
    }
    let data = service.folder.path().join("data");
    assert!(!holds(&data, SECRET), "the secret is on the disk");

    // A new value takes effect at the next attempt, and both secrets survive a restart.
    assert_eq!(put(&service, "token", ROTATED).await, 200);
    let service = service.restart().await;
    let execution = service.trigger(&id, json!({"inputs": {}})).await;
    assert_eq!(service.completed(&execution).await["status"], "completed");
    let sent = provider.requests();
    assert_eq!(sent[1].headers()["authorization"], format!("Bearer {ROTATED}"));

    // Without its secret, the step fails with an error that names the secret.
    let path = "/v1/secrets/token";
    let delete = service.ask(Role::Base, Method::DELETE, path).key(&service.key);
    assert_eq!(delete.send().await.status, 204);
    let execution = service.trigger(&id, json!({"inputs": {}})).await;
    let failed = service.completed(&execution).await;
    assert_eq!(failed["error"], "ReferenceError");
    assert!(failed["error_cause"].as_str().unwrap().contains("{{secrets.token}}"), "{failed}");
}

#[tokio::test]
async fn named_secrets_belong_to_one_organization() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    put(&service, "token", SECRET).await;
    let theirs = |method, path: &str| service.ask(Role::Base, method, path).key(&service.other_key);
    let listed = theirs(Method::GET, "/v1/secrets").send().await.expect(200);
    assert_eq!(listed, json!({"secrets": []}));
    theirs(Method::DELETE, "/v1/secrets/token")
        .send()
        .await
        .expect_error(404, "there is no secret token");
    let body = json!({"name": "n", "description": "d", "definition": {"steps": steps(&provider)}});
    let made = service.ask(Role::Workflows, Method::POST, "/api/v1/workflows");
    let refused = made.key(&service.other_key).json(&body).send().await.expect(400);
    let message =
        "step 'ask': {{secrets.token}} refers to a secret that does not exist: set it first";
    assert_eq!(refused["error"], message);
    assert_eq!(refused["details"][0]["path"], "/steps/0/headers/X-Plain");
    // A shared workflow runs with its owner's secrets, which its caller cannot see.
    let id = service.workflow(steps(&provider)).await;
    let seen = service.flows(Method::GET, &format!("/workflows/{id}/versions/v1")).send().await;
    let definition = &seen.expect(200)["definition"];
    let share = json!({"version_id": "v1", "allowed_to_share": true, "definition": definition});
    let path = format!("/workflows/{id}/versions/v1");
    service.flows(Method::PUT, &path).json(&share).send().await.expect(200);
    let body = json!({"api_key": service.other_key, "inputs": {}});
    let path = format!("/api/v1/public/{id}/versions/v1/trigger");
    let taken = service.ask(Role::Workflows, Method::POST, &path).json(&body).send().await;
    let execution = taken.expect(202)["execution_id"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/executions/{execution}?timeout=15");
    let detail = until("end of the execution", async || {
        let detail = service.ask(Role::Workflows, Method::GET, &path).key(&service.other_key);
        let detail = detail.send().await.expect(200);
        (detail["status"] == "completed").then_some(detail)
    })
    .await;
    assert!(!detail.to_string().contains(SECRET), "{detail}");
    assert_eq!(provider.requests()[0].headers()["x-plain"], format!("is {SECRET}"));
}

#[tokio::test]
async fn named_secret_with_invalid_name_or_value_is_rejected() {
    let service = Service::start().await;
    let ask = |name: &str, body: Value| {
        let path = format!("/v1/secrets/{name}");
        service.ask(Role::Base, Method::PUT, &path).key(&service.key).json(&body).send()
    };
    let name = "a secret's name must have 1 to 64 characters of a-z A-Z 0-9 _ -";
    ask("a.b", json!({"value": "x"})).await.expect_error(400, name);
    for (bad, rule) in [
        (String::new(), "must not be empty"),
        ("a\0b".to_owned(), "must not contain NUL characters"),
        ("x".repeat(32769), "must have at most 32768 characters"),
    ] {
        let refused = ask("a", json!({"value": bad})).await.expect(400);
        assert_eq!(refused["error"], format!("value {rule}"));
        assert_eq!(refused["details"], json!([{"path": "/value", "message": rule}]));
    }
    assert_eq!(ask("a", json!({"value": 7})).await.status, 400);
    assert_eq!(ask("a", json!({})).await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn named_secret_can_be_set_by_command_line() {
    let service = Service::start().await;
    let folder = service.folder.path().to_owned();
    let command = async |arguments: &[&str], input: &str| {
        let mut child = tokio::process::Command::new(&service.config.program)
            .args(["--config", "config.toml", "secret"])
            .args(arguments)
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let done = within("end of the command", child.wait_with_output()).await.unwrap();
        let text = [done.stdout, done.stderr].concat();
        (done.status.success(), String::from_utf8(text).unwrap())
    };
    let org = service.organization.name.clone();
    let (is_done, said) = command(&["set", "token", "--org", &org], "pass phrase\n").await;
    assert!(is_done && said.contains("{{secrets.token}}") && !said.contains("phrase"), "{said}");
    let values = service.running.services.secrets.clone();
    let values = values.values(service.organization.id, &["token".to_owned()]).await.unwrap();
    assert_eq!(values.get("token"), Some("pass phrase"));
    let (is_done, said) = command(&["list", "--json"], "").await;
    assert!(is_done && said.contains("\"token\"") && !said.contains("phrase"), "{said}");
    let (is_done, said) = command(&["set", "bad name"], "x").await;
    assert!(!is_done && said.contains("a secret's name must have"), "{said}");
    let (is_done, _) = command(&["delete", "token", "--org", &org], "").await;
    assert!(is_done);
    let (is_done, said) = command(&["delete", "token", "--org", &org], "").await;
    assert!(!is_done && said.contains("there is no secret token"), "{said}");
    let audit = &service.running.services.audit;
    let acts = audit.list(&orrery_records::audit::Filter::default(), 100).await.unwrap();
    let acts: Vec<_> = acts.iter().filter(|act| act.action.starts_with("secret.")).collect();
    assert_eq!(acts.len(), 2, "{acts:?}");
    assert!(acts.iter().all(|act| act.actor == "operator" && act.subject == "token"));
}
