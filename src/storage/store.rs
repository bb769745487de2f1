//! The store's face: a handful of verbs, and nothing of the engine behind them.
//!
//! A commit is on the disk when [`Store::commit`] returns `Ok`. Reads go to blocking threads, a
//! bounded number at once, never on a thread that drives other tasks.
//!
//! Payload text up to 64 KiB stays beside its record. A leaf of the engine's tree holds some 32
//! rows and must stay under a quarter of a segment, or it becomes a file that the engine never
//! syncs; hence [`SEGMENT_BYTES`]. Cutting values into 4 KiB rows under smaller segments was the
//! other way: more code and more rows for the same promise (`benches/store.rs` has the figures).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::commit::Commit;
use super::error::Error;
use super::export::Held;
#[cfg(test)]
use super::fuse;
use super::key::{Key, Table};
use super::record::{Record, decode};
use super::room::Room;
use super::writer::{self, Figures, Message, Writer};
use super::{durable, folder};
use crate::domain::ids::{Id, RequestId};
use crate::runtime::fresh;

/// The format that this release writes.
pub const FORMAT: u32 = 1;
/// A segment of the engine's log: a quarter of it holds a leaf of 32 rows of 64 KiB.
///
/// Against the engine's own 512 KiB (`benches/store.rs`, `docs/performance.md`): with values of
/// 32 KiB the small ones put pages of the tree into files that are never synced, 150 of them for 48
/// MiB, which rules them out as they are. The price of 8 MiB is some 14 MiB more memory
/// once a store has been filled, none while it is empty, and 1.2 to 1.5 times the disk.
pub const SEGMENT_BYTES: usize = 8 * 1024 * 1024;
/// Pages of the tree that are kept in memory.
const CACHE_BYTES: u64 = 128 * 1024 * 1024;
/// How often the engine tidies its log.
const TIDY_EVERY_MS: u64 = 500;
/// How often, and how far apart, it is looked whether an earlier store has let go of its files: ten
/// seconds in all.
const LET_GO_LOOKS: u32 = 1000;
const LET_GO_PAUSE: Duration = Duration::from_millis(10);
/// Reads that run at once.
const READERS: usize = 16;
/// Rows that one page may have.
pub const PAGE_MAX: usize = 10_000;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data folder; made (0700) when absent.
    pub folder: PathBuf,
    /// Payload text up to this many bytes stays beside its record.
    pub inline_bytes: usize,
}

/// A range of rows to read, in the order of their keys.
#[derive(Debug, Clone)]
pub struct Page {
    /// All rows whose key begins with this.
    pub prefix: Key,
    /// Only rows behind this key.
    pub after: Option<Key>,
    /// Only rows before this key.
    pub before: Option<Key>,
    /// At most this many rows, and never more than [`PAGE_MAX`].
    pub limit: usize,
}

/// One row: its key and its bytes.
pub type Row = (Key, Vec<u8>);

/// Figures of the store, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    pub commits: u64,
    pub flushes: u64,
    pub bytes_on_disk: u64,
    /// Commits that wait for the writer.
    pub waiting: usize,
    /// The disk is nearly full.
    pub cramped: bool,
}

pub(super) struct Shared {
    pub(super) db: sled::Db,
    pub(super) folder: PathBuf,
    pub(super) inline_bytes: usize,
    pub(super) outbox: mpsc::Sender<Message>,
    /// Payload files that go once no backup needs them.
    pub(super) held: Mutex<Held>,
    /// Held by the one export that there may be.
    pub(super) exporting: Mutex<()>,
    readers: Semaphore,
    figures: Arc<Figures>,
    pub(super) room: Room,
    failure: watch::Receiver<Option<String>>,
    /// Held as long as any clone of the store is.
    _lock: File,
    #[cfg(test)]
    pub(super) fuse: fuse::Fuse,
}

/// The open store; clones share it.
#[derive(Clone)]
pub struct Store {
    pub(super) shared: Arc<Shared>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store, making it when it is not there. Blocks; meant for the start.
    ///
    /// # Errors
    /// [`Error::Locked`] when another process has it open; [`Error::NewerFormat`],
    /// [`Error::Damaged`], [`Error::Folder`], [`Error::NotDurable`] with what to do.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let Options { folder, inline_bytes } = options;
        folder::make(folder)?;
        let lock = folder::lock(folder)?;
        let room = Room::new(folder.clone());
        room.make_way();
        let path = folder.join("store");
        folder::remove_half_snapshots(&path)?;
        let db = open_engine(&path)?;
        check_format(&db, folder)?;
        prove_durable(&db)?;
        folder::sync_new(folder, &path)?;
        let (outbox, inbox) = mpsc::channel(writer::QUEUE);
        let (failure, failed) = watch::channel(None);
        let figures = Arc::new(Figures::default());
        let figures_of = Arc::clone(&figures);
        let writer = Writer { db: db.clone(), inbox, figures: figures_of, failure, tap: None };
        start(writer, folder)?;
        let shared = Shared {
            db,
            folder: folder.clone(),
            inline_bytes: *inline_bytes,
            outbox,
            held: Mutex::default(),
            exporting: Mutex::default(),
            readers: Semaphore::new(READERS),
            figures,
            room,
            failure: failed,
            _lock: lock,
            #[cfg(test)]
            fuse: fuse::Fuse::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The data folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.shared.folder
    }

    /// The bytes under `key`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the disk cannot be read.
    pub async fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        let key = key.clone();
        self.reading(move |db| read_row(db, &key)).await
    }

    /// The record under `key`.
    ///
    /// # Errors
    /// As [`Store::get`]; [`Error::Malformed`] when the bytes are no such record.
    pub async fn read<T: Record>(&self, key: &Key) -> Result<Option<T>, Error> {
        self.get(key).await?.map(|bytes| decode(&bytes)).transpose().map_err(Error::from)
    }

    /// The bytes under each of `keys`, in their order.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let keys = keys.to_vec();
        self.reading(move |db| keys.iter().map(|key| read_row(db, key)).collect()).await
    }

    /// The counter under `key`; 0 when there is none.
    ///
    /// # Errors
    /// As [`Store::get`]; [`Error::Malformed`] when the row is no counter.
    pub async fn counter(&self, key: &Key) -> Result<i64, Error> {
        Ok(writer::counter(self.get(key).await?.as_deref())?)
    }

    /// The counters under `keys`, in their order; 0 for those that there are not.
    ///
    /// # Errors
    /// As [`Store::counter`].
    pub async fn counters(&self, keys: &[Key]) -> Result<Vec<i64>, Error> {
        let rows = self.get_many(keys).await?;
        rows.iter().map(|row| Ok(writer::counter(row.as_deref())?)).collect()
    }

    /// A page of rows. Pages are no snapshot: rows written meanwhile may be in the next one.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn page(&self, page: Page) -> Result<Vec<Row>, Error> {
        self.reading(move |db| read_page(db, &page)).await
    }

    /// Makes the writes durable, all or none. They are on the disk when this returns `Ok`. Dropping
    /// the future does not take the commit back.
    ///
    /// # Errors
    /// [`Error::Conflict`] when a precondition does not hold, [`Error::Full`] for new work on a disk
    /// that is nearly full, [`Error::Unavailable`] when the disk refuses.
    pub async fn commit(&self, commit: Commit) -> Result<(), Error> {
        if commit.is_new_work {
            self.admit()?;
        }
        #[cfg(test)]
        self.shared.fuse.before().await;
        let (done, written) = oneshot::channel();
        let closed = || Error::Unavailable { reason: "it is closed".to_owned() };
        let message = Message::Commit { commit, done };
        self.shared.outbox.send(message).await.map_err(|_closed| closed())?;
        let outcome = written.await.unwrap_or_else(|_dropped| Err(closed()));
        #[cfg(test)]
        self.shared.fuse.after().await;
        outcome
    }

    /// Resolves with the reason when the disk has refused a write. Nothing is written any more
    /// then, and the process should end: what was acknowledged is on the disk.
    pub async fn failed(&self) -> String {
        let mut failure = self.shared.failure.clone();
        match failure.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_writer_closed) => std::future::pending().await,
        }
    }

    /// Figures of the store.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Shared { db, outbox, figures, .. } = &*self.shared;
        Stats {
            commits: figures.commits.load(Ordering::Relaxed),
            flushes: figures.flushes.load(Ordering::Relaxed),
            bytes_on_disk: db.size_on_disk().unwrap_or(0),
            waiting: writer::QUEUE.saturating_sub(outbox.capacity()),
            cramped: self.shared.room.is_cramped(),
        }
    }

    /// Refuses new work while the disk is nearly full. [`Store::commit`] asks this for every commit
    /// of new work; callers that write much before they commit ask it first as well.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn admit(&self) -> Result<(), Error> {
        if self.shared.room.is_cramped() { Err(Error::Full) } else { Ok(()) }
    }

    /// The free space of the data folder's disk, and what is kept of it in reserve.
    #[must_use]
    pub fn room(&self) -> &Room {
        &self.shared.room
    }

    /// Writes what was handed in and closes the store for all of its clones.
    pub async fn close(self) {
        if self.shared.outbox.send(Message::Close).await.is_ok() {
            self.shared.outbox.closed().await;
        }
    }

    pub(super) async fn reading<T, F>(&self, read: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&sled::Db) -> Result<T, Error> + Send + 'static,
    {
        let _place = self.shared.readers.acquire().await.map_err(|e| Error::unavailable(&e))?;
        let db = self.shared.db.clone();
        let reading = tokio::task::spawn_blocking(move || read(&db));
        reading.await.unwrap_or_else(|error| Err(Error::unavailable(&error)))
    }
}

/// Opens the engine. A store that was closed in this process a moment ago may still be letting go of
/// its files, by jobs of the engine in the background; since the folder's lock is ours, nobody else
/// can hold them, and they are waited for.
fn open_engine(path: &Path) -> Result<sled::Db, Error> {
    let config = sled::Config::new()
        .path(path)
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(Some(TIDY_EVERY_MS))
        .segment_size(SEGMENT_BYTES)
        .use_compression(false)
        .mode(sled::Mode::HighThroughput);
    let mut looks = LET_GO_LOOKS;
    loop {
        match config.open() {
            Ok(db) => return Ok(db),
            Err(error) if looks > 0 && error.to_string().contains("could not acquire lock") => {
                looks -= 1;
                std::thread::sleep(LET_GO_PAUSE);
            }
            Err(error) => {
                let (folder, reason) = (path.to_path_buf(), error.to_string());
                return Err(Error::Damaged { folder, reason });
            }
        }
    }
}

fn read_row(db: &sled::Db, key: &Key) -> Result<Option<Vec<u8>>, Error> {
    let row = db.get(key.as_bytes()).map_err(|error| Error::unavailable(&error))?;
    Ok(row.map(|bytes| bytes.to_vec()))
}

pub(super) fn read_page(db: &sled::Db, page: &Page) -> Result<Vec<Row>, Error> {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let prefix = page.prefix.as_bytes();
    let from = match &page.after {
        Some(after) if after.as_bytes() >= prefix => Excluded(after.as_bytes()),
        Some(_) | None => Included(prefix),
    };
    let to = page.before.as_ref().map_or(Unbounded, |before| Excluded(before.as_bytes()));
    if let (Included(from) | Excluded(from), Excluded(to)) = (from, to)
        && from >= to
    {
        return Ok(Vec::new());
    }
    let limit = page.limit.min(PAGE_MAX);
    let mut rows = Vec::with_capacity(limit.min(256));
    for row in db.range::<&[u8], _>((from, to)).take(limit) {
        let (key, value) = row.map_err(|error| Error::unavailable(&error))?;
        if !key.starts_with(prefix) {
            break;
        }
        rows.push((Key::from_bytes(&key), value.to_vec()));
    }
    Ok(rows)
}

/// Refuses a store of a newer release, and marks a new one.
fn check_format(db: &sled::Db, folder: &Path) -> Result<(), Error> {
    let key = Key::table(Table::Meta).text("format");
    let row = read_row(db, &key)?;
    let found = match row.as_deref().map(<[u8; 4]>::try_from) {
        None => None,
        Some(Ok(bytes)) => Some(u32::from_be_bytes(bytes)),
        Some(Err(_length)) => {
            let reason = "its format marker is no number".to_owned();
            return Err(Error::Damaged { folder: folder.to_path_buf(), reason });
        }
    };
    match found {
        Some(found) if found > FORMAT => {
            Err(Error::NewerFormat { folder: folder.to_path_buf(), found, known: FORMAT })
        }
        Some(_) => Ok(()),
        None => db
            .insert(key.as_bytes(), &FORMAT.to_be_bytes())
            .map(|_| ())
            .map_err(|error| Error::unavailable(&error)),
    }
}

/// Writes, flushes, and checks that the flush went through `durable`. What is written is new at
/// every start: the engine leaves out a write of what is there already, and then has nothing to
/// flush.
fn prove_durable(db: &sled::Db) -> Result<(), Error> {
    let before = durable::calls();
    let key = Key::table(Table::Meta).text("started");
    let start: RequestId = fresh();
    db.insert(key.as_bytes(), &start.bytes()).map_err(|error| Error::unavailable(&error))?;
    db.flush().map_err(|error| Error::unavailable(&error))?;
    if durable::calls() > before { Ok(()) } else { Err(Error::NotDurable) }
}

/// Starts the writer's thread. A panic there ends the process: what it held is in doubt, and the
/// next start knows what is on the disk.
fn start(writer: Writer, folder: &Path) -> Result<(), Error> {
    let work = move || {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| writer.run())).is_err() {
            tracing::error!("the store's writer panicked");
            std::process::abort();
        }
    };
    let started = std::thread::Builder::new().name("store-writer".to_owned()).spawn(work);
    started.map(|_thread| ()).map_err(|error| Error::folder(folder, &error))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
