//! Timers: executions that are suspended until a due time and then return to their lane.
//!
//! Timers are stored only on disk, sorted by time, and only the earliest timer is polled. Code that
//! suspends an execution notifies this task, because the new timer may be the first to be due.

use std::sync::Arc;
use std::time::Duration;

use crate::active::LoadedExecution;
use crate::{Error, Inner, rows};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::machine;
use orrery_domain::time::Timestamp;
use orrery_storage::{Commit, Page};

/// Maximum number of timers that are woken concurrently.
const WAKING_MAX: usize = 256;
/// Maximum sleep, so that clock changes are noticed.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Retry delay after a failure.
const REREAD_DELAY: Duration = Duration::from_secs(1);

/// A due timer.
type Due = (Timestamp, OrganizationId, ExecutionId);

impl Inner {
    /// Wakes due executions until the service stops.
    pub(crate) async fn run_timers(self: Arc<Self>) {
        loop {
            let pause = match self.wake_due().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::error!(%error, "cannot read the timers");
                    REREAD_DELAY
                }
            };
            tokio::select! {
                () = self.tasks.stopping() => return,
                () = self.timers.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Wakes all due executions. Returns the time until the next timer is due. If an execution
    /// cannot be woken, the other executions are still woken, and waking this execution is retried
    /// after its own delay.
    async fn wake_due(self: &Arc<Self>) -> Result<Duration, Error> {
        let mut pause = RECHECK_INTERVAL;
        let mut scan = self.store.scan(Page::of(rows::timers(), WAKING_MAX));
        while let Some(found) = scan.next_page().await? {
            let now = self.clock.steady();
            let timers = found.iter().filter_map(|(key, value)| rows::parse_timer(key, value));
            let mut waking = Vec::new();
            for (moment, organization, id) in timers {
                if moment > now {
                    let next = moment.since(now);
                    self.wake_all(waking, &mut pause).await;
                    return Ok(pause.min(next));
                }
                if self.retries.find(id).is_some() {
                    pause = REREAD_DELAY;
                } else {
                    waking.push((moment, organization, id));
                }
            }
            self.wake_all(waking, &mut pause).await;
        }
        Ok(pause)
    }

    /// Wakes each of the executions independently. If an execution cannot be woken, shortens
    /// `pause`.
    async fn wake_all(self: &Arc<Self>, due: Vec<Due>, pause: &mut Duration) {
        let waking = due.into_iter().map(|(due, owner, id)| async move {
            let woken = self.wake(due, owner, id).await;
            (id, woken)
        });
        for (id, woken) in futures_util::future::join_all(waking).await {
            match woken {
                Ok(()) => self.retries.clear(id),
                Err(error) => {
                    let cause = "the service could not read or write its data";
                    self.retries.note(id, None, cause, &error, self.clock.steady());
                    *pause = REREAD_DELAY;
                }
            }
        }
    }

    /// Puts one execution back into its lane. Deletes a timer that is no longer needed, so that it
    /// is not found again.
    async fn wake(
        self: &Arc<Self>,
        due: Timestamp,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<(), Error> {
        if due == rows::ABANDONED {
            return self.cancel_abandoned(organization, id).await;
        }
        let active = self.active.get_or_insert(id);
        let mut state = active.state.lock().await;
        if state.is_none() {
            let key = rows::execution(organization, id);
            *state = self.store.read::<Execution>(&key).await?.map(LoadedExecution::from);
        }
        let mut next = state.as_ref().map(|loaded| loaded.execution.clone());
        // An ended child wakes its parent, regardless of what the parent is waiting for.
        let until = next.as_ref().and_then(|next| next.workflow()?.aside_until);
        let is_child = due == rows::CHILD_ENDED;
        let now = until.filter(|_| is_child).unwrap_or_else(|| self.clock.steady());
        let effects = next.as_mut().map_or_else(Vec::new, |next| machine::wake(next, now));
        let (Some(loaded), Some(next), false) = (state.as_mut(), next, effects.is_empty()) else {
            let mut commit = Commit::new();
            commit.delete(rows::timer(due, id));
            return Ok(self.store.commit(commit).await?);
        };
        let mut commit = Commit::new();
        if is_child {
            commit.delete(rows::timer(due, id));
        }
        self.write(commit, &next, &effects, None).await?;
        loaded.execution = next;
        Ok(())
    }
}
