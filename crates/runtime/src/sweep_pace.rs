//! The pace of a sweep. Sweeps delete in small batches with pauses, so that the store's writer can
//! serve other requests.
//!
//! A pace never stops a sweep, and adds no pause to a sweep that deletes nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::monotonic_now;

/// The pause between two batches.
const PAUSE: Duration = Duration::from_millis(20);
/// The pause in a sweep that is still running after [`BEHIND_AFTER`]. Such a sweep is falling
/// behind: records are created faster than it deletes them.
const PAUSE_BEHIND: Duration = Duration::from_millis(5);
const BEHIND_AFTER: Duration = Duration::from_secs(60);

/// A sweep in progress.
#[derive(Debug, Clone, Copy)]
pub struct SweepPace {
    begun: Instant,
}

impl SweepPace {
    /// Starts the timing of a sweep.
    #[must_use]
    pub fn begin() -> Self {
        Self { begun: monotonic_now() }
    }

    /// Waits before the next batch. `deleted` is the size of the last batch.
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
    async fn sweep_pauses_less_when_behind_and_never_without_deletions() {
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
