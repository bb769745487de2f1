//! Deleting an organization: refused while it has unfinished work, effective immediately, and in
//! the end no row of the store refers to the organization except in the audit log.

use std::process::Command;

use hyper::Method;
use orrery_api::Role;
use orrery_domain::ids::{Id as _, OrganizationId};
use orrery_records::audit::{Actor, Filter};
use orrery_storage::Table;
use serde_json::{Value, json};

use crate::support::{Provider, Service, until};

/// Runs an operator's command; returns whether it succeeded, and its output with its errors.
fn run(service: &Service, arguments: &[&str]) -> (bool, String) {
    let ran = Command::new(&service.config.program)
        .arg("--config")
        .arg(service.folder.path().join("config.toml"))
        .args(arguments)
        .output()
        .unwrap();
    let text = [ran.stdout, ran.stderr].concat();
    (ran.status.success(), String::from_utf8(text).unwrap())
}

/// Creates one resource of each kind in the first organization, and an unfinished prediction.
async fn fill(service: &Service, provider: &Provider) {
    service.manifest(&provider.manifest("held", "/hold", ""));
    let owner = service.owner().await;
    service.member(&owner, "ada@example.com").await;
    let steps = json!([
        {"step_id": "a", "type": "model", "model": "text-template", "params": {"template": "x"}},
        {"step_id": "b", "type": "pass", "result": "y".repeat(100_000)},
    ]);
    let workflow = service.workflow(steps.clone()).await;
    let version = json!({"version_id": "v1", "definition": {"steps": steps}});
    let put = service.flows(Method::PUT, &format!("/workflows/{workflow}/versions/v1"));
    put.json(&version).send().await.expect(200);
    let run_id = service.trigger(&workflow, json!({})).await;
    service.completed(&run_id).await;
    // The receiver refuses connections, so its delivery stays pending.
    let fields = json!({
        "input": {"text": "hi", "format": "svg"},
        "webhook_url": "http://127.0.0.1:9/", "webhook_secret": "s",
    });
    let image = service.create_with("image-qr", fields).await;
    service.ended(&image).await;
    service.manifest(&provider.manifest("kept", "/echo", "[cache]\nttl = '1h'\n"));
    let kept = service.create("kept", json!({})).await;
    service.ended(&kept).await;
    service.create("held", json!({})).await;
    provider.arrived(2).await;
    let schedule = json!({"cron": "@daily", "inputs": {}});
    let path = format!("/v1/workflows/{workflow}/schedules");
    service.post(&path, &schedule).send().await.expect(201);
    let endpoint = json!({"url": "http://127.0.0.1:9/"});
    service.post("/v1/webhook-endpoints", &endpoint).send().await.expect(201);
    let secret = service.ask(Role::Base, Method::PUT, "/v1/secrets/token").key(&service.key);
    secret.json(&json!({"value": "v"})).send().await.expect(201);
    let services = &service.running.services;
    let json = |text: &str| serde_json::value::RawValue::from_string(text.to_owned()).unwrap();
    let response = orrery_responses::NewResponse {
        organization: service.organization.id,
        id: orrery_runtime::new_id(),
        previous: None,
        input: json("[]"),
        response: json(&format!("[\"{}\"]", "x".repeat(100_000))),
    };
    services.responses.put(response).await.unwrap();
    let billing = services.billing.by(Actor::operator("test"));
    let amount = orrery_domain::money::Usd::from_dollars(5.0).unwrap();
    billing.top_up(service.organization.id, amount).await.unwrap();
}

/// Returns the tables that contain rows of an organization.
fn tables_about(service: &Service, organization: OrganizationId) -> Vec<String> {
    let (bytes, text) = (organization.bytes(), organization.to_string());
    let holds = |place: &[u8], wanted: &[u8]| place.windows(wanted.len()).any(|at| at == wanted);
    let mut found = Vec::new();
    let mut take = |(key, value): (orrery_storage::Key, Option<Vec<u8>>)| {
        let value = value.unwrap_or_default();
        let key = key.as_bytes();
        let is_about =
            holds(key, &bytes) || holds(&value, &bytes) || holds(&value, text.as_bytes());
        if is_about && key[0] != Table::Audit as u8 {
            found.push(orrery_storage::key::table_name(key));
        }
        Ok(())
    };
    // An export blocks its thread.
    let store = &service.running.services.store;
    std::thread::scope(|scope| scope.spawn(|| store.export(&mut take)).join()).unwrap().unwrap();
    found.dedup();
    found
}

async fn is_erased(service: &Service, organization: OrganizationId) {
    until("erasure", async || {
        let filter = Filter { action: Some("organization.erase".to_owned()), ..Filter::default() };
        let entries = service.running.services.audit.list(&filter, 9).await.unwrap();
        entries.iter().any(|entry| entry.organization == Some(organization)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn organization_is_deleted_with_all_of_its_data() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    fill(&service, &provider).await;
    let id = service.organization.id;
    let before = tables_about(&service, id);
    for table in
        ["Organization", "ApiKey", "Execution", "Delivery", "File", "Ledger", "Secret", "Response"]
    {
        assert!(before.iter().any(|name| name == table), "{table}: {before:?}");
    }

    let (shown, text) = run(&service, &["org", "delete", "default", "--json"]);
    assert!(shown, "{text}");
    let contents: Value =
        serde_json::Deserializer::from_str(&text).into_iter().next().unwrap().unwrap();
    assert_eq!((&contents["workflows"], &contents["deleted"]), (&json!(1), &json!(false)));
    assert_eq!((&contents["members"], &contents["unfinished_executions"]), (&json!(2), &json!(1)));
    assert!(text.contains(
        "Nothing was deleted. To delete the organization: orrery org delete default --yes"
    ));
    let (deleted, text) = run(&service, &["org", "delete", "default", "--yes"]);
    assert!(!deleted && text.contains("1 executions of the organization default are unfinished"));
    service.get("/v1/executions").await.expect(200);

    let (deleted, text) = run(&service, &["org", "delete", "default", "--yes", "--force"]);
    assert!(deleted, "{text}");
    assert_eq!(service.get("/v1/executions").await.status, 401, "the key is gone at once");
    is_erased(&service, id).await;
    assert_eq!(tables_about(&service, id), Vec::<String>::new());
    let login = service.logs_in("ada@example.com", "a password that nobody has").await;
    assert_eq!(login.status, 401);

    // The other organization is unchanged.
    let other = service.ask(Role::Base, Method::GET, "/v1/executions").key(&service.other_key);
    other.send().await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_of_an_organization_continues_after_a_restart() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    fill(&service, &provider).await;
    let id = service.organization.id;
    let service = service
        .restart_after(async |config| {
            // If the service is stopped, the command only records the deletion.
            let file = config.data_dir.parent().unwrap().join("config.toml");
            let arguments = ["org", "delete", "default", "--yes", "--force"];
            let mut command = Command::new(&config.program);
            let ran = command.arg("--config").arg(file).args(arguments).output().unwrap();
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        })
        .await;
    assert_eq!(service.get("/v1/executions").await.status, 401);
    is_erased(&service, id).await;
    assert_eq!(tables_about(&service, id), Vec::<String>::new());
}

#[tokio::test]
async fn organization_is_renamed_and_keeps_its_keys() {
    let service = Service::start().await;
    let (renamed, text) = run(&service, &["org", "rename", "other", "labs"]);
    assert!(renamed && text.contains("labs"), "{text}");
    let key = service.ask(Role::Base, Method::GET, "/v1/executions").key(&service.other_key);
    key.send().await.expect(200);
    for (arguments, refusal) in [
        (["org", "rename", "other", "x"], "there is no organization other"),
        (["org", "rename", "labs", "default"], "the organization default already exists"),
        (["org", "rename", "labs", "A B"], "must have 1 to 64 characters"),
        (["org", "rename", "default", "x"], "keeps its name"),
    ] {
        let (done, text) = run(&service, &arguments);
        assert!(!done && text.contains(refusal), "{arguments:?}: {text}");
    }
    let (made, text) = run(&service, &["org", "create", "--name", "other"]);
    assert!(made, "the name is free again: {text}");
}
