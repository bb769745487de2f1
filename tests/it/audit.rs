//! The audit log, in the store and in the file: the operator's actions and failed authentications.

use std::fs;

use hyper::Method;
use orrery_api::Role;
use orrery_records::audit::{Actor, Filter};
use serde_json::{Value, json};

use crate::support::{Provider, Receiver, Service, until};

async fn acts(service: &Service) -> Vec<(String, String, String)> {
    let audit = &service.running.services.audit;
    audit.write_denied().await.unwrap();
    let entries = audit.list(&Filter::default(), 100).await.unwrap();
    let shown = |entry: orrery_records::audit::Entry| (entry.action, entry.actor, entry.result);
    entries.into_iter().rev().map(shown).collect()
}

#[tokio::test]
async fn audit_records_and_ships_acts_and_failed_authentications() {
    let service = Service::start().await;
    let accounts = &service.running.services.accounts;
    let organization = service.organization.id;
    let accounts = accounts.by(Actor::operator("test"));
    let (key, full) = accounts.create_key(organization, "audited", "test", None).await.unwrap();
    accounts.delete_key(organization, key.id).await.unwrap();
    assert!(accounts.delete_key(organization, key.id).await.is_err());
    for _ in 0..3 {
        let ask = service.ask(Role::Base, Method::GET, "/v1/executions").key(&full);
        assert_eq!(ask.send().await.status, 401);
    }
    let acts = acts(&service).await;
    let of = |action: &str, actor: &str| {
        acts.iter().filter(|(act, who, _)| act == action && who == actor).count()
    };
    assert_eq!((of("key.create", "operator"), of("key.delete", "operator")), (1, 1), "{acts:?}");
    assert_eq!((of("service.start", "service"), of("authentication", "unknown")), (1, 1));
    let denied = acts.iter().find(|(action, ..)| action == "authentication").unwrap();
    assert_eq!(denied.2, "denied");

    // The file has the same entries, and no line contains a key.
    let path = service.config.audit.folder.join("audit.jsonl");
    let text = until("audit file", async || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        (text.lines().count() >= acts.len()).then_some(text)
    })
    .await;
    assert!(!text.contains(&full));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (line, (action, ..)) in lines.iter().zip(&acts) {
        assert_eq!(line["action"], action.as_str());
    }
}

/// Runs an operator's command on the running service; returns the command's output.
fn run(service: &Service, arguments: &[&str]) -> String {
    let ran = std::process::Command::new(&service.config.program)
        .arg("--config")
        .arg(service.folder.path().join("config.toml"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

#[tokio::test]
async fn audit_records_operator_acts_outside_commits_once() {
    let service = Service::configured("webhooks.redelivery_cooldown = '0s'\n").await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let held = service.create("held", json!({})).await;
    provider.arrived(1).await;
    run(&service, &["execution", "cancel", &held]);
    run(&service, &["resume"]);
    let fields = json!({"input": {"template": "hello"}, "webhook_url": receiver.url()});
    let sent = service.create_with("text-template", fields).await;
    receiver.next().await;
    until("delivery", async || {
        let answer = service.get(&format!("/v1/webhooks/{sent}")).await;
        (answer.status == 200 && answer.json()["status"] == "delivered").then_some(())
    })
    .await;
    run(&service, &["webhooks", "redeliver", &sent]);
    receiver.next().await;
    let file = service.folder.path().join("one.backup");
    run(&service, &["backup", file.to_str().unwrap()]);

    let acts = acts(&service).await;
    for action in ["execution.cancel", "restore.resume", "webhook.redeliver", "backup.write"] {
        let of = acts
            .iter()
            .filter(|(act, who, result)| act == action && who == "operator" && result == "ok");
        assert_eq!(of.count(), 1, "{action}: {acts:?}");
    }
    let audit = &service.running.services.audit;
    let cancels = Filter { action: Some("execution.cancel".to_owned()), ..Filter::default() };
    let cancel = audit.list(&cancels, 9).await.unwrap().remove(0);
    assert_eq!((cancel.subject, cancel.organization), (held, Some(service.organization.id)));

    // The list shows when each key was last used, with minute precision, or that it was never used.
    let keys: Value = serde_json::from_str(&run(&service, &["key", "list", "--json"])).unwrap();
    let last_used = |organization: &str| {
        let keys = keys["keys"].as_array().unwrap().iter();
        keys.filter(|key| key["organization"] == organization)
            .map(|key| key["last_used_at"].clone())
            .collect::<Vec<_>>()
    };
    assert!(last_used("default")[0].as_str().is_some_and(|at| at.ends_with('Z')), "{keys}");
    assert_eq!(last_used("other"), [Value::Null]);
    assert!(run(&service, &["key", "list"]).contains("never"));
}

#[tokio::test]
async fn audit_records_workflow_changes_by_key_command_and_flows_host() {
    let service = Service::start().await;
    let steps = json!([{"step_id": "a", "type": "pass", "result": 1}]);
    let slug = service.workflow(steps.clone()).await;
    let folder = service.folder.path().join("flows");
    fs::create_dir(&folder).unwrap();
    let file = json!({"name": "Pushed", "description": "d", "definition": {"steps": steps}});
    fs::write(folder.join("pushed.json"), file.to_string()).unwrap();
    run(&service, &["workflow", "push", folder.to_str().unwrap()]);
    let deleted = service.flows(Method::DELETE, &format!("/workflows/{slug}")).send().await;
    assert_eq!(deleted.status, 204, "{}", deleted.text);
    let model = json!({"id": "a", "type": "1019Model", "model_slug": "text-template",
        "model_version": "1", "params": {"template": "x"}});
    let flow = json!({"name": "Flow", "inputs": [], "outputs": [], "steps": [model]});
    let made = service.ask(Role::Flows, Method::POST, "/api/v1/").key(&service.key).json(&flow);
    let made = made.send().await.expect(200);
    let acts = acts(&service).await;
    let acts: Vec<(&str, &str)> = acts
        .iter()
        .filter(|(action, ..)| action.starts_with("workflow."))
        .map(|(action, actor, _)| (action.as_str(), actor.split(' ').next().unwrap()))
        .collect();
    let expected = [
        ("workflow.create", "key"),
        ("workflow.create", "operator"),
        ("workflow.delete", "key"),
        ("workflow.create", "key"),
    ];
    assert_eq!(acts, expected, "{made}");
}

#[tokio::test]
async fn audit_records_reloads_that_change_models() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let reloads = async || {
        let audit = &service.running.services.audit;
        let filter = Filter { action: Some("models.reload".to_owned()), ..Filter::default() };
        let entries = audit.list(&filter, 100).await.unwrap();
        entries.into_iter().rev().map(|entry| entry.subject).collect::<Vec<_>>()
    };
    service.manifest_file("a.toml", &provider.manifest("a", "/echo", "title = 'First'"));
    until("first change", async || (reloads().await.len() == 1).then_some(())).await;
    // The folder has not changed since then, so nothing is recorded for the signal.
    service.running.reload().await;
    service.manifest_file("a.toml", &provider.manifest("a", "/echo", "title = 'Second'"));
    // The signal and the file watcher both detect the change, but it is recorded only once.
    service.running.reload().await;
    std::fs::remove_file(service.models().join("a.toml")).unwrap();
    until("removal", async || (reloads().await.len() >= 3).then_some(())).await;
    assert_eq!(reloads().await, ["changed: a", "changed: a", "removed: a"]);
}
