//! The tree: sled, opened, and the rows in it that say which store it is and how far it has come.
//!
//! Rows reach it through checkpoints alone, in [`blocks`], one by one, never as a batch: a batch makes the
//! engine roll its buffer twice. Its own background flush is off: nothing relies on it, and it would sync beside
//! the log.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use super::blocks::{self, Entries};
use super::durable;
use super::error::Error;
use super::key::{Key, Table};
use super::log::form::StoreId;
use super::pack;
use crate::domain::ids::{Id, RequestId};
use crate::runtime::new_id;

/// A segment of the engine's log: a quarter of it holds a leaf of 32 rows of 64 KiB.
///
/// Against the engine's own 512 KiB (`benches/store.rs`, `docs/performance.md`): with values of
/// 32 KiB the small ones put pages of the tree into files that are never synced, 150 of them for 48
/// MiB, which rules them out as they are. The price of 8 MiB is some 14 MiB more memory
/// once a store has been filled, none while it is empty, and 1.2 to 1.5 times the disk.
pub const SEGMENT_BYTES: usize = 8 * 1024 * 1024;
/// Pages of the tree that are kept in memory, as large as they are in the file; what is read once more comes from
/// the system's cache. Against 32 MiB it is some 17 MiB less after 300,000 executions, and no list is slower.
const CACHE_BYTES: u64 = 4 * 1024 * 1024;
/// How often, and how far apart, it is looked whether an earlier store has let go of its files: ten
/// seconds in all.
const LET_GO_LOOKS: u32 = 1000;
const LET_GO_PAUSE: Duration = Duration::from_millis(10);
/// What was replaced is freed when the epoch has moved on so often that nobody can be reading it.
const EPOCHS_TO_FREE: usize = 3;

thread_local! {
    /// `Some` while panics of this thread are explained by [`guarded`] and not printed.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a call into the engine; one of its panics becomes a reason.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let noted = CAUGHT.with_borrow_mut(|caught| match caught {
                Some(reason) => {
                    let why = panic.payload_as_str().unwrap_or("no reason given");
                    *reason = why.replace('\n', " ");
                    true
                }
                None => false,
            });
            if !noted {
                before(panic);
            }
        }));
    });
    CAUGHT.set(Some(String::new()));
    let done = catch_unwind(AssertUnwindSafe(work));
    let reason = CAUGHT.take().unwrap_or_default();
    done.map_err(|_panic| format!("the engine stopped: {reason}"))
}

/// Opens the engine. A store that was closed in this process a moment ago may still be letting go of
/// its files, by jobs of the engine in the background; since the folder's lock is ours, nobody else
/// can hold them, and they are waited for.
pub fn open(path: &Path) -> Result<sled::Db, Error> {
    let config = sled::Config::new()
        .path(path)
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(None)
        .segment_size(SEGMENT_BYTES)
        .use_compression(false)
        .mode(sled::Mode::HighThroughput);
    let damaged = |reason| Error::Damaged { folder: path.to_path_buf(), reason };
    let mut looks = LET_GO_LOOKS;
    loop {
        match guarded(|| config.open()).map_err(damaged)? {
            Ok(db) => return Ok(db),
            Err(error) if looks > 0 && error.to_string().contains("could not acquire lock") => {
                looks -= 1;
                std::thread::sleep(LET_GO_PAUSE);
            }
            Err(sled::Error::Io(error)) if error.raw_os_error().is_some() => {
                return Err(Error::folder(path, &error));
            }
            Err(sled::Error::Corruption { .. }) => {
                return Err(damaged("a page of its tree differs from what was written".to_owned()));
            }
            Err(error) => return Err(damaged(error.to_string())),
        }
    }
}

/// Puts one of the tree's own rows. It is durable once [`flush`] has returned.
fn put(db: &sled::Db, key: &Key, value: &[u8]) -> Result<(), Error> {
    db.put(key.as_bytes(), &pack::pack(value))
}

/// Makes everything that was put durable, and proves that the flush went through `durable`.
pub fn flush(db: &sled::Db) -> Result<(), Error> {
    let before = durable::calls();
    // The engine leaves out a write of what is there already, and then has nothing to flush.
    let start: RequestId = new_id();
    put(db, &started_key(), &start.bytes())?;
    db.flush().map_err(|error| Error::unavailable(&error))?;
    free_replaced();
    if durable::calls() > before { Ok(()) } else { Err(Error::NotDurable) }
}

/// Frees the pages and buffers that were replaced, by this thread or by one of the engine's that has let go of
/// them. The engine does so while a thread goes on replacing others: one that has done its work would
/// keep them, and with them the buffer of a segment.
pub fn free_replaced() {
    for _ in 0..EPOCHS_TO_FREE {
        crossbeam_epoch::pin().flush();
    }
}

/// The row that says which store the tree belongs to.
fn store_key() -> Key {
    Key::table(Table::Meta).text("store")
}

/// The row that says which record of the log the tree has reached.
fn applied_key() -> Key {
    Key::table(Table::Meta).text("applied")
}

fn started_key() -> Key {
    Key::table(Table::Meta).text("started")
}

/// The row that says which format the store has.
pub fn format_key() -> Key {
    Key::table(Table::Meta).text("format")
}

/// Whether a row speaks of the tree itself: such rows stay when a store is copied.
pub fn is_own(key: &Key) -> bool {
    key.as_bytes().first() == Some(&(Table::Meta as u8))
        && [store_key(), applied_key(), started_key(), format_key()].contains(key)
}

/// The store that the tree belongs to; `None` before it was ever noted.
pub fn store(db: &sled::Db) -> Result<Option<StoreId>, Error> {
    let row = blocks::get(db, store_key().as_bytes())?;
    Ok(row.and_then(|bytes| StoreId::try_from(bytes).ok()))
}

/// Notes the format of the tree's rows.
pub fn set_format(db: &sled::Db, format: u32) -> Result<(), Error> {
    put(db, &format_key(), &format.to_be_bytes())
}

/// Notes which store the tree belongs to.
pub fn set_store(db: &sled::Db, store: StoreId) -> Result<(), Error> {
    put(db, &store_key(), &store)
}

/// The last record of the log whose rows, and those of all before it, are in the tree.
pub fn applied(db: &sled::Db) -> Result<u64, Error> {
    let row = blocks::get(db, applied_key().as_bytes())?;
    Ok(row.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes))
}

/// Notes the last record that is in the tree; put behind all of its rows, since what the engine
/// keeps after a crash is a prefix of what it was given.
pub fn set_applied(db: &sled::Db, number: u64) -> Result<(), Error> {
    put(db, &applied_key(), &number.to_be_bytes())
}
