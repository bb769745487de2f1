//! The tree: opens sled, and reads and writes the rows that identify the store and the last applied
//! record.
//!
//! Rows reach the tree only through checkpoints, in [`blocks`], one by one: a batch would make the
//! engine roll its buffer twice. The engine's own background flush is disabled, because nothing
//! relies on it and it would compete with the log's syncs.

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
use orrery_domain::ids::{Id, RequestId};
use orrery_runtime::new_id;

/// The segment size of sled's log: a leaf of 32 rows of 64 KiB fits into a quarter of a segment.
///
/// Sled's default is 512 KiB (`benches/store.rs`, `benches/README.md`, "store"). With values of 32
/// KiB, that default puts pages of the tree into separate files that are never synced (150 files
/// for 48 MiB), which rules it out. Segments of 8 MiB take some 14 MiB more memory once a store has
/// been filled (none while it is empty), and 1.2 to 1.5 times the disk space.
pub(crate) const SEGMENT_BYTES: usize = 8 * 1024 * 1024;
/// The size of the engine's page cache. All other pages are read through the operating system's
/// cache. Compared with 32 MiB, this saves some 17 MiB after 300,000 executions, and no list is
/// slower.
const CACHE_BYTES: u64 = 4 * 1024 * 1024;
/// The number of retries while a previous store of this process releases its files. All retries
/// together take ten seconds.
const LET_GO_LOOKS: u32 = 1000;
const LET_GO_PAUSE: Duration = Duration::from_millis(10);
/// The number of epochs after which replaced pages are freed, since no thread can be reading them
/// anymore.
const EPOCHS_TO_FREE: usize = 3;

thread_local! {
    /// `Some` while [`guarded`] captures panics of this thread instead of printing them.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a call into the engine and turns a panic in it into an error.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
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

/// Opens the engine. The engine's background jobs may still be releasing the files of a store that
/// this process has just closed. Since this process has the folder's lock, no other process can
/// hold the files, so the open is retried.
pub(crate) fn open(path: &Path) -> Result<sled::Db, Error> {
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

/// Puts one of the tree's own rows. The row is durable after [`flush`].
fn put(db: &sled::Db, key: &Key, value: &[u8]) -> Result<(), Error> {
    db.put(key.as_bytes(), &pack::pack(value))
}

/// Makes all puts durable, and verifies that the flush went through `durable`.
pub(crate) fn flush(db: &sled::Db) -> Result<(), Error> {
    let before = durable::calls();
    // Put a new value, because the engine skips writing an unchanged value and would then have
    // nothing to flush.
    let start: RequestId = new_id();
    put(db, &started_key(), &start.bytes())?;
    db.flush().map_err(|error| Error::unavailable(&error))?;
    free_replaced();
    if durable::calls() > before { Ok(()) } else { Err(Error::NotDurable) }
}

/// Frees pages and buffers that were replaced by this thread or by finished threads of the engine.
/// The engine frees replaced pages and buffers only while a thread replaces other pages. An idle
/// engine would therefore keep these pages and buffers, including a buffer of the size of a
/// segment.
pub(crate) fn free_replaced() {
    for _ in 0..EPOCHS_TO_FREE {
        crossbeam_epoch::pin().flush();
    }
}

/// The key of the tree's store id.
fn store_key() -> Key {
    Key::table(Table::Meta).text("store")
}

/// The key of the row that contains the number of the last log record in the tree.
fn applied_key() -> Key {
    Key::table(Table::Meta).text("applied")
}

fn started_key() -> Key {
    Key::table(Table::Meta).text("started")
}

/// The key of the store's format number.
pub(crate) fn format_key() -> Key {
    Key::table(Table::Meta).text("format")
}

/// Whether a row describes the tree itself. Such rows are not copied to other stores.
pub(crate) fn is_own(key: &Key) -> bool {
    key.as_bytes().first() == Some(&(Table::Meta as u8))
        && [store_key(), applied_key(), started_key(), format_key()].contains(key)
}

/// The id of the store to which the tree belongs; `None` if it was never set.
pub(crate) fn store(db: &sled::Db) -> Result<Option<StoreId>, Error> {
    let row = blocks::get(db, store_key().as_bytes())?;
    Ok(row.and_then(|bytes| StoreId::try_from(bytes).ok()))
}

/// Sets the format number.
pub(crate) fn set_format(db: &sled::Db, format: u32) -> Result<(), Error> {
    put(db, &format_key(), &format.to_be_bytes())
}

/// Sets the id of the store to which the tree belongs.
pub(crate) fn set_store(db: &sled::Db, store: StoreId) -> Result<(), Error> {
    put(db, &store_key(), &store)
}

/// Returns the number of the last applied log record: the rows of this record and of all earlier
/// records are in the tree.
pub(crate) fn applied(db: &sled::Db) -> Result<u64, Error> {
    let row = blocks::get(db, applied_key().as_bytes())?;
    Ok(row.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes))
}

/// Sets the number of the last applied record. Call this function only after all rows of that
/// record were put: after a crash, the engine retains a prefix of its writes.
pub(crate) fn set_applied(db: &sled::Db, number: u64) -> Result<(), Error> {
    put(db, &applied_key(), &number.to_be_bytes())
}
