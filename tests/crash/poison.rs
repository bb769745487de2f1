//! Work that crashes the process: an inference server sends SIGABRT to the service whenever the
//! service calls it for a certain prediction. Also kills that no execution causes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::server::Server;
use crate::support::service::{Service, Setup};
use crate::support::{eventually, signal};

/// Maximum number of kills; isolation needs fewer.
const KILLS_MAX: u32 = 10;
const INNOCENTS: usize = 8;

/// Aborts the process with this id, if any, and waits for its exit: other threads keep running
/// until the abort handler has written its note.
fn kill(pid: &AtomicU32) {
    let pid = pid.swap(0, Ordering::SeqCst);
    if pid != 0 {
        assert!(signal(pid, Signal::ABORT));
        eventually("the process is dead", || {
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let is_alive = state.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"));
            (!is_alive).then_some(())
        });
    }
}

/// Starts the service and lets the server kill it from now on. The service may die before it is
/// ready.
fn start(setup: &Setup, pid: &AtomicU32) -> Service {
    let service = setup.spawn();
    pid.store(service.pid(), Ordering::SeqCst);
    service
}

/// Waits until the service is ready; returns false if it was killed first.
fn is_up(service: &mut Service) -> bool {
    eventually("the service is ready or dead", || match service.ended() {
        Some(_killed) => Some(false),
        None => service.is_ready().then_some(true),
    })
}

/// Starts the models `one` and `two`: an input with the mark `poison` kills the service, and `hold`
/// keeps the request open until all requests are acknowledged. Counts the calls of both.
fn start_models(pid: &Arc<AtomicU32>, calls: &Arc<AtomicU32>, taken: &Arc<AtomicBool>) -> Server {
    let target = Arc::clone(pid);
    let called = Arc::clone(calls);
    let taken = Arc::clone(taken);
    Server::start(move |request| {
        let input = request.json();
        if input["mark"] == json!("hold") {
            called.fetch_add(1, Ordering::SeqCst);
            let held = || (!taken.load(Ordering::SeqCst)).then_some(());
            eventually("the held one is let go", held);
        }
        if input["mark"] == json!("poison") {
            eventually("the create is answered", || taken.load(Ordering::SeqCst).then_some(()));
            called.fetch_add(1, Ordering::SeqCst);
            kill(&target);
        }
        (200, json!({"echo": input["mark"]}).to_string())
    })
}

pub(crate) fn isolated(folder: &Path) {
    let pid = Arc::new(AtomicU32::new(0));
    let kills = Arc::new(AtomicU32::new(0));
    let acknowledged = Arc::new(AtomicBool::new(false));
    let models = start_models(&pid, &kills, &acknowledged);
    let setup = Setup::new(folder, &folder.join("data"), "");
    for slug in ["one", "two"] {
        let url = models.url("/");
        let manifest = format!(
            "slug = \"{slug}\"\noutput_type = \"string\"\nconcurrency = 2\n\
             [request_schema]\ntype = \"object\"\n\
             [runner]\ntype = \"http\"\nurl = \"{url}\"\noutput = \"/echo\"\n"
        );
        setup.add_model(slug, &manifest);
    }
    let mut service = setup.start();
    let key = setup.create_key();
    let create = |model: &str, mark: &str| -> Option<String> {
        let body = json!({"model": model, "version": "0.0.1", "input": {"mark": mark}});
        let answer = setup.client(&key).post("/v1/prediction", &[], &body.to_string()).ok()?;
        Some(answer.json()["predictionID"].as_str()?.to_owned())
    };
    pid.store(service.pid(), Ordering::SeqCst);
    let poison = create("one", "poison").unwrap();
    acknowledged.store(true, Ordering::SeqCst);
    eventually("the first kill", || service.ended());
    let listed = unfinished(&setup);
    let shown = (&listed[0]["id"], &listed[0]["crashes"], listed.len());
    assert_eq!(shown, (&json!(poison), &json!(1), 1), "{listed:?}");
    let mut innocents = Vec::new();
    while kills.load(Ordering::SeqCst) < KILLS_MAX {
        service = start(&setup, &pid);
        if !is_up(&mut service) {
            continue;
        }
        while innocents.len() < INNOCENTS {
            let model = if innocents.len().is_multiple_of(2) { "one" } else { "two" };
            let Some(id) = create(model, "good") else { break };
            innocents.push(id);
        }
        let ended = eventually("an end or a death", || {
            if service.ended().is_some() {
                return Some(None);
            }
            let shown = setup.client(&key).get(&format!("/v1/prediction/{poison}")).ok()?.json();
            (shown["status"] == "error").then_some(Some(shown))
        });
        if let Some(shown) = ended {
            check(&shown);
            for id in &innocents {
                let path = format!("/v1/prediction/{id}?wait=30");
                let shown: Value = setup.client(&key).get(&path).unwrap().json();
                assert_eq!(shown["status"], "success", "{shown}");
            }
            assert_eq!(innocents.len(), INNOCENTS);
            // The service crashed twice, and once more while the prediction ran alone, unless the
            // machine was too busy to make that call in time.
            assert!(kills.load(Ordering::SeqCst) >= 3);
            let held = create("two", "hold").unwrap();
            eventually("it runs", || {
                let shown = setup.client(&key).get(&format!("/v1/prediction/{held}")).ok()?.json();
                (shown["status"] == "processing").then_some(())
            });
            service.kill();
            cancelled_while_stopped(&setup, &key, &held);
            acknowledged.store(false, Ordering::SeqCst);
            return;
        }
    }
    panic!("the service does not come back");
}

/// Number of kills while one prediction is running.
const OUTSIDE_KILLS: usize = 6;

pub(crate) fn killed(folder: &Path) {
    let pid = Arc::new(AtomicU32::new(0));
    let calls = Arc::new(AtomicU32::new(0));
    let is_held = Arc::new(AtomicBool::new(true));
    let models = start_models(&pid, &calls, &is_held);
    let setup = Setup::new(folder, &folder.join("data"), "");
    setup.add_model(
        "one",
        &format!(
            "slug = \"one\"\noutput_type = \"string\"\nconcurrency = 4\n[request_schema]\n\
             type = \"object\"\n[runner]\ntype = \"http\"\nurl = \"{}\"\noutput = \"/echo\"\n",
            models.url("/")
        ),
    );
    let mut service = setup.start();
    let key = setup.create_key();
    setup.run(&["org", "create", "--name", "other"]);
    let other = setup.run(&["key", "create", "--name", "other", "--org", "other"]);
    let other = other.trim().to_owned();
    let create = |key: &str, mark: &str| {
        let body = json!({"model": "one", "version": "0.0.1", "input": {"mark": mark}});
        let answer = setup.client(key).post("/v1/prediction", &[], &body.to_string()).unwrap();
        answer.json()["predictionID"].as_str().unwrap().to_owned()
    };
    let shown = |key: &str, id: &str, wait: u32| {
        setup.client(key).get(&format!("/v1/prediction/{id}?wait={wait}")).unwrap().json()
    };
    let held = create(&key, "hold");
    // The stored status becomes `processing` earlier, so only the call of the model shows that the
    // prediction is running.
    let runs = |starts: usize| {
        eventually("it runs", || (calls.load(Ordering::SeqCst) as usize >= starts).then_some(()));
    };
    let crashes = || unfinished(&setup)[0]["crashes"].clone();
    // Only the crashes in the first rounds leave evidence.
    for round in 0..2 + OUTSIDE_KILLS {
        runs(round + 1);
        let fatal = if round < 2 { Signal::ABORT } else { Signal::KILL };
        assert!(signal(service.pid(), fatal));
        eventually("the process dies", || service.ended());
        assert_eq!(crashes(), json!(2.min(round + 1)), "round {round}");
        service = setup.start();
    }
    // The prediction runs as a suspect, and other predictions start in parallel.
    runs(2 + OUTSIDE_KILLS + 1);
    let beside = create(&other, "good");
    assert_eq!(shown(&other, &beside, 30)["status"], "success");
    assert_eq!(shown(&key, &held, 0)["status"], "processing");
    is_held.store(false, Ordering::SeqCst);
    assert_eq!(shown(&key, &held, 30)["status"], "success");
    drop(service);
}

/// Returns the unfinished executions that the command line lists, even if the service is stopped.
fn unfinished(setup: &Setup) -> Vec<Value> {
    let text = setup.run(&["execution", "list", "--unfinished", "--json"]);
    let listed: Value = serde_json::from_str(&text).unwrap();
    listed["executions"].as_array().unwrap().clone()
}

fn cancelled_while_stopped(setup: &Setup, key: &str, id: &str) {
    assert_eq!(unfinished(setup).len(), 1);
    setup.run(&["execution", "cancel", id]);
    assert_eq!(unfinished(setup).len(), 0);
    let shown: Value = serde_json::from_str(&setup.run(&["execution", "show", id])).unwrap();
    assert_eq!(shown["status"], "cancelled");
    let _service = setup.start();
    let shown = setup.client(key).get(&format!("/v1/prediction/{id}")).unwrap().json();
    assert_eq!(shown["status"], "cancelled");
    let refused = setup.fail(&["execution", "cancel", "0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e"]);
    assert!(refused.contains("execution not found"), "{refused}");
}

fn check(shown: &Value) {
    assert_eq!(shown["error_classification"], "internal_error", "{shown}");
    let attempts = shown["attempts"].as_array().unwrap();
    assert_eq!((attempts.len(), &attempts[0]["status"]), (1, &json!("error")), "{shown}");
    let error = shown["error"].as_str().unwrap();
    assert!(error.contains("crashed three times"), "{error}");
}
