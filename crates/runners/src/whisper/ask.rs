//! The format of requests to a process that recognizes speech: a line of JSON with the fields of
//! the form, followed by the audio file. The process reads the file while it arrives, so neither
//! the service nor the process holds the file in memory.

use serde::{Deserialize, Serialize};

/// The media type of such a request.
pub const MEDIA_TYPE: &str = "application/x-orrery-audio";
/// The route that reports the segments of a transcript as they are recognized.
pub(super) const PROGRESS: &str = "/progress";
/// The field that makes a transcription a translation, on the route [`PROGRESS`].
pub(super) const TRANSLATE: &str = "translate";
#[cfg(feature = "whisper")]
/// Maximum length of the line of JSON, in bytes. Forms are limited to less than half of this
/// length.
pub(super) const HEAD_MAX: usize = 1024 * 1024;

/// The fields of a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Head<T> {
    pub fields: T,
}

/// Returns the beginning of a request, which the audio file follows.
#[must_use]
pub fn encode(fields: &[(String, String)]) -> Vec<u8> {
    // The fields are strings, so serialization cannot fail.
    let mut text = serde_json::to_vec(&Head { fields }).unwrap_or_default();
    text.push(b'\n');
    text
}
