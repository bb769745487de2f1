//! Pausing: a paused execution starts no steps until it is resumed. Steps in flight finish; then
//! the execution leaves its lane and uses no memory. Paused time does not count toward timeouts.

use std::sync::Arc;

use crate::active::LoadedExecution;
use crate::{Engine, Error, Inner, rows};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::machine;
use orrery_domain::machine::workflow::{Event, shift_due};
use orrery_storage::Commit;

impl Engine {
    /// Pauses a workflow execution and records `by` as the reason. If the execution is already
    /// paused, nothing changes.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::AlreadyEnded`], [`Error::Storage`] (nothing was changed).
    pub async fn pause_execution(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
        by: String,
    ) -> Result<Execution, Error> {
        self.change_pause(organization, id, Some(by)).await
    }

    /// Resumes a paused execution. An execution that is not paused is left unchanged.
    ///
    /// # Errors
    /// The same errors as [`Engine::pause_execution`].
    pub async fn resume_execution(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Execution, Error> {
        self.change_pause(organization, id, None).await
    }

    async fn change_pause(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
        by: Option<String>,
    ) -> Result<Execution, Error> {
        let inner = Arc::clone(&self.inner);
        // The change must complete even if the client disconnects. Otherwise, the store could
        // contain queue rows that are missing from their lanes in memory.
        let changing = self
            .inner
            .tasks
            .complete(async move { inner.change_pause(organization, id, by).await });
        changing.await.unwrap_or(Err(Error::Stopping))
    }
}

impl Inner {
    async fn change_pause(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
        by: Option<String>,
    ) -> Result<Execution, Error> {
        let active = self.active.get_or_insert(id);
        let mut state = active.state.lock().await;
        let loaded = self.loaded(&mut state, organization, id).await?;
        let run = loaded.execution.workflow().ok_or(Error::NotFound)?;
        if loaded.execution.status.is_final() {
            return Err(Error::ended(&loaded.execution));
        }
        if run.paused.is_some() == by.is_some() {
            return Ok(loaded.execution.clone());
        }
        let is_running = loaded.progress.is_some() && run.aside_until.is_none();
        let was_suspended = run.aside_until.is_some();
        if is_running {
            self.change_running(loaded, by).await?;
            self.news.tell_pause(&loaded.execution);
            active.event.notify_one();
        } else {
            let pauses = by.is_some();
            self.change_waiting(loaded, by).await?;
            self.news.tell_pause(&loaded.execution);
            if pauses && !was_suspended {
                let lane = loaded.execution.lane();
                self.lanes().forget(&lane, id);
                self.retries.clear(id);
                self.scheduler.wake();
            }
        }
        Ok(loaded.execution.clone())
    }

    /// Pauses or resumes a running execution; its task continues with the new state.
    async fn change_running(
        self: &Arc<Self>,
        loaded: &mut LoadedExecution,
        by: Option<String>,
    ) -> Result<(), Error> {
        let Some(progress) = &loaded.progress else { return Ok(()) };
        let mut next = loaded.execution.clone();
        let mut progress = progress.clone();
        let event = by.map_or(Event::Resumed, |by| Event::Paused { by });
        let effects = progress.apply(&mut next, event, self.clock.reading());
        self.write_progress(Commit::new(), &mut next, &mut progress, effects).await?;
        loaded.execution = next;
        loaded.progress = Some(progress);
        Ok(())
    }

    /// Pauses or resumes a queued or suspended execution.
    async fn change_waiting(
        self: &Arc<Self>,
        loaded: &mut LoadedExecution,
        by: Option<String>,
    ) -> Result<(), Error> {
        let mut next = loaded.execution.clone();
        let now = self.clock.steady();
        let mut commit = Commit::new();
        let effects = match by {
            Some(by) => machine::pause(&mut next, by, now),
            None => {
                let (effects, paused_for) = machine::resume(&mut next, now);
                let revision = next.workflow().map(|run| run.revision);
                let plan = match revision {
                    Some(revision) => self.plans.plan(revision).await?,
                    None => None,
                };
                for (instance, mut step) in self.read_steps(next.id).await? {
                    let kind = plan.as_ref().and_then(|plan| plan.at(instance.step));
                    if kind.is_some_and(|kind| shift_due(&kind.kind, &mut step, paused_for)) {
                        commit.put(rows::step(next.id, &instance), &step)?;
                    }
                }
                effects
            }
        };
        self.write(commit, &next, &effects, None).await?;
        loaded.execution = next;
        Ok(())
    }
}
