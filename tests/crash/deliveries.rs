//! Kills while a thousand deliveries are in progress: every webhook arrives, no webhook is recorded
//! as delivered before it has arrived, and no webhook is repeated once its arrival is recorded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http::{Client, Message};
use crate::support::random::Random;
use crate::support::server::{Answer, Gate, Server};
use crate::support::service::Setup;
use crate::support::{count_from, eventually};

const DELIVERIES: usize = 1000;
/// Initially, the receiver rejects one in this many webhooks.
const REFUSED: usize = 17;
const LIMITS: &str =
    "in_flight = 1000\nin_flight_per_receiver = 1000\ncircuit_failures = 1000000\n";

/// The receiver's responses to each execution's webhook.
#[derive(Debug, Default)]
struct Arrivals {
    /// Number of 2xx responses.
    accepted: HashMap<String, usize>,
    count: usize,
}

fn receive(request: &Message, gate: &Gate, arrivals: &Mutex<Arrivals>) -> Answer {
    gate.pass();
    // Some responses are in flight when the service dies.
    std::thread::sleep(Duration::from_millis(20));
    let id = request.json()["execution_id"].as_str().unwrap().to_owned();
    let mut arrivals = arrivals.lock().unwrap();
    arrivals.count += 1;
    if arrivals.count.is_multiple_of(REFUSED) {
        return (500, "{}".to_owned());
    }
    *arrivals.accepted.entry(id).or_default() += 1;
    (200, "{}".to_owned())
}

/// Returns the executions of all deliveries with that status, as listed by the service.
fn listed(client: &mut Client, status: &str) -> Vec<String> {
    let mut ids = Vec::new();
    loop {
        let path = format!("/v1/webhooks?status={status}&limit=100&offset={}", ids.len());
        let page = client.get(&path).unwrap().json();
        let found = page["webhooks"].as_array().unwrap();
        ids.extend(found.iter().map(|one| one["execution_id"].as_str().unwrap().to_owned()));
        if found.is_empty() {
            return ids;
        }
    }
}

#[test]
fn deliveries_all_arrive_and_none_repeats_after_success() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), LIMITS);
    let gate = Gate::default();
    let arrivals = Arc::<Mutex<Arrivals>>::default();
    let held = gate.clone();
    let noted = Arc::clone(&arrivals);
    let receiver = Server::start(move |request| receive(request, &held, &noted));
    let mut service = setup.start();
    let key = setup.create_key();
    let mut client = setup.client(&key);
    let body = json!({
        "model": "text-template", "version": "1", "input": {"template": "x"},
        "webhook_url": receiver.url("/hook"),
    });
    let ids: Vec<String> = std::iter::repeat_with(|| {
        let made = client.post("/v1/prediction", &[], &body.to_string()).unwrap().json();
        made["predictionID"].as_str().unwrap().to_owned()
    })
    .take(DELIVERIES)
    .collect();
    let total = |client: &mut Client| {
        client.get("/v1/webhooks?limit=1").unwrap().json()["total_count"].as_u64().unwrap()
    };
    eventually("all are to be delivered", || (total(&mut client) == 1000).then_some(()));
    gate.open();

    let mut random = Random::seeded();
    for _ in 0..count_from("ORRERY_CRASH_DELIVERIES", 6) {
        std::thread::sleep(Duration::from_millis(random.within(0..400)));
        service.kill();
        service = setup.start();
        let mut client = setup.client(&key);
        let delivered = listed(&mut client, "delivered");
        let arrivals = arrivals.lock().unwrap();
        let invented = delivered.iter().find(|id| !arrivals.accepted.contains_key(*id));
        assert_eq!(invented, None, "said to be delivered, and never accepted");
    }
    let mut client = setup.client(&key);
    eventually("all are delivered", || {
        let page = client.get("/v1/webhooks?status=delivered&limit=1").unwrap().json();
        (page["total_count"] == DELIVERIES).then_some(())
    });
    assert_eq!(total(&mut client), 1000);
    let mut repeated = 0;
    for id in &ids {
        let record = client.get(&format!("/v1/webhooks/{id}")).unwrap().json();
        let attempts: Vec<&Value> = record["attempts"].as_array().unwrap().iter().collect();
        let (last, earlier) = attempts.split_last().unwrap();
        assert_eq!(last["status"], "SUCCESS", "{record}");
        assert!(
            earlier.iter().all(|one| one["status"] == "FAILED"),
            "sent on after its success: {record}"
        );
        let accepted = arrivals.lock().unwrap().accepted[id];
        repeated += accepted - 1;
    }
    println!("{DELIVERIES} deliveries, {repeated} of them accepted again after a kill");
    // A process that has not sent any webhook does not export the gauge.
    assert_eq!(setup.metric("orrery_webhook_in_flight").unwrap_or(0.0), 0.0);
}
