//! Tests pauses on the real executor: running steps finish; no new step starts, not even after a
//! restart; and paused time does not count toward timeouts.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::simulation_tests::{ORGANIZATION, PATIENCE, Process, rows as all_rows, runtime, until};
use crate::workflow_tests::{Case, case, model, none_is_left, script, submission};
use crate::{Error, Options, rows};
use orrery_domain::execution::{Execution, Status};
use orrery_domain::ids::ExecutionId;
use orrery_domain::step;
use orrery_storage::{Commit, Table};

fn options() -> Options {
    Options { suspend_after: Duration::from_millis(20), ..Options::default() }
}

async fn start(folder: &TempDir, cases: &[Case]) -> Process {
    let process = Process::start_with(folder, i64::MAX, script(cases), options());
    process.engine.recover().await.unwrap();
    process
}

async fn submit(process: &Process, number: usize, case: &Case) -> ExecutionId {
    let submissions = vec![submission(number, case)];
    process.engine.submit(submissions, Commit::new()).await.unwrap()[0].id
}

async fn pause(process: &Process, id: ExecutionId) -> Execution {
    process.engine.pause_execution(ORGANIZATION.into(), id, "a test".to_owned()).await.unwrap()
}

async fn resume(process: &Process, id: ExecutionId) -> Execution {
    process.engine.resume_execution(ORGANIZATION.into(), id).await.unwrap()
}

async fn detail(process: &Process, id: ExecutionId) -> Value {
    json!(process.engine.detail(ORGANIZATION.into(), id).await.unwrap().view)
}

/// Waits until the execution is suspended and no longer in a lane.
async fn until_suspended(process: &Process, id: ExecutionId) {
    let polling = async {
        loop {
            let stored = process.engine.get(ORGANIZATION.into(), id).await.unwrap();
            if stored.workflow().unwrap().aside_until.is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, polling).await.unwrap();
    none_is_left(process, Table::Lane).await;
}

async fn end(process: &Process, id: ExecutionId) -> Execution {
    process.engine.wait(ORGANIZATION.into(), id, PATIENCE).await.unwrap()
}

async fn stop(process: Process) {
    process.engine.inner.tasks.stop();
    process.store.clone().close().await;
}

#[test]
fn pause_lets_runs_finish_and_survives_restart() {
    let steps =
        json!([model("a", "slow", json!(1)), model("b", "same", json!("{{a.output.echo}}"))]);
    let cases = [case("two", steps, json!({}), Ok(json!(1)))];
    let folder = tempfile::tempdir().unwrap();
    let id = runtime().block_on(async {
        let process = start(&folder, &cases).await;
        let id = submit(&process, 0, &cases[0]).await;
        until(|| process.script.calls.lock().unwrap().len() == 1).await;
        let paused = pause(&process, id).await;
        assert!(paused.paused().is_some());
        assert_eq!(pause(&process, id).await, paused, "a second pause changes nothing");
        until_suspended(&process, id).await;
        let shown = detail(&process, id).await;
        assert_eq!(shown["step_outputs"]["a"]["status"], "completed");
        assert_eq!(shown["step_outputs"]["b"]["status"], "queued");
        assert_eq!(
            (&shown["status"], &shown["waiting_for"][0]["by"]),
            (&json!("running"), &json!("a test"))
        );
        stop(process).await;
        id
    });
    runtime().block_on(async {
        let process = start(&folder, &cases).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(process.script.calls.lock().unwrap().is_empty());
        assert!(resume(&process, id).await.paused().is_none());
        assert!(resume(&process, id).await.paused().is_none());
        assert_eq!(end(&process, id).await.status, Status::Success);
        assert_eq!(process.script.calls.lock().unwrap().len(), 1, "b alone");
        let refused = process.engine.pause_execution(ORGANIZATION.into(), id, String::new()).await;
        assert!(matches!(refused, Err(Error::AlreadyEnded("completed"))));
        none_is_left(&process, Table::Timer).await;
        stop(process).await;
    });
}

#[test]
fn pause_keeps_queued_execution_from_starting_until_resume_or_cancel() {
    let cases = [
        case("long", json!([model("a", "stuck", json!(1))]), json!({}), Ok(json!(1))),
        case("short", json!([model("a", "same", json!(1))]), json!({}), Ok(json!(1))),
    ];
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, script(&cases), options());
        // Both executions are paused before anything runs.
        let one = submit(&process, 1, &cases[1]).await;
        let other = submit(&process, 1, &cases[1]).await;
        pause(&process, one).await;
        pause(&process, other).await;
        process.engine.recover().await.unwrap();
        let after = submit(&process, 1, &cases[1]).await;
        assert_eq!(end(&process, after).await.status, Status::Success);
        let shown = detail(&process, one).await;
        assert_eq!(
            (&shown["status"], &shown["waiting_for"][0]["reason"]),
            (&json!("queued"), &json!("paused"))
        );
        resume(&process, one).await;
        assert_eq!(end(&process, one).await.status, Status::Success);
        process.engine.cancel(ORGANIZATION.into(), other).await.unwrap();
        assert_eq!(end(&process, other).await.status, Status::Cancelled);
        assert!(all_rows(&process.store, Table::Lane).await.is_empty());
        none_is_left(&process, Table::Timer).await;
        stop(process).await;
    });
}

#[test]
fn pause_does_not_count_towards_timeouts() {
    let wait =
        json!({"step_id": "w", "type": "wait", "event": {"name": "e", "timeout_seconds": 0.2}});
    let limited = json!([{"step_id": "p", "type": "parallel", "timeout_seconds": 0.3,
        "branches": [{"steps": [wait]}]}]);
    let cases = [case("limited", limited, json!({}), Ok(json!(1)))];
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = start(&folder, &cases).await;
        let id = submit(&process, 0, &cases[0]).await;
        until_suspended(&process, id).await;
        pause(&process, id).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        // The event is stored for the step.
        let payload = serde_json::value::to_raw_value(&7).unwrap();
        let source = step::EventSource::Api;
        let sent =
            process.engine.send_event(ORGANIZATION.into(), id, "e".to_owned(), payload, source);
        sent.await.unwrap();
        assert!(!process.engine.get(ORGANIZATION.into(), id).await.unwrap().status.is_final());
        resume(&process, id).await;
        let ended = end(&process, id).await;
        assert_eq!(ended.status, Status::Success, "{ended:?}");
        stop(process).await;
    });
}

#[test]
fn pause_of_exhausted_step_waits_for_resume_and_retries() {
    let mut flaky = model("a", "flaky", json!(1));
    flaky["on_exhausted"] = json!("pause");
    let cases = [case("flaky", json!([flaky]), json!({}), Ok(json!(1)))];
    let folder = tempfile::tempdir().unwrap();
    let id = runtime().block_on(async {
        let process = start(&folder, &cases).await;
        let id = submit(&process, 0, &cases[0]).await;
        until_suspended(&process, id).await;
        let by = detail(&process, id).await["waiting_for"][0]["by"].clone();
        assert_eq!(by, "step 'a': not yet");
        resume(&process, id).await;
        let attempts = async || {
            let at = step::Instance::of(orrery_domain::definition::StepIndex::new(0));
            let step: step::Step = process.store.read(&rows::step(id, &at)).await.unwrap().unwrap();
            step.attempts.len()
        };
        while attempts().await < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        until_suspended(&process, id).await;
        stop(process).await;
        id
    });
    runtime().block_on(async {
        let process = start(&folder, &cases).await;
        resume(&process, id).await;
        let ended = end(&process, id).await;
        assert_eq!(ended.status, Status::Success, "the third attempt");
        stop(process).await;
    });
}

/// If an execution is paused and resumed while its task starts, it runs again, and nothing fails.
#[test]
fn pause_and_resume_at_start_leave_no_retry() {
    let cases = [case("short", json!([model("a", "same", json!(1))]), json!({}), Ok(json!(1)))];
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = start(&folder, &cases).await;
        let all = futures_util::future::join_all((0..150).map(|_| async {
            let id = submit(&process, 0, &cases[0]).await;
            let by = "a test".to_owned();
            // Each call returns an error if the execution has already ended.
            let _paused = process.engine.pause_execution(ORGANIZATION.into(), id, by).await;
            let _resumed = process.engine.resume_execution(ORGANIZATION.into(), id).await;
            id
        }));
        let ids = all.await;
        assert_eq!(process.engine.retrying(), 0);
        for id in ids {
            assert_eq!(end(&process, id).await.status, Status::Success);
            assert_eq!(process.engine.retrying(), 0);
        }
        stop(process).await;
    });
}
