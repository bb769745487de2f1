//! The writer: the one thread that changes the store.
//!
//! It takes commits from a bounded channel, merges those that wait into one batch, applies the
//! batch, flushes once, calls their hooks in order and only then answers all of them. Preconditions and counters see every
//! commit merged before them. It retries nothing: when the disk refuses, every waiting commit is
//! told so, and the store takes no more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot, watch};

use super::commit::{Commit, Expect, Hook, Write};
use super::error::Error;
use super::key::Key;
use super::record::Malformed;

/// Commits that may wait for the writer; more wait at their senders.
pub const QUEUE: usize = 4096;
/// Commits that one flush makes durable.
const MOST_COMMITS: usize = 256;
/// Bytes that one flush makes durable, unless a single commit has more.
const MOST_BYTES: usize = 1024 * 1024;

/// What the writer is sent.
pub enum Message {
    Commit {
        commit: Commit,
        done: oneshot::Sender<Result<(), Error>>,
    },
    /// From now on, what is written goes to this tap as well, or to none. Answered with whether
    /// there was one until now.
    Tap {
        tap: Option<Tap>,
        done: oneshot::Sender<bool>,
    },
    Close,
}

/// Takes what is written, batch by batch. It is dropped when it cannot take more at once: a backup
/// never holds the writer up.
pub type Tap = std::sync::mpsc::SyncSender<Overlay>;

/// What the writer tells everyone.
#[derive(Debug, Default)]
pub struct Figures {
    pub commits: AtomicU64,
    pub flushes: AtomicU64,
}

/// The thread's state.
pub struct Writer {
    pub db: sled::Db,
    pub inbox: mpsc::Receiver<Message>,
    pub figures: Arc<Figures>,
    /// Set once, with the reason, when the disk has refused.
    pub failure: watch::Sender<Option<String>>,
    pub tap: Option<Tap>,
}

/// A commit that waits for the flush.
struct Pending {
    hooks: Vec<Hook>,
    done: oneshot::Sender<Result<(), Error>>,
}

type Waiting = Vec<Pending>;

/// The rows that the current batch changes; `None` deletes.
pub type Overlay = BTreeMap<Key, Option<Vec<u8>>>;

/// The rows of one commit, in the order of its writes.
type Rows = Vec<(Key, Option<Vec<u8>>)>;

impl Writer {
    /// Works until it is told to close. Runs on a thread of its own.
    pub fn run(mut self) {
        while let Some(first) = self.inbox.blocking_recv() {
            let started = Instant::now();
            let (next, overlay, waiting) = self.gather(first);
            self.write(overlay, waiting);
            metrics::histogram!("orrery_commit_seconds").record(started.elapsed());
            match next {
                None => {}
                Some(Message::Tap { tap, done }) => {
                    let before = std::mem::replace(&mut self.tap, tap);
                    // Who asked and has gone has dropped the tap's other end as well.
                    let _gone = done.send(before.is_some());
                }
                Some(Message::Close | Message::Commit { .. }) => break,
            }
        }
        if let Err(error) = self.db.flush() {
            tracing::error!(%error, "the last flush failed");
        }
    }

    /// Merges what waits, up to a message that is no commit, which comes back.
    fn gather(&mut self, first: Message) -> (Option<Message>, Overlay, Waiting) {
        let mut overlay = Overlay::new();
        let mut waiting = Waiting::new();
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(message) = next {
            let (mut commit, done) = match message {
                Message::Commit { commit, done } => (commit, done),
                other @ (Message::Tap { .. } | Message::Close) => {
                    return (Some(other), overlay, waiting);
                }
            };
            let hooks = std::mem::take(&mut commit.hooks);
            match self.merge(commit, &mut overlay) {
                Ok(added) => {
                    bytes += added;
                    waiting.push(Pending { hooks, done });
                }
                Err(error) => answer(done, Err(error)),
            }
            if waiting.len() >= MOST_COMMITS || bytes >= MOST_BYTES {
                break;
            }
            next = self.inbox.try_recv().ok();
        }
        (None, overlay, waiting)
    }

    /// Checks a commit against everything before it and adds its rows: all, or none.
    fn merge(&self, commit: Commit, overlay: &mut Overlay) -> Result<usize, Error> {
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
            };
            if !holds {
                return Err(Error::Conflict { key: key.clone() });
            }
        }
        let mut rows = Rows::with_capacity(commit.writes.len());
        for write in commit.writes {
            match write {
                Write::Put(key, value) => rows.push((key, Some(value))),
                Write::Delete(key) => rows.push((key, None)),
                Write::Add(key, delta) => {
                    self.count(key, delta, &mut rows, overlay)?;
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
        let bytes = rows.iter().map(length).sum();
        overlay.extend(rows);
        Ok(bytes)
    }

    /// Adds to a counter, after what the commit itself has added to it; gives the sum.
    fn count(
        &self,
        key: Key,
        delta: i64,
        rows: &mut Rows,
        overlay: &Overlay,
    ) -> Result<i64, Error> {
        let own = rows.iter().rev().find(|(held, _)| *held == key);
        let before: Option<Vec<u8>> = match own {
            Some((_, value)) => Option::clone(value),
            None => self.current(&key, overlay)?,
        };
        let sum = counter(before.as_deref())?.saturating_add(delta);
        rows.push((key, Some(sum.to_be_bytes().to_vec())));
        Ok(sum)
    }

    fn current(&self, key: &Key, overlay: &Overlay) -> Result<Option<Vec<u8>>, Error> {
        if let Some(row) = overlay.get(key) {
            return Ok(row.clone());
        }
        let row = self.db.get(key.as_bytes()).map_err(|error| Error::unavailable(&error))?;
        Ok(row.map(|bytes| bytes.to_vec()))
    }

    /// One batch, one flush, then the hooks and the answers, in the order of the commits.
    fn write(&mut self, overlay: Overlay, waiting: Waiting) {
        if let Some(tap) = &self.tap
            && tap.try_send(overlay.clone()).is_err()
        {
            self.tap = None;
        }
        let mut batch = sled::Batch::default();
        for (key, value) in overlay {
            match value {
                Some(value) => batch.insert(key.as_bytes(), value),
                None => batch.remove(key.as_bytes()),
            }
        }
        let written = self.db.apply_batch(batch).and_then(|()| self.db.flush());
        let outcome = written.map(|_bytes| ()).map_err(|error| Error::unavailable(&error));
        if let Err(error) = &outcome {
            tracing::error!(%error, "the store takes no more writes");
            self.failure.send_if_modified(|reason| {
                reason.get_or_insert_with(|| error.to_string());
                true
            });
        } else {
            self.figures.flushes.fetch_add(1, Ordering::Relaxed);
            self.figures.commits.fetch_add(waiting.len() as u64, Ordering::Relaxed);
            metrics::counter!("orrery_flushes_total").increment(1);
            metrics::counter!("orrery_commits_total").increment(waiting.len() as u64);
        }
        for Pending { hooks, done } in waiting {
            if outcome.is_ok() {
                hooks.into_iter().for_each(Hook::call);
            }
            answer(done, outcome.clone());
        }
    }
}

/// The number in a counter's row.
pub fn counter(row: Option<&[u8]>) -> Result<i64, Malformed> {
    let Some(bytes) = row else { return Ok(0) };
    let bytes: [u8; 8] = bytes.try_into().map_err(|_length| Malformed {
        record: "counter",
        reason: "it has not eight bytes".to_owned(),
    })?;
    Ok(i64::from_be_bytes(bytes))
}

/// A sender that waits no more is no fault: its commit counts all the same.
fn answer(done: oneshot::Sender<Result<(), Error>>, outcome: Result<(), Error>) {
    if done.send(outcome).is_err() {
        tracing::trace!("a commit's sender has gone");
    }
}
