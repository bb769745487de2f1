//! Neighbors: two organizations on one service. One organization attacks the resources shared by
//! all (slots, memory, descriptors, the disk); throughout, the predictions of the other
//! organization must complete in time.
//!
//! `ORRERY_ABUSE_SECONDS` sets the duration of each attack, `ORRERY_ABUSE_NEIGHBOR_MS` the time
//! limit of the neighbor's predictions, and the bounds of `abuse` apply too: `tests/torture/abuse`
//! runs these tests alone, for longer and with narrow bounds.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::abuse::{MIB, Target, folder_bytes};
use crate::load::noise;
use crate::support::server::Server;
use crate::support::service::Setup;
use crate::support::{count_from, eventually};
use orrery_runtime as runtime;

/// Interval of the neighbor's requests.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// The time that the neighbor's predictions may take at the beginning of an attack.
const GRACE: Duration = Duration::from_secs(1);
/// Memory that attacks may use on top of the bound of `abuse`: 100 MiB, plus
/// `engine.workflow_memory`.
const BUDGETS_MIB: u64 = 100 + 256;
/// The models and inputs that the neighbor runs in turn.
const MODELS: [(&str, &str); 4] = [
    ("text-template", r#"{"template": "{{ a }}", "values": {"a": "well"}}"#),
    ("json-query", r#"{"document": {"a": 1}, "expression": "a"}"#),
    ("text-language", r#"{"text": "The house is on the hill."}"#),
    ("image-qr", r#"{"text": "well"}"#),
];

/// An attacked service and the attacker's neighbor.
struct Neighborhood {
    target: Target,
    neighbor: Neighbor,
    /// The neighbor's key.
    key: String,
}

/// Runs predictions until dropped, and records the slowest one.
struct Neighbor {
    ending: Arc<AtomicBool>,
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    answered: AtomicU64,
    slowest_ms: AtomicU64,
    refused: Mutex<Vec<String>>,
}

impl Neighbor {
    fn start(setup: &Setup, key: &str, models: &'static [(&str, &str)]) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let seen = Arc::<Seen>::default();
        let (end, noted) = (Arc::clone(&ending), Arc::clone(&seen));
        let mut client = setup.client(key);
        let begun = runtime::monotonic_now();
        let thread = std::thread::spawn(move || {
            for (model, input) in models.iter().cycle() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let input: Value = serde_json::from_str(input).unwrap();
                let body = json!({"model": model, "version": "0.0.1", "input": input}).to_string();
                let asked = runtime::monotonic_now();
                let answer = client.post("/v1/prediction/run", &[], &body);
                let took = asked.elapsed();
                match answer {
                    Ok(answer)
                        if answer.status() == 200 && answer.json()["status"] == "success" =>
                    {
                        noted.answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(answer) => noted.refused.lock().unwrap().push(answer.text()),
                    Err(error) => noted.refused.lock().unwrap().push(error.to_string()),
                }
                if begun.elapsed() > GRACE {
                    let took = u64::try_from(took.as_millis()).unwrap();
                    noted.slowest_ms.fetch_max(took, Ordering::Relaxed);
                }
                std::thread::sleep(ASK_EVERY.saturating_sub(took));
            }
        });
        Self { ending, seen, thread: Some(thread) }
    }

    /// Stops the neighbor; returns what went wrong with its predictions, if anything.
    fn end(&mut self, attack: &str) -> Option<String> {
        self.ending.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        let refused = self.seen.refused.lock().unwrap();
        let answered = self.seen.answered.load(Ordering::Relaxed);
        let slowest = self.seen.slowest_ms.load(Ordering::Relaxed);
        println!("{attack}: the neighbor had {answered} predictions, each within {slowest} ms");
        let most = u64::from(count_from("ORRERY_ABUSE_NEIGHBOR_MS", 15_000));
        if !refused.is_empty() {
            return Some(format!("{attack}: the neighbor was refused: {refused:#?}"));
        }
        (answered == 0 || slowest > most)
            .then(|| format!("{attack}: the neighbor waited {slowest} ms"))
    }
}

impl Drop for Neighbor {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
    }
}

impl Neighborhood {
    fn new(models: &'static [(&str, &str)], prepare: impl FnOnce(Setup) -> Setup) -> Self {
        Self::with("", models, prepare)
    }

    fn with(
        config: &str,
        models: &'static [(&str, &str)],
        prepare: impl FnOnce(Setup) -> Setup,
    ) -> Self {
        let target = Target::with(config, prepare);
        let setup = &target.setup;
        setup.run(&["org", "create", "--name", "other"]);
        let key = setup.run(&["key", "create", "--name", "other", "--org", "other"]);
        // Start the built-in workers first, because in practice they are already running.
        let neighbor = Neighbor::start(setup, key.trim(), models);
        eventually("the neighbor is served", || {
            let served = neighbor.seen.answered.load(Ordering::Relaxed);
            (served >= u64::try_from(models.len()).unwrap()).then_some(())
        });
        let neighbor = Neighbor::start(setup, key.trim(), models);
        Self { target, neighbor, key: key.trim().to_owned() }
    }

    fn text() -> Self {
        Self::new(&MODELS[..1], |setup| setup)
    }

    /// Lets the attack continue for its duration.
    fn look(&self) {
        std::thread::sleep(Duration::from_secs(count_from("ORRERY_ABUSE_SECONDS", 3).into()));
    }

    fn workflow(&self, name: &str, steps: &Value) -> String {
        let steps = json!({"steps": steps});
        self.target.create_workflow(name, &steps).unwrap_or_else(|refused| panic!("{refused:?}"))
    }

    fn trigger(&self, workflow: &str, inputs: &Value) -> String {
        let body = json!({ "inputs": inputs }).to_string();
        let path = format!("/v1/workflows/{workflow}/trigger");
        let made = self.target.client().post(&path, &[], &body).unwrap();
        assert_eq!(made.status(), 202, "{}", made.text());
        made.json()["execution_id"].as_str().unwrap().to_owned()
    }

    /// Cancels an execution; returns the response time in milliseconds.
    fn cancel(&self, execution: &str) -> u128 {
        let asked = runtime::monotonic_now();
        let path = format!("/v1/workflows/executions/{execution}/cancel");
        let answer = self.target.client().post(&path, &[], "{}").unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
        asked.elapsed().as_millis()
    }

    fn disk_mib(&self) -> u64 {
        folder_bytes(self.target.setup.data()) / MIB
    }

    fn unfinished(&self) -> f64 {
        self.target.setup.unfinished().unwrap()
    }

    fn assert_well(mut self, attack: &str) {
        let disk = self.disk_mib();
        println!("{attack}: {disk} MiB on the disk");
        let fault = self.neighbor.end(attack);
        // From here on, use the neighbor's key: requests by the attacker would have to wait for its
        // own work.
        self.target.key = self.key;
        self.target.assert_well_within(attack, BUDGETS_MIB);
        assert!(fault.is_none(), "{}", fault.unwrap_or_default());
    }
}

/// A server that accepts connections and never answers.
struct Deaf {
    address: SocketAddr,
    held: Arc<Mutex<Vec<TcpStream>>>,
    stopping: Arc<AtomicBool>,
}

impl Deaf {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let held = Arc::<Mutex<Vec<TcpStream>>>::default();
        let stopping = Arc::new(AtomicBool::new(false));
        let (kept, stop) = (Arc::clone(&held), Arc::clone(&stopping));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                kept.lock().unwrap().push(stream);
            }
        });
        Self { address, held, stopping }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    fn connections(&self) -> usize {
        self.held.lock().unwrap().len()
    }
}

impl Drop for Deaf {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
    }
}

fn map(items: &str, step: &Value) -> Value {
    json!([{"step_id": "each", "type": "map", "items": items, "max_concurrency": 100, "steps": [step]}])
}

fn numbers(count: usize) -> Vec<usize> {
    (0..count).collect()
}

/// Three workflows, two of which run the next one for each of 10,000 items: a tree of 10^8
/// executions.
fn tree_of_workflows(waits: bool, attack: &str) {
    let near = Neighborhood::text();
    let leaf = near.workflow("l0", &json!([{"step_id": "a", "type": "pass", "result": 1}]));
    let run = |workflow: &str, inputs: Value| {
        let step = json!({"step_id": "run", "type": "workflow", "workflow": workflow,
                          "inputs": inputs, "wait": waits});
        map("{{inputs.l}}", &step)
    };
    let middle = near.workflow("l1", &run(&leaf, json!({})));
    let top = near.workflow("l2", &run(&middle, json!({"l": "{{inputs.l}}"})));
    let root = near.trigger(&top, &json!({"l": numbers(10_000)}));
    near.look();
    let took = near.cancel(&root);
    println!("{attack}: the cancel of the root took {took} ms, with {} left", near.unfinished());
    let most = u128::from(count_from("ORRERY_ABUSE_NEIGHBOR_MS", 15_000));
    assert!(took <= most, "{attack}: the cancel took {took} ms");
    eventually("the growth stops", || {
        let before = near.unfinished();
        std::thread::sleep(GRACE);
        (near.unfinished() <= before).then_some(())
    });
    near.assert_well(attack);
}

#[test]
fn tree_of_waiting_workflows_starves_no_neighbor() {
    tree_of_workflows(true, "a tree of workflows that wait");
}

#[test]
fn tree_of_detached_workflows_starves_no_neighbor() {
    tree_of_workflows(false, "a tree of workflows that do not wait");
}

/// Four workflows, three of which run the next one in each of 100 parallel branches.
#[test]
fn tree_of_parallel_branches_starves_no_neighbor() {
    let near = Neighborhood::text();
    let mut last = near.workflow("p0", &json!([{"step_id": "a", "type": "pass", "result": 1}]));
    for level in 1..=4 {
        let branch = |n: usize| {
            let step = json!({"step_id": format!("c{n}"), "type": "workflow", "workflow": last,
                              "inputs": {}, "wait": false});
            json!({ "steps": [step] })
        };
        let branches: Vec<_> = (0..100).map(branch).collect();
        let steps = json!([{"step_id": "all", "type": "parallel", "branches": branches}]);
        last = near.workflow(&format!("p{level}"), &steps);
    }
    let root = near.trigger(&last, &json!({}));
    near.look();
    let took = near.cancel(&root);
    println!("parallel branches: the cancel of the root took {took} ms");
    near.assert_well("a tree of parallel branches");
}

/// Each item of a map builds a result of 2 MB.
#[test]
fn large_results_of_maps_starve_no_neighbor() {
    let near = Neighborhood::text();
    let pass = json!({"step_id": "a", "type": "pass", "result": vec!["{{inputs.l}}"; 500]});
    let steps = json!([{"step_id": "m", "type": "map", "items": numbers(1000),
                        "max_concurrency": 100, "steps": [pass]}]);
    let workflow = near.workflow("results", &steps);
    let started: Vec<_> =
        (0..12).map(|_| near.trigger(&workflow, &json!({"l": numbers(1000)}))).collect();
    near.look();
    let took = near.cancel(&started[0]);
    println!("large results: a cancel took {took} ms");
    near.assert_well("maps with large results");
}

#[test]
fn hanging_steps_leave_descriptors_to_neighbor() {
    const DESCRIPTORS: u32 = 1024;
    let near = Neighborhood::new(&MODELS[..1], |setup| setup.with_descriptors(DESCRIPTORS));
    let deaf = Deaf::start();
    let step = json!({"step_id": "a", "type": "http", "url": deaf.url(), "timeout_seconds": 300});
    let inner = json!({"step_id": "inner", "type": "map", "items": "{{inputs.l}}",
                       "item_name": "one", "max_concurrency": 100, "steps": [step]});
    let workflow = near.workflow("hang", &map("{{inputs.l}}", &inner));
    near.trigger(&workflow, &json!({"l": numbers(100)}));
    near.look();
    let held = deaf.connections();
    println!("steps that hang: {held} connections with {DESCRIPTORS} descriptors");
    assert!(held < 256, "{held} connections with {DESCRIPTORS} descriptors");
    near.assert_well("10,000 steps that hang");
}

/// Executions that hang occupy all of the service's slots.
#[test]
fn executions_that_hang_leave_places_to_the_neighbor() {
    const OWN: usize = 4;
    let near = Neighborhood::with("[engine]\nactive = 32\n", &MODELS[..1], |setup| setup);
    let [hangs, other] = [(); 2].map(|()| Deaf::start());
    let step =
        |url: String| json!({"step_id": "a", "type": "http", "url": url, "timeout_seconds": 300});
    for name in ["hang-1", "hang-2", "hang-3"] {
        let workflow = near.workflow(name, &json!([step(hangs.url())]));
        for _ in 0..20 {
            near.trigger(&workflow, &json!({}));
        }
    }
    eventually("all places are taken", || (hangs.connections() >= 32).then_some(()));
    let mut client = near.target.setup.client(&near.key);
    let definition = json!({"steps": [step(other.url())]});
    let body = json!({"name": "own", "description": "x", "definition": definition});
    let made = client.post("/v1/workflows", &[], &body.to_string()).unwrap();
    let path = format!("/v1/workflows/{}/trigger", made.json()["workflow_id"].as_str().unwrap());
    for _ in 0..OWN {
        let made = client.post(&path, &[], "{}").unwrap();
        assert_eq!(made.status(), 202, "{}", made.text());
    }
    eventually("the neighbor's run", || (other.connections() >= OWN).then_some(()));
    drop((hangs, other));
    near.assert_well("60 executions that hang");
}

#[test]
fn slow_templates_starve_no_builtin_model_of_neighbor() {
    const TEMPLATE: &str = "{% set v=range(100000)|list %}{% for a in range(60000) %}\
                            {% if \"zz\" in v %}{% endif %}{% endfor %}";
    let near = Neighborhood::new(&MODELS, |setup| setup);
    let body = json!({"model": "text-template", "version": "1", "input": {"template": TEMPLATE}});
    for _ in 0..200 {
        let made = near.target.client().post("/v1/prediction", &[], &body.to_string()).unwrap();
        assert_eq!(made.status(), 200, "{}", made.text());
    }
    near.look();
    near.assert_well("200 templates of ten seconds each");
}

#[test]
fn large_hanging_requests_use_bounded_memory() {
    let near = Neighborhood::text();
    let deaf = Deaf::start();
    let step = json!({"step_id": "a", "type": "http", "url": deaf.url(), "method": "POST",
                      "body": "{{inputs.x}}", "timeout_seconds": 300});
    let workflow = near.workflow("large", &json!([step]));
    let large = json!({"x": "x".repeat(7 * 1024 * 1024 + 900 * 1024)});
    for _ in 0..60 {
        near.trigger(&workflow, &large);
    }
    near.look();
    println!("large requests that hang: {} connections", deaf.connections());
    near.assert_well("60 requests of 7.9 MiB that hang");
}

/// A small input that is expanded by every step.
#[test]
fn repeated_references_use_bounded_memory() {
    let near = Neighborhood::text();
    let deaf = Deaf::start();
    let step = json!({"step_id": "a", "type": "http", "url": deaf.url(), "method": "POST",
                      "body": "{{inputs.x}}".repeat(2000), "timeout_seconds": 300});
    let workflow = near.workflow("repeated", &json!([step]));
    for _ in 0..100 {
        near.trigger(&workflow, &json!({"x": "x".repeat(4000)}));
    }
    near.look();
    println!("repeated references: {} connections", deaf.connections());
    near.assert_well("100 inputs of 8 MB made of 4 KB");
}

#[test]
fn maps_of_hanging_requests_use_bounded_memory() {
    let near = Neighborhood::text();
    let deaf = Deaf::start();
    let step = json!({"step_id": "a", "type": "http", "url": deaf.url(), "timeout_seconds": 300});
    let workflow = near.workflow("maps", &map("{{inputs.l}}", &step));
    for _ in 0..300 {
        near.trigger(&workflow, &json!({"l": numbers(10_000)}));
    }
    near.look();
    near.assert_well("300 maps of 10,000 requests that hang");
}

/// Runs a map of requests to a server that returns this response.
fn large_answers(text: String, attack: &str) {
    let near = Neighborhood::text();
    let server = Server::start(move |_request| (200, text.clone()));
    let step =
        json!({"step_id": "a", "type": "http", "url": server.url("/"), "timeout_seconds": 300});
    let workflow = near.workflow("answers", &map("{{inputs.l}}", &step));
    for _ in 0..3 {
        near.trigger(&workflow, &json!({"l": numbers(20)}));
    }
    near.look();
    near.assert_well(attack);
}

#[test]
fn responses_of_many_values_use_bounded_memory() {
    large_answers(format!("[{}0]", "0,".repeat(4_900_000)), "answers of 4,900,000 values");
    large_answers(format!("[{}0]", "0,".repeat(900_000)), "answers of 900,000 values");
}

#[test]
fn responses_of_long_texts_use_bounded_memory() {
    large_answers(json!("x".repeat(9_900_000)).to_string(), "answers of 9.9 MB");
}

#[test]
fn events_of_many_endpoints_are_stored_once() {
    const ENDPOINTS: usize = 50;
    const RUNS: u64 = 5;
    let near = Neighborhood::text();
    let deaf = Deaf::start();
    let mut client = near.target.client();
    for n in 0..ENDPOINTS {
        let body = json!({"url": format!("{}{n}", deaf.url()), "name": format!("e{n}")});
        let made = client.post("/v1/webhook-endpoints", &[], &body.to_string()).unwrap();
        assert_eq!(made.status(), 201, "{}", made.text());
    }
    let before = near.disk_mib();
    // Only incompressible data uses up the memory budget.
    let large = noise(1, 1024 * 1024);
    let input = json!({"template": "{{ a }}{{ a }}{{ a }}{{ a }}", "values": {"a": large}});
    let body = json!({"model": "text-template", "version": "1", "input": input}).to_string();
    for _ in 0..RUNS {
        let made = client.post("/v1/prediction", &[], &body).unwrap();
        assert_eq!(made.status(), 200, "{}", made.text());
    }
    near.look();
    let written = near.disk_mib() - before;
    println!("{ENDPOINTS} endpoints: {written} MiB written for {RUNS} results of 4 MiB");
    assert!(written <= RUNS * 4 * 6, "{written} MiB for {RUNS} results of 4 MiB");
    near.assert_well("50 webhook endpoints");
}
