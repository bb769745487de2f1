//! The merged view: merges the memtable's layers and the tree into one ordered, consistent map.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use super::blocks;
use super::error::Error;
use super::key::Key;
use super::memtable::{Cursor, Entry, Memtable, Snapshot};

/// All rows of a store, as of the time of each call.
#[derive(Clone)]
pub(crate) struct View {
    pub db: sled::Db,
    pub memtable: Arc<Memtable>,
}

impl View {
    /// Returns the newest value of a row.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        match self.memtable.get(key.as_bytes()) {
            Some(value) => Ok(value),
            None => blocks::get(&self.db, key.as_bytes()),
        }
    }

    /// Returns a consistent view of the current rows.
    pub(crate) fn moment(&self) -> Moment {
        Moment { snapshot: self.memtable.snapshot(), db: self.db.clone() }
    }
}

/// A consistent view of all rows.
pub(crate) struct Moment {
    snapshot: Snapshot,
    db: sled::Db,
}

impl Moment {
    /// Returns the memtable's value of a row; see [`Snapshot::get`].
    pub(crate) fn in_memory(&self, key: &Key) -> Option<Option<Vec<u8>>> {
        self.snapshot.get(key.as_bytes())
    }

    /// Returns the bytes under `key`.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        match self.in_memory(key) {
            Some(value) => Ok(value),
            None => blocks::get(&self.db, key.as_bytes()),
        }
    }

    /// Returns the rows from `from` on, in key order.
    pub(crate) fn range(&self, from: Bound<&[u8]>) -> Range<'_> {
        let tree = blocks::Iter::new(self.db.clone(), from);
        Range { cursors: self.snapshot.cursors(from), tree, ahead: None }
    }
}

/// The rows in key order: the newest value of each key, without deleted rows.
pub(crate) struct Range<'m> {
    /// The cursors of the layers, newest layer first.
    cursors: Vec<Cursor<'m>>,
    tree: blocks::Iter<sled::Db>,
    /// The tree's next row, once it has been read; `Some(None)` at the end of the tree.
    ahead: Option<Option<(Key, Vec<u8>)>>,
}

impl Range<'_> {
    /// Returns the row with the least key, from the newest layer that has the key, or else from the
    /// tree.
    fn step(&mut self) -> Result<Option<Entry>, Error> {
        let Self { cursors, tree, ahead } = self;
        if ahead.is_none() {
            *ahead = Some(tree.next().transpose()?);
        }
        let in_tree = ahead.as_ref().and_then(Option::as_ref).map(|(key, _)| key);
        // Of equal keys, take the first, which is in the newest layer.
        let keys = cursors.iter_mut().enumerate();
        let keys = keys.filter_map(|(at, cursor)| cursor.peek().map(|(key, _)| (at, key)));
        let first = keys.min_by(|(_, one), (_, other)| one.cmp(other));
        let order = match (&first, in_tree) {
            (None, None) => return Ok(None),
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some((_, key)), Some(in_tree)) => in_tree.cmp(key),
        };
        let Some((at, _)) = first.filter(|_| order.is_ge()) else {
            return Ok(ahead.take().flatten().map(|(key, value)| (key, Some(value))));
        };
        if order.is_eq() {
            *ahead = None;
        }
        let newest = cursors.get_mut(at).and_then(Cursor::take);
        for older in cursors.iter_mut().skip(at + 1) {
            let is_same = |row: &Entry| newest.as_ref().is_some_and(|newest| newest.0 == row.0);
            if older.peek().is_some_and(is_same) {
                older.take();
            }
        }
        Ok(newest)
    }
}

impl Iterator for Range<'_> {
    type Item = Result<(Key, Vec<u8>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.step() {
                Err(error) => return Some(Err(error)),
                Ok(None) => return None,
                Ok(Some((key, Some(value)))) => return Some(Ok((key, value))),
                Ok(Some((_deleted, None))) => {}
            }
        }
    }
}
