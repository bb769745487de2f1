//! Checks of all acknowledged work, after it has had time to end.

use std::collections::HashMap;
use std::sync::Mutex;

use serde_json::Value;

use crate::load::{Ask, ClientLog, Shared};
use crate::providers::Providers;
use crate::support::http::Client;
use crate::support::service::Setup;
use crate::support::{PATIENCE, eventually};
use orrery_runtime as runtime;

/// Concurrent readers.
const READERS: usize = 8;
/// Maximum time, in seconds, that one request waits for an execution to end.
const HELD_SECONDS: u32 = 30;

/// Responses of `GET /v1/prediction/{id}` by id, byte for byte.
pub(crate) type Ends = HashMap<String, Vec<u8>>;

/// Waits until all of `ids` have ended; fails if one is missing. Returns their final responses.
pub(crate) fn settle(setup: &Setup, key: &str, ids: &[String]) -> Ends {
    let ends = Mutex::new(Ends::new());
    let share = ids.len().div_ceil(READERS).max(1);
    std::thread::scope(|scope| {
        for share in ids.chunks(share) {
            let ends = &ends;
            scope.spawn(move || {
                let mut client = setup.client(key);
                for id in share {
                    let body = wait_for_end(&mut client, id);
                    ends.lock().unwrap().insert(id.clone(), body);
                }
            });
        }
    });
    ends.into_inner().unwrap()
}

fn wait_for_end(client: &mut Client, id: &str) -> Vec<u8> {
    let deadline = runtime::monotonic_now() + PATIENCE;
    loop {
        let path = format!("/v1/prediction/{id}?wait={HELD_SECONDS}");
        let answer = client.get(&path).unwrap();
        assert_eq!(answer.status(), 200, "{id} was acknowledged: {}", answer.text());
        let status = answer.json()["status"].as_str().unwrap_or_default().to_owned();
        if ["success", "error", "cancelled"].contains(&status.as_str()) {
            return answer.body;
        }
        assert!(runtime::monotonic_now() < deadline, "{id} does not end: {}", answer.text());
    }
}

/// Checks that each prediction ended as expected, despite all kills; returns the total cost in
/// micro-dollars.
pub(crate) fn check_ends(client_log: &Shared, ends: &Ends) -> i64 {
    let client_log = client_log.lock().unwrap();
    let mut sum = 0;
    for (id, ask) in &client_log.acknowledged {
        let body: Value = serde_json::from_slice(&ends[id]).unwrap();
        check_end(id, ask, &body);
        sum += micros(&body["metrics"]["cost"]);
    }
    sum
}

fn check_end(id: &str, ask: &Ask, body: &Value) {
    let status = if ask.output.is_some() { "success" } else { "error" };
    assert_eq!(body["status"], status, "{id}: {body}");
    let output = ask.output.as_ref().unwrap_or(&Value::Null);
    assert!(body["output"] == *output, "{id} has another output than was asked for");
    assert_eq!(micros(&body["metrics"]["cost"]), ask.cost_micros, "{id}");
    let attempts = body["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 1, "{id}: a kill adds no attempt: {attempts:?}");
    assert_eq!(attempts[0]["status"], status, "{id}");
    let time = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let times = [
        time(&body["created_at"]),
        time(&body["started_at"]),
        time(&attempts[0]["started_at"]),
        time(&attempts[0]["completed_at"]),
        time(&body["completed_at"]),
    ];
    assert!(times.is_sorted() && !times[0].is_empty(), "{id}: {times:?}");
}

/// Converts dollars in JSON to whole micro-dollars.
pub(crate) fn micros(dollars: &Value) -> i64 {
    let micros = dollars.as_f64().unwrap() * 1e6;
    assert!(
        (micros - micros.round()).abs() < 1e-6,
        "{dollars} is not a whole number of micro-dollars"
    );
    #[expect(clippy::cast_possible_truncation, reason = "a test's sums are small")]
    let whole = micros.round() as i64;
    whole
}

/// Returns the organization's balance in micro-dollars. The route allows three requests per second.
pub(crate) fn balance(client: &mut Client) -> i64 {
    eventually("the balance is answered", || {
        let answer = client.get("/v1/billing/balance").unwrap();
        (answer.status() == 200).then(|| micros(&answer.json()["balance_usd"]))
    })
}

/// Returns the organization's usage: requests, and cost in micro-dollars.
pub(crate) fn usage(client: &mut Client) -> (u64, i64) {
    let answer = client.get("/v1/usage?group_by=month&from=2026-01-01").unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let groups = answer.json()["data"].as_array().unwrap().clone();
    let requests = groups.iter().map(|group| group["requests"].as_u64().unwrap()).sum();
    (requests, groups.iter().map(|group| micros(&group["cost_usd"])).sum())
}

/// Waits until each requested webhook has arrived; fails if any other webhook arrives, or if the
/// receiver has found a violation.
pub(crate) fn check_webhooks(providers: &Providers, client_log: &Shared) {
    let (asked, not_asked): (Vec<String>, Vec<String>) = {
        let client_log = client_log.lock().unwrap();
        let ids = |wanted: bool| {
            let held = client_log.acknowledged.iter().filter(|(_, ask)| ask.has_webhook == wanted);
            held.map(|(id, _)| id.clone()).collect()
        };
        (ids(true), ids(false))
    };
    eventually("every webhook arrives", || {
        providers.arrivals(|arrivals| {
            asked.iter().all(|id| arrivals.bodies.contains_key(id)).then_some(())
        })
    });
    providers.arrivals(|arrivals| {
        assert_eq!(arrivals.faults, [] as [String; 0]);
        for id in not_asked {
            assert!(!arrivals.bodies.contains_key(&id), "{id} asked for no webhook");
        }
    });
}

/// Checks all acknowledged work on a running service: nothing is missing, and each prediction ended
/// as expected, was charged once, and was announced by its webhook. `beside` is the cost, in
/// micro-dollars, of work that is not in the clients' log.
pub(crate) fn check_all(
    setup: &Setup,
    key: &str,
    providers: &Providers,
    client_log: &Shared,
    beside: i64,
) -> Ends {
    let mut client = setup.client(key);
    ClientLog::clear_doubts(client_log, &mut client);
    let ends = settle(setup, key, &ClientLog::ids(client_log));
    let sum = check_ends(client_log, &ends);
    assert_eq!(balance(&mut client), -sum - beside, "the balance is the sum of the costs");
    assert_eq!(usage(&mut client).1, sum + beside, "the usage is the sum of the costs");
    check_webhooks(providers, client_log);
    ClientLog::repeat_keys(client_log, &mut client);
    ends
}
