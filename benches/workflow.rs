//! Workflows from trigger to end, by the real binary in its own process.
//!
//! - Three HTTP calls to an instant server: latency, CPU time and context switches with 1 in
//!   flight; latency with 64 in flight; CPU time, commits and bytes written per execution of a
//!   burst; and the disk space used. The same run also measures the same calls made directly and
//!   the same commits on the bare store.
//! - Predictions of a model on the same server: bytes written and bytes stored per prediction.
//! - A sequence of 100 steps against one of 10: the cost per step should be equal.
//! - 10,000 concurrent executions on a model that takes a second and has a concurrency of 1,000.
//!
//! `ORRERY_BENCH_ROUNDS`, `ORRERY_BENCH_BURST` (5,000) and `ORRERY_BENCH_CROWD` (10,000; 0 skips
//! it) change a run.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a benchmark fails by a panic and prints its table"
)]
#![expect(clippy::disallowed_methods, reason = "it measures time by a clock of its own")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_engine::rows;
use orrery_runtime::new_id;
use orrery_storage::{Commit, Options, Store};
use serde_json::{Value, json};
use support::client::{self, Load};
use support::disk::{self, Disk};
use support::instant;
use support::process::{self, Killed};
use support::service::{self, Setup};
use support::table::{Table, mebibytes, milliseconds, number, ratio};
use support::workflows;

/// The time limit of every wait in this benchmark.
const PATIENCE: Duration = Duration::from_secs(300);
/// Commits of a workflow of three steps: one at its creation, and one at the end of each step.
const COMMITS: u64 = 4;
/// Executions per round whose latency is measured, with 1 and with 64 in flight.
const ONE: u64 = 300;
const MANY: u64 = 6400;

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match process::role() {
        Some(_server) => runtime.block_on(instant::serve()),
        None => runtime.block_on(measure()),
    }
}

/// A request that creates an execution.
struct Trigger {
    address: SocketAddr,
    request: Arc<[u8]>,
    /// The kind of execution: `workflow` or `prediction`.
    kind: &'static str,
}

/// The service to measure.
struct Subject {
    setup: Setup,
    child: Killed,
    key: String,
}

impl Subject {
    async fn workflow(&self, name: &str, steps: Value) -> Trigger {
        let address = self.setup.workflows;
        let path = workflows::make(address, &self.key, name, steps).await;
        let request = client::post(address, &path, &self.key, r#"{"inputs":{"n":"7"}}"#);
        Trigger { address, request, kind: "workflow" }
    }

    fn prediction(&self, model: &str) -> Trigger {
        let address = self.setup.base;
        let body = json!({"model": model, "version": "0.0.1", "input": {"n": "7"}});
        let request = client::post(address, "/v1/prediction/", &self.key, &body.to_string());
        Trigger { address, request, kind: "prediction" }
    }

    /// Returns the number of ended executions of a kind.
    fn ended(&self, kind: &str) -> f64 {
        let text = service::get(self.setup.metrics, "/metrics").unwrap();
        let label = format!("kind=\"{kind}\"");
        let lines = text
            .lines()
            .filter(|line| line.starts_with("orrery_executions_total{") && line.contains(&label));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Waits until the store is idle; returns the size of the data folder in bytes, without its
    /// log, whose size is bounded and does not depend on the executions.
    async fn settled(&self) -> f64 {
        let deadline = Instant::now() + PATIENCE;
        let mut last = f64::NAN;
        let mut same = 0;
        while same < 20 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let log = disk::kept(&self.setup.data().join("store/log"));
            let now = (disk::kept(self.setup.data()) - log) as f64;
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        last
    }

    async fn until_ended(&self, kind: &str, count: f64) {
        let deadline = Instant::now() + PATIENCE;
        while self.ended(kind) < count {
            assert!(Instant::now() < deadline, "the executions do not end");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Triggers `count` executions over `connections` and waits until the last one has ended.
    async fn burst(&self, trigger: &Trigger, count: u64, connections: u64) -> Burst {
        let disk = Disk::of(self.setup.data());
        disk.until_quiet().await;
        let ended = self.ended(trigger.kind);
        let commits = self.commits();
        let written = disk.read().bytes;
        let cpu = process::processor_seconds(self.child.0.id());
        let started = Instant::now();
        let address = trigger.address;
        let request = Arc::clone(&trigger.request);
        let load = Load { address, connections, request };
        let round = load.run_until(PATIENCE, count.div_ceil(connections)).await;
        assert_eq!(round.other, 0, "a trigger was refused");
        self.until_ended(trigger.kind, ended + round.good as f64).await;
        let seconds = started.elapsed().as_secs_f64();
        let cpu = process::processor_seconds(self.child.0.id()) - cpu;
        let count = round.good as f64;
        Burst {
            rate: count / seconds,
            seconds,
            cpu: cpu / count,
            commits: (self.commits() - commits) / count,
            written: (disk.read().bytes - written) / count,
        }
    }

    fn commits(&self) -> f64 {
        service::metric(self.setup.metrics, "orrery_commits_total")
    }

    /// Runs `work`, which runs `count` executions, and measures the service's resource usage per
    /// execution.
    async fn used<T>(&self, count: u64, work: impl Future<Output = T>) -> (T, Used) {
        let pid = self.child.0.id();
        let cpu = process::processor_seconds(pid);
        let switches = process::switches(pid);
        let done = work.await;
        let cpu = (process::processor_seconds(pid) - cpu) / count as f64;
        let switches = (process::switches(pid) - switches) / count as f64;
        (done, Used { cpu, switches })
    }

    /// Runs `count` executions, `flight` at a time; returns the time from trigger to end of each in
    /// seconds.
    async fn latencies(&self, trigger: &Trigger, count: u64, flight: u64) -> Vec<f64> {
        let (request, address) = (Arc::clone(&trigger.request), trigger.address);
        let key = Arc::<str>::from(self.key.as_str());
        workflows::latencies(address, (count, flight), move |mut connection| {
            let (request, key) = (Arc::clone(&request), Arc::clone(&key));
            async move {
                let seconds = workflows::run(&mut connection, address, &request, &key).await;
                (connection, seconds)
            }
        })
        .await
    }
}

struct Burst {
    rate: f64,
    seconds: f64,
    /// Seconds of CPU time per execution.
    cpu: f64,
    commits: f64,
    /// Bytes written to disk per execution, by all processes.
    written: f64,
}

/// Resource usage of the service per execution.
struct Used {
    cpu: f64,
    switches: f64,
}

/// Makes the three calls directly over `connections` connections; returns groups of three per
/// second.
async fn direct(address: SocketAddr, connections: u64, time: Duration) -> f64 {
    let request = client::get(address, "/step");
    Load { address, connections, request }.run(time).await.rate() / 3.0
}

/// Makes the commits of a workflow on the bare store with as many committers; returns executions
/// per second.
async fn store_alone(store: &Store, committers: u64, time: Duration) -> f64 {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..committers {
        let (store, organization): (_, OrganizationId) = (store.clone(), new_id());
        tasks.spawn(async move {
            let mut count = 0_u64;
            while started.elapsed() < time {
                for _ in 0..COMMITS {
                    let id: ExecutionId = new_id();
                    let mut commit = Commit::new();
                    commit.put_bytes(rows::execution(organization, id), vec![b'x'; 700]);
                    store.commit(commit).await.unwrap();
                }
                count += 1;
            }
            count
        });
    }
    let count: u64 = tasks.join_all().await.into_iter().sum();
    count as f64 / started.elapsed().as_secs_f64()
}

fn http_steps(address: SocketAddr, count: usize) -> Value {
    let step = |number: usize| {
        let body = if number == 0 {
            json!({"n": "{{inputs.n}}"})
        } else {
            json!({"n": format!("{{{{s{}.output.value}}}}", number - 1)})
        };
        let url = format!("http://{address}/step");
        json!({"step_id": format!("s{number}"), "type": "http", "method": "POST", "url": url, "body": body})
    };
    (0..count).map(step).collect()
}

async fn measure() {
    let rounds = support::knob("ORRERY_BENCH_ROUNDS", 3);
    let burst = support::knob("ORRERY_BENCH_BURST", 5_000);
    let crowd = support::knob("ORRERY_BENCH_CROWD", 10_000);
    let folder = support::folder();
    let store_folder = support::folder();
    let (_server, address) = instant::start();
    let setup = Setup::new(folder.path());
    setup.model("second", &model("second", address));
    setup.model("instant", &model("instant", address));
    let (child, _) = setup.start();
    let key = setup.key();
    let subject = Subject { setup, child, key };
    let store = Store::open(&Options {
        folder: store_folder.path().to_path_buf(),
        inline_bytes: 64 * 1024,
    });
    three_steps(&subject, &store.unwrap(), address, rounds, burst).await;
    predictions(&subject, rounds, burst).await;
    sequences(&subject, address).await;
    if crowd > 0 {
        at_once(&subject, crowd).await;
    }
}

fn model(slug: &str, address: SocketAddr) -> String {
    format!(
        "slug = '{slug}'\ntitle = 'A model'\noutput_type = 'object'\nconcurrency = 1000\n\
         [request_schema]\ntype = 'object'\n\
         [runner]\ntype = 'http'\nurl = 'http://{address}/{slug}'\n"
    )
}

async fn three_steps(
    subject: &Subject,
    store: &Store,
    address: SocketAddr,
    rounds: u64,
    burst: u64,
) {
    let trigger = subject.workflow("three steps", http_steps(address, 3)).await;
    // Run enough executions to create the log's segments, which the store reuses from then on.
    subject.burst(&trigger, burst * 3, 64).await;
    let mut one = Vec::new();
    let mut many = Vec::new();
    let mut rates = Vec::new();
    let mut cpu = Vec::new();
    let mut commits = Vec::new();
    let mut calls = Vec::new();
    let mut alone = Vec::new();
    let mut written = Vec::new();
    let mut one_cpu = Vec::new();
    let mut switches = Vec::new();
    let before = subject.settled().await;
    for _ in 0..rounds {
        calls.push(direct(address, 64, Duration::from_secs(1)).await);
        alone.push(store_alone(store, 64, Duration::from_secs(1)).await);
        let done = subject.burst(&trigger, burst, 64).await;
        rates.push(done.rate);
        cpu.push(done.cpu);
        commits.push(done.commits);
        written.push(done.written);
        let (latencies, used) = subject.used(ONE, subject.latencies(&trigger, ONE, 1)).await;
        one.extend(latencies);
        one_cpu.push(used.cpu);
        switches.push(used.switches);
        many.extend(subject.latencies(&trigger, MANY, 64).await);
    }
    let kept = (subject.settled().await - before) / (rounds * (burst + ONE + MANY)) as f64;
    let rate = support::median(rates);
    let calls = support::median(calls);
    let alone = support::median(alone);
    let mut table = Table::new(&["three HTTP steps", ""]);
    for (name, value) in [
        ("1 in flight, median", milliseconds::<2>(support::percentile(&one, 0.5))),
        ("1 in flight, p99", milliseconds::<2>(support::percentile(&one, 0.99))),
        ("1 in flight, processor time for each", milliseconds::<2>(support::median(one_cpu))),
        ("1 in flight, context switches for each", number(support::median(switches))),
        ("64 in flight, median", milliseconds::<2>(support::percentile(&many, 0.5))),
        ("64 in flight, p99", milliseconds::<2>(support::percentile(&many, 0.99))),
        ("burst, executions per second", number(rate)),
        ("CPU time for each", milliseconds::<2>(support::median(cpu))),
        ("commits for each", ratio(support::median(commits))),
        ("bytes written to the disk for each", number(support::median(written))),
        ("bytes that the disk keeps of each", number(kept)),
        ("the calls alone, rounds of three per second", number(calls)),
        ("the store alone, four commits each, per second", number(alone)),
        ("burst, of the calls alone", ratio(rate / calls)),
        ("burst, of the store alone", ratio(rate / alone)),
    ] {
        table.row([name.to_owned(), value]);
    }
    table.print();
    println!("{rounds} rounds, bursts of {burst} over 64 connections\n");
}

async fn predictions(subject: &Subject, rounds: u64, burst: u64) {
    let trigger = subject.prediction("instant");
    subject.burst(&trigger, burst, 64).await;
    let mut cpu = Vec::new();
    let mut written = Vec::new();
    let before = subject.settled().await;
    for _ in 0..rounds {
        let done = subject.burst(&trigger, burst, 64).await;
        cpu.push(done.cpu);
        written.push(done.written);
    }
    let kept = (subject.settled().await - before) / (rounds * burst) as f64;
    let mut table = Table::new(&["prediction of an HTTP model", ""]);
    for (name, value) in [
        ("CPU time for each", milliseconds::<2>(support::median(cpu))),
        ("bytes written to the disk for each", number(support::median(written))),
        ("bytes that the disk keeps of each", number(kept)),
    ] {
        table.row([name.to_owned(), value]);
    }
    table.print();
    println!("{rounds} rounds of {burst} over 64 connections\n");
}

async fn sequences(subject: &Subject, address: SocketAddr) {
    let mut table = Table::new(&["steps", "CPU time each", "burst, steps/s"]);
    let mut costs = Vec::new();
    for (steps, count) in [(10_u32, 5120), (100, 512)] {
        let name = format!("{steps} steps");
        let steps = usize::try_from(steps).unwrap();
        let trigger = subject.workflow(&name, http_steps(address, steps)).await;
        subject.burst(&trigger, 64, 64).await;
        let done = subject.burst(&trigger, count, 64).await;
        let each = done.cpu / steps as f64;
        costs.push(each);
        table.row([name, format!("{:.0} µs", each * 1e6), number(done.rate * steps as f64)]);
    }
    table.print();
    println!("a step of 100 costs {} of a step of 10\n", ratio(costs[1] / costs[0]));
}

async fn at_once(subject: &Subject, crowd: u64) {
    let steps = json!([{"step_id": "a", "type": "model", "model": "second", "params": {}}]);
    let trigger = subject.workflow("a second", steps).await;
    let before = process::resident(subject.child.0.id());
    let done = subject.burst(&trigger, crowd, 64).await;
    let peak = process::peak(subject.child.0.id());
    let ideal = crowd as f64 / 1000.0;
    let mut table = Table::new(&["at once", "time", "of the ideal", "memory before", "peak"]);
    table.row([
        number(crowd as f64),
        format!("{:.1} s", done.seconds),
        ratio(done.seconds / ideal),
        mebibytes::<1>(before),
        mebibytes::<1>(peak),
    ]);
    table.print();
}
