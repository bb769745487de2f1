//! `Idempotency-Key`: a create or trigger request takes effect only once, even if the client
//! repeats the request with the same key.
//!
//! The essential part of the first response is recorded in the commit that creates the resource;
//! the commit fails if another response has been recorded in the meantime. Therefore, either both
//! the resource and the record exist or neither does, and a second resource is never created. While
//! the first request is in progress, a second request waits a limited time for the first to finish.
//! Keys are deleted after 24 hours (`docs/spec/hosts.md`, "Idempotency keys").
//!
//! This module builds no responses and stores only the hash of a request's body.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use orrery_domain::hex::hex;
use orrery_domain::ids::OrganizationId;
use orrery_domain::time::Timestamp;
use orrery_runtime::{self as runtime, Clock};
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Key, Page, Record, Store, Table};

/// How long a key is kept.
pub const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// Maximum length of a key, in characters.
pub const KEY_MAX: usize = 255;
/// How long a second request waits for the first request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of rows that a sweep processes at a time.
const SWEEP_BATCH: usize = 500;
/// Maximum size of a stored response body, in bytes of JSON.
pub const BODY_MAX: usize = 32 * 1024;

/// An invalid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Idempotency-Key must have 1 to {KEY_MAX} characters")]
pub struct InvalidKey;

/// Validates a key.
///
/// # Errors
/// [`InvalidKey`] with a message for the client.
pub fn check_key(key: &str) -> Result<(), InvalidKey> {
    if (1..=KEY_MAX).contains(&key.chars().count()) { Ok(()) } else { Err(InvalidKey) }
}

type KeyHash = [u8; 32];

/// The stored part of the response to the first request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredResponse {
    /// The ID of the created resource, from which the response can be rebuilt.
    pub subject: String,
    /// The full response, if it cannot be rebuilt from the subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<FullResponse>,
}

/// A complete response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FullResponse {
    /// The HTTP status.
    pub status: u16,
    /// At most [`BODY_MAX`] bytes.
    pub body: Value,
}

impl StoredResponse {
    /// Creates a response that can be rebuilt from the ID of the created resource.
    #[must_use]
    pub fn created(subject: impl ToString) -> Self {
        Self { subject: subject.to_string(), answer: None }
    }

    /// Creates a response that is stored in full.
    #[must_use]
    pub fn whole(subject: impl ToString, status: u16, body: Value) -> Self {
        Self { subject: subject.to_string(), answer: Some(FullResponse { status, body }) }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    /// The SHA-256 of the request's body, in hexadecimal.
    body: String,
    answered: StoredResponse,
    at: Timestamp,
}

impl Remembered {
    /// Returns whether the record has expired. An expired record is treated as missing.
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
    /// The first request: create the resource, and record the response in the same commit.
    New(Claim),
    /// A repeated request: return the recorded response.
    Replay(StoredResponse),
    /// The key was used with a different body.
    Mismatch,
    /// The first request was still in progress after [`PATIENCE`].
    InProgress,
}

/// The keys of a store, and the requests in progress.
#[derive(Debug, Clone)]
pub struct Idempotency {
    store: Store,
    clock: Clock,
    under_way: Arc<Mutex<HashMap<KeyHash, watch::Receiver<()>>>>,
}

/// The exclusive claim to a key. When it is dropped, the next request can claim the key.
#[derive(Debug)]
pub struct Claim {
    under_way: Arc<Mutex<HashMap<KeyHash, watch::Receiver<()>>>>,
    hash: KeyHash,
    row: Key,
    /// The value that `row` must have when the response is recorded.
    expect: Expect,
    body: String,
    now: Timestamp,
    _done: watch::Sender<()>,
}

impl Idempotency {
    /// Opens the keys of a store.
    #[must_use]
    pub fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock, under_way: Arc::default() }
    }

    /// Looks up a key for one organization and route, and claims it if it is new.
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
            // An error means that the first request has ended: its claim was dropped.
            if tokio::time::timeout_at(deadline, first.changed()).await.is_err() {
                return Ok(Begin::InProgress);
            }
        }
    }

    /// Claims the key, or returns a receiver that resolves when it is free.
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
        // Keys are recorded with the later of two clock readings and expire by the earlier one, so
        // that a clock that is wrong for a while does not make keys expire too early.
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

    /// Deletes expired keys and returns their number. Keys are indexed by time, so the cost depends
    /// only on the number of expired keys.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read or written.
    pub async fn sweep(&self) -> Result<usize, storage::Error> {
        let now = self.clock.believed();
        let mut swept = self.index(now).await?;
        let Some(last) = now.before(REMEMBERED) else { return Ok(swept) };
        let before = Some(expiries().time(last.plus(Duration::from_micros(1))));
        let mut scan = self.store.scan(Page { before, ..Page::of(expiries(), SWEEP_BATCH) });
        while let Some(due) = scan.next_page().await? {
            let rows: Vec<Key> = due.iter().map(|(expiry, _)| row_of_expiry(expiry)).collect();
            let found = self.store.get_many(&rows).await?;
            let deletions = due.into_iter().zip(rows).zip(found);
            let deletions = deletions.map(|(((expiry, _), row), bytes)| {
                let is_past = |bytes: &Vec<u8>| {
                    // An unreadable record is useless, so delete it.
                    decode(bytes).map_or(true, |row: Remembered| row.is_past(now))
                };
                self.delete(row, bytes.filter(is_past), Some(expiry))
            });
            for deleted in futures_util::future::join_all(deletions).await {
                swept += usize::from(deleted?);
            }
        }
        Ok(swept)
    }

    /// Adds keys that were recorded by releases up to 0.1.0 to the index by time, once, and deletes
    /// expired keys.
    async fn index(&self, now: Timestamp) -> Result<usize, storage::Error> {
        let mark = Key::table(Table::Meta).text("idempotency keys by time");
        if self.store.get(&mark).await?.is_some() {
            return Ok(0);
        }
        let mut swept = 0;
        let mut scan = self.store.scan(Page::of(Key::table(Table::Idempotency), SWEEP_BATCH));
        while let Some(rows) = scan.next_page().await? {
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

    /// Deletes a row and its index entry, if the row has these bytes. Each deletion is a separate
    /// commit; the store's writer merges the commits. Returns false if there was no such row.
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
        // On a conflict, a new response with a new time has replaced the row.
        Ok(self.store.try_commit(commit).await? && is_there)
    }
}

/// Returns the prefix of the index of keys by time.
fn expiries() -> Key {
    Key::table(Table::IdempotencyExpiry)
}

/// Returns the index entry of a key's row.
fn expiry(at: Timestamp, row: &Key) -> Key {
    expiries().time(at).raw(row.as_bytes().get(1..).unwrap_or_default())
}

/// Returns the row of an index entry.
fn row_of_expiry(expiry: &Key) -> Key {
    Key::table(Table::Idempotency).raw(expiry.as_bytes().get(9..).unwrap_or_default())
}

impl Claim {
    /// Adds the response to the commit of the created resource. The claim should be kept until that
    /// commit has returned, so that later requests wait for the commit. Even if the claim is
    /// dropped earlier, only one commit succeeds: a second commit with the same key fails with
    /// [`storage::Error::Conflict`].
    ///
    /// # Errors
    /// [`storage::Error::Malformed`] when the response body is longer than [`BODY_MAX`].
    pub fn record(
        &self,
        commit: &mut Commit,
        answered: StoredResponse,
    ) -> Result<(), storage::Error> {
        let body = answered.answer.as_ref().map_or(0, |answer| answer.body.to_string().len());
        if body > BODY_MAX {
            let reason = format!("its body has {body} bytes, more than {BODY_MAX}");
            return Err(storage::Error::malformed(Remembered::NAME, reason));
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
    use orrery_domain::ids::Id;
    let mut hasher = Sha256::new();
    hasher.update(organization.bytes());
    hasher.update(route.as_bytes());
    hasher.update([0]);
    hasher.update(key.as_bytes());
    hasher.finalize().into()
}

#[cfg(test)]
#[path = "idempotency_tests.rs"]
mod tests;
