//! Batches in OpenAI's format.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::metadata::Metadata;
use super::pattern;
use orrery_domain::batch::{self, Batch, Endpoint, Status};
use orrery_domain::ids::FileId;

/// A batch to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "BatchRequest", example = json!({
    "input_file_id": "01a21c6e-019b-70fb-b055-5d0f3b8e0257",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}))]
pub struct Request {
    /// The ID of the file with the requests: JSON lines with `custom_id`, `method`, `url` and
    /// `body`.
    #[schemars(transform = pattern::uuid)]
    pub input_file_id: String,
    /// The route that answers the lines.
    pub endpoint: Endpoint,
    /// The time in which the lines are answered.
    pub completion_window: Window,
    /// Key-value pairs that are returned with the batch.
    pub metadata: Option<Metadata>,
}

/// The time in which the lines of a batch are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BatchWindow")]
pub enum Window {
    #[serde(rename = "24h")]
    Day,
}

/// A batch and its progress. Times are in seconds since 1970.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Batch")]
pub struct View {
    /// The ID of the batch: `batch_` and 32 hexadecimal digits.
    pub id: String,
    /// The object type: always `batch`.
    pub object: &'static str,
    /// The route that answers the lines.
    pub endpoint: Endpoint,
    /// The errors in the input file. Null if there are none.
    pub errors: Option<Errors>,
    /// The ID of the file with the requests.
    pub input_file_id: FileId,
    /// The time in which the lines are answered.
    pub completion_window: Window,
    /// The status of the batch.
    pub status: Status,
    /// The ID of the file with the answers. Null until the batch has ended, or if there are no
    /// answers.
    pub output_file_id: Option<FileId>,
    /// The ID of the file with the errors. Null until the batch has ended, or if there are no
    /// errors.
    pub error_file_id: Option<FileId>,
    /// When the batch was created.
    pub created_at: i64,
    /// When the check of the input file ended.
    pub in_progress_at: Option<i64>,
    /// The time at which unanswered lines expire.
    pub expires_at: i64,
    /// When all lines were answered or had expired.
    pub finalizing_at: Option<i64>,
    /// When the batch was completed.
    pub completed_at: Option<i64>,
    /// When the batch failed.
    pub failed_at: Option<i64>,
    /// When the batch ended with expired lines.
    pub expired_at: Option<i64>,
    /// When the cancellation was requested.
    pub cancelling_at: Option<i64>,
    /// When the batch ended after its cancellation.
    pub cancelled_at: Option<i64>,
    /// The number of lines.
    pub request_counts: Counts,
    /// The key-value pairs of the request. Null if there are none.
    pub metadata: Option<Metadata>,
}

/// Numbers of lines.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BatchCounts")]
pub struct Counts {
    /// The number of all lines. 0 until they have been counted.
    pub total: u64,
    /// The lines with an answer.
    pub completed: u64,
    /// The lines with an error.
    pub failed: u64,
}

/// A list of errors.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BatchErrors")]
pub struct Errors {
    /// The object type: always `list`.
    pub object: &'static str,
    /// The errors, at most 100.
    pub data: Vec<InputError>,
}

/// An error in the input file.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BatchError")]
pub struct InputError {
    /// A stable name of the error.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// The number of the line, from 1. Null if the error concerns the whole file.
    pub line: Option<u64>,
    /// The invalid field of the line. Null if the error concerns the whole line.
    pub param: Option<String>,
}

/// A page of batches, newest first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BatchList")]
pub struct List {
    /// The object type: always `list`.
    pub object: &'static str,
    /// The batches, newest first.
    pub data: Vec<View>,
    /// The ID of the first batch. Null if the page is empty.
    pub first_id: Option<String>,
    /// The ID of the last batch, which is `after` of the next page. Null if the page is empty.
    pub last_id: Option<String>,
    /// Whether there is another page.
    pub has_more: bool,
}

impl View {
    /// Returns the view of a batch with these numbers of answered and failed lines.
    #[must_use]
    pub fn of(batch: &Batch, completed: u64, failed: u64) -> Self {
        let ended = batch.ended_at.map(|time| time.unix_seconds());
        let ended_as = |status: Status| ended.filter(|_| batch.status == status);
        let errors = batch.errors.iter().cloned().map(InputError::from).collect::<Vec<_>>();
        Self {
            id: batch::name_of(batch.id),
            object: "batch",
            endpoint: batch.endpoint,
            errors: (!errors.is_empty()).then_some(Errors { object: "list", data: errors }),
            input_file_id: batch.input_file,
            completion_window: Window::Day,
            status: batch.status,
            output_file_id: batch.output_file,
            error_file_id: batch.error_file,
            created_at: batch.created_at.unix_seconds(),
            in_progress_at: batch.in_progress_at.map(|time| time.unix_seconds()),
            expires_at: batch.expires_at.unix_seconds(),
            finalizing_at: batch.finalizing_at.map(|time| time.unix_seconds()),
            completed_at: ended_as(Status::Completed),
            failed_at: ended_as(Status::Failed),
            expired_at: ended_as(Status::Expired),
            cancelling_at: batch.cancelling_at.map(|time| time.unix_seconds()),
            cancelled_at: ended_as(Status::Cancelled),
            request_counts: Counts { total: batch.total, completed, failed },
            metadata: (!batch.metadata.is_empty()).then(|| Metadata(batch.metadata.clone())),
        }
    }
}

impl From<batch::InputError> for InputError {
    fn from(error: batch::InputError) -> Self {
        let batch::InputError { code, message, line, param } = error;
        Self { code, message, line, param }
    }
}
