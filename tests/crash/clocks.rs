//! A clock that is wrong for a while, and correct again at the next start.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::support::eventually;
use crate::support::server::Server;
use crate::support::service::Setup;

const YEAR_SECONDS: i64 = 365 * 24 * 3600;

/// A retry and a webhook are scheduled while the clock is a year ahead. After a kill and a start
/// with the right clock, both happen on time. An idempotency key works across the correction of the
/// clock.
#[test]
fn clock_corrected_between_starts_delays_nothing() {
    let asked = Arc::<AtomicUsize>::default();
    let delivered = Arc::<Mutex<Vec<bool>>>::default();
    let asking = Arc::clone(&asked);
    let delivering = Arc::clone(&delivered);
    // Every request of each kind fails until the third.
    let server = Server::start(move |request| {
        let fails = if request.second_word() == "/hook" {
            let mut delivered = delivering.lock().unwrap();
            delivered.push(true);
            delivered.len() < 3
        } else {
            asking.fetch_add(1, Ordering::SeqCst) < 2
        };
        (if fails { 503 } else { 200 }, json!({"done": true}).to_string())
    });
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let manifest = format!(
        "slug = \"flaky\"\noutput_type = \"boolean\"\n[request_schema]\ntype = \"object\"\n\
         [runner]\ntype = \"http\"\nurl = \"{}\"\noutput = \"/done\"\n",
        server.url("/model")
    );
    setup.add_model("flaky", &manifest);
    let service = setup.start();
    let key = setup.create_key();
    let mut client = setup.client(&key);
    let retry = json!({"max_attempts": 5, "initial_delay_seconds": 2, "max_delay_seconds": 2});
    let step = json!({"step_id": "a", "type": "model", "model": "flaky", "params": {"n": 1},
                      "retry": retry});
    let body = json!({"name": "w", "description": "d", "definition": {"steps": [step]}});
    let made = client.post("/v1/workflows", &[], &body.to_string()).unwrap();
    assert_eq!(made.status(), 201, "{}", made.text());
    let workflow = made.json()["workflow_id"].as_str().unwrap().to_owned();

    let prediction = json!({"model": "text-template", "version": "1",
                            "input": {"template": "x"}, "webhook_url": server.url("/hook")});
    let predict = |name: &str| {
        let header = [("Idempotency-Key", name)];
        let mut client = setup.client(&key);
        let made = client.post("/v1/prediction", &header, &prediction.to_string()).unwrap();
        assert_eq!(made.status(), 200, "{}", made.text());
        made.json()["predictionID"].as_str().unwrap().to_owned()
    };
    let before = predict("before");
    setup.shift_clock(YEAR_SECONDS);
    let path = format!("/v1/workflows/{workflow}/trigger");
    let made = client.post(&path, &[], "{}").unwrap();
    assert_eq!(made.status(), 202, "{}", made.text());
    let id = made.json()["execution_id"].as_str().unwrap().to_owned();
    assert_eq!(predict("before"), before, "a jump of the clock forgets no key");
    let during = predict("during");
    let ready = client.get("/ready").unwrap().json();
    assert!(ready["warnings"][0].as_str().unwrap().starts_with("clock: "), "{ready}");
    assert!(setup.metric("orrery_clock_ahead_seconds").unwrap() > 86_400.0 * 300.0);
    eventually("the log says that the clock is ahead", || {
        setup.log_since(0).contains("the machine's clock is ahead of the time").then_some(())
    });
    // The pause before the retry is durable at this point, and ends a year from now.
    eventually("the step waits for its retry", || {
        let path = format!("/v1/workflows/executions/{id}?timeout=0");
        let seen = client.get(&path).unwrap().json();
        (seen["waiting_for"][0]["reason"] == "retry").then_some(())
    });
    service.kill();
    setup.shift_clock(0);
    let _service = setup.start();
    let ended = client_get(&setup, &key, &format!("/v1/workflows/executions/{id}?timeout=20"));
    assert_eq!(ended["status"], "completed", "{ended}");
    eventually("the webhooks arrive", || (delivered.lock().unwrap().len() >= 4).then_some(()));
    assert_eq!((predict("before"), predict("during")), (before, during));
}

/// While the clock is beyond the representable years, responses, ids and waits keep working, and
/// they still do after the clock is corrected.
#[test]
fn clock_in_a_five_digit_year_breaks_no_response() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    let key = setup.create_key();
    let mut client = setup.client(&key);
    let body = json!({"model": "text-template", "version": "1", "input": {"template": "x"}});
    let mut ids = Vec::new();
    for (years, date) in [(0, " 20"), (58_000, " 9999 "), (7_970, " 99"), (0, " 20")] {
        setup.shift_clock(years * YEAR_SECONDS);
        for _ in 0..3 {
            let health = client.get("/health").unwrap();
            assert_eq!(health.status(), 200, "{years} years ahead");
            assert!(health.header("date").is_some_and(|text| text.contains(date)), "{years}");
        }
        let done = client.post("/v1/prediction/run", &[], &body.to_string()).unwrap();
        assert_eq!((done.status(), &done.json()["status"]), (200, &json!("success")));
        ids.push(done.json()["predictionID"].as_str().unwrap().to_owned());
    }
    assert!(ids.is_sorted(), "{ids:?}");
}

fn client_get(setup: &Setup, key: &str, path: &str) -> serde_json::Value {
    setup.client(key).get(path).unwrap().json()
}
