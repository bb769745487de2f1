//! A crash point for tests: the process appears to die right after a chosen commit became durable.
//!
//! The chosen commit is on disk, but its caller is never answered; later commits are
//! never written. Only tests have it.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

use super::store::Store;

#[derive(Debug)]
pub struct CrashPoint {
    /// Commits that are still answered; the next one after them is written and not answered.
    left: AtomicI64,
    crashed: Notify,
}

impl Default for CrashPoint {
    fn default() -> Self {
        Self { left: AtomicI64::new(i64::MAX), crashed: Notify::new() }
    }
}

impl CrashPoint {
    /// Blocks forever a commit that comes after the crash.
    pub(super) async fn before(&self) {
        if self.left.load(Ordering::SeqCst) < 0 {
            std::future::pending().await
        }
    }

    /// Blocks forever the commit at which the process crashes, and those in its group.
    pub(super) async fn after(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            self.crashed.notify_one();
            std::future::pending().await
        }
    }
}

impl Store {
    /// Lets `commits` more commits be answered, then crashes.
    pub fn crash_after(&self, commits: i64) {
        self.shared.crash_point.left.store(commits, Ordering::SeqCst);
    }

    /// Resolves when the crash point has been reached.
    pub async fn crashed(&self) {
        self.shared.crash_point.crashed.notified().await;
    }
}
