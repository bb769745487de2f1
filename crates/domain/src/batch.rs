//! Batches: files of requests that are answered in the background.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::execution::Source;
use super::ids::{BatchId, ExecutionId, FileId, Id, KeyId, OrganizationId};
use super::payload::Payload;
use super::time::Timestamp;

/// Maximum number of lines in an input file.
pub const LINES_MAX: usize = 50_000;
/// Maximum size of an input file, in bytes.
pub const BYTES_MAX: u64 = 200 * 1024 * 1024;
/// Maximum size of a line, in bytes.
pub const LINE_MAX: usize = 4 * 1024 * 1024;
/// Maximum length of a line's `custom_id`, in bytes.
pub const CUSTOM_ID_MAX: usize = 512;
/// Maximum number of invalid lines that a failed batch reports.
pub const ERRORS_MAX: usize = 100;
/// The time within which the lines of a batch are answered; unanswered lines then expire.
pub const WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

/// The route that answers the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Endpoint {
    #[serde(rename = "/v1/chat/completions")]
    ChatCompletions,
    #[serde(rename = "/v1/responses")]
    Responses,
    #[serde(rename = "/v1/embeddings")]
    Embeddings,
    #[serde(rename = "/v1/completions")]
    Completions,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 4] =
        [Self::ChatCompletions, Self::Responses, Self::Embeddings, Self::Completions];

    /// Returns the path of the route.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Embeddings => "/v1/embeddings",
            Self::Completions => "/v1/completions",
        }
    }
}

/// The status of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The input file is checked.
    Validating,
    /// The input file is invalid.
    Failed,
    /// Lines are answered.
    InProgress,
    /// The output files are written.
    Finalizing,
    Completed,
    /// Some lines were not answered in time.
    Expired,
    /// No more lines are started; lines in flight are still answered.
    Cancelling,
    Cancelled,
}

impl Status {
    /// All statuses.
    pub const ALL: [Self; 8] = [
        Self::Validating,
        Self::Failed,
        Self::InProgress,
        Self::Finalizing,
        Self::Completed,
        Self::Expired,
        Self::Cancelling,
        Self::Cancelled,
    ];

    /// Returns the name that is used in responses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the batch has ended.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Failed | Self::Completed | Self::Expired | Self::Cancelled => true,
            Self::Validating | Self::InProgress | Self::Finalizing | Self::Cancelling => false,
        }
    }
}

/// An error in the input file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputError {
    /// A stable name of the error.
    pub code: String,
    pub message: String,
    /// The number of the line, from 1; `None` if the error concerns the whole file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The invalid field of the line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
}

/// A stored batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub id: BatchId,
    pub organization: OrganizationId,
    /// The API key of the request, which pays for the lines.
    pub key: KeyId,
    pub source: Source,
    pub endpoint: Endpoint,
    pub input_file: FileId,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    pub status: Status,
    /// The number of lines; 0 until they have been counted.
    pub total: u64,
    /// The errors in the input file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<InputError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_file: Option<FileId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_file: Option<FileId>,
    pub created_at: Timestamp,
    /// The time at which unanswered lines expire.
    pub expires_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_progress_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelling_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finalizing_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

/// The answer to a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LineAnswer {
    /// The line of the output file, without its line break.
    pub line: Payload,
    /// Whether the line belongs to the error file.
    pub is_error: bool,
}

/// An output file of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Answers,
    Errors,
}

impl Output {
    /// The file's name.
    #[must_use]
    pub fn filename(self, batch: BatchId) -> String {
        match self {
            Self::Answers => format!("{}_output.jsonl", name_of(batch)),
            Self::Errors => format!("{}_error.jsonl", name_of(batch)),
        }
    }

    /// The file's id, which is always the same, so that writing the file again after a crash
    /// replaces it.
    #[must_use]
    pub fn file(self, batch: BatchId) -> FileId {
        FileId::of_output(ExecutionId::from(batch.bytes()), "batch", self as usize)
    }
}

/// Returns the id of a batch in the form of OpenAI's API: `batch_` and 32 hexadecimal digits.
#[must_use]
pub fn name_of(id: BatchId) -> String {
    format!("batch_{}", id.to_string().replace('-', ""))
}

/// Parses the id of a batch.
#[must_use]
pub fn parse_name(name: &str) -> Option<BatchId> {
    let digits = name.strip_prefix("batch_")?;
    let is_id =
        digits.len() == 32 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let bytes = is_id.then(|| u128::from_str_radix(digits, 16).ok())??;
    Some(BatchId::from(bytes.to_be_bytes()))
}

/// The content type of JSON lines.
pub const CONTENT_TYPE: &str = "application/jsonl";

/// The purpose of output files.
pub const OUTPUT_PURPOSE: &str = "batch_output";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_name_and_parse_are_inverse() {
        let id = BatchId::from([0x1a; 16]);
        let name = name_of(id);
        assert_eq!(name, format!("batch_{}", "1a".repeat(16)));
        assert_eq!(parse_name(&name), Some(id));
        for bad in ["", "batch_", "batch_1a", &name.to_uppercase(), &format!("{name}0")] {
            assert_eq!(parse_name(bad), None, "{bad}");
        }
        assert_eq!(parse_name(&format!("batch_{}", "+".repeat(32))), None);
    }

    #[test]
    fn output_files_of_a_batch_differ() {
        let id = BatchId::from([0x1a; 16]);
        assert_ne!(Output::Answers.file(id), Output::Errors.file(id));
        assert_ne!(Output::Answers.file(id), Output::Answers.file(BatchId::from([0x1b; 16])));
        assert_eq!(Output::Answers.file(id), Output::Answers.file(id));
    }
}
