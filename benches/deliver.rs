//! Webhook deliveries by the real binary, from a store with due deliveries to receivers that run in
//! their own process and answer immediately.
//!
//! - To one receiver and to thirty: deliveries per second, and CPU time per delivery.
//! - To the same thirty receivers, alongside twenty that refuse connections or hang.
//! - A start with 100,000 due deliveries: the times of the first and last arrival, and memory.
//!
//! Every delivery is signed, and its outcome is durable before it counts. `ORRERY_BENCH_ROUNDS`,
//! `ORRERY_BENCH_DELIVERIES` (40,000) and `ORRERY_BENCH_BACKLOG` (100,000) change a run.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a benchmark fails by a panic and prints its table"
)]
#![expect(clippy::disallowed_methods, reason = "it measures time by a clock of its own")]

mod support;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use orrery_domain::delivery::{Delivery, Webhook};
use orrery_domain::ids::OrganizationId;
use orrery_domain::payload::Payload;
use orrery_runtime::{Clock, new_id};
use orrery_storage::{Commit, Options, Sealer, Store};
use orrery_webhooks as webhooks;
use support::process::{self, Killed};
use support::requests::Requests;
use support::service::{self, Setup};
use support::table::{Table, mebibytes, milliseconds, number, ratio};
use support::{knob, median};
use tokio::net::{TcpListener, TcpStream};

const LIVING: u8 = 30;
const DEAD: u8 = 20;
/// Deliveries to each receiver that refuses connections or hangs.
const FOR_EACH_DEAD: u64 = 200;
/// The last octet of the first address whose receiver hangs.
const HANGS_FROM: u8 = 100;
const BATCH_MAX: usize = 500;
const PATIENCE: Duration = Duration::from_secs(300);

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match process::role() {
        Some(_receiver) => runtime.block_on(receive()),
        None => measure(),
    }
}

// --- the receivers ---

/// Runs all receivers: one port on every loopback address. `GET /count` returns the number of
/// arrivals.
async fn receive() {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    let count = Arc::<AtomicU64>::default();
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(answer_all(stream, Arc::clone(&count)));
    }
}

async fn answer_all(stream: TcpStream, count: Arc<AtomicU64>) -> Option<()> {
    let hangs = match stream.local_addr().unwrap() {
        SocketAddr::V4(address) => address.ip().octets()[3] >= HANGS_FROM,
        SocketAddr::V6(_) => false,
    };
    let mut requests = Requests::new(stream);
    loop {
        let request = requests.next().await?;
        if hangs {
            std::future::pending::<()>().await;
        }
        if request.starts_with(b"GET") {
            let text = count.load(Ordering::Relaxed).to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
            // Answer once, then close the connection.
            requests.answer((head + &text).as_bytes()).await?;
            return Some(());
        }
        count.fetch_add(1, Ordering::Relaxed);
        requests.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await?;
    }
}

/// Starts the receivers and returns their process and port.
fn start_receivers() -> (Killed, u16) {
    let mut child = process::again("receiver").spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Killed(child), line.trim().parse().unwrap())
}

fn received(port: u16) -> u64 {
    let answer = service::get(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), "/count").unwrap();
    answer.rsplit("\r\n").next().unwrap().parse().unwrap()
}

// --- the deliveries ---

/// Fills a store with `count` due deliveries, distributed over `urls` in turn.
fn fill(data: &Path, count: u64, urls: &[String]) {
    std::fs::create_dir_all(data).unwrap();
    let options = Options { folder: data.to_path_buf(), inline_bytes: 65_536 };
    let store = Store::open(&options).unwrap();
    let sealer = Sealer::open(data).unwrap();
    let organization: OrganizationId = new_id();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let body: Payload = serde_json::from_value(serde_json::json!({"inline": {
        "execution_id": "0199c0de-0000-7000-8000-000000000000", "status": "completed",
        "output": "x".repeat(200), "error": "", "error_cause": null, "metrics": {"cost": 0.0},
    }}))
    .unwrap();
    let now = Clock::system().now();
    let secret = sealer.seal("a secret of theirs").unwrap();
    runtime.block_on(async {
        let mut urls = urls.iter().cycle();
        let mut left = usize::try_from(count).unwrap();
        while left > 0 {
            let mut commit = Commit::new();
            for _ in 0..left.min(BATCH_MAX) {
                let url = urls.next().unwrap().clone();
                let webhook = Webhook { secret: Some(secret.clone()), ..Webhook::unsigned(url) };
                let delivery =
                    Delivery::new(new_id(), organization, new_id(), webhook, body.clone(), now);
                webhooks::enqueue(&mut commit, &delivery).unwrap();
            }
            store.commit(commit).await.unwrap();
            left = left.saturating_sub(BATCH_MAX);
        }
        store.close().await;
    });
}

fn urls(first: u8, count: u8, port: u16) -> Vec<String> {
    (first..first + count).map(|last| format!("http://127.0.0.{last}:{port}/hook")).collect()
}

/// The measurements of one run on a filled store.
#[derive(Debug, Clone, Copy)]
struct Sent {
    rate: f64,
    /// CPU time of the service per delivery, in seconds.
    cpu: f64,
    /// Time from the spawn of the service to the first arrival.
    first: f64,
    /// Time from the spawn of the service to the last arrival.
    last: f64,
    peak: f64,
}

/// Starts the service on a store with `living` deliveries to receivers that answer and `dead`
/// deliveries to receivers that do not.
fn send(living: u64, living_urls: &[String], dead: &[(u64, Vec<String>)], port: u16) -> Sent {
    let folder = support::folder();
    let setup = Setup::new(folder.path());
    for (count, urls) in dead {
        fill(setup.data(), *count, urls);
    }
    fill(setup.data(), living, living_urls);
    let before = received(port);
    let spawned = Instant::now();
    let (service, _) = setup.start();
    let wait = |count: u64| {
        while received(port) - before < count {
            assert!(spawned.elapsed() < PATIENCE, "the deliveries do not arrive");
            std::thread::sleep(Duration::from_millis(2));
        }
        spawned.elapsed().as_secs_f64()
    };
    let first = wait(1);
    // Exclude the first tenth, when the service does not know the receivers yet.
    let head = living / 10;
    let begun = wait(head);
    let cpu = process::processor_seconds(service.0.id());
    let last = wait(living);
    let cpu = process::processor_seconds(service.0.id()) - cpu;
    let measured = (living - head) as f64;
    Sent {
        rate: measured / (last - begun),
        cpu: cpu / measured,
        first,
        last,
        peak: process::peak(service.0.id()),
    }
}

fn measure() {
    let rounds = knob("ORRERY_BENCH_ROUNDS", 5);
    let count = knob("ORRERY_BENCH_DELIVERIES", 40_000);
    let (_receivers, port) = start_receivers();
    // Nothing listens on this port.
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let one = urls(1, 1, port);
    let living = urls(1, LIVING, port);
    let half = DEAD / 2;
    let of_dead = FOR_EACH_DEAD * u64::from(half);
    let dead =
        [(of_dead, urls(LIVING + 1, half, refusing)), (of_dead, urls(HANGS_FROM, half, port))];
    let [mut to_one, mut alone, mut beside] = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds {
        to_one.push(send(count, &one, &[], port));
        alone.push(send(count, &living, &[], port));
        beside.push(send(count, &living, &dead, port));
    }
    let middle = |sent: &[Sent], of: fn(&Sent) -> f64| median(sent.iter().map(of).collect());
    let pace = middle(&alone, |sent| sent.rate);
    let mut table = Table::new(&["", "per second", "of it", "CPU time each"]);
    for (name, sent, of) in [
        ("to one receiver", &to_one, None),
        ("to 30 receivers", &alone, None),
        ("to the same 30, beside 20 dead ones", &beside, Some(pace)),
    ] {
        let rate = middle(sent, |sent| sent.rate);
        let cpu = middle(sent, |sent| sent.cpu) * 1e6;
        let of = of.map_or_else(String::new, |of| ratio(rate / of));
        table.row([name.to_owned(), number(rate), of, format!("{} µs", number(cpu))]);
    }
    table.print();
    let backlog = knob("ORRERY_BENCH_BACKLOG", 100_000);
    if backlog > 0 {
        let sent = send(backlog, &living, &[], port);
        println!();
        let mut table =
            Table::new(&["a start with so many due", "first", "last", "memory at the peak"]);
        let first = milliseconds::<0>(sent.first);
        let last = milliseconds::<0>(sent.last);
        table.row([number(backlog as f64), first, last, mebibytes::<1>(sent.peak)]);
        table.print();
    }
}
