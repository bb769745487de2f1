//! Tests bulk jobs on the real executor: the action is performed on each execution exactly once, no
//! matter when the process dies.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use super::RUNNING_MAX;
use crate::simulation_tests::{
    ORGANIZATION, PATIENCE, Process, executions, rows as all_rows, runtime,
};
use crate::workflow_tests::{Case, all_end, case, model, script, submission};
use crate::{Error, Options};
use orrery_domain::bulk::{Action, Job, LIMIT_MAX, Selection, Status};
use orrery_domain::execution::{Kind, Source, Status as ExecutionStatus};
use orrery_domain::ids::{ExecutionId, JobId};
use orrery_runtime::new_id;
use orrery_storage::{Commit, Table};

const COUNT: usize = 5;

fn cases() -> [Case; 2] {
    [
        case("fails", json!([model("a", "fails", json!(1))]), json!({}), Err("StepFailed")),
        case("stuck", json!([model("a", "stuck", json!(1))]), json!({}), Ok(json!(1))),
    ]
}

async fn start(folder: &TempDir) -> Process {
    let process = Process::start_with(folder, i64::MAX, script(&cases()), Options::default());
    process.engine.recover().await.unwrap();
    process
}

async fn submit(process: &Process, number: usize, count: usize) -> Vec<ExecutionId> {
    let cases = cases();
    let submissions = (0..count).map(|_| submission(number, &cases[number])).collect();
    let taken = process.engine.submit(submissions, Commit::new()).await.unwrap();
    taken.iter().map(|one| one.id).collect()
}

fn job(process: &Process, action: Action, standing: Option<ExecutionStatus>) -> Job {
    Job {
        id: new_id(),
        organization: ORGANIZATION.into(),
        key: [2; 16].into(),
        source: Source::Api,
        by: "a test".to_owned(),
        action,
        selection: Selection {
            standings: Some(match standing {
                Some(status) => vec![(Kind::Workflow, status)],
                // Excludes predictions that ran as workflow steps.
                None => ExecutionStatus::ALL.map(|status| (Kind::Workflow, status)).to_vec(),
            }),
            ..Selection::default()
        },
        limit: LIMIT_MAX,
        status: Status::Running,
        total: None,
        done: 0,
        failed: 0,
        cursor: None,
        started_at: process.engine.inner.clock.now(),
        completed_at: None,
    }
}

async fn ended(process: &Process, id: JobId) -> Job {
    let polling = async {
        loop {
            let job = process.engine.job(ORGANIZATION.into(), id).await.unwrap();
            if job.status != Status::Running {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, polling).await.unwrap()
}

async fn run(process: &Process, job: &Job) -> Job {
    process.engine.start_job(job, Commit::new()).await.unwrap();
    ended(process, job.id).await
}

/// Returns the number of redrives of each execution.
async fn redrives(process: &Process) -> BTreeMap<ExecutionId, usize> {
    let mut found = BTreeMap::new();
    for execution in executions(&process.store).await {
        if let Some(from) = execution.workflow().and_then(|run| run.redriven_from) {
            *found.entry(from).or_default() += 1;
        }
    }
    found
}

/// A job reads its executions page by page, so an execution may be deleted after it was read and
/// before the job redrives it.
#[test]
fn execution_deleted_after_it_was_read_is_not_redriven() {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = start(&folder).await;
        let id = submit(&process, 0, 1).await[0];
        all_end(&process).await;
        let engine = &process.engine;
        let failed = engine.get(ORGANIZATION.into(), id).await.unwrap();
        engine.inner.delete_ended(ORGANIZATION.into(), id, Commit::new()).await.unwrap();
        let key = [2; 16].into();
        let redriving = engine.redrive(&failed, key, Source::Api, None, new_id(), Commit::new());
        assert!(matches!(redriving.await, Err(Error::NotFound)));
        assert!(executions(&process.store).await.is_empty());
    });
}

#[test]
fn bulk_redrive_survives_crash_after_any_commit_and_redrives_each_once() {
    for after in 0..16 {
        let folder = tempfile::tempdir().unwrap();
        let (failed, job) = runtime().block_on(async {
            let process = start(&folder).await;
            let failed = submit(&process, 0, COUNT).await;
            all_end(&process).await;
            let job = job(&process, Action::Redrive, Some(ExecutionStatus::Error));
            process.store.crash_after(after);
            tokio::select! {
                () = async { run(&process, &job).await; } => {}
                () = process.store.crashed() => {}
            }
            process.engine.inner.tasks.stop();
            process.store.clone().close().await;
            (failed, job)
        });
        runtime().block_on(async {
            let process = start(&folder).await;
            match process.engine.job(ORGANIZATION.into(), job.id).await {
                // The process died before the job was accepted.
                Err(Error::NotFound) => assert!(redrives(&process).await.is_empty()),
                found => {
                    found.unwrap();
                    let ended = ended(&process, job.id).await;
                    let count = COUNT as u64;
                    assert_eq!(
                        (ended.status, ended.total, ended.done, ended.failed),
                        (Status::Completed, Some(count), count, 0),
                        "died after {after} commits"
                    );
                    let found = redrives(&process).await;
                    let expected = failed.iter().map(|id| (*id, 1)).collect();
                    assert_eq!(found, expected, "died after {after} commits");
                }
            }
            all_end(&process).await;
            assert!(all_rows(&process.store, Table::BulkJobOpen).await.is_empty());
            process.engine.inner.tasks.stop();
        });
    }
}

#[test]
fn bulk_jobs_pause_resume_cancel_and_delete_selected_executions() {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let process = start(&folder).await;
        submit(&process, 0, COUNT).await;
        all_end(&process).await;
        submit(&process, 1, 3).await;
        let of = |action, standing| job(&process, action, standing);
        let count = |job: &Job| (job.total, job.done, job.failed);
        let paused = run(&process, &of(Action::Pause, None)).await;
        let all = COUNT as u64 + 3;
        // Failed executions cannot be paused.
        assert_eq!(count(&paused), (Some(all), 3, COUNT as u64));
        let is_paused = |one: &orrery_domain::execution::Execution| one.paused().is_some();
        assert_eq!(executions(&process.store).await.iter().filter(|one| is_paused(one)).count(), 3);
        let resumed = run(&process, &of(Action::Resume, None)).await;
        assert_eq!(resumed.done, 3);
        assert!(!executions(&process.store).await.iter().any(is_paused));
        let refused = run(&process, &of(Action::Delete, None)).await;
        assert_eq!(count(&refused), (Some(all), COUNT as u64, 3));
        assert_eq!(executions(&process.store).await.len(), 3, "their steps are deleted with them");
        let mut limited = of(Action::Cancel, None);
        limited.limit = 2;
        assert_eq!(count(&run(&process, &limited).await), (Some(2), 2, 0));
        run(&process, &of(Action::Cancel, None)).await;
        let left = run(&process, &of(Action::Delete, Some(ExecutionStatus::Cancelled))).await;
        assert_eq!(count(&left), (Some(3), 3, 0));
        for table in [Table::Execution, Table::Step, Table::Lane, Table::Standing, Table::Facet] {
            assert_eq!(all_rows(&process.store, table).await, [], "{table:?}");
        }
        process.engine.inner.tasks.stop();
    });
}

#[test]
fn bulk_jobs_per_organization_are_limited_and_cancellable() {
    let folder = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        // No worker runs the jobs until the engine has recovered.
        let process = Process::start_with(&folder, i64::MAX, script(&cases()), Options::default());
        submit(&process, 0, COUNT).await;
        let mut jobs = Vec::new();
        for _ in 0..RUNNING_MAX {
            let job = job(&process, Action::Cancel, None);
            process.engine.start_job(&job, Commit::new()).await.unwrap();
            jobs.push(job.id);
        }
        let another = job(&process, Action::Cancel, None);
        let refused = process.engine.start_job(&another, Commit::new()).await;
        assert!(matches!(refused, Err(Error::TooManyJobs(RUNNING_MAX))), "{refused:?}");
        for id in jobs {
            let other = process.engine.cancel_job([8; 16].into(), id).await;
            assert!(matches!(other, Err(Error::NotFound)));
            for _ in 0..2 {
                let job = process.engine.cancel_job(ORGANIZATION.into(), id).await.unwrap();
                assert_eq!((job.status, job.done), (Status::Cancelled, 0));
            }
        }
        process.engine.start_job(&another, Commit::new()).await.unwrap();
        process.engine.recover().await.unwrap();
        assert_eq!(ended(&process, another.id).await.status, Status::Completed);
        all_end(&process).await;
        process.engine.inner.tasks.stop();
    });
}

/// Golden bytes of the first release with bulk jobs: a changed encoding needs a new record version
/// and a migration.
#[test]
fn bulk_job_row_matches_golden_bytes() {
    let golden = concat!(
        "\u{1}{\"id\":\"03030303-0303-0303-0303-030303030303\",",
        "\"organization\":\"01010101-0101-0101-0101-010101010101\",",
        "\"key\":\"02020202-0202-0202-0202-020202020202\",\"source\":\"api\",\"by\":\"key k\",",
        "\"action\":\"redrive\",\"selection\":{\"standings\":[[\"workflow\",\"error\"]],",
        "\"model\":\"m\",\"classes\":[\"provider_error\"],",
        "\"workflow\":\"04040404-0404-0404-0404-040404040404\",",
        "\"parent\":\"05050505-0505-0505-0505-050505050505\",\"from\":1,\"to\":2},",
        "\"limit\":10,\"status\":\"running\",\"total\":7,\"done\":3,\"failed\":1,",
        "\"cursor\":\"06060606-0606-0606-0606-060606060606\",\"started_at\":1,\"completed_at\":9}"
    );
    let job: Job = orrery_storage::record::decode(golden.as_bytes()).unwrap();
    let bytes = orrery_storage::record::encode(&job).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), golden);
}
