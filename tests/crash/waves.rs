//! Waves of creates while every disk flush is slow: no model may be called twice, no slot may leak,
//! no cancellation may be undone, and each success must be charged once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::faults;
use crate::providers::COST_MICROS;
use crate::support::http::Client;
use crate::support::server::Server;
use crate::support::service::Setup;
use crate::support::{count_from, eventually};
use crate::verdict;
use orrery_runtime as runtime;

/// Additional duration of each flush.
const DELAYS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(60)];
/// Creates per wave, and the number of concurrent clients.
const WAVE: usize = 450;
const SENDERS: usize = 45;
/// One create in this many is repeated immediately with its key; one in this many is cancelled
/// immediately.
const REPEATED: usize = 5;
const CANCELLED: usize = 3;
const MODEL_TAKES: Duration = Duration::from_millis(20);
const TOP_UP_DOLLARS: i64 = 10;

/// The number of calls of the model, by attempt key and by the number in the input.
#[derive(Debug, Default)]
struct Calls {
    by_key: HashMap<String, u32>,
    by_number: HashMap<u64, u32>,
}

/// An acknowledged create.
#[derive(Debug)]
struct Sent {
    id: String,
    number: usize,
    /// Whether the service confirmed it as `cancelled`.
    is_cancelled: bool,
}

/// Runs `ORRERY_CRASH_WAVES` waves for each delay.
#[test]
#[ignore = "needs strace: run tests/run"]
fn slow_flushes_duplicate_and_undo_nothing() {
    if !faults::can_inject() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let calls = Arc::<Mutex<Calls>>::default();
    let setup =
        Setup::new(folder.path(), &folder.path().join("data"), "[billing]\nenforce = true\n");
    let _model = add_model(&setup, &calls);
    let service = setup.start();
    let key = setup.create_key();
    setup.run(&["balance", "top-up", "--amount", &TOP_UP_DOLLARS.to_string()]);
    let mut sent = 0;
    let mut balance = TOP_UP_DOLLARS * 1_000_000;
    let mut cancelled = 0;
    for delay in DELAYS {
        for _ in 0..count_from("ORRERY_CRASH_WAVES", 1) {
            let began = runtime::monotonic_now();
            let slow = faults::slow_flushes(service.pid(), delay);
            let wave = send_wave(&setup, &key, sent, delay);
            let ids: Vec<String> = wave.iter().map(|sent| sent.id.clone()).collect();
            let ends = verdict::settle(&setup, &key, &ids);
            eventually("no place is held", || (setup.unfinished() == Some(0.0)).then_some(()));
            drop(slow);
            assert_eq!(ends.len(), WAVE, "each create has an id of its own");
            sent += WAVE;
            cancelled += wave.iter().filter(|sent| sent.is_cancelled).count();
            println!("a wave with flushes of {delay:?} took {:?}", began.elapsed());
            balance -= check_wave(&wave, &ends, &calls);
            assert_eq!(verdict::balance(&mut setup.client(&key)), balance);
        }
    }
    println!("{sent} creates, {cancelled} cancelled, {} calls", calls.lock().unwrap().by_key.len());
    service.kill();
    let service = setup.start();
    assert_eq!(verdict::balance(&mut setup.client(&key)), balance);
    service.kill();
    setup.run(&["verify"]);
}

fn add_model(setup: &Setup, calls: &Arc<Mutex<Calls>>) -> Server {
    let noted = Arc::clone(calls);
    let server = Server::start(move |request| {
        let number = request.json()["number"].as_u64().unwrap_or_default();
        {
            let mut calls = noted.lock().unwrap();
            let key = request.header("idempotency-key").unwrap_or_default().to_owned();
            *calls.by_key.entry(key).or_default() += 1;
            *calls.by_number.entry(number).or_default() += 1;
        }
        std::thread::sleep(MODEL_TAKES);
        (200, json!({"echo": number}).to_string())
    });
    let manifest = format!(
        "slug = \"counted\"\noutput_type = \"number\"\nconcurrency = 32\nqueue_limit = 1000000\n\
         [request_schema]\ntype = \"object\"\n[cost]\ntype = \"fixed\"\namount = 0.{COST_MICROS:06}\n\
         [runner]\ntype = \"http\"\nurl = \"{}\"\noutput = \"/echo\"\n",
        server.url("/counted")
    );
    setup.add_model("counted", &manifest);
    server
}

/// Sends the creates numbered from `first`, from many concurrent clients.
fn send_wave(setup: &Setup, key: &str, first: usize, delay: Duration) -> Vec<Sent> {
    const SHARE: usize = WAVE / SENDERS;
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let mut client = setup.client(key);
                let from = first + sender * SHARE;
                scope.spawn(move || -> Vec<Sent> {
                    (from..from + SHARE).map(|number| send(&mut client, number, delay)).collect()
                })
            })
            .collect();
        senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect()
    })
}

fn send(client: &mut Client, number: usize, delay: Duration) -> Sent {
    let body = json!({"model": "counted", "version": "1", "input": {"number": number}}).to_string();
    let key = format!("wave-{number}");
    let mut create = || {
        let answer = client.post("/v1/prediction/", &[("Idempotency-Key", &key)], &body).unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
        answer.json()["predictionID"].as_str().unwrap().to_owned()
    };
    let began = runtime::monotonic_now();
    let id = create();
    assert!(began.elapsed() >= delay, "acknowledged before its flush");
    if number.is_multiple_of(REPEATED) {
        assert_eq!(create(), id, "{key} was given two ids");
    }
    let mut is_cancelled = false;
    if number.is_multiple_of(CANCELLED) {
        let answer = client.post(&format!("/v1/prediction/{id}/cancel"), &[], "").unwrap();
        assert!([200, 409].contains(&answer.status()), "{}", answer.text());
        is_cancelled = answer.status() == 200 && answer.json()["status"] == "cancelled";
    }
    Sent { id, number, is_cancelled }
}

/// Checks how each created prediction ended and how often its model was called; returns the total
/// cost in micro-dollars.
fn check_wave(wave: &[Sent], ends: &verdict::Ends, calls: &Arc<Mutex<Calls>>) -> i64 {
    let calls = calls.lock().unwrap();
    assert!(!calls.by_key.contains_key(""), "a call without an attempt key");
    for (key, count) in &calls.by_key {
        assert_eq!(*count, 1, "{key} was called again");
    }
    let mut cost = 0;
    for Sent { id, number, is_cancelled } in wave {
        let body: Value = serde_json::from_slice(&ends[id]).unwrap();
        let asked = calls.by_number.get(&(*number as u64)).copied().unwrap_or_default();
        let paid = verdict::micros(&body["metrics"]["cost"]);
        if *is_cancelled {
            assert_eq!(body["status"], "cancelled", "a cancellation was undone: {body}");
            assert!(asked <= 1, "{id} was called {asked} times");
            assert_eq!(paid, 0, "{body}");
        } else {
            assert_eq!(body["status"], "success", "{body}");
            assert_eq!(body["output"], *number, "{body}");
            assert_eq!(asked, 1, "calls of {id}");
            assert_eq!(paid, COST_MICROS, "{body}");
        }
        cost += paid;
    }
    cost
}
