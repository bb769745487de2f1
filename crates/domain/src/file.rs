//! File metadata, without the file's contents.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::ids::{ExecutionId, FileId, Id, KeyId, OrganizationId};
use super::time::Timestamp;

/// The content type of files whose type is unknown.
pub const UNKNOWN_TYPE: &str = "application/octet-stream";
/// Maximum length of a stored content type, in bytes.
const TYPE_MAX: usize = 128;

/// Maximum length of a stored file name, in characters.
pub const NAME_MAX: usize = 255;

/// Maximum length of a file's purpose, in characters.
pub const PURPOSE_MAX: usize = 64;

/// Maximum length of a file's metadata, in bytes of JSON.
pub const METADATA_BYTES_MAX: usize = 4096;

/// The source of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileSource {
    /// Uploaded by a client.
    Upload,
    /// Output of a model.
    Output,
}

impl FileSource {
    /// Returns the name that is used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Output => "output",
        }
    }
}

/// An announced upload, with the expected properties of its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    pub id: FileId,
    pub organization: OrganizationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    pub content_type: String,
    /// The expected size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    /// Retention of the file in seconds, if not the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_seconds: Option<u64>,
    /// The key that announced the upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    pub created_at: Timestamp,
    /// When the announcement expires; uploads after that are rejected.
    pub expires_at: Timestamp,
}

/// The SHA-256 digest under which a file's contents are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

/// A file of an organization. The contents are stored under their digest, and several files may
/// share them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    pub id: FileId,
    pub organization: OrganizationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// `type/subtype`, possibly with parameters; valid in a header.
    pub content_type: String,
    /// Size in bytes.
    pub size: u64,
    pub sha256: Digest,
    pub source: FileSource,
    /// What the client wants to do with the file, such as `batch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// The client's own data: a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionId>,
    /// The key that uploaded the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

impl File {
    /// Returns the path of the file's contents on the base host.
    #[must_use]
    pub fn content_path(id: FileId) -> String {
        format!("/v1/files/{id}/content")
    }

    /// Returns the path of an announced upload.
    #[must_use]
    pub fn upload_path(id: FileId) -> String {
        format!("/v1/upload/{id}")
    }
}

impl FileId {
    /// Returns the id of an output file. Repeating the attempt after a crash yields the same id, so
    /// that the file is overwritten instead of duplicated. The ids sort by the time of the
    /// execution.
    #[must_use]
    pub fn of_output(execution: ExecutionId, attempt_key: &str, index: usize) -> Self {
        let named = format!("{attempt_key}/{index}");
        let hash = Sha256::digest(named.as_bytes());
        let mut bytes = execution.bytes();
        // Keep the time and the version; the hash replaces the random part of the version 7 UUID.
        for (place, byte) in bytes.iter_mut().zip(&hash).skip(9) {
            *place = *byte;
        }
        Self::from(bytes)
    }
}

/// Returns the content type in a form that is valid in a header, such as `image/png` or
/// `text/plain; charset=utf-8`. An invalid type becomes [`UNKNOWN_TYPE`].
#[must_use]
pub fn content_type(written: &str) -> String {
    let essence = written.split(';').next().unwrap_or_default().trim();
    let is_token = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
    };
    let is_type =
        essence.split_once('/').is_some_and(|(kind, sub)| is_token(kind) && is_token(sub));
    let is_visible = written.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if is_type && is_visible && written.len() <= TYPE_MAX {
        return written.trim().to_owned();
    }
    UNKNOWN_TYPE.to_owned()
}

impl Digest {
    /// Parses the hexadecimal form of a digest.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a SHA-256 digest"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_id_of_output_is_deterministic() {
        let execution = ExecutionId::from([0x17; 16]);
        let first = FileId::of_output(execution, "e:s:1", 0);
        assert_eq!(first, FileId::of_output(execution, "e:s:1", 0));
        assert_ne!(first, FileId::of_output(execution, "e:s:1", 1));
        assert_ne!(first, FileId::of_output(execution, "e:s:2", 0));
        assert_eq!(first.bytes()[..9], execution.bytes()[..9]);
    }

    #[test]
    fn content_type_must_be_valid_in_a_header() {
        for good in ["image/png", "text/plain; charset=utf-8", "image/svg+xml"] {
            assert_eq!(content_type(good), good);
        }
        let long = format!("a/{}", "b".repeat(TYPE_MAX));
        for bad in ["", "png", "image/", "/png", "a/b\r\nX: y", "a b/c", "a/b;é", long.as_str()] {
            assert_eq!(content_type(bad), UNKNOWN_TYPE, "{bad}");
        }
    }

    #[test]
    fn digest_display_and_parse_are_inverse() {
        let digest = Digest([0xa7; 32]);
        assert_eq!(Digest::parse(&digest.to_string()), Some(digest));
        assert_eq!(serde_json::to_value(digest).unwrap(), "a7".repeat(32));
        for bad in ["", "a7", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(Digest::parse(bad), None, "{bad}");
        }
    }
}
