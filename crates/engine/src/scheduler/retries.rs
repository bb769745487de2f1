//! Retries of executions after internal errors (a disk error, a panic in the engine): records when
//! each execution is retried, and why.
//!
//! Such an error never ends an execution or marks it as failed. The execution's row stays in place,
//! and the execution is retried after a delay that grows from [`Backoff::first`] to
//! [`Backoff::max`]. This state is only in memory, so after a restart, the executions are retried
//! at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use orrery_domain::ids::ExecutionId;
use orrery_domain::time::Timestamp;
use orrery_runtime as runtime;

/// The retry delay of a failed execution, which doubles after each failure.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    pub first: Duration,
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), max: Duration::from_secs(60) }
    }
}

impl Backoff {
    /// Returns the delay after `failures` consecutive failures.
    fn delay_after(self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(doubled).min(self.max)
    }
}

/// The pending retry of an execution, as shown to clients. The underlying error appears only in the
/// log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delay {
    pub cause: &'static str,
    /// Number of consecutive failures.
    pub failures: u32,
    /// The time of the next retry.
    pub at: Timestamp,
}

#[derive(Debug)]
struct Retry {
    delay: Delay,
    /// The time of the next retry; `None` while the execution is being retried.
    due: Option<Instant>,
    /// The lane in which the execution waits; `None` if the timers retry it.
    lane: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct State {
    retries: HashMap<ExecutionId, Retry>,
    due: BTreeSet<(Instant, ExecutionId)>,
}

/// Executions that have failed with an internal error and have not recovered since.
#[derive(Debug)]
pub(crate) struct Retries {
    backoff: Backoff,
    state: Mutex<State>,
    /// The number of entries in `state`. Usually it is 0, in which case no lock is taken.
    count: AtomicUsize,
}

impl Retries {
    pub(crate) fn new(pauses: Backoff) -> Self {
        Self { backoff: pauses, state: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// Records a failure and schedules a retry. The first failing execution is logged as an error,
    /// and further ones as warnings.
    pub(crate) fn note(
        &self,
        id: ExecutionId,
        lane: Option<Arc<str>>,
        cause: &'static str,
        error: &dyn std::fmt::Display,
        now: Timestamp,
    ) {
        let mut state = self.state();
        let failures = state.retries.get(&id).map_or(0, |retry| retry.delay.failures);
        let failures = failures.saturating_add(1);
        match (failures, state.retries.len()) {
            (1, 0) => tracing::error!(execution = %id, %error, "execution waits for a retry"),
            (1, _) => tracing::warn!(execution = %id, %error, "execution waits for a retry"),
            _ => tracing::debug!(execution = %id, %error, failures, "retry failed"),
        }
        let pause = self.backoff.delay_after(failures);
        let due = runtime::monotonic_now() + pause;
        let delay = Delay { cause, failures, at: now.plus(pause) };
        let before = state.retries.insert(id, Retry { delay, due: Some(due), lane });
        if let Some(earlier) = before.and_then(|retry| retry.due) {
            state.due.remove(&(earlier, id));
        }
        state.due.insert((due, id));
        self.count.store(state.retries.len(), Ordering::Release);
    }

    /// Removes an execution because it has recovered, has ended or was cancelled.
    pub(crate) fn clear(&self, id: ExecutionId) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state();
        let Some(retry) = state.retries.remove(&id) else { return };
        if let Some(due) = retry.due {
            state.due.remove(&(due, id));
        }
        if state.retries.is_empty() {
            tracing::info!("no executions left to retry");
        }
        self.count.store(state.retries.len(), Ordering::Release);
    }

    /// Takes the executions in lanes whose delay has elapsed; from then on, they count as being
    /// retried.
    pub(crate) fn take_due(&self) -> Vec<(Arc<str>, ExecutionId)> {
        let mut taken = Vec::new();
        if self.count.load(Ordering::Acquire) == 0 {
            return taken;
        }
        let now = runtime::monotonic_now();
        let mut state = self.state();
        while let Some((due, id)) = state.due.first().copied().filter(|(due, _)| *due <= now) {
            state.due.remove(&(due, id));
            let Some(retry) = state.retries.get_mut(&id) else { continue };
            retry.due = None;
            taken.extend(retry.lane.clone().map(|lane| (lane, id)));
        }
        taken
    }

    /// Returns the time at which the next delay ends.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.state().due.first().map(|(due, _)| *due)
    }

    /// Returns the pending retry of an execution, if there is one.
    pub(crate) fn find(&self, id: ExecutionId) -> Option<Delay> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let state = self.state();
        let retry = state.retries.get(&id).filter(|retry| retry.due.is_some())?;
        Some(retry.delay.clone())
    }

    /// Returns the number of executions that have failed with an internal error and have not
    /// recovered since.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_backoff_doubles_up_to_maximum() {
        let pauses = Backoff::default();
        let seconds = |failures| pauses.delay_after(failures).as_secs();
        assert_eq!([1, 2, 3, 6, 7, 40].map(seconds), [1, 2, 4, 32, 60, 60]);
    }

    #[tokio::test(start_paused = true)]
    async fn retry_is_due_once_after_its_delay() {
        let retries = Retries::new(Backoff::default());
        let id = ExecutionId::from([1; 16]);
        let lane = Arc::<str>::from("a");
        let now = Timestamp::from_micros(0);
        let note = || retries.note(id, Some(Arc::clone(&lane)), "why", &"error", now);
        note();
        assert_eq!(retries.find(id).map(|delay| delay.failures), Some(1));
        assert_eq!(retries.take_due(), []);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(retries.take_due(), [(Arc::clone(&lane), id)]);
        assert_eq!((retries.take_due(), retries.find(id)), (Vec::new(), None), "it is being tried");
        note();
        assert_eq!(retries.find(id).map(|delay| delay.at), Some(now.plus(Duration::from_secs(2))));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((retries.take_due(), retries.len()), (Vec::new(), 1));
        retries.clear(id);
        assert_eq!((retries.next_due(), retries.len()), (None, 0));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(retries.take_due(), []);
    }
}
