//! Durable creates, `POST /v1/prediction/`, against group commits of the same rows by the bare
//! store: `cargo bench --bench create`.
//!
//! Five measurements in alternating rounds. The first uses the bare store in this process: 64
//! committers each commit an execution and its lane row. The other four use the service in a
//! separate process, over 64 connections:
//!
//! - creates with an unlimited key, for a model whose queue is held, so that nothing runs;
//! - the same creates with a key that has every kind of limit;
//! - creates for an instant built-in model, whose runs complete during the measurement (429 from a
//!   full queue does not count as a create);
//! - `POST /v1/prediction/run` of the built-in model, which returns once the completion is on disk.
//!
//! `ORRERY_BENCH_ROUNDS` (5), `ORRERY_BENCH_SECONDS` (2 per round), `ORRERY_BENCH_CONNECTIONS`
//! (64).

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on says so and ends")]
#![expect(clippy::indexing_slicing, clippy::print_stdout, reason = "it is a program that prints")]
#![expect(clippy::disallowed_methods, reason = "it measures time by a clock of its own")]

mod support;

use std::time::{Duration, Instant};

use orrery_domain::execution::{Candidate, Execution, Prediction, Source, Status, Work};
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_engine::query::indexes;
use orrery_engine::rows;
use orrery_runtime::{Clock, new_id};
use orrery_storage::{Commit, Options, Store};
use serde_json::json;

use support::client::{self, Load};
use support::process;
use support::service::{self, Setup};
use support::table::{Table, number, ratio};

/// Returns the input of every create; an execution's record with it takes about 400 bytes.
fn input() -> serde_json::Value {
    json!({"text": "A quiet harbour at dusk, two boats, soft light, and a heron on the pier."})
}

/// Acts as one of the store's committers: commits to the bare store the rows that the engine
/// commits for a create.
async fn commit_creates(store: Store, end: Instant) -> u64 {
    let (organization, key): (OrganizationId, KeyId) = (new_id(), new_id());
    let clock = Clock::system();
    let mut count = 0;
    while Instant::now() < end {
        let execution = Execution {
            id: new_id(),
            organization,
            key,
            source: Source::Api,
            status: Status::Created,
            input: Payload::of(&input()).unwrap(),
            work: Work::Prediction(Prediction::new(
                "0.0.1".to_owned(),
                vec![Candidate::new("hanging")],
            )),
            output: None,
            fault: None,
            cost: Usd::ZERO,
            reserved: Usd::ZERO,
            webhook: None,
            created_at: clock.now(),
            started_at: None,
            completed_at: None,
            origin: None,
        };
        let mut commit = Commit::new();
        commit.put(rows::execution(organization, execution.id), &execution).unwrap();
        let lane = rows::queued("model:hanging", organization, execution.id);
        commit.put_bytes(lane, Vec::new());
        indexes::add(&mut commit, &execution);
        store.commit(commit).await.unwrap();
        count += 1;
    }
    count
}

async fn store_round(store: &Store, committers: u64, time: Duration) -> f64 {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..committers {
        tasks.spawn(commit_creates(store.clone(), started + time));
    }
    let mut count = 0;
    while let Some(done) = tasks.join_next().await {
        count += done.unwrap();
    }
    count as f64 / started.elapsed().as_secs_f64()
}

/// The requests of one measurement.
struct Kind {
    name: &'static str,
    load: Load,
    rates: Vec<f64>,
    ratios: Vec<f64>,
    /// CPU time of the service per successful response, in microseconds.
    costs: Vec<f64>,
    /// Completions per second of each round.
    completed: Vec<f64>,
    refused: u64,
}

impl Kind {
    fn new(name: &'static str, load: Load) -> Self {
        let (rates, ratios, costs, completed) = Default::default();
        Self { name, load, rates, ratios, costs, completed, refused: 0 }
    }

    async fn round(&mut self, setup: &Setup, pid: u32, time: Duration, store_rate: f64) {
        let ended = || service::metric(setup.metrics, "orrery_executions_total");
        let before = process::processor_seconds(pid);
        let ended_before = ended();
        let round = self.load.run(time).await;
        let spent = process::processor_seconds(pid) - before;
        let ended = ended() - ended_before;
        self.rates.push(round.rate());
        self.ratios.push(round.rate() / store_rate);
        self.costs.push(spent * 1e6 / round.good as f64);
        self.completed.push(ended / round.seconds);
        self.refused += round.other;
    }
}

fn kinds(setup: &Setup, connections: u64) -> [Kind; 4] {
    let (key, limited) = (setup.key(), setup.limited_key());
    let create = |model: &str, input: serde_json::Value| {
        json!({"model": model, "version": "0.0.1", "input": input}).to_string()
    };
    let instant = create(
        "text-template",
        json!({"template": "A quiet {{ place }}.", "values": {"place": "harbour"}}),
    );
    let load = |path: &str, key: &str, body: &str| Load {
        address: setup.base,
        connections,
        request: client::post(setup.base, path, key, body),
    };
    let (path, held) = ("/v1/prediction/", create("hanging", input()));
    let run = "/v1/prediction/run";
    [
        Kind::new("create, queue held", load(path, &key, &held)),
        Kind::new("create, queue held, limited key", load(path, &limited, &held)),
        Kind::new("create, instant model", load(path, &key, &instant)),
        Kind::new("run to completion, instant model", load(run, &key, &instant)),
    ]
}

/// Waits until nothing is running or queued except the held predictions, so that no round includes
/// the previous round's backlog.
async fn settle(setup: &Setup, held: &mut f64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut last = f64::NAN;
    while Instant::now() < deadline {
        let queued = service::metric(setup.metrics, "orrery_executions_queued");
        if queued == last {
            *held = queued;
            return;
        }
        last = queued;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn main() {
    tokio::runtime::Runtime::new().unwrap().block_on(measure());
}

async fn measure() {
    let rounds = support::knob("ORRERY_BENCH_ROUNDS", 5);
    let time = Duration::from_secs(support::knob("ORRERY_BENCH_SECONDS", 2));
    let connections = support::knob("ORRERY_BENCH_CONNECTIONS", 64);
    let folder = support::folder();
    let store_folder = support::folder();
    let setup = Setup::new(folder.path());
    let (_server, manifest) = service::hanging_model(100_000_000);
    setup.model("hanging", &manifest);
    let (child, _) = setup.start();
    let mut kinds = kinds(&setup, connections);
    let store = Store::open(&Options {
        folder: store_folder.path().to_path_buf(),
        inline_bytes: 64 * 1024,
    });
    let store = store.unwrap();
    for kind in &kinds {
        let warm = kind.load.run(Duration::from_millis(300)).await;
        assert!(warm.good > 0, "{}: no answer was a 200", kind.name);
    }
    let mut alone = Vec::new();
    let mut held = 0.0;
    for _ in 0..rounds {
        settle(&setup, &mut held).await;
        let rate = store_round(&store, connections, time).await;
        alone.push(rate);
        for kind in &mut kinds {
            kind.round(&setup, child.0.id(), time, rate).await;
            settle(&setup, &mut held).await;
        }
    }
    let mut table = Table::new(&[
        "durable creates",
        "per second",
        "of the store",
        "µs CPU each",
        "completed/s",
        "refused",
    ]);
    table.row(["the store alone".to_owned(), number(support::median(alone))]);
    let pairs = kinds[1].costs.iter().zip(&kinds[0].costs);
    let added = support::median(pairs.map(|(limited, free)| limited - free).collect());
    for kind in kinds {
        table.row([
            kind.name.to_owned(),
            number(support::median(kind.rates)),
            ratio(support::median(kind.ratios)),
            number(support::median(kind.costs)),
            number(support::median(kind.completed)),
            number(kind.refused as f64),
        ]);
    }
    table.print();
    println!("{rounds} rounds of {time:?} each, {connections} connections and committers");
    println!("{} left in the held queue", number(held));
    println!("the limits of a key add {added:+.1} µs of CPU time to a create");
}
