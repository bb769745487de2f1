//! The pace of the writer: under load, the writer waits briefly so that more commits share one
//! sync.
//!
//! A sync takes as much CPU time as several commits, and under load, every core has other work to
//! do. Only commits for already accepted work count as load. Clients wait for all other commits, so
//! other commits alone never cause a delay.

use std::time::Duration;

use tokio::time::Instant;

/// The time over which commits are counted.
const WINDOW: Duration = Duration::from_millis(5);
/// The number of commits per window from which the writer waits for more commits. Executions that
/// run one at a time make fewer commits per window.
const MANY: usize = 24;
/// The writer's wait for more commits, about as long as a sync takes.
const PAUSE: Duration = Duration::from_micros(200);

/// Counts commits to measure their rate.
#[derive(Debug)]
pub(crate) struct Pace {
    began: Instant,
    /// Commits in the current window.
    count: usize,
    /// Commits in the previous window.
    before: usize,
}

impl Pace {
    /// Creates a counter with a count of zero.
    pub(crate) const fn new(now: Instant) -> Self {
        Self { began: now, count: 0, before: 0 }
    }

    /// Counts a commit for accepted work.
    pub(crate) const fn note(&mut self) {
        self.count = self.count.saturating_add(1);
    }

    /// Returns how long a group that begins now should wait for more commits.
    pub(crate) fn pause(&mut self, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.began);
        if passed >= WINDOW {
            // If the window lasted much longer than [`WINDOW`], its number of commits is not a high
            // rate.
            self.before = if passed < WINDOW.saturating_mul(2) { self.count } else { 0 };
            (self.began, self.count) = (now, 0);
        }
        (self.before >= MANY).then_some(PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_pauses_only_after_window_of_many_commits() {
        let start = orrery_runtime::monotonic_now();
        let at = |windows: u32| start + WINDOW.saturating_mul(windows);
        let mut pace = Pace::new(start);
        let note = |pace: &mut Pace, count| (0..count).for_each(|_| pace.note());
        note(&mut pace, MANY);
        assert_eq!(pace.pause(start), None, "the first window is not over");
        assert_eq!(pace.pause(at(1)), Some(PAUSE));
        note(&mut pace, MANY - 1);
        assert_eq!(pace.pause(at(1)), Some(PAUSE));
        assert_eq!(pace.pause(at(2)), None);
        note(&mut pace, MANY);
        assert_eq!(pace.pause(at(4)), None, "they came in twice the time");
    }
}
