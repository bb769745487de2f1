//! The limits of a restricted key hold while the service is killed again and again during parallel
//! calls: the budget, the requests in flight and the tokens per minute are never exceeded.

use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use orrery_runtime as runtime;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::random::Random;
use crate::support::service::{Service, Setup};

const CLIENTS: usize = 64;
const KILLS: usize = 5;
/// Tokens that a call uses, and the maximum that it may use.
const USED: u64 = 50;
const MOST: u64 = 100;
/// Cost of a call, in micro-dollars.
const COST: u64 = 4000;
const BUDGET: u64 = 1_000_000;
const PARALLEL: u64 = 32;
const TOKENS_PER_MINUTE: u64 = 6000;

/// A model server that counts the requests that it answers at the same time.
#[derive(Debug, Default)]
struct Server {
    busy: AtomicU64,
    busiest: AtomicU64,
}

impl Server {
    /// Starts a server that takes up to `slowest` milliseconds for an answer, and returns its URL.
    fn start(self: &Arc<Self>, slowest: u64) -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Arc::clone(self);
        std::thread::spawn(move || {
            let mut random = Random::seeded();
            for stream in listener.incoming().map_while(Result::ok) {
                let server = Arc::clone(&server);
                let pause = Duration::from_millis(random.within(1..slowest));
                std::thread::spawn(move || server.answer(&stream, pause));
            }
        });
        format!("http://{address}/v1")
    }

    fn answer(&self, stream: &TcpStream, pause: Duration) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        if crate::support::http::Message::read(&mut reader).is_err() {
            return;
        }
        let busy = self.busy.fetch_add(1, Ordering::SeqCst) + 1;
        self.busiest.fetch_max(busy, Ordering::SeqCst);
        stream.set_read_timeout(Some(pause)).unwrap();
        // A killed service closes the connection before the pause is over.
        let is_closed = reader.read(&mut [0]).is_ok();
        self.busy.fetch_sub(1, Ordering::SeqCst);
        if is_closed {
            return;
        }
        let choices = json!([{"index": 0, "finish_reason": "stop",
            "message": {"role": "assistant", "content": "hello"}}]);
        let usage = json!({"prompt_tokens": 0, "completion_tokens": USED});
        let body = json!({"choices": choices, "usage": usage}).to_string();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
        let answer = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let mut writer = stream;
        drop(writer.write_all(answer.as_bytes()));
    }
}

/// Starts a service with a model that costs [`COST`] per call.
fn service(folder: &std::path::Path, url: &str) -> Setup {
    let lines = format!(
        "[router]\nupstream_url = \"{url}\"\nprices = [{{ model = \"m\", \
         per_million_input_tokens = 0.0, per_million_output_tokens = 80.0 }}]\n"
    );
    Setup::new(folder, &folder.join("data"), &lines)
}

fn key(setup: &Setup, limits: &[&str]) -> String {
    let made = setup.run(&[&["key", "create", "--name", "limited"], limits].concat());
    made.trim().to_owned()
}

/// The body of a call.
fn call() -> String {
    let messages = json!([{"role": "user", "content": "hi"}]);
    json!({"model": "m", "max_tokens": MOST, "messages": messages}).to_string()
}

/// Calls the model from many clients while the service is killed, until `is_over` returns true.
/// Returns the number of answers that the clients received, and the running service.
fn storm(
    setup: &Setup,
    mut service: Service,
    key: &str,
    is_over: impl Fn() -> bool,
) -> (u64, Service) {
    let body = call();
    let (answered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let came = setup.client(key).post("/v1/chat/completions", &[], &body);
                    match came.map(|answer| answer.status()) {
                        Ok(200) => drop(answered.fetch_add(1, Ordering::SeqCst)),
                        Ok(402 | 429) | Err(_) => std::thread::sleep(Duration::from_millis(20)),
                        Ok(status) => panic!("{status}"),
                    }
                }
            });
        }
        let mut random = Random::seeded();
        for _ in 0..KILLS {
            std::thread::sleep(Duration::from_millis(random.within(150..450)));
            service.kill_and_keep();
            service = setup.start();
        }
        eventually("the limit", || is_over().then_some(()));
        stop.store(true, Ordering::SeqCst);
    });
    (answered.load(Ordering::SeqCst), service)
}

/// Returns the recorded calls.
fn calls(setup: &Setup) -> Vec<Value> {
    let key = setup.create_key();
    let mut found: Vec<Value> = Vec::new();
    let mut next = String::new();
    loop {
        let path = format!("/v2/executions?type=chat&limit=100{next}");
        let page = setup.client(&key).get(&path).unwrap().json();
        found.extend(page["executions"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => return found,
        }
    }
}

#[test]
fn budget_and_requests_in_flight_hold_through_kills() {
    let folder = tempfile::tempdir().unwrap();
    let server = Arc::new(Server::default());
    let setup = service(folder.path(), &server.start(400));
    let service = setup.start();
    let parallel = PARALLEL.to_string();
    let key = key(&setup, &["--budget", "1", "--parallel", &parallel]);
    let spent = || {
        let info = setup.client(&key).get("/v1/key/info").ok()?.json();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a dollar")]
        Some((info["spend"].as_f64()? * 1e6).round() as u64)
    };
    let is_over = || spent().is_some_and(|spent| spent + 2 * COST > BUDGET);
    let (answered, service) = storm(&setup, service, &key, is_over);
    let spent = spent().unwrap();
    assert!(spent <= BUDGET, "{spent}");
    assert!(spent + 2 * COST > BUDGET, "{spent}");
    let rows = calls(&setup);
    let paid = rows.iter().filter(|row| row["execution_cost"].as_f64() > Some(0.0)).count() as u64;
    assert_eq!(paid * COST, spent, "the key's spending equals the cost of its calls");
    assert!(answered <= paid, "{answered} answers, {paid} recorded calls");
    assert_eq!(server.busiest.load(Ordering::SeqCst), PARALLEL);
    drop(service);
}

#[test]
fn tokens_per_minute_hold_through_kills() {
    let folder = tempfile::tempdir().unwrap();
    let server = Arc::new(Server::default());
    let setup = service(folder.path(), &server.start(50));
    let service = setup.start();
    let limit = TOKENS_PER_MINUTE.to_string();
    let key = key(&setup, &["--tpm", &limit]);
    let begun = runtime::monotonic_now();
    let is_used_up = || {
        let answer = setup.client(&key).post("/v1/chat/completions", &[], &call());
        answer.is_ok_and(|answer| answer.status() == 429)
    };
    let (answered, service) = storm(&setup, service, &key, is_used_up);
    let flowed_in = TOKENS_PER_MINUTE * begun.elapsed().as_secs().saturating_add(1) / 60;
    let rows = calls(&setup);
    let used: u64 = rows.iter().map(|row| row["chat"]["output_tokens"].as_u64().unwrap_or(0)).sum();
    assert!(answered * USED <= used, "{answered} answers, {used} tokens");
    assert!(used <= TOKENS_PER_MINUTE + flowed_in, "{used} tokens, {flowed_in} refilled");
    // Each kill loses the tokens that were reserved for the calls in flight.
    let lost = KILLS as u64 * CLIENTS as u64 * MOST;
    assert!(used + lost > TOKENS_PER_MINUTE, "{used}");
    drop(service);
}
