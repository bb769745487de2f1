//! Tests many child executions: cancellation leaves no orphaned children, an execution that waits
//! for a child never holds a permit, and the nesting depth is limited.

use std::time::Duration;

use serde_json::{Value, json};

use crate::simulation_tests::{ORGANIZATION, PATIENCE, Process, rows as all_rows, runtime};
use crate::workflow_tests::{Case, case, model, none_is_left, script, submission};
use crate::{Options, rows};
use orrery_domain::execution::{DEPTH_MAX, Execution, Status};
use orrery_domain::ids::ExecutionId;
use orrery_storage::record::decode;
use orrery_storage::{Commit, Page, Store, Table};

pub(crate) fn child(id: &str, workflow: usize, inputs: Value) -> Value {
    let workflow = workflow.to_string();
    json!({"step_id": id, "type": "workflow", "workflow": workflow, "inputs": inputs})
}

pub(crate) async fn executions(store: &Store) -> Vec<Execution> {
    let prefix = rows::executions_of(ORGANIZATION.into());
    let page = Page { prefix, after: None, before: None, limit: 10_000 };
    let rows = store.page(page).await.unwrap();
    let all = rows.iter().map(|(_, bytes)| decode::<Execution>(bytes).unwrap());
    // Excludes predictions that ran as workflow steps.
    all.filter(|one| one.workflow().is_some()).collect()
}

async fn ended(store: &Store) -> usize {
    executions(store).await.iter().filter(|one| one.status.is_final()).count()
}

async fn until_ended(store: &Store, count: usize) {
    let polling = async {
        while ended(store).await < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, polling).await.unwrap();
}

pub(crate) async fn submit(process: &Process, number: usize, case: &Case) -> ExecutionId {
    let submissions = vec![submission(number, case)];
    process.engine.submit(submissions, Commit::new()).await.unwrap()[0].id
}

/// A parent and a thousand children, about half of which have ended.
fn thousand() -> [Case; 2] {
    let items: Vec<u32> = (0..1000).collect();
    let parent = json!([{"step_id": "m", "type": "map", "items": items, "max_concurrency": 100,
        "steps": [child("c", 1, json!({"n": "{{item}}"}))]}]);
    let one = json!([model("a", "same", json!("{{inputs.n}}"))]);
    [
        case("parent", parent, json!({}), Ok(json!(null))),
        case("child", one, json!({"n": 1}), Ok(json!(null))),
    ]
}

async fn check_no_orphan(process: &Process, parent: ExecutionId) {
    let cancelled = process.engine.wait(ORGANIZATION.into(), parent, PATIENCE).await.unwrap();
    assert_eq!(cancelled.status, Status::Cancelled);
    let all = executions(&process.store).await.len();
    until_ended(&process.store, all).await;
    none_is_left(process, Table::Timer).await;
    let found = executions(&process.store).await;
    assert_eq!(found.len(), all, "something was started after the cancel");
    assert!((500..=1001).contains(&all), "{all}");
    assert!(all_rows(&process.store, Table::Lane).await.is_empty());
}

#[test]
fn children_of_cancelled_parent_are_all_cancelled() {
    let cases = thousand();
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let options = Options::default();
        let process = Process::start_with(&folder, i64::MAX, script(&cases), options);
        process.engine.recover().await.unwrap();
        let parent = submit(&process, 0, &cases[0]).await;
        until_ended(&process.store, 500).await;
        process.engine.cancel(ORGANIZATION.into(), parent).await.unwrap();
        check_no_orphan(&process, parent).await;
        process.engine.inner.tasks.stop();
    });
}

/// The process dies right after the commit that cancels the parent.
#[test]
fn children_of_cancelled_parent_are_cancelled_by_next_process() {
    let cases = thousand();
    let folder = tempfile::tempdir().unwrap();
    let parent = runtime().block_on(async {
        let options = Options::default();
        let process = Process::start_with(&folder, i64::MAX, script(&cases), options);
        process.engine.recover().await.unwrap();
        let parent = submit(&process, 0, &cases[0]).await;
        until_ended(&process.store, 500).await;
        process.store.crash_after(1);
        tokio::select! {
            _ = process.engine.cancel(ORGANIZATION.into(), parent) => {}
            () = process.store.crashed() => {}
        }
        process.engine.inner.tasks.stop();
        process.store.clone().close().await;
        parent
    });
    runtime().block_on(async {
        let process = Process::start_with(&folder, i64::MAX, script(&cases), Options::default());
        process.engine.recover().await.unwrap();
        // The last successful commit may not have been the cancellation, so cancel again.
        let _cancelled = process.engine.cancel(ORGANIZATION.into(), parent).await;
        check_no_orphan(&process, parent).await;
        process.engine.inner.tasks.stop();
    });
}

/// There is one permit in total, in one lane: each parent yields the permit to its child.
#[test]
fn children_nest_to_depth_limit_with_a_single_permit() {
    let cases = [case("itself", json!([child("c", 0, json!({}))]), json!({}), Ok(json!(null)))];
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let suspend_after = Duration::from_millis(20);
        let options = Options { active: 1, suspend_after, ..Options::default() };
        let process = Process::start_with(&folder, i64::MAX, script(&cases), options);
        process.engine.recover().await.unwrap();
        let parent = submit(&process, 0, &cases[0]).await;
        let ended = process.engine.wait(ORGANIZATION.into(), parent, PATIENCE).await.unwrap();
        assert_eq!(ended.status, Status::Error, "{ended:?}");
        let cause = ended.fault.unwrap().cause;
        assert!(cause.contains("nest deeper than 16 levels"), "{cause}");
        let all = executions(&process.store).await;
        assert_eq!(all.len(), usize::try_from(DEPTH_MAX).unwrap() + 1);
        let depths = all.iter().filter_map(|one| one.workflow()?.parent.as_ref());
        assert_eq!(depths.map(|parent| parent.depth).max(), Some(DEPTH_MAX));
        process.engine.inner.tasks.stop();
    });
}
