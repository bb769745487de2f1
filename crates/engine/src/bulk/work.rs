//! The bulk job worker: the jobs take turns, and in each turn the worker performs a few actions,
//! one at a time.

use std::sync::Arc;
use std::time::Duration;

use super::{job, open_jobs, put};
use crate::query::history::Filter;
use crate::{Engine, Error, Inner};
use orrery_domain::bulk::{Action, Job, Status};
use orrery_domain::execution::{Execution, Kind};
use orrery_domain::ids::{ExecutionId, JobId, OrganizationId};
use orrery_runtime::{Recurring, new_id};
use orrery_storage::Commit;
use orrery_storage::record::{decode, encode};

/// Maximum number of actions that a job performs per turn.
const TURN: usize = 50;
/// Page size when counting executions.
const COUNT_PAGE: usize = 500;
/// Retry delay when a job is blocked, for example by a failing store or a full queue.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// There may be more work.
    More,
    /// The job has ended or was cancelled.
    Ended,
    /// The job is blocked for now.
    Later,
}

/// The result of an action on one execution.
enum Act {
    /// The action and the job's new row are committed together.
    Committed(Box<Job>),
    Done,
    Failed,
    Later,
}

impl Inner {
    /// Runs the jobs until the service stops.
    pub(crate) async fn run_jobs(self: Arc<Self>) {
        let mut trouble = Recurring::default();
        loop {
            let (turn, fault) = match self.take_turns().await {
                Ok(turns) => turns,
                Err(error) => (Turn::Later, Some(format!("cannot read the bulk jobs: {error}"))),
            };
            match fault {
                Some(fault) if trouble.is_news(&fault) => tracing::error!("{fault}"),
                Some(_) => {}
                None if trouble.end() => tracing::info!("bulk jobs resumed"),
                None => {}
            }
            if self.tasks.is_stopping() {
                return;
            }
            match turn {
                Turn::More => {}
                Turn::Ended => tokio::select! {
                    () = self.tasks.stopping() => return,
                    () = self.jobs.started.notified() => {}
                },
                Turn::Later => tokio::select! {
                    () = self.tasks.stopping() => return,
                    () = tokio::time::sleep(RETRY_DELAY) => {}
                },
            }
        }
    }

    /// Gives each running job one turn. Also returns the error if one of the jobs is blocked.
    async fn take_turns(self: &Arc<Self>) -> Result<(Turn, Option<String>), Error> {
        if is_held_back(self) {
            // A restored store starts no work until an operator resumes it.
            return Ok((Turn::Later, None));
        }
        let mut all = Turn::Ended;
        let mut fault = None;
        for (organization, id) in self.store.owners::<JobId>(open_jobs()).await? {
            let turn = self.take_turn(organization, id).await.unwrap_or_else(|error| {
                fault = Some(format!("cannot continue bulk job {id}: {error}"));
                Turn::Later
            });
            match turn {
                Turn::More => all = Turn::More,
                Turn::Later if all == Turn::Ended => all = Turn::Later,
                Turn::Later | Turn::Ended => {}
            }
        }
        Ok((all, fault))
    }

    async fn take_turn(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: JobId,
    ) -> Result<Turn, Error> {
        let engine = Engine { inner: Arc::clone(self) };
        let key = job(organization, id);
        let Some(mut row) = self.store.get(&key).await? else { return Ok(Turn::Ended) };
        let mut job: Job = decode(&row)?;
        if job.status != Status::Running {
            return Ok(Turn::Ended);
        }
        let filter = filter_of(&job);
        if job.total.is_none() {
            job.total = Some(self.count(&engine, &job, &filter).await?);
            let Some(written) = self.write_job(row, &job).await? else {
                return Ok(Turn::More);
            };
            row = written;
        }
        let most = usize::try_from(job.left()).unwrap_or(TURN).min(TURN);
        let found = engine.history(organization, &filter, job.cursor, most.max(1)).await?;
        for execution in found.executions.iter().take(most) {
            if self.tasks.is_stopping() {
                return Ok(Turn::Ended);
            }
            let mut next = job.clone();
            let act = self.act(&engine, &job, &row, execution).await?;
            match act {
                Act::Later => return Ok(Turn::Later),
                Act::Committed(committed) => {
                    row = encode(&*committed)?;
                    job = *committed;
                    continue;
                }
                Act::Done => next.note(execution.id, true),
                Act::Failed => next.note(execution.id, false),
            }
            match self.write_job(row, &next).await? {
                Some(written) => (row, job) = (written, next),
                // The job was cancelled.
                None => return Ok(Turn::More),
            }
        }
        if found.more_after.is_some() && job.left() > 0 {
            if found.executions.is_empty() {
                // The search stopped at its limit without a match, so save its position.
                job.cursor = found.more_after;
                let _written_or_cancelled = self.write_job(row, &job).await?;
            }
            return Ok(Turn::More);
        }
        job.status = Status::Completed;
        job.completed_at = Some(self.clock.now().max(job.started_at));
        let _written_or_cancelled = self.write_job(row, &job).await?;
        Ok(Turn::Ended)
    }

    /// Writes the job's row and returns its bytes. Returns `None`, and writes nothing, if the row
    /// was changed concurrently.
    async fn write_job(&self, before: Vec<u8>, next: &Job) -> Result<Option<Vec<u8>>, Error> {
        let mut commit = Commit::new();
        put(&mut commit, before, next)?;
        let is_written = self.store.try_commit(commit).await?;
        Ok(if is_written { Some(encode(next)?) } else { None })
    }

    /// Counts the executions that the job will act on.
    async fn count(&self, engine: &Engine, job: &Job, filter: &Filter) -> Result<u64, Error> {
        let mut total = 0_u64;
        let mut after = None;
        while total < job.limit {
            let found = engine.history(job.organization, filter, after, COUNT_PAGE).await?;
            total = total.saturating_add(found.executions.len() as u64);
            after = found.more_after;
            if after.is_none() {
                break;
            }
        }
        Ok(total.min(job.limit))
    }

    async fn act(
        self: &Arc<Self>,
        engine: &Engine,
        job: &Job,
        row: &[u8],
        execution: &Execution,
    ) -> Result<Act, Error> {
        let (organization, id) = (job.organization, execution.id);
        let acted = match job.action {
            Action::Redrive => return self.redrive_once(engine, job, row, execution).await,
            Action::Cancel => engine.cancel(organization, id).await.map(drop),
            Action::Pause => {
                engine.pause_execution(organization, id, job.by.clone()).await.map(drop)
            }
            Action::Resume => engine.resume_execution(organization, id).await.map(drop),
            Action::Delete => {
                let mut next = job.clone();
                next.note(id, true);
                let mut beside = Commit::new();
                put(&mut beside, row.to_vec(), &next)?;
                let deleted = self.delete_ended(organization, id, beside).await;
                return act_of(deleted.map(|()| Act::Committed(Box::new(next))));
            }
        };
        act_of(acted.map(|()| Act::Done))
    }

    /// Redrives an execution in one commit with the job's row, so that each execution is redriven
    /// exactly once.
    async fn redrive_once(
        &self,
        engine: &Engine,
        job: &Job,
        row: &[u8],
        execution: &Execution,
    ) -> Result<Act, Error> {
        if execution.kind() != Kind::Workflow {
            return Ok(Act::Failed);
        }
        let mut next = job.clone();
        next.note(execution.id, true);
        let mut beside = Commit::new();
        put(&mut beside, row.to_vec(), &next)?;
        if let Some(run) = execution.workflow() {
            self.plans.count_run(&mut beside, run.workflow, &run.version);
        }
        let id: ExecutionId = new_id();
        let made = engine.redrive(execution, job.key, job.source, None, id, beside).await;
        act_of(made.map(|_| Act::Committed(Box::new(next))))
    }
}

/// Whether the store was restored and has not been resumed yet.
fn is_held_back(inner: &Inner) -> bool {
    inner.held_back.since().is_some()
}

/// Converts the result of an action. Transient errors are retried.
fn act_of(acted: Result<Act, Error>) -> Result<Act, Error> {
    match acted {
        Ok(act) => Ok(act),
        // If the job's row has changed, the job is read again.
        Err(Error::Storage(error)) if error.is_final() => Ok(Act::Failed),
        Err(
            Error::QueueFull { .. }
            | Error::TooManyQueued { .. }
            | Error::Failing { .. }
            | Error::Storage(_),
        ) => Ok(Act::Later),
        Err(error @ Error::Stopping) => Err(error),
        Err(_refused) => Ok(Act::Failed),
    }
}

/// Builds a filter that selects only executions that existed when the job started.
fn filter_of(job: &Job) -> Filter {
    let selection = job.selection.clone();
    Filter {
        standings: selection.standings,
        model: selection.model,
        classes: selection.classes,
        workflow: selection.workflow,
        parent: selection.parent,
        waits_for: None,
        key: None,
        from: selection.from,
        to: Some(selection.to.map_or(job.started_at, |to| to.min(job.started_at))),
    }
}
