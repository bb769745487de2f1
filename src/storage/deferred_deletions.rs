//! Deletions that wait: while a backup reads what is to go, and until the log archive has the record
//! that let go of it.
//!
//! Plain bookkeeping, kept in memory only: what a crash forgets is found by the sweep of the next
//! start. Nothing is deleted here.

use std::collections::HashMap;
use std::hash::Hash;

use super::store::Store;

/// What is to be deleted later, by `T`.
#[derive(Debug)]
pub struct DeferredDeletions<T> {
    pins: usize,
    /// Each with the last record of the log when it was to go.
    later: HashMap<T, u64>,
}

impl<T> Default for DeferredDeletions<T> {
    fn default() -> Self {
        Self { pins: 0, later: HashMap::new() }
    }
}

impl<T: Copy + Eq + Hash> DeferredDeletions<T> {
    /// Nothing is deleted until [`DeferredDeletions::unpin`] is called as often as this.
    pub fn pin(&mut self) {
        self.pins += 1;
    }

    /// Takes one pin back.
    pub fn unpin(&mut self) {
        self.pins = self.pins.saturating_sub(1);
    }

    /// Whether anybody holds a pin.
    #[must_use]
    pub const fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    /// Whether `item` has to stay for now; it is due later then.
    pub fn defer(&mut self, item: T, store: &Store) -> bool {
        let stays = self.is_pinned() || !store.is_archived();
        if stays {
            self.later.insert(item, store.last_record());
        }
        stays
    }

    /// Forgets the deletion of `item`, which is in use again.
    pub fn keep(&mut self, item: T) {
        self.later.remove(&item);
    }

    /// What may be deleted now. Each is to be claimed by [`DeferredDeletions::take`].
    #[must_use]
    pub fn due(&self, store: &Store) -> Vec<T> {
        let through = store.archived_through();
        let due = self.later.iter().filter(|(_, record)| !self.is_pinned() && **record <= through);
        due.map(|(item, _)| *item).collect()
    }

    /// Whether `item` is still to be deleted now; it is no longer deferred then.
    pub fn take(&mut self, item: T, store: &Store) -> bool {
        let through = store.archived_through();
        let is_due = !self.is_pinned() && self.later.get(&item).is_some_and(|at| *at <= through);
        if is_due {
            self.later.remove(&item);
        }
        is_due
    }
}
