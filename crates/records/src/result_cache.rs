//! The result cache of models with a `[cache]` (`docs/models.md`, "Cache results").
//!
//! A result takes the slot that the hash of its request determines, and replaces the result in that
//! slot. Therefore, an organization has at most [`SLOTS`] results of at most [`RESULT_BYTES_MAX`]
//! bytes, and nothing needs to be evicted. A row contains the whole hash, so a request never gets
//! the result of another request with the same slot.
//!
//! The caller adds a result to the commit that records its run, and never adds the result of a
//! failed run. This module makes no calls.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::billing::Payer;
use orrery_domain::hex::hex;
use orrery_domain::ids::OrganizationId;
use orrery_domain::model::{Cache, CacheScope};
use orrery_domain::time::Timestamp;
use orrery_runtime::Clock;
use orrery_storage::commit::Expect;
use orrery_storage::{self as storage, Commit, Key, Page, Record, Store, Table};

/// Number of slots of an organization. The first two bytes of a hash choose the slot.
pub const SLOTS: u16 = 4096;
/// Maximum size of a cached result, in bytes of JSON. Larger results are not cached.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;
/// Number of rows that a sweep processes at a time.
const SWEEP_BATCH: usize = 500;
/// The byte before the slot in the key of a row with an expiry time. Expiry times have their own
/// rows, so that a sweep need not read the results.
const EXPIRY: u8 = 0;
/// The byte before the slot in the key of a result.
const RESULT: u8 = 1;

/// A request whose result is cached: its hash, and where and how long the result is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    organization: OrganizationId,
    hash: [u8; 32],
    ttl: Duration,
}

impl Entry {
    /// Creates the entry of a request for `operation` to the model with this slug and cache.
    /// `input` is JSON that is the same for equal requests.
    #[must_use]
    pub fn new(payer: Payer, model: &str, cache: &Cache, operation: &str, input: &[u8]) -> Self {
        let Payer { organization, key } = payer;
        let scope = match cache.scope {
            CacheScope::Organization => String::new(),
            CacheScope::Key => key.to_string(),
        };
        let mut hash = Sha256::new();
        for part in [scope.as_bytes(), model.as_bytes(), &cache.version, operation.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update(input);
        Self { organization, hash: hash.finalize().into(), ttl: cache.ttl }
    }

    fn key(&self, part: u8) -> Key {
        let [first, second, ..] = self.hash;
        let slot = u16::from_be_bytes([first, second]) % SLOTS;
        of(self.organization, part).raw(&slot.to_be_bytes())
    }
}

/// Returns the prefix of an organization's rows of one kind.
fn of(organization: OrganizationId, part: u8) -> Key {
    Key::table(Table::CachedResult).id(organization).raw(&[part])
}

#[derive(Debug, Serialize, Deserialize)]
struct CachedResult {
    /// The SHA-256 of the request, in hexadecimal.
    hash: String,
    /// When the result expires, on the steady clock.
    expires_at: Timestamp,
    result: Box<RawValue>,
}

impl Record for CachedResult {
    const NAME: &'static str = "cached result";
}

/// The cached results of a store.
#[derive(Debug, Clone)]
pub struct ResultCache {
    store: Store,
    clock: Clock,
}

impl ResultCache {
    /// Opens the cached results of a store.
    #[must_use]
    pub const fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock }
    }

    /// Returns the result of an earlier, equal request, and counts the lookup as one of this
    /// `kind`. A result that cannot be read is logged and counts as missing.
    pub async fn find(&self, entry: &Entry, kind: &'static str) -> Option<Box<RawValue>> {
        let found = self.store.read::<CachedResult>(&entry.key(RESULT)).await;
        let found = found.unwrap_or_else(|error| {
            let organization = entry.organization;
            tracing::warn!(%organization, %error, "failed to read a cached result");
            None
        });
        let now = self.clock.steady();
        let hash = hex(&entry.hash);
        let found = found.filter(|found| found.hash == hash && now < found.expires_at);
        let outcome = if found.is_some() { "hit" } else { "miss" };
        metrics::counter!("orrery_cache_lookups_total", "kind" => kind, "outcome" => outcome)
            .increment(1);
        Some(found?.result)
    }

    /// Adds the result of a successful run to the commit that records the run. A result of more
    /// than [`RESULT_BYTES_MAX`] bytes is not added.
    ///
    /// # Errors
    /// None in practice, because the result is JSON.
    pub fn add(
        &self,
        commit: &mut Commit,
        entry: &Entry,
        result: &RawValue,
    ) -> Result<(), storage::Error> {
        if result.get().len() > RESULT_BYTES_MAX {
            return Ok(());
        }
        let expires_at = self.clock.steady().plus(entry.ttl);
        let (hash, result) = (hex(&entry.hash), result.to_owned());
        commit.put(entry.key(RESULT), &CachedResult { hash, expires_at, result })?;
        commit.put_bytes(entry.key(EXPIRY), expires_at.sortable().to_vec());
        Ok(())
    }

    /// Deletes an organization's expired results and returns their number.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read or written.
    pub async fn sweep(&self, organization: OrganizationId) -> Result<usize, storage::Error> {
        let now = self.clock.believed().sortable().to_vec();
        let mut swept = 0;
        let mut scan = self.store.scan(Page::of(of(organization, EXPIRY), SWEEP_BATCH));
        while let Some(rows) = scan.next_page().await? {
            let expired = rows.into_iter().filter(|(_, expires_at)| *expires_at <= now);
            let deletions = expired.map(|(expiry, expires_at)| {
                let slot = expiry.as_bytes().last_chunk::<2>().copied().unwrap_or_default();
                let mut commit = Commit::new();
                commit.delete(of(organization, RESULT).raw(&slot)).delete(expiry.clone());
                commit.expect(Expect::Equal(expiry, expires_at));
                // On a conflict, a new result has replaced the expired one.
                self.store.try_commit(commit)
            });
            for deleted in futures_util::future::join_all(deletions).await {
                swept += usize::from(deleted?);
            }
        }
        Ok(swept)
    }
}

#[cfg(test)]
#[path = "result_cache_tests.rs"]
mod tests;
