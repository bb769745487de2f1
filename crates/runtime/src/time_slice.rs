//! Time slices: long work on a shared thread lets other tasks run at regular intervals.

use std::time::Duration;

use tokio::time::Instant;

use super::monotonic_now;

/// How long a task works before it lets other tasks run.
const SLICE: Duration = Duration::from_millis(2);

/// The current time slice of a task.
#[derive(Debug)]
pub struct TimeSlice {
    begun: Instant,
}

impl Default for TimeSlice {
    fn default() -> Self {
        Self { begun: monotonic_now() }
    }
}

impl TimeSlice {
    /// Lets other tasks run if the slice is used up.
    pub async fn end(&mut self) {
        if self.begun.elapsed() >= SLICE {
            tokio::task::yield_now().await;
            self.begun = monotonic_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_slice_yields_once_it_is_used_up() {
        let mut slice = TimeSlice::default();
        assert!(slice.end().now_or_never().is_some());
        tokio::time::advance(SLICE).await;
        assert!(slice.end().now_or_never().is_none(), "other tasks run first");
        slice.end().await;
        assert!(slice.end().now_or_never().is_some(), "the next slice has begun");
    }
}
