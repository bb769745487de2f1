//! Salvage: reads every readable row of a damaged store, and reports the unreadable ranges.
//!
//! [`walk`] skips an unreadable page by searching for the next readable key. [`read`] works on a
//! store that no longer opens: it builds a tree from the entries that [`tree_file`] finds in the
//! old tree's file, and applies the intact records of the log. Neither function changes the store
//! that it reads.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use super::blocks::Entries;
use super::error::Error;
use super::export::Change;
use super::key::{self, Key};
use super::log::replay;
use super::memtable::{Memtable, Rows};
use super::opening::STORE;
use super::store::Store;
use super::view::{Moment, View};
use super::{data_dir, log, tree, tree_file};

/// The number of leading key bytes considered when searching for the end of an unreadable range.
const WIDTH: usize = 40;
/// The number of unreadable ranges after which the rest of the store counts as unreadable.
const RANGES_MAX: usize = 10_000;

/// A range of unreadable rows, from one key to another key (exclusive).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub from: Key,
    /// The end of the range; `None` means the end of the store.
    pub to: Option<Key>,
    pub reason: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, reason } = self;
        let table = key::table_name(from.as_bytes());
        write!(f, "rows of the table {table} cannot be read, from {from:?}")?;
        match to {
            Some(to) => write!(f, " to {to:?} (table {})", key::table_name(to.as_bytes()))?,
            None => write!(f, " to the end of the store")?,
        }
        write!(f, ": {reason}")
    }
}

/// The result of reading a damaged store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wreck {
    /// The number of rows read, by table.
    pub rows: BTreeMap<String, u64>,
    /// Descriptions of the losses, as sentences.
    pub faults: Vec<String>,
    /// Descriptions of damage that was repaired.
    pub notes: Vec<String>,
}

impl Store {
    /// Passes every readable row to `take`, in key order. Returns the unreadable ranges. Blocks;
    /// call it on its own thread.
    ///
    /// # Errors
    /// Any error of `take`.
    pub fn walk(
        &self,
        take: &mut dyn FnMut(Key, Vec<u8>) -> io::Result<()>,
    ) -> io::Result<Vec<Unreadable>> {
        walk(&self.shared.view.moment(), take)
    }
}

/// Passes every readable row to `take`. Returns the unreadable ranges.
fn walk(
    moment: &Moment,
    take: &mut dyn FnMut(Key, Vec<u8>) -> io::Result<()>,
) -> io::Result<Vec<Unreadable>> {
    let mut from = Vec::new();
    let mut unreadable = Vec::new();
    loop {
        let walked = walk_from(moment, &mut from, &mut unreadable, take)?;
        let Err(reason) = walked else { return Ok(unreadable) };
        let next = next_readable(moment, &from).filter(|_| unreadable.len() < RANGES_MAX);
        let to = next.as_deref().map(Key::from_bytes);
        unreadable.push(Unreadable { from: Key::from_bytes(&from), to, reason });
        match next {
            Some(next) => from = next,
            None => return Ok(unreadable),
        }
    }
}

/// Reads from `from` on, advancing `from` past every row. Skips and records each unreadable range
/// whose end is known. The inner error is the reason why the next row cannot be read.
fn walk_from(
    moment: &Moment,
    from: &mut Vec<u8>,
    unreadable: &mut Vec<Unreadable>,
    take: &mut dyn FnMut(Key, Vec<u8>) -> io::Result<()>,
) -> io::Result<Result<(), String>> {
    let start = from.clone();
    let mut range = moment.range(Bound::Included(&start));
    let mut damaged: Option<String> = None;
    loop {
        match tree::guarded(|| range.next()) {
            Ok(None) => return Ok(damaged.map_or(Ok(()), Err)),
            Ok(Some(Ok((key, value)))) => {
                if let Some(reason) = damaged.take() {
                    let from = Key::from_bytes(from);
                    unreadable.push(Unreadable { from, to: Some(key.clone()), reason });
                }
                *from = [key.as_bytes(), &[0]].concat();
                if !tree::is_own(&key) {
                    take(key, value)?;
                }
            }
            Ok(Some(Err(error))) if damaged.is_none() && unreadable.len() < RANGES_MAX => {
                damaged = Some(error.to_string());
            }
            Ok(Some(Err(error))) => return Ok(Err(damaged.unwrap_or(error.to_string()))),
            Err(reason) => return Ok(Err(damaged.unwrap_or(reason))),
        }
    }
}

/// Returns an approximation of the first readable key after `from`. Searches in steps that double
/// in size, then bisects the last step.
fn next_readable(moment: &Moment, from: &[u8]) -> Option<Vec<u8>> {
    let is_readable = |key: &[u8; WIDTH]| {
        let next = tree::guarded(|| moment.range(Bound::Included(key)).next().transpose());
        matches!(next, Ok(Ok(_)))
    };
    let mut low = [0; WIDTH];
    for (place, byte) in low.iter_mut().zip(from) {
        *place = *byte;
    }
    let mut doubled = (0..WIDTH * 8).filter_map(|bit| plus_bit(&low, bit));
    let mut high = doubled.find(is_readable)?;
    while let Some(middle) = midpoint(&low, &high) {
        if is_readable(&middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high.to_vec())
}

/// Adds a power of two to a big-endian number. Returns `None` on overflow.
fn plus_bit(number: &[u8; WIDTH], bit: usize) -> Option<[u8; WIDTH]> {
    let mut sum = *number;
    let mut carry = 1_u16 << (bit % 8);
    for place in sum.iter_mut().rev().skip(bit / 8) {
        let [over, byte] = (u16::from(*place) + carry).to_be_bytes();
        (*place, carry) = (byte, u16::from(over));
        if carry == 0 {
            return Some(sum);
        }
    }
    None
}

/// Returns a number between two numbers, or `None` if there is no such number.
fn midpoint(low: &[u8; WIDTH], high: &[u8; WIDTH]) -> Option<[u8; WIDTH]> {
    let mut sums = [0_u16; WIDTH];
    let mut carry = 0;
    for ((sum, a), b) in sums.iter_mut().zip(low).zip(high).rev() {
        let [over, byte] = (u16::from(*a) + u16::from(*b) + carry).to_be_bytes();
        (*sum, carry) = (u16::from(byte), u16::from(over));
    }
    let mut middle = [0; WIDTH];
    for (place, sum) in middle.iter_mut().zip(sums) {
        let [_, byte] = ((sum | (carry << 8)) >> 1).to_be_bytes();
        *place = byte;
        carry = sum & 1;
    }
    (middle != *low && middle != *high).then_some(middle)
}

/// Passes every readable row of the store in the data folder `data` to `take`, in key order. No
/// process may be using the store. Works in the empty folder `scratch`.
///
/// # Errors
/// [`Error::Locked`]; [`Error::Folder`] if files cannot be copied; any error of `take`.
pub fn read(
    data: &Path,
    scratch: &Path,
    take: &mut dyn FnMut(Change) -> io::Result<()>,
) -> Result<Wreck, Error> {
    let _lock = data_dir::lock(data)?;
    data_dir::refuse_special_files(data)?;
    let store = data.join(STORE);
    let disk = |error: io::Error| Error::folder(&store, &error);
    let db = tree::open(&scratch.join("tree"))?;
    let Tree { mut faults, notes, lost, read } = rebuild(&store, &db)?;
    let applied = tree::guarded(|| tree::applied(&db)).ok().and_then(Result::ok).unwrap_or(0);
    let log = store.join(log::FOLDER);
    let (found, rows) = log_rows(&log, applied, lost > 0).map_err(disk)?;
    faults.extend(found.errors.iter().map(ToString::to_string));
    if applied < found.checkpoint {
        faults.push(format!(
            "the tree holds the records up to {applied} and had been flushed up to {}: rows that \
             were written in between may be missing or old",
            found.checkpoint
        ));
    }
    if found.segments.is_empty() {
        faults.push("the log is missing: what was written last may be missing".to_owned());
    }
    let memtable = Memtable::new(0);
    memtable.publish(1, rows);
    let moment = View { db, memtable: Arc::new(memtable) }.moment();
    let mut rows: BTreeMap<String, u64> = BTreeMap::new();
    let mut count = 0_u64;
    let unreadable = walk(&moment, &mut |key, value| {
        count += 1;
        *rows.entry(key::table_name(key.as_bytes())).or_default() += 1;
        take((key, Some(value)))
    });
    faults.extend(unreadable.map_err(disk)?.iter().map(ToString::to_string));
    if lost > 0 {
        let about = u128::from(lost) * u128::from(count) / u128::from(read.max(1));
        faults.push(format!("estimated loss: {about} rows; {count} were read"));
    }
    Ok(Wreck { rows, faults, notes })
}

/// Returns the rows of the log that must be applied to a tree that contains the records up to
/// `applied`. These are the rows of later records. If the tree has lost rows (`is_lossy`) and the
/// log has no gaps, the rows of all records are returned, which restores the lost rows. If the log
/// has gaps, the tree may have newer values than the log, so this is not done.
fn log_rows(folder: &Path, applied: u64, is_lossy: bool) -> io::Result<(replay::Found, Rows)> {
    let read = |from: u64| {
        let mut rows = Rows::new();
        let found = replay::read(folder, from, true, &mut |record| {
            if record.number > from {
                rows.extend(record.entries().unwrap_or_default());
            }
        })?;
        Ok((found, rows))
    };
    let whole = if is_lossy { Some(read(0)?) } else { None };
    match whole.filter(|(found, _)| found.errors.is_empty()) {
        Some(whole) => Ok(whole),
        None => read(applied),
    }
}

/// The result of reading a damaged tree.
#[derive(Debug, Default)]
struct Tree {
    faults: Vec<String>,
    notes: Vec<String>,
    /// Unreadable and readable bytes.
    lost: u64,
    read: u64,
}

/// Copies every readable entry of the tree in `folder` into a new tree.
fn rebuild(folder: &Path, db: &sled::Db) -> Result<Tree, Error> {
    let mut tree = Tree::default();
    if !folder.join("db").is_file() && !folder.join(tree_file::KEPT).is_file() {
        tree.faults.push("the tree is missing".to_owned());
        return Ok(tree);
    }
    let found = tree_file::read(folder, &mut |bound, held| {
        Entries::put(db, bound, held).map_err(io::Error::other)
    });
    let found = found.map_err(|error| Error::folder(folder, &error))?;
    tree.read = found.bytes;
    for damage in &found.damage {
        let tree_file::Damage { offset, bytes, .. } = damage;
        if damage.is_restored {
            let note = "was damaged and has been repaired by its checksum";
            tree.notes.push(format!("the tree's file at byte {offset} ({bytes} bytes) {note}"));
        } else {
            tree.lost += bytes;
            let lost =
                format!("{bytes} bytes of the tree's file cannot be read, from byte {offset}");
            tree.faults.push(format!("{lost}: rows of those pages are missing or outdated"));
        }
    }
    for (from, to) in found.holes {
        let to = Some(to).filter(|to| !to.is_empty()).map(|to| Key::from_bytes(&to));
        let reason = "the page is damaged".to_owned();
        let hole = Unreadable { from: Key::from_bytes(&from), to, reason };
        tree.faults.push(hole.to_string());
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wide(number: u128) -> [u8; WIDTH] {
        let mut bytes = [0; WIDTH];
        bytes[WIDTH - 16..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    proptest! {
        #[test]
        fn salvage_wide_numbers_match_native_arithmetic(a in 0..u128::MAX / 4, b in 0..u128::MAX / 4, bit in 0_usize..120) {
            prop_assert_eq!(plus_bit(&wide(a), bit), Some(wide(a + (1 << bit))));
            let low = a.min(b);
            let high = a.max(b);
            let middle = low.midpoint(high);
            let expected = (middle != low && middle != high).then(|| wide(middle));
            prop_assert_eq!(midpoint(&wide(low), &wide(high)), expected);
        }
    }

    #[test]
    fn salvage_wide_numbers_do_not_overflow() {
        let largest = [u8::MAX; WIDTH];
        assert_eq!(plus_bit(&largest, 0), None);
        let mut below = largest;
        below[WIDTH - 1] = 0xfc;
        let mut middle = largest;
        middle[WIDTH - 1] = 0xfd;
        assert_eq!(midpoint(&below, &largest), Some(middle));
    }
}
