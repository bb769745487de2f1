//! Startup time and memory of a service: `cargo bench --bench start`.
//!
//! Times are from the spawn of the process to the first 200 from `/ready`. The benchmark ends every
//! process with `kill -9`, so each start after the first one is a recovery: of an empty store, of
//! finished predictions, of predictions queued for a model whose server never answers, and of
//! workflow executions that clients have just created.
//!
//! `ORRERY_BENCH_STARTS` (5), `ORRERY_BENCH_FINISHED` (200000), `ORRERY_BENCH_QUEUED` (100000),
//! `ORRERY_BENCH_WORKFLOWS` (30000).

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark that cannot go on says so and ends"
)]
#![expect(clippy::indexing_slicing, clippy::print_stdout, reason = "it is a program that prints")]
#![expect(clippy::disallowed_methods, reason = "it measures time by a clock of its own")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::time::Duration;

use orrery_domain::attempt::{Attempt, Outcome};
use orrery_domain::execution::{Candidate, Execution, Prediction, Source, Status, Work};
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_engine::rows;
use orrery_records::accounts::Accounts;
use orrery_runtime::{Clock, new_id};
use orrery_storage::{Commit, Options, Sealer, Store};
use serde_json::json;

use support::client::{self, Connection, Load};
use support::instant;
use support::process::{self, Killed};
use support::service::{self, Setup};
use support::table::{Table, mebibytes, milliseconds, number};

/// Finished predictions per commit of the seed.
const SEED_GROUP: u64 = 500;
const CONNECTIONS: u64 = 64;
/// Idle time before the memory measurement.
const IDLE: Duration = Duration::from_secs(2);

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match process::role().as_deref() {
        Some("seed") => return runtime.block_on(seed()),
        Some(_server) => return runtime.block_on(instant::serve()),
        None => {}
    }
    let mut table = Table::new(&["", "start", "memory, ready", "after 2 s", "peak"]);
    empty(&mut table);
    finished(&mut table);
    runtime.block_on(queued(&mut table));
    runtime.block_on(workflows(&mut table));
    table.print();
}

fn row(table: &mut Table, name: &str, start: Duration, child: &Killed) {
    let pid = child.0.id();
    let ready = process::resident(pid);
    std::thread::sleep(IDLE);
    table.row([
        name.to_owned(),
        milliseconds::<0>(start.as_secs_f64()),
        mebibytes::<1>(ready),
        mebibytes::<1>(process::resident(pid)),
        mebibytes::<1>(process::peak(pid)),
    ]);
}

/// Starts the service `starts` times and kills all but the last process; returns the median startup
/// time and the last process.
fn restarts(setup: &Setup, starts: u64) -> (Duration, Killed) {
    let mut times = Vec::new();
    let mut last = None;
    for _ in 0..starts.max(1) {
        drop(last.take());
        let (child, time) = setup.start();
        times.push(time.as_secs_f64());
        last = Some(child);
    }
    (Duration::from_secs_f64(support::median(times)), last.expect("it started once at least"))
}

fn empty(table: &mut Table) {
    let starts = support::knob("ORRERY_BENCH_STARTS", 5);
    let mut times = Vec::new();
    for _ in 0..starts {
        let folder = support::folder();
        let (_child, time) = Setup::new(folder.path()).start();
        times.push(time.as_secs_f64());
    }
    let folder = support::folder();
    let setup = Setup::new(folder.path());
    let (child, _) = setup.start();
    row(table, "first start", Duration::from_secs_f64(support::median(times)), &child);
    drop(child);
    let (time, child) = restarts(&setup, starts);
    row(table, "empty, after kill -9", time, &child);
}

fn finished(table: &mut Table) {
    let count = support::knob("ORRERY_BENCH_FINISHED", 200_000);
    let folder = support::folder();
    let setup = Setup::new(folder.path());
    let mut seeding = Killed(process::again("seed").env("FOLDER", setup.data()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(seeding.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "seeded\n");
    drop(seeding);
    let (child, time) = setup.start();
    let name = format!("{} finished, after kill -9", number(count as f64));
    row(table, &name, time, &child);
    drop(child);
    let (time, child) = restarts(&setup, support::knob("ORRERY_BENCH_STARTS", 5));
    row(table, "the same, again", time, &child);
}

/// Fills a store with finished predictions, reports it, and waits to be killed.
async fn seed() {
    let count = support::knob("ORRERY_BENCH_FINISHED", 200_000);
    let folder: PathBuf = std::env::var_os("FOLDER").unwrap().into();
    // Create the key before the store: if a store exists, the service refuses to start without its
    // key.
    Sealer::open(&folder).unwrap();
    let store = Store::open(&Options { folder, inline_bytes: 65_536 }).unwrap();
    let clock = Clock::system();
    let accounts = Accounts::new(store.clone(), clock.clone());
    let (organization, _) = accounts.ensure_default().await.unwrap();
    let key: KeyId = new_id();
    let mut left = count;
    while left > 0 {
        let mut commit = Commit::new();
        for _ in 0..left.min(SEED_GROUP) {
            let execution = finished_prediction(organization.id, key, &clock);
            commit.put(rows::execution(organization.id, execution.id), &execution).unwrap();
        }
        store.commit(commit).await.unwrap();
        left = left.saturating_sub(SEED_GROUP);
    }
    println!("seeded");
    // The parent kills this process. This limit takes effect only if it does not.
    tokio::time::sleep(Duration::from_secs(60)).await;
}

fn finished_prediction(organization: OrganizationId, key: KeyId, clock: &Clock) -> Execution {
    let now = clock.now();
    let model = "text-template".to_owned();
    let input = json!({"template": "A quiet {{ place }}.", "values": {"place": "harbour"}});
    let chain = vec![Candidate::new(model.clone())];
    let mut prediction = Prediction::new("0.0.1".to_owned(), chain);
    prediction.attempts.push(Attempt {
        number: 1,
        model,
        outcome: Outcome::Success,
        failure: None,
        started_at: now,
        completed_at: Some(now),
    });
    Execution {
        id: new_id(),
        organization,
        key,
        source: Source::Api,
        status: Status::Success,
        input: Payload::of(&input).unwrap(),
        work: Work::Prediction(prediction),
        output: Some(Payload::of("A quiet harbour.").unwrap()),
        fault: None,
        cost: Usd::ZERO,
        reserved: Usd::ZERO,
        webhook: None,
        created_at: now,
        started_at: Some(now),
        completed_at: Some(now),
        origin: None,
    }
}

async fn queued(table: &mut Table) {
    let count = support::knob("ORRERY_BENCH_QUEUED", 100_000);
    let folder = support::folder();
    let setup = Setup::new(folder.path());
    let (_server, manifest) = service::hanging_model(2 * count);
    setup.model("hanging", &manifest);
    let (child, time) = setup.start();
    let body =
        json!({"model": "hanging", "version": "0.0.1", "input": {"text": "A quiet harbour."}});
    let request = client::post(setup.base, "/v1/prediction/", &setup.key(), &body.to_string());
    let load = Load { address: setup.base, connections: CONNECTIONS, request };
    let each = count.div_ceil(CONNECTIONS);
    let round = load.run_until(Duration::from_secs(120), each).await;
    assert!(round.good >= count, "{round:?}");
    row(table, &format!("{} queued by clients", number(count as f64)), time, &child);
    drop(child);
    let (child, time) = setup.start();
    let waiting = service::metric(setup.metrics, "orrery_executions_queued")
        + service::metric(setup.metrics, "orrery_executions_running");
    assert_eq!(waiting, round.good as f64, "every one was taken up");
    row(table, "the same, after kill -9", time, &child);
}

/// Measures executions of a workflow of three HTTP steps, created and finished over HTTP. The kill
/// follows immediately, so the log contains rows that no checkpoint has moved to the tree.
async fn workflows(table: &mut Table) {
    let count = support::knob("ORRERY_BENCH_WORKFLOWS", 30_000);
    let folder = support::folder();
    let setup = Setup::new(folder.path());
    let (_server, address) = instant::start();
    let (child, time) = setup.start();
    let key = setup.key();
    let step = |number| {
        json!({"step_id": format!("s{number}"), "type": "http", "method": "POST",
            "url": format!("http://{address}/step"), "body": {"n": "{{inputs.n}}"}})
    };
    let steps: Vec<_> = (0..3).map(step).collect();
    let body = json!({"name": "bench", "description": "bench", "definition": {"steps": steps}});
    let request = client::post(setup.workflows, "/api/v1/workflows", &key, &body.to_string());
    let made = Connection::open(setup.workflows).await.ask(&request).await;
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let path = format!("/api/v1/{}/trigger", made["workflow_id"].as_str().unwrap());
    let request = client::post(setup.workflows, &path, &key, r#"{"inputs":{"n":"7"}}"#);
    let load = Load { address: setup.workflows, connections: CONNECTIONS, request };
    let round = load.run_until(Duration::from_secs(600), count.div_ceil(CONNECTIONS)).await;
    assert!(round.good >= count, "{round:?}");
    let unfinished = || {
        service::metric(setup.metrics, "orrery_executions_queued")
            + service::metric(setup.metrics, "orrery_executions_running")
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(300);
    while unfinished() > 0.0 {
        assert!(std::time::Instant::now() < deadline, "the executions do not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    row_at_once(table, &format!("{} workflows over HTTP", number(count as f64)), time, &child);
    drop(child);
    let (child, time) = setup.start();
    row(table, "the same, after kill -9", time, &child);
}

/// Like [`row`], but does not wait for the store to become idle.
fn row_at_once(table: &mut Table, name: &str, start: Duration, child: &Killed) {
    let pid = child.0.id();
    table.row([
        name.to_owned(),
        milliseconds::<0>(start.as_secs_f64()),
        mebibytes::<1>(process::resident(pid)),
        String::new(),
        mebibytes::<1>(process::peak(pid)),
    ]);
}
