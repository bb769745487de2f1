//! The only access to the clock, randomness, new ids, and tasks that a shutdown waits for.
//! `clippy.toml` forbids other ways to read a clock, start a task or create an id.
//!
//! Higher layers take a [`Clock`] and [`Tasks`] as arguments, so that tests can replace them. An id
//! from [`new_id`] is greater than all earlier ids of the process, even if the machine's clock is
//! set back.
//!
//! This crate also contains what several layers use: fair permits ([`turns`]), background threads
//! ([`Background`]), rate limits for recurring log messages, and the detection of transient
//! resource shortages.

pub mod crash_note;
pub mod memory;
pub mod regular_file;
pub mod shortage;
pub mod turns;

mod background;
#[cfg(any(test, feature = "test-support"))]
mod captured_log;
mod clock;
mod completing;
mod poll_turns;
mod recurring;
mod shared_answers;
#[cfg(debug_assertions)]
mod shift;
mod sweep_pace;
mod time_slice;
mod timer;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::{ContextV7, Uuid};

pub use self::background::{Background, yield_to_requests};
#[cfg(any(test, feature = "test-support"))]
pub use self::captured_log::CapturedLog;
pub use self::clock::Clock;
pub use self::completing::{Completing, Panicked};
use self::poll_turns::PollTurns;
pub use self::recurring::Recurring;
pub use self::shared_answers::SharedAnswers;
pub use self::sweep_pace::SweepPace;
pub use self::time_slice::TimeSlice;
pub use self::timer::Timer;
use orrery_domain::ids::{Id, OrganizationId};

/// Keeps ids in creation order, regardless of changes to the machine's clock.
static IDS: Mutex<ContextV7> = Mutex::new(ContextV7::new());

/// Creates an id: a UUID of version 7, greater than every id that this process has created or
/// passed to [`ids_follow`].
#[must_use]
pub fn new_id<T: Id>() -> T {
    let micros = u64::try_from(clock::machine_time().micros()).unwrap_or(0);
    T::from(id_at(micros))
}

/// Makes every new id greater than `earlier`, an id that an earlier process created. Needed because
/// the machine's clock may have been set back.
pub fn ids_follow<T: Id>(earlier: T) {
    let micros = u64::try_from(earlier.made_at().micros()).unwrap_or(0);
    let _one_a_millisecond_later = id_at(micros.saturating_add(1000));
}

fn id_at(micros: u64) -> Uuid {
    let seconds = micros / 1_000_000;
    let rest = micros % 1_000_000;
    let nanos = u32::try_from(rest * 1000).unwrap_or(0);
    let context = IDS.lock().unwrap_or_else(PoisonError::into_inner);
    Uuid::new_v7(uuid::Timestamp::from_unix(&*context, seconds, nanos))
}

/// The current monotonic time, for measurements and deadlines in this process. In a test with a
/// paused clock, this time does not advance, and neither do tokio's timers.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the only access to the monotonic clock")]
pub fn monotonic_now() -> Instant {
    Instant::now()
}

/// Returns bytes from the operating system's random source.
///
/// # Errors
/// If the operating system returns no bytes. In that case, no secret may be created.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_unspecified| NoRandomness)?;
    Ok(bytes)
}

/// The operating system returned no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operating system returned no random bytes")]
pub struct NoRandomness;

/// Spawns and stops tasks: the only place that calls `tokio::spawn`.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stopping: CancellationToken,
    /// The threads on which the tasks run; `None` means the threads of the spawning task.
    home: Option<Handle>,
    polls: Arc<PollTurns>,
}

impl Tasks {
    /// Creates an empty set of tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the same set of tasks; tasks spawned through the result run on the threads of
    /// `home`.
    #[must_use]
    pub fn on(&self, home: &Background) -> Self {
        Self { home: Some(home.handle().clone()), ..self.clone() }
    }

    /// Runs `task` to completion. A shutdown waits for the task, within the grace period.
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        match &self.home {
            Some(home) => self.tracker.spawn_on(task, home),
            None => self.tracker.spawn(task),
        }
    }

    /// Like [`Tasks::spawn`], on behalf of an organization: even if many of its tasks are ready,
    /// tasks of other organizations are polled in between.
    pub fn spawn_for<F>(
        &self,
        organization: OrganizationId,
        task: F,
    ) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn(self.polls.of(organization, turns::on_behalf_of(organization, task)))
    }

    /// Runs work that continues in its own task if its caller is dropped. A shutdown waits for the
    /// work, within the grace period.
    pub fn complete<F>(&self, work: F) -> Completing<F>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        Completing::new(work, self.tracker.clone())
    }

    /// Runs a task that lives as long as some other resource, such as the reader of a process's
    /// output. A shutdown does not wait for the task.
    #[expect(
        clippy::disallowed_methods,
        reason = "the only way to start tasks that nobody waits for"
    )]
    pub fn attend<F>(task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        drop(tokio::spawn(task));
    }

    /// Resolves when a shutdown has begun.
    pub async fn stopping(&self) {
        self.stopping.cancelled().await;
    }

    /// Whether a shutdown has begun.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// A token that is cancelled when a shutdown begins.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.stopping.clone()
    }

    /// Begins the shutdown: [`Tasks::stopping`] resolves everywhere.
    pub fn stop(&self) {
        self.stopping.cancel();
        self.tracker.close();
    }

    /// Waits for up to `grace` until every task has ended. Returns whether all tasks have ended.
    pub async fn ended(&self, grace: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(grace, self.tracker.wait()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_domain::ids::ExecutionId;

    #[test]
    fn ids_increase_after_process_whose_clock_was_ahead() {
        let before: ExecutionId = new_id();
        let mut ahead = before.bytes();
        // About 4.6 hours later.
        ahead[3] = ahead[3].wrapping_add(1);
        let ahead = ExecutionId::from(ahead);
        if ahead > before {
            ids_follow(ahead);
        }
        let made: Vec<ExecutionId> = (0..1000).map(|_| new_id()).collect();
        assert!(made.is_sorted() && made[0] > before && (ahead < before || made[0] > ahead));
    }
}
