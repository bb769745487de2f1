//! Permits: places at a model for what runs beside its lane's own executions, such as the steps of
//! workflows and the calls of the chat router. The lane counts them all together.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::domain::execution::lane_of_model;
use crate::engine::Inner;
use crate::runtime::{self, turns};

/// A place at a model, or the wait for one; dropping it gives it up.
pub struct ModelPermit {
    inner: Arc<Inner>,
    lane: String,
    /// The guest's number and what tells it, while it waits.
    wait: Option<(u64, oneshot::Receiver<()>)>,
    /// When it was asked for.
    since: Instant,
}

impl std::fmt::Debug for ModelPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelPermit").field("lane", &self.lane).finish_non_exhaustive()
    }
}

impl Inner {
    /// A place at the model, or the wait for one, on behalf of the task's organization. One that is `first` waits before all others.
    pub(in crate::engine) fn acquire_permit(
        self: &Arc<Self>,
        slug: &str,
        is_first: bool,
    ) -> ModelPermit {
        let lane = lane_of_model(slug);
        self.open_lane(&lane);
        let inner = Arc::clone(self);
        let since = runtime::monotonic_now();
        let mut lanes = self.lanes();
        if lanes.try_acquire(&lane) {
            drop(lanes);
            return ModelPermit { inner, lane, wait: None, since };
        }
        let (sender, granted) = oneshot::channel();
        let number = lanes.enqueue_step(&lane, turns::holder(), sender, is_first);
        drop(lanes);
        // A place may be free that only the turn keeps from it.
        self.scheduler.wake();
        ModelPermit { inner, lane, wait: Some((number, granted)), since }
    }
}

impl ModelPermit {
    /// Whether it has its place already.
    pub const fn is_granted(&self) -> bool {
        self.wait.is_none()
    }

    /// The place, once it is given.
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
        self.inner.lanes().release_step(&self.lane);
        self.inner.scheduler.wake();
    }
}
