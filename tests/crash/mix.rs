//! Everything at once: workflow executions, uploads and cancellations in parallel with the
//! predictions of `load`, and a ledger of everything acknowledged.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::flows::{self, Flows};
use crate::load::Ask;
use crate::support::eventually;
use crate::support::http::Client;
use crate::support::random::Random;
use crate::verdict;
use crate::world::World;

/// Executions per bulk trigger.
const BULK: usize = 10;
/// Cost of one execution: three model steps.
const EXECUTION_COST_MICROS: i64 = 3 * flows::STEP_COST_MICROS;
/// Size limit of uploads.
const UPLOAD_BYTES_MAX: u64 = 200_000;

/// All work that the service has acknowledged to the clients of the mix.
#[derive(Debug, Default)]
struct ClientLog {
    executions: HashMap<String, usize>,
    /// The first inputs of bulk triggers whose connection broke. The test repeats them with their
    /// idempotency key.
    doubtful: Vec<usize>,
    /// The marks of predictions whose cancellation request ended with a broken connection.
    not_cancelled: Vec<u64>,
    /// Predictions that the service confirmed as `cancelled`.
    cancelled: Vec<String>,
    /// Files and their contents.
    files: HashMap<String, String>,
    triggered: usize,
}

/// The workflow under test and the ledger; shared by all rounds of a test.
#[derive(Debug)]
pub(crate) struct Mix {
    flows: Flows,
    workflow: String,
    ledger: Arc<Mutex<ClientLog>>,
}

/// Running clients of the mix. They stop when the mix ends or when their connection breaks.
#[derive(Debug)]
pub(crate) struct Running {
    ending: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Mix {
    /// Adds the workflow and its model to a running service.
    pub(crate) fn new(world: &mut World) -> Self {
        let flows = Flows::start(&mut world.random);
        flows.add_model(&world.setup);
        let mut client = world.setup.client(&world.key);
        crate::support::eventually("the new model is in the catalog", || {
            (client.get("/v1/models/next").ok()?.status() == 200).then_some(())
        });
        let workflow = flows.create(&mut client);
        Self { flows, workflow, ledger: Shared::default() }
    }

    /// Starts one client per kind of request.
    pub(crate) fn start(&self, world: &mut World) -> Running {
        let ending = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for act in [trigger, upload, cancel] {
            let mut client = world.setup.client(&world.key);
            let mut random = world.random.fork();
            let ledger = Arc::clone(&self.ledger);
            let ending = Arc::clone(&ending);
            let workflow = self.workflow.clone();
            clients.push(std::thread::spawn(move || {
                while !ending.load(Ordering::Relaxed)
                    && act(&mut client, &mut random, &workflow, &ledger).is_some()
                {}
            }));
        }
        Running { ending, clients }
    }

    /// Repeats every request whose connection broke; call it on a healthy service.
    pub(crate) fn clear_doubts(&self, client: &mut Client) {
        let (doubtful, not_cancelled) = {
            let mut ledger = self.ledger.lock().unwrap();
            (std::mem::take(&mut ledger.doubtful), std::mem::take(&mut ledger.not_cancelled))
        };
        for mark in not_cancelled {
            let sent = cancel_marked(client, mark, &self.ledger);
            assert!(sent.is_some(), "the connection broke while nothing was killed");
        }
        for bulk in doubtful {
            let sent = trigger_from(client, &self.workflow, bulk, &self.ledger);
            assert!(sent.is_some(), "the connection broke while nothing was killed");
        }
    }

    /// Repeats `clear_doubts` until the outcome of every request is known.
    pub(crate) fn clear_all_doubts(&self, client: &mut Client) {
        eventually("no request is in doubt", || {
            self.clear_doubts(client);
            let ledger = self.ledger.lock().unwrap();
            (ledger.doubtful.is_empty() && ledger.not_cancelled.is_empty()).then_some(())
        });
    }

    /// Drops the records of all acknowledged work, which has been checked; returns the paths and
    /// responses for some of it.
    pub(crate) fn forget(&self, client: &mut Client, some: usize) -> Vec<(String, Vec<u8>)> {
        let mut ledger = self.ledger.lock().unwrap();
        let executions = ledger.executions.keys().take(some);
        let executions = executions.map(|id| format!("/v1/workflows/executions/{id}"));
        let files = ledger.files.keys().take(some).map(|id| format!("/v1/files/{id}/content"));
        let cancelled = ledger.cancelled.iter().take(some).map(|id| format!("/v1/prediction/{id}"));
        let paths = executions.chain(files).chain(cancelled);
        let read = |path: String| {
            let answer = client.get(&path).unwrap();
            (path, answer.body)
        };
        let kept = paths.map(read).collect();
        ledger.executions.clear();
        ledger.files.clear();
        ledger.cancelled.clear();
        kept
    }

    /// Waits until all acknowledged work has ended, checks the outcomes, and returns the total cost
    /// in micro-dollars.
    pub(crate) fn check(&self, client: &mut Client) -> i64 {
        self.clear_all_doubts(client);
        let ledger = self.ledger.lock().unwrap();
        let mut cost = 0;
        for (id, output) in &ledger.executions {
            let path = format!("/v1/workflows/executions/{id}?timeout=30");
            let detail = eventually("the execution ends", || {
                let detail = client.get(&path).unwrap().json();
                (!detail["completed_at"].is_null()).then_some(detail)
            });
            let paid = verdict::micros(&detail["metrics"]["cost"]);
            cost += paid;
            assert_eq!(detail["status"], "completed", "{detail}");
            assert_eq!(detail["output"], *output, "{detail}");
            assert_eq!(paid, EXECUTION_COST_MICROS, "{detail}");
        }
        for id in &ledger.cancelled {
            let seen = client.get(&format!("/v1/prediction/{id}")).unwrap().json();
            assert_eq!(seen["status"], "cancelled", "a cancellation was undone: {seen}");
        }
        for (id, content) in &ledger.files {
            let answer = client.get(&format!("/v1/files/{id}/content")).unwrap();
            assert_eq!(answer.status(), 200, "{id} was acknowledged: {}", answer.text());
            assert!(answer.text() == *content, "file {id} has other bytes");
        }
        self.flows.look(|seen| assert!(seen.faults.is_empty(), "{:#?}", seen.faults));
        println!(
            "{} executions, {} cancellations, {} files acknowledged",
            ledger.executions.len(),
            ledger.cancelled.len(),
            ledger.files.len()
        );
        cost
    }
}

impl Running {
    /// Waits for the clients' last responses.
    pub(crate) fn end(self) {
        self.ending.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
    }
}

type Shared = Arc<Mutex<ClientLog>>;

/// Triggers ten executions in bulk. Returns `None` if the connection broke.
fn trigger(client: &mut Client, _dice: &mut Random, workflow: &str, ledger: &Shared) -> Option<()> {
    let first = {
        let mut ledger = ledger.lock().unwrap();
        ledger.triggered += BULK;
        ledger.triggered
    };
    trigger_from(client, workflow, first, ledger)
}

/// Like [`trigger`], with inputs numbered from `first`.
fn trigger_from(client: &mut Client, workflow: &str, first: usize, ledger: &Shared) -> Option<()> {
    let inputs: Vec<Value> = (first..first + BULK).map(|n| json!({"n": n})).collect();
    let body = json!({"inputs": inputs}).to_string();
    let path = format!("/v1/workflows/{workflow}/bulk-trigger");
    let key = format!("bulk-{first}");
    let Ok(answer) = client.post(&path, &[("Idempotency-Key", &key)], &body) else {
        ledger.lock().unwrap().doubtful.push(first);
        return None;
    };
    if answer.status() != 202 {
        assert!([429, 503].contains(&answer.status()), "{}", answer.text());
        ledger.lock().unwrap().doubtful.push(first);
        return Some(());
    }
    let mut ledger = ledger.lock().unwrap();
    for (n, entry) in answer.json()["executions"].as_array().unwrap().iter().enumerate() {
        let id = entry["execution_id"].as_str().unwrap().to_owned();
        ledger.executions.insert(id, first + n + flows::STEPS);
    }
    Some(())
}

/// Uploads a file of random length.
fn upload(
    client: &mut Client,
    random: &mut Random,
    _workflow: &str,
    ledger: &Shared,
) -> Option<()> {
    let length = usize::try_from(random.within(1..UPLOAD_BYTES_MAX)).unwrap();
    let content = format!("{:016x}", random.next()).repeat(length.div_ceil(16));
    let form = format!(
        "--b0\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n{content}\r\n--b0--\r\n"
    );
    let form_type = [("Content-Type", "multipart/form-data; boundary=b0")];
    let answer = client.post("/v1/files", &form_type, &form).ok()?;
    if answer.status() != 201 {
        assert!([429, 503].contains(&answer.status()), "{}", answer.text());
        return Some(());
    }
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    ledger.lock().unwrap().files.insert(id, content);
    Some(())
}

/// Creates a prediction that waits for the gate, and cancels it.
fn cancel(
    client: &mut Client,
    random: &mut Random,
    _workflow: &str,
    ledger: &Shared,
) -> Option<()> {
    let mark = random.next();
    let done = cancel_marked(client, mark, ledger);
    if done.is_none() {
        ledger.lock().unwrap().not_cancelled.push(mark);
    }
    done
}

fn cancel_marked(client: &mut Client, mark: u64, ledger: &Shared) -> Option<()> {
    let key = format!("stuck-{mark:x}");
    let ask = Ask::stuck(mark, "");
    let made = client.post("/v1/prediction/", &[("Idempotency-Key", &key)], ask.body()).ok()?;
    if made.status() != 200 {
        assert!([429, 503].contains(&made.status()), "{}", made.text());
        // A write that failed may still be durable.
        ledger.lock().unwrap().not_cancelled.push(mark);
        return Some(());
    }
    let id = made.json()["predictionID"].as_str().unwrap().to_owned();
    let answer = client.post(&format!("/v1/prediction/{id}/cancel"), &[], "").ok()?;
    let mut ledger = ledger.lock().unwrap();
    match answer.status() {
        200 if answer.json()["status"] == "cancelled" => ledger.cancelled.push(id),
        200 | 409 => {}
        429 | 503 => ledger.not_cancelled.push(mark),
        _ => panic!("{}", answer.text()),
    }
    Some(())
}

/// `kill -9` with all kinds of work at once; `ORRERY_CRASH_MIX` rounds.
#[test]
fn everything_at_once_survives_kills() {
    let folder = tempfile::tempdir().unwrap();
    let (mut world, mut service) = World::new(folder.path(), &folder.path().join("data"));
    let mix = Mix::new(&mut world);
    for _ in 0..crate::support::count_from("ORRERY_CRASH_MIX", 2) {
        let running = mix.start(&mut world);
        world.kill_under_load(service);
        running.end();
        service = world.setup.start();
        let mut client = world.setup.client(&world.key);
        mix.clear_doubts(&mut client);
        crate::load::ClientLog::clear_doubts(&world.client_log, &mut client);
    }
    world.providers.gate.open();
    let cost = mix.check(&mut world.setup.client(&world.key));
    let ends = world.check_all_beside(cost);
    println!("{} predictions acknowledged", ends.len());
}
