//! Files and uploads.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::Time;
use crate::domain::file::{self, FileSource, NAME_MAX, Upload};
use crate::domain::ids::{ExecutionId, FileId};

/// How long a file may be kept, in seconds.
pub const KEEP_MIN: u64 = 60;
pub const KEEP_MAX: u64 = 31_536_000;

/// A file, or an announced upload.
#[derive(Debug, Serialize, JsonSchema)]
pub struct File {
    pub id: FileId,
    pub filename: Option<String>,
    pub content_type: String,
    /// Bytes.
    pub size: Option<u64>,
    /// 64 hexadecimal digits.
    pub sha256: Option<String>,
    pub source: FileSource,
    /// The execution whose output it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    pub created_at: Time,
    /// When the file is deleted; of an announced upload, until when it is accepted.
    pub expires_at: Time,
    /// Its content, without a key.
    pub url: String,
    pub status: FileStatus,
}

/// Whether the bytes are there, or were only announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileStatus {
    Ready,
    Pending,
}

impl File {
    /// A file that is there, read at `url`.
    #[must_use]
    pub fn of(file: &file::File, url: String) -> Self {
        Self {
            id: file.id,
            filename: file.filename.clone(),
            content_type: file.content_type.clone(),
            size: Some(file.size),
            sha256: Some(file.sha256.to_string()),
            source: file.source,
            execution_id: file.execution,
            created_at: file.created_at.into(),
            expires_at: file.expires_at.into(),
            url,
            status: FileStatus::Ready,
        }
    }

    /// A file that was announced, to be read at `url`.
    #[must_use]
    pub fn of_upload(upload: &Upload, url: String) -> Self {
        Self {
            id: upload.id,
            filename: upload.filename.clone(),
            content_type: upload.content_type.clone(),
            size: upload.size,
            sha256: upload.sha256.map(|digest| digest.to_string()),
            source: FileSource::Upload,
            execution_id: None,
            created_at: upload.created_at.into(),
            expires_at: upload.expires_at.into(),
            url,
            status: FileStatus::Pending,
        }
    }
}

/// A page of files, newest first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FileList")]
pub struct List {
    pub files: Vec<File>,
    pub has_more: bool,
    /// The `cursor` of the next page.
    pub next_cursor: Option<String>,
}

/// Where a file can be read.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FileUrl {
    /// Its content, without a key, until the file is deleted.
    pub url: String,
}

/// What the files of an organization add up to.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FileUsage")]
pub struct Usage {
    pub count: u64,
    pub bytes: u64,
}

/// An upload to be announced.
#[derive(Debug, JsonSchema)]
#[schemars(example = json!({"content_type": "image/png", "filename": "cat.png"}))]
pub struct NewUpload {
    /// Such as `image/png`.
    #[schemars(length(min = 1, max = 255))]
    pub content_type: String,
    #[schemars(length(min = 1, max = NAME_MAX))]
    pub filename: Option<String>,
    /// Bytes: an upload of another size is refused.
    pub size: Option<u64>,
    /// 64 hexadecimal digits: an upload of other content is refused.
    #[schemars(regex(pattern = "^[0-9a-fA-F]{64}$"))]
    pub sha256: Option<String>,
    /// Accepted and not used.
    pub file_type: Option<String>,
    /// How long the file is kept.
    #[schemars(range(min = KEEP_MIN, max = KEEP_MAX))]
    pub expires_in_seconds: Option<u64>,
}

/// An upload was announced.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UploadAnnounced")]
pub struct Announced {
    pub id: FileId,
    /// The URL that takes the bytes by `PUT`, without a key.
    pub presigned_url: String,
    /// Where they are read then, without a key.
    pub public_url: String,
    /// Until when they are accepted.
    pub expires_at: Time,
    pub required_headers: RequiredHeaders,
}

/// The headers that the upload must carry.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UploadHeaders")]
pub struct RequiredHeaders {
    #[serde(rename = "Content-Type")]
    pub content_type: String,
}

/// A form with a file.
#[derive(Debug, JsonSchema)]
pub struct FileForm {
    /// The bytes, with a content type and a filename of their own.
    #[schemars(extend("format" = "binary"))]
    pub file: String,
    /// How long the file is kept.
    #[schemars(range(min = KEEP_MIN, max = KEEP_MAX))]
    pub expires_in_seconds: Option<u64>,
}
