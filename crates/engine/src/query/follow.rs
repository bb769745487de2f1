//! Following a prediction: gives access to the prediction's event log while it is queued or
//! running, and after it has ended.

use std::sync::Arc;

use crate::active::Handle;
use crate::query::events::{EventLog, NewEvents};
use crate::{Engine, Error};
use orrery_domain::ids::{ExecutionId, OrganizationId};

/// A follower of a prediction or a workflow execution. The follower keeps the event log alive.
#[derive(Debug)]
pub struct Follower {
    log: Arc<EventLog>,
    _active: Option<Handle>,
}

impl Follower {
    /// Creates a follower of a log. `active` keeps the execution's cell, and with it the log, alive
    /// while the execution is unfinished.
    pub(super) const fn new(log: Arc<EventLog>, active: Option<Handle>) -> Self {
        Self { log, _active: active }
    }

    /// Returns an id that distinguishes the log from every other log; event numbers are meaningful
    /// only within one log.
    #[must_use]
    pub fn epoch(&self) -> &str {
        self.log.epoch()
    }

    /// Returns the events after number `seen`. If `seen` is 0, returns all retained events.
    #[must_use]
    pub fn events_since(&self, seen: u64) -> NewEvents {
        self.log.events_since(seen)
    }

    /// Resolves once there is an event after `seen` or the log is closed.
    pub async fn changed(&self, seen: u64) {
        self.log.changed(seen).await;
    }
}

impl Engine {
    /// Follows a prediction.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such execution, it is not a prediction, or it belongs to
    /// another organization; [`Error::Storage`].
    pub async fn follow(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Follower, Error> {
        let inner = &self.inner;
        let logs = inner.news.event_logs();
        let active = inner.active.get_or_insert(id);
        // Read the state while it is locked, because state changes add their events under the same
        // lock.
        let mut state = active.state.lock().await;
        let execution = &inner.loaded(&mut state, organization, id).await?.execution;
        if execution.prediction().is_none() {
            return Err(Error::NotFound);
        }
        if execution.status.is_final() {
            let log = logs.recent(id).unwrap_or_else(|| logs.create(execution));
            return Ok(Follower { log, _active: None });
        }
        let log = active.run_progress.open_event_log(|| logs.create(execution));
        drop(state);
        Ok(Follower { log, _active: Some(active) })
    }

    /// Resolves when the service begins to shut down.
    pub async fn stopping(&self) {
        self.inner.tasks.stopping().await;
    }

    /// Returns the text logs of the running attempt so far, without the attempt's output.
    #[must_use]
    pub fn logs_so_far(&self, id: ExecutionId) -> Option<String> {
        self.inner.active.find(id)?.run_progress.logs()
    }
}
