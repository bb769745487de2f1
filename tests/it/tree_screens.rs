//! The accessibility tree of each screen: roles, names and states, as snapshots. A changed snapshot
//! changes the output of screen readers.

use hyper::Method;
use serde_json::json;

use crate::support::chromium::Chromium;
use crate::support::{Receiver, Service, Upstream};

/// Saves screenshots of the open screen in both themes for review by a person.
async fn photograph(browser: &Chromium, name: &str) {
    for is_dark in [true, false] {
        browser.looks(1280, is_dark).await;
        browser.picture(&format!("{name}{}", if is_dark { "-dark" } else { "" })).await;
    }
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn tree_of_each_screen_matches_snapshot() {
    let up = Upstream::start().await;
    let service =
        Service::configured("billing.enabled = true\nwebhooks.schedule = ['1ms']\n").await;
    service.manifest(&up.manifest("talk", "chat", ""));
    let mut receiver = Receiver::answering([500]).await;
    let owner = service.owner().await;
    service.member(&owner, "grace@example.com").await;
    service
        .asks(&owner, Method::POST, "/invitations")
        .json(&json!({"email": "alan@example.com"}))
        .send()
        .await
        .expect(201);
    let run = json!({"input": {"template": "Hello"}, "webhook_url": receiver.url()});
    let run = service.create_with("text-template", run).await;
    receiver.next().await;
    let steps = json!([
        {"step_id": "greet", "type": "model", "model": "text-template", "params": {"template": "Hello {{inputs.name}}"}},
        {"step_id": "broken", "type": "model", "model": "text-template", "params": {"template": "{% broken"}, "depends_on": ["greet"]},
        {"step_id": "after", "type": "model", "model": "text-sentiment", "params": {"text": "{{greet.output}}"}, "depends_on": ["broken"]},
    ]);
    let inputs = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "title": "Name", "description": "Who is greeted"}}});
    let flow = service.workflow_of(json!({"steps": steps, "input_schema": inputs})).await;
    let execution = service.trigger(&flow, json!({"inputs": {"name": "Ada"}})).await;
    service.completed(&execution).await;
    let chain = json!({"model": "text-language", "name": "safe", "entries": [{"model": "text-sentiment"}, {"model": "text-keywords"}]});
    service.asks(&owner, Method::POST, "/chains").json(&chain).send().await.expect(201);
    let (secrets, own) = (&service.running.services.secrets, service.organization.id);
    secrets.set(own, "vault", "correct-horse-battery").await.unwrap();
    let browser = Chromium::start().await;
    let mut trees = Vec::new();
    let mut look = async |name: &'static str, path: &str| {
        browser.open(&service, path).await;
        browser.settled().await;
        trees.push((name, browser.accessibility_tree().await));
        photograph(&browser, name).await;
    };
    look("log_in", "/").await;
    browser.becomes(&service, &owner).await;
    for (name, path) in [
        ("home", "/app".to_owned()),
        ("models", "/app/models".to_owned()),
        ("model", "/app/models/image-resize".to_owned()),
        ("model_code", "/app/models/text-template?tab=code".to_owned()),
        ("workflows", "/app/workflows".to_owned()),
        ("workflow", format!("/app/workflows/{flow}")),
        ("workflow_run", format!("/app/workflows/{flow}?tab=run")),
        ("workflow_versions", format!("/app/workflows/{flow}?tab=versions")),
        ("chains", "/app/chains".to_owned()),
        ("chat", "/app/chat".to_owned()),
        ("agent", "/app/chat?with=agent".to_owned()),
        ("runs", "/app/runs".to_owned()),
        ("run", format!("/app/runs/{run}")),
        ("run_of_workflow", format!("/app/runs/{execution}?type=workflow")),
        ("webhooks", "/app/webhooks".to_owned()),
        ("webhook", format!("/app/webhooks/{run}")),
        ("files", "/app/files".to_owned()),
        ("balance", "/app/balance".to_owned()),
        ("keys", "/app/keys".to_owned()),
        ("secrets", "/app/secrets".to_owned()),
        ("members", "/app/members".to_owned()),
        ("account", "/app/account".to_owned()),
    ] {
        look(name, &path).await;
    }
    for (name, tree) in &trees {
        assert!(tree.lines().count() > 8, "{name}: {tree}");
        insta::assert_snapshot!(*name, tree);
    }
    browser.leave().await;
}
