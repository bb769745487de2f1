//! Checkpoints: move rows from the memtable into the tree in the background, then remove the log
//! segments that contain them.
//!
//! The checkpoint thread takes a frozen layer, writes its rows and then the number of its last
//! record to the tree, flushes the tree, verifies the flush, updates the marker, and only then
//! removes log segments. Rows are written in key order. A crash at any point leaves a log that
//! contains at least the rows that the tree lacks. When the store is idle, the same thread requests
//! a seal from the writer, and later a checkpoint of the remaining rows. The thread never retries a
//! failed operation, except that it waits while no file descriptor is free.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::blocks;
use super::error::Error;
#[cfg(any(test, feature = "test-support"))]
use super::faults::{Faults, Point};
use super::log::Segments;
use super::log::form::StoreId;
use super::marker::Marker;
use super::memtable::Frozen;
use super::row_cache::RowCache;
use super::tree;
use super::view::View;
use super::writer::{Held, Message};
use orrery_runtime as runtime;

/// Maximum memory for rows that are not in the tree, in multiples of `log_bytes`. One organization
/// can take half of this memory. Beyond that, its commits wait for a checkpoint; otherwise the
/// writer, and with it all other organizations, would have to wait.
const MEMORY_IN_LOGS: u64 = 3;
/// The minimum of the memory limit that [`MEMORY_IN_LOGS`] determines, in bytes.
const MEMORY_MIN: u64 = 8 * 1024 * 1024;

/// When to seal and checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The size of the log that triggers a checkpoint, in bytes. At twice this size, the writer
    /// waits for the running checkpoint to finish.
    pub log_bytes: u64,
    /// Idle time before the log is sealed with an empty record, which proves that the last record
    /// is complete.
    pub seal_after: Duration,
    /// Idle time before a checkpoint.
    pub idle_after: Duration,
    /// Idle time before a checkpoint of fewer rows than [`Limits::few_rows`].
    pub idle_few_after: Duration,
    pub few_rows: usize,
}

impl Limits {
    /// Maximum bytes of rows that are not in the tree.
    pub(crate) fn memory_bytes(&self) -> usize {
        let bytes = self.log_bytes.saturating_mul(MEMORY_IN_LOGS).max(MEMORY_MIN);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

#[cfg(any(test, feature = "test-support"))]
impl Limits {
    /// Checkpoints constantly.
    #[cfg(test)]
    pub(crate) const EAGER: Self = Self {
        log_bytes: 2048,
        seal_after: Duration::from_millis(2),
        idle_after: Duration::from_millis(4),
        idle_few_after: Duration::from_millis(4),
        few_rows: 1,
    };
    /// Makes no checkpoint before the store closes.
    pub(crate) const NEVER: Self = Self {
        log_bytes: u64::MAX / 4,
        seal_after: Duration::from_secs(3600),
        idle_after: Duration::from_secs(3600),
        idle_few_after: Duration::from_secs(3600),
        few_rows: 1,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            log_bytes: 32 * 1024 * 1024,
            seal_after: Duration::from_millis(50),
            idle_after: Duration::from_secs(1),
            idle_few_after: Duration::from_secs(15),
            few_rows: 1000,
        }
    }
}

/// Progress of the tree, shared with the writer.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The last record that is durable in the tree.
    applied: AtomicU64,
    /// The number of the last record that contains rows, and whether a seal follows it.
    written: AtomicU64,
    sealed: AtomicBool,
    /// Whether a checkpoint is running.
    busy: Mutex<bool>,
    ended: Condvar,
}

impl Progress {
    /// The progress of a store that was just opened.
    pub(crate) fn new(applied: u64, written: u64) -> Self {
        let sealed = AtomicBool::new(true);
        let applied = AtomicU64::new(applied);
        let written = AtomicU64::new(written);
        Self { applied, written, sealed, ..Self::default() }
    }

    /// The last record that is durably in the tree.
    pub(crate) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Records that a log record was written. Returns whether the log was sealed before this
    /// record.
    pub(crate) fn wrote(&self, number: u64, is_seal: bool) -> bool {
        if !is_seal {
            self.written.store(number, Ordering::Release);
        }
        self.sealed.swap(is_seal, Ordering::AcqRel)
    }

    /// Whether a seal or a later segment proves that the last record is complete.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    fn set_busy(&self, busy: bool) {
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = busy;
        self.ended.notify_all();
    }

    /// Records that a layer was frozen.
    pub(crate) fn begin(&self) {
        self.set_busy(true);
    }

    /// Waits for the running checkpoint.
    pub(crate) fn wait(&self) {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.ended.wait_while(busy, |busy| *busy));
    }
}

/// A message to the checkpoint thread. The thread ends when the sender is dropped.
pub(crate) enum Job {
    /// A record was written to a sealed log.
    Dirty,
    /// A layer to move to the tree, and the memory permits of its rows.
    Frozen(Frozen, Held),
}

/// The thread's state.
pub(crate) struct Checkpointer {
    pub view: View,
    pub cache: Arc<RowCache>,
    pub segments: Arc<Segments>,
    pub store: StoreId,
    pub data: PathBuf,
    pub progress: Arc<Progress>,
    pub failure: Arc<watch::Sender<Option<String>>>,
    /// The writer's inbox. The sender is weak, so that this thread does not keep the inbox open.
    pub writer: mpsc::WeakSender<Message>,
    pub limits: Limits,
    #[cfg(any(test, feature = "test-support"))]
    pub faults: Arc<Faults>,
}

impl Checkpointer {
    /// Runs until the writer has ended.
    pub(crate) fn run(self, jobs: &Receiver<Job>) {
        // Commits should not wait while a checkpoint uses the CPU. If a checkpoint takes so long
        // that the next one is due, the writer waits for it to finish.
        runtime::yield_to_requests();
        let tick = (self.limits.seal_after / 2).max(Duration::from_millis(1));
        let mut seen = self.progress.written.load(Ordering::Acquire);
        let mut since = runtime::monotonic_now();
        let mut is_dirty = !self.view.memtable.is_empty();
        loop {
            let job = if is_dirty {
                jobs.recv_timeout(tick)
            } else {
                jobs.recv().map_err(|_gone| RecvTimeoutError::Disconnected)
            };
            match job {
                Ok(Job::Dirty) => (is_dirty, since) = (true, runtime::monotonic_now()),
                Ok(Job::Frozen(frozen, held)) => self.carry_over(&frozen, held),
                Err(RecvTimeoutError::Timeout) => {
                    let written = self.progress.written.load(Ordering::Acquire);
                    if written != seen {
                        (seen, since) = (written, runtime::monotonic_now());
                    } else {
                        is_dirty = self.idle(since.elapsed());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Does what is due when the store has had no commit for the time `idle`. Returns false if
    /// there is nothing left to do until the next commit.
    fn idle(&self, idle: Duration) -> bool {
        if !self.progress.is_sealed() {
            if idle >= self.limits.seal_after {
                self.ask(Message::Seal);
            }
            return true;
        }
        let memtable = &self.view.memtable;
        if memtable.is_empty() {
            // At the end of the last checkpoint, threads of the engine could still be using these
            // buffers.
            tree::free_replaced();
            return false;
        }
        let is_due = idle >= self.limits.idle_few_after
            || idle >= self.limits.idle_after && memtable.len() >= self.limits.few_rows;
        if is_due && !memtable.is_frozen() {
            self.ask(Message::Freeze);
        }
        true
    }

    fn ask(&self, message: Message) {
        // If the inbox is full, the store is not idle; if the inbox is closed, the message is not
        // needed.
        if let Some(writer) = self.writer.upgrade() {
            let _busy_or_closed = writer.try_send(message);
        }
    }

    fn carry_over(&self, frozen: &Frozen, held: Held) {
        let started = runtime::monotonic_now();
        let done = tree::guarded(|| self.apply(frozen))
            .map_err(|reason| Error::Unavailable { reason })
            .flatten();
        if let Err(error) = done {
            tracing::error!(%error, "checkpoint failed; the store accepts no more writes");
            self.failure.send_if_modified(|reason| {
                reason.get_or_insert_with(|| error.to_string());
                true
            });
        }
        drop(held);
        self.progress.set_busy(false);
        #[cfg(any(test, feature = "test-support"))]
        self.faults.hit(Point::Ended);
        metrics::counter!("orrery_checkpoints_total").increment(1);
        metrics::histogram!("orrery_checkpoint_seconds").record(started.elapsed());
    }

    fn apply(&self, frozen: &Frozen) -> Result<(), Error> {
        let View { db, memtable } = &self.view;
        memtable.wait_for_readers(frozen.number);
        let mut writer = blocks::Writer::new(db);
        frozen.layer.each(|key, value| {
            #[cfg(any(test, feature = "test-support"))]
            self.faults.hit(Point::Row);
            writer.change(key, value)
        })?;
        writer.finish()?;
        #[cfg(any(test, feature = "test-support"))]
        self.faults.hit(Point::Applied);
        tree::set_applied(db, frozen.number)?;
        #[cfg(any(test, feature = "test-support"))]
        self.faults.hit(Point::Flush);
        tree::flush(db)?;
        self.progress.applied.store(frozen.number, Ordering::Release);
        self.cache.forget(&frozen.layer);
        memtable.thaw();
        #[cfg(any(test, feature = "test-support"))]
        self.faults.hit(Point::Marker);
        Marker::new(self.store, memtable.published(), memtable.len() as u64).write(&self.data)?;
        #[cfg(any(test, feature = "test-support"))]
        self.faults.hit(Point::Remove);
        let removed = self.segments.remove_through(frozen.number, true);
        removed.map_err(|error| Error::unavailable(&error))
    }
}
