//! The memtable: rows that are durable in the log but not yet in the tree, in key order.
//!
//! The writer publishes all rows of a group of commits at once: a row carries the number of its
//! group, and readers see only groups up to the last published number. A [`Snapshot`] consists of
//! this number and the layers at the time it was taken, so all of its reads are consistent, however
//! long they take. There are at most two layers: the active layer receives new groups, and the
//! frozen layer is being moved into the tree. No lock is held for more than [`CHUNK`] rows.
//!
//! Three rules keep the tree and the layers consistent. Only rows of a frozen layer are written to
//! the tree. A layer is dropped once all of its rows are in the tree. And a checkpoint begins only
//! when no snapshot is older than the frozen layer's last group, so that no reader finds rows in
//! the tree that are newer than its snapshot ([`Memtable::wait_for_readers`]).

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use super::key::Key;

/// The rows of one or more commits; `None` deletes a row.
pub(crate) type Rows = BTreeMap<Key, Option<Vec<u8>>>;

/// The number of rows read or written each time a layer's lock is acquired.
const CHUNK: usize = 64;

/// A row's newest value, and the older values that snapshots may still need.
#[derive(Debug)]
struct Slot {
    number: u64,
    value: Option<Vec<u8>>,
    /// Older values, oldest first.
    older: Vec<(u64, Option<Vec<u8>>)>,
}

impl Slot {
    const fn new(number: u64, value: Option<Vec<u8>>) -> Self {
        Self { number, value, older: Vec::new() }
    }

    /// Returns the value as of group `number`, or `None` if the row had not been written by then.
    fn as_of(&self, number: u64) -> Option<&Option<Vec<u8>>> {
        if self.number <= number {
            return Some(&self.value);
        }
        self.older.iter().rev().find(|(older, _)| *older <= number).map(|(_, value)| value)
    }

    /// Adds a newer value, and drops the older values that no snapshot with a number of at least
    /// `oldest` can see.
    fn put(&mut self, number: u64, value: Option<Vec<u8>>, oldest: u64) {
        let before = std::mem::replace(&mut self.value, value);
        self.older.push((self.number, before));
        self.number = number;
        let needed = self.older.iter().rposition(|(older, _)| *older <= oldest).unwrap_or(0);
        self.older.drain(..needed);
    }
}

/// An ordered map of rows.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    rows: RwLock<BTreeMap<Key, Slot>>,
}

/// A row of a layer: its key, and its value unless deleted.
pub(crate) type Entry = (Key, Option<Vec<u8>>);

impl Layer {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Key, Slot>> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: &[u8], number: u64) -> Option<Option<Vec<u8>>> {
        self.read().get(key).and_then(|slot| slot.as_of(number)).cloned()
    }

    /// Whether the layer has a row or a deletion for the key. Call this function only on a frozen
    /// layer.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.read().contains_key(key)
    }

    /// Returns the newest published value. The published number is read under the lock: if it were
    /// read earlier, the values as of that number might already have been dropped.
    fn newest(&self, key: &[u8], published: &AtomicU64) -> Option<Option<Vec<u8>>> {
        let map = self.read();
        let number = published.load(Ordering::Acquire);
        map.get(key).and_then(|slot| slot.as_of(number)).cloned()
    }

    fn publish(&self, number: u64, rows: impl Iterator<Item = Entry>, oldest: u64) {
        let mut rows = rows.peekable();
        while rows.peek().is_some() {
            let mut map = self.rows.write().unwrap_or_else(PoisonError::into_inner);
            for (key, value) in rows.by_ref().take(CHUNK) {
                match map.entry(key) {
                    btree_map::Entry::Occupied(mut slot) => {
                        slot.get_mut().put(number, value, oldest);
                    }
                    btree_map::Entry::Vacant(slot) => {
                        slot.insert(Slot::new(number, value));
                    }
                }
            }
        }
    }

    /// Returns up to `most` rows from `from` on, as of group `number`, and the key at which to
    /// continue (`None` at the end).
    fn chunk(&self, from: Bound<&[u8]>, number: u64, most: usize) -> (Vec<Entry>, Option<Vec<u8>>) {
        let map = self.read();
        let mut found = Vec::with_capacity(most);
        let mut looked = map.range::<[u8], _>((from, Bound::Unbounded));
        for (key, slot) in looked.by_ref().take(CHUNK) {
            if let Some(value) = slot.as_of(number) {
                found.push((key.clone(), value.clone()));
            }
            if found.len() >= most {
                break;
            }
        }
        let next = looked.next().map(|(key, _)| key.as_bytes().to_vec());
        (found, next)
    }

    /// Passes the newest value of every row to `take`, in order. Call this function only on a
    /// frozen layer, since it holds the layer's lock.
    pub(crate) fn each<E>(
        &self,
        mut take: impl FnMut(&Key, Option<&[u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read().iter().try_for_each(|(key, slot)| take(key, slot.value.as_deref()))
    }

    /// Whether the layer has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// The number of rows in the layer.
    pub(crate) fn len(&self) -> usize {
        self.read().len()
    }
}

/// A layer that accepts no more rows, and the number of its last group.
#[derive(Debug, Clone)]
pub(crate) struct Frozen {
    pub layer: Arc<Layer>,
    pub number: u64,
}

#[derive(Debug, Default)]
struct Layers {
    active: Arc<Layer>,
    frozen: Option<Frozen>,
}

/// The layers and their readers.
#[derive(Debug)]
pub(crate) struct Memtable {
    layers: RwLock<Layers>,
    published: AtomicU64,
    /// The number of snapshots for each group number.
    readers: Mutex<BTreeMap<u64, usize>>,
    reader_left: Condvar,
}

impl Memtable {
    /// Creates an empty memtable after group `number`.
    pub(crate) fn new(number: u64) -> Self {
        Self {
            layers: RwLock::default(),
            published: AtomicU64::new(number),
            readers: Mutex::default(),
            reader_left: Condvar::new(),
        }
    }

    fn layers(&self) -> std::sync::RwLockReadGuard<'_, Layers> {
        self.layers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn readers(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last visible group.
    pub(crate) fn published(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Makes all rows of group `number` visible at once. Only one thread calls this function, with
    /// increasing numbers.
    pub(crate) fn publish(&self, number: u64, rows: Rows) {
        let oldest = {
            let published = self.published();
            self.readers().first_key_value().map_or(published, |(oldest, _)| published.min(*oldest))
        };
        let active = Arc::clone(&self.layers().active);
        active.publish(number, rows.into_iter(), oldest);
        self.published.store(number, Ordering::Release);
    }

    /// Adds the rows of group `number` at startup. There are no readers yet, so older values are
    /// dropped.
    pub(crate) fn load(&mut self, number: u64, rows: Vec<Entry>) {
        let layers = self.layers.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut map = layers.active.rows.write().unwrap_or_else(PoisonError::into_inner);
        map.extend(rows.into_iter().map(|(key, value)| (key, Slot::new(number, value))));
        *self.published.get_mut() = number;
    }

    /// Returns the newest value of a row: `Some(None)` if it was deleted, `None` if the memtable
    /// does not contain the row.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let (active, frozen) = self.both();
        let newest = active.newest(key, &self.published);
        newest.or_else(|| frozen.and_then(|frozen| frozen.newest(key, &self.published)))
    }

    fn both(&self) -> (Arc<Layer>, Option<Arc<Layer>>) {
        let layers = self.layers();
        let frozen = layers.frozen.as_ref().map(|frozen| Arc::clone(&frozen.layer));
        (Arc::clone(&layers.active), frozen)
    }

    /// Takes a snapshot of the current state.
    pub(crate) fn snapshot(self: &Arc<Self>) -> Snapshot {
        // Register as a reader before reading the layers; see the module documentation.
        let number = {
            let mut readers = self.readers();
            let number = self.published();
            *readers.entry(number).or_default() += 1;
            number
        };
        let (active, frozen) = self.both();
        let layers = [Some(active), frozen].into_iter().flatten().collect();
        Snapshot { memtable: Arc::clone(self), number, layers }
    }

    /// Freezes the active layer and starts a new one. Returns `None` if the active layer is empty
    /// or another layer is already frozen.
    pub(crate) fn freeze(&self) -> Option<Frozen> {
        let mut layers = self.layers.write().unwrap_or_else(PoisonError::into_inner);
        if layers.frozen.is_some() || layers.active.is_empty() {
            return None;
        }
        let layer = std::mem::take(&mut layers.active);
        let frozen = Frozen { layer, number: self.published() };
        layers.frozen = Some(frozen.clone());
        Some(frozen)
    }

    /// Waits until no snapshot is older than group `number`.
    pub(crate) fn wait_for_readers(&self, number: u64) {
        let readers = self.readers();
        let is_older = |readers: &mut BTreeMap<u64, usize>| {
            readers.first_key_value().is_some_and(|(oldest, _)| *oldest < number)
        };
        drop(self.reader_left.wait_while(readers, is_older));
    }

    /// Drops the frozen layer once all of its rows are in the tree.
    pub(crate) fn thaw(&self) {
        let frozen = {
            let mut layers = self.layers.write().unwrap_or_else(PoisonError::into_inner);
            layers.frozen.take()
        };
        drop(frozen);
    }

    /// Whether a layer is frozen.
    pub(crate) fn is_frozen(&self) -> bool {
        self.layers().frozen.is_some()
    }

    /// Whether all rows are in the tree.
    pub(crate) fn is_empty(&self) -> bool {
        let layers = self.layers();
        layers.frozen.is_none() && layers.active.is_empty()
    }

    /// The number of rows in all layers.
    pub(crate) fn len(&self) -> usize {
        let (active, frozen) = self.both();
        active.len() + frozen.map_or(0, |frozen| frozen.len())
    }
}

/// A snapshot of the memtable. Checkpoints wait for snapshots to be dropped, so keep one only
/// briefly.
#[derive(Debug)]
pub(crate) struct Snapshot {
    memtable: Arc<Memtable>,
    number: u64,
    /// The layers, newest first.
    layers: Vec<Arc<Layer>>,
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let mut readers = self.memtable.readers();
        if let Some(count) = readers.get_mut(&self.number) {
            *count -= 1;
            if *count == 0 {
                readers.remove(&self.number);
                self.memtable.reader_left.notify_all();
            }
        }
    }
}

impl Snapshot {
    /// Returns a row's value in the snapshot: `Some(None)` if it was deleted, `None` if the
    /// memtable does not contain the row.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<Vec<u8>>> {
        self.layers.iter().find_map(|layer| layer.get(key, self.number))
    }

    /// Returns cursors from `from` on, one for each layer, newest layer first.
    pub(crate) fn cursors(&self, from: Bound<&[u8]>) -> Vec<Cursor<'_>> {
        let owned = match from {
            Bound::Included(from) => Bound::Included(from.to_vec()),
            Bound::Excluded(from) => Bound::Excluded(from.to_vec()),
            Bound::Unbounded => Bound::Unbounded,
        };
        let cursor = |layer| Cursor {
            layer,
            number: self.number,
            next: Some(owned.clone()),
            size: 2,
            rows: Vec::new(),
        };
        self.layers.iter().map(|layer| cursor(&**layer)).collect()
    }
}

/// Reads a layer in order, chunk by chunk.
#[derive(Debug)]
pub(crate) struct Cursor<'s> {
    layer: &'s Layer,
    number: u64,
    /// Where the next chunk begins; `None` at the end.
    next: Option<Bound<Vec<u8>>>,
    size: usize,
    /// The chunk, last row first.
    rows: Vec<Entry>,
}

impl Cursor<'_> {
    /// Returns the next row without consuming it.
    pub(crate) fn peek(&mut self) -> Option<&Entry> {
        while self.rows.is_empty() {
            let from = self.next.take()?;
            let from = from.as_ref().map(Vec::as_slice);
            let (mut rows, next) = self.layer.chunk(from, self.number, self.size);
            rows.reverse();
            (self.rows, self.next) = (rows, next.map(Bound::Included));
            self.size = (self.size * 4).min(CHUNK);
        }
        self.rows.last()
    }

    /// Returns the next row.
    pub(crate) fn take(&mut self) -> Option<Entry> {
        self.peek()?;
        self.rows.pop()
    }
}
