//! The effect of maintenance on concurrent work: removal of old executions, and backups.
//!
//! Two services with the same rows and files run side by side. One of them removes a hundred
//! thousand old executions and is then backed up continuously; the other does no maintenance. Both
//! accept predictions in turn, over a few connections with one request at a time. The result is the
//! ratio of the create times.
//!
//! `ORRERY_BENCH_OLD` (100,000) and `ORRERY_BENCH_ROUNDS` change a run.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a benchmark fails by a panic and prints its table"
)]
#![expect(clippy::disallowed_methods, reason = "it measures time by a clock of its own")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use orrery_domain::execution::{Candidate, Execution, Prediction, Source, Status, Work};
use orrery_domain::ids::{ExecutionId, KeyId, OrganizationId};
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_domain::time::Timestamp;
use orrery_engine::query::indexes;
use orrery_engine::rows;
use orrery_runtime::{Clock, new_id};
use orrery_storage::{Commit, Options, Store};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::client::{self, Connection};
use support::process::Killed;
use support::service::{Setup, hanging_model};
use support::table::{Table, number, ratio};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Executions per commit.
const BATCH: u64 = 500;
/// Number of connections that create predictions, and the duration of a round.
const CONNECTIONS: usize = 8;
const ROUND: Duration = Duration::from_secs(2);
/// Number of files, and the size of each in bytes.
const FILES: usize = 40;
const FILE_BYTES: usize = 4 << 20;
/// A limit that no queue reaches in this benchmark.
const QUEUE: u64 = 10_000_000;

/// A service with old executions.
struct Subject {
    setup: Setup,
    _folder: tempfile::TempDir,
    _child: Killed,
    key: String,
    _server: std::net::TcpListener,
}

impl Subject {
    async fn with(count: u64, config: &str) -> Self {
        let folder = support::folder();
        let setup = Setup::with(folder.path(), config);
        let (server, manifest) = hanging_model(QUEUE);
        setup.model("hanging", &manifest);
        // The first start creates the organization and its key.
        let (child, _) = setup.start();
        let key = setup.key();
        drop(child);
        fill(&setup, count).await;
        let (child, _) = setup.start();
        Self { setup, _folder: folder, _child: child, key, _server: server }
    }

    fn create(&self) -> Arc<[u8]> {
        let body = json!({"model": "hanging", "version": "1", "input": {"text": "x".repeat(300)}});
        client::post(self.setup.base, "/v1/prediction", &self.key, &body.to_string())
    }

    /// Runs a round of creates; returns the time of each in seconds.
    async fn round(&self) -> Vec<f64> {
        let address = self.setup.base;
        let request = self.create();
        let end = Instant::now() + ROUND;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..CONNECTIONS {
            let request = Arc::clone(&request);
            tasks.spawn(async move {
                let mut connection = Connection::open(address).await;
                let mut seconds = Vec::new();
                while Instant::now() < end {
                    let started = Instant::now();
                    connection.ask(&request).await;
                    seconds.push(started.elapsed().as_secs_f64());
                }
                seconds
            });
        }
        tasks.join_all().await.concat()
    }

    async fn has_old(&self) -> bool {
        let before = Clock::system().now().before(DAY).unwrap();
        let path = format!("/v2/executions?limit=1&to={before}");
        let request = client::get_with_key(self.setup.base, &path, &self.key);
        let page = Connection::open(self.setup.base).await.ask(&request).await;
        let page: Value = serde_json::from_str(&page).unwrap();
        !page["executions"].as_array().unwrap().is_empty()
    }
}

/// Returns an id as if created at that time.
fn id_of(time: Timestamp) -> ExecutionId {
    let seconds = u64::try_from(time.unix_seconds()).unwrap();
    uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, 0)).into()
}

/// Writes predictions that ended two days ago, as the engine would.
async fn fill(setup: &Setup, count: u64) {
    let options = Options { folder: setup.data().to_path_buf(), inline_bytes: 64 * 1024 };
    let store = Store::open(&options).unwrap();
    let accounts = orrery_records::accounts::Accounts::new(store.clone(), Clock::system());
    let organization: OrganizationId = accounts.organizations().await.unwrap()[0].id;
    let key: KeyId = new_id();
    let now = Clock::system().now().before(2 * DAY).unwrap();
    let mut written = 0;
    while written < count {
        let mut commit = Commit::new();
        for _ in written..count.min(written + BATCH) {
            let chain = vec![Candidate::new("hanging")];
            let execution = Execution {
                id: id_of(now),
                organization,
                key,
                source: Source::Api,
                status: Status::Success,
                input: Payload::of(&json!({"text": "x".repeat(300)})).unwrap(),
                work: Work::Prediction(Prediction::new("1".to_owned(), chain)),
                output: Some(Payload::of(&"y".repeat(300)).unwrap()),
                fault: None,
                cost: Usd::ZERO,
                reserved: Usd::ZERO,
                webhook: None,
                created_at: now,
                started_at: Some(now),
                completed_at: Some(now),
                origin: None,
            };
            commit.put(rows::execution(organization, execution.id), &execution).unwrap();
            indexes::add(&mut commit, &execution);
        }
        store.commit(commit).await.unwrap();
        written += BATCH;
    }
    store.close().await;
}

/// Returns the value below which `percent` percent of the samples are.
fn percentile(samples: &mut [f64], percent: usize) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[(samples.len() * percent / 100).min(samples.len() - 1)]
}

fn row(table: &mut Table, name: &str, mut quiet: Vec<f64>, mut busy: Vec<f64>) {
    let micros = |seconds: f64| format!("{:.0} µs", seconds * 1e6);
    for percent in [50, 99] {
        let quiet = percentile(&mut quiet, percent);
        let busy = percentile(&mut busy, percent);
        table.row([
            format!("{name}, p{percent}"),
            micros(quiet),
            micros(busy),
            ratio(busy / quiet),
        ]);
    }
}

fn main() {
    tokio::runtime::Runtime::new().unwrap().block_on(measure());
}

async fn measure() {
    let old = support::knob("ORRERY_BENCH_OLD", 100_000);
    let rounds = support::knob("ORRERY_BENCH_ROUNDS", 5);
    let quiet = Subject::with(old, "").await;
    let mut table = Table::new(&["a create, beside", "nothing", "it", "ratio"]);
    let started = Instant::now();
    let swept = Subject::with(old, "[retention]\nexecutions = \"1d\"\n").await;
    let mut at_quiet = Vec::new();
    let mut at_swept = Vec::new();
    while swept.has_old().await {
        at_swept.extend(swept.round().await);
        at_quiet.extend(quiet.round().await);
    }
    let removing = started.elapsed();
    row(&mut table, "removing old executions", at_quiet, at_swept);
    drop(swept);

    let backed = Subject::with(old, "").await;
    upload(&backed).await;
    let mut at_quiet = Vec::new();
    let mut at_backed = Vec::new();
    let mut rates = Vec::new();
    for number in 0..rounds {
        let file = backed.setup.data().join(format!("{number}.backup"));
        let command = backed.setup.command(&["backup", "--json", file.to_str().unwrap()]);
        let backing = tokio::task::spawn_blocking(move || {
            let mut command = command;
            let started = Instant::now();
            let done = command.output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            let summary: Value = serde_json::from_slice(&done.stdout).unwrap();
            summary["bytes"].as_f64().unwrap() / started.elapsed().as_secs_f64() / 1e6
        });
        while !backing.is_finished() {
            at_backed.extend(backed.round().await);
        }
        rates.push(backing.await.unwrap());
        std::fs::remove_file(file).unwrap();
        at_quiet.extend(quiet.round().await);
    }
    row(&mut table, "a backup", at_quiet, at_backed);
    table.print();
    println!(
        "{} executions removed in under {removing:.0?}, written before; a backup, its reading back \
         included, at {} MB/s under that load\n",
        number(old as f64),
        number(support::median(rates))
    );
}

/// Uploads files of incompressible bytes.
async fn upload(subject: &Subject) {
    for number in 0..FILES {
        let bytes: Vec<u8> = (0..FILE_BYTES / 32)
            .flat_map(|at| Sha256::digest([number.to_be_bytes(), at.to_be_bytes()].concat()))
            .collect();
        let request = client::form(subject.setup.base, "/v1/files", &subject.key, &bytes);
        Connection::open(subject.setup.base).await.ask(&request).await;
    }
}
