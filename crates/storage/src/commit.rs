//! A commit: writes that become durable together or not at all. The writer checks the preconditions
//! of a commit against everything committed before it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::key::Key;
use super::record::{Record, encode};

/// Number of writes that [`Commit::add_each`] searches for an addition to the same row.
const MERGED_WITHIN: usize = 32;

/// A precondition of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// The key has no row.
    Absent(Key),
    /// The key has a row.
    Present(Key),
    /// The row under the key has exactly these bytes.
    Equal(Key, Vec<u8>),
    /// The counter under the key is below this number.
    Below(Key, i64),
}

impl Expect {
    /// Returns the condition that the row under the key is still as it was read.
    #[must_use]
    pub fn unchanged(key: Key, row: Option<Vec<u8>>) -> Self {
        match row {
            None => Self::Absent(key),
            Some(bytes) => Self::Equal(key, bytes),
        }
    }
}

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    Put(Key, Vec<u8>),
    Delete(Key),
    /// Adds a number to the counter under the key (eight bytes, big-endian; 0 if absent). The
    /// writer computes the sum, so concurrent additions are never lost. The sum saturates at the
    /// bounds of `i64`.
    Add(Key, i64),
    /// Adds numbers to the counters in the row under the key, like [`Write::Add`]. An absent row
    /// counts as zeros; a row always has the same number of counters.
    AddEach(Key, Vec<i64>),
    /// Appends a row to the counted list under the key; the writer assigns its number.
    Append(Key, Vec<u8>),
}

type Function = Box<dyn FnOnce() + Send>;

/// A function that the writer calls once a commit is durable and visible. Clones share the
/// function, which is called at most once.
#[derive(Clone)]
pub(super) struct Hook(Arc<Mutex<Option<Function>>>);

impl Hook {
    /// Calls the function. The commit is durable in any case, so a panic is logged and does not
    /// reach the writer.
    pub(super) fn call(self) {
        let hook = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(hook) = hook else { return };
        if catch_unwind(AssertUnwindSafe(hook)).is_err() {
            tracing::error!("commit hook panicked");
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").finish_non_exhaustive()
    }
}

/// Writes that are applied atomically.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    pub(super) expects: Vec<Expect>,
    pub(super) writes: Vec<Write>,
    pub(super) hooks: Vec<Hook>,
    pub(super) is_new_work: bool,
    /// Once this token is cancelled, the commit no longer waits for its organization's memory.
    pub(super) urgent: Option<CancellationToken>,
}

impl Commit {
    /// Creates an empty commit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a commit for new work or new client data. While the disk is nearly full, such a
    /// commit fails with [`super::Error::Full`], whereas other commits (completions, deletions,
    /// operator actions) succeed.
    #[must_use]
    pub fn of_new_work() -> Self {
        Self { is_new_work: true, ..Self::default() }
    }

    /// Makes the commit fail unless `expect` holds.
    pub fn expect(&mut self, expect: Expect) -> &mut Self {
        self.expects.push(expect);
        self
    }

    /// Puts a record.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the record cannot be expressed in JSON.
    pub fn put<T: Record>(&mut self, key: Key, record: &T) -> Result<&mut Self, Error> {
        let bytes = encode(record)?;
        Ok(self.put_bytes(key, bytes))
    }

    /// Puts a record, on the condition that the key has no row.
    ///
    /// # Errors
    /// The same errors as [`Commit::put`].
    pub fn create<T: Record>(&mut self, key: Key, record: &T) -> Result<&mut Self, Error> {
        self.expect(Expect::Absent(key.clone())).put(key, record)
    }

    /// Puts raw bytes, such as an index row.
    pub fn put_bytes(&mut self, key: Key, bytes: Vec<u8>) -> &mut Self {
        self.writes.push(Write::Put(key, bytes));
        self
    }

    /// Deletes a row; a missing row is not an error.
    pub fn delete(&mut self, key: Key) -> &mut Self {
        self.writes.push(Write::Delete(key));
        self
    }

    /// Deletes a row, on the condition that it exists.
    pub fn delete_existing(&mut self, key: Key) -> &mut Self {
        self.expect(Expect::Present(key.clone())).delete(key)
    }

    /// Adds `delta` to a counter.
    pub fn add(&mut self, key: Key, delta: i64) -> &mut Self {
        self.writes.push(Write::Add(key, delta));
        self
    }

    /// Adds to several counters in one row, such as a count and a sum. Additions to the same row
    /// become one if they are close to each other, so that the writer has less to do.
    pub fn add_each(&mut self, key: Key, deltas: &[i64]) -> &mut Self {
        for write in self.writes.iter_mut().rev().take(MERGED_WITHIN) {
            match write {
                Write::AddEach(held, sums) if *held == key => {
                    for (sum, delta) in sums.iter_mut().zip(deltas) {
                        *sum = sum.saturating_add(*delta);
                    }
                    return self;
                }
                Write::Put(held, _) | Write::Delete(held) if *held == key => break,
                Write::Put(..)
                | Write::Delete(_)
                | Write::Add(..)
                | Write::AddEach(..)
                | Write::Append(..) => {}
            }
        }
        self.writes.push(Write::AddEach(key, deltas.to_vec()));
        self
    }

    /// Appends a row to a counted list, see [`super::list`].
    pub fn append(&mut self, list: Key, row: Vec<u8>) -> &mut Self {
        self.writes.push(Write::Append(list, row));
        self
    }

    /// Calls `hook` once this commit is durable and visible, before [`super::Store::commit`]
    /// returns.
    ///
    /// The writer calls hooks on its own thread, in commit order, so a hook must neither block nor
    /// wait for the store. A hook is called even if the caller of `commit` has dropped its future,
    /// and is dropped without a call if the commit fails. Clones of this commit share the hook: the
    /// first clone that becomes durable calls it.
    pub fn after_durable(&mut self, hook: impl FnOnce() + Send + 'static) -> &mut Self {
        self.hooks.push(Hook(Arc::new(Mutex::new(Some(Box::new(hook))))));
        self
    }

    /// Creates a commit that stops work. The commit does not wait for memory that the
    /// organization's other commits have used up, so that a cancellation never waits for the work
    /// that it stops.
    #[must_use]
    pub fn of_cancellation() -> Self {
        let urgent = CancellationToken::new();
        urgent.cancel();
        Self { urgent: Some(urgent), ..Self::default() }
    }

    /// Makes the commit stop waiting for the organization's memory once `token` is cancelled. The
    /// token is cancelled when a cancellation waits for this commit.
    pub fn urgent_once(&mut self, token: CancellationToken) -> &mut Self {
        self.urgent.get_or_insert(token);
        self
    }

    /// Adds the preconditions, writes and hooks of another commit.
    pub fn extend(&mut self, other: Self) -> &mut Self {
        self.hooks.extend(other.hooks);
        self.is_new_work |= other.is_new_work;
        self.urgent = self.urgent.take().or(other.urgent);
        self.expects.extend(other.expects);
        self.writes.extend(other.writes);
        self
    }

    /// The approximate size of the writes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let of = |write: &Write| match write {
            Write::Put(key, value) | Write::Append(key, value) => {
                key.as_bytes().len().saturating_add(value.len())
            }
            Write::Delete(key) | Write::Add(key, _) | Write::AddEach(key, _) => {
                key.as_bytes().len()
            }
        };
        self.writes.iter().map(of).sum()
    }

    /// Whether the commit contains no writes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}
