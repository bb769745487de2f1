//! `/metrics` as Prometheus reads it: process and build, the number of series, and that the
//! documented dashboard and alerts use only existing metrics.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;

use crate::support::eventually;
use crate::support::http::Client;
use crate::support::server::Server;
use crate::support::service::Setup;

/// Maximum number of series of a service with ten models.
const SERIES_MAX: usize = 300;
const METRICS_PORT: u16 = 9464;
const GRAFANA: &str = include_str!("../../docs/grafana.json");
const ALERTS: &str = include_str!("../../docs/alerts.yml");

fn metrics(setup: &Setup) -> String {
    let address = SocketAddr::new(setup.base().ip(), METRICS_PORT);
    Client::new(address, "").get("/metrics").unwrap().text()
}

fn series(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// Returns the names of all metrics, as used in queries.
fn names(text: &str) -> BTreeSet<&str> {
    series(text).iter().filter_map(|line| line.split(['{', ' ']).next()).collect()
}

/// Returns Orrery's metrics that a text mentions.
fn asked(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("orrery_") || word.starts_with("process_")).collect()
}

fn backups(folder: &Path) -> String {
    let to = folder.join("backups");
    format!("[backup]\nevery = '24h'\nlog = '1m'\nfolder = {to:?}\n")
}

/// Uses a service in every way for which there are metrics.
fn used(setup: &Setup, receiver: &Server) {
    let key = setup.create_key();
    let mut client = setup.client(&key);
    for (slug, input) in [
        ("text-language", "{\"text\": \"What a night!\"}"),
        ("image-resize", "{\"image\": \"x\", \"width\": 1}"),
    ] {
        let hook = receiver.url("/hook");
        let body = format!(
            "{{\"model\": \"{slug}\", \"version\": \"1\", \"input\": {input}, \"webhook_url\": \"{hook}\"}}"
        );
        let run = client.post("/v1/prediction/run", &[], &body).unwrap();
        assert_eq!(run.status(), 200, "{}", run.text());
    }
    let workflow = r#"{"name": "Passes", "description": "d",
        "definition": {"steps": [{"step_id": "p", "type": "pass", "result": 1}]}}"#;
    assert_eq!(client.post("/v1/workflows", &[], workflow).unwrap().status(), 201);
    let triggered = client.post("/v1/workflows/passes/trigger", &[], "{}").unwrap();
    assert_eq!(triggered.status(), 202, "{}", triggered.text());
    for path in [
        "/health",
        "/v1/models",
        "/v1/models/text-language",
        "/v2/executions",
        "/v1/webhooks",
        "/v1/billing/balance",
        "/v1/files",
        "/v1/secrets",
        "/nothing",
    ] {
        client.get(path).unwrap();
    }
    for (port, path) in
        [(8081, "/api/v1/workflows"), (8082, "/api/v1/"), (8083, "/sessions"), (8084, "/")]
    {
        Client::new(SocketAddr::new(setup.base().ip(), port), &key).get(path).unwrap();
    }
    setup.run(&["key", "list"]);
    setup.run(&["model", "list"]);
    eventually("all has ended and was delivered", || {
        let delivered = setup.metric("orrery_webhook_deliveries_total{outcome=\"delivered\"}")?;
        (delivered >= 2.0 && setup.unfinished() == Some(0.0)).then_some(())
    });
}

#[test]
fn metrics_stay_few_and_cover_documented_queries() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), &backups(folder.path()));
    let greeting = "slug = 'greet'\noutput_type = 'string'\n[runner]\ntype = 'builtin'\nname = 'text-template'\n";
    setup.add_model("greet", greeting);
    let receiver = Server::start(|_request| (200, String::new()));
    let _service = setup.start();
    used(&setup, &receiver);
    eventually("the backup is written", || {
        setup.metric("orrery_backup_last_timestamp_seconds").filter(|time| *time > 0.0)
    });
    let text = eventually("the log archive is measured", || {
        let text = metrics(&setup);
        text.contains("\norrery_kept_log_age_seconds ").then_some(text)
    });
    assert_eq!(setup.metric("orrery_models"), Some(10.0));
    let count = series(&text).len();
    assert!(count <= SERIES_MAX, "{count} series:\n{text}");
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_start_time_seconds",
        "process_threads",
    ] {
        assert!(setup.metric(name).is_some_and(|value| value > 0.0), "{name}\n{text}");
    }
    let build =
        series(&text).into_iter().find(|line| line.starts_with("orrery_build_info{")).unwrap();
    assert!(build.contains(&format!("version=\"{}\"", env!("CARGO_PKG_VERSION"))), "{build}");
    assert!(build.contains("target=\"x86_64-unknown-linux-") && build.ends_with("} 1"), "{build}");
    // These metrics exist only with encrypted data, or with models that have several endpoints.
    let mut there = names(&text);
    there.insert("orrery_endpoint_used");
    there.insert("orrery_certificate_expiry_timestamp_seconds");
    let json: Value = serde_json::from_str(GRAFANA).unwrap();
    for panel in json["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            assert!(!asked(target["expr"].as_str().unwrap()).is_empty(), "{target}");
        }
    }
    for (document, text) in [("grafana.json", GRAFANA), ("alerts.yml", ALERTS)] {
        let missing: Vec<_> = asked(text).difference(&there).copied().collect();
        assert!(
            missing.is_empty(),
            "docs/{document} asks for {missing:?}, which /metrics does not have"
        );
    }
}

#[test]
fn alerts_are_complete() {
    let rules: Value = serde_saphyr::from_str(ALERTS).unwrap();
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() > 10);
    let mut seen = BTreeSet::new();
    for rule in rules {
        for field in
            ["/alert", "/expr", "/labels/severity", "/annotations/summary", "/annotations/runbook"]
        {
            let value = rule.pointer(field).and_then(Value::as_str);
            assert!(value.is_some_and(|value| !value.is_empty()), "{field}: {rule}");
        }
        assert!(seen.insert(rule["alert"].as_str().unwrap()), "{rule}");
    }
}

#[test]
fn metrics_report_certificate_expiry() {
    let folder = tempfile::tempdir().unwrap();
    let setup =
        Setup::new(folder.path(), &folder.path().join("data"), "[tls]\nmode = 'self-signed'\n");
    let _service = setup.spawn();
    let ends = eventually("the certificate's end is shown", || {
        setup.metric("orrery_certificate_expiry_timestamp_seconds")
    });
    let start = setup.metric("process_start_time_seconds").unwrap();
    assert!(ends > start + 86_400.0, "{ends} {start}");
}
