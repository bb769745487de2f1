//! Blocks: groups of adjacent rows of one table, each stored in one entry of the tree.
//!
//! The engine copies, logs and caches entire entries, at a cost that hardly depends on their size.
//! So up to [`BLOCK_BYTES`] of rows are stored in one entry, compressed together. The key of an
//! entry is called its bound. No row in the entry has a greater key:
//!
//! ```text
//! entry  magic 4 | length of first key 4 | first key | compressed rows
//! row    shared with the key before 4 | rest of key 4 | value 4 | rest of key | value
//! ```
//!
//! **A row belongs to the entry with the least bound that is not below the row's key.** Rows of an
//! entry at or below the previous bound are ignored. So the tree is consistent after every single
//! change to it, for readers and after a crash: [`Writer`] writes rows to their new entries, in key
//! order, before it removes the rows from their old entries; and before it removes a bound, it
//! removes the ignored rows from the next entry.
//!
//! A row that has an entry to itself, under its own key, is stored [`pack`]ed. Releases before
//! format 3 stored all rows in this way; such rows are merged into blocks as their neighbors
//! change. Each row of [`Table::Meta`] always has its own entry, because these rows include the
//! tree's own rows, which bypass this module.
//!
//! Two restrictions of the engine (sled 0.34) apply. Entries are searched only forward, because a
//! search for the predecessor of a key may not terminate if keys contain runs of 0xff, as the keys
//! of counted lists do. And a lookup that moves from one leaf to the next is not atomic; see
//! [`lookups_agree`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;
use std::vec::IntoIter;

use sled::IVec;

use super::error::Error;
use super::key::{Key, Table};
use super::pack;
use super::record::Malformed;

/// Maximum bytes of keys and values in a block. A larger row has its own block.
const BLOCK_BYTES: usize = 4096;
/// Bytes of rows buffered before they are written, not counting the rows of one entry.
const RUN_BYTES: usize = 16 * BLOCK_BYTES;
/// Decompressed blocks cached per thread. A search alternates between a few lists.
const RECENT_MAX: usize = 8;
/// Maximum size of a cached block. Only the block of a single row can be larger.
const RECENT_BYTES_MAX: usize = 4 * BLOCK_BYTES;
/// The bound of a table's last entry, after the tag. Rows appended at the table's end belong to
/// this entry.
const LAST_BOUND: [u8; 32] = [0xff; 32];
/// The prefix of a block; the last byte is the number of the dictionary.
const MAGIC: [u8; 4] = [pack::RESERVED[0], pack::RESERVED[1], b'b', 1];

type Row = (Key, Vec<u8>);
/// The key and value of a row, borrowed from its block.
type BorrowedRow<'r> = (&'r [u8], &'r [u8]);
/// A bound and the bytes stored under it.
type Entry = (IVec, IVec);

/// An ordered map of entries.
pub(crate) trait Entries {
    /// Returns the entry with the least bound at or after `from`.
    fn first_from(&self, from: Bound<&[u8]>) -> Result<Option<Entry>, Error>;
    fn put(&self, bound: &[u8], held: &[u8]) -> Result<(), Error>;
    fn remove(&self, bound: &[u8]) -> Result<(), Error>;
}

impl Entries for sled::Db {
    fn first_from(&self, from: Bound<&[u8]>) -> Result<Option<Entry>, Error> {
        let first = self.range::<&[u8], _>((from, Bound::Unbounded)).next();
        first.transpose().map_err(|error| Error::unavailable(&error))
    }

    fn put(&self, bound: &[u8], held: &[u8]) -> Result<(), Error> {
        self.insert(bound, held).map(|_before| ()).map_err(|error| Error::unavailable(&error))
    }

    fn remove(&self, bound: &[u8]) -> Result<(), Error> {
        let removed = sled::Tree::remove(self, bound);
        removed.map(|_before| ()).map_err(|error| Error::unavailable(&error))
    }
}

/// Returns the first entry at or after `from`, once two consecutive lookups agree.
///
/// A lookup that finds nothing in one leaf of the engine continues in the next leaf. In between,
/// [`Writer`] may put a bound into the first leaf and remove the moved rows from the second; the
/// lookup then returns the second entry without these rows. A repeated lookup returns the first
/// entry. Every further iteration means that the tree changed here in the meantime; one checkpoint
/// causes one or two such changes.
fn lookups_agree(
    entries: &impl Entries,
    from: Bound<&[u8]>,
    mut entry: Option<Entry>,
) -> Result<Option<Entry>, Error> {
    loop {
        let again = entries.first_from(from)?;
        if again == entry {
            return Ok(entry);
        }
        entry = again;
    }
}

/// Returns the value of the row under `key`.
pub(crate) fn get(entries: &impl Entries, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let from = Bound::Included(key);
    let entry = entries.first_from(from)?;
    if let Some(value) = value_in(entry.as_ref(), key)? {
        return Ok(Some(value));
    }
    let agreed = lookups_agree(entries, from, entry.clone())?;
    if agreed == entry { Ok(None) } else { value_in(agreed.as_ref(), key) }
}

fn value_in(entry: Option<&Entry>, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let Some(entry) = entry else { return Ok(None) };
    if Block::of(&entry.1)?.is_some_and(|block| key < block.first) {
        return Ok(None);
    }
    let mut rows = Rows::of(entry)?;
    while let Some((own, value)) = rows.next()? {
        if own >= key {
            return Ok((own == key).then(|| value.to_vec()));
        }
    }
    Ok(None)
}

/// A block, not yet decompressed.
struct Block<'h> {
    first: &'h [u8],
    packed: &'h [u8],
}

impl<'h> Block<'h> {
    /// Returns `None` if the entry contains a single row that is not in a block.
    fn of(held: &'h [u8]) -> Result<Option<Self>, Malformed> {
        let Some(rest) = held.strip_prefix(&MAGIC) else { return Ok(None) };
        let (length, rest) = length(rest)?;
        let (first, packed) = rest.split_at_checked(length).ok_or_else(malformed)?;
        Ok(Some(Self { first, packed }))
    }
}

/// Compressed blocks with their rows, most recently used first.
type Recent = VecDeque<(IVec, Arc<[u8]>)>;

thread_local! {
    static RECENT: RefCell<Recent> = const { RefCell::new(Recent::new()) };
}

/// Returns the rows of a block. The cache is keyed by the compressed bytes, which determine the
/// rows, so a cached result is never stale.
fn decompressed(held: &IVec, block: &Block<'_>) -> Result<Arc<[u8]>, Malformed> {
    RECENT.with_borrow_mut(|recent| {
        if let Some(at) = recent.iter().position(|(own, _)| own == held) {
            recent.swap(0, at);
            return Ok(recent.front().map(|(_, rows)| Arc::clone(rows)).unwrap_or_default());
        }
        let rows: Arc<[u8]> = pack::decompress(block.packed)?.into();
        if rows.len() <= RECENT_BYTES_MAX {
            recent.truncate(RECENT_MAX - 1);
            recent.push_front((held.clone(), Arc::clone(&rows)));
        }
        Ok(rows)
    })
}

/// The rows of an entry in order, including ignored rows.
#[derive(Default)]
struct Rows {
    bytes: Arc<[u8]>,
    at: usize,
    key: Vec<u8>,
    /// Whether `key` and `bytes` contain a single row that has not been returned yet.
    is_alone: bool,
}

impl Rows {
    fn of((bound, held): &Entry) -> Result<Self, Malformed> {
        Ok(match Block::of(held)? {
            Some(block) => Self { bytes: decompressed(held, &block)?, ..Self::default() },
            None => {
                let bytes = pack::unpack(held)?;
                Self { at: bytes.len(), bytes: bytes.into(), key: bound.to_vec(), is_alone: true }
            }
        })
    }

    fn next(&mut self) -> Result<Option<BorrowedRow<'_>>, Malformed> {
        if std::mem::take(&mut self.is_alone) {
            return Ok(Some((&self.key, &self.bytes)));
        }
        let bytes = self.bytes.get(self.at..).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(None);
        }
        let (shared, rest) = length(bytes)?;
        let (own, rest) = length(rest)?;
        let (value, rest) = length(rest)?;
        let (own, rest) = rest.split_at_checked(own).ok_or_else(malformed)?;
        let (value, rest) = rest.split_at_checked(value).ok_or_else(malformed)?;
        if shared > self.key.len() {
            return Err(malformed());
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(own);
        self.at = self.bytes.len() - rest.len();
        Ok(Some((&self.key, value)))
    }
}

fn length(bytes: &[u8]) -> Result<(usize, &[u8]), Malformed> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(malformed)?;
    Ok((usize::try_from(u32::from_be_bytes(*length)).map_err(|_wide| malformed())?, rest))
}

fn malformed() -> Malformed {
    Malformed { record: "block", reason: "its rows are damaged".to_owned() }
}

/// Returns all rows of an entry, including ignored rows.
fn rows_of(entry: &Entry) -> Result<Vec<Row>, Malformed> {
    let mut rows = Rows::of(entry)?;
    let mut found = Vec::new();
    while let Some((key, value)) = rows.next()? {
        found.push((Key::from_bytes(key), value.to_vec()));
    }
    Ok(found)
}

/// Returns the bytes to store under `bound` for these rows. There must be at least one row.
fn encode(bound: &[u8], rows: &[Row]) -> Result<Vec<u8>, Error> {
    if let [(key, value)] = rows
        && key.as_bytes() == bound
    {
        return Ok(pack::pack(value).into_owned());
    }
    let mut bytes = Vec::with_capacity(BLOCK_BYTES + BLOCK_BYTES / 2);
    let mut before: &[u8] = &[];
    for (key, value) in rows {
        let key = key.as_bytes();
        let shared = before.iter().zip(key).take_while(|(one, other)| one == other).count();
        let own = key.get(shared..).unwrap_or_default();
        for length in [shared, own.len(), value.len()] {
            bytes.extend_from_slice(&length_of(length)?);
        }
        bytes.extend_from_slice(own);
        bytes.extend_from_slice(value);
        before = key;
    }
    let packed =
        pack::compress(&bytes).ok_or_else(|| Error::unavailable(&"a block cannot be packed"))?;
    let first = rows.first().map_or(&[][..], |(key, _)| key.as_bytes());
    Ok([&MAGIC, &length_of(first.len())?[..], first, &packed].concat())
}

fn length_of(length: usize) -> Result<[u8; 4], Error> {
    u32::try_from(length).map(u32::to_be_bytes).map_err(|error| Error::unavailable(&error))
}

fn bytes_of((key, value): &Row) -> usize {
    key.as_bytes().len() + value.len()
}

/// Iterates over the rows, beginning at a key.
pub(crate) struct Iter<E> {
    entries: E,
    /// Rows before this position are ignored. The position is first the start of the iteration, and
    /// later the previous bound.
    from: Bound<Vec<u8>>,
    /// The bound of the current entry.
    bound: Option<Vec<u8>>,
    rows: Rows,
}

impl<E: Entries> Iter<E> {
    pub(crate) fn new(entries: E, from: Bound<&[u8]>) -> Self {
        let from = from.map(<[u8]>::to_vec);
        Self { entries, from, bound: None, rows: Rows::default() }
    }

    /// Returns the next row of the current entry.
    fn next_row(&mut self) -> Result<Option<Row>, Malformed> {
        while let Some((key, value)) = self.rows.next()? {
            let is_live = match &self.from {
                Bound::Included(from) => key >= from.as_slice(),
                Bound::Excluded(from) => key > from.as_slice(),
                Bound::Unbounded => true,
            };
            if is_live {
                return Ok(Some((Key::from_bytes(key), value.to_vec())));
            }
        }
        Ok(None)
    }

    /// Reads the next entry. Returns false at the end.
    fn load(&mut self) -> Result<bool, Error> {
        if let Some(bound) = self.bound.take() {
            self.from = Bound::Excluded(bound);
        }
        let from = self.from.as_ref().map(Vec::as_slice);
        let found = self.entries.first_from(from)?;
        let Some(entry) = lookups_agree(&self.entries, from, found)? else { return Ok(false) };
        // An unreadable entry is skipped when the next row is requested.
        self.bound = Some(entry.0.to_vec());
        self.rows = Rows::default();
        self.rows = Rows::of(&entry)?;
        Ok(true)
    }
}

impl<E: Entries> Iterator for Iter<E> {
    type Item = Result<Row, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_row() {
                Ok(Some(row)) => return Some(Ok(row)),
                Ok(None) => {}
                Err(error) => {
                    self.rows = Rows::default();
                    return Some(Err(error.into()));
                }
            }
            match self.load() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Applies changes in key order, and writes the entries that they affect.
pub(crate) struct Writer<'e, E> {
    entries: &'e E,
    open: Option<OpenEntry>,
}

/// An entry that is being changed, or a new entry at the end of a table.
struct OpenEntry {
    bound: Vec<u8>,
    is_there: bool,
    /// The old rows that have not been merged yet.
    old: Peekable<IntoIter<Row>>,
    /// The merged rows that have not been written yet.
    rows: Vec<Row>,
    bytes: usize,
    is_changed: bool,
    /// Whether the first and the last of `rows` are new.
    is_first_new: bool,
    is_last_new: bool,
}

impl OpenEntry {
    fn covers(&self, key: &[u8]) -> bool {
        key.first() == self.bound.first() && key <= self.bound.as_slice()
    }

    fn push(&mut self, row: Row, is_new: bool) {
        if self.rows.is_empty() {
            self.is_first_new = is_new;
        }
        self.is_last_new = is_new;
        self.bytes += bytes_of(&row);
        self.rows.push(row);
    }

    /// Moves the old rows before `key`. Returns the row under `key`.
    fn take_old(&mut self, key: &Key) -> Option<Row> {
        while let Some(row) = self.old.next_if(|(own, _)| own < key) {
            self.push(row, false);
        }
        self.old.next_if(|(own, _)| own == key)
    }
}

impl<'e, E: Entries> Writer<'e, E> {
    pub(crate) const fn new(entries: &'e E) -> Self {
        Self { entries, open: None }
    }

    /// Puts or removes a row. Keys must be ascending.
    pub(crate) fn change(&mut self, key: &Key, value: Option<&[u8]>) -> Result<(), Error> {
        let bytes = key.as_bytes();
        if bytes.first() == Some(&(Table::Meta as u8)) {
            return match value {
                Some(value) => self.entries.put(bytes, &pack::pack(value)),
                None => self.entries.remove(bytes),
            };
        }
        let mut open = match self.open.take() {
            Some(open) if open.covers(bytes) => open,
            other => {
                self.close(other)?;
                self.open_for(bytes)?
            }
        };
        let before = open.take_old(key);
        open.is_changed |= before.as_ref().map(|(_, before)| &before[..]) != value;
        if let Some(value) = value {
            open.push((key.clone(), value.to_vec()), before.is_none());
        }
        if open.bytes >= RUN_BYTES && open.is_changed {
            self.write_run(&mut open)?;
        }
        self.open = Some(open);
        Ok(())
    }

    /// Writes the remaining rows.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        let open = self.open.take();
        self.close(open)
    }

    /// Opens the entry to which `key` belongs.
    fn open_for(&self, key: &[u8]) -> Result<OpenEntry, Error> {
        let entry = self.entries.first_from(Bound::Included(key))?;
        let entry = entry.filter(|(bound, _)| bound.first() == key.first());
        let (bound, (old, is_changed)) = match &entry {
            Some(entry) => (entry.0.to_vec(), self.live_rows(entry)?),
            None => {
                let last = [key.get(..1).unwrap_or_default(), &LAST_BOUND].concat();
                (last.max(key.to_vec()), (Vec::new(), false))
            }
        };
        Ok(OpenEntry {
            bound,
            is_there: entry.is_some(),
            old: old.into_iter().peekable(),
            rows: Vec::new(),
            bytes: 0,
            is_changed,
            is_first_new: false,
            is_last_new: false,
        })
    }

    /// Returns the rows of an entry, without the ignored rows that a crash may leave behind, and
    /// whether there were any ignored rows.
    fn live_rows(&self, entry: &Entry) -> Result<(Vec<Row>, bool), Error> {
        let damaged = |error: Malformed| Error::Unavailable {
            reason: format!(
                "{error}, in the rows up to {:?}: save what can be read with `orrery salvage --into DIR`",
                Key::from_bytes(&entry.0)
            ),
        };
        let mut rows = rows_of(entry).map_err(damaged)?;
        let all = rows.len();
        if let Some(block) = Block::of(&entry.1)? {
            // Any bound between the entry's first row and the entry's own bound was written later
            // than the entry.
            let mut from = Bound::Included(block.first.to_vec());
            loop {
                let next = self.entries.first_from(from.as_ref().map(Vec::as_slice))?;
                let Some((bound, _)) = next.filter(|(bound, _)| *bound < entry.0) else { break };
                rows.retain(|(key, _)| key.as_bytes() > &bound[..]);
                from = Bound::Excluded(bound.to_vec());
            }
        }
        let has_ignored = rows.len() < all;
        Ok((rows, has_ignored))
    }

    /// Writes the blocks that are full. The old entry remains complete.
    fn write_run(&self, open: &mut OpenEntry) -> Result<(), Error> {
        let pieces = pieces(&open.rows, Fill::First);
        let Some((last, whole)) = pieces.split_last() else { return Ok(()) };
        for piece in whole {
            self.write_piece(piece, None)?;
        }
        let written = open.rows.len() - last.len();
        open.rows.drain(..written);
        open.bytes = open.rows.iter().map(bytes_of).sum();
        open.is_first_new = true;
        Ok(())
    }

    fn close(&self, open: Option<OpenEntry>) -> Result<(), Error> {
        let Some(mut open) = open.filter(|open| open.is_changed) else { return Ok(()) };
        while let Some(row) = open.old.next() {
            open.push(row, false);
        }
        let fill = match (open.is_first_new, open.is_last_new) {
            (_, true) => Fill::First,
            (true, false) => Fill::Last,
            (false, false) => Fill::Evenly,
        };
        let pieces = pieces(&open.rows, fill);
        let Some((last, others)) = pieces.split_last() else {
            return if open.is_there { self.remove_empty(&open.bound) } else { Ok(()) };
        };
        for piece in others {
            self.write_piece(piece, None)?;
        }
        self.write_piece(last, Some(&open.bound))
    }

    /// Writes rows under a bound, or under the key of the last row.
    fn write_piece(&self, rows: &[Row], bound: Option<&[u8]>) -> Result<(), Error> {
        let last = rows.last().map(|(key, _)| key.as_bytes());
        let bound = bound.or(last).unwrap_or_default();
        self.entries.put(bound, &encode(bound, rows)?)
    }

    /// Removes an entry whose rows have all been removed. First removes any ignored copies of these
    /// rows that a crash left in the next entry. Otherwise these copies would become live again.
    fn remove_empty(&self, bound: &[u8]) -> Result<(), Error> {
        let next = self.entries.first_from(Bound::Excluded(bound))?;
        if let Some(next) = next.filter(|(next, _)| next.first() == bound.first())
            && Block::of(&next.1)?.is_some_and(|block| block.first <= bound)
        {
            let (rows, _) = self.live_rows(&next)?;
            match rows.is_empty() {
                true => self.remove_empty(&next.0)?,
                false => self.write_piece(&rows, Some(&next.0))?,
            }
        }
        self.entries.remove(bound)
    }
}

/// Which blocks to fill when rows are divided into blocks. Blocks that are unlikely to receive more
/// rows are filled.
#[derive(Clone, Copy)]
enum Fill {
    /// Fill all but the last block: rows are appended at the end, as in a lane.
    First,
    /// Fill all but the first block: rows are added at the beginning, as in a history sorted newest
    /// first.
    Last,
    Evenly,
}

/// Divides rows into pieces of at most one block each.
fn pieces(rows: &[Row], fill: Fill) -> Vec<&[Row]> {
    let total: usize = rows.iter().map(bytes_of).sum();
    let blocks = total.div_ceil(BLOCK_BYTES).max(1);
    let (mut limit, next_limit) = match fill {
        Fill::First => (BLOCK_BYTES, BLOCK_BYTES),
        Fill::Last => (total - (blocks - 1) * BLOCK_BYTES, BLOCK_BYTES),
        Fill::Evenly => (total.div_ceil(blocks), total.div_ceil(blocks)),
    };
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut bytes = 0;
    for (at, row) in rows.iter().enumerate() {
        let own = bytes_of(row);
        if at > start && bytes + own > limit {
            pieces.extend(rows.get(start..at));
            (start, bytes, limit) = (at, 0, next_limit);
        }
        bytes += own;
    }
    pieces.extend(rows.get(start..).filter(|piece| !piece.is_empty()));
    pieces
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
