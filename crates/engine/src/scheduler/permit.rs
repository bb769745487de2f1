//! Model permits for work other than a lane's own executions, such as workflow steps and chat
//! router calls. The lane counts these permits toward its cap.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::Inner;
use orrery_domain::execution::lane_of_model;
use orrery_domain::ids::OrganizationId;
use orrery_runtime::{self as runtime, turns};

/// A model permit, or a waiting request for a model permit. Dropping this value releases the permit
/// or withdraws the request.
pub struct ModelPermit {
    inner: Arc<Inner>,
    lane: String,
    /// The organization that the permit counts for, if any.
    of: Option<OrganizationId>,
    /// While the request waits, its number in the lane and the channel that reports the grant.
    wait: Option<(u64, oneshot::Receiver<()>)>,
    /// The time of the request.
    since: Instant,
}

impl std::fmt::Debug for ModelPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelPermit").field("lane", &self.lane).finish_non_exhaustive()
    }
}

impl Inner {
    /// Requests a model permit on behalf of the task's organization. With `is_first`, the request
    /// is queued ahead of all others.
    pub(crate) fn acquire_permit(self: &Arc<Self>, slug: &str, is_first: bool) -> ModelPermit {
        let lane = lane_of_model(slug);
        self.open_lane(&lane);
        let inner = Arc::clone(self);
        let since = runtime::monotonic_now();
        let mut lanes = self.lanes();
        let of = turns::holder();
        if lanes.try_acquire(&lane, of) {
            drop(lanes);
            return ModelPermit { inner, lane, of, wait: None, since };
        }
        let (sender, granted) = oneshot::channel();
        let number = lanes.enqueue_step(&lane, of, sender, is_first);
        drop(lanes);
        // A permit may be free, and may not have been granted only because another lane or
        // execution had the next turn.
        self.scheduler.wake();
        ModelPermit { inner, lane, of, wait: Some((number, granted)), since }
    }
}

impl Inner {
    /// Takes a model permit on behalf of the task's organization if no other work waits for a
    /// permit, and another permit stays free for other work or the model has only one permit.
    pub(crate) fn acquire_spare_permit(self: &Arc<Self>, slug: &str) -> Option<ModelPermit> {
        let lane = lane_of_model(slug);
        self.open_lane(&lane);
        let of = turns::holder();
        let mut lanes = self.lanes();
        let load = lanes.load(&lane);
        let has_spare = load.running + usize::from(load.cap > 1) < load.cap;
        let is_taken = has_spare && load.queued == 0 && lanes.try_acquire(&lane, of);
        drop(lanes);
        let since = runtime::monotonic_now();
        is_taken.then(|| ModelPermit { inner: Arc::clone(self), lane, of, wait: None, since })
    }
}

impl ModelPermit {
    /// Whether the permit is already granted.
    pub const fn is_granted(&self) -> bool {
        self.wait.is_none()
    }

    /// Waits until the permit is granted.
    pub async fn granted(mut self) -> Self {
        if let Some((_, granted)) = &mut self.wait
            && granted.await.is_ok()
        {
            self.wait = None;
        }
        self
    }
}

impl Drop for ModelPermit {
    fn drop(&mut self) {
        if let Some((number, granted)) = &mut self.wait {
            granted.close();
            if granted.try_recv().is_err() {
                self.inner.lanes().cancel_wait(&self.lane, *number);
                return;
            }
        }
        self.inner.meters.ended(&self.lane, self.since.elapsed(), false);
        self.inner.lanes().release_step(&self.lane, self.of);
        self.inner.scheduler.wake();
    }
}
