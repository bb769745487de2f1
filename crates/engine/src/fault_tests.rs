//! Injects faults into a running engine: rows that become visible before their commit returns, a
//! disk that fails and recovers, panics in engine code, unreadable records, stuck lanes. Afterward,
//! no work is stranded, duplicated or undone, and no permit is leaked.

use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::scheduler::admission::Entry;
use crate::scheduler::lanes;
use crate::scheduler::retries::Backoff;
use crate::simulation_tests::{
    ORGANIZATION, PATIENCE, Process, Script, check_books, executions, prediction, runtime, until,
};
use crate::workflow_tests::{Case, case, model, script, submission};
use crate::{Options, Submission, consistency, rows};
use orrery_domain::execution::{Execution, Kind, Status};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::money::Usd;
use orrery_records::billing::Payer;
use orrery_runtime::new_id;
use orrery_storage::Commit;
use orrery_storage::faults::Point;

fn limits(active: usize) -> Options {
    let first = Duration::from_millis(10);
    let longest = Duration::from_millis(40);
    let suspend_after = Duration::from_millis(20);
    Options { active, suspend_after, pauses: Backoff { first, max: longest }, ..Options::default() }
}

async fn ended(process: &Process, id: ExecutionId) -> Execution {
    let ended = process.engine.wait(ORGANIZATION.into(), id, PATIENCE).await.unwrap();
    assert!(ended.status.is_final(), "{ended:?}");
    ended
}

async fn submit(process: &Process, submission: Submission) -> ExecutionId {
    let id = submission.id;
    process.engine.submit(vec![submission], Commit::new()).await.unwrap();
    id
}

/// Asserts that nothing is running, waiting or being retried any longer, and that every permit is
/// free.
async fn check_rest(process: &Process) {
    let engine = &process.engine;
    until(|| (engine.totals(), engine.in_memory(), engine.retrying()) == ((0, 0), 0, 0)).await;
    assert!(!engine.inner.lanes().recount());
    check_books(&process.store).await;
}

/// Waves of submissions, chains and cancellations. The rows of each commit are visible for a while
/// before the commit returns, so the refill of a lane sees rows whose hooks have not run yet.
#[test]
fn engine_runs_early_visible_rows_once_and_keeps_cancels() {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let options = Options { enforce_balance: true, ..limits(8) };
        let process = Process::start_with(&folder, i64::MAX, Script::default(), options);
        let engine = &process.engine;
        let organization = ORGANIZATION.into();
        let budget = Usd::from_micros(1_000_000_000);
        engine.inner.billing.top_up(organization, budget).await.unwrap();
        engine.recover().await.unwrap();
        // Rows become visible late, and then stay visible for a while before their commit returns.
        process.store.faults().at_points(|point| {
            if matches!(point, Point::Publish | Point::Answer) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        // More executions than fit in a lane's window.
        let chains: [&[&str]; 3] = [&["same"], &["fails", "same"], &["same"]];
        let mut ids = Vec::new();
        for wave in 0..4_usize {
            let creating = (0..150).map(|number| {
                let one = prediction(number, chains[(number + wave) % 3], false);
                submit(&process, one)
            });
            ids.extend(futures_util::future::join_all(creating).await);
        }
        let cancelling = ids.iter().step_by(7).map(|id| engine.cancel(organization, *id));
        let cancelled = futures_util::future::join_all(cancelling).await;
        let mut stays = 0;
        for (id, cancelled) in ids.iter().step_by(7).zip(cancelled) {
            let end = ended(&process, *id).await;
            if cancelled.is_ok() {
                assert_eq!(end.status, Status::Cancelled);
                stays += 1;
            }
        }
        assert!(stays > 0, "no cancel came in time");
        for id in &ids {
            let end = ended(&process, *id).await;
            assert_ne!(end.status, Status::Error, "{end:?}");
        }
        let calls = process.script.calls.lock().unwrap().clone();
        let mut once = calls.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), calls.len(), "a key was called twice");
        let needed = Usd::from_micros(1);
        let price = orrery_records::billing::Price { known: needed, open: false };
        let payer = Payer { organization, key: new_id() };
        drop(engine.inner.billing.hold(payer, price, true).await.unwrap());
        let reserved =
            orrery_records::billing::reserved(&process.store, organization).await.unwrap();
        assert_eq!(reserved, Usd::ZERO, "what was reserved is released once");
        let cost: Usd = executions(&process.store).await.iter().map(|one| one.cost).sum();
        let balance = engine.inner.billing.balance(organization).await.unwrap();
        assert_eq!(balance, budget.plus(-cost));
        until(|| (engine.totals(), engine.in_memory()) == ((0, 0), 0)).await;
        assert!(!engine.inner.lanes().recount());
        engine.inner.tasks.stop();
    });
}

/// A client disconnects while its commit is in flight: the work is still queued.
#[test]
fn engine_enqueues_work_after_submitter_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, Script::default(), limits(8));
        process.engine.recover().await.unwrap();
        let one = prediction(0, &["works"], false);
        let id = one.id;
        // Use the inner future, because no task continues this future after it is dropped.
        let submitting = process.engine.inner.submit(vec![one], Commit::new());
        drop(process.store.faults().hold_at_sync(submitting).await);
        until(|| !process.script.calls.lock().unwrap().is_empty()).await;
        ended(&process, id).await;
        check_rest(&process).await;
        process.engine.inner.tasks.stop();
    });
}

/// While the payload directory is unwritable, executions that cannot store a payload are suspended
/// and report the reason. They complete once the directory is writable again.
#[test]
fn engine_finishes_executions_after_transient_disk_error() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [large_workflow()];
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, script(&cases), limits(8));
        process.engine.recover().await.unwrap();
        break_payloads(&folder);
        let mut ids = Vec::new();
        for number in 0..20 {
            ids.push(submit(&process, prediction(number, &["large"], false)).await);
        }
        let run = submit(&process, submission(0, &cases[0])).await;
        until(|| process.engine.retrying() == 21).await;
        let organization = ORGANIZATION.into();
        let is_waiting = "waiting for a retry: ";
        let mut shown = false;
        while !shown {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let execution = process.engine.get(organization, ids[0]).await.unwrap();
            let waiting = process.engine.waiting_for(&execution).unwrap_or_default();
            shown = waiting.starts_with(is_waiting);
        }
        let mut shown = false;
        while !shown {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let detail = process.engine.detail(organization, run).await.unwrap();
            let view = serde_json::to_string(&detail.view).unwrap();
            shown = view.contains(r#""reason":"service","cause":"the service could"#);
        }
        // A suspended execution can be cancelled.
        process.engine.cancel(organization, ids[0]).await.unwrap();
        repair_payloads(&folder);
        for id in &ids[1..] {
            assert_eq!(ended(&process, *id).await.status, Status::Success);
        }
        assert_eq!(ended(&process, ids[0]).await.status, Status::Cancelled);
        assert_eq!(ended(&process, run).await.status, Status::Success);
        check_rest(&process).await;
        process.engine.inner.tasks.stop();
    });
}

fn large_workflow() -> Case {
    let mut steps = model("a", "large", json!(1));
    steps["params"] = json!({});
    case("large", json!([steps]), json!({}), Ok(json!(null)))
}

/// Replaces the payload folder with a file.
fn break_payloads(folder: &TempDir) {
    let payloads = folder.path().join("payloads");
    if payloads.exists() {
        std::fs::rename(&payloads, folder.path().join("payloads-away")).unwrap();
    }
    std::fs::write(&payloads, b"").unwrap();
}

fn repair_payloads(folder: &TempDir) {
    let (payloads, away) = (folder.path().join("payloads"), folder.path().join("payloads-away"));
    std::fs::remove_file(&payloads).unwrap();
    if away.exists() {
        std::fs::rename(away, payloads).unwrap();
    }
}

/// A panic in the engine's own code releases the permit, and the execution is retried.
#[test]
fn engine_finishes_executions_after_internal_panic() {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, Script::default(), limits(1));
        process.engine.recover().await.unwrap();
        // There is a single permit, so a leak would block everything. The panics begin only after
        // the submission.
        process.engine.inner.lanes().hold_starts(true);
        let id = submit(&process, prediction(0, &["works"], false)).await;
        process.script.panics.store(3, std::sync::atomic::Ordering::SeqCst);
        process.engine.inner.lanes().hold_starts(false);
        process.engine.inner.scheduler.wake();
        assert_eq!(ended(&process, id).await.status, Status::Success);
        let left = process.script.panics.load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(left, 0);
        check_rest(&process).await;
        process.engine.inner.tasks.stop();
    });
}

/// Two stuck workflows hold all but the last permit: a prediction of another model still completes.
#[test]
fn engine_stuck_workflows_leave_a_slot_for_idle_model() {
    let folder = tempfile::tempdir().unwrap();
    let stuck = |slug: &str| case("stuck", json!([model("a", slug, json!(1))]), json!({}), Err(""));
    let cases = [stuck("endless"), stuck("stuck")];
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, script(&cases), limits(2));
        process.engine.recover().await.unwrap();
        for _ in 0..15 {
            submit(&process, submission(0, &cases[0])).await;
            submit(&process, submission(1, &cases[1])).await;
        }
        until(|| process.script.calls.lock().unwrap().len() == 2).await;
        let id = submit(&process, prediction(0, &["works"], false)).await;
        assert_eq!(ended(&process, id).await.status, Status::Success);
        process.engine.inner.tasks.stop();
    });
}

/// One organization uses all permits of a shared workflow. Every other organization can still start
/// one execution.
#[test]
fn engine_stuck_organization_leaves_a_shared_workflow_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [case("shared", json!([model("a", "stuck", json!(1))]), json!({}), Err(""))];
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, script(&cases), limits(2));
        process.engine.recover().await.unwrap();
        for organization in [ORGANIZATION, [7; 16], [8; 16]] {
            for _ in 0..3 {
                let asked = submission(0, &cases[0]);
                submit(&process, Submission { organization: organization.into(), ..asked }).await;
            }
            let runs = || process.engine.inner.lanes().load_of(organization.into()).running == 1;
            until(runs).await;
        }
        process.engine.inner.tasks.stop();
    });
}

/// An unreadable record among the due timers, and orphaned rows at the head of a lane: everything
/// queued after them still runs.
#[test]
fn engine_bad_records_do_not_block_other_work() {
    let folder = tempfile::tempdir().unwrap();
    let suspended = json!([
        {"step_id": "w", "type": "wait", "seconds": 0.1},
        model("b", "same", json!("{{w.status}}")),
    ]);
    let cases = [case("parked", suspended, json!({}), Ok(json!("completed")))];
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, script(&cases), limits(8));
        let organization: OrganizationId = ORGANIZATION.into();
        let mut commit = Commit::new();
        // A timer whose execution record is not valid JSON.
        let damaged: ExecutionId = new_id();
        let now = process.engine.inner.clock.now();
        commit.put_bytes(rows::execution(organization, damaged), b"\x01{".to_vec());
        commit.put_bytes(rows::timer(now, damaged), rows::timer_value(organization));
        let lane = orrery_domain::execution::lane_of_model("works");
        for number in 0..600_u32 {
            let id: ExecutionId = new_id();
            // The key of every second row is not a valid queue key.
            let key = match number % 2 {
                0 => rows::queued(&lane, organization, id),
                _ => rows::queue(&lane).id(id),
            };
            commit.put_bytes(key, Vec::new());
        }
        process.store.commit(commit).await.unwrap();
        process.engine.recover().await.unwrap();
        let run = submit(&process, submission(0, &cases[0])).await;
        let id = submit(&process, prediction(0, &["works"], false)).await;
        assert_eq!(ended(&process, id).await.status, Status::Success);
        assert_eq!(ended(&process, run).await.status, Status::Success);
        assert_eq!(process.engine.retrying(), 1, "the damaged one");
        process.engine.inner.tasks.stop();
    });
}

/// An unreadable execution at the head of a lane is retried, and meanwhile the executions after it
/// run.
#[test]
fn engine_damaged_execution_does_not_block_its_lane() {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, Script::default(), limits(8));
        let organization: OrganizationId = ORGANIZATION.into();
        let lane = orrery_domain::execution::lane_of_model("same");
        let damaged: ExecutionId = new_id();
        let mut commit = Commit::new();
        commit.put_bytes(rows::execution(organization, damaged), b"\x01{".to_vec());
        commit.put_bytes(rows::queued(&lane, organization, damaged), Vec::new());
        process.store.commit(commit).await.unwrap();
        process.engine.recover().await.unwrap();
        let id = submit(&process, prediction(0, &["same"], false)).await;
        assert_eq!(ended(&process, id).await.status, Status::Success);
        until(|| process.engine.retrying() == 1).await;
        process.engine.inner.tasks.stop();
    });
}

/// An old execution that cannot be read is retained; its neighbors are deleted.
#[test]
fn engine_damaged_execution_does_not_block_retention() {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, Script::default(), limits(8));
        process.engine.recover().await.unwrap();
        let organization: OrganizationId = ORGANIZATION.into();
        let lane = orrery_domain::execution::lane_of_model("same");
        let ids = [
            submit(&process, prediction(0, &["same"], false)).await,
            submit(&process, prediction(0, &["same"], false)).await,
        ];
        for id in ids {
            assert_eq!(ended(&process, id).await.status, Status::Success);
        }
        let damaged: ExecutionId = new_id();
        let standing = rows::standing(organization, Kind::Prediction, Status::Success);
        let mut commit = Commit::new();
        commit.put_bytes(rows::execution(organization, damaged), b"\x01{".to_vec());
        commit.put_bytes(standing.text(&lane).id_newest_first(damaged), Vec::new());
        process.store.commit(commit).await.unwrap();
        let cutoff = process.engine.inner.clock.now().plus(Duration::from_secs(3600));
        let swept = process.engine.purge_before(organization, cutoff).await.unwrap();
        assert_eq!(swept, ids.len());
        for (id, is_there) in [(ids[0], false), (ids[1], false), (damaged, true)] {
            let row = process.store.get(&rows::execution(organization, id)).await.unwrap();
            assert_eq!(row.is_some(), is_there);
        }
        process.engine.inner.tasks.stop();
    });
}

/// The check repairs mismatches that should never occur, each exactly once: a row unknown to the
/// scheduler, an execution without a row, the permit of a dead task, a wrong reservation.
#[test]
fn consistency_check_repairs_memory_and_disk_mismatches() {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, Script::default(), limits(8));
        let inner = &process.engine.inner;
        let organization = ORGANIZATION.into();
        let mut rounds = consistency::Rounds::default();
        // The dispatcher is not started yet, so these executions stay in the window of their lane.
        let row = submit(&process, prediction(0, &["works"], false)).await;
        let rowless = submit(&process, prediction(1, &["same"], false)).await;
        let lane = |model: &str| orrery_domain::execution::lane_of_model(model);
        inner.lanes().forget(&lane("works"), row);
        inner.lanes().forget(&lane("same"), rowless);
        let mut commit = Commit::new();
        commit.delete(rows::queued(&lane("same"), organization, rowless));
        let payer = Payer { organization, key: new_id() };
        orrery_records::billing::reserve(&mut commit, payer, Usd::from_micros(7));
        inner.store.commit(commit).await.unwrap();
        inner.open_lane("model:dead");
        let dead: ExecutionId = new_id();
        inner.lanes().reserve_accepted("model:dead", dead);
        let entry = Entry { organization, active: None };
        inner
            .lanes()
            .enqueue("model:dead", lanes::Ticket { id: dead, organization, payload: entry });
        let mut started = false;
        while let Some(next) = inner.lanes().next() {
            // The task that received the permit dies at once.
            started |= matches!(next, lanes::Next::Start { .. });
        }
        assert!(started);
        let found = inner.check_consistency(&mut rounds).await.unwrap();
        let expect = consistency::Repairs { places: 1, lanes: 1, executions: 1, reservations: 0 };
        assert_eq!(found, expect);
        let found = inner.check_consistency(&mut rounds).await.unwrap();
        assert_eq!(
            found,
            consistency::Repairs { reservations: 1, ..consistency::Repairs::default() }
        );
        let found = inner.check_consistency(&mut rounds).await.unwrap();
        assert_eq!(found, consistency::Repairs::default());
        process.engine.recover().await.unwrap();
        ended(&process, row).await;
        ended(&process, rowless).await;
        let reserved = orrery_records::billing::reserved(&inner.store, organization).await.unwrap();
        assert_eq!(reserved, Usd::ZERO);
        inner.tasks.stop();
    });
}

/// A backlog larger than one check's limit is covered by several consecutive checks.
#[test]
fn consistency_check_resumes_where_previous_one_stopped() {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, Script::default(), limits(8));
        let inner = &process.engine.inner;
        let lane = orrery_domain::execution::lane_of_model("works");
        let mut commit = Commit::new();
        for number in 0..7 {
            let id = submit(&process, prediction(number, &["works"], false)).await;
            inner.lanes().forget(&lane, id);
            commit.delete(rows::queued(&lane, ORGANIZATION.into(), id));
        }
        inner.store.commit(commit).await.unwrap();
        let mut rounds = consistency::Rounds::of(3);
        let mut found = Vec::new();
        for _ in 0..4 {
            found.push(inner.check_consistency(&mut rounds).await.unwrap().executions);
        }
        assert_eq!(found, [3, 3, 1, 0]);
        inner.tasks.stop();
    });
}
