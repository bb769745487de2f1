//! The answer to a line: a row that is written in the commit that records and charges the call.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::rows;
use orrery_domain::batch::{Batch, Endpoint, LineAnswer};
use orrery_domain::execution::Source;
use orrery_domain::ids::{BatchId, KeyId, OrganizationId, RequestId};
use orrery_runtime::new_id;
use orrery_storage::commit::Expect;
use orrery_storage::{self as storage, Commit, Store};

/// A line to answer.
#[derive(Debug)]
pub struct Request {
    pub organization: OrganizationId,
    pub key: KeyId,
    pub source: Source,
    pub endpoint: Endpoint,
    /// The body of the request in OpenAI's format.
    pub body: Bytes,
    /// Writes the answer.
    pub record: LineRecord,
}

/// The result of answering a line.
#[derive(Debug)]
pub enum Answered {
    /// The request is invalid. Nothing was charged.
    Refused { status: u16, body: Box<RawValue> },
    /// A model was called. [`LineRecord::is_durable`] tells whether the line has its answer.
    Called,
    /// The call could not begin, because the balance, the token budget or a queue does not allow
    /// the call now.
    Later,
    /// The service stops.
    Stopping,
}

/// A future that resolves to the result of a line.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Answered> + Send + 'a>>;

/// Answers lines by calling models.
pub trait Answers: fmt::Debug + Send + Sync {
    /// Answers a line. The writes of [`Request::record`] must be part of the commit that records
    /// the call.
    fn answer(&self, request: Request) -> Answering<'_>;
}

/// Writes the answer to a line; clones share the same state.
#[derive(Debug, Clone)]
pub struct LineRecord {
    store: Store,
    organization: OrganizationId,
    batch: BatchId,
    line: u32,
    custom_id: Arc<str>,
    is_last_attempt: bool,
    is_durable: Arc<AtomicBool>,
}

/// A line of an output file.
#[derive(Serialize)]
struct OutputLine<'a> {
    id: String,
    custom_id: &'a str,
    response: Option<ResponseOf<'a>>,
    error: Option<LineError<'a>>,
}

#[derive(Serialize)]
struct ResponseOf<'a> {
    status_code: u16,
    request_id: &'a str,
    body: &'a RawValue,
}

/// The reason why a line was never answered.
#[derive(Serialize)]
struct LineError<'a> {
    code: &'a str,
    message: &'a str,
}

impl LineRecord {
    pub(crate) fn new(
        store: Store,
        batch: &Batch,
        line: u32,
        custom_id: &str,
        is_last_attempt: bool,
    ) -> Self {
        Self {
            store,
            organization: batch.organization,
            batch: batch.id,
            line,
            custom_id: custom_id.into(),
            is_last_attempt,
            is_durable: Arc::default(),
        }
    }

    /// Whether a transient failure must be stored as the answer, because the line is not tried
    /// again.
    #[must_use]
    pub const fn is_last_attempt(&self) -> bool {
        self.is_last_attempt
    }

    /// Whether the answer is on disk.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.is_durable.load(Ordering::Acquire)
    }

    /// Returns the writes that store the answer with an HTTP status and a JSON body. The commit
    /// fails if the line already has an answer, or if the batch was deleted.
    ///
    /// # Errors
    /// [`storage::Error::Unavailable`] if the disk fails.
    pub async fn writes(
        &self,
        status: u16,
        request_id: &str,
        body: &RawValue,
    ) -> Result<Commit, storage::Error> {
        let is_error = !(200..300).contains(&status);
        let response = Some(ResponseOf { status_code: status, request_id, body });
        let line = output_line(&self.custom_id, request_id, response, None)?;
        let line = self.store.write_payload(self.batch, line).await?;
        let mut commit = Commit::new();
        self.store.claim(&mut commit, &line);
        self.store.record_usage(&mut commit, self.organization, self.batch, line.len());
        let key = rows::answer(self.batch, self.line);
        commit.expect(Expect::Absent(key.clone()));
        commit.expect(Expect::Present(rows::batch(self.organization, self.batch)));
        commit.put(key, &LineAnswer { line, is_error })?;
        commit.add(rows::count(self.batch, is_error), 1);
        let is_durable = Arc::clone(&self.is_durable);
        commit.after_durable(move || is_durable.store(true, Ordering::Release));
        Ok(commit)
    }

    /// Stores the refusal of a line, for which no model was called.
    pub(crate) async fn refuse(&self, status: u16, body: &RawValue) -> Result<(), storage::Error> {
        let request: RequestId = new_id();
        let commit = self.writes(status, &request.to_string(), body).await?;
        self.store.commit(commit).await
    }
}

/// Returns the line for a request that was not answered in time.
pub(crate) fn expired(custom_id: &str) -> Result<Box<RawValue>, storage::Error> {
    let message = "This request could not be executed before the completion window expired.";
    let request: RequestId = new_id();
    let error = LineError { code: "batch_expired", message };
    output_line(custom_id, &request.to_string(), None, Some(error))
}

/// Serializes a line of an output file without line breaks.
fn output_line(
    custom_id: &str,
    request_id: &str,
    response: Option<ResponseOf<'_>>,
    error: Option<LineError<'_>>,
) -> Result<Box<RawValue>, storage::Error> {
    let id = format!("batch_req_{}", request_id.replace('-', ""));
    let line = OutputLine { id, custom_id, response, error };
    let unwritable = |error: serde_json::Error| storage::Error::Unavailable {
        reason: format!("cannot serialize the answer to a line: {error}"),
    };
    let line = to_raw_value(&line).map_err(unwritable)?;
    if !line.get().contains(['\n', '\r']) {
        return Ok(line);
    }
    // In JSON, line breaks occur only between tokens and never in strings, so they can be replaced.
    RawValue::from_string(line.get().replace(['\n', '\r'], " ")).map_err(unwritable)
}
