//! All hosts on one port: each host is below its name, and responds as on its own port.

use std::net::SocketAddr;

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Service, within};

/// The `Accept` header of a browser.
const HTML: &str = "text/html,application/xhtml+xml,*/*;q=0.8";

/// Starts a service with one port for all hosts, in addition to the hosts' own ports.
async fn service() -> Service {
    Service::configured("hosts.one_port = '127.0.0.2:0'\n").await
}

#[tokio::test]
async fn one_port_serves_every_host_below_its_name() {
    let service = service().await;
    let front = service.running.one_port.unwrap();
    let key = &service.key;
    for (role, name) in [
        (Role::Base, "base"),
        (Role::Workflows, "workflows"),
        (Role::Flows, "flows"),
        (Role::Agent, "agent"),
    ] {
        let index = service.ask(role, Method::GET, "/").send().await.expect(200);
        assert_eq!(index["role"], name);
        let place = if role == Role::Base { String::new() } else { format!("/{name}") };
        assert_eq!(index["links"]["health"], format!("http://{front}{place}/health"));
        let document = service.ask(role, Method::GET, "/openapi.json").send().await.expect(200);
        assert_eq!(document["servers"][0]["url"], format!("http://{front}{place}"));
    }
    let id = service.create("text-sentiment", json!({"text": "good"})).await;
    assert_eq!(service.ended(&id).await["status"], "success");
    let step = json!([{"step_id": "a", "type": "model", "model": "text-sentiment",
                       "params": {"text": "good"}}]);
    let workflow = service.workflow(step).await;
    let run = service.trigger(&workflow, json!({})).await;
    assert_eq!(service.completed(&run).await["status"], "completed");
    let path = format!("/api/v1/{workflow}");
    let flow = service.ask(Role::Flows, Method::GET, &path).key(key).send().await.expect(200);
    assert!(flow.to_string().contains(&workflow), "{flow}");
    let models = service.ask(Role::Agent, Method::GET, "/v1/models").key(key).send().await;
    assert_eq!(models.expect(200)["object"], "list");
}

/// Returns the entire response to a GET, exactly as received.
async fn get(address: SocketAddr, path: &str, accept: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\naccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within("the end of the response", stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn hosts_keep_their_own_ports_beside_one_port() {
    let service = service().await;
    assert_ne!(service.running.one_port, Some(service.address(Role::Base)));
    for role in [Role::Base, Role::Workflows, Role::Flows, Role::Agent, Role::Dashboard] {
        let address = service.address(role);
        let health = get(address, "/health", HTML).await;
        assert!(health.starts_with("HTTP/1.0 200"), "{role:?}: {health}");
        // On its own port, a host has no paths with the names of other hosts.
        let below = get(address, "/agent/health", HTML).await;
        assert!(below.starts_with("HTTP/1.0 404"), "{role:?}: {below}");
    }
}

#[tokio::test]
async fn one_port_may_be_an_address_of_the_base_host() {
    let service = Service::configured("hosts.one_port = '127.0.0.1:0'\n").await;
    assert_eq!(service.running.one_port, Some(service.address(Role::Base)));
    let index = service.ask(Role::Agent, Method::GET, "/").send().await.expect(200);
    assert_eq!(index["role"], "agent");
}

#[tokio::test]
async fn documentation_is_below_the_dashboard_on_one_port() {
    let service = service().await;
    let front = service.running.one_port.unwrap();
    let entered = get(front, "/dashboard/docs", HTML).await;
    assert!(entered.contains("\r\nlocation: docs/\r\n"), "{entered}");
    let below = get(front, "/dashboard/docs/", HTML).await;
    let own = get(service.address(Role::Dashboard), "/docs/", HTML).await;
    let page = |answer: &str| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    assert!(page(&own).contains("<title>") && page(&own) == page(&below), "{own}\n{below}");
}

#[tokio::test]
async fn browser_at_root_of_one_port_is_sent_to_dashboard() {
    let service = service().await;
    let front = service.running.one_port.unwrap();
    let root = get(front, "/", HTML).await;
    assert!(
        root.starts_with("HTTP/1.0 302") && root.contains("\nlocation: /dashboard\r"),
        "{root}"
    );
    assert!(get(front, "/", "*/*").await.contains("\"role\":\"base\""));
    let page = get(front, "/dashboard", HTML).await;
    assert!(page.contains("src=\"/dashboard/static/app.js\""), "{page}");
    assert!(!page.contains("\"/static/") && !page.contains("{place}"), "{page}");
    let script = get(front, "/dashboard/static/app.js", "*/*").await;
    assert!(script.starts_with("HTTP/1.0 200") && !script.contains("\"/static/"), "{script}");
    let own = get(service.address(Role::Dashboard), "/", HTML).await;
    assert!(own.contains("src=\"/static/app.js\""), "{own}");
    let tag = |page: &str| page.lines().find(|line| line.starts_with("etag")).map(str::to_owned);
    assert_ne!(tag(&own), tag(&page));
}

#[tokio::test]
async fn links_lead_to_one_port() {
    let service = service().await;
    let front = service.running.one_port.unwrap();
    let made = service
        .post("/v1/upload/presign", &json!({"filename": "a.txt", "content_type": "text/plain"}))
        .send()
        .await;
    let made = made.expect(200);
    let urls = made.as_object().unwrap().values().filter_map(Value::as_str);
    let urls: Vec<&str> = urls.filter(|text| text.starts_with("http")).collect();
    assert!(urls.len() > 1, "{made}");
    assert!(urls.iter().all(|url| url.starts_with(&format!("http://{front}/v1/"))), "{urls:?}");
    let link = service.running.services.url_of(Role::Dashboard);
    assert_eq!(link, format!("http://{front}/dashboard"));
    // The error for a request to the wrong host names the right host.
    let wrong = service.post("/mcp", &json!({})).send().await;
    assert_eq!(wrong.expect(404)["details"]["url"], format!("http://{front}/agent"));
}
