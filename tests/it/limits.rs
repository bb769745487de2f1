//! Limits on one client's use of bodies, requests and connections; and the headers of every
//! response.

use hyper::Method;
use orrery_api::Role;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::{Service, until};

const PUBLIC: &str = "/v1/public/none/versions/v1/trigger";
const MISSING: &str = "workflow version not found or not publicly available";

const WITHIN: usize = 64 * 1024;

/// Sends a head that announces a megabyte, then a body that begins with `start` and has the maximum
/// length read from unauthenticated callers; returns the response.
async fn begun(service: &Service, header: &str, start: &str) -> String {
    let padding = "x".repeat(WITHIN - start.len());
    let request = format!(
        "POST {PUBLIC} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: 1000000\r\n\r\n{start}{padding}"
    );
    service.raw(request.as_bytes()).await
}

#[tokio::test]
async fn limit_public_trigger_reads_64_kib_before_authentication() {
    let service = Service::start().await;
    let nested = format!(r#"{{"inputs":{{"api_key":"{}"}},"pad":""#, service.key);
    for (header, start) in [
        ("", r#"{"pad":""#),
        ("", r#"{"api_key":"smk_none","pad":""#),
        ("", nested.as_str()),
        ("X-API-Key: smk_none\r\n", r#"{"pad":""#),
    ] {
        let answer = begun(&service, header, start).await;
        assert!(answer.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{answer}");
        assert!(answer.ends_with(r#"{"error":"Invalid or missing API key"}"#), "{answer}");
    }
    let padding = "x".repeat(WITHIN);
    let trigger = |body: String| service.ask(Role::Base, Method::POST, PUBLIC).body(body);
    let first = format!(r#"{{"api_key":"{}","pad":"{padding}"}}"#, service.key);
    assert_eq!(trigger(first.clone()).send().await.expect(404)["error"], MISSING);
    let wrong_header = trigger(first).key("smk_none").send().await;
    assert_eq!(wrong_header.expect(404)["error"], MISSING);
    let last = format!(r#"{{"pad":"{padding}","api_key":"{}"}}"#, service.key);
    trigger(last).send().await.expect(401);
    let last = format!(r#"{{"pad":"{padding}","api_key":"smk_none"}}"#);
    trigger(last).key(&service.key).send().await.expect(401);
    let none = format!(r#"{{"pad":"{padding}"}}"#);
    assert_eq!(trigger(none).key(&service.key).send().await.expect(404)["error"], MISSING);
}

#[tokio::test]
async fn limit_bodies_in_flight_budget_is_released() {
    let limits = "limits.body_bytes = '8KiB'\nlimits.bodies_in_flight = '16KiB'\n";
    let service = Service::configured(limits).await;
    let mut slow = TcpStream::connect(service.address(Role::Base)).await.unwrap();
    let head = format!(
        "POST /v1/prediction HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\nContent-Length: 8000\r\n\r\n",
        service.key
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let bodies = || service.running.services.bodies.used();
    until("body in flight", async || (bodies() >= 8000).then_some(())).await;
    let body = json!({"model": "text-template", "version": "1", "input": {"template": "x"}});
    let refused = service.post("/v1/prediction", &body).send().await;
    assert_eq!(refused.headers["retry-after"], "1");
    let refused = refused.expect(503);
    assert_eq!(refused["error"], "too many bodies are in flight; try again in a moment");
    let health = service.ask(Role::Base, Method::GET, "/health").send().await;
    health.expect(200);
    drop(slow);
    until("budget", async || (bodies() == 0).then_some(())).await;
    let models = service.ask(Role::Base, Method::GET, "/v1/models");
    models.header("x-large", "x".repeat(10_000)).send().await.expect(503);
    assert_eq!(bodies(), 0);
    service.post("/v1/prediction", &body).send().await.expect(200);
}

#[tokio::test]
async fn limit_requests_in_flight_exempts_health() {
    let service = Service::configured("limits.requests_in_flight = 2\n").await;
    let flow = service.workflow(json!([{"step_id": "w", "type": "wait", "seconds": 3600}])).await;
    let id = service.trigger(&flow, json!({})).await;
    let path = format!("/executions/{id}?timeout=30");
    let held = service.flows(Method::GET, &path).send();
    let checks = async {
        let requests = || service.running.services.requests.used();
        until("request in flight", async || (requests() == 1).then_some(())).await;
        let refused = service.get("/v1/models").await;
        assert_eq!(refused.headers["retry-after"], "1");
        let text = "too many requests are in flight; try again in a moment";
        assert_eq!(refused.expect(503)["error"], text);
        service.ask(Role::Base, Method::GET, "/health").send().await.expect(200);
        let organization = service.organization.id;
        service.engine().cancel(organization, id.parse().unwrap()).await.unwrap();
    };
    tokio::join!(held, checks).0.expect(200);
    until("place", async || (service.running.services.requests.used() == 0).then_some(())).await;
    service.get("/v1/models").await.expect(200);
}

#[tokio::test]
async fn limit_connections_does_not_affect_metrics_host() {
    let service = Service::configured("limits.connections = 2\n").await;
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(TcpStream::connect(service.address(Role::Base)).await.unwrap());
    }
    let metrics = service.ask(Role::Metrics, Method::GET, "/metrics").send().await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.text.contains("orrery_bodies_in_flight_bytes"), "{}", metrics.text);
}

#[tokio::test]
async fn request_must_have_exactly_one_host_header() {
    let service = Service::start().await;
    for (hosts, status) in [("Host: a\r\n", 200), ("", 400), ("Host: a\r\nHost: a\r\n", 400)] {
        let request = format!("GET /v1/models HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        let answer = service.raw(request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{hosts}: {answer}");
        assert!(answer.contains("\r\nx-request-id: "), "{answer}");
    }
}

#[tokio::test]
async fn responses_forbid_sniffing_and_caching_of_json() {
    let service = Service::start().await;
    for (role, path, caching) in [
        (Role::Base, "/health", Some("no-store")),
        (Role::Base, "/v1/models", Some("no-store")),
        (Role::Base, "/nothing", Some("no-store")),
        (Role::Base, "/v1/executions", Some("no-store")),
        (Role::Dashboard, "/", Some("no-cache")),
        (Role::Metrics, "/metrics", None),
    ] {
        let answer = service.ask(role, Method::GET, path).send().await;
        assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{path}");
        let cache = answer.headers.get("cache-control").map(|value| value.to_str().unwrap());
        assert_eq!(cache, caching, "{path}");
        assert!(!answer.headers.contains_key("strict-transport-security"), "{path}");
    }
}
