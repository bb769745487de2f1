//! A bulk job redrives a thousand failed executions while clients create others, in parallel with a
//! second job, which is cancelled. The service is killed in the middle. Each execution must be
//! redriven once, and progress must never decrease.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::leftovers::{check_none, detail, history, workflow};
use crate::support::http::Client;
use crate::support::random::Random;
use crate::support::service::Setup;
use crate::support::{count_from, eventually};

/// Executions per request to the older host.
const TOGETHER: u64 = 100;
/// One execution in this many belongs to the job that is cancelled.
const CANCELLED_PART: u64 = 4;

/// Creates this many executions of a workflow that fails immediately; returns the workflow and the
/// executions.
fn failed(setup: &Setup, key: &str, name: &str, count: u64) -> (String, HashSet<String>) {
    let mut client = setup.client(key);
    let steps = json!([{"step_id": "p", "type": "pass", "result": "{{inputs.nothing}}"}]);
    let workflow = workflow(&mut client, name, &steps);
    let mut flows = setup.flows(key);
    let mut ids = HashSet::new();
    let body = json!({ "parameters": vec![json!({}); usize::try_from(TOGETHER).unwrap()] });
    for _ in 0..count / TOGETHER {
        let path = format!("/api/v2/{workflow}/bulk");
        let taken = eventually("room in the queue", || {
            let taken = flows.post(&path, &[], &body.to_string()).unwrap();
            (taken.status() != 429).then_some(taken)
        });
        assert_eq!(taken.status(), 200, "{}", taken.text());
        let taken = taken.json();
        let found = taken["execution_ids"].as_array().unwrap().iter();
        ids.extend(found.map(|id| id.as_str().unwrap().to_owned()));
    }
    let path = format!("/v1/workflows/{workflow}/executions?status=failed&limit=1");
    eventually("all fail", || {
        (client.get(&path).unwrap().json()["total_count"] == count).then_some(())
    });
    (workflow, ids)
}

/// Starts a job that redrives the failed executions of a workflow; returns its path.
fn start(client: &mut Client, workflow: &str) -> String {
    let filter = json!({"status": "failed", "workflow_id": workflow});
    let body = json!({"action": "redrive", "filter": filter}).to_string();
    let made = client.post("/v1/workflows/executions/bulk", &[], &body).unwrap();
    assert_eq!(made.status(), 202, "{}", made.text());
    format!("/v1/workflows/executions/bulk/{}", made.json()["job_id"].as_str().unwrap())
}

/// A job with monitored progress.
struct Watched {
    path: String,
    done: u64,
}

impl Watched {
    /// Returns the job's current state; fails if progress has decreased, even across kills.
    fn look(&mut self, client: &mut Client) -> Value {
        let job = client.get(&self.path).unwrap();
        assert_eq!(job.status(), 200, "{}", job.text());
        let job = job.json();
        let done = job["done"].as_u64().unwrap();
        assert!(done >= self.done && job["failed"] == 0, "{} were done: {job}", self.done);
        assert!(job["total"].is_null() || done <= job["total"].as_u64().unwrap(), "{job}");
        self.done = done;
        job
    }

    fn wait_for(&mut self, client: &mut Client, done: u64) {
        eventually("the job goes on", || {
            (self.look(client)["done"].as_u64()? >= done).then_some(())
        });
    }
}

/// Returns the original executions that were redriven; fails if an execution was redriven twice or
/// is unknown.
fn redriven(client: &mut Client, workflow: &str, originals: &HashSet<String>) -> HashSet<String> {
    let rows = history(client, &format!("type=workflow&workflow_id={workflow}"));
    let mut found = HashSet::new();
    for row in rows {
        let id = row["id"].as_str().unwrap();
        if originals.contains(id) {
            continue;
        }
        let detail = detail(client, id);
        let from = detail["redriven_from"].as_str().unwrap().to_owned();
        assert!(originals.contains(&from), "{detail}");
        assert_eq!(detail["status"], "failed", "{detail}");
        assert!(found.insert(from), "it was redriven twice: {detail}");
    }
    found
}

/// Creates predictions and executions until `is_over`; counts the accepted ones.
fn load(setup: &Setup, key: &str, workflow: &str, is_over: &AtomicBool, taken: &AtomicU64) {
    let trigger = format!("/v1/workflows/{workflow}/trigger");
    let prediction =
        json!({"model": "text-template", "version": "1", "input": {"template": "x"}}).to_string();
    let mut client = setup.client(key);
    while !is_over.load(Ordering::SeqCst) {
        for (path, body) in [("/v1/prediction", &*prediction), (&*trigger, "{}")] {
            match client.post(path, &[], body) {
                Ok(answer) if [200, 202].contains(&answer.status()) => {
                    taken.fetch_add(1, Ordering::SeqCst);
                }
                Ok(answer) => assert!([429, 503].contains(&answer.status()), "{}", answer.text()),
                Err(_broken) => std::thread::yield_now(),
            }
        }
    }
}

#[test]
fn bulk_redrive_killed_under_load_redrives_each_once() {
    let count = u64::from(count_from("ORRERY_CRASH_REDRIVES", 1000)).next_multiple_of(TOGETHER);
    let fewer = (count / CANCELLED_PART).next_multiple_of(TOGETHER);
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let mut service = setup.start();
    let key = setup.create_key();
    let (all, originals) = failed(&setup, &key, "all", count);
    let (some, some_originals) = failed(&setup, &key, "some", fewer);
    let mut client = setup.client(&key);
    let steps = json!([{"step_id": "p", "type": "pass", "result": 1}]);
    let beside = workflow(&mut client, "beside", &steps);
    let (is_over, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let cancelled = std::thread::scope(|scope| {
        scope.spawn(|| load(&setup, &key, &beside, &is_over, &taken));
        let mut whole = Watched { path: start(&mut client, &all), done: 0 };
        let mut part = Watched { path: start(&mut client, &some), done: 0 };
        whole.wait_for(&mut client, random.within(1..fewer / 2));
        service.kill_and_keep();
        service = setup.start();
        client = setup.client(&key);
        whole.look(&mut client);
        part.wait_for(&mut client, random.within(1..fewer / 2));
        let answer = client.post(&format!("{}/cancel", part.path), &[], "{}").unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let cancelled = part.look(&mut client);
        assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
        whole.wait_for(&mut client, random.within(count / 2..count));
        service.kill_and_keep();
        service = setup.start();
        client = setup.client(&key);
        let end = eventually("the job ends", || {
            let job = whole.look(&mut client);
            (job["status"] != "running").then_some(job)
        });
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(
            (&end["status"], &end["total"], &end["done"]),
            (&json!("completed"), &json!(count), &json!(count)),
            "{end}"
        );
        assert_eq!(part.look(&mut client), cancelled, "a cancelled job went on");
        cancelled["done"].as_u64().unwrap()
    });
    eventually("nothing runs", || (setup.unfinished() == Some(0.0)).then_some(()));
    assert!(redriven(&mut client, &all, &originals) == originals, "some were not redriven");
    let part = redriven(&mut client, &some, &some_originals);
    assert_eq!(part.len() as u64, cancelled);
    assert!(cancelled < fewer && taken.load(Ordering::SeqCst) > 0);
    check_none(&setup, service);
    println!(
        "{count} redriven once each, {cancelled} of {fewer} by a job that was cancelled, {} created beside them",
        taken.load(Ordering::SeqCst)
    );
}
