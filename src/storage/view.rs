//! The merged view: the memtable's layers over the tree, as one ordered map at one moment.

use std::ops::Bound;
use std::sync::Arc;

use super::error::Error;
use super::key::Key;
use super::memtable::{Cursor, Entry, Memtable, Snapshot};
use super::{pack, tree};

/// Where all rows are.
#[derive(Clone)]
pub struct View {
    pub db: sled::Db,
    pub memtable: Arc<Memtable>,
}

impl View {
    /// The newest value of a row.
    pub fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        match self.memtable.get(key.as_bytes()) {
            Some(value) => Ok(value),
            None => tree::get(&self.db, key.as_bytes()),
        }
    }

    /// All rows as they are now.
    pub fn moment(&self) -> Moment {
        Moment { snapshot: self.memtable.snapshot(), db: self.db.clone() }
    }
}

/// All rows at one moment.
pub struct Moment {
    snapshot: Snapshot,
    db: sled::Db,
}

impl Moment {
    /// What the memtable knows of a row, see [`Snapshot::get`].
    pub fn in_memory(&self, key: &Key) -> Option<Option<Vec<u8>>> {
        self.snapshot.get(key.as_bytes())
    }

    /// The bytes under `key`.
    pub fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        match self.in_memory(key) {
            Some(value) => Ok(value),
            None => tree::get(&self.db, key.as_bytes()),
        }
    }

    /// The rows from `from` on, in the order of their keys.
    pub fn range(&self, from: Bound<&[u8]>) -> Range<'_> {
        let tree = self.db.range::<&[u8], _>((from, Bound::Unbounded));
        Range { cursors: self.snapshot.cursors(from), tree, ahead: None }
    }
}

/// Rows in the order of their keys: of each key the newest value, none that is deleted.
pub struct Range<'m> {
    /// Newest layer first.
    cursors: Vec<Cursor<'m>>,
    tree: sled::Iter,
    /// The tree's next row, once it was read; `Some(None)` at its end.
    ahead: Option<Option<(sled::IVec, sled::IVec)>>,
}

impl Range<'_> {
    fn peek_tree(&mut self) -> Result<Option<&[u8]>, Error> {
        if self.ahead.is_none() {
            let next = self.tree.next().transpose();
            self.ahead = Some(next.map_err(|error| Error::unavailable(&error))?);
        }
        Ok(self.ahead.as_ref().and_then(Option::as_ref).map(|(key, _)| &key[..]))
    }

    fn step(&mut self) -> Result<Option<Entry>, Error> {
        let first = self.cursors.iter_mut().filter_map(|cursor| cursor.peek().map(|(key, _)| key));
        let first: Option<Key> = first.min().cloned();
        let tree = self.peek_tree()?;
        let tree_order = match (&first, tree) {
            (None, None) => return Ok(None),
            (None, Some(_)) => std::cmp::Ordering::Less,
            (Some(_), None) => std::cmp::Ordering::Greater,
            (Some(first), Some(tree)) => tree.cmp(first.as_bytes()),
        };
        if tree_order.is_lt() {
            let row = self.ahead.take().flatten();
            let Some((key, held)) = row else { return Ok(None) };
            return Ok(Some((Key::from_bytes(&key), Some(pack::unpack(&held)?))));
        }
        if tree_order.is_eq() {
            self.ahead = None;
        }
        let Some(first) = first else { return Ok(None) };
        let mut newest = None;
        for cursor in &mut self.cursors {
            if cursor.peek().is_some_and(|(key, _)| *key == first) {
                let row = cursor.take();
                newest = newest.or(row);
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
