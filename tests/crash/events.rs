//! Events sent around kills, two per execution: the event that the service acknowledged becomes the
//! execution's answer, and the other event does not.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::leftovers::{check_none, ended, workflow};
use crate::support::http::Client;
use crate::support::random::Random;
use crate::support::service::Setup;
use crate::support::{PATIENCE, count_from, eventually};
use orrery_runtime as runtime;

/// Waiting executions per kill.
const EXECUTIONS: usize = 60;
/// Inputs per bulk trigger.
const BULK: usize = 10;
/// Senders, each of which sends an event to every execution.
const SENDERS: usize = 3;

/// The events sent to an execution.
#[derive(Debug, Default)]
struct Sent {
    /// Events that the service accepted with 202.
    acknowledged: Vec<String>,
    /// Events for which the connection broke at least once.
    doubtful: Vec<String>,
}

/// Sends an event until the service responds, and records the outcome.
fn send(setup: &Setup, client: &mut Client, id: &str, payload: &str, sent: &Mutex<Sent>) {
    let path = format!("/v1/workflows/executions/{id}/events/answer");
    let body = json!({ "payload": payload }).to_string();
    let deadline = runtime::monotonic_now() + PATIENCE;
    while runtime::monotonic_now() < deadline {
        match client.post(&path, &[], &body) {
            Ok(answer) if answer.status() == 202 => {
                sent.lock().unwrap().acknowledged.push(payload.to_owned());
                return;
            }
            Ok(answer) if answer.status() == 409 => return,
            Ok(answer) => assert!([429, 503].contains(&answer.status()), "{}", answer.text()),
            Err(_broken) => {
                sent.lock().unwrap().doubtful.push(payload.to_owned());
                eventually("the service is there", || {
                    (setup.client("").get("/ready").ok()?.status() == 200).then_some(())
                });
            }
        }
    }
    panic!("{payload} is not taken");
}

/// Starts this many executions that wait for an event; every second one begins to wait later.
fn start(client: &mut Client, count: usize) -> Vec<String> {
    // Some events arrive before their step waits; the service stores them.
    let workflow = workflow(
        client,
        "asks",
        &json!([
            {"step_id": "later", "type": "wait", "seconds": "{{inputs.seconds}}"},
            {"step_id": "ask", "type": "wait", "event": {"name": "answer"}},
        ]),
    );
    let mut ids = Vec::new();
    for first in (0..count).step_by(BULK) {
        let seconds = |n: usize| json!({"seconds": if n.is_multiple_of(2) { 0 } else { 2 }});
        let inputs: Vec<Value> = (first..first + BULK).map(seconds).collect();
        let body = json!({ "inputs": inputs }).to_string();
        let path = format!("/v1/workflows/{workflow}/bulk-trigger");
        let taken = client.post(&path, &[], &body).unwrap();
        assert_eq!(taken.status(), 202, "{}", taken.text());
        let id = |one: &Value| one["execution_id"].as_str().unwrap().to_owned();
        ids.extend(taken.json()["executions"].as_array().unwrap().iter().map(id));
    }
    ids
}

#[test]
fn events_acknowledged_around_kills_are_the_answers() {
    let kills = usize::try_from(count_from("ORRERY_CRASH_EVENTS", 3)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let mut service = setup.start();
    let key = setup.create_key();
    let mut client = setup.client(&key);
    let ids = start(&mut client, EXECUTIONS * kills);
    let sent: Vec<Mutex<Sent>> = ids.iter().map(|_| Mutex::default()).collect();
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (setup, key, ids, sent, answered) = (&setup, &key, &ids, &sent, &answered);
            scope.spawn(move || {
                let mut client = setup.client(key);
                for (number, (id, sent)) in ids.iter().zip(sent).enumerate() {
                    send(setup, &mut client, id, &format!("{sender}-{number}"), sent);
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let all = ids.len() * SENDERS;
        for round in 0..kills {
            let within = usize::try_from(random.within(1..all as u64)).unwrap();
            let wanted = (all * round + within) / kills;
            eventually("events are sent", || {
                (answered.load(Ordering::SeqCst) >= wanted).then_some(())
            });
            std::thread::sleep(Duration::from_micros(random.within(0..5_000)));
            service.kill_and_keep();
            service = setup.start();
        }
    });
    let mut client = setup.client(&key);
    let mut doubtful = 0;
    for (id, sent) in ids.iter().zip(sent) {
        let sent = sent.into_inner().unwrap();
        let detail = ended(&mut client, id);
        assert_eq!(detail["status"], "completed", "{detail}");
        let answer = detail["output"].as_str().unwrap().to_owned();
        match sent.acknowledged.as_slice() {
            [acknowledged] => assert_eq!(answer, *acknowledged, "{id}: {sent:?}"),
            [] => {
                assert!(sent.doubtful.contains(&answer), "{id}: {answer} of {sent:?}");
                doubtful += 1;
            }
            _ => panic!("{id} was answered twice: {sent:?}"),
        }
        let path = format!("/v1/workflows/executions/{id}/events/answer");
        assert_eq!(client.post(&path, &[], r#"{"payload": 1}"#).unwrap().status(), 409);
    }
    check_none(&setup, service);
    println!("{} executions, {doubtful} answered by an event whose connection broke", ids.len());
}
