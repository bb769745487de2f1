//! The doors to what differs from run to run: the clock, randomness, and tasks that a shutdown
//! waits for. Everything above takes these as arguments, so that tests bring their own.

pub mod memory;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::domain::ids::Id;
use crate::domain::time::Timestamp;

/// Tells the time: the machine's, or one that a test sets.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    scripted: Option<Arc<AtomicI64>>,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub const fn system() -> Self {
        Self { scripted: None }
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    #[must_use]
    pub fn scripted(start: Timestamp) -> Self {
        Self { scripted: Some(Arc::new(AtomicI64::new(start.micros()))) }
    }

    /// Moves a scripted clock; the machine's own is not moved by this.
    pub fn advance(&self, span: Duration) {
        if let Some(micros) = &self.scripted {
            micros.fetch_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
        }
    }

    /// Now, in UTC.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the door to the clock")]
    pub fn now(&self) -> Timestamp {
        if let Some(micros) = &self.scripted {
            return Timestamp::from_micros(micros.load(Ordering::SeqCst));
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX))
    }
}

/// A new id: UUID version 7, later than every one made before it in this process.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the door to new ids")]
pub fn fresh<T: Id>() -> T {
    T::from(Uuid::now_v7())
}

/// Bytes from the operating system's random source.
///
/// # Errors
/// When the operating system gives none; nothing secret may be made then.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_unspecified| NoRandomness)?;
    Ok(bytes)
}

/// The operating system gave no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gave no random bytes")]
pub struct NoRandomness;

/// Starts tasks and ends them: the one door to `tokio::spawn`.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stopping: CancellationToken,
}

impl Tasks {
    /// None running, not stopping.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `task` until it ends. A shutdown waits for it, within its grace.
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
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

    /// Waits until every task has ended, `grace` at most. Says whether all did.
    pub async fn ended(&self, grace: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(grace, self.tracker.wait()).await.is_ok()
    }
}
