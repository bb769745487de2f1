//! Lists of executions with a million rows against a thousand, and the startup time with such a
//! store.
//!
//! Two services run side by side, each with one workflow: one service has few finished executions,
//! the other has many. The benchmark writes them through the library; every other one is a
//! prediction. It requests each list, and the history with each kind of filter, from both services
//! in turn, one request at a time. The result is the ratio of the medians.
//!
//! `ORRERY_BENCH_MANY` (1,000,000) and `ORRERY_BENCH_ROUNDS` change a run.

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
use std::time::{Duration, Instant};

use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::{
    Candidate, Execution, Fault, Prediction, Source, Status, Work, WorkflowRun,
};
use orrery_domain::ids::{KeyId, OrganizationId, WorkflowId};
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_engine::query::indexes;
use orrery_engine::rows::{self, Standing};
use orrery_runtime::{Clock, new_id};
use orrery_storage::{Commit, Options, Sealer, Store};
use orrery_workflows::Workflows;
use serde_json::{Value, json};
use support::client::{self, Connection};
use support::process::{self, Killed};
use support::service::Setup;
use support::table::{Table, mebibytes, milliseconds, number, ratio};

/// The number of executions in the smaller store.
const FEW: u64 = 1_000;
/// Executions per commit.
const BATCH: u64 = 500;
/// One in this many executions failed.
const FAILED_ONE_IN: u64 = 10;
/// Requests of one kind per round.
const REQUESTS: u64 = 60;
/// The pause before a `from` that matches no execution. An id may be up to two seconds older than
/// its execution, so a shorter pause would make the service read recent rows for nothing.
const SETTLING: Duration = Duration::from_secs(3);

/// A service with finished executions.
struct Subject {
    setup: Setup,
    _folder: tempfile::TempDir,
    child: Killed,
    key: String,
    workflow: String,
    /// Time from the spawn to the first 200 from `/ready`, after `kill -9`.
    start: f64,
}

impl Subject {
    async fn with(count: u64) -> Self {
        let folder = support::folder();
        let setup = Setup::new(folder.path());
        let (child, _) = setup.start();
        let key = setup.key();
        let workflow = create(&setup, &key).await;
        drop(child);
        fill(&setup, workflow.parse().unwrap(), count).await;
        let (child, _) = setup.start();
        drop(child);
        let (child, start) = setup.start();
        Self { setup, _folder: folder, child, key, workflow, start: start.as_secs_f64() }
    }

    /// Requests a list of the workflow's executions repeatedly; returns each response time in
    /// seconds.
    async fn ask(&self, query: &str) -> Vec<f64> {
        let path = format!("/api/v1/workflows/{}/executions{query}", self.workflow);
        self.get(self.setup.workflows, &path).await
    }

    /// Requests a page of the history repeatedly; returns each response time in seconds.
    /// `{workflow}` in the query stands for the workflow's id.
    async fn recall(&self, query: &str) -> Vec<f64> {
        let query = query.replace("{workflow}", &self.workflow);
        self.get(self.setup.base, &format!("/v2/executions?limit=50&{query}")).await
    }

    /// Returns the cursor after `rows` rows of the history.
    async fn cursor_behind(&self, rows: u64) -> String {
        let mut connection = Connection::open(self.setup.base).await;
        let mut cursor = String::new();
        for _ in 0..rows / 50 {
            let path = format!("/v2/executions?limit=50&cursor={cursor}");
            let request = client::get_with_key(self.setup.base, &path, &self.key);
            let page: Value = serde_json::from_str(&connection.ask(&request).await).unwrap();
            page["next_cursor"].as_str().unwrap().clone_into(&mut cursor);
        }
        cursor
    }

    async fn get(&self, address: SocketAddr, path: &str) -> Vec<f64> {
        let request = client::get_with_key(address, path, &self.key);
        let mut connection = Connection::open(address).await;
        let mut seconds = Vec::new();
        for _ in 0..REQUESTS {
            let started = Instant::now();
            connection.ask(&request).await;
            seconds.push(started.elapsed().as_secs_f64());
        }
        seconds
    }
}

async fn create(setup: &Setup, key: &str) -> String {
    let definition = json!({"steps": [{"step_id": "a", "type": "pass"}]});
    let body = json!({"name": "list", "description": "bench", "definition": definition});
    let request = client::post(setup.workflows, "/api/v1/workflows", key, &body.to_string());
    let made = Connection::open(setup.workflows).await.ask(&request).await;
    let made: Value = serde_json::from_str(&made).unwrap();
    made["workflow_id"].as_str().unwrap().to_owned()
}

struct NoModels;

impl orrery_workflows::Models for NoModels {
    fn schema(&self, _slug: &str) -> Option<std::sync::Arc<orrery_schema::Schema>> {
        None
    }

    fn nearest(&self, _slug: &str) -> Option<String> {
        None
    }
}

/// Writes finished executions of the workflow as the engine would.
async fn fill(setup: &Setup, workflow: WorkflowId, count: u64) {
    let options = Options { folder: setup.data().to_path_buf(), inline_bytes: 64 * 1024 };
    let store = Store::open(&options).unwrap();
    let clock = Clock::system();
    let sealer = Sealer::open(setup.data()).unwrap();
    let workflows =
        Workflows::new(store.clone(), sealer, clock.clone(), std::sync::Arc::new(NoModels));
    let found = workflows.by_id(workflow).await.unwrap();
    let organization = found.organization;
    let revision = found.versions[0].revision;
    let key: KeyId = new_id();
    let run = WorkflowRun::new(workflow, "v1".to_owned(), revision, None);
    let standings = rows::standings(organization, workflow);
    let mut written = 0;
    while written < count {
        let mut commit = Commit::new();
        for number in written..count.min(written + BATCH) {
            let failed = number % FAILED_ONE_IN < 2;
            let work = if number % 2 == 0 {
                Work::Workflow(run.clone())
            } else {
                // Only the oldest execution ran on its own model.
                let slug = if number == 1 { "rare".to_owned() } else { format!("m{}", number % 6) };
                Work::Prediction(Prediction::new("1".to_owned(), vec![Candidate::new(slug)]))
            };
            let execution = finished(organization, key, work, failed, &clock);
            let standing = Standing::from(execution.status);
            commit.put(rows::execution(organization, execution.id), &execution).unwrap();
            indexes::add(&mut commit, &execution);
            if number % 2 == 1 {
                continue;
            }
            commit.append(rows::of_workflow(organization, workflow), rows::id_value(execution.id));
            commit.append(rows::ended(&standings, standing), rows::id_value(execution.id));
        }
        store.commit(commit).await.unwrap();
        written += BATCH;
    }
    store.close().await;
}

fn finished(
    organization: OrganizationId,
    key: KeyId,
    work: Work,
    failed: bool,
    clock: &Clock,
) -> Execution {
    let now = clock.now();
    Execution {
        id: new_id(),
        organization,
        key,
        source: Source::Api,
        status: if failed { Status::Error } else { Status::Success },
        input: Payload::of(&json!({"place": "harbour"})).unwrap(),
        work,
        output: Some(Payload::of("A quiet harbour.").unwrap()),
        fault: failed.then(|| Fault::new("StepFailed", ErrorClass::ProviderError, "no")),
        cost: Usd::ZERO,
        reserved: Usd::ZERO,
        webhook: None,
        created_at: now,
        started_at: Some(now),
        completed_at: Some(now),
        origin: None,
    }
}

fn main() {
    tokio::runtime::Runtime::new().unwrap().block_on(measure());
}

/// Measures the history with each kind of filter, and with the most expensive combinations.
async fn history(small: &Subject, large: &Subject, rounds: u64, many: u64) {
    let behind_few = format!("cursor={}", small.cursor_behind(900).await);
    let behind_many = format!("cursor={}", large.cursor_behind(10_000.min(many / 2)).await);
    tokio::time::sleep(SETTLING).await;
    let now = Clock::system().now();
    let all = format!("to={now}");
    let none = format!("from={now}");
    let one = |query: &'static str| (query.to_owned(), query.to_owned());
    let mut table = Table::new(&["history", "at a thousand", &number(many as f64), "ratio"]);
    for (name, (few, deep)) in [
        ("no filter", one("")),
        ("behind 900 rows; behind 10,000", (behind_few, behind_many)),
        ("status=completed", one("status=completed")),
        ("type=prediction", one("type=prediction")),
        ("model, one in six", one("model=m3")),
        ("model, one in all, the oldest", one("model=rare")),
        ("error_classification", one("error_classification=provider_error")),
        ("workflow_id", one("workflow_id={workflow}")),
        ("workflow_id, status=failed", one("workflow_id={workflow}&status=failed")),
        ("model, type, class", one("model=m1&type=prediction&error_classification=provider_error")),
        ("a model that has no failures", one("model=m3&status=cancelled")),
        ("to now", (all.clone(), all)),
        ("from now: none", (none.clone(), none)),
    ] {
        let mut at_few = Vec::new();
        let mut at_many = Vec::new();
        for _ in 0..rounds {
            at_few.extend(small.recall(&few).await);
            at_many.extend(large.recall(&deep).await);
        }
        let at_few = support::median(at_few);
        let at_many = support::median(at_many);
        let micros = |seconds: f64| format!("{:.0} µs", seconds * 1e6);
        table.row([name.to_owned(), micros(at_few), micros(at_many), ratio(at_many / at_few)]);
    }
    table.print();
}

async fn measure() {
    let rounds = support::knob("ORRERY_BENCH_ROUNDS", 7);
    let many = support::knob("ORRERY_BENCH_MANY", 1_000_000);
    let small = Subject::with(FEW).await;
    let started = Instant::now();
    let large = Subject::with(many).await;
    println!("{} executions written in {:.0?}", number(many as f64), started.elapsed());
    let mut table = Table::new(&["list", "at a thousand", &number(many as f64), "ratio"]);
    for (name, few, deep) in [
        ("first page", "?limit=50", "?limit=50"),
        ("last page; 10,000th row", "?limit=50&offset=450", "?limit=50&offset=9999"),
        ("failed, first page", "?limit=50&status=failed", "?limit=50&status=failed"),
        ("failed, 50th; 10,000th row", "?status=failed&offset=49", "?status=failed&offset=9999"),
    ] {
        let mut at_few = Vec::new();
        let mut at_many = Vec::new();
        for _ in 0..rounds {
            at_few.extend(small.ask(few).await);
            at_many.extend(large.ask(deep).await);
        }
        let at_few = support::median(at_few);
        let at_many = support::median(at_many);
        let micros = |seconds: f64| format!("{:.0} µs", seconds * 1e6);
        table.row([name.to_owned(), micros(at_few), micros(at_many), ratio(at_many / at_few)]);
    }
    table.print();
    history(&small, &large, rounds, many).await;
    println!("{rounds} rounds of {REQUESTS} requests each, one at a time\n");
    let mut table = Table::new(&["executions", "start after kill -9", "memory"]);
    for (count, subject) in [(FEW, &small), (many, &large)] {
        table.row([
            number(count as f64),
            milliseconds::<0>(subject.start),
            mebibytes::<1>(process::resident(subject.child.0.id())),
        ]);
    }
    table.print();
}
