//! Events that steps wait for. Each event is accepted once, under the lock of its execution, and
//! stored until its step consumes it.

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::rows::{self, SentEvent};
use crate::{Engine, Error, Inner};
use orrery_domain::definition::{Plan, STEPS_MAX};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::machine;
use orrery_domain::step::{EventSource, Instance, Step};
use orrery_storage::{Commit, Page};

/// Maximum number of stored events per execution that match no step of its plan.
const EVENTS_MAX: usize = 100;
/// Maximum number of stored events per execution.
pub(crate) const ROWS_MAX: usize = EVENTS_MAX + STEPS_MAX;

impl Engine {
    /// Accepts an event whose payload the caller has validated. The first event with a given name
    /// wins. The event is durable when this function returns.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::AlreadyEnded`], [`Error::AlreadyAnswered`],
    /// [`Error::TooManyEvents`], [`Error::HeldBack`], [`Error::Storage`]: nothing was changed.
    pub async fn send_event(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
        name: String,
        payload: Box<RawValue>,
        source: EventSource,
    ) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        let event = SentEvent { payload, source, at: inner.clock.now() };
        // The send must complete even if the client disconnects. Otherwise, the event could be
        // stored without its step being notified.
        let sending = self
            .inner
            .tasks
            .complete(async move { inner.take_event(organization, id, &name, event).await });
        sending.await.unwrap_or(Err(Error::Stopping))
    }
}

impl Inner {
    async fn take_event(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
        name: &str,
        event: SentEvent,
    ) -> Result<(), Error> {
        if self.held_back.since().is_some() {
            return Err(Error::HeldBack);
        }
        let active = self.active.get_or_insert(id);
        // Hold the lock until the commit has returned, because the end of the step is committed
        // under the same lock.
        let mut state = active.state.lock().await;
        let loaded = self.loaded(&mut state, organization, id).await?;
        let run = loaded.execution.workflow().ok_or(Error::NotFound)?;
        if loaded.execution.status.is_final() {
            return Err(Error::ended(&loaded.execution));
        }
        let answered = || Error::AlreadyAnswered(name.to_owned());
        let plan = self.plans.plan(run.revision).await?;
        let waits = plan.as_deref().and_then(|plan| plan.event(name));
        if let Some((step, _)) = waits {
            let instance = Instance::of(step.position);
            let step = match &loaded.progress {
                Some(progress) => progress.step(&instance).cloned(),
                None => self.store.read::<Step>(&rows::step(id, &instance)).await?,
            };
            if step.is_some_and(|step| step.status.is_final()) {
                return Err(answered());
            }
        }
        let key = rows::event(id, name);
        if self.store.get(&key).await?.is_some() {
            return Err(answered());
        }
        let page = Page::of(rows::events(id), ROWS_MAX);
        if waits.is_none() && self.store.page(page).await?.len() >= EVENTS_MAX {
            return Err(Error::TooManyEvents(EVENTS_MAX));
        }
        let mut commit = Commit::of_new_work();
        commit.create(key, &event)?;
        let mut next = loaded.execution.clone();
        let aside = next.workflow().and_then(|run| run.aside_until);
        let effects = aside.map_or_else(Vec::new, |due| machine::wake(&mut next, due));
        if effects.is_empty() {
            self.store.commit(commit).await?;
            active.event.notify_one();
        } else {
            self.write(commit, &next, &effects, None).await?;
            loaded.execution = next;
        }
        Ok(())
    }

    /// Returns the event that was sent to a step, if any.
    pub(crate) async fn sent_event(
        &self,
        plan: &Plan,
        id: ExecutionId,
        instance: &Instance,
    ) -> Result<Option<SentEvent>, Error> {
        let event = plan.at(instance.step).and_then(|step| step.kind.event());
        let Some(event) = event else { return Ok(None) };
        Ok(self.store.read(&rows::event(id, &event.name)).await?)
    }
}
