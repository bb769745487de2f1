//! Tests crashes with executions in flight: which of these executions are quarantined, run alone,
//! or fail.

use serde_json::json;
use serde_json::value::to_raw_value;
use tempfile::TempDir;

use super::*;
use crate::simulation_tests::{
    ORGANIZATION, PATIENCE, Process, Script, check_books, runtime, until,
};
use crate::workflow_tests::{self, case, model};
use crate::{Options, Submission};
use orrery_domain::execution::{Candidate, Prediction, Source, Status};
use orrery_domain::ids::KeyId;
use orrery_domain::money::Usd;
use orrery_runtime::crash_note::{Note, Origin};
use orrery_runtime::new_id;

fn submission(model: &str) -> Submission {
    Submission {
        id: new_id(),
        organization: ORGANIZATION.into(),
        key: KeyId::from([2; 16]),
        source: Source::Api,
        work: Work::Prediction(Prediction::new("1".to_owned(), vec![Candidate::new(model)])),
        input: to_raw_value(&json!({"n": 1})).unwrap(),
        webhook: None,
        origin: None,
    }
}

async fn submit(process: &Process, model: &str) -> ExecutionId {
    let made = process.engine.submit(vec![submission(model)], Commit::new()).await.unwrap();
    made[0].id
}

/// Waits until `count` model calls have begun, and returns the executions of all calls.
async fn called(process: &Process, count: usize) -> Vec<ExecutionId> {
    until(|| process.script.calls.lock().unwrap().len() >= count).await;
    let calls = process.script.calls.lock().unwrap().clone();
    calls.iter().map(|call| call.split_once(':').unwrap().0.parse().unwrap()).collect()
}

/// A crash caused by the process itself.
const FAULT: Option<Note> = Some(Note { signal: 11, origin: Origin::Itself });

/// One lifetime of the process. The lifetime ends with a crash, or with an orderly stop if `live`
/// closes the record.
fn life<T>(folder: &TempDir, live: impl AsyncFnOnce(&Process) -> T) -> T {
    life_of(folder, Script::default(), live)
}

/// [`life`] with workflows.
fn life_of<T>(folder: &TempDir, script: Script, live: impl AsyncFnOnce(&Process) -> T) -> T {
    life_until(folder, script, FAULT, live)
}

/// [`life_of`], ending with the given note of a fatal signal.
fn life_until<T>(
    folder: &TempDir,
    script: Script,
    note: Option<Note>,
    live: impl AsyncFnOnce(&Process) -> T,
) -> T {
    runtime().block_on(async {
        // This timeout is longer than any test needs to observe the isolation.
        let options = Options { active: 100, isolation: PATIENCE, ..Options::default() };
        let process = Process::start_with(folder, i64::MAX, script, options);
        process.engine.recover().await.unwrap();
        let lived = live(&process).await;
        process.engine.inner.isolation.in_flight.die(note);
        process.engine.inner.tasks.stop();
        process.store.clone().close().await;
        lived
    })
}

/// Waits until the execution has a description of what it waits for, and returns the description.
async fn reason_to_wait(process: &Process, id: ExecutionId) -> String {
    let wait = async {
        loop {
            if let Some(reason) = process.engine.waiting_for(&get(process, id).await) {
                return reason;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it has a reason to wait")
}

async fn get(process: &Process, id: ExecutionId) -> Execution {
    process.engine.get(ORGANIZATION.into(), id).await.unwrap()
}

#[test]
fn isolation_fails_execution_after_three_crashes() {
    let folder = tempfile::tempdir().unwrap();
    let (guilty, innocent) = life(&folder, async |process| {
        let ids = (submit(process, "endless").await, submit(process, "stalls").await);
        called(process, 2).await;
        ids
    });
    let waiting = life(&folder, async |process| {
        assert_eq!(process.engine.crashes(), [(guilty, 1), (innocent, 1)].into());
        called(process, 2).await;
        submit(process, "endless").await
    });
    life(&folder, async |process| {
        assert_eq!(process.engine.crashes(), [(guilty, 2), (innocent, 2)].into());
        // The service accepts work, but only the suspect runs.
        let other = submit(process, "works").await;
        assert_eq!(called(process, 1).await, [guilty]);
        let held = reason_to_wait(process, innocent).await;
        assert!(held.starts_with("held:"), "{held}");
        assert_eq!(get(process, other).await.status, Status::Created);
    });
    life(&folder, async |process| {
        let ended = get(process, guilty).await;
        assert_eq!(ended.status, Status::Error);
        let fault = ended.fault.as_ref().unwrap();
        assert_eq!(
            (fault.name.as_str(), fault.class),
            ("InternalError", ErrorClass::InternalError)
        );
        assert!(fault.cause.starts_with("the service crashed three times"), "{}", fault.cause);
        let attempts = &ended.prediction().unwrap().attempts;
        assert_eq!((attempts.len(), attempts[0].outcome), (1, Outcome::Error));
        // The other execution was not running at the last crash, but it is still quarantined and
        // runs alone.
        assert_eq!(called(process, 1).await, [innocent]);
        assert_eq!(get(process, waiting).await.status, Status::Created);
        process.engine.cancel(ORGANIZATION.into(), innocent).await.unwrap();
        let next = called(process, 3).await;
        assert!(next.contains(&waiting), "all others start: {next:?}");
        process.engine.cancel(ORGANIZATION.into(), waiting).await.unwrap();
        let all = crate::simulation_tests::executions(&process.store).await;
        for execution in &all {
            process.engine.wait(execution.organization, execution.id, PATIENCE).await.unwrap();
        }
        until(|| process.engine.totals() == (0, 0)).await;
        check_books(&process.store).await;
    });
}

/// A workflow whose first step has a cost and whose second step never ends.
fn costly() -> (Script, Submission) {
    let steps = json!([model("paid", "works", json!(1)), model("last", "endless", json!(2))]);
    let case = case("costly", steps, json!({}), Ok(json!(null)));
    (workflow_tests::script(std::slice::from_ref(&case)), workflow_tests::submission(0, &case))
}

/// Submits the workflow in a first lifetime, then crashes `crashes` times while the workflow and
/// the execution `beside` are running.
fn crash_with_costly(folder: &TempDir, crashes: u32, beside: Option<&str>) -> ExecutionId {
    let mut first: Vec<Submission> = beside.map(submission).into_iter().collect();
    let (script, costly) = costly();
    let id = costly.id;
    first.push(costly);
    for crash in 0..crashes {
        let script = Script { plans: script.plans.clone(), ..Script::default() };
        life_of(folder, script, async |process| {
            for submission in first.drain(..) {
                process.engine.submit(vec![submission], Commit::new()).await.unwrap();
            }
            let paid = usize::from(crash == 0);
            called(process, 1 + paid + usize::from(beside.is_some())).await;
        });
    }
    id
}

#[test]
fn isolation_keeps_cost_of_finished_steps() {
    let folder = tempfile::tempdir().unwrap();
    let id = crash_with_costly(&folder, 3, None);
    life_of(&folder, costly().0, async |process| {
        let ended = get(process, id).await;
        assert_eq!((ended.status, ended.cost), (Status::Error, Usd::from_micros(100)));
        check_books(&process.store).await;
    });
}

#[test]
fn isolation_cancel_of_quarantined_workflow_keeps_its_cost() {
    let folder = tempfile::tempdir().unwrap();
    let id = crash_with_costly(&folder, 2, Some("stalls"));
    life_of(&folder, costly().0, async |process| {
        called(process, 1).await;
        process.engine.cancel(ORGANIZATION.into(), id).await.unwrap();
        let ended = get(process, id).await;
        assert_eq!((ended.status, ended.cost), (Status::Cancelled, Usd::from_micros(100)));
    });
}

#[test]
fn isolation_quarantined_execution_can_be_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let ids = life(&folder, async |process| {
        let ids = [submit(process, "endless").await, submit(process, "stalls").await];
        called(process, 2).await;
        ids
    });
    life(&folder, async |process| drop(called(process, 2).await));
    life(&folder, async |process| {
        called(process, 1).await;
        for id in ids.iter().rev() {
            process.engine.cancel(ORGANIZATION.into(), *id).await.unwrap();
        }
        let after = submit(process, "works").await;
        let ended = process.engine.wait(ORGANIZATION.into(), after, PATIENCE).await.unwrap();
        assert_eq!(ended.status, Status::Success);
        // Wait until the permit is released, which happens after the outcome becomes visible.
        until(|| process.engine.totals() == (0, 0)).await;
        assert_eq!(called(process, 2).await.len(), 2, "the second never ran");
        check_books(&process.store).await;
    });
}

#[test]
fn isolation_ignores_orderly_stops() {
    let folder = tempfile::tempdir().unwrap();
    life(&folder, async |process| {
        submit(process, "endless").await;
        called(process, 1).await;
        process.engine.stopped();
    });
    for _ in 0..3 {
        life(&folder, async |process| {
            assert!(process.engine.crashes().is_empty());
            called(process, 1).await;
            process.engine.stopped();
        });
    }
}

#[test]
fn isolation_ignores_kills_without_evidence() {
    let folder = tempfile::tempdir().unwrap();
    let id = life_until(&folder, Script::default(), None, async |process| {
        let id = submit(process, "endless").await;
        called(process, 1).await;
        id
    });
    // Two crashes among several kills: the execution runs alone, and the kills do not count against
    // it.
    for (note, crashes) in [(None, 0), (FAULT, 0), (None, 1), (FAULT, 1), (None, 2), (None, 2)] {
        life_until(&folder, Script::default(), note, async |process| {
            let known = process.engine.crashes().get(&id).copied().unwrap_or(0);
            assert_eq!(known, crashes, "{note:?}");
            assert_eq!(called(process, 1).await, [id]);
        });
    }
    life(&folder, async |process| assert_eq!(called(process, 1).await, [id]));
    life(&folder, async |process| {
        assert_eq!(get(process, id).await.status, Status::Error, "the third crash, alone");
    });
}

#[test]
fn isolation_lets_others_start_and_still_finds_culprit() {
    let folder = tempfile::tempdir().unwrap();
    let id = life(&folder, async |process| {
        let id = submit(process, "endless").await;
        called(process, 1).await;
        id
    });
    life(&folder, async |process| drop(called(process, 1).await));
    let beside = runtime().block_on(async {
        let options =
            Options { active: 100, isolation: Duration::from_millis(1), ..Options::default() };
        let process = Process::start_with(&folder, i64::MAX, Script::default(), options);
        process.engine.recover().await.unwrap();
        let beside = submit(&process, "stalls").await;
        let running = called(&process, 2).await;
        assert!(running.contains(&id) && running.contains(&beside), "{running:?}");
        process.engine.inner.isolation.in_flight.die(FAULT);
        process.engine.inner.tasks.stop();
        process.store.clone().close().await;
        beside
    });
    life(&folder, async |process| {
        assert_eq!(get(process, id).await.status, Status::Error, "it alone ran at all three");
        assert_eq!(called(process, 1).await, [beside]);
    });
}

#[test]
fn isolation_weighs_crashes_by_their_evidence() {
    let run = |id: u8| Run::whole([1; 16].into(), [id; 16].into());
    let evidence = |id, deaths| Evidence {
        suspects: vec![Suspect { run: run(id), deaths, progress: 0 }],
        running: vec![run(id)],
    };
    let alone = [evidence(1, 2)];
    let beside_new = [evidence(1, 2), evidence(2, 1)];
    let beside_held = [evidence(1, 2), evidence(2, 2)];
    for (crash, expect) in [
        (Crash::Fault, [true, true, false]),
        (Crash::Signal, [true, false, false]),
        (Crash::OutOfMemory { growth: GROWTH_MIN }, [true, false, false]),
        (Crash::OutOfMemory { growth: GROWTH_MIN - 1 }, [false, false, false]),
    ] {
        let found = [&alone[..], &beside_new, &beside_held].map(|all| proves(crash, all.iter()));
        assert_eq!(found, expect, "{crash:?}");
    }
}

#[test]
fn isolation_counts_crashes_of_one_attempt_without_progress() {
    let run = |attempt| Run { attempt, ..Run::whole([1; 16].into(), [2; 16].into()) };
    let suspect = |attempt, deaths| Suspect { run: run(attempt), deaths, progress: 5 };
    let weighed = |suspects: &[Suspect], running: &[u32], progress, is_proof| {
        let running = running.iter().map(|attempt| run(*attempt)).collect();
        let evidence = Evidence { suspects: suspects.to_vec(), running };
        let found = weigh(&evidence, progress, is_proof)?;
        Some(found.iter().map(|one| (one.run.attempt, one.deaths)).collect::<Vec<_>>())
    };
    // The first and the second crash, and then the third crash, with and without proof.
    assert_eq!(weighed(&[], &[0, 7], 5, true), Some(vec![(0, 1), (7, 1)]));
    let once = [suspect(0, 1), suspect(7, 1)];
    assert_eq!(weighed(&once, &[0, 7], 5, true), Some(vec![(0, 2), (7, 2)]));
    let twice = [suspect(0, 2), suspect(7, 2)];
    assert_eq!(weighed(&twice, &[0, 7], 5, true), None);
    assert_eq!(weighed(&twice, &[0, 7], 5, false), Some(vec![(0, 2), (7, 2)]));
    // Not running at this crash: nothing changes.
    assert_eq!(weighed(&twice, &[], 5, true), Some(vec![(0, 2), (7, 2)]));
    // Another step ended in the meantime: the crashes of the repeated attempt still count, but the
    // crashes of the entire execution do not.
    assert_eq!(weighed(&once, &[0, 7], 6, true), Some(vec![(0, 1), (7, 2)]));
    assert_eq!(weighed(&twice, &[0, 7], 6, true), None);
    // The attempt itself ended, and a different one is running.
    assert_eq!(weighed(&twice, &[0, 8], 6, true), Some(vec![(0, 1), (8, 1)]));
    assert_eq!(weighed(&twice, &[], 6, true), Some(vec![]));
}
