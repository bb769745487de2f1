//! Everything at once: workflow executions, uploads and cancellations that run beside the
//! predictions of `load`, and a ledger of what was acknowledged for each.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::flows::{self, Flows};
use crate::load::Ask;
use crate::support::dice::Dice;
use crate::support::http::Client;
use crate::world::World;

/// Executions of one bulk trigger.
const BULK: usize = 10;
/// What one execution costs: three model steps.
const EXECUTION_COST_MICROS: i64 = 3 * 10;
/// Bytes of the largest upload.
const MAX_UPLOAD_BYTES: u64 = 200_000;

/// What the service has acknowledged to the clients of the mix.
#[derive(Debug, Default)]
struct Ledger {
    /// Executions and the outputs that they must end with.
    executions: HashMap<String, usize>,
    /// Bulk triggers whose connection broke: repeated under their idempotency key.
    doubtful: Vec<usize>,
    /// Predictions whose cancellation was answered with `cancelled`.
    cancelled: Vec<String>,
    /// Files and their bytes.
    files: HashMap<String, String>,
    triggered: usize,
}

/// The workflow under test and the ledger; shared by all rounds of a test.
#[derive(Debug)]
pub struct Mix {
    flows: Flows,
    workflow: String,
    ledger: Arc<Mutex<Ledger>>,
}

/// Clients of the mix at work; they stop when told or when their connection breaks.
#[derive(Debug)]
pub struct Running {
    ending: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Mix {
    /// Adds the workflow and its model to a running service.
    pub fn new(world: &mut World) -> Self {
        let flows = Flows::start(&mut world.dice);
        flows.add_model(&world.setup);
        let mut client = world.setup.client(&world.key);
        crate::support::eventually("the new model is in the catalog", || {
            (client.get("/v1/models/next").ok()?.status() == 200).then_some(())
        });
        let workflow = flows.create(&mut client);
        Self { flows, workflow, ledger: Arc::default() }
    }

    /// Starts one client for each kind of request.
    pub fn start(&self, world: &mut World) -> Running {
        let ending = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for act in [trigger, upload, cancel] {
            let (mut client, mut dice) = (world.setup.client(&world.key), world.dice.fork());
            let (ledger, ending) = (Arc::clone(&self.ledger), Arc::clone(&ending));
            let workflow = self.workflow.clone();
            clients.push(std::thread::spawn(move || {
                while !ending.load(Ordering::Relaxed)
                    && act(&mut client, &mut dice, &workflow, &ledger).is_some()
                {}
            }));
        }
        Running { ending, clients }
    }

    /// Repeats every bulk trigger whose connection broke; to be called on a healthy service.
    pub fn clear_doubts(&self, client: &mut Client) {
        let doubtful = std::mem::take(&mut self.ledger.lock().unwrap().doubtful);
        for first in doubtful {
            let sent = trigger_from(client, &self.workflow, first, &self.ledger);
            assert!(sent.is_some(), "the connection broke while nothing was killed");
        }
    }

    /// Waits until everything acknowledged has ended, checks how, and returns what it cost in
    /// micro-dollars.
    pub fn check(&self, client: &mut Client) -> i64 {
        self.clear_doubts(client);
        let ledger = self.ledger.lock().unwrap();
        for (id, output) in &ledger.executions {
            let path = format!("/v1/workflows/executions/{id}?timeout=30");
            let detail = client.get(&path).unwrap().json();
            assert_eq!(detail["status"], "completed", "{detail}");
            assert_eq!(detail["output"], *output, "{detail}");
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
        i64::try_from(ledger.executions.len()).unwrap() * EXECUTION_COST_MICROS
    }
}

impl Running {
    /// Waits for the clients' last answers.
    pub fn end(self) {
        self.ending.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
    }
}

type Shared = Arc<Mutex<Ledger>>;

/// Triggers ten executions in bulk. `None`: the connection broke.
fn trigger(client: &mut Client, _dice: &mut Dice, workflow: &str, ledger: &Shared) -> Option<()> {
    let first = {
        let mut ledger = ledger.lock().unwrap();
        ledger.triggered += BULK;
        ledger.triggered
    };
    trigger_from(client, workflow, first, ledger)
}

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
        return Some(());
    }
    let mut ledger = ledger.lock().unwrap();
    for (n, entry) in answer.json()["executions"].as_array().unwrap().iter().enumerate() {
        let id = entry["execution_id"].as_str().unwrap().to_owned();
        ledger.executions.insert(id, first + n + flows::STEPS);
    }
    Some(())
}

/// Uploads one file of random length.
fn upload(client: &mut Client, dice: &mut Dice, _workflow: &str, ledger: &Shared) -> Option<()> {
    let length = usize::try_from(dice.within(1..MAX_UPLOAD_BYTES)).unwrap();
    let content = format!("{:016x}", dice.next()).repeat(length.div_ceil(16));
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

/// Creates a prediction that waits for the gate and cancels it.
fn cancel(client: &mut Client, dice: &mut Dice, _workflow: &str, ledger: &Shared) -> Option<()> {
    let made = client.post("/v1/prediction/", &[], Ask::stuck(dice.next(), 0).body()).ok()?;
    if made.status() != 200 {
        assert!([429, 503].contains(&made.status()), "{}", made.text());
        return Some(());
    }
    let id = made.json()["predictionID"].as_str().unwrap().to_owned();
    let answer = client.post(&format!("/v1/prediction/{id}/cancel"), &[], "").ok()?;
    if answer.status() == 200 && answer.json()["status"] == "cancelled" {
        ledger.lock().unwrap().cancelled.push(id);
    }
    Some(())
}

/// Kill -9 with everything at once; `ORRERY_CRASH_MIX` rounds.
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
        crate::load::Book::clear_doubts(&world.book, &mut client);
    }
    world.providers.gate.open();
    let cost = mix.check(&mut world.setup.client(&world.key));
    let ends = world.check_all_beside(cost);
    println!("{} predictions acknowledged", ends.len());
}
