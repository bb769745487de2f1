//! A fuse for tests: the process seems to die right after a chosen commit became durable.
//!
//! The commit at which it blows is on the disk but its caller never learns so; later commits are
//! never written. Only tests have it.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

use super::store::Store;

#[derive(Debug)]
pub struct Fuse {
    /// Commits that are still answered; the next one after them is written and not answered.
    left: AtomicI64,
    blown: Notify,
}

impl Default for Fuse {
    fn default() -> Self {
        Self { left: AtomicI64::new(i64::MAX), blown: Notify::new() }
    }
}

impl Fuse {
    /// Holds a commit forever that comes after the death.
    pub(super) async fn before(&self) {
        if self.left.load(Ordering::SeqCst) < 0 {
            std::future::pending().await
        }
    }

    /// Holds the commit forever at which the process dies, and those that were written with it.
    pub(super) async fn after(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            self.blown.notify_one();
            std::future::pending().await
        }
    }
}

impl Store {
    /// Lets `commits` more commits be answered.
    pub fn blow_after(&self, commits: i64) {
        self.shared.fuse.left.store(commits, Ordering::SeqCst);
    }

    /// Resolves when the fuse has blown.
    pub async fn blown(&self) {
        self.shared.fuse.blown.notified().await;
    }
}
