//! The pace of the writer: while many executions report their progress, commits gather for a moment before
//! one sync makes them durable.
//!
//! A sync takes as much processor time as several commits, and under such a load every core has other work to
//! do until it begins. Only commits of work that was accepted before count: a client waits for each of the
//! others, and with few in flight nothing is delayed.

use std::time::Duration;

use tokio::time::Instant;

/// The time over which commits are counted.
const WINDOW: Duration = Duration::from_millis(5);
/// Commits in a window that make the writer wait for more: beyond what one execution after the other brings.
const MANY: usize = 24;
/// How long it waits, which is about as long as a sync takes.
const PAUSE: Duration = Duration::from_micros(200);

/// Counts what comes.
#[derive(Debug)]
pub struct Pace {
    began: Instant,
    /// Commits since then.
    count: usize,
    /// Commits in the window before.
    before: usize,
}

impl Pace {
    /// Nothing has come yet.
    pub const fn new(now: Instant) -> Self {
        Self { began: now, count: 0, before: 0 }
    }

    /// Notes a commit of work that was accepted before.
    pub const fn note(&mut self) {
        self.count = self.count.saturating_add(1);
    }

    /// How long a group that begins now waits for more commits.
    pub fn pause(&mut self, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.began);
        if passed >= WINDOW {
            // As many in a longer time are not many.
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
        let start = crate::runtime::monotonic_now();
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
