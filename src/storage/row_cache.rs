//! The row cache: rows of the tree that are read often and change rarely, such as workflows, kept so that
//! reading one needs no other thread.
//!
//! It only ever answers for rows that the memtable does not have, and holds what the tree has then. A
//! checkpoint is what changes the tree: [`RowCache::forget`] is called with the rows that it has carried
//! over, before they leave the memtable. A reader whose row was carried over while it read keeps nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::key::Key;
use super::memtable::{Layer, Memtable};

/// Bytes of rows that are kept; past it, all are read again as they come.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// A larger row is not kept.
const ROW_MAX: usize = 256 * 1024;

/// The rows, by key.
#[derive(Debug, Default)]
pub struct RowCache {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    rows: HashMap<Key, Option<Vec<u8>>>,
    bytes: usize,
    /// Checkpoints so far.
    checkpoints: u64,
}

impl RowCache {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the tree has under `key`, if it is known, else what [`RowCache::keep`] has to be given.
    pub fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, u64> {
        let kept = self.lock();
        kept.rows.get(key).cloned().ok_or(kept.checkpoints)
    }

    /// Keeps what the tree had under `key` when `checkpoints` had been made, unless it may have changed
    /// since: by a checkpoint, or by a row of the memtable that is on its way.
    pub fn keep(&self, key: Key, value: Option<Vec<u8>>, checkpoints: u64, memtable: &Memtable) {
        let bytes = key.as_bytes().len() + value.as_ref().map_or(0, Vec::len);
        let mut kept = self.lock();
        let is_stale = kept.checkpoints != checkpoints || memtable.get(key.as_bytes()).is_some();
        if bytes > ROW_MAX || is_stale || kept.rows.contains_key(&key) {
            return;
        }
        if kept.bytes + bytes > BYTES_MAX {
            kept.rows = HashMap::new();
            kept.bytes = 0;
        }
        kept.bytes += bytes;
        kept.rows.insert(key, value);
    }

    /// Forgets the rows of a layer, which the tree now has as the layer has them.
    pub fn forget(&self, layer: &Layer) {
        let mut kept = self.lock();
        kept.checkpoints += 1;
        let mut bytes = 0;
        kept.rows.retain(|key, value| {
            let stays = !layer.has(key.as_bytes());
            if stays {
                bytes += key.as_bytes().len() + value.as_ref().map_or(0, Vec::len);
            }
            stays
        });
        kept.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::key::Table;

    fn key(name: &str) -> Key {
        Key::table(Table::Workflow).text(name)
    }

    #[test]
    fn row_cache_forgets_what_checkpoint_carries_over() {
        let cache = RowCache::default();
        let memtable = Memtable::new(0);
        let at = cache.get(&key("a")).unwrap_err();
        cache.keep(key("a"), Some(b"1".to_vec()), at, &memtable);
        cache.keep(key("none"), None, at, &memtable);
        assert_eq!(cache.get(&key("a")), Ok(Some(b"1".to_vec())));
        assert_eq!(cache.get(&key("none")), Ok(None));
        memtable.publish(1, [(key("a"), Some(b"2".to_vec()))].into());
        let frozen = memtable.freeze().unwrap();
        cache.forget(&frozen.layer);
        assert_eq!(cache.get(&key("a")), Err(1));
        assert_eq!(cache.get(&key("none")), Ok(None));
    }

    #[test]
    fn row_cache_keeps_no_row_that_changed_while_it_was_read() {
        let cache = RowCache::default();
        let memtable = Memtable::new(0);
        let before = cache.get(&key("a")).unwrap_err();
        memtable.publish(1, [(key("a"), Some(b"2".to_vec()))].into());
        cache.keep(key("a"), Some(b"1".to_vec()), before, &memtable);
        assert_eq!(cache.get(&key("a")), Err(before), "a newer value waits for its checkpoint");
        cache.forget(&memtable.freeze().unwrap().layer);
        memtable.thaw();
        cache.keep(key("a"), Some(b"1".to_vec()), before, &memtable);
        assert_eq!(cache.get(&key("a")), Err(before + 1), "the checkpoint brought a newer value");
    }

    #[test]
    fn row_cache_bounds_its_bytes() {
        let cache = RowCache::default();
        let memtable = Memtable::new(0);
        cache.keep(key("large"), Some(vec![0; ROW_MAX]), 0, &memtable);
        assert_eq!(cache.get(&key("large")), Err(0));
        for number in 0..200 {
            cache.keep(key(&number.to_string()), Some(vec![0; 100 * 1024]), 0, &memtable);
            assert!(cache.lock().bytes <= BYTES_MAX);
        }
        assert!(cache.get(&key("199")).is_ok());
        assert!(cache.get(&key("0")).is_err());
    }
}
