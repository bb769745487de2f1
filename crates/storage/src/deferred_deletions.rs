//! Deferred deletions: an item is not deleted while a backup may still read it, nor before the log
//! archive contains the record that released it.
//!
//! The list is in memory only; after a crash, the sweep at the next start finds the items. This
//! module only keeps the list; its callers delete the items.

use std::collections::HashMap;
use std::hash::Hash;

use super::store::Store;

/// Items to delete later, of type `T`.
#[derive(Debug)]
pub struct DeferredDeletions<T> {
    pins: usize,
    /// Each item, with the number of the last log record at the time when its deletion was
    /// deferred.
    later: HashMap<T, u64>,
}

impl<T> Default for DeferredDeletions<T> {
    fn default() -> Self {
        Self { pins: 0, later: HashMap::new() }
    }
}

impl<T: Copy + Eq + Hash> DeferredDeletions<T> {
    /// Blocks deletions until [`DeferredDeletions::unpin`] has been called as many times as this
    /// function.
    pub fn pin(&mut self) {
        self.pins += 1;
    }

    /// Releases one pin.
    pub fn unpin(&mut self) {
        self.pins = self.pins.saturating_sub(1);
    }

    /// Whether there are any pins.
    #[must_use]
    pub const fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    /// Defers the deletion of `item` if it cannot be deleted yet. Returns whether the deletion was
    /// deferred.
    pub fn defer(&mut self, item: T, store: &Store) -> bool {
        let stays = self.is_pinned() || !store.is_archived();
        if stays {
            self.later.insert(item, store.last_record());
        }
        stays
    }

    /// Cancels the deletion of `item`, which is in use again.
    pub fn keep(&mut self, item: T) {
        self.later.remove(&item);
    }

    /// Returns the items that may be deleted now. Claim each one with [`DeferredDeletions::take`].
    #[must_use]
    pub fn due(&self, store: &Store) -> Vec<T> {
        let through = store.archived_through();
        let due = self.later.iter().filter(|(_, record)| !self.is_pinned() && **record <= through);
        due.map(|(item, _)| *item).collect()
    }

    /// Removes `item` from the deferred deletions if it may be deleted now. Returns whether the
    /// item was removed.
    pub fn take(&mut self, item: T, store: &Store) -> bool {
        let through = store.archived_through();
        let is_due = !self.is_pinned() && self.later.get(&item).is_some_and(|at| *at <= through);
        if is_due {
            self.later.remove(&item);
        }
        is_due
    }
}
