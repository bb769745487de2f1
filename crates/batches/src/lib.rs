//! Batches: files of requests in OpenAI's format that are answered in the background.
//!
//! A batch reads its lines from a file of JSON lines and answers each line exactly once, even after
//! crashes: the answer to a line is stored in the commit that records and charges its call. Lines
//! yield to live calls. When all lines are answered, the batch writes two files: one with the
//! answers, and one with the errors.
//!
//! | file | purpose |
//! |---|---|
//! | `rows` | the rows in the store |
//! | `input` | checking and reading the input file |
//! | `worker` | running open batches in turns |
//! | `lines` | answering the lines of a batch |
//! | `output` | writing the output files |
//!
//! This crate calls no model: it passes each line to an [`Answers`]. This crate is independent of
//! HTTP.

mod input;
mod lines;
mod output;
mod rows;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify};

pub use self::lines::{Answered, Answering, Answers, LineRecord, Request};
use orrery_domain::batch::{BYTES_MAX, Batch, Endpoint, Status, WINDOW};
use orrery_domain::execution::Source;
use orrery_domain::ids::{BatchId, FileId, KeyId, OrganizationId};
use orrery_records::files::{self, Files};
use orrery_runtime::Clock;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Change, Commit, Page, Store};

/// Maximum number of unfinished batches per organization.
pub const OPEN_MAX: usize = 50;
/// Maximum number of ended batches retained per organization.
const KEPT_MAX: usize = 1_000;

/// The reason for refusing a request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The organization has no such batch.
    #[error("batch not found")]
    NotFound,
    /// The organization has no such file, or the file has expired.
    #[error("there is no file {0}")]
    NoFile(FileId),
    #[error("the file has {size} bytes; a batch may have at most {BYTES_MAX}")]
    TooLarge { size: u64 },
    #[error("{OPEN_MAX} batches are already unfinished; wait until one of them has ended")]
    TooMany,
    /// The batch has ended, so it cannot be cancelled.
    #[error("the batch has already ended with the status {}", .0.as_str())]
    Ended(Status),
    #[error(transparent)]
    Files(#[from] files::Error),
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// A batch to create.
#[derive(Debug)]
pub struct New {
    pub id: BatchId,
    pub organization: OrganizationId,
    pub key: KeyId,
    pub source: Source,
    pub endpoint: Endpoint,
    pub input_file: FileId,
    pub metadata: BTreeMap<String, String>,
}

/// A batch and its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub batch: Batch,
    /// Lines with an answer.
    pub completed: u64,
    /// Lines with an error.
    pub failed: u64,
}

/// A page of batches, newest first.
#[derive(Debug)]
pub struct Listed {
    pub batches: Vec<Progress>,
    pub has_more: bool,
}

/// The delays before batches continue.
#[derive(Debug, Clone, Copy)]
pub struct Delays {
    /// The delay before the second attempt to answer a line. Each further attempt multiplies the
    /// delay by four.
    pub first_backoff: Duration,
    /// The delay before a blocked batch continues.
    pub blocked: Duration,
}

impl Default for Delays {
    fn default() -> Self {
        Self { first_backoff: Duration::from_secs(1), blocked: Duration::from_secs(5) }
    }
}

#[derive(Debug)]
struct Shared {
    delays: Delays,
    store: Store,
    clock: Clock,
    files: Files,
    /// Notified when a batch is created or cancelled.
    changed: Notify,
    /// Held while a batch is created, so that [`OPEN_MAX`] holds.
    creating: Mutex<()>,
}

/// All batches; clones share the same state.
#[derive(Debug, Clone)]
pub struct Batches {
    shared: Arc<Shared>,
}

impl Batches {
    /// Creates the batches with their rows in `store`.
    #[must_use]
    pub fn new(store: Store, clock: Clock, files: Files, delays: Delays) -> Self {
        let (changed, creating) = (Notify::new(), Mutex::default());
        Self { shared: Arc::new(Shared { delays, store, clock, files, changed, creating }) }
    }

    /// Creates a batch, which begins at once. `beside` is written in the same commit.
    ///
    /// # Errors
    /// [`Error::NoFile`], [`Error::TooLarge`], [`Error::TooMany`], [`Error::Storage`]: nothing is
    /// created.
    pub async fn create(&self, new: New, beside: Commit) -> Result<Batch, Error> {
        let Shared { store, clock, files, .. } = &*self.shared;
        let found = files.find(new.organization, new.input_file).await?;
        let (file, _) = found.ok_or(Error::NoFile(new.input_file))?;
        if file.size > BYTES_MAX {
            return Err(Error::TooLarge { size: file.size });
        }
        let _one_at_a_time = self.shared.creating.lock().await;
        let page = Page::of(rows::batches_of(new.organization), OPEN_MAX + KEPT_MAX + 1);
        let (mut open, mut ended) = (0, Vec::new());
        for (key, row) in store.page(page).await? {
            if decode::<Batch>(&row)?.status.is_final() { ended.push(key) } else { open += 1 }
        }
        if open >= OPEN_MAX {
            return Err(Error::TooMany);
        }
        let batch = Batch {
            id: new.id,
            organization: new.organization,
            key: new.key,
            source: new.source,
            endpoint: new.endpoint,
            input_file: new.input_file,
            metadata: new.metadata,
            status: Status::Validating,
            total: 0,
            errors: Vec::new(),
            output_file: None,
            error_file: None,
            created_at: clock.now(),
            expires_at: clock.steady().plus(WINDOW),
            in_progress_at: None,
            cancelling_at: None,
            finalizing_at: None,
            ended_at: None,
        };
        let mut commit = Commit::of_new_work();
        commit.extend(beside);
        for old in ended.into_iter().skip(KEPT_MAX - 1) {
            if let Some(id) = rows::id_of(&old) {
                rows::delete_counts(&mut commit, id);
            }
            commit.delete(old);
        }
        commit.put(rows::batch(batch.organization, batch.id), &batch)?;
        commit.put_bytes(rows::open(batch.id), rows::owner(batch.organization));
        store.commit(commit).await?;
        self.shared.changed.notify_one();
        Ok(batch)
    }

    /// Returns a batch and its progress.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Storage`].
    pub async fn get(&self, organization: OrganizationId, id: BatchId) -> Result<Progress, Error> {
        let found = self.shared.store.read(&rows::batch(organization, id)).await?;
        self.progress(found.ok_or(Error::NotFound)?).await
    }

    /// Lists up to `limit` batches after `after`.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn list(
        &self,
        organization: OrganizationId,
        after: Option<BatchId>,
        limit: usize,
    ) -> Result<Listed, Error> {
        let page = Page::of(rows::batches_of(organization), limit.saturating_add(1));
        let after = after.map(|id| rows::batch(organization, id));
        let found: Vec<Batch> = self.shared.store.records(Page { after, ..page }).await?;
        let has_more = found.len() > limit;
        let mut batches = Vec::with_capacity(found.len());
        for batch in found.into_iter().take(limit) {
            batches.push(self.progress(batch).await?);
        }
        Ok(Listed { batches, has_more })
    }

    /// Cancels a batch: no more lines are started, and lines in flight are still answered.
    /// Cancelling a batch that is already being cancelled or was cancelled changes nothing.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Ended`]; [`Error::Storage`].
    pub async fn cancel(
        &self,
        organization: OrganizationId,
        id: BatchId,
    ) -> Result<Progress, Error> {
        let cancel = |batch: Option<Batch>| async move {
            let mut batch = batch.ok_or(Error::NotFound)?;
            match batch.status {
                Status::Cancelling | Status::Cancelled => return Ok(Change::Keep(batch)),
                Status::Validating | Status::InProgress => {}
                Status::Finalizing | Status::Completed | Status::Expired | Status::Failed => {
                    return Err(Error::Ended(batch.status));
                }
            }
            batch.status = Status::Cancelling;
            batch.cancelling_at = Some(self.shared.clock.now());
            Ok(Change::Put(batch, Commit::new()))
        };
        let batch = self.shared.store.update(&rows::batch(organization, id), cancel).await?;
        self.shared.changed.notify_one();
        self.progress(batch).await
    }

    /// Deletes all batches of an organization and the answers to their lines. The output files are
    /// deleted with the organization's other files.
    ///
    /// # Errors
    /// [`Error::Storage`]; a second call then deletes the remaining rows.
    pub async fn erase(&self, organization: OrganizationId) -> Result<(), Error> {
        let store = &self.shared.store;
        let mut scan = store.scan(rows::batches_of(organization));
        while let Some((key, row)) = scan.next().await? {
            let batch: Batch = decode(&row)?;
            // Answers of lines in flight are not stored once the batch's row is deleted.
            store
                .commit({
                    let mut commit = Commit::new();
                    commit.delete(key).delete(rows::open(batch.id));
                    commit
                })
                .await?;
            output::forget_answers(store, organization, batch.id).await?;
            let mut commit = Commit::new();
            rows::delete_counts(&mut commit, batch.id);
            store.commit(commit).await?;
        }
        Ok(())
    }

    async fn progress(&self, batch: Batch) -> Result<Progress, Error> {
        let counters = self.shared.store.counters(&rows::counts(batch.id)).await?;
        let count = |at: usize| counters.get(at).and_then(|count| u64::try_from(*count).ok());
        let (completed, failed) = (count(0).unwrap_or_default(), count(1).unwrap_or_default());
        Ok(Progress { batch, completed, failed })
    }
}

#[cfg(test)]
mod tests;
