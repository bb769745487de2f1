//! Exponential backoff for restarting a failed process, so that failures never cause a restart
//! storm.

use std::time::Duration;

use tokio::time::Instant;

use orrery_runtime as runtime;

/// The delay after the first failure; each further consecutive failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Maximum delay.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The number of consecutive failures, and the earliest time of the next start.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
    not_before: Instant,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::between(FIRST_PAUSE, PAUSE_MAX)
    }
}

impl Backoff {
    /// Creates a backoff whose delay is `first` after the first failure and doubles with each
    /// further failure, up to `most`.
    #[must_use]
    pub fn between(first: Duration, most: Duration) -> Self {
        Self { first, most, failures: 0, not_before: runtime::monotonic_now() }
    }

    /// Returns the remaining delay before the next start.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.not_before.saturating_duration_since(runtime::monotonic_now())
    }

    /// Records a failure and returns the delay.
    pub fn failed(&mut self) -> Duration {
        let doubled = self.first.saturating_mul(2_u32.saturating_pow(self.failures));
        let pause = doubled.min(self.most);
        self.failures = self.failures.saturating_add(1);
        self.not_before = runtime::monotonic_now() + pause;
        pause
    }

    /// Starts the minimum delay without recording a failure.
    pub fn pause(&mut self) {
        self.not_before = runtime::monotonic_now() + self.first;
    }

    /// Records a success, which resets the number of consecutive failures.
    pub const fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_its_limit_and_resets() {
        let mut backoff = Backoff::default();
        assert!(backoff.left().is_zero());
        let pauses: Vec<u128> = (0..12).map(|_| backoff.failed().as_millis()).collect();
        assert_eq!(pauses[..4], [200, 400, 800, 1600]);
        assert_eq!(pauses[9..], [60_000; 3]);
        assert!(!backoff.left().is_zero());
        backoff.succeeded();
        assert_eq!(backoff.failed(), FIRST_PAUSE);
    }
}
