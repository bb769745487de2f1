//! Following a prediction: its feed, whether it waits, runs or has ended.

use std::sync::Arc;

use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::engine::active::Handle;
use crate::engine::query::events::{EventLog, NewEvents};
use crate::engine::{Engine, Error};

/// One who follows a prediction. While there is one, the prediction's feed goes on.
#[derive(Debug)]
pub struct Follower {
    log: Arc<EventLog>,
    _active: Option<Handle>,
}

impl Follower {
    /// One who follows what the feed tells; the entry keeps an unfinished execution's feed.
    pub(super) const fn new(log: Arc<EventLog>, active: Option<Handle>) -> Self {
        Self { log, _active: active }
    }

    /// Tells the feed from every other; the numbers of events mean something within it alone.
    #[must_use]
    pub fn epoch(&self) -> &str {
        self.log.epoch()
    }

    /// What came behind the event `seen`; 0: everything that is kept.
    #[must_use]
    pub fn events_since(&self, seen: u64) -> NewEvents {
        self.log.events_since(seen)
    }

    /// Resolves once there is something behind `seen`, or nothing more will come.
    pub async fn changed(&self, seen: u64) {
        self.log.changed(seen).await;
    }
}

impl Engine {
    /// Follows a prediction.
    ///
    /// # Errors
    /// [`Error::NotFound`], also for another organization's and for what is not a prediction;
    /// [`Error::Storage`].
    pub async fn follow(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Follower, Error> {
        let inner = &self.inner;
        let active = inner.active.get_or_insert(id);
        // Under the lock of the state: what changes it tells the feed under the same.
        let mut state = active.state.lock().await;
        let execution = &inner.loaded(&mut state, organization, id).await?.execution;
        if execution.prediction().is_none() {
            return Err(Error::NotFound);
        }
        if execution.status.is_final() {
            let log =
                inner.event_logs.recent(id).unwrap_or_else(|| inner.event_logs.create(execution));
            return Ok(Follower { log, _active: None });
        }
        let log = active.run_progress.open_event_log(|| inner.event_logs.create(execution));
        drop(state);
        Ok(Follower { log, _active: Some(active) })
    }

    /// Resolves when the service begins to stop.
    pub async fn stopping(&self) {
        self.inner.tasks.stopping().await;
    }

    /// What the running attempt of an execution has written so far, beside its output.
    #[must_use]
    pub fn logs_so_far(&self, id: ExecutionId) -> Option<String> {
        self.inner.active.find(id)?.run_progress.logs()
    }
}
