//! The models folder at run time: the service serves a changed file, keeps using the last valid
//! version of a file that becomes invalid, and never fetches anything because of a manifest.

use hyper::Method;
use orrery_api::Role;
use serde_json::json;

use crate::support::{Provider, Service, until};

fn titled(provider: &Provider, slug: &str, title: &str) -> String {
    provider.manifest(slug, "/echo", &format!("title = '{title}'"))
}

/// Waits until the service shows a model with the title `expected`.
async fn served(service: &Service, slug: &str, expected: &str) {
    let path = format!("/v1/models/{slug}");
    until(expected, async || {
        let answer = service.ask(Role::Base, Method::GET, &path).send().await;
        (answer.status == 200 && answer.json()["title"] == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn reload_serves_changed_file_and_keeps_last_good_one() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest_file("a.toml", &titled(&provider, "a", "First"));
    served(&service, "a", "First").await;
    service.manifest_file("a.toml", &titled(&provider, "a", "Second"));
    served(&service, "a", "Second").await;
    // The reload that loads `b` has also read the invalid file.
    service.manifest_file("a.toml", "slug = 'a'\ntitle = ");
    service.manifest_file("b.toml", &titled(&provider, "b", "Witness"));
    served(&service, "b", "Witness").await;
    served(&service, "a", "Second").await;
    let id = service.create("a", json!({"n": 1})).await;
    assert_eq!(service.ended(&id).await["output"], json!({"n": 1}));
    std::fs::remove_file(service.models().join("a.toml")).unwrap();
    until("removal", async || (service.get("/v1/models/a").await.status == 404).then_some(()))
        .await;
}

#[tokio::test]
async fn reload_rejects_external_schema_reference_without_fetching() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    for (slug, target) in [
        ("by-http", provider.url("/echo")),
        ("by-file", "file:///etc/hostname".to_owned()),
        ("by-name", "other.json".to_owned()),
    ] {
        let schema = format!("[request_schema]\nproperties.a = {{ '$ref' = '{target}' }}\n");
        service.manifest_file(&format!("{slug}.toml"), &provider.manifest(slug, "/echo", &schema));
    }
    let report = service.running.services.catalog.reload();
    assert_eq!(report.errors.len(), 3);
    for error in &report.errors {
        assert!(error.to_string().contains("leaves the document"), "{error}");
    }
    for slug in ["by-http", "by-file", "by-name"] {
        let answer = service.get(&format!("/v1/models/{slug}")).await;
        answer.expect_text(404, r#"{"error":"Failed to fetch model: model not found"}"#);
    }
    assert!(provider.requests().is_empty(), "something was fetched");
}

#[tokio::test]
async fn restart_keeps_queued_work_and_its_model() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1"));
    let first = service.create("held", json!({})).await;
    provider.arrived(1).await;
    let second = service.create("held", json!({})).await;
    let service = service.restart().await;
    provider.hung_up(1).await;
    provider.release(2);
    for id in [first, second] {
        let prediction = service.ended(&id).await;
        assert_eq!(prediction["status"], "success", "{prediction}");
        assert_eq!(prediction["attempts"].as_array().unwrap().len(), 1);
    }
}
