//! Watches: notifications that rows under a prefix have changed, without the rows' contents.
//!
//! The writer marks watches once a commit is durable and visible, and never waits for a watcher:
//! several changes between two reads of a watch are reported as one. The cost of a commit depends
//! on its rows, not on the number of watches.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::key::Key;
use super::memtable::Rows;

/// Maximum prefixes per watch. Each prefix takes one bit of a 32-bit number.
pub(crate) const PREFIXES_MAX: usize = 32;
/// Maximum concurrent watches.
const WATCHES_MAX: usize = 1024;

#[derive(Debug)]
struct Marks {
    prefixes: Vec<Key>,
    changed: AtomicU32,
    notify: Notify,
}

/// A watch, and the bit that represents one of its prefixes.
#[derive(Debug)]
struct Watcher {
    number: u64,
    marks: Arc<Marks>,
    bit: u32,
}

#[derive(Debug, Default)]
struct Index {
    watches: usize,
    by_prefix: HashMap<Vec<u8>, Vec<Watcher>>,
    /// The number of prefixes of each length in `by_prefix`.
    lengths: BTreeMap<usize, usize>,
}

/// All watches of a store.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    next: AtomicU64,
    count: AtomicUsize,
    index: Mutex<Index>,
}

impl Index {
    fn add(&mut self, number: u64, marks: &Arc<Marks>) {
        self.watches += 1;
        for (at, prefix) in marks.prefixes.iter().enumerate() {
            let prefix = prefix.as_bytes();
            let watchers = self.by_prefix.entry(prefix.to_vec()).or_default();
            if watchers.is_empty() {
                *self.lengths.entry(prefix.len()).or_default() += 1;
            }
            watchers.push(Watcher { number, marks: Arc::clone(marks), bit: 1 << at });
        }
    }

    fn remove(&mut self, number: u64, marks: &Marks) {
        self.watches -= 1;
        for prefix in &marks.prefixes {
            let prefix = prefix.as_bytes();
            let Some(watchers) = self.by_prefix.get_mut(prefix) else { continue };
            watchers.retain(|watcher| watcher.number != number);
            if !watchers.is_empty() {
                continue;
            }
            self.by_prefix.remove(prefix);
            let Some(count) = self.lengths.get_mut(&prefix.len()) else { continue };
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }
}

impl Watches {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts watching these prefixes. Returns `None` if there are too many watches or prefixes.
    pub(crate) fn watch(self: &Arc<Self>, prefixes: Vec<Key>) -> Option<Watch> {
        let mut index = self.index();
        if index.watches >= WATCHES_MAX || prefixes.len() > PREFIXES_MAX {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let marks = Arc::new(Marks { prefixes, changed: AtomicU32::new(0), notify: Notify::new() });
        index.add(number, &marks);
        self.count.store(index.watches, Ordering::Release);
        drop(index);
        Some(Watch { number, marks, watches: Arc::clone(self) })
    }

    /// Returns the watches that match these rows, which are to be marked once the rows are visible.
    pub(crate) fn touched_by(&self, rows: &Rows) -> Vec<Touched> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let index = self.index();
        let mut touched: HashMap<u64, Touched> = HashMap::new();
        for length in index.lengths.keys() {
            let mut last: &[u8] = &[];
            for key in rows.keys() {
                let Some(prefix) = key.as_bytes().get(..*length) else { continue };
                // Rows are in key order, so rows with the same prefix are adjacent.
                if prefix == last {
                    continue;
                }
                last = prefix;
                for watcher in index.by_prefix.get(prefix).into_iter().flatten() {
                    let none = || Touched { marks: Arc::clone(&watcher.marks), found: 0 };
                    touched.entry(watcher.number).or_insert_with(none).found |= watcher.bit;
                }
            }
        }
        touched.into_values().collect()
    }
}

/// A watch, and its prefixes whose rows are about to change.
#[derive(Debug)]
pub(crate) struct Touched {
    marks: Arc<Marks>,
    found: u32,
}

impl Touched {
    pub(crate) fn mark(self) {
        self.marks.changed.fetch_or(self.found, Ordering::AcqRel);
        self.marks.notify.notify_one();
    }
}

/// A watch, which ends when dropped.
#[derive(Debug)]
pub struct Watch {
    number: u64,
    marks: Arc<Marks>,
    watches: Arc<Watches>,
}

impl Watch {
    /// Waits for changes. Returns the indexes of the prefixes that have changed since the last
    /// call.
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
        let mut index = self.watches.index();
        index.remove(self.number, &self.marks);
        self.watches.count.store(index.watches, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Table;

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
    async fn watches_of_nested_and_shared_prefixes_are_all_marked() {
        let watches = Arc::new(Watches::default());
        let of_table = watches.watch(vec![Key::table(Table::File)]).unwrap();
        let row = key(1).raw(b"row");
        let both = watches.watch(vec![row.clone(), key(1), key(2)]).unwrap();
        let other = watches.watch(vec![key(1), row.raw(b"longer")]).unwrap();
        write(&watches, &[1]);
        assert_eq!(of_table.changed().await, [0]);
        assert_eq!(both.changed().await, [0, 1]);
        assert_eq!(other.changed().await, [0]);
        // Dropping one watch leaves the others unaffected.
        drop(both);
        write(&watches, &[1, 2]);
        assert_eq!((of_table.changed().await, other.changed().await), (vec![0], vec![0]));
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
        let index = watches.index();
        assert!(index.watches == 0 && index.by_prefix.is_empty() && index.lengths.is_empty());
    }
}
