//! Cancellation: stops an execution's run, frees its permit and removes its queue row.

use std::sync::Arc;

use crate::active::LoadedExecution;
use crate::query::events::RunProgress;
use crate::query::lists::Query;
use crate::rows::Standing;
use crate::trees::Tree;
use crate::{Engine, Error, Inner, rows};
use orrery_domain::execution::{Execution, Kind, Status, Work};
use orrery_domain::ids::{ExecutionId, OrganizationId, WorkflowId};
use orrery_domain::machine;
use orrery_domain::machine::workflow::Event;
use orrery_storage::Commit;

/// Page size when cancelling all executions of a workflow, and the maximum number of pages.
const PAGE: usize = 200;
const PAGES_MAX: usize = 100_000;

impl Engine {
    /// Cancels an execution immediately: stops its run and frees its permit. No webhook is sent.
    /// Cancelling a cancelled execution is not an error. If the execution is the root of a tree and
    /// has already ended, its unfinished descendants are cancelled.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::AlreadyEnded`], [`Error::Storage`] (nothing was changed).
    pub async fn cancel(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Execution, Error> {
        let inner = Arc::clone(&self.inner);
        // A client that disconnects must not interrupt the cancellation.
        let cancelling = self.inner.tasks.complete(async move {
            if let Some(root) = inner.cancel_rest_of_tree(organization, id).await? {
                return Ok(root);
            }
            let cancelled = inner.cancel(organization, id).await?;
            if cancelled.kind() == Kind::Agent {
                inner.cancel_children(organization, id).await?;
            }
            Ok(cancelled)
        });
        cancelling.await.unwrap_or(Err(Error::Stopping))
    }
}

impl Engine {
    /// Cancels every unfinished execution of a workflow, newest first. Returns the number of
    /// cancelled executions.
    ///
    /// # Errors
    /// [`Error::Storage`]: executions cancelled before the error stay cancelled.
    pub async fn cancel_all_of(
        &self,
        organization: OrganizationId,
        workflow: WorkflowId,
    ) -> Result<usize, Error> {
        let engine = self.clone();
        // A client that disconnects must not interrupt the loop.
        let cancelling = self.inner.tasks.complete(async move {
            let query =
                Query { bulk: None, standing: Some(Standing::Unfinished), offset: 0, limit: PAGE };
            let mut cancelled = 0;
            for _page in 0..PAGES_MAX {
                let (found, _total) = engine.executions_of(organization, workflow, query).await?;
                let before = cancelled;
                for execution in &found {
                    match engine.inner.cancel(organization, execution.id).await {
                        Ok(_) => cancelled += 1,
                        // The execution has ended in the meantime.
                        Err(Error::NotFound | Error::AlreadyEnded(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                if cancelled == before {
                    break;
                }
            }
            Ok(cancelled)
        });
        cancelling.await.unwrap_or(Err(Error::Stopping))
    }
}

impl Inner {
    pub(super) async fn cancel(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Execution, Error> {
        // Close the tree before waiting for the state lock, because a tree that keeps starting
        // descendants can saturate the disk and delay this cancellation.
        let closing = self.trees.find(organization, id).map(Tree::close);
        let active = self.active.get_or_insert(id);
        let mut state = match active.state.try_lock() {
            Ok(state) => state,
            Err(_locked) => {
                let own = rows::execution(organization, id);
                let is_own = self.store.read::<Execution>(&own).await?.is_some();
                let _waits = is_own.then(|| active.announce_cancellation());
                active.state.lock().await
            }
        };
        let loaded = self.loaded(&mut state, organization, id).await?;
        match loaded.execution.status {
            Status::Cancelled => return Ok(loaded.execution.clone()),
            Status::Success | Status::Error => return Err(Error::ended(&loaded.execution)),
            Status::Created | Status::Processing => {}
        }
        let lane = loaded.execution.lane();
        let was_suspended = loaded.execution.aside_until().is_some();
        let closing = match closing {
            Some(closing) => Some(closing),
            None => self.tree_to_close(&loaded.execution).await?,
        };
        let mut commit = Commit::of_cancellation();
        if let Some(closing) = closing {
            closing.record(&mut commit);
        }
        self.commit_cancel(loaded, commit, &active.run_progress).await?;
        let cancelled = loaded.execution.clone();
        active.stop.cancel();
        active.event.notify_one();
        self.isolation.quarantined().remove(&id);
        if !was_suspended {
            // Remove the execution from the lane while its state is locked. A task that has started
            // the execution in the meantime keeps its permit until this lock is released.
            let mut lanes = self.lanes();
            lanes.forget(&lane, id);
            if cancelled.kind() == Kind::Agent {
                lanes.remove_unused(&lane);
            }
        }
        drop(state);
        self.retries.clear(id);
        self.scheduler.wake();
        Ok(cancelled)
    }

    /// Cancels an execution. Also succeeds if the execution has already ended.
    pub(crate) async fn cancel_unwanted(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<(), Error> {
        match self.cancel(organization, id).await {
            Ok(_) | Err(Error::NotFound | Error::AlreadyEnded(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn commit_cancel(
        self: &Arc<Self>,
        loaded: &mut LoadedExecution,
        commit: Commit,
        run_progress: &RunProgress,
    ) -> Result<(), Error> {
        let now = self.clock.reading();
        let mut next = loaded.execution.clone();
        let Some(progress) = &loaded.progress else {
            if let Work::Prediction(prediction) = &mut next.work {
                prediction.add_logs(run_progress.logs());
            }
            let mut effects = Vec::new();
            if next.has_steps() {
                let steps = self.sum_cost(&mut next).await?;
                effects = machine::abandon(steps.iter().map(|(_, step)| step));
            }
            effects.extend(machine::cancel(&mut next, now.wall));
            self.write(commit, &next, &effects, None).await?;
            loaded.execution = next;
            return Ok(());
        };
        // Steps in flight are written as cancelled.
        let mut progress = progress.clone();
        let effects = progress.apply(&mut next, Event::Cancelled, now);
        self.write_progress(commit, &mut next, &mut progress, effects).await?;
        loaded.execution = next;
        loaded.progress = Some(progress);
        Ok(())
    }
}
