//! Tests execution trees: their budgets are not exceeded despite crashes and failures, and
//! cancelling the root stops their growth.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::children_tests::{child, executions, submit};
use crate::simulation_tests::{ORGANIZATION, PATIENCE, Process, rows as all_rows, runtime};
use crate::workflow_tests::{Case, all_end, case, model, none_is_left, script};
use crate::{Error, Options, TreeLimits, rows};
use orrery_domain::execution::{Execution, Status};
use orrery_domain::ids::ExecutionId;
use orrery_storage::Table;

const BYTES: u64 = 8 << 30;

fn limits(descendants: u64, bytes: u64) -> Options {
    Options { tree: TreeLimits { descendants, bytes }, ..Options::default() }
}

/// Returns a workflow with a map. For each item, the map runs another workflow with the same items.
fn fan_out(workflow: usize, items: usize, waits: bool) -> Case {
    let mut step = child("c", workflow, json!({"n": "{{item}}"}));
    step["wait"] = json!(waits);
    let items: Vec<usize> = (0..items).collect();
    // Detached children are committed one by one.
    let together = if waits { 100 } else { 1 };
    let map = json!([{"step_id": "m", "type": "map", "items": items, "max_concurrency": together,
        "steps": [step]}]);
    case("fan out", map, json!({"n": 1}), Ok(json!(null)))
}

/// Returns the workflows for a map of maps, with `leaf` as the innermost step.
fn tree(items: usize, waits: bool, leaf: Value) -> [Case; 3] {
    let leaf = case("leaf", leaf, json!({"n": 1}), Ok(json!(null)));
    [fan_out(1, items, waits), fan_out(2, items, waits), leaf]
}

fn pass(result: &str) -> Value {
    json!([{"step_id": "p", "type": "pass", "result": result}])
}

fn process(folder: &TempDir, cases: &[Case], options: Options) -> Process {
    Process::start_with(folder, i64::MAX, script(cases), options)
}

fn causes(all: &[Execution]) -> Vec<&str> {
    all.iter().filter_map(|one| Some(one.fault.as_ref()?.cause.as_str())).collect()
}

async fn descendants(process: &Process, root: ExecutionId) -> i64 {
    let [descendants, ..] = rows::tree(root);
    process.store.counter(&descendants).await.unwrap()
}

/// Waits until an execution has `count` descendants.
async fn await_descendants(process: &Process, root: ExecutionId, count: i64) {
    let growing = async {
        while descendants(process, root).await < count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, growing).await.unwrap();
}

async fn die(process: Process) {
    process.engine.inner.tasks.stop();
    process.store.clone().close().await;
}

/// Returns the final size of a tree with a budget of 40 descendants, and the error messages of its
/// failures.
fn grown(waits: bool) -> (usize, Vec<String>) {
    let cases = tree(20, waits, pass("done"));
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = process(&folder, &cases, limits(40, BYTES));
        process.engine.recover().await.unwrap();
        let root = submit(&process, 0, &cases[0]).await;
        all_end(&process).await;
        let all = executions(&process.store).await;
        assert_eq!(usize::try_from(descendants(&process, root).await).unwrap(), all.len() - 1);
        die(process).await;
        (all.len(), causes(&all).into_iter().map(str::to_owned).collect())
    })
}

#[test]
fn tree_of_waiting_executions_stays_within_descendant_limit() {
    let (count, causes) = grown(true);
    // Maps that exceed the budget together fail before any of them has started its executions, or
    // one of them gets the rest of the budget.
    assert!((21..=41).contains(&count), "{count}");
    assert!(causes.iter().any(|cause| cause.contains("engine.descendants")), "{causes:?}");
}

#[test]
fn tree_of_detached_executions_stays_within_descendant_limit() {
    let (count, causes) = grown(false);
    assert_eq!(count, 41);
    assert!(causes.iter().all(|cause| cause.contains("engine.descendants")), "{causes:?}");
    assert!(!causes.is_empty());
}

#[test]
fn tree_below_its_limits_completes() {
    let cases = tree(6, true, pass("{{inputs.n}}"));
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = process(&folder, &cases, limits(42, BYTES));
        process.engine.recover().await.unwrap();
        let root = submit(&process, 0, &cases[0]).await;
        let ended = process.engine.wait(ORGANIZATION.into(), root, PATIENCE).await.unwrap();
        assert_eq!(ended.status, Status::Success, "{ended:?}");
        assert_eq!(descendants(&process, root).await, 42);
        die(process).await;
    });
}

#[test]
fn tree_stays_within_byte_limit() {
    let large = "x".repeat(20_000);
    let cases = tree(20, false, pass(&large));
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = process(&folder, &cases, limits(10_000, 1 << 20));
        process.engine.recover().await.unwrap();
        let root = submit(&process, 0, &cases[0]).await;
        all_end(&process).await;
        let all = executions(&process.store).await;
        let made: u64 = all.iter().filter_map(|one| Some(one.output.as_ref()?.len())).sum();
        assert!(made < 1 << 20, "{made}");
        let [_descendants, bytes, _ended] = rows::tree(root);
        let counted = process.store.counter(&bytes).await.unwrap();
        assert!((1 << 19..=1 << 20).contains(&counted), "{counted}");
        let causes = causes(&all);
        assert!(causes.iter().any(|cause| cause.contains("engine.tree_bytes")), "{causes:?}");
        die(process).await;
    });
}

/// The process dies several times while the tree grows.
#[test]
fn tree_budget_survives_crashes() {
    let cases = tree(20, false, pass("done"));
    let folder = tempfile::tempdir().unwrap();
    let mut root = None;
    for crash_after in [3, 10, 20, 30] {
        runtime().block_on(async {
            let process = process(&folder, &cases, limits(60, BYTES));
            process.engine.recover().await.unwrap();
            if root.is_none() {
                root = Some(submit(&process, 0, &cases[0]).await);
            }
            process.store.crash_after(crash_after);
            tokio::select! {
                () = process.store.crashed() => {}
                () = all_end(&process) => {}
            }
            die(process).await;
        });
    }
    runtime().block_on(async {
        let process = process(&folder, &cases, limits(60, BYTES));
        process.engine.recover().await.unwrap();
        all_end(&process).await;
        let count = executions(&process.store).await.len();
        assert_eq!((count, descendants(&process, root.unwrap()).await), (61, 60));
        die(process).await;
    });
}

/// Cancels the root of a tree with slow leaves, optionally crashing right afterward.
fn cancelled(dies: bool) {
    let cases = tree(40, true, json!([model("a", "stuck", json!("{{inputs.n}}"))]));
    let folder = tempfile::tempdir().unwrap();
    let (root, count) = runtime().block_on(async {
        let process = process(&folder, &cases, limits(100_000, BYTES));
        process.engine.recover().await.unwrap();
        let root = submit(&process, 0, &cases[0]).await;
        // The tree has begun to grow on both levels. Without the cancellation, it would reach 1,641
        // executions.
        await_descendants(&process, root, 60).await;
        let cancelled = process.engine.cancel(ORGANIZATION.into(), root).await.unwrap();
        assert_eq!(cancelled.status, Status::Cancelled);
        let count = executions(&process.store).await.len();
        if dies {
            process.store.crash_after(1);
            tokio::time::timeout(PATIENCE, process.store.crashed()).await.unwrap();
        }
        die(process).await;
        (root, count)
    });
    runtime().block_on(async {
        let process = process(&folder, &cases, limits(100_000, BYTES));
        process.engine.recover().await.unwrap();
        all_end(&process).await;
        let all = executions(&process.store).await;
        // Executions that tried to start other executions before they were cancelled have failed;
        // leaves may have completed.
        let causes = causes(&all);
        assert!(causes.iter().all(|cause| cause.contains("was cancelled")), "{causes:?}");
        let is_complete = |one: &&Execution| one.status == Status::Success;
        assert!(all.iter().filter(is_complete).all(|one| {
            one.workflow().is_some_and(|run| run.parent.as_ref().is_some_and(|up| up.depth == 2))
        }));
        assert_eq!(all.len(), count, "none is created after the root's cancellation");
        assert!(all.iter().any(|one| one.id == root));
        none_is_left(&process, Table::Lane).await;
        die(process).await;
    });
}

#[test]
fn tree_of_cancelled_root_ends_and_stops_growing() {
    cancelled(false);
}

#[test]
fn tree_of_cancelled_root_ends_after_crash() {
    cancelled(true);
}

/// Detached executions keep running, but start no other executions.
#[test]
fn tree_of_cancelled_root_with_detached_executions_stops_growing() {
    let cases = tree(200, false, pass("done"));
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let options = Options { active: 2, ..limits(100_000, BYTES) };
        let process = process(&folder, &cases, options);
        process.engine.recover().await.unwrap();
        let root = submit(&process, 0, &cases[0]).await;
        await_descendants(&process, root, 1).await;
        let cancelled = process.engine.cancel(ORGANIZATION.into(), root).await.unwrap();
        assert_eq!(cancelled.status, Status::Cancelled);
        all_end(&process).await;
        let all = executions(&process.store).await;
        assert!(all.len() < 500, "{} of 40,201", all.len());
        let causes = causes(&all);
        assert!(causes.iter().any(|cause| cause.contains("was cancelled")), "{causes:?}");
        die(process).await;
    });
}

/// Cancels a root that has already ended. The tree keeps running until the cancellation, even after
/// a crash.
fn cancelled_behind_its_end(dies: bool) {
    let leaf = json!([{"step_id": "w", "type": "wait", "event": {"name": "never"}}]);
    let cases = tree(12, false, leaf);
    let folder = tempfile::tempdir().unwrap();
    let organization = ORGANIZATION.into();
    let root = runtime().block_on(async {
        let process = process(&folder, &cases, limits(100_000, BYTES));
        process.engine.recover().await.unwrap();
        let root = submit(&process, 0, &cases[0]).await;
        let ended = process.engine.wait(organization, root, PATIENCE).await.unwrap();
        assert_eq!(ended.status, Status::Success);
        await_descendants(&process, root, 12 + 12 * 12).await;
        if !dies {
            let answered = process.engine.cancel(organization, root).await.unwrap();
            assert_eq!((answered.id, answered.status), (root, Status::Success));
            all_end(&process).await;
        }
        die(process).await;
        root
    });
    runtime().block_on(async {
        let process = process(&folder, &cases, limits(100_000, BYTES));
        process.engine.recover().await.unwrap();
        if dies {
            process.engine.cancel(organization, root).await.unwrap();
            all_end(&process).await;
        }
        let all = executions(&process.store).await;
        let of_leaves = |one: &&Execution| {
            one.workflow().is_some_and(|run| run.parent.as_ref().is_some_and(|up| up.depth == 2))
        };
        let leaves: Vec<_> = all.iter().filter(of_leaves).collect();
        assert_eq!(leaves.len(), 144);
        assert!(leaves.iter().all(|leaf| leaf.status == Status::Cancelled), "{leaves:#?}");
        let again = process.engine.cancel(organization, root).await.unwrap_err();
        assert!(matches!(again, Error::AlreadyEnded("completed")), "{again}");
        none_is_left(&process, Table::Lane).await;
        none_is_left(&process, Table::Timer).await;
        die(process).await;
    });
}

#[test]
fn tree_of_ended_root_can_be_cancelled() {
    cancelled_behind_its_end(false);
}

#[test]
fn tree_of_ended_root_can_be_cancelled_after_crash() {
    cancelled_behind_its_end(true);
}

/// Executions queued when their tree is cancelled never start.
#[test]
fn tree_of_cancelled_root_cancelled_again_stops_running() {
    // The leaves outlive the test, so that some of them are running and the others are queued when
    // the tree is cancelled.
    let leaf = json!([{"step_id": "w", "type": "wait", "seconds": 3600}]);
    let cases = tree(60, false, leaf);
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let options = Options { active: 2, ..limits(100_000, BYTES) };
        let process = process(&folder, &cases, options);
        process.engine.recover().await.unwrap();
        let root = submit(&process, 0, &cases[0]).await;
        await_descendants(&process, root, 10).await;
        for _ in 0..2 {
            process.engine.cancel(ORGANIZATION.into(), root).await.unwrap();
        }
        all_end(&process).await;
        let [_descendants, _bytes, ended] = rows::tree(root);
        let cancelled = process.store.counter(&ended).await.unwrap();
        let all = executions(&process.store).await;
        assert_eq!(cancelled % (1 << 40), i64::try_from(all.len() - 1).unwrap());
        assert!(all.iter().any(|one| one.id != root && one.status == Status::Cancelled));
        die(process).await;
    });
}

/// The counters are deleted together with an old root, or with the last descendants if the root was
/// deleted first.
#[test]
fn tree_counters_are_deleted_with_their_executions() {
    let cases = tree(3, true, pass("done"));
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = process(&folder, &cases, limits(100, BYTES));
        process.engine.recover().await.unwrap();
        let root = submit(&process, 0, &cases[0]).await;
        all_end(&process).await;
        assert_eq!(all_rows(&process.store, Table::Tree).await.len(), 3);
        let now = process.engine.inner.clock.now();
        let after = now.plus(std::time::Duration::from_secs(60));
        process.engine.purge_before(ORGANIZATION.into(), after).await.unwrap();
        assert!(all_rows(&process.store, Table::Tree).await.is_empty(), "{root}");
        die(process).await;
    });
}

/// Executions with maps take turns in waiting for memory. All of them end, and a stopped execution
/// stops waiting.
#[test]
fn workflow_memory_bounds_running_maps() {
    let map = json!([{"step_id": "m", "type": "map", "items": [1, 2], "max_concurrency": 2,
        "steps": [model("a", "slow", json!("{{item}}"))]}]);
    let cases = [case("map", map, json!({"n": 1}), Ok(json!(null)))];
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let options = Options { workflow_memory: 5 << 20, ..Options::default() };
        let process = process(&folder, &cases, options);
        process.engine.recover().await.unwrap();
        let mut ids = Vec::new();
        for _ in 0..20 {
            ids.push(submit(&process, 0, &cases[0]).await);
        }
        let memory = &process.engine.inner.memory.workflows;
        let last = ids.pop().unwrap();
        let cancelled = process.engine.cancel(ORGANIZATION.into(), last).await.unwrap();
        assert_eq!(cancelled.status, Status::Cancelled);
        let mut most = 0;
        for id in ids {
            let waiting = process.engine.wait(ORGANIZATION.into(), id, PATIENCE);
            tokio::pin!(waiting);
            let ended = loop {
                most = most.max(memory.used());
                let pause = std::time::Duration::from_millis(1);
                if let Ok(ended) = tokio::time::timeout(pause, waiting.as_mut()).await {
                    break ended.unwrap();
                }
            };
            assert_eq!(ended.status, Status::Success, "{ended:?}");
        }
        assert!((1 << 20..4 << 20).contains(&most), "one organization leaves a part: {most}");
        crate::simulation_tests::until(|| memory.used() == 0).await;
        die(process).await;
    });
}
