//! Timers: executions that were put aside until a moment, and go back to their lane when it comes.
//!
//! They stand on the disk alone, by time; only the next one is looked at. Whoever puts one aside
//! says so, in case it is due before the one that is waited for.

use std::sync::Arc;
use std::time::Duration;

use super::cells::Held;
use super::lanes::Ticket;
use super::{Error, Inner, Place, rows};
use crate::domain::execution::Execution;
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::machine;
use crate::domain::time::Timestamp;
use crate::storage::{Commit, Page};

/// Timers that are read at once.
const PAGE: usize = 256;
/// The longest sleep: a clock that is set is noticed then.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// When the timers are tried again after a failure.
const READ_AGAIN: Duration = Duration::from_secs(1);

impl Inner {
    /// Wakes what is due, for as long as the service runs.
    pub(super) async fn keep_time(self: Arc<Self>) {
        loop {
            let pause = match self.wake_due().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::error!(%error, "the timers cannot be read");
                    READ_AGAIN
                }
            };
            tokio::select! {
                () = self.tasks.stopping() => return,
                () = self.timers.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Wakes everything that is due; answers how long nothing else will be.
    async fn wake_due(self: &Arc<Self>) -> Result<Duration, Error> {
        loop {
            let page = Page { prefix: rows::timers(), after: None, before: None, limit: PAGE };
            let found = self.store.page(page).await?;
            let now = self.clock.steady();
            let timers = found.iter().filter_map(|(key, value)| rows::parse_timer(key, value));
            let (mut due, mut next) = (Vec::new(), None);
            for (moment, organization, id) in timers {
                if moment > now {
                    next = Some(moment);
                    break;
                }
                due.push((moment, organization, id));
            }
            if due.is_empty() {
                return Ok(next.map_or(LOOK_AGAIN, |next| next.since(now).min(LOOK_AGAIN)));
            }
            let waking = due.into_iter().map(|(due, owner, id)| self.wake(due, owner, id));
            for woken in futures_util::future::join_all(waking).await {
                woken?;
            }
            self.pump();
        }
    }

    /// Puts one execution back into its lane. A timer that nobody waits for any more is deleted, so
    /// that it does not come up for ever.
    async fn wake(
        &self,
        due: Timestamp,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<(), Error> {
        let cell = self.cells.enter(id);
        let mut state = cell.state.lock().await;
        if state.is_none() {
            let key = rows::execution(organization, id);
            *state = self.store.read::<Execution>(&key).await?.map(Held::from);
        }
        let mut next = state.as_ref().map(|held| held.execution.clone());
        let now = self.clock.steady();
        let effects = next.as_mut().map_or_else(Vec::new, |next| machine::wake(next, now));
        let (Some(held), Some(next), false) = (state.as_mut(), next, effects.is_empty()) else {
            let mut commit = Commit::new();
            commit.delete(rows::timer(due, id));
            return Ok(self.store.commit(commit).await?);
        };
        self.write(Commit::new(), &next, &effects, None).await?;
        let lane = next.lane();
        held.execution = next;
        drop(state);
        self.open_lane(&lane);
        let mut lanes = self.lanes();
        lanes.admit(&lane, 1);
        lanes.push(&lane, Ticket { id, payload: Place { organization, cell: Some(cell) } });
        Ok(())
    }
}
