//! A payload: the JSON text of an input, an output or a webhook body, stored inline in its record
//! or, if it is large, in a separate file.
//!
//! The text is never reformatted: it is sent byte for byte as it was stored. `storage::payloads`
//! reads and writes the files; nothing here touches a disk.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::ids::PayloadId;

/// JSON text, inline or in a separate file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    Inline(Box<RawValue>),
    File(FileRef),
}

/// A reference to a payload file, with its expected length and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRef {
    pub id: PayloadId,
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 (IEEE) of the contents.
    pub crc32: u32,
}

impl Payload {
    /// Serializes `value` to inline JSON text.
    ///
    /// # Errors
    /// If `value` cannot be serialized as JSON (a map with keys that are not strings).
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        to_raw_value(value).map(Self::Inline)
    }

    /// Returns the length of the text in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(raw) => raw.get().len() as u64,
            Self::File(file) => file.bytes,
        }
    }

    /// Returns whether the text is empty, which never happens for valid JSON.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Creates the empty payload: `null`.
    #[must_use]
    pub fn nothing() -> Self {
        Self::Inline(RawValue::NULL.to_owned())
    }

    /// Returns whether the payload is `null`, as a deleted input or output is.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Inline(text) if text.get() == RawValue::NULL.get())
    }

    /// Returns the file that contains the text, if any.
    #[must_use]
    pub const fn file(&self) -> Option<&FileRef> {
        match self {
            Self::Inline(_) => None,
            Self::File(file) => Some(file),
        }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Inline(a), Self::Inline(b)) => a.get() == b.get(),
            (Self::File(a), Self::File(b)) => a == b,
            (Self::Inline(_), Self::File(_)) | (Self::File(_), Self::Inline(_)) => false,
        }
    }
}

impl Eq for Payload {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_text_round_trips_byte_for_byte() {
        let text = r#"{"inline":{"b":1.50,  "a":[1e2,"\u00e9"]}}"#;
        let payload: Payload = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&payload).unwrap(), text);
        assert_eq!(payload.len(), 31);
        assert!(!payload.is_empty() && payload.file().is_none());
    }
}
