//! Watches: who wants to know that rows under a prefix have changed, and nothing about what they hold.
//!
//! The writer marks them once a commit is durable and visible. It never waits for anybody: what changes
//! while nobody looks is one mark.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::key::Key;
use super::memtable::Rows;

/// Prefixes of one watch: each has a bit.
pub const PREFIXES_MAX: usize = 32;
/// Watches at the same time.
const WATCHES_MAX: usize = 1024;

#[derive(Debug)]
struct Marks {
    prefixes: Vec<Key>,
    changed: AtomicU32,
    notify: Notify,
}

/// All watches of a store.
#[derive(Debug, Default)]
pub struct Watches {
    next: AtomicU64,
    count: AtomicUsize,
    all: Mutex<HashMap<u64, Arc<Marks>>>,
}

impl Watches {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<Marks>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to watch these prefixes; `None` if there are too many watches or prefixes.
    pub fn watch(self: &Arc<Self>, prefixes: Vec<Key>) -> Option<Watch> {
        let mut all = self.all();
        if all.len() >= WATCHES_MAX || prefixes.len() > PREFIXES_MAX {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let marks = Arc::new(Marks { prefixes, changed: AtomicU32::new(0), notify: Notify::new() });
        all.insert(number, Arc::clone(&marks));
        self.count.store(all.len(), Ordering::Release);
        drop(all);
        Some(Watch { number, marks, watches: Arc::clone(self) })
    }

    /// The watches whose rows are among these: to be marked once the rows are visible.
    pub fn touched_by(&self, rows: &Rows) -> Vec<Touched> {
        let mut touched = Vec::new();
        if self.count.load(Ordering::Acquire) == 0 {
            return touched;
        }
        for marks in self.all().values() {
            let mut found = 0;
            for (at, prefix) in marks.prefixes.iter().enumerate() {
                let first = rows.range::<Key, _>(prefix..).next();
                if first.is_some_and(|(key, _)| key.as_bytes().starts_with(prefix.as_bytes())) {
                    found |= 1 << at;
                }
            }
            if found != 0 {
                touched.push(Touched { marks: Arc::clone(marks), found });
            }
        }
        touched
    }
}

/// A watch with the prefixes under which rows are about to change.
#[derive(Debug)]
pub struct Touched {
    marks: Arc<Marks>,
    found: u32,
}

impl Touched {
    pub fn mark(self) {
        self.marks.changed.fetch_or(self.found, Ordering::AcqRel);
        self.marks.notify.notify_one();
    }
}

/// A watch; it ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    number: u64,
    marks: Arc<Marks>,
    watches: Arc<Watches>,
}

impl Watch {
    /// The indexes of the prefixes under which rows have changed since the last call, once there is one.
    pub async fn changed(&self) -> Vec<usize> {
        loop {
            let marks = self.marks.changed.swap(0, Ordering::AcqRel);
            if marks != 0 {
                let is_marked = |at: &usize| marks & (1 << at) != 0;
                return (0..self.marks.prefixes.len()).filter(is_marked).collect();
            }
            self.marks.notify.notified().await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut all = self.watches.all();
        all.remove(&self.number);
        self.watches.count.store(all.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Table;

    fn key(number: u8) -> Key {
        Key::table(Table::File).raw(&[number])
    }

    fn write(watches: &Watches, numbers: &[u8]) {
        let rows = numbers.iter().map(|number| (key(*number).raw(b"row"), None)).collect();
        watches.touched_by(&rows).into_iter().for_each(Touched::mark);
    }

    #[tokio::test]
    async fn watch_reports_changed_prefixes_once() {
        let watches = Arc::new(Watches::default());
        write(&watches, &[1]);
        let watch = watches.watch(vec![key(1), key(2), key(3)]).unwrap();
        write(&watches, &[0, 3, 4]);
        write(&watches, &[1]);
        assert_eq!(watch.changed().await, [0, 2]);
        let (found, ()) = tokio::join!(watch.changed(), async { write(&watches, &[2, 9]) });
        assert_eq!(found, [1]);
    }

    #[tokio::test]
    async fn watches_are_bounded_and_end_when_dropped() {
        let watches = Arc::new(Watches::default());
        let mut held: Vec<Watch> = Vec::new();
        while let Some(watch) = watches.watch(vec![key(1)]) {
            held.push(watch);
        }
        assert_eq!(held.len(), WATCHES_MAX);
        held.pop();
        assert!(watches.watch(vec![key(1); PREFIXES_MAX + 1]).is_none());
        assert!(watches.watch(vec![key(1)]).is_some());
        drop(held);
        assert!(watches.all().is_empty());
    }
}
