//! Time-driven wakeups of the run loop.

use tokio::time::Instant;

use super::{Actor, MARK_AFTER, Wakeup};
use orrery_domain::machine::workflow::Event;
use orrery_runtime as runtime;

impl Actor {
    /// Returns the next scheduled wakeup; a single timer is enough for all of them.
    pub(super) fn alarm(
        &self,
        is_busy: bool,
        times_out_at: Option<Instant>,
    ) -> Option<(Instant, Wakeup)> {
        let now = runtime::monotonic_now();
        let timer = self.timers.first().map(|(due, _)| due.since(self.inner.clock.steady()));
        let idle_at = self.waits_since.map(|since| since + self.inner.options.suspend_after);
        let alarms = [
            timer.and_then(|rest| Some((now.checked_add(rest)?, Wakeup::Timer))),
            (!self.is_marked).then_some((self.begun + MARK_AFTER, Wakeup::Mark)),
            times_out_at.map(|at| (at, Wakeup::TimedOut)),
            idle_at.filter(|_| !is_busy).map(|at| (at, Wakeup::Idle)),
        ];
        alarms.into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Returns the time at which the workflow times out if it runs without interruption from now
    /// on.
    pub(super) fn times_out_at(&self) -> Option<Instant> {
        let limit = self.inner.options.workflow_timeout.saturating_sub(self.running_time);
        runtime::monotonic_now().checked_add(limit)
    }

    /// Removes the due timers and returns their events.
    pub(super) fn due(&mut self) -> Vec<Event> {
        let now = self.inner.clock.steady();
        let mut events = Vec::new();
        while let Some(first) = self.timers.first().filter(|(due, _)| *due <= now).cloned() {
            self.timers.remove(&first);
            events.push(Event::Due { instance: first.1 });
        }
        events
    }

    pub(super) fn timed_out(&self) -> Event {
        let limit = self.inner.options.workflow_timeout;
        Event::TimedOut {
            cause: format!("the workflow has been running for longer than {limit:?}"),
        }
    }
}
