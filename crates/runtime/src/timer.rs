//! A reusable timer for a task that waits repeatedly and is mostly woken by other events. The timer
//! need not be rearmed for each wait.
//!
//! The timer may fire early, at a deadline that was set for an earlier wait. So the waiting task
//! must check what is due.

use std::future::pending;
use std::pin::Pin;

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer whose deadline can be moved. Before a deadline is set, the timer never fires.
#[derive(Debug, Default)]
pub struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Makes the timer fire at `at` at the latest.
    pub fn ring_by(&mut self, at: Instant) {
        match &mut self.sleep {
            Some(sleep) if sleep.is_elapsed() || at < sleep.deadline() => sleep.as_mut().reset(at),
            Some(_earlier) => {}
            None => self.sleep = Some(Box::pin(sleep_until(at))),
        }
    }

    /// Resolves when the timer fires; immediately if it has fired since it was set.
    pub async fn rings(&mut self) {
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().await,
            None => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::Timer;
    use crate::monotonic_now;

    #[tokio::test(start_paused = true)]
    async fn timer_fires_at_earliest_time_and_can_be_set_again() {
        let begun = monotonic_now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut timer = Timer::default();
        assert!(timer.rings().now_or_never().is_none());
        timer.ring_by(after(5));
        timer.ring_by(after(9));
        timer.rings().await;
        assert_eq!(begun.elapsed().as_secs(), 5);
        timer.ring_by(after(9));
        assert!(timer.rings().now_or_never().is_none());
        timer.ring_by(after(7));
        timer.rings().await;
        assert_eq!(begun.elapsed().as_secs(), 7);
    }
}
