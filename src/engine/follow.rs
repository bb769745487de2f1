//! Following a prediction: its feed, whether it waits, runs or has ended.

use std::sync::Arc;

use super::cells::{Held, Hold};
use super::feed::{Feed, News};
use super::{Engine, Error, rows};
use crate::domain::execution::Execution;
use crate::domain::ids::{ExecutionId, OrganizationId};

/// One who follows a prediction. While there is one, the prediction's feed goes on.
#[derive(Debug)]
pub struct Follower {
    feed: Arc<Feed>,
    _cell: Option<Hold>,
}

impl Follower {
    /// Tells the feed from every other; the numbers of events mean something within it alone.
    #[must_use]
    pub fn epoch(&self) -> &str {
        self.feed.epoch()
    }

    /// What came behind the event `seen`; 0: everything that is kept.
    #[must_use]
    pub fn news(&self, seen: u64) -> News {
        self.feed.news(seen)
    }

    /// Resolves once there is something behind `seen`, or nothing more will come.
    pub async fn changed(&self, seen: u64) {
        self.feed.changed(seen).await;
    }
}

impl Engine {
    /// Follows a prediction.
    ///
    /// # Errors
    /// [`Error::NotFound`], also for another organization's and for what is no prediction;
    /// [`Error::Storage`].
    pub async fn follow(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Follower, Error> {
        let inner = &self.inner;
        let cell = inner.cells.enter(id);
        // Under the lock of the state: what changes it tells the feed under the same.
        let mut state = cell.state.lock().await;
        if state.is_none() {
            let stored = inner.store.read::<Execution>(&rows::execution(organization, id)).await?;
            *state = stored.map(Held::from);
        }
        let execution = state
            .as_ref()
            .map(|held| &held.execution)
            .filter(|execution| execution.organization == organization)
            .filter(|execution| execution.prediction().is_some())
            .ok_or(Error::NotFound)?;
        if execution.status.is_final() {
            let feed = inner.feeds.recent(id).unwrap_or_else(|| inner.feeds.make(execution));
            return Ok(Follower { feed, _cell: None });
        }
        let feed = cell.told.open_feed(|| inner.feeds.make(execution));
        drop(state);
        Ok(Follower { feed, _cell: Some(cell) })
    }

    /// Resolves when the service begins to stop.
    pub async fn stopping(&self) {
        self.inner.tasks.stopping().await;
    }

    /// What the running attempt of an execution has written so far, beside its output.
    #[must_use]
    pub fn logs_so_far(&self, id: ExecutionId) -> Option<String> {
        self.inner.cells.find(id)?.told.logs()
    }
}
