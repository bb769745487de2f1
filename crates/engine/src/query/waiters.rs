//! Waiters: requests that delay their response until an execution ends.
//!
//! Waiters are not persisted. A waiter registers, reads the store and only then waits, so it cannot
//! miss an end between the read and the wait.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use orrery_domain::ids::ExecutionId;

/// The waiters of each execution. The server's connection limit bounds the number of waiters.
#[derive(Debug, Default, Clone)]
pub(crate) struct Waiters {
    entries: Arc<Mutex<HashMap<ExecutionId, WaitEntry>>>,
}

#[derive(Debug, Default)]
struct WaitEntry {
    end: Arc<Notify>,
    taken: usize,
}

/// A registered waiter; dropping it unregisters it.
#[derive(Debug)]
pub struct Waiter {
    waiters: Waiters,
    id: ExecutionId,
    end: Arc<Notify>,
}

impl Waiters {
    /// Registers a waiter for the end of `id`.
    #[must_use]
    pub(crate) fn register(&self, id: ExecutionId) -> Waiter {
        let mut waiting = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = waiting.entry(id).or_default();
        entry.taken += 1;
        Waiter { waiters: self.clone(), id, end: Arc::clone(&entry.end) }
    }

    /// Wakes all waiters of an ended execution.
    pub(crate) fn wake(&self, id: ExecutionId) {
        let waiting = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = waiting.get(&id) {
            entry.end.notify_waiters();
        }
    }
}

impl Waiter {
    /// Returns a future that resolves at the next [`Waiters::wake`]. Calls to `wake` from now on
    /// count, even before the future is first polled.
    pub fn woken(&self) -> tokio::sync::futures::Notified<'_> {
        self.end.notified()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.waiters.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut entry) = waiting.entry(self.id) {
            entry.get_mut().taken = entry.get().taken.saturating_sub(1);
            if entry.get().taken == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiter_sees_wake_before_first_poll_and_unregisters_on_drop() {
        let waiters = Waiters::default();
        let id = ExecutionId::from([1; 16]);
        let first = waiters.register(id);
        let second = waiters.register(id);
        let one = first.woken();
        let two = second.woken();
        waiters.wake(id);
        one.await;
        two.await;
        drop((first, second));
        assert!(waiters.entries.lock().unwrap().is_empty());
    }
}
