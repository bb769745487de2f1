//! `Idempotency-Key`: a create or trigger that comes twice under one key happens once.
//!
//! The first answer's essence is written in the commit of what was created, under the condition
//! that no other has written one in the meantime: neither is there without the other, and never two. While
//! the first is being answered, a second waits for it, a bounded time. Keys are forgotten after 24
//! hours (`docs/spec/hosts.md`, "Idempotency keys").
//!
//! This never makes an answer and never keeps the body of a request, only its hash.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::domain::ids::OrganizationId;
use crate::domain::time::Timestamp;
use crate::runtime::{self, Clock};
use crate::storage::commit::Expect;
use crate::storage::record::{Malformed, decode};
use crate::storage::{self, Commit, Key, Page, Record, Store, Table};

/// How long a key is remembered.
pub const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// The longest key, in characters.
pub const KEY_MAX: usize = 255;
/// How long a second request waits for the first one's answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Rows that a sweep looks at in one go.
const SWEEP_BATCH: usize = 500;
/// The longest body, in bytes of JSON, that is kept with an answer.
pub const BODY_MAX: usize = 32 * 1024;

/// A key that cannot be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Idempotency-Key must have 1 to {KEY_MAX} characters")]
pub struct InvalidKey;

/// Checks a key as it came.
///
/// # Errors
/// [`InvalidKey`] in a sentence for the client.
pub fn check_key(key: &str) -> Result<(), InvalidKey> {
    if (1..=KEY_MAX).contains(&key.chars().count()) { Ok(()) } else { Err(InvalidKey) }
}

type KeyHash = [u8; 32];

/// What is stored of the response to the first request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredResponse {
    /// The id of what was created; the answer is made from it again.
    pub subject: String,
    /// The answer itself, where it cannot be made again from the subject alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<FullResponse>,
}

/// A complete response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FullResponse {
    /// The HTTP status.
    pub status: u16,
    /// [`BODY_MAX`] bytes at most.
    pub body: Value,
}

impl StoredResponse {
    /// One thing was created; its id says all.
    #[must_use]
    pub fn created(subject: impl ToString) -> Self {
        Self { subject: subject.to_string(), answer: None }
    }

    /// Something was created whose answer is kept whole.
    #[must_use]
    pub fn whole(subject: impl ToString, status: u16, body: Value) -> Self {
        Self { subject: subject.to_string(), answer: Some(FullResponse { status, body }) }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    /// SHA-256 of the request's body, in base 16.
    body: String,
    answered: StoredResponse,
    at: Timestamp,
}

impl Remembered {
    /// Whether its time is over: it counts as absent then.
    fn is_past(&self, now: Timestamp) -> bool {
        now.since(self.at) >= REMEMBERED
    }
}

impl Record for Remembered {
    const NAME: &'static str = "idempotency key";
}

/// The result of claiming a key.
#[derive(Debug)]
pub enum Begin {
    /// It is the first: create, and record the answer in the same commit.
    New(Claim),
    /// It happened already.
    Replay(StoredResponse),
    /// The key was used with another body.
    Mismatch,
    /// The first is still being answered, after [`PATIENCE`].
    InProgress,
}

/// The keys of a store and the requests that are under way.
#[derive(Debug, Clone)]
pub struct Idempotency {
    store: Store,
    clock: Clock,
    under_way: Arc<Mutex<HashMap<KeyHash, watch::Receiver<()>>>>,
}

/// The exclusive claim to a key; dropping it lets the next request try.
#[derive(Debug)]
pub struct Claim {
    under_way: Arc<Mutex<HashMap<KeyHash, watch::Receiver<()>>>>,
    hash: KeyHash,
    row: Key,
    /// What `row` must still contain when the answer is written.
    expect: Expect,
    body: String,
    now: Timestamp,
    _done: watch::Sender<()>,
}

impl Idempotency {
    /// The keys of a store.
    #[must_use]
    pub fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock, under_way: Arc::default() }
    }

    /// Looks a key up for one organization and route, and takes it when it is new.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read.
    pub async fn begin(
        &self,
        organization: OrganizationId,
        route: &str,
        key: &str,
        body: &[u8],
    ) -> Result<Begin, storage::Error> {
        let hash = key_hash(organization, route, key);
        let row = Key::table(Table::Idempotency).raw(&hash);
        let body = hex(&Sha256::digest(body));
        let deadline = runtime::monotonic_now() + PATIENCE;
        loop {
            let mut first = match self.take(hash) {
                Ok(done) => return self.look_up(hash, row, body, done).await,
                Err(first) => first,
            };
            // An error says that the first is done: its claim was dropped.
            if tokio::time::timeout_at(deadline, first.changed()).await.is_err() {
                return Ok(Begin::InProgress);
            }
        }
    }

    /// Takes the key, or returns a receiver that resolves when it is free.
    fn take(&self, hash: KeyHash) -> Result<watch::Sender<()>, watch::Receiver<()>> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        match under_way.entry(hash) {
            Entry::Occupied(first) => Err(first.get().clone()),
            Entry::Vacant(free) => {
                let (done, waiting) = watch::channel(());
                free.insert(waiting);
                Ok(done)
            }
        }
    }

    async fn look_up(
        &self,
        hash: KeyHash,
        row: Key,
        body: String,
        done: watch::Sender<()>,
    ) -> Result<Begin, storage::Error> {
        // The later of both readings when it is recorded, the earlier when it is judged: a clock that
        // is wrong for a while makes no key forgotten too early.
        let now = self.clock.steady();
        let believed = self.clock.believed();
        let under_way = Arc::clone(&self.under_way);
        let expect = Expect::Absent(row.clone());
        let mut claim = Claim { under_way, hash, row, expect, body, now, _done: done };
        let Some(bytes) = self.store.get(&claim.row).await? else {
            return Ok(Begin::New(claim));
        };
        let remembered: Remembered = decode(&bytes)?;
        if remembered.is_past(believed) {
            claim.expect = Expect::Equal(claim.row.clone(), bytes);
            Ok(Begin::New(claim))
        } else if remembered.body == claim.body {
            Ok(Begin::Replay(remembered.answered))
        } else {
            Ok(Begin::Mismatch)
        }
    }

    /// Deletes the keys that are past their time; answers how many. Costs what it deletes: keys are
    /// by time as well.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read or written.
    pub async fn sweep(&self) -> Result<usize, storage::Error> {
        let now = self.clock.believed();
        let mut swept = self.index(now).await?;
        let Some(last) = now.before(REMEMBERED) else { return Ok(swept) };
        let before = Some(expiries().time(last.plus(Duration::from_micros(1))));
        let mut after = None;
        loop {
            let prefix = expiries();
            let before = before.clone();
            let page = Page { prefix, after, before, limit: SWEEP_BATCH };
            let due: Vec<Key> =
                self.store.page(page).await?.into_iter().map(|(key, _)| key).collect();
            let Some(end) = due.last() else { return Ok(swept) };
            after = Some(end.clone());
            let rows: Vec<Key> = due.iter().map(row_of_expiry).collect();
            let found = self.store.get_many(&rows).await?;
            let deletions = due.into_iter().zip(rows).zip(found).map(|((expiry, row), bytes)| {
                let is_past = |bytes: &Vec<u8>| {
                    // What cannot be read is of no use to anyone.
                    decode(bytes).map_or(true, |row: Remembered| row.is_past(now))
                };
                self.delete(row, bytes.filter(is_past), Some(expiry))
            });
            for deleted in futures_util::future::join_all(deletions).await {
                swept += usize::from(deleted?);
            }
        }
    }

    /// Puts keys by time that a release up to 0.1.0 wrote, once; deletes those that are past.
    async fn index(&self, now: Timestamp) -> Result<usize, storage::Error> {
        let mark = Key::table(Table::Meta).text("idempotency keys by time");
        if self.store.get(&mark).await?.is_some() {
            return Ok(0);
        }
        let mut swept = 0;
        let mut after = None;
        loop {
            let prefix = Key::table(Table::Idempotency);
            let page = Page { prefix, after, before: None, limit: SWEEP_BATCH };
            let rows = self.store.page(page).await?;
            let Some((last, _)) = rows.last() else { break };
            after = Some(last.clone());
            let mut expiries = Commit::new();
            let mut deletions = Vec::new();
            for (key, bytes) in rows {
                match decode::<Remembered>(&bytes) {
                    Ok(row) if !row.is_past(now) => {
                        expiries.put_bytes(expiry(row.at, &key), Vec::new());
                    }
                    Ok(_) | Err(_) => deletions.push(self.delete(key, Some(bytes), None)),
                }
            }
            for deleted in futures_util::future::join_all(deletions).await {
                swept += usize::from(deleted?);
            }
            if !expiries.is_empty() {
                self.store.commit(expiries).await?;
            }
        }
        let mut commit = Commit::new();
        commit.put_bytes(mark, Vec::new());
        self.store.commit(commit).await?;
        Ok(swept)
    }

    /// Deletes a row that has these bytes, and its place among those by time: each in a commit of its
    /// own, which the store's writer merges. False when there was no such row.
    async fn delete(
        &self,
        row: Key,
        bytes: Option<Vec<u8>>,
        expiry: Option<Key>,
    ) -> Result<bool, storage::Error> {
        let mut commit = Commit::new();
        let is_there = bytes.is_some();
        if let Some(bytes) = bytes {
            commit.expect(Expect::Equal(row.clone(), bytes)).delete(row);
        }
        if let Some(expiry) = expiry {
            commit.delete(expiry);
        }
        match self.store.commit(commit).await {
            Ok(()) => Ok(is_there),
            // A new answer has taken its place, with a time of its own.
            Err(storage::Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// All keys by the moment at which they were recorded.
fn expiries() -> Key {
    Key::table(Table::IdempotencyExpiry)
}

/// The place of a key's row among those by time.
fn expiry(at: Timestamp, row: &Key) -> Key {
    expiries().time(at).raw(row.as_bytes().get(1..).unwrap_or_default())
}

/// The row behind a key of [`expiry`].
fn row_of_expiry(expiry: &Key) -> Key {
    Key::table(Table::Idempotency).raw(expiry.as_bytes().get(9..).unwrap_or_default())
}

impl Claim {
    /// Adds the answer to the commit of what is created. The claim should live until that commit
    /// has returned: a later request waits for it then. Should it not, that commit still counts
    /// alone: of two under one key the second fails with [`storage::Error::Conflict`].
    ///
    /// # Errors
    /// [`Malformed`] when the answer's body is longer than [`BODY_MAX`].
    pub fn record(&self, commit: &mut Commit, answered: StoredResponse) -> Result<(), Malformed> {
        let body = answered.answer.as_ref().map_or(0, |answer| answer.body.to_string().len());
        if body > BODY_MAX {
            let reason = format!("its body has {body} bytes, more than {BODY_MAX}");
            return Err(Malformed { record: Remembered::NAME, reason });
        }
        let remembered = Remembered { body: self.body.clone(), answered, at: self.now };
        commit.put(self.row.clone(), &remembered)?;
        commit.put_bytes(expiry(self.now, &self.row), Vec::new());
        commit.expect(self.expect.clone());
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.remove(&self.hash);
    }
}

fn key_hash(organization: OrganizationId, route: &str, key: &str) -> KeyHash {
    use crate::domain::ids::Id;
    let mut hasher = Sha256::new();
    hasher.update(organization.bytes());
    hasher.update(route.as_bytes());
    hasher.update([0]);
    hasher.update(key.as_bytes());
    hasher.finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "idempotency_tests.rs"]
mod tests;
