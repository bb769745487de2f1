//! Waiters: requests that hold their answer until an execution ends.
//!
//! Nothing of this is stored. A waiter registers, then looks at the store, then waits, so that an
//! end between the look and the wait is not missed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::domain::ids::ExecutionId;

/// Who waits for which execution. Bounded by the connections that the server takes.
#[derive(Debug, Default, Clone)]
pub struct Waiters {
    entries: Arc<Mutex<HashMap<ExecutionId, WaitEntry>>>,
}

#[derive(Debug, Default)]
struct WaitEntry {
    end: Arc<Notify>,
    taken: usize,
}

/// One who waits; dropping it gives the seat up.
#[derive(Debug)]
pub struct Waiter {
    waiters: Waiters,
    id: ExecutionId,
    end: Arc<Notify>,
}

impl Waiters {
    /// Registers one who will wait for the end of `id`.
    #[must_use]
    pub fn register(&self, id: ExecutionId) -> Waiter {
        let mut waiting = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = waiting.entry(id).or_default();
        entry.taken += 1;
        Waiter { waiters: self.clone(), id, end: Arc::clone(&entry.end) }
    }

    /// The execution has ended: wakes all who wait for it.
    pub fn wake(&self, id: ExecutionId) {
        let waiting = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = waiting.get(&id) {
            entry.end.notify_waiters();
        }
    }
}

impl Waiter {
    /// A future that resolves at the next [`Waiters::wake`]; it counts from this call on, also
    /// before it is first polled.
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
