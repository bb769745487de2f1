//! Reading what can be read: every row of a store in which some cannot be, and where those are.
//!
//! [`walk`] goes on behind a page that cannot be read, by searching for the next key that can.
//! [`read`] does so with a store that does not open any more, on a copy of its tree, and lays the
//! whole records of its log over it. Nothing here changes the store that it reads.

use std::fmt;
use std::fs;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use super::error::Error;
use super::export::Change;
use super::key::{self, Key};
use super::log::replay;
use super::memtable::{Memtable, Rows};
use super::opening::STORE;
use super::store::Store;
use super::view::{Moment, View};
use super::{data_dir, log, tree};

/// Keys are distinguished by so many bytes when the end of unreadable rows is searched.
const WIDTH: usize = 40;
/// Ranges of unreadable rows after which the rest counts as unreadable.
const RANGES_MAX: usize = 10_000;

/// Rows that cannot be read: those from one key until before another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub from: Key,
    /// `None`: to the end of the store.
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

/// What could not be read of a store, in sentences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wreck {
    pub faults: Vec<String>,
}

impl Store {
    /// Gives every row that can be read to `take`, in the order of keys; answers which cannot.
    /// Blocks; for a thread of its own.
    ///
    /// # Errors
    /// Whatever `take` fails with.
    pub fn walk(
        &self,
        take: &mut dyn FnMut(Key, Vec<u8>) -> io::Result<()>,
    ) -> io::Result<Vec<Unreadable>> {
        walk(&self.shared.view.moment(), take)
    }
}

/// Gives every row that can be read to `take`; answers which cannot.
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

/// Reads from `from` on, which it moves behind every row that was read. A part whose end is known is noted
/// as unreadable and passed over. The inner error says why the next row cannot be read.
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

/// The first key behind `from` at which rows can be read again, as near as it is found: in steps
/// that double, and then by halving the last one.
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

/// The number in big-endian bytes plus a power of two; `None` beyond the largest.
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

/// The number between two; `None` when there is none.
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

/// Gives every row to `take` that can be read of the store in the data folder `data`, which no
/// process may use, in the order of keys. Works in the folder `scratch`, which is empty.
///
/// # Errors
/// [`Error::Locked`]; [`Error::Folder`] when files cannot be copied; whatever `take` fails with.
pub fn read(
    data: &Path,
    scratch: &Path,
    take: &mut dyn FnMut(Change) -> io::Result<()>,
) -> Result<Wreck, Error> {
    let _lock = data_dir::lock(data)?;
    let store = data.join(STORE);
    let disk = |error: io::Error| Error::folder(&store, &error);
    let mut faults = Vec::new();
    let copied = scratch.join("tree");
    copy(&store, &copied).map_err(disk)?;
    data_dir::remove_half_snapshots(&copied)?;
    let db = match open_tree(&copied, &mut faults) {
        Some(db) => db,
        None => tree::open(&scratch.join("empty"))?,
    };
    let applied = tree::guarded(|| tree::applied(&db)).ok().and_then(Result::ok).unwrap_or(0);
    let mut rows = Rows::new();
    let log = store.join(log::FOLDER);
    let found = replay::read(&log, applied, true, &mut |record| {
        // What the tree has is as new; a gap may have hidden that it is newer.
        if record.number > applied {
            rows.extend(record.entries().unwrap_or_default());
        }
    });
    let found = found.map_err(disk)?;
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
    let unreadable = walk(&moment, &mut |key, value| take((key, Some(value)))).map_err(disk)?;
    faults.extend(unreadable.iter().map(ToString::to_string));
    Ok(Wreck { faults })
}

/// Opens a tree; if need be without its snapshot, which makes the engine read its whole file.
fn open_tree(folder: &Path, faults: &mut Vec<String>) -> Option<sled::Db> {
    if !folder.join("db").is_file() {
        faults.push("the tree is missing".to_owned());
        return None;
    }
    for is_second in [false, true] {
        if is_second {
            remove_snapshots(folder);
        }
        match tree::open(folder) {
            Ok(db) => return Some(db),
            Err(error) => faults.push(format!("the tree cannot be opened: {error}")),
        }
    }
    None
}

fn remove_snapshots(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with("snap.")) {
            let _opens_without_it_or_not = fs::remove_file(path);
        }
    }
}

/// Copies a tree's files, without the log.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if !entry.file_type()?.is_dir() {
            fs::copy(entry.path(), target)?;
        } else if entry.file_name() != log::FOLDER {
            copy(&entry.path(), &target)?;
        }
    }
    Ok(())
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
