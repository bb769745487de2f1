//! Simulates crashes with the real executor, a real store and scripted runners: the process dies
//! after an arbitrary commit and restarts, and all work ends as if there had been no crash.
//!
//! Only the scripted models wait, for a few tens of milliseconds: one runs long enough to be marked
//! as started, and one hangs until its timeout.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::json;
use serde_json::value::to_raw_value;
use tempfile::TempDir;
use tokio::sync::Notify;

use crate::query::indexes;
use crate::{
    Call as Called, Callee, CalleeFuture, CheckInputFuture, Dependencies, Engine, ModelSpec,
    Models, Options, OwnerFuture, PlanFuture, Plans, SecretsFuture, Submission,
};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::definition::Plan;
use orrery_domain::delivery::Webhook;
use orrery_domain::execution::{Candidate, Execution, Prediction, Source, Status, Work as Doing};
use orrery_domain::ids::{ExecutionId, FileId, KeyId, OrganizationId, RevisionId, WorkflowId};
use orrery_domain::model::{OutputType, Pricing, Usage};
use orrery_domain::money::Usd;
use orrery_domain::retry::Policy;
use orrery_domain::secret::Values;
use orrery_http::client::Client;
use orrery_records::billing::Billing;
use orrery_records::files::Files;
use orrery_records::key_policies::Handle;
use orrery_records::limits;
use orrery_runners::{self as runners, Job, Run, Runner};
use orrery_runtime::{Clock, Tasks, new_id};
use orrery_storage::faults::Point;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Key, Page, Sealer, Store, Table};
use orrery_webhooks as webhooks;
use orrery_webhooks::Endpoints;

pub(crate) const ORGANIZATION: [u8; 16] = [1; 16];
/// Far longer than any test needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Waits until `is_so` returns true, polling every millisecond.
pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    let polling = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, polling).await.unwrap();
}

/// The attempt keys that the models were called with, in order.
pub(crate) type Calls = Arc<Mutex<Vec<String>>>;

/// A model that behaves according to its name.
#[derive(Debug)]
struct Scripted {
    name: String,
    calls: Calls,
    in_flight: InFlight,
}

/// The attempt keys of the calls in flight.
pub(crate) type InFlight = Arc<Mutex<HashSet<String>>>;

/// A call in flight.
struct Call {
    in_flight: InFlight,
    key: String,
}

impl Call {
    fn begin(in_flight: &InFlight, key: &str) -> Self {
        assert!(in_flight.lock().unwrap().insert(key.to_owned()), "{key} is called twice at once");
        Self { in_flight: Arc::clone(in_flight), key: key.to_owned() }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.in_flight.lock().unwrap().remove(&self.key);
    }
}

impl Runner for Scripted {
    fn run(&self, job: Job) -> Run<'_> {
        self.calls.lock().unwrap().push(job.attempt_key.clone());
        let call = Call::begin(&self.in_flight, &job.attempt_key);
        Box::pin(async move {
            let _call = call;
            match self.name.as_str() {
                "flaky" if !job.attempt_key.ends_with(":3") => {
                    return Err(Failure::new(ErrorClass::ProviderError, "not yet").into());
                }
                "slow" => tokio::time::sleep(Duration::from_millis(30)).await,
                "hangs" | "endless" | "stuck" | "stalls" => std::future::pending().await,
                "panics" => panic!("as scripted"),
                "fails" => {
                    return Err(Failure::new(ErrorClass::ProviderError, "it failed").into());
                }
                "charges" => {
                    let failure = Failure::new(ErrorClass::ProviderError, "it failed");
                    let cost = Some(Usd::from_micros(5));
                    return Err(runners::Error { failure, cost });
                }
                _ => {}
            }
            if self.name == "draws" {
                return Ok(runners::Success::new(json!("data:,drawn"), Usage::default()));
            }
            if self.name == "large" {
                // Too large to store inline.
                let output = "x".repeat(70_000);
                return Ok(runners::Success::new(json!(output), Usage::default()));
            }
            if self.name == "same" {
                let output = job.input["n"].clone();
                return Ok(runners::Success::new(output, Usage::default()));
            }
            let output = json!({"echo": job.input["n"], "by": self.name});
            Ok(runners::Success::new(output, Usage::default()))
        })
    }
}

#[derive(Clone, Default)]
pub(crate) struct Script {
    pub calls: Calls,
    pub in_flight: InFlight,
    /// How many more times a lookup of a model panics.
    pub panics: Arc<AtomicUsize>,
    pub plans: HashMap<RevisionId, Arc<Plan>>,
}

/// Returns a policy with three attempts and short delays.
fn quickly() -> Policy {
    let moment = Duration::from_millis(2);
    Policy::new(3, moment, 1.0, moment, Policy::TRANSIENT.to_vec())
}

impl Models for Script {
    fn model(&self, slug: &str) -> Option<ModelSpec> {
        let left = self.panics.load(Ordering::SeqCst);
        if slug == "works" && left > 0 {
            self.panics.store(left - 1, Ordering::SeqCst);
            panic!("as scripted");
        }
        let calls = Arc::clone(&self.calls);
        let in_flight = Arc::clone(&self.in_flight);
        let runner = Scripted { name: slug.to_owned(), calls, in_flight };
        (slug != "removed").then(|| ModelSpec {
            runner: Arc::new(runner),
            timeout: if slug == "hangs" { Duration::from_millis(40) } else { PATIENCE },
            concurrency: if slug == "same" { 8 } else { 1 },
            queue_limit: 10_000,
            output_type: if slug == "draws" { OutputType::Image } else { OutputType::Object },
            pricing: Some(Pricing::Fixed { amount: Usd::from_micros(100) }),
            retry: if slug == "flaky" { quickly() } else { Policy::once() },
            cache: None,
        })
    }

    fn check_input(&self, _slug: &str, input: serde_json::Value) -> CheckInputFuture<'_> {
        Box::pin(std::future::ready(Ok(input)))
    }
}

impl Plans for Script {
    fn plan(&self, revision: RevisionId) -> PlanFuture<'_> {
        let plan = self.plans.get(&revision).cloned();
        Box::pin(std::future::ready(Ok(plan)))
    }

    fn owner(&self, _workflow: WorkflowId) -> OwnerFuture<'_> {
        Box::pin(std::future::ready(Ok(Some(ORGANIZATION.into()))))
    }

    /// Looks up a workflow by its case number.
    fn callee(&self, _organization: OrganizationId, call: Called) -> CalleeFuture<'_> {
        let number = call.workflow.parse::<u8>().ok();
        let known = number.filter(|number| self.plans.contains_key(&[*number; 16].into()));
        let callee = known.map(|number| Callee {
            workflow: [number; 16].into(),
            version: "v1".to_owned(),
            revision: [number; 16].into(),
            inputs: call.inputs,
            beside: Commit::new(),
        });
        let missing = || Failure::new(ErrorClass::InvalidModelConfig, "there is no such workflow");
        Box::pin(std::future::ready(Ok(callee.ok_or_else(missing))))
    }

    fn count_run(&self, _commit: &mut Commit, _workflow: WorkflowId, _version: &str) {}

    fn secrets(&self, _organization: OrganizationId, _names: Vec<String>) -> SecretsFuture<'_> {
        Box::pin(std::future::ready(Ok(Values::default())))
    }
}

/// A process: an engine on a store, and the deliveries passed to the outbox.
pub(crate) struct Process {
    pub store: Store,
    pub engine: Engine,
    pub script: Script,
}

impl Process {
    pub(crate) fn start(folder: &TempDir, crash_after: i64) -> Self {
        Self::start_with(folder, crash_after, Script::default(), Options::default())
    }

    pub(crate) fn start_with(
        folder: &TempDir,
        crash_after: i64,
        script: Script,
        options: Options,
    ) -> Self {
        Self::start_limited(folder, crash_after, (script, options), &limits::Handle::default())
    }

    /// Like [`Process::start_with`], with per-organization limits.
    pub(crate) fn start_limited(
        folder: &TempDir,
        crash_after: i64,
        (script, of_engine): (Script, Options),
        limits: &limits::Handle,
    ) -> Self {
        let folder = folder.path().to_path_buf();
        let options = storage::Options { folder: folder.clone(), inline_bytes: 65_536 };
        let store = Store::open(&options).unwrap();
        let files = Files::scratch(&folder, store.clone());
        store.crash_after(crash_after);
        let clock = Clock::system();
        let sealer = Sealer::open(&folder).unwrap();
        let dependencies = Dependencies {
            store: store.clone(),
            clock: clock.clone(),
            tasks: Tasks::new(),
            billing: Billing::new(
                store.clone(),
                clock.clone(),
                Handle::default(),
                Default::default(),
            ),
            limits: limits.clone(),
            models: Arc::new(script.clone()),
            plans: Arc::new(script.clone()),
            client: Client::trusted(),
            files,
            endpoints: Endpoints::new(store.clone(), sealer, clock),
            on_delivery: Arc::new(|_delivery| {}),
        };
        let engine = Engine::new(dependencies, of_engine);
        Self { store, engine, script }
    }
}

/// The submitted predictions: the chain of each, and whether it has a webhook.
const WORK: [(&[&str], bool); 10] = [
    (&["works"], true),
    (&["fails", "works"], true),
    (&["slow"], false),
    (&["fails", "charges"], true),
    (&["works"], false),
    (&["panics", "slow"], true),
    (&["hangs", "works"], false),
    (&["fails", "removed"], true),
    (&["draws"], false),
    // The flaky model is tried three times.
    (&["flaky"], true),
];

fn submission(number: usize) -> Submission {
    let (chain, webhook) = WORK[number];
    prediction(number, chain, webhook)
}

/// Creates a prediction with a chain of models, and with a webhook if `webhook` is set.
pub(crate) fn prediction(number: usize, chain: &[&str], webhook: bool) -> Submission {
    let url = "http://receiver.example/".to_owned();
    Submission {
        id: new_id(),
        organization: ORGANIZATION.into(),
        key: KeyId::from([2; 16]),
        source: Source::Api,
        work: Doing::Prediction(Prediction::new(
            "1".to_owned(),
            chain.iter().map(|model| Candidate::new(*model)).collect(),
        )),
        input: to_raw_value(&json!({"n": number})).unwrap(),
        webhook: webhook.then_some(Webhook::unsigned(url)),
        origin: None,
    }
}

/// Outcomes by work number, which must not depend on when the process dies.
type Outcomes = BTreeMap<u64, (Status, String, Vec<String>, Usd)>;

pub(crate) async fn rows(store: &Store, table: Table) -> Vec<(Key, Vec<u8>)> {
    let prefix = Key::table(table);
    store.page(Page { prefix, after: None, before: None, limit: 1000 }).await.unwrap()
}

pub(crate) async fn executions(store: &Store) -> Vec<Execution> {
    let rows = rows(store, Table::Execution).await;
    rows.iter().map(|(_, bytes)| decode(bytes).unwrap()).collect()
}

fn attempts_of(execution: &Execution) -> &[orrery_domain::attempt::Attempt] {
    execution.prediction().map_or(&[], |prediction| &prediction.attempts)
}

async fn outcomes(store: &Store) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for execution in executions(store).await {
        let input = store.read_payload(&execution.input).await.unwrap();
        let input: serde_json::Value = serde_json::from_str(input.get()).unwrap();
        let output = match &execution.output {
            Some(output) => store.read_payload(output).await.unwrap().get().to_owned(),
            None => execution.fault.as_ref().map_or("", |fault| &fault.cause).to_owned(),
        };
        // A file's URL contains the execution's id.
        let file = FileId::of_output(execution.id, &execution.attempt_key(1), 0).to_string();
        let output = if output.contains(&file) { "its file".to_owned() } else { output };
        let tried = |attempt: &orrery_domain::attempt::Attempt| {
            format!("{} {} {}", attempt.number, attempt.model, attempt.outcome.as_str())
        };
        let attempts = attempts_of(&execution).iter().map(tried).collect();
        let outcome = (execution.status, output, attempts, execution.cost);
        assert!(outcomes.insert(input["n"].as_u64().unwrap(), outcome).is_none());
    }
    outcomes
}

async fn all_end(process: &Process) {
    for execution in executions(&process.store).await {
        let ended =
            process.engine.wait(execution.organization, execution.id, PATIENCE).await.unwrap();
        assert!(ended.status.is_final(), "{ended:?}");
    }
}

/// Asserts invariants of the store once all work has ended.
pub(crate) async fn check_books(store: &Store) {
    assert_eq!(rows(store, Table::Lane).await.len(), 0, "a lane still holds a row");
    let ended = executions(store).await;
    let mut indexed: Vec<_> = ended.iter().flat_map(indexes::rows_of).collect();
    indexed.sort();
    let mut index = rows(store, Table::Facet).await;
    index.extend(rows(store, Table::Standing).await);
    assert_eq!(index, indexed, "the history's indexes are what follows from the executions");
    let executions = executions(store).await;
    let announced = executions.iter().filter(|execution| execution.webhook.is_some()).count();
    assert_eq!(rows(store, Table::Delivery).await.len(), announced);
    assert_eq!(rows(store, Table::Due).await.len(), announced);
    for execution in executions.iter().filter(|execution| execution.webhook.is_some()) {
        let delivery = webhooks::load(store, execution.organization, execution.id).await;
        assert!(delivery.unwrap().is_some());
    }
    // The cost of a workflow is the sum of its steps' costs.
    let cost_of = |run: &Execution| -> Usd {
        let is_step = |one: &&Execution| {
            let step = one.prediction().and_then(|prediction| prediction.step.as_ref());
            step.is_some_and(|step| step.execution == run.id)
        };
        executions.iter().filter(is_step).map(|step| step.cost).sum()
    };
    for run in executions.iter().filter(|execution| execution.workflow().is_some()) {
        assert_eq!(run.cost, cost_of(run), "{run:?}");
    }
    let drew =
        |one: &&Execution| one.prediction().is_some_and(|prediction| prediction.model() == "draws");
    let drawn = executions.iter().filter(drew).count();
    assert_eq!(rows(store, Table::File).await.len(), drawn, "a file for each output");
    assert_eq!(rows(store, Table::Content).await.len(), drawn);
    // A workflow's cost is charged step by step.
    let charged = executions.iter().filter(|execution| execution.workflow().is_none());
    let cost: Usd = charged.map(|execution| execution.cost).sum();
    let billing =
        Billing::new(store.clone(), Clock::system(), Handle::default(), Default::default());
    assert_eq!(billing.balance(ORGANIZATION.into()).await.unwrap(), -cost);
    let ledger = billing.ledger(ORGANIZATION.into(), None, 1000).await.unwrap();
    assert_eq!(ledger.iter().map(|entry| entry.amount).sum::<Usd>(), -cost);
}

/// Returns how many attempts of each execution had ended when the process died.
async fn ended_attempts(store: &Store) -> HashMap<ExecutionId, usize> {
    let ended = |execution: &Execution| {
        let running = execution.prediction().and_then(Prediction::running);
        attempts_of(execution).len() - usize::from(running.is_some())
    };
    executions(store).await.iter().map(|execution| (execution.id, ended(execution))).collect()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Calls `live` with each number below `lives`. Runs several calls in parallel, because each
/// lifetime mostly waits for timers.
pub(crate) fn each_life(lives: i64, live: impl Fn(i64) + Sync) {
    const AT_ONCE: usize = 8;
    let next = AtomicI64::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                numbers.take_while(|number| *number < lives).for_each(&live);
            });
        }
    });
}

/// When a process dies: after this many commits or commit groups, during the following one.
#[derive(Debug, Clone, Copy)]
enum Death {
    Never,
    /// The group is durable and visible, but its tickets have not reached the lanes yet.
    BeforeHooks(i64),
    /// The group's tickets are in the lanes, but its caller has not been notified.
    BeforeAnswer(i64),
}

/// Submits all work and runs until it has ended or the crash point is reached. Returns how many
/// attempts of each execution had ended by then, according to the store, and the number of commits.
async fn live_and_die(folder: &TempDir, death: Death) -> (HashMap<ExecutionId, usize>, i64) {
    let process = Process::start(folder, i64::MAX);
    let died = Arc::new(Notify::new());
    // At the time of death, the writer is blocked until no task reacts to its commits anymore.
    let (release, held) = std::sync::mpsc::channel::<()>();
    match death {
        Death::Never => {}
        Death::BeforeHooks(groups) => {
            let died = Arc::clone(&died);
            let held = Mutex::new(held);
            let left = AtomicI64::new(groups);
            process.store.faults().at_points(move |point| {
                if point == Point::Answer && left.fetch_sub(1, Ordering::SeqCst) == 0 {
                    died.notify_one();
                    let _released = held.lock().unwrap().recv();
                }
            });
        }
        Death::BeforeAnswer(commits) => process.store.crash_after(commits),
    }
    let living = async {
        process.engine.recover().await.unwrap();
        for number in 0..WORK.len() {
            process.engine.submit(vec![submission(number)], Commit::new()).await.unwrap();
        }
        all_end(&process).await;
    };
    tokio::select! {
        () = living => {}
        () = process.store.crashed() => {}
        () = died.notified() => process.store.crash_after(-1),
    }
    process.engine.inner.tasks.stop();
    drop(release);
    process.store.clone().close().await;
    let commits = i64::try_from(process.store.stats().commits).unwrap();
    (ended_attempts(&process.store).await, commits)
}

/// Runs a second lifetime on the store that the first lifetime left, until all work has ended.
async fn live_on(folder: &TempDir, ended_before: &HashMap<ExecutionId, usize>) -> Outcomes {
    let process = Process::start(folder, i64::MAX);
    process.engine.recover().await.unwrap();
    all_end(&process).await;
    for call in process.script.calls.lock().unwrap().iter() {
        let (id, rest) = call.split_once(':').unwrap();
        let attempt: usize = rest.rsplit(':').next().unwrap().parse().unwrap();
        let ended = ended_before.get(&id.parse().unwrap()).copied().unwrap_or(0);
        assert!(attempt > ended, "attempt {attempt} ran again although {ended} had ended");
    }
    check_books(&process.store).await;
    outcomes(&process.store).await
}

#[test]
fn prediction_outcomes_survive_crash_after_any_commit() {
    let run = |death: Death| {
        let folder = tempfile::tempdir().unwrap();
        // Each lifetime has a new runtime; dropping it ends everything the dead process was doing.
        let (kept, commits) = runtime().block_on(live_and_die(&folder, death));
        (runtime().block_on(live_on(&folder, &kept)), commits)
    };
    let (undisturbed, commits) = run(Death::Never);
    assert_eq!(undisturbed.len(), WORK.len());
    assert_eq!(undisturbed[&9].2.len(), 3, "{:?}", undisturbed[&9]);
    assert!(commits >= 20, "{commits}");
    each_life(commits, |after| {
        for death in [Death::BeforeHooks(after), Death::BeforeAnswer(after)] {
            let (outcomes, _) = run(death);
            for (number, outcome) in outcomes {
                assert_eq!(Some(&outcome), undisturbed.get(&number), "died at {death:?}");
            }
        }
    });
}
