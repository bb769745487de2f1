//! Files and uploads.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Time, pattern};
use orrery_domain::file::{self, FileSource, NAME_MAX, PURPOSE_MAX, Upload};
use orrery_domain::ids::{ExecutionId, FileId};
use orrery_domain::time::Timestamp;

/// Minimum retention of a file, in seconds.
pub const KEEP_MIN: u64 = 60;
pub const KEEP_MAX: u64 = 31_536_000;

/// A file, or a pending presigned upload.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct File {
    /// The ID of the file.
    pub id: FileId,
    /// The name that the file was uploaded with.
    pub filename: Option<String>,
    /// The content type.
    pub content_type: String,
    /// The size in bytes.
    pub size: Option<u64>,
    /// The SHA-256 hash, as 64 hexadecimal digits.
    pub sha256: Option<String>,
    /// Whether the file was uploaded or produced by a model.
    pub source: FileSource,
    /// The object type for OpenAI's clients: always `file`.
    pub object: &'static str,
    /// The size in bytes, for OpenAI's clients.
    pub bytes: Option<u64>,
    /// What the file is for, as given with the upload, or `batch_output`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// The execution that produced this file as an output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// When the file or the upload was created.
    pub created_at: Time,
    /// When the file is deleted. For a pending upload, when the upload URL expires.
    pub expires_at: Time,
    /// A URL for the content, which works without an API key.
    pub url: String,
    /// Whether the content has been uploaded.
    pub status: FileStatus,
}

/// Whether the content has been uploaded. A file with a purpose is `processed` instead of `ready`,
/// as in OpenAI's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileStatus {
    Ready,
    Pending,
    Processed,
}

impl File {
    /// Returns the view of a stored file whose content is at `url`.
    #[must_use]
    pub fn of(file: &file::File, url: String) -> Self {
        Self {
            id: file.id,
            filename: file.filename.clone(),
            content_type: file.content_type.clone(),
            size: Some(file.size),
            sha256: Some(file.sha256.to_string()),
            source: file.source,
            object: "file",
            bytes: Some(file.size),
            purpose: file.purpose.clone(),
            execution_id: file.execution,
            created_at: file.created_at.into(),
            expires_at: file.expires_at.into(),
            url,
            status: match file.purpose {
                Some(_) => FileStatus::Processed,
                None => FileStatus::Ready,
            },
        }
    }

    /// Returns the view of a pending upload whose content will be at `url`.
    #[must_use]
    pub fn of_upload(upload: &Upload, url: String) -> Self {
        Self {
            id: upload.id,
            filename: upload.filename.clone(),
            content_type: upload.content_type.clone(),
            size: upload.size,
            sha256: upload.sha256.map(|digest| digest.to_string()),
            source: FileSource::Upload,
            object: "file",
            bytes: upload.size,
            purpose: None,
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
    /// The files, newest first.
    pub files: Vec<File>,
    /// The files again, in OpenAI's format; only with `purpose`.
    #[serde(flatten)]
    pub open_ai: Option<OpenAiList>,
    /// Whether there is another page.
    pub has_more: bool,
    /// The `cursor` for the next page.
    pub next_cursor: Option<String>,
}

/// A deleted file in OpenAI's format.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiFileDeleted")]
pub struct Deleted {
    /// The ID of the file.
    pub id: FileId,
    /// The object type: always `file`.
    pub object: &'static str,
    /// Always true.
    pub deleted: bool,
}

/// The fields of a list in OpenAI's format.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiFileList")]
pub struct OpenAiList {
    /// The object type: always `list`.
    pub object: &'static str,
    /// The files, newest first.
    pub data: Vec<File>,
}

/// A file or a pending upload as OpenAI's API returns it.
#[derive(Debug, Serialize)]
pub struct OpenAiFile {
    pub id: FileId,
    pub object: &'static str,
    pub bytes: u64,
    /// In seconds since 1970.
    pub created_at: i64,
    /// In seconds since 1970.
    pub expires_at: i64,
    pub filename: String,
    /// Empty if the upload has no purpose.
    pub purpose: String,
    pub status: OpenAiFileStatus,
}

/// The status of the upload, as OpenAI's API names it.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenAiFileStatus {
    Processed,
    Uploaded,
}

impl From<File> for OpenAiFile {
    fn from(file: File) -> Self {
        Self {
            id: file.id,
            object: file.object,
            bytes: file.bytes.unwrap_or(0),
            created_at: Timestamp::from(file.created_at).unix_seconds(),
            expires_at: Timestamp::from(file.expires_at).unix_seconds(),
            filename: file.filename.unwrap_or_default(),
            purpose: file.purpose.unwrap_or_default(),
            status: match file.status {
                FileStatus::Ready | FileStatus::Processed => OpenAiFileStatus::Processed,
                FileStatus::Pending => OpenAiFileStatus::Uploaded,
            },
        }
    }
}

/// A page of files as OpenAI's API returns it, newest first.
#[derive(Debug, Serialize)]
pub struct OpenAiPage {
    pub object: &'static str,
    pub data: Vec<OpenAiFile>,
    pub first_id: Option<FileId>,
    /// The value of `after` for the next page.
    pub last_id: Option<FileId>,
    pub has_more: bool,
}

impl OpenAiPage {
    /// Creates a page.
    #[must_use]
    pub fn new(files: Vec<File>, has_more: bool) -> Self {
        let data: Vec<OpenAiFile> = files.into_iter().map(OpenAiFile::from).collect();
        let (first_id, last_id) =
            (data.first().map(|file| file.id), data.last().map(|file| file.id));
        Self { object: "list", data, first_id, last_id, has_more }
    }
}

/// The URL of an uploaded file.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FileUrl {
    /// A URL for the content, which works without an API key until the file is deleted.
    pub url: String,
}

/// The number and total size of an organization's files.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FileUsage")]
pub struct Usage {
    /// The number of files.
    pub count: u64,
    /// The total size of the files, in bytes.
    pub bytes: u64,
}

/// A presigned upload to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({"content_type": "image/png", "filename": "cat.png"}))]
pub struct NewUpload {
    /// The content type, such as `image/png`.
    #[schemars(length(min = 1, max = NAME_MAX), transform = pattern::filled)]
    pub content_type: String,
    /// The name of the file.
    #[schemars(transform = pattern::file_name)]
    pub filename: Option<String>,
    /// The size in bytes. An upload of any other size is rejected.
    pub size: Option<u64>,
    /// The SHA-256 hash, as 64 hexadecimal digits. An upload with any other hash is rejected.
    #[schemars(transform = pattern::sha256)]
    pub sha256: Option<String>,
    /// Accepted and ignored.
    pub file_type: Option<String>,
    #[serde(flatten)]
    pub retention: Retention,
}

/// How long a file is kept.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Retention {
    /// How long the file is kept.
    #[schemars(range(min = KEEP_MIN, max = KEEP_MAX))]
    pub expires_in_seconds: Option<u64>,
}

/// A presigned upload.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UploadAnnounced")]
pub struct Announced {
    /// The ID of the upload, and later of the file.
    pub id: FileId,
    /// The URL to upload the content to with `PUT`. No API key is needed.
    pub presigned_url: String,
    /// The URL of the content after the upload. No API key is needed.
    pub public_url: String,
    /// When the upload URL expires.
    pub expires_at: Time,
    /// The headers that the upload must have.
    pub required_headers: RequiredHeaders,
}

/// The headers that the upload must have.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UploadHeaders")]
pub struct RequiredHeaders {
    /// The announced content type.
    #[serde(rename = "Content-Type")]
    pub content_type: String,
}

/// A form with a file.
#[derive(Debug, JsonSchema)]
pub struct FileForm {
    /// The content, with a content type and a filename.
    #[schemars(extend("format" = "binary"))]
    pub file: String,
    /// What the file is for, such as `batch`. Any text.
    #[schemars(length(min = 1, max = PURPOSE_MAX))]
    pub purpose: Option<String>,
    #[schemars(flatten)]
    pub retention: Retention,
}
