//! The row cache: caches rows of the tree that are read often, such as workflows, and counters that
//! limit a budget. A read from the cache needs no blocking thread.
//!
//! The cache is used only for rows that are absent from the memtable, and contains the values that
//! the tree has for them. Only checkpoints change the tree, so [`RowCache::forget`] is called with
//! the rows that a checkpoint has moved, before these rows leave the memtable. If a checkpoint
//! moves a row while a reader reads it, the reader does not cache the row.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::key::Key;
use super::memtable::{Layer, Memtable};

/// Maximum bytes of cached rows. Beyond that, the cache is cleared.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// The maximum size of a cached row.
const ROW_MAX: usize = 256 * 1024;

/// The cached rows.
#[derive(Debug, Default)]
pub(crate) struct RowCache {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    rows: HashMap<Key, Option<Vec<u8>>>,
    bytes: usize,
    /// The number of checkpoints so far.
    checkpoints: u64,
}

impl RowCache {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cached tree value under `key`, or the checkpoint number to pass to
    /// [`RowCache::keep`].
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, u64> {
        let kept = self.lock();
        kept.rows.get(key).cloned().ok_or(kept.checkpoints)
    }

    /// Caches the value that the tree had under `key` after `checkpoints` checkpoints, unless a
    /// checkpoint or a row in the memtable may have changed the value since.
    pub(crate) fn keep(
        &self,
        key: Key,
        value: Option<Vec<u8>>,
        checkpoints: u64,
        memtable: &Memtable,
    ) {
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

    /// Removes the rows of a layer that has been moved to the tree.
    pub(crate) fn forget(&self, layer: &Layer) {
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
    use crate::key::Table;

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
    fn row_cache_skips_row_that_changed_during_read() {
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
