//! The administration API: off by default, accessible only with admin keys, with idempotent PUTs.

use hyper::Method;
use orrery_api::{Access, ROUTES, Role};
use orrery_records::audit::Filter;
use serde_json::{Value, json};

use crate::routes::path_of;
use crate::support::{Answer, Ask, Service};

const REFUSAL: &str = "Invalid or missing admin key";

async fn service() -> (Service, String) {
    let service = Service::configured("dashboard.admin_api = true\n").await;
    let accounts = &service.running.services.accounts;
    let (_, key) = accounts.create_admin_key("terraform", "test", None).await.unwrap();
    (service, key)
}

fn ask(service: &Service, key: &str, method: Method, path: &str) -> Ask {
    let ask = service.ask(Role::Dashboard, method, &format!("/admin/v1{path}"));
    ask.header("authorization", format!("Bearer {key}"))
}

async fn put(service: &Service, key: &str, path: &str, body: &Value) -> Answer {
    ask(service, key, Method::PUT, path).json(body).send().await
}

/// Returns the entries of the audit log as action and actor, without the counts of failed
/// authentications.
async fn acts(service: &Service) -> Vec<(String, String)> {
    let entries = service.running.services.audit.list(&Filter::default(), 1000).await.unwrap();
    entries.into_iter().map(|entry| (entry.action, entry.actor)).collect()
}

#[tokio::test]
async fn admin_api_is_off_by_default() {
    let service = Service::start().await;
    let accounts = &service.running.services.accounts;
    let (_, key) = accounts.create_admin_key("terraform", "test", None).await.unwrap();
    let routes = ROUTES.iter().filter(|route| route.access == Access::Admin);
    for route in routes {
        let request = service.ask(Role::Dashboard, route.method.clone(), &path_of(route));
        let request = request.header("authorization", format!("Bearer {key}"));
        request.send().await.expect_error(404, "not found");
    }
    let answer = ask(&service, &key, Method::GET, "/api/base/v1/limits").send().await;
    answer.expect_error(404, "not found");
}

#[tokio::test]
async fn admin_api_accepts_only_admin_keys() {
    let (service, key) = service().await;
    let owner = service.owner().await;
    let accounts = &service.running.services.accounts;
    let (deleted, old) = accounts.create_admin_key("old", "test", None).await.unwrap();
    ask(&service, &old, Method::GET, "/organizations").send().await.expect(200);
    let box_owner = deleted.organization;
    accounts.delete_key(box_owner, deleted.id).await.unwrap();
    let span = Some(std::time::Duration::ZERO);
    let (_, expired) = accounts.create_admin_key("expired", "test", span).await.unwrap();
    let swapped = key.replace("sma_", "smk_");
    let mut rows = 0;
    for route in ROUTES.iter().filter(|route| route.access == Access::Admin) {
        let path = path_of(route);
        let bare = || service.ask(Role::Dashboard, route.method.clone(), &path);
        let mut refused = vec![
            bare(),
            // The header of API keys and a session give no access, even from the dashboard's own
            // page.
            bare().key(&key),
            service.asks(&owner, route.method.clone(), &path),
        ];
        for wrong in [service.key.as_str(), &old, &expired, &swapped, "sma_", ""] {
            refused.push(bare().header("authorization", format!("Bearer {wrong}")));
        }
        for one in refused {
            let answer = one.send().await;
            answer.expect_error(401, REFUSAL);
            assert_eq!(answer.header("www-authenticate"), "Bearer");
        }
        // No other host serves the route.
        let elsewhere = service.ask(Role::Base, route.method.clone(), &path);
        let elsewhere = elsewhere.header("authorization", format!("Bearer {key}")).send().await;
        assert_eq!(elsewhere.status, 404, "{path}");
        rows += 1;
    }
    assert!(rows > 20, "the table has lost the administration");
    // An admin key gives no access to other routes.
    for path in ["/v1/limits", "/v2/executions"] {
        let answer = service.ask(Role::Base, Method::GET, path).key(&key).send().await;
        answer.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
    }
    let mounted = ask(&service, &service.key, Method::GET, "/api/base/v1/limits").send().await;
    mounted.expect_error(401, REFUSAL);
    let foreign = service.ask(Role::Dashboard, Method::GET, "/admin/v1/organizations");
    let foreign = foreign.header("host", "evil.example").header("authorization", &key);
    assert_eq!(foreign.open().await.status(), 421);
    let denied = service.running.services.audit.write_denied().await;
    denied.unwrap();
    let counted = acts(&service).await.into_iter().any(|(action, _)| action.contains("auth"));
    assert!(counted, "refused keys are not in the audit log");
}

#[tokio::test]
async fn admin_api_second_put_changes_nothing() {
    let (service, key) = service().await;
    let of = "/organizations/acme";
    let path = |rest: &str| format!("{of}{rest}");
    put(&service, &key, &path("/keys/ci"), &json!({})).await.expect(404);
    let steps = json!([{"step_id": "p", "type": "pass", "result": 1}]);
    let workflow = json!({"name": "nightly", "description": "d", "definition": {"steps": steps}});
    let limits = json!({"limits": {"running": 2, "queued": null}});
    put(&service, &key, of, &limits).await.expect(201);
    let made = ask(&service, &key, Method::POST, "/api/workflows/api/v1/workflows");
    let made = made.header("x-orrery-organization", "acme").json(&workflow).send().await;
    let slug = made.expect(201)["slug"].as_str().unwrap().to_owned();
    let other = "html-to-text";
    let puts = [
        (of.to_owned(), limits, 200),
        (path("/keys/ci"), json!({"expires_at": "2099-01-01T00:00:00.000Z"}), 201),
        (path("/secrets/vault"), json!({"value": "hunter2-and-more"}), 201),
        (
            path("/chains/spare"),
            json!({"model": "text-template", "enabled": false, "entries": [
                {"model": other, "input_map": {"html": "{{input.template}}"}},
            ]}),
            201,
        ),
        (
            path("/webhook-endpoints/hooks"),
            json!({"url": "http://127.0.0.1:9/", "events": ["prediction.failed"], "disabled": true}),
            201,
        ),
        (path("/schedules/nightly"), json!({"workflow": slug, "cron": "@daily"}), 201),
        (
            path("/schedules/hourly"),
            json!({"model": "text-template", "version": "0.0.1", "cron": "@hourly",
                "input": {"template": "x"}}),
            201,
        ),
    ];
    for (path, body, status) in &puts {
        put(&service, &key, path, body).await.expect(*status);
    }
    let before = acts(&service).await;
    assert!(before.iter().any(|(action, _)| action == "schedule.create"), "{before:?}");
    let made = ["schedule.create", "chain.create", "webhook_endpoint.create", "secret.set"];
    for (action, actor) in before.iter().filter(|(action, _)| made.contains(&action.as_str())) {
        assert!(actor.starts_with("admin key "), "{action} by {actor}");
    }
    for (path, body, _) in &puts {
        let again = put(&service, &key, path, body).await.expect(200);
        assert_eq!(put(&service, &key, path, body).await.expect(200), again, "{path}");
    }
    assert_eq!(acts(&service).await, before, "the second time changed something");
    // Each change is applied and audited once.
    let changes = [
        (of.to_owned(), json!({"limits": {"running": null}})),
        (path("/keys/ci"), json!({})),
        (path("/secrets/vault"), json!({"value": "another-value"})),
        (path("/webhook-endpoints/hooks"), json!({"url": "http://127.0.0.1:8/"})),
        (path("/schedules/nightly"), json!({"workflow": slug, "paused": true})),
    ];
    for (path, body) in &changes {
        put(&service, &key, path, body).await.expect(200);
    }
    assert_eq!(acts(&service).await.len(), before.len() + changes.len());
    let keys = ask(&service, &key, Method::GET, &path("/keys")).send().await.expect(200);
    assert_eq!(keys["keys"][0]["expires_at"], Value::Null);
    let shown = ask(&service, &key, Method::GET, of).send().await.expect(200);
    assert_eq!(shown["limits"]["running"], json!({"limit": null, "used": 0}));
}

#[tokio::test]
async fn admin_api_rejects_ambiguous_names() {
    let (service, key) = service().await;
    let accounts = &service.running.services.accounts;
    for _ in 0..2 {
        accounts.create_key(service.organization.id, "ci", "test", None).await.unwrap();
    }
    let path = "/organizations/default/keys/ci";
    let refused = put(&service, &key, path, &json!({})).await;
    let message = "several keys are called 'ci': rename or delete all but one";
    refused.expect_error(409, message);
    ask(&service, &key, Method::DELETE, path).send().await.expect_error(409, message);
    let schedule = json!({"cron": "@daily"});
    let refused = put(&service, &key, "/organizations/default/schedules/a", &schedule).await;
    refused.expect_error(400, "workflow or model is required");
    let refused = put(&service, &key, "/organizations/Not-A-Name", &json!({})).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
}

#[tokio::test]
async fn admin_api_key_created_by_put_works_and_expires() {
    let (service, key) = service().await;
    let path = "/organizations/default/keys/ci";
    let made = put(&service, &key, path, &json!({})).await.expect(201);
    let full = made["key"].as_str().unwrap().to_owned();
    let limits = || service.ask(Role::Base, Method::GET, "/v1/limits").key(&full).send();
    limits().await.expect(200);
    let past = json!({"expires_at": "2020-01-01T00:00:00Z"});
    put(&service, &key, path, &past).await.expect(200);
    assert_eq!(limits().await.status, 401);
    put(&service, &key, path, &json!({"expires_at": null})).await.expect(200);
    limits().await.expect(200);
    assert_eq!(ask(&service, &key, Method::DELETE, path).send().await.status, 204);
    assert_eq!(limits().await.status, 401);
}

#[tokio::test]
async fn admin_api_serves_other_hosts_on_behalf_of_organization() {
    let (service, key) = service().await;
    let list = |organization: &str| {
        let list = ask(&service, &key, Method::GET, "/api/base/v1/limits");
        list.header("x-orrery-organization", organization).send()
    };
    list("other").await.expect(200);
    assert_eq!(list("nobody").await.status, 404);
    let secret = ask(&service, &key, Method::PUT, "/api/base/v1/secrets/token");
    let secret =
        secret.header("x-orrery-organization", "other").json(&json!({"value": "abcdefgh"}));
    secret.send().await.expect(201);
    let listed = ask(&service, &key, Method::GET, "/organizations/other/secrets").send().await;
    assert_eq!(listed.expect(200)["secrets"][0]["name"], "token");
    let balance = ask(&service, &key, Method::POST, "/organizations/other/balance/top-up");
    let balance = balance.json(&json!({"amount_usd": 2.5})).send().await.expect(201);
    assert_eq!(balance, json!({"balance_usd": 2.5}));
    let link = ask(&service, &key, Method::POST, "/organizations/other/owner-link").send().await;
    assert!(link.expect(201)["url"].is_string());
    let audit = ask(&service, &key, Method::GET, "/audit?organization=other&limit=5").send().await;
    let audit = audit.expect(200);
    assert!(audit["entries"][0]["actor"].as_str().unwrap().starts_with("admin key "), "{audit}");
}
