//! The responses of every host to requests without a key: its identity and health, and the metrics.

use hyper::Method;
use orrery_api::Role;
use serde_json::json;

use crate::support::Service;

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[tokio::test]
async fn host_root_and_health_describe_the_service() {
    let service = Service::start().await;
    for role in [Role::Base, Role::Workflows, Role::Flows, Role::Agent] {
        let answer = service.ask(role, Method::GET, "/").send().await;
        let body = answer.expect(200);
        let url = service.url(role);
        let links = json!({
            "health": format!("{url}/health"),
            "ready": format!("{url}/ready"),
            "openapi": format!("{url}/openapi.json"),
        });
        let expected =
            json!({"name": "orrery", "version": VERSION, "role": role.as_str(), "links": links});
        assert_eq!(body, expected);
    }
    for role in [Role::Base, Role::Workflows, Role::Flows, Role::Agent, Role::Dashboard] {
        let answer = service.ask(role, Method::GET, "/health").send().await;
        assert_eq!(answer.expect(200), json!({"status": "healthy", "version": VERSION}));
        assert_eq!(answer.header("content-type"), "application/json");
        service.ask(role, Method::GET, "/ready").send().await.expect(200);
    }
}

#[tokio::test]
async fn every_host_serves_the_schemas_without_a_key() {
    let service = Service::start().await;
    for role in [Role::Base, Role::Workflows, Role::Flows, Role::Agent, Role::Dashboard] {
        for name in ["workflow", "manifest", "config", "apply"] {
            let path = format!("/schemas/{name}.json");
            let schema = service.ask(role, Method::GET, &path).send().await.expect(200);
            assert_eq!(schema["type"], "object", "{path}");
            assert!(jsonschema::validator_for(&schema).is_ok(), "{path}");
        }
        for path in ["/schemas/models.json", "/schemas/workflow"] {
            let refused = service.ask(role, Method::GET, path).send().await;
            assert_eq!(refused.status, 404, "{path}");
        }
    }
}

#[tokio::test]
async fn dashboard_shows_figures_and_no_secrets() {
    let service = Service::start().await;
    let page = service.ask(Role::Dashboard, Method::GET, "/").send().await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").starts_with("text/html"), "{:?}", page.headers);
    assert!(page.header("content-security-policy").contains("default-src"), "{:?}", page.headers);
    let answer = service.ask(Role::Dashboard, Method::GET, "/status.json").send().await;
    let status = answer.expect(200);
    assert_eq!(status["ready"], true);
    assert_eq!(status["executions"], json!({"running": 0, "queued": 0}));
    assert_eq!(status["hosts"].as_array().unwrap().len(), 5);
    assert!(!answer.text.contains("smk_"));
}

#[tokio::test]
async fn metrics_count_requests_by_route_and_status() {
    let service = Service::start().await;
    for path in ["/v1/models/text-template", "/v1/models/of-nobody"] {
        service.ask(Role::Base, Method::GET, path).send().await;
    }
    let answer = service.ask(Role::Metrics, Method::GET, "/metrics").send().await;
    assert_eq!(answer.status, 200);
    for status in [200, 404] {
        let counted = answer.text.lines().any(|line| {
            line.starts_with("orrery_requests_total{")
                && line.contains(r#"route="/v1/models/{*slug}""#)
                && line.contains(&format!(r#"status="{status}""#))
        });
        assert!(counted, "{}", answer.text);
    }
    assert!(!answer.text.contains("of-nobody"), "a client's text became a label");
}
