//! The overhead of the service over an instant model: predictions through a `command` and an `http`
//! model, against direct calls of the same worker and the same server; and Cog behind the service,
//! against Cog alone.
//!
//! Through the service, a prediction is `POST /v1/prediction/run`, which returns when the
//! prediction ends, after two durable commits. Direct calls store nothing.
//!
//! `ORRERY_BENCH_ROUNDS` and `ORRERY_BENCH_SECONDS` change a run. Cog's own server is measured if
//! the tests have installed it (`cargo test --test it real_cog`), or if `ORRERY_BENCH_COG` names a
//! Python that has it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a benchmark fails by a panic and prints its table"
)]
#![expect(clippy::disallowed_methods, reason = "it measures time by a clock of its own")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::client::{self, Connection, Load};
use support::cog::Cog;
use support::process::{self, Killed};
use support::service::Setup;
use support::table::{Table, number, ratio};
use support::{instant, median};

/// Workers of the `command` model, and concurrent jobs in the direct measurement.
const WORKERS: usize = 8;
/// Connections to the `http` model.
const CONNECTIONS: u64 = 64;
/// Samples of a median latency.
const SAMPLES: usize = 500;
const WORKER: &str = "worker";

fn main() {
    match process::role().as_deref() {
        Some(WORKER) => work(),
        Some(_server) => tokio::runtime::Runtime::new().unwrap().block_on(instant::serve()),
        None => tokio::runtime::Runtime::new().unwrap().block_on(measure()),
    }
}

/// Runs a worker that answers each job immediately.
fn work() {
    let mut answers = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let job: Value = serde_json::from_str(&line.unwrap()).unwrap();
        writeln!(answers, "{}", json!({"id": job["id"], "output": "x"})).unwrap();
        answers.flush().unwrap();
    }
}

/// The measurements of one way to call a model.
#[derive(Default)]
struct Figures {
    rates: Vec<f64>,
    /// Median latencies, one request at a time, in seconds.
    latencies: Vec<f64>,
    /// Responses other than 2xx; Cog alone refuses requests while it is busy.
    refused: u64,
}

async fn measure() {
    let rounds = support::knob("ORRERY_BENCH_ROUNDS", 5);
    let seconds = support::knob("ORRERY_BENCH_SECONDS", 2);
    let time = Duration::from_secs(seconds);
    let folder = support::folder();
    let setup = Setup::new(folder.path());
    let (_server, server) = instant::start();
    let program = std::env::current_exe().unwrap();
    setup.model("command", &format!(
        "slug = 'command'\noutput_type = 'string'\nconcurrency = {WORKERS}\n\
         [runner]\ntype = 'command'\ncommand = [{program:?}]\nenv = {{ ORRERY_BENCH_ROLE = '{WORKER}' }}\n"
    ));
    setup.model(
        "http",
        &format!(
            "slug = 'http'\noutput_type = 'string'\nconcurrency = {CONNECTIONS}\n\
         [runner]\ntype = 'http'\nurl = 'http://{server}/'\noutput = '/value'\n"
        ),
    );
    let cog = start_cog(&setup).await;
    let (service, _) = setup.start();
    let key = setup.key();
    let run = |model: &str, input: Value| {
        let body = json!({"model": model, "version": "1", "input": input}).to_string();
        client::post(setup.base, "/v1/prediction/run", &key, &body)
    };
    let command = run("command", json!({}));
    let http = run("http", json!({"n": 1}));
    let direct_http = client::post(server, "/", "", r#"{"n":1}"#);

    let [mut pipes, mut through_pipes, mut sockets, mut through_sockets] =
        std::array::from_fn(|_| Figures::default());
    for _ in 0..rounds {
        let (rate, latency) = tokio::task::spawn_blocking(move || ask_workers(time)).await.unwrap();
        pipes.rates.push(rate);
        pipes.latencies.push(latency);
        through_pipes.add(setup.base, &command, CONNECTIONS, time).await;
        sockets.add(server, &direct_http, CONNECTIONS, time).await;
        through_sockets.add(setup.base, &http, CONNECTIONS, time).await;
    }
    let mut table = Table::new(&["", "per second", "of it", "one at a time", "added", "refused"]);
    for (name, figures, base) in [
        ("8 workers, asked directly", &pipes, None),
        ("the same as a command model", &through_pipes, Some(&pipes)),
        ("an instant server, called directly", &sockets, None),
        ("the same as an http model", &through_sockets, Some(&sockets)),
    ] {
        table.row(figures.row(name, base));
    }
    table.print();
    if let Some(cog) = cog {
        let run = run("cog", json!({"text": "x"}));
        measure_cog(&cog, &setup, &run, rounds, time).await;
    }
    drop(service);
}

impl Figures {
    async fn add(
        &mut self,
        address: SocketAddr,
        request: &Arc<[u8]>,
        connections: u64,
        time: Duration,
    ) {
        let load = Load { address, connections, request: Arc::clone(request) };
        let round = load.run(time).await;
        self.refused += round.other;
        self.rates.push(round.rate());
        self.latencies.push(latency(address, request).await);
    }

    fn row(&self, name: &str, base: Option<&Self>) -> Vec<String> {
        let rate = median(self.rates.clone());
        let latency = median(self.latencies.clone());
        let microseconds = |seconds: f64| format!("{} µs", number(seconds * 1e6));
        let (of_it, on_top) = base.map_or_else(Default::default, |base| {
            let base_rate = median(base.rates.clone());
            let base_latency = median(base.latencies.clone());
            (ratio(rate / base_rate), microseconds(latency - base_latency))
        });
        vec![
            name.to_owned(),
            number(rate),
            of_it,
            microseconds(latency),
            on_top,
            self.refused.to_string(),
        ]
    }
}

/// Sends one request at a time and returns the median latency in seconds.
async fn latency(address: SocketAddr, request: &Arc<[u8]>) -> f64 {
    let mut connection = Connection::open(address).await;
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let asked = Instant::now();
        connection.ask(request).await;
        samples.push(asked.elapsed().as_secs_f64());
    }
    median(samples)
}

/// Runs all workers with one job at a time each; returns the jobs per second, and the median
/// latency of a single worker.
fn ask_workers(time: Duration) -> (f64, f64) {
    let ask = |limit: Option<usize>| {
        let mut child = Killed(process::again(WORKER).stdin(Stdio::piped()).spawn().unwrap());
        let mut jobs = child.0.stdin.take().unwrap();
        let mut answers = BufReader::new(child.0.stdout.take().unwrap());
        let end = Instant::now() + time;
        let mut samples = Vec::new();
        let mut line = String::new();
        while Instant::now() < end && limit.is_none_or(|limit| samples.len() < limit) {
            let asked = Instant::now();
            jobs.write_all(b"{\"id\":\"0199c0de:prediction:1\",\"input\":{}}\n").unwrap();
            line.clear();
            answers.read_line(&mut line).unwrap();
            samples.push(asked.elapsed().as_secs_f64());
        }
        samples
    };
    let started = Instant::now();
    let count: usize = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..WORKERS).map(|_| scope.spawn(|| ask(None).len())).collect();
        asking.into_iter().map(|one| one.join().unwrap()).sum()
    });
    let rate = count as f64 / started.elapsed().as_secs_f64();
    (rate, median(ask(Some(SAMPLES))))
}

/// Starts Cog's own server, which the service uses as the model `cog`; `None` if Cog is not
/// installed.
async fn start_cog(setup: &Setup) -> Option<Cog> {
    let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cog/bin/python");
    let python = std::env::var_os("ORRERY_BENCH_COG").map_or(installed, PathBuf::from);
    if !python.is_file() {
        println!("Cog is not installed: see the head of benches/models.rs\n");
        return None;
    }
    let cog = Cog::start(&python).await;
    let url = format!("http://{}", cog.address);
    setup.model("cog", &format!(
        "slug = 'cog'\noutput_type = 'string'\nconcurrency = 8\n[runner]\ntype = 'cog'\nurl = '{url}'\n"
    ));
    Some(cog)
}

/// Measures Cog behind the service, against Cog alone.
async fn measure_cog(cog: &Cog, setup: &Setup, run: &Arc<[u8]>, rounds: u64, time: Duration) {
    let alone = client::post(cog.address, "/predictions", "", r#"{"input":{"text":"x"}}"#);
    let mut table = Table::new(&["", "per second", "of it", "one at a time", "added", "refused"]);
    for in_flight in [1, 8] {
        let mut direct = Figures::default();
        let mut behind = Figures::default();
        for _ in 0..rounds {
            direct.add(cog.address, &alone, in_flight, time).await;
            behind.add(setup.base, run, in_flight, time).await;
        }
        table.row(direct.row(&format!("Cog alone, {in_flight} in flight"), None));
        table.row(behind.row(&format!("Cog behind Orrery, {in_flight} in flight"), Some(&direct)));
    }
    println!();
    table.print();
}
