//! The pace of a sweep: deletions go in small batches with pauses between them, so that the store's writer
//! serves everyone else.
//!
//! It never stops a sweep, and never makes one wait that has found nothing to delete.

use std::time::Duration;

use tokio::time::Instant;

use super::monotonic_now;

/// Between two batches …
const PAUSE: Duration = Duration::from_millis(20);
/// … and between those of a sweep that has not ended after [`BEHIND_AFTER`]: more is made than goes.
const PAUSE_BEHIND: Duration = Duration::from_millis(5);
const BEHIND_AFTER: Duration = Duration::from_secs(60);

/// One sweep, from its first batch to its last.
#[derive(Debug, Clone, Copy)]
pub struct SweepPace {
    begun: Instant,
}

impl SweepPace {
    /// Of a sweep that begins now.
    #[must_use]
    pub fn begin() -> Self {
        Self { begun: monotonic_now() }
    }

    /// Waits before the next batch; `deleted` is what went in the last one.
    pub async fn pause(&self, deleted: usize) {
        if deleted > 0 {
            let is_behind = self.begun.elapsed() > BEHIND_AFTER;
            tokio::time::sleep(if is_behind { PAUSE_BEHIND } else { PAUSE }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sweep_that_is_behind_pauses_less_and_one_that_deletes_nothing_never() {
        let pace = SweepPace::begin();
        let paused = async |deleted| {
            let before = monotonic_now();
            pace.pause(deleted).await;
            before.elapsed()
        };
        assert_eq!(paused(0).await, Duration::ZERO);
        assert_eq!(paused(64).await, PAUSE);
        tokio::time::sleep(BEHIND_AFTER).await;
        assert_eq!(paused(64).await, PAUSE_BEHIND);
        assert_eq!(paused(0).await, Duration::ZERO);
    }
}
