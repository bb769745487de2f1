//! A crash point for tests: the process appears to crash right after a chosen commit became
//! durable.
//!
//! The chosen commit is on disk, but its caller never receives a result. Later commits are never
//! written.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

use super::store::Store;

#[derive(Debug)]
pub struct CrashPoint {
    /// The number of commits that still receive a result. The commit after these is written but
    /// receives no result.
    left: AtomicI64,
    crashed: Notify,
}

impl Default for CrashPoint {
    fn default() -> Self {
        Self { left: AtomicI64::new(i64::MAX), crashed: Notify::new() }
    }
}

impl CrashPoint {
    /// Blocks commits after the crash forever.
    pub(super) async fn before(&self) {
        if self.left.load(Ordering::SeqCst) < 0 {
            std::future::pending().await
        }
    }

    /// Blocks the commit at which the process crashes, and the other commits of its group, forever.
    pub(super) async fn after(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            self.crashed.notify_one();
            std::future::pending().await
        }
    }
}

impl Store {
    /// Lets `commits` more commits succeed and crashes at the commit after them.
    pub fn crash_after(&self, commits: i64) {
        self.shared.crash_point.left.store(commits, Ordering::SeqCst);
    }

    /// Resolves when the crash point has been reached.
    pub async fn crashed(&self) {
        self.shared.crash_point.crashed.notified().await;
    }
}
