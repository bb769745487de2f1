//! The dashboard's own routes for workflows and chains: validation without storing, the newest
//! runs, changes conditional on the revision, and chains of one organization.

use hyper::Method;
use serde_json::{Value, json};

use crate::support::dashboard::Person;
use crate::support::{Answer, Service};

fn steps(template: &str) -> Value {
    json!([{"step_id": "say", "type": "model", "model": "text-template", "params": {"template": template}}])
}

async fn asks(
    service: &Service,
    person: &Person,
    method: Method,
    path: &str,
    body: &Value,
) -> Answer {
    service.asks(person, method, path).json(body).send().await
}

#[tokio::test]
async fn definition_check_names_every_problem_and_stores_nothing() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let check = async |definition: Value| {
        let body = json!({"definition": definition});
        asks(&service, &owner, Method::POST, "/workflows/check", &body).await.expect(200)
    };
    assert_eq!(
        check(json!({"steps": steps("Hello")})).await,
        json!({"valid": true, "problems": []})
    );
    let wrong = check(json!({"steps": [
        {"step_id": "a", "type": "model", "model": "text-template", "params": {"template": "{{b.output}}"}},
        {"step_id": "b", "type": "nothing"},
    ]}))
    .await;
    assert_eq!(wrong["valid"], false);
    let places: Vec<&str> = wrong["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["path"].as_str().unwrap())
        .collect();
    assert!(places.contains(&"/steps/1/type"), "{wrong}");
    let empty = check(json!({"steps": []})).await;
    assert_eq!(empty["problems"][0]["message"], "definition must include at least one step");
    assert_eq!(check(json!(7)).await["valid"], false);
    let all = service.asks(&owner, Method::GET, "/api/workflows/api/v1/workflows").send().await;
    assert_eq!(all.expect(200)["total_count"], 0);
    let body = json!({"definition": {"steps": steps("x")}, "workflow": "nothing"});
    let missing = asks(&service, &owner, Method::POST, "/workflows/check", &body).await;
    missing.expect_error(404, "workflow not found");
}

#[tokio::test]
async fn version_put_with_another_revision_returns_412_and_changes_nothing() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let id = service.workflow(steps("one")).await;
    let path = |version: &str| format!("/api/workflows/api/v1/workflows/{id}/versions/{version}");
    let put = async |version: &str, template: &str, tag: &str| {
        let body = json!({"version_id": version, "definition": {"steps": steps(template)}});
        let ask = service.asks(&owner, Method::PUT, &path(version)).json(&body);
        ask.header("if-match", tag).send().await
    };
    let read = service.asks(&owner, Method::GET, &path("v1")).send().await;
    let first = read.header("etag").to_owned();
    assert!(first.starts_with('"') && first.len() == 38, "{first}");
    // The new version is based on the latest one.
    let second = put("v2", "two", &first).await;
    second.expect(200);
    let second = second.header("etag").to_owned();
    assert_ne!(first, second);
    for (version, tag) in [("v3", &first), ("v2", &first), ("v1", &second)] {
        let refused = put(version, "lost", tag).await;
        refused.expect_error(412, "the workflow was changed since it was read");
    }
    put("v2", "lost", "*").await.expect(400);
    put("v2", "lost", "\"something else\"").await.expect(412);
    put("v1", "of the first", &format!("\"other\", {first}")).await.expect(200);
    put("v2", "again", &second).await.expect(200);
    let versions = service.asks(&owner, Method::GET, &path("v2")).send().await.expect(200);
    assert_eq!(versions["definition"]["steps"], steps("again"));
}

#[tokio::test]
async fn newest_run_of_each_workflow_is_listed_for_its_organization_only() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let ran = service.workflow(steps("a")).await;
    let idle = service.workflow(steps("b")).await;
    service.completed(&service.trigger(&ran, json!({})).await).await;
    let newest = service.trigger(&ran, json!({})).await;
    service.completed(&newest).await;
    let path = format!("/workflows/runs?workflows={ran},{idle},nonsense");
    let runs = service.asks(&owner, Method::GET, &path).send().await.expect(200);
    let runs = runs["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 1, "{runs:?}");
    let run = &runs[0];
    assert_eq!(
        (&run["execution_id"], &run["status"], &run["total"], &run["workflow_id"]),
        (&json!(newest), &json!("completed"), &json!(2), &json!(ran))
    );
    service.asks(&owner, Method::GET, "/workflows/runs").send().await.expect(200);
    service.page_asks(Method::GET, &path).send().await.expect(401);
}

#[tokio::test]
async fn chains_are_managed_by_members_of_their_organization() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let member = service.member(&owner, "grace@example.com").await;
    let chain =
        json!({"model": "text-language", "name": "safe", "entries": [{"model": "text-sentiment"}]});
    let made = asks(&service, &member, Method::POST, "/chains", &chain).await.expect(201);
    assert_eq!((&made["enabled"], &made["entries"]), (&json!(true), &chain["entries"]));
    asks(&service, &member, Method::POST, "/chains", &chain).await.expect(409);
    let unknown = json!({"model": "text-language", "name": "x", "entries": [{"model": "nothing"}]});
    let refused = asks(&service, &member, Method::POST, "/chains", &unknown).await;
    refused.expect_error(400, "there is no model nothing");
    let both = json!([{"model": "text-keywords"}, {"model": "text-sentiment"}]);
    let change =
        json!({"model": "text-language", "name": "safe", "entries": both, "enabled": false});
    asks(&service, &member, Method::PUT, "/chains", &change).await.expect(200);
    let all = service.asks(&owner, Method::GET, "/chains").send().await.expect(200);
    assert_eq!(all["chains"][0]["entries"], both);
    assert_eq!(all["chains"][0]["enabled"], false);
    let missing = json!({"model": "text-language", "name": "other", "enabled": true});
    asks(&service, &member, Method::PUT, "/chains", &missing).await.expect(404);
    let log = service.asks(&owner, Method::GET, "/audit?action=chain").send().await.expect(200);
    let acts: Vec<_> = log["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["action"], &one["actor"]))
        .collect();
    let by = json!("grace@example.com");
    assert_eq!(acts, [(&json!("chain.change"), &by), (&json!("chain.create"), &by)]);
    let path = "/chains?model=text-language&name=safe";
    let deleted = service.asks(&member, Method::DELETE, path).send().await;
    assert_eq!(deleted.status, 204);
    service.asks(&member, Method::DELETE, path).send().await.expect(404);
}

#[tokio::test]
async fn legacy_drawing_is_imported_and_exported_by_dashboard() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let drawing = json!({
        "name": "Greeting", "description": "", "inputs": [{"name": "name", "type": "string", "default_value": "you"}],
        "outputs": [{"name": "text", "type": "string", "value": "{{greet.output}}"}],
        "steps": [{"id": "greet", "name": "Greet", "type": "1019Model", "model_slug": "text-template",
                   "model_version": "0.0.1", "params": {"template": "Hello {{name}}", "values": {}}}],
        "nodes_json": "[{\"id\":\"greet\"}]", "edges_json": "[]",
    });
    let made =
        asks(&service, &owner, Method::POST, "/api/flows/api/v1", &drawing).await.expect(200);
    let id = made["workflow_id"].as_str().unwrap();
    let path = format!("/api/flows/api/v1/{id}");
    let out = service.asks(&owner, Method::GET, &path).send().await.expect(200);
    assert_eq!(out["nodes_json"], drawing["nodes_json"]);
    assert_eq!(out["steps"][0]["model_slug"], "text-template");
}
