//! Stored responses of OpenAI's Responses API, and the conversations that continue them.
//!
//! A response is stored under the ID of its call in the history, with the items of its own input;
//! the conversation before it is read through the responses that it continues. It belongs to an
//! organization and is deleted by its client, by retention, or when the organization has too many.
//!
//! A response in the background is stored when it is accepted, and again by the commit that ends
//! its execution. This crate does not define the format: it stores JSON text that `dialects` writes.
//!
//! # Invariants
//!
//! - A response is on disk before its client sees its end.
//! - The payloads of a response have an owner of their own, so that the retention of executions
//!   does not affect them.

mod background;
mod conversation;
mod rows;

use serde_json::value::RawValue;

pub use self::background::{Background, Dependencies, NewBackground};
pub use self::conversation::{BYTES_MAX, DEPTH_MAX, Error};
use self::rows::{Open, Stored};
use orrery_dialects::responses::PREFIX;
use orrery_domain::ids::{ExecutionId, OrganizationId, ResponseId};
use orrery_domain::payload::Payload;
use orrery_domain::time::Timestamp;
use orrery_runtime::{Clock, SweepPace, new_id};
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Page, Store};

/// Maximum number of responses of an organization. Beyond it, the oldest are deleted.
pub const RESPONSES_MAX: u64 = 100_000;
/// Maximum number of responses that are deleted when one is stored.
const EVICTED_MAX: usize = 16;
/// Number of responses that a sweep reads at a time.
const SWEEP_BATCH: usize = 64;

/// Returns the ID of a response as clients see it.
#[must_use]
pub fn shown(id: ExecutionId) -> String {
    format!("{PREFIX}{}", id.to_string().replace('-', ""))
}

/// Parses the ID of a response. Only the form of [`shown`] is accepted.
#[must_use]
pub fn id_of(text: &str) -> Option<ExecutionId> {
    parse(text.strip_prefix(PREFIX)?)
}

/// Parses the digits of an ID.
fn parse(digits: &str) -> Option<ExecutionId> {
    let part = |range| digits.get(range);
    let parts = [part(0..8)?, part(8..12)?, part(12..16)?, part(16..20)?, digits.get(20..)?];
    let id: ExecutionId = parts.join("-").parse().ok()?;
    // Upper-case digits would be a second ID of the same response.
    (shown(id).strip_prefix(PREFIX) == Some(digits)).then_some(id)
}

/// A response to store.
#[derive(Debug)]
pub struct NewResponse {
    pub organization: OrganizationId,
    /// The call in the history.
    pub id: ExecutionId,
    /// The response that it continues.
    pub previous: Option<ExecutionId>,
    /// The items of its own input, as a JSON array.
    pub input: Box<RawValue>,
    /// The response as JSON.
    pub response: Box<RawValue>,
}

/// A response that was read.
#[derive(Debug)]
pub struct Found {
    /// The response as JSON.
    pub response: Box<RawValue>,
    /// The items of its input, as a JSON array.
    pub input: Box<RawValue>,
    /// Whether its execution has not ended.
    pub is_open: bool,
}

/// A response that has not ended, as it was stored when it was accepted.
#[derive(Debug)]
struct OpenResponse {
    /// The bytes of its row.
    row: Vec<u8>,
    stored: Stored,
    response: Box<RawValue>,
    shows_reasoning: bool,
}

/// The responses in a store; clones share the store.
#[derive(Debug, Clone)]
pub struct Responses {
    store: Store,
    clock: Clock,
    /// Lower in tests.
    most: u64,
}

impl Responses {
    /// Opens the responses of a store.
    #[must_use]
    pub const fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock, most: RESPONSES_MAX }
    }

    /// Stores a response. When this returns, it is durable.
    ///
    /// # Errors
    /// [`storage::Error`]
    pub async fn put(&self, new: NewResponse) -> Result<(), storage::Error> {
        let organization = new.organization;
        let commit = self.commit_of(new).await?;
        self.store(commit).await?;
        self.evict(organization).await
    }

    /// Returns the commit that stores a response. The caller must call [`Self::evict`] after the
    /// commit is durable.
    ///
    /// # Errors
    /// [`storage::Error`]
    pub async fn commit_of(&self, new: NewResponse) -> Result<Commit, storage::Error> {
        let mut commit = Commit::new();
        self.add(&mut commit, new, None).await?;
        Ok(commit)
    }

    /// Stores a commit from [`Self::commit_of`]. When this returns, the response is durable.
    ///
    /// # Errors
    /// [`storage::Error`]
    pub async fn store(&self, commit: Commit) -> Result<(), storage::Error> {
        self.store.commit(commit).await
    }

    /// Adds a response to a commit. One that has not ended has `shows_reasoning`.
    async fn add(
        &self,
        commit: &mut Commit,
        new: NewResponse,
        shows_reasoning: Option<bool>,
    ) -> Result<(), storage::Error> {
        let NewResponse { organization, id, previous, input, response } = new;
        let owner: ResponseId = new_id();
        let input = self.store.write_payload(owner, input).await?;
        let response = self.store.write_payload(owner, response).await?;
        for payload in [&input, &response] {
            self.store.claim(commit, payload);
        }
        let bytes = input.len().saturating_add(response.len());
        self.store.record_usage(commit, organization, owner, bytes);
        let open = shows_reasoning.map(|shows_reasoning| Open { shows_reasoning });
        let created_at = self.clock.now();
        let stored = Stored { owner, created_at, previous, input, response, open };
        commit.create(rows::response(organization, id), &stored)?;
        commit.add(rows::count(organization), 1);
        Ok(())
    }

    /// Returns a response; `None` if the organization has no such response.
    ///
    /// # Errors
    /// [`storage::Error`]
    pub async fn find(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Option<Found>, storage::Error> {
        let Some(stored) = self.read(organization, id).await? else { return Ok(None) };
        let response = self.store.read_payload(&stored.response).await?;
        let input = self.store.read_payload(&stored.input).await?;
        Ok(Some(Found { response, input, is_open: stored.open.is_some() }))
    }

    /// Returns the JSON text of a payload.
    async fn payload(&self, payload: &Payload) -> Result<Box<RawValue>, storage::Error> {
        self.store.read_payload(payload).await
    }

    /// Returns a response if it has not ended.
    async fn open_of(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Option<OpenResponse>, storage::Error> {
        let key = rows::response(organization, id);
        let Some(row) = self.store.get(&key).await? else { return Ok(None) };
        let stored: Stored = decode(&row)?;
        let Some(Open { shows_reasoning }) = stored.open else { return Ok(None) };
        let response = self.store.read_payload(&stored.response).await?;
        Ok(Some(OpenResponse { row, stored, response, shows_reasoning }))
    }

    /// Adds the end of a response to the commit that ends its execution.
    async fn close(
        &self,
        commit: &mut Commit,
        organization: OrganizationId,
        id: ExecutionId,
        open: OpenResponse,
        response: Box<RawValue>,
    ) -> Result<(), storage::Error> {
        let OpenResponse { row, stored, .. } = open;
        let response = self.store.write_payload(stored.owner, response).await?;
        // The store's sweep removes the file of the earlier text.
        self.store.release(commit, &stored.response);
        self.store.claim(commit, &response);
        self.store.record_usage(commit, organization, stored.owner, response.len());
        let key = rows::response(organization, id);
        commit.expect(Expect::Equal(key.clone(), row));
        commit.put(key, &Stored { response, open: None, ..stored })?;
        Ok(())
    }

    async fn read(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Option<Stored>, storage::Error> {
        self.store.read(&rows::response(organization, id)).await
    }

    /// Deletes a response. Returns false if the organization has no such response.
    ///
    /// # Errors
    /// [`storage::Error`]
    pub async fn delete(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<bool, storage::Error> {
        for _ in 0..storage::TRIES_MAX {
            let key = rows::response(organization, id);
            let Some(bytes) = self.store.get(&key).await? else { return Ok(false) };
            let mut commit = Commit::new();
            commit.expect(Expect::Equal(key.clone(), bytes.clone())).delete(key);
            commit.add(rows::count(organization), -1);
            let payloads = match decode::<Stored>(&bytes) {
                Ok(stored) => self.release(&mut commit, organization, stored).await?,
                // An unreadable record is useless; the store's sweep removes its files.
                Err(_) => Vec::new(),
            };
            if self.store.try_commit(commit).await? {
                for payload in &payloads {
                    self.store.remove_payload(payload).await?;
                }
                return Ok(true);
            }
        }
        Err(storage::Error::Conflict { key: rows::response(organization, id) })
    }

    /// Releases the payloads of a response in the commit that deletes it.
    async fn release(
        &self,
        commit: &mut Commit,
        organization: OrganizationId,
        stored: Stored,
    ) -> Result<Vec<Payload>, storage::Error> {
        let Stored { owner, input, response, .. } = stored;
        for payload in [&input, &response] {
            self.store.release(commit, payload);
        }
        self.store.release_usage(commit, organization, [owner]).await?;
        Ok(vec![input, response])
    }

    /// Deletes an organization's oldest responses if it has too many.
    ///
    /// # Errors
    /// [`storage::Error`]
    pub async fn evict(&self, organization: OrganizationId) -> Result<(), storage::Error> {
        let count = self.store.counter(&rows::count(organization)).await?;
        let surplus = u64::try_from(count).unwrap_or(0).saturating_sub(self.most);
        let surplus = usize::try_from(surplus).unwrap_or(usize::MAX).min(EVICTED_MAX);
        if surplus == 0 {
            return Ok(());
        }
        let oldest = Page::of(rows::responses_of(organization), surplus);
        for (key, _) in self.store.page(oldest).await? {
            if let Some(id) = key.last_id() {
                self.delete(organization, id).await?;
            }
        }
        Ok(())
    }

    /// Deletes an organization's responses from before `cutoff`, and returns their number.
    ///
    /// # Errors
    /// [`storage::Error`]; deletions before the error are not undone.
    pub async fn purge_before(
        &self,
        organization: OrganizationId,
        cutoff: Timestamp,
    ) -> Result<usize, storage::Error> {
        let pace = SweepPace::begin();
        let mut purged = 0;
        let page = Page::of(rows::responses_of(organization), SWEEP_BATCH);
        let mut scan = self.store.scan(page);
        while let Some(found) = scan.next_page().await? {
            let mut swept = 0;
            for (key, bytes) in &found {
                let is_past = decode::<Stored>(bytes).map_or(true, |row| row.created_at < cutoff);
                // The rows are in the order of their creation.
                let Some(id) = key.last_id().filter(|_| is_past) else { return Ok(purged) };
                swept += usize::from(self.delete(organization, id).await?);
            }
            purged += swept;
            pace.pause(swept).await;
        }
        Ok(purged)
    }

    /// Deletes all responses of an organization.
    ///
    /// # Errors
    /// [`storage::Error`]: some may be left.
    pub async fn erase(&self, organization: OrganizationId) -> Result<(), storage::Error> {
        self.purge_before(organization, Timestamp::from_micros(i64::MAX)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
