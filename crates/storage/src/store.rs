//! The store's interface: a few operations that hide the engine.
//!
//! A commit is durable when [`Store::commit`] returns `Ok`. If the memtable does not have a row, it
//! is read on a blocking thread, with limited concurrency, and never on a thread that drives other
//! tasks.
//!
//! Payload text up to 64 KiB is stored in its record. A leaf of the engine's tree has some 32 rows,
//! and must be smaller than a quarter of a segment. Otherwise the engine stores the leaf in a
//! separate file that it never syncs. [`super::tree::SEGMENT_BYTES`] is chosen accordingly. Cutting
//! values into rows of 4 KiB with smaller segments would take more code and more rows for the same
//! guarantee (`benches/store.rs` has the figures).

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};

use super::checkpoint::{Checkpointer, Limits, Progress};
use super::commit::Commit;
#[cfg(any(test, feature = "test-support"))]
use super::crash_point::CrashPoint;
use super::data_dir::{self, FolderLock};
use super::deferred_deletions::DeferredDeletions;
use super::disk_space::DiskSpaceMonitor;
use super::error::Error;
#[cfg(any(test, feature = "test-support"))]
use super::faults::Faults;
use super::key::Key;
use super::log::Segments;
use super::log::form::StoreId;
use super::opening::{self, Opened};
use super::pace::Pace;
use super::payloads::{PAYLOADS, Recent};
use super::record::{Record, decode};
use super::root_folder::RootFolder;
use super::row_cache::RowCache;
use super::scan::{Page, read_page};
use super::view::{Moment, View};
use super::watches::{Watch, Watches};
use super::writer::{self, Held, Message, Metrics, Writer};
use orrery_domain::ids::PayloadId;
use orrery_runtime as runtime;
use orrery_runtime::turns::{Turn, Turns};

/// The format that this release writes. Since format 2, values in the tree may be packed; since
/// format 3, rows are in blocks. Stores in earlier formats are read without conversion.
pub const FORMAT: u32 = 3;
/// Maximum concurrent reads through one handle.
const READERS: usize = 16;
/// How often a commit that waits for memory requests a checkpoint.
const ROOM_LOOK: Duration = Duration::from_millis(20);
/// The number of checks whether the writer has ended. All checks together take 10 seconds. A read
/// in progress delays the writer's end.
const CLOSING_LOOKS: u32 = 10_000;
const CLOSING_PAUSE: Duration = Duration::from_millis(1);

/// Options for opening a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data folder; created with mode 0700 if missing.
    pub folder: PathBuf,
    /// Maximum size of a payload's text that is stored in its record, in bytes.
    pub inline_bytes: usize,
}

/// Metrics of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    pub commits: u64,
    pub flushes: u64,
    pub bytes_on_disk: u64,
    /// The log's share of `bytes_on_disk`.
    pub log_bytes: u64,
    /// Commits waiting for the writer.
    pub waiting: usize,
    /// Whether the disk is nearly full.
    pub disk_is_low: bool,
}

pub(super) struct Shared {
    pub(super) view: View,
    pub(super) segments: Arc<Segments>,
    pub(super) id: StoreId,
    pub(super) folder: PathBuf,
    /// The folder of payload files.
    pub(super) payloads: Arc<RootFolder>,
    pub(super) inline_bytes: usize,
    pub(super) writer_tx: mpsc::Sender<Message>,
    /// Memory for rows that are not in the tree, shared fairly between organizations.
    memory: Arc<Turns>,
    /// Payload files to delete once no backup needs them.
    pub(super) deferred: Mutex<DeferredDeletions<PayloadId>>,
    /// Locked during an export, so that at most one export runs at a time.
    pub(super) exporting: Mutex<()>,
    /// Rows that are read often.
    cache: Arc<RowCache>,
    metrics: Arc<Metrics>,
    pub(super) disk_space: DiskSpaceMonitor,
    pub(super) recent: Recent,
    watches: Arc<Watches>,
    failure: watch::Receiver<Option<String>>,
    _closing: Closing,
    /// The folder's lock, which is held as long as a clone of the store exists, and by the writer
    /// until the writer has closed the store.
    _lock: Arc<FolderLock>,
    #[cfg(any(test, feature = "test-support"))]
    pub(super) crash_point: CrashPoint,
    #[cfg(any(test, feature = "test-support"))]
    pub(super) faults: Arc<Faults>,
}

/// Waits, when the last handle is dropped, until the writer has closed the store. After that, the
/// caller can remove, move or open the folder, because the store no longer writes to it.
struct Closing(std::thread::JoinHandle<()>);

impl Drop for Closing {
    fn drop(&mut self) {
        // If a hook holds the last handle, the handle is dropped on the writer's own thread, which
        // cannot wait for itself.
        if self.0.thread().id() == std::thread::current().id() {
            return;
        }
        for _ in 0..CLOSING_LOOKS {
            if self.0.is_finished() {
                return;
            }
            std::thread::sleep(CLOSING_PAUSE);
        }
        tracing::warn!("the store is still being closed");
    }
}

/// An open store. Clones of this handle share the store.
#[derive(Clone)]
pub struct Store {
    pub(super) shared: Arc<Shared>,
    /// Permits for reads through this handle, shared fairly between organizations.
    readers: Arc<Turns>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store, or creates it if it does not exist. Blocks, so call it at startup.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process has the store open; [`Error::NewerFormat`],
    /// [`Error::Damaged`], [`Error::Misfit`], [`Error::Folder`] and [`Error::NotDurable`], whose
    /// messages say what to do.
    pub fn open(options: &Options) -> Result<Self, Error> {
        Self::open_locked(options, data_dir::make_and_lock(&options.folder)?)
    }

    /// Opens the store of a folder that this process has locked.
    ///
    /// # Errors
    /// The same errors as [`Store::open`].
    pub fn open_locked(options: &Options, lock: FolderLock) -> Result<Self, Error> {
        Self::open_with(
            options,
            lock,
            Limits::default(),
            #[cfg(any(test, feature = "test-support"))]
            Arc::default(),
        )
    }

    /// Opens a store that makes no checkpoint before it closes, so that its writer receives only
    /// the test's commits.
    #[cfg(any(test, feature = "test-support"))]
    pub fn open_without_checkpoints(options: &Options) -> Result<Self, Error> {
        Self::open_with(
            options,
            data_dir::make_and_lock(&options.folder)?,
            Limits::NEVER,
            Arc::default(),
        )
    }

    #[expect(
        clippy::too_many_lines,
        reason = "it assembles the parts of the store, one literal each"
    )]
    pub(super) fn open_with(
        options: &Options,
        lock: FolderLock,
        limits: Limits,
        #[cfg(any(test, feature = "test-support"))] faults: Arc<Faults>,
    ) -> Result<Self, Error> {
        let Options { folder, inline_bytes } = options;
        let disk_space = DiskSpaceMonitor::new(folder.clone());
        disk_space.free_ballast_if_full();
        let Opened { view, log, store, applied } = opening::open(folder)?;
        let (writer_tx, writer_rx) = mpsc::channel(writer::QUEUE);
        let (failure, failed) = watch::channel(None);
        let failure = Arc::new(failure);
        let metrics = Arc::new(Metrics::default());
        let segments = Arc::clone(log.segments());
        let progress = Arc::new(Progress::new(applied, log.number()));
        let (jobs, jobs_rx) = std::sync::mpsc::channel();
        let (cache, watches) = (Arc::new(RowCache::default()), Arc::new(Watches::default()));
        let lock = Arc::new(lock);
        let checkpointer = Checkpointer {
            view: view.clone(),
            cache: Arc::clone(&cache),
            segments: Arc::clone(&segments),
            store,
            data: folder.clone(),
            progress: Arc::clone(&progress),
            failure: Arc::clone(&failure),
            writer: writer_tx.downgrade(),
            limits,
            #[cfg(any(test, feature = "test-support"))]
            faults: Arc::clone(&faults),
        };
        let checkpoints = start("store-checkpoint", folder, move || checkpointer.run(&jobs_rx))?;
        let writer = Writer {
            view: view.clone(),
            log,
            store,
            data: folder.clone(),
            lock: Arc::clone(&lock),
            inbox: writer_rx,
            metrics: Arc::clone(&metrics),
            failure,
            change_stream: None,
            watches: Arc::clone(&watches),
            progress,
            jobs,
            checkpoints,
            limits,
            held: Held::default(),
            pace: Pace::new(runtime::monotonic_now()),
            #[cfg(any(test, feature = "test-support"))]
            faults: Arc::clone(&faults),
        };
        let closing = Closing(start("store-writer", folder, move || writer.run())?);
        let shared = Shared {
            view,
            segments,
            id: store,
            folder: folder.clone(),
            payloads: Arc::new(RootFolder::new(folder.join(PAYLOADS))),
            inline_bytes: *inline_bytes,
            writer_tx,
            memory: Turns::new(limits.memory_bytes()),
            deferred: Mutex::default(),
            exporting: Mutex::default(),
            cache,
            metrics,
            disk_space,
            recent: Recent::default(),
            watches,
            failure: failed,
            _closing: closing,
            _lock: lock,
            #[cfg(any(test, feature = "test-support"))]
            crash_point: CrashPoint::default(),
            #[cfg(any(test, feature = "test-support"))]
            faults,
        };
        Ok(Self { shared: Arc::new(shared), readers: readers() })
    }

    /// Fault injection for tests: a slow disk, a kill at a chosen point.
    #[cfg(any(test, feature = "test-support"))]
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Returns a handle to the same store with its own permits for reads, so that readers through
    /// this handle and through other handles do not wait for each other.
    #[must_use]
    pub fn with_own_readers(&self) -> Self {
        Self { readers: readers(), ..self.clone() }
    }

    /// The data folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.shared.folder
    }

    /// Watches rows with these prefixes; `None` if there are too many watches.
    #[must_use]
    pub fn watch(&self, prefixes: Vec<Key>) -> Option<Watch> {
        self.shared.watches.watch(prefixes)
    }

    /// Returns the bytes under `key`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the disk cannot be read.
    pub async fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        if let Some(value) = self.shared.view.memtable.get(key.as_bytes()) {
            return Ok(value);
        }
        let view = self.shared.view.clone();
        let key = key.clone();
        self.blocking(move || view.get(&key)).await
    }

    /// Like [`Store::get`], for rows that are read often: caches those that are absent from the
    /// memtable, so that reading them again needs no blocking thread.
    ///
    /// # Errors
    /// The same errors as [`Store::get`].
    pub async fn get_often(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        let rows = self.get_many_often(std::slice::from_ref(key)).await?;
        Ok(rows.into_iter().next().flatten())
    }

    /// Returns the record under `key`.
    ///
    /// # Errors
    /// The same errors as [`Store::get`]; [`Error::Malformed`] if the bytes are not a `T`.
    pub async fn read<T: Record>(&self, key: &Key) -> Result<Option<T>, Error> {
        self.get(key).await?.map(|bytes| decode(&bytes)).transpose()
    }

    async fn get_many_often(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let Shared { view, cache, .. } = &*self.shared;
        let moment = view.moment();
        let mut checkpoints = None;
        let look = |key| {
            moment.in_memory(key).or_else(|| match cache.get(key) {
                Ok(value) => Some(value),
                Err(now) => {
                    checkpoints.get_or_insert(now);
                    None
                }
            })
        };
        let found: Vec<_> = keys.iter().map(look).collect();
        let Some(checkpoints) = checkpoints else {
            return Ok(found.into_iter().flatten().collect());
        };
        let (view, cache, keys) = (view.clone(), Arc::clone(cache), keys.to_vec());
        self.blocking(move || {
            let read = |(found, key): (Option<Option<Vec<u8>>>, Key)| {
                if let Some(value) = found {
                    return Ok(value);
                }
                let value = moment.get(&key)?;
                cache.keep(key, value.clone(), checkpoints, &view.memtable);
                Ok(value)
            };
            found.into_iter().zip(keys).map(read).collect()
        })
        .await
    }

    /// Returns the bytes under each of `keys`, in order, in one consistent read.
    ///
    /// # Errors
    /// The same errors as [`Store::get`].
    pub async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let moment = self.shared.view.moment();
        let found: Vec<_> = keys.iter().map(|key| moment.in_memory(key)).collect();
        if found.iter().all(Option::is_some) {
            return Ok(found.into_iter().flatten().collect());
        }
        let keys = keys.to_vec();
        self.blocking(move || {
            let rows = found.into_iter().zip(&keys);
            rows.map(|(found, key)| found.map_or_else(|| moment.get(key), Ok)).collect()
        })
        .await
    }

    /// Returns, for each key in order, the bytes under the key and whether any row has the prefix
    /// given for the key. All values are read in one consistent read.
    ///
    /// # Errors
    /// The same errors as [`Store::get`].
    pub async fn get_with_parts(
        &self,
        wanted: Vec<(Key, Option<Key>)>,
    ) -> Result<Vec<(Option<Vec<u8>>, bool)>, Error> {
        self.reading(move |moment| {
            let look = |(key, prefix): (Key, Option<Key>)| {
                let parts = prefix.map(|prefix| read_page(moment, &Page::of(prefix, 1)));
                let parts = parts.transpose()?.unwrap_or_default();
                Ok((moment.get(&key)?, !parts.is_empty()))
            };
            wanted.into_iter().map(look).collect()
        })
        .await
    }

    /// Returns the counter under `key`; 0 if there is no counter.
    ///
    /// # Errors
    /// The same errors as [`Store::get`]; [`Error::Malformed`] if the row is not a counter.
    pub async fn counter(&self, key: &Key) -> Result<i64, Error> {
        Ok(writer::counter(self.get(key).await?.as_deref())?)
    }

    /// Returns the counters under `keys`, in order; 0 for missing counters.
    ///
    /// # Errors
    /// The same errors as [`Store::counter`].
    pub async fn counters(&self, keys: &[Key]) -> Result<Vec<i64>, Error> {
        let rows = self.get_many(keys).await?;
        rows.iter().map(|row| Ok(writer::counter(row.as_deref())?)).collect()
    }

    /// Like [`Store::counters`], for counters that are read often: see [`Store::get_often`].
    ///
    /// # Errors
    /// The same errors as [`Store::counter`].
    pub async fn counters_often(&self, keys: &[Key]) -> Result<Vec<i64>, Error> {
        let rows = self.get_many_often(keys).await?;
        rows.iter().map(|row| Ok(writer::counter(row.as_deref())?)).collect()
    }

    /// Makes all of the commit's writes durable, or none of them. When this function returns `Ok`,
    /// the writes are on disk. Dropping the future does not cancel the commit.
    ///
    /// # Errors
    /// [`Error::Conflict`] if a precondition does not hold, [`Error::Full`] for new work while the
    /// disk is nearly full, [`Error::Unavailable`] if the disk fails.
    pub async fn commit(&self, commit: Commit) -> Result<(), Error> {
        if commit.is_new_work {
            self.admit()?;
        }
        #[cfg(any(test, feature = "test-support"))]
        self.shared.crash_point.before().await;
        let (done, written) = oneshot::channel();
        let closed = || Error::Unavailable { reason: "it is closed".to_owned() };
        let turn = match &commit.urgent {
            Some(urgent) => tokio::select! {
                biased;
                () = urgent.cancelled() => self.shared.memory.none(),
                turn = self.room_for(commit.bytes()) => turn,
            },
            None => self.room_for(commit.bytes()).await,
        };
        let message = Message::Commit { commit, turn, done };
        self.shared.writer_tx.send(message).await.map_err(|_closed| closed())?;
        let outcome = written.await.unwrap_or_else(|_dropped| Err(closed()));
        #[cfg(any(test, feature = "test-support"))]
        self.shared.crash_point.after().await;
        outcome
    }

    /// Like [`Store::commit`], but returns false if a precondition does not hold.
    ///
    /// # Errors
    /// Other errors of [`Store::commit`].
    pub async fn try_commit(&self, commit: Commit) -> Result<bool, Error> {
        match self.commit(commit).await {
            Err(Error::Conflict { .. }) => Ok(false),
            written => written.map(|()| true),
        }
    }

    /// Like [`Store::commit`], but returns `conflict` if a precondition does not hold.
    ///
    /// # Errors
    /// `conflict`; other errors as [`Store::commit`].
    pub async fn commit_or<E: From<Error>>(&self, commit: Commit, conflict: E) -> Result<(), E> {
        if self.try_commit(commit).await? { Ok(()) } else { Err(conflict) }
    }

    /// Takes a permit for memory for rows that are not in the tree. An organization that holds much
    /// of this memory waits here for a checkpoint, so that the writer, which all organizations
    /// share, need not wait.
    async fn room_for(&self, bytes: usize) -> Turn {
        let mut taking = std::pin::pin!(self.shared.memory.take(bytes));
        if let Some(turn) = taking.as_mut().now_or_never() {
            return turn;
        }
        let mut failure = self.shared.failure.clone();
        loop {
            // If the writer is busy or closed, the request is not needed.
            let _begun = self.shared.writer_tx.try_send(Message::Freeze);
            tokio::select! {
                turn = taking.as_mut() => return turn,
                // The writer has stopped writing. The writer reports the failure when it receives
                // the commit.
                _ = failure.wait_for(Option::is_some) => return self.shared.memory.none(),
                () = tokio::time::sleep(ROOM_LOOK) => {}
            }
        }
    }

    /// Resolves with the reason when a write has failed. From then on, nothing is written, and the
    /// process should exit. All acknowledged commits are on disk.
    pub async fn failed(&self) -> String {
        let mut failure = self.shared.failure.clone();
        match failure.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_writer_closed) => std::future::pending().await,
        }
    }

    /// Metrics of the store.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Shared { view, segments, writer_tx, metrics, .. } = &*self.shared;
        let tree = view.db.size_on_disk().unwrap_or(0);
        let log_bytes = segments.bytes();
        Stats {
            commits: metrics.commits.load(Ordering::Relaxed),
            flushes: metrics.flushes.load(Ordering::Relaxed),
            bytes_on_disk: tree.saturating_add(log_bytes),
            log_bytes,
            waiting: writer::QUEUE.saturating_sub(writer_tx.capacity()),
            disk_is_low: self.shared.disk_space.is_low(),
        }
    }

    /// Refuses new work while the disk is nearly full. [`Store::commit`] calls this for every
    /// commit of new work; callers that write large payloads before they commit also call it
    /// beforehand.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn admit(&self) -> Result<(), Error> {
        if self.shared.disk_space.is_low() { Err(Error::Full) } else { Ok(()) }
    }

    /// The free space and the reserve of the data folder's disk.
    #[must_use]
    pub fn disk_space(&self) -> &DiskSpaceMonitor {
        &self.shared.disk_space
    }

    /// Writes the queued commits and closes the store for all of its clones.
    pub async fn close(self) {
        if self.shared.writer_tx.send(Message::Close).await.is_ok() {
            self.shared.writer_tx.closed().await;
        }
    }

    /// Runs a consistent read on a blocking thread.
    pub(super) async fn reading<T, F>(&self, read: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Moment) -> Result<T, Error> + Send + 'static,
    {
        let view = self.shared.view.clone();
        self.blocking(move || read(&view.moment())).await
    }

    async fn blocking<T, F>(&self, read: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Error> + Send + 'static,
    {
        let place = self.readers.take(1).await;
        let reading = tokio::task::spawn_blocking(move || {
            let read = read();
            // Release the permit now, since it may take a while until the reader's task is polled
            // again.
            drop(place);
            read
        });
        reading.await.unwrap_or_else(|error| Err(Error::unavailable(&error)))
    }
}

fn readers() -> Arc<Turns> {
    Turns::without_reserve(READERS)
}

/// Starts a thread of the store. A panic in the thread ends the process, because the state in
/// memory is in doubt; the next start reads the state on disk.
fn start(
    name: &'static str,
    folder: &Path,
    work: impl FnOnce() + Send + 'static,
) -> Result<std::thread::JoinHandle<()>, Error> {
    let work = move || {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
            tracing::error!(thread = name, "store thread panicked");
            std::process::abort();
        }
    };
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|error| Error::folder(folder, &error))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
