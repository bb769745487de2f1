//! The writer: the only thread that changes the store.
//!
//! The writer takes commits from a bounded channel and merges the waiting commits into one group;
//! under load, it waits briefly for more (`pace`). Preconditions and counters take into account
//! every commit that was merged earlier. The group becomes one log record, which is synced once;
//! all rows of the group become visible at once. Then the writer calls the hooks of the commits in
//! order, and returns the commits' results. The writer never retries: when the disk fails, every
//! waiting commit fails with the reason, and the store accepts no more commits.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::checkpoint::{Job, Limits, Progress};
use super::commit::{Commit, Expect, Hook, Write};
use super::data_dir::FolderLock;
use super::error::Error;
#[cfg(any(test, feature = "test-support"))]
use super::faults::{Faults, Point};
use super::key::Key;
use super::log::Log;
use super::log::form::{RECORD_BYTES_MAX, StoreId};
use super::marker::Marker;
use super::memtable::Rows;
use super::pace::Pace;
use super::record::Malformed;
use super::view::View;
use super::watches::{Touched, Watches};
use orrery_domain::ids::OrganizationId;
use orrery_runtime::turns::Turn;
use orrery_runtime::{self as runtime, Clock};

/// Maximum commits that may wait for the writer. Further commits wait in their callers.
pub(crate) const QUEUE: usize = 4096;
/// Maximum commits per group.
const GROUP_COMMITS_MAX: usize = 256;
/// Maximum bytes per group, unless a single commit is larger.
const GROUP_BYTES_MAX: usize = 1024 * 1024;

/// A message to the writer.
pub(crate) enum Message {
    Commit {
        commit: Commit,
        /// The commit's permit for memory for rows that are not in the tree.
        turn: Turn,
        done: oneshot::Sender<Result<(), Error>>,
    },
    /// Sets the stream that receives a copy of all writes, or removes it. The reply contains
    /// whether there was a stream before, and the number of the last log record.
    SetChangeStream {
        change_stream: Option<ChangeStream>,
        done: oneshot::Sender<(bool, u64)>,
    },
    /// Writes an empty record to an idle log, which proves that the last record is complete.
    Seal,
    /// Begins a checkpoint.
    Freeze,
    Close,
}

/// A stream that receives all writes, batch by batch. The writer drops the stream when it is full,
/// so that a backup never delays the writer.
pub(crate) type ChangeStream = std::sync::mpsc::SyncSender<Rows>;

/// Metrics published by the writer.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub commits: AtomicU64,
    pub flushes: AtomicU64,
}

/// The state of the writer thread.
pub(crate) struct Writer {
    pub view: View,
    pub log: Log,
    pub store: StoreId,
    pub data: PathBuf,
    /// Released last. So when another process or thread acquires the lock, the store is closed,
    /// even if a hook held the last handle.
    pub lock: Arc<FolderLock>,
    pub inbox: mpsc::Receiver<Message>,
    pub metrics: Arc<Metrics>,
    /// The reason why the disk failed. Set at most once.
    pub failure: Arc<watch::Sender<Option<String>>>,
    pub change_stream: Option<ChangeStream>,
    pub watches: Arc<Watches>,
    pub progress: Arc<Progress>,
    /// The channel to the checkpoint thread, which ends when this sender is dropped.
    pub jobs: std::sync::mpsc::Sender<Job>,
    pub checkpoints: JoinHandle<()>,
    pub limits: Limits,
    /// The memory permits of the commits since the last checkpoint began.
    pub held: Held,
    pub pace: Pace,
    #[cfg(any(test, feature = "test-support"))]
    pub faults: Arc<Faults>,
}

/// A commit that waits for the sync.
struct Pending {
    hooks: Vec<Hook>,
    /// Why the commit is refused. The refusal is returned only after the sync: the data that caused
    /// it may not be durable yet, and a caller that retries at once must be able to see that data.
    refused: Option<Error>,
    done: oneshot::Sender<Result<(), Error>>,
}

type Waiting = Vec<Pending>;

/// Permits for memory for rows that are not in the tree, one per organization.
#[derive(Debug, Default)]
pub(crate) struct Held(HashMap<Option<OrganizationId>, Turn>);

impl Held {
    fn add(&mut self, turn: Turn) {
        match self.0.entry(turn.holder()) {
            Entry::Occupied(mut held) => held.get_mut().join(turn),
            Entry::Vacant(place) => {
                place.insert(turn);
            }
        }
    }
}

/// The changes to one commit, in the order of its writes.
type Changes = Vec<(Key, Option<Vec<u8>>)>;

impl Writer {
    /// Runs until the store is closed. Call this function on its own thread.
    pub(crate) fn run(mut self) {
        while let Some(first) = self.inbox.blocking_recv() {
            let started = runtime::monotonic_now();
            let (next, rows, waiting) = self.gather(first, started);
            if !waiting.is_empty() {
                self.write(rows, waiting);
                metrics::histogram!("orrery_commit_seconds").record(started.elapsed());
            }
            match next {
                None => {}
                Some(Message::SetChangeStream { change_stream, done }) => {
                    let before = std::mem::replace(&mut self.change_stream, change_stream);
                    // If the requester no longer exists, neither does the receiver of the stream,
                    // so the reply is not needed.
                    let _gone = done.send((before.is_some(), self.log.number()));
                }
                Some(Message::Seal) => self.seal(),
                Some(Message::Freeze) => self.freeze(),
                Some(Message::Close | Message::Commit { .. }) => break,
            }
            if self.log.since_freeze >= self.limits.log_bytes {
                self.checkpoint_if_due();
            }
        }
        self.close();
    }

    /// Merges the waiting commits, up to the first message of another kind. Returns that message.
    fn gather(&mut self, first: Message, now: Instant) -> (Option<Message>, Rows, Waiting) {
        let mut rows = Rows::new();
        let mut waiting = Waiting::new();
        let mut bytes = 0;
        let mut next = Some(first);
        let mut pause = self.pace.pause(now);
        while let Some(message) = next {
            let (mut commit, turn, done) = match message {
                Message::Commit { commit, turn, done } => (commit, turn, done),
                other @ (Message::SetChangeStream { .. }
                | Message::Seal
                | Message::Freeze
                | Message::Close) => {
                    return (Some(other), rows, waiting);
                }
            };
            if !commit.is_new_work {
                self.pace.note();
            }
            let hooks = std::mem::take(&mut commit.hooks);
            match self.merge(commit, &mut rows) {
                Ok(added) => {
                    bytes += added;
                    self.held.add(turn);
                    waiting.push(Pending { hooks, refused: None, done });
                }
                Err(error) => {
                    waiting.push(Pending { hooks: Vec::new(), refused: Some(error), done });
                }
            }
            if waiting.len() >= GROUP_COMMITS_MAX || bytes >= GROUP_BYTES_MAX {
                break;
            }
            next = self.inbox.try_recv().ok();
            if next.is_none()
                && let Some(pause) = pause.take()
            {
                std::thread::sleep(pause);
                next = self.inbox.try_recv().ok();
            }
        }
        (None, rows, waiting)
    }

    /// Checks a commit against all earlier commits, and adds all of its rows or none.
    fn merge(&self, commit: Commit, overlay: &mut Rows) -> Result<usize, Error> {
        if let Some(reason) = self.failure.borrow().as_ref() {
            return Err(Error::Unavailable { reason: reason.clone() });
        }
        for expect in &commit.expects {
            let (key, holds) = match expect {
                Expect::Absent(key) => (key, self.current(key, overlay)?.is_none()),
                Expect::Present(key) => (key, self.current(key, overlay)?.is_some()),
                Expect::Equal(key, bytes) => {
                    (key, self.current(key, overlay)?.as_deref() == Some(bytes))
                }
                Expect::Below(key, limit) => {
                    (key, counter(self.current(key, overlay)?.as_deref())? < *limit)
                }
            };
            if !holds {
                return Err(Error::Conflict { key: key.clone() });
            }
        }
        let mut rows = Changes::with_capacity(commit.writes.len());
        for write in commit.writes {
            match write {
                Write::Put(key, value) => rows.push((key, Some(value))),
                Write::Delete(key) => rows.push((key, None)),
                Write::Add(key, delta) => {
                    self.count(key, delta, &mut rows, overlay)?;
                }
                Write::AddEach(key, deltas) => {
                    let before = self.newest(&key, &rows, overlay)?;
                    let before = counters(before.as_deref(), deltas.len())?;
                    let sums = before.iter().zip(&deltas).map(|(sum, n)| sum.saturating_add(*n));
                    let row = sums.flat_map(i64::to_be_bytes).collect();
                    rows.push((key, Some(row)));
                }
                Write::Append(list, value) => {
                    let after = self.count(list.clone(), 1, &mut rows, overlay)?;
                    let number = u64::try_from(after.saturating_sub(1)).unwrap_or_default();
                    rows.push((list.number_largest_first(number), Some(value)));
                }
            }
        }
        let length = |(key, value): &(Key, Option<Vec<u8>>)| {
            key.as_bytes().len() + value.as_ref().map_or(0, Vec::len)
        };
        let bytes: usize = rows.iter().map(length).sum();
        if bytes as u64 >= RECORD_BYTES_MAX / 2 {
            let reason = format!("a commit of {bytes} bytes is too large");
            return Err(Error::Unavailable { reason });
        }
        overlay.extend(rows);
        Ok(bytes)
    }

    /// Adds to a counter, including earlier additions in the same commit. Returns the sum.
    fn count(
        &self,
        key: Key,
        delta: i64,
        rows: &mut Changes,
        overlay: &Rows,
    ) -> Result<i64, Error> {
        let before = self.newest(&key, rows, overlay)?;
        let sum = counter(before.as_deref())?.saturating_add(delta);
        rows.push((key, Some(sum.to_be_bytes().to_vec())));
        Ok(sum)
    }

    /// Returns the row under the key, as the earlier writes `rows` of the same commit leave it.
    fn newest(&self, key: &Key, rows: &Changes, overlay: &Rows) -> Result<Option<Vec<u8>>, Error> {
        match rows.iter().rev().find(|(held, _)| held == key) {
            Some((_, value)) => Ok(value.clone()),
            None => self.current(key, overlay),
        }
    }

    fn current(&self, key: &Key, overlay: &Rows) -> Result<Option<Vec<u8>>, Error> {
        if let Some(row) = overlay.get(key) {
            return Ok(row.clone());
        }
        self.view.get(key)
    }

    /// Writes and syncs one record and publishes its rows, then runs the hooks and returns the
    /// results, in commit order.
    fn write(&mut self, rows: Rows, waiting: Waiting) {
        let has_rows = !rows.is_empty();
        let outcome = self.append(rows, false);
        if outcome.is_ok() {
            let commits = waiting.iter().filter(|waiting| waiting.refused.is_none()).count() as u64;
            self.metrics.flushes.fetch_add(u64::from(has_rows), Ordering::Relaxed);
            self.metrics.commits.fetch_add(commits, Ordering::Relaxed);
            metrics::counter!("orrery_flushes_total").increment(u64::from(has_rows));
            metrics::counter!("orrery_commits_total").increment(commits);
        }
        #[cfg(any(test, feature = "test-support"))]
        self.faults.hit(Point::Answer);
        for Pending { hooks, refused, done } in waiting {
            if outcome.is_ok() {
                hooks.into_iter().for_each(Hook::call);
            }
            answer(done, outcome.clone().and_then(|()| refused.map_or(Ok(()), Err)));
        }
    }

    /// Makes a record durable and its rows visible. Only a seal has no rows.
    fn append(&mut self, rows: Rows, is_seal: bool) -> Result<(), Error> {
        if rows.is_empty() && !is_seal {
            // The commit's preconditions held, and everything on which they depend is durable.
            return Ok(());
        }
        #[cfg(any(test, feature = "test-support"))]
        self.faults.hit(Point::Write);
        let written = self.log.write(&rows, self.progress.applied(), Clock::system().now());
        #[cfg(any(test, feature = "test-support"))]
        self.faults.hit(Point::Sync);
        let number = written.and_then(|number| self.log.sync().map(|()| number));
        let number = number.map_err(|error| self.fail(&error))?;
        #[cfg(any(test, feature = "test-support"))]
        self.faults.hit(Point::Publish);
        if let Some(stream) = &self.change_stream
            && !is_seal
            && stream.try_send(rows.clone()).is_err()
        {
            self.change_stream = None;
        }
        let touched = self.watches.touched_by(&rows);
        self.view.memtable.publish(number, rows);
        touched.into_iter().for_each(Touched::mark);
        if self.progress.wrote(number, is_seal) && !is_seal {
            // The checkpoint thread runs until the writer has ended, so it receives the message.
            let _running = self.jobs.send(Job::Dirty);
        }
        Ok(())
    }

    /// Stops all writes, because only the next start can determine what is on disk.
    fn fail(&self, error: &dyn std::fmt::Display) -> Error {
        tracing::error!(%error, "the store accepts no more writes");
        self.failure.send_if_modified(|reason| {
            reason.get_or_insert_with(|| error.to_string());
            true
        });
        Error::Unavailable { reason: error.to_string() }
    }

    fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    fn seal(&mut self) {
        if !self.has_failed() && !self.progress.is_sealed() {
            // If the seal fails, `append` records the reason for all callers.
            let _noted = self.append(Rows::new(), true);
        }
    }

    fn freeze(&mut self) {
        if self.has_failed() {
            return;
        }
        if let Some(frozen) = self.view.memtable.freeze() {
            self.log.since_freeze = 0;
            self.progress.begin();
            let held = std::mem::take(&mut self.held);
            let _running = self.jobs.send(Job::Frozen(frozen, held));
        }
    }

    /// Starts a checkpoint if one is due. Limits the size of the log and of memory: at twice the
    /// trigger, waits for the running checkpoint.
    fn checkpoint_if_due(&mut self) {
        if self.log.since_freeze >= self.limits.log_bytes.saturating_mul(2) {
            self.progress.wait();
        }
        self.freeze();
    }

    /// Moves all rows to the tree, leaves an empty log, and ends the checkpoint thread.
    fn close(mut self) {
        self.seal();
        self.progress.wait();
        self.freeze();
        self.progress.wait();
        // These variables are dropped in reverse order, so the lock is released last.
        let Self { lock: _lock, view, mut log, store, data, failure, jobs, checkpoints, .. } = self;
        drop(jobs);
        let _aborts_on_panic = checkpoints.join();
        if failure.borrow().is_some() || !view.memtable.is_empty() {
            return;
        }
        let number = log.number();
        let applied =
            super::tree::set_applied(&view.db, number).and_then(|()| super::tree::flush(&view.db));
        let emptied = applied.and_then(|()| {
            if !log.is_fresh() {
                log.roll(number, 0).map_err(|error| Error::unavailable(&error))?;
            }
            let removed = log.segments().remove_through(number, false);
            removed.map_err(|error| Error::unavailable(&error))?;
            Marker::new(store, number, 0).write(&data)
        });
        if let Err(error) = emptied {
            tracing::error!(
                %error,
                "failed to close the store completely; the next start reads its log"
            );
        }
        // Drop the engine after everything else, because the next process that opens the store
        // waits for the engine.
        drop(log);
        drop(view);
    }
}

/// Parses the value of a counter's row.
pub(crate) fn counter(row: Option<&[u8]>) -> Result<i64, Malformed> {
    let Some(bytes) = row else { return Ok(0) };
    let bytes: [u8; 8] = bytes.try_into().map_err(|_length| Malformed {
        record: "counter",
        reason: "it must have eight bytes".to_owned(),
    })?;
    Ok(i64::from_be_bytes(bytes))
}

/// Parses the value of a row with `count` counters.
pub(crate) fn counters(row: Option<&[u8]>, count: usize) -> Result<Vec<i64>, Malformed> {
    let Some(bytes) = row else { return Ok(vec![0; count]) };
    let (numbers, rest) = bytes.as_chunks::<8>();
    if numbers.len() != count || !rest.is_empty() {
        let reason = format!("it must have {count} numbers of eight bytes");
        return Err(Malformed { record: "counters", reason });
    }
    Ok(numbers.iter().map(|number| i64::from_be_bytes(*number)).collect())
}

/// Returns the result of a commit. The commit remains valid even if its caller no longer waits.
fn answer(done: oneshot::Sender<Result<(), Error>>, outcome: Result<(), Error>) {
    if done.send(outcome).is_err() {
        tracing::trace!("the caller of a commit no longer waits for it");
    }
}
