//! Records: one version byte, then JSON.
//!
//! JSON evolves through serde defaults within a version; any other change requires a new version
//! byte and an upgrade from the previous version. Stored types use neither `flatten` nor
//! `untagged`, because with these attributes, moving a field would silently change the meaning of
//! stored bytes.

use std::cell::RefCell;

use super::error::Error;

pub use orrery_domain::record::{Malformed, Record};

/// Maximum bytes of the encoding buffer that a thread keeps for its next record.
const BUFFER_BYTES_KEPT: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Encodes `record`.
///
/// # Errors
/// [`Error::Malformed`] if the record cannot be expressed in JSON (a map whose keys are not
/// strings).
pub fn encode<T: Record>(record: &T) -> Result<Vec<u8>, Error> {
    BUFFER.with_borrow_mut(|buffer| {
        buffer.clear();
        buffer.push(T::VERSION);
        serde_json::to_writer(&mut *buffer, record)
            .map_err(|error| Malformed { record: T::NAME, reason: error.to_string() })?;
        // Copy without spare capacity, since the memtable keeps the bytes.
        let bytes = buffer.to_vec();
        buffer.shrink_to(BUFFER_BYTES_KEPT);
        Ok(bytes)
    })
}

/// Decodes a record.
///
/// # Errors
/// [`Error::Malformed`] if the bytes are empty, of an unknown version, or not valid JSON for the
/// type.
pub fn decode<T: Record>(bytes: &[u8]) -> Result<T, Error> {
    let malformed = |reason: String| Malformed { record: T::NAME, reason };
    Ok(match bytes.split_first() {
        None => return Err(malformed("it is empty".to_owned()).into()),
        Some((version, json)) if *version == T::VERSION => {
            serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?
        }
        Some((version, json)) => T::upgrade(*version, json)?,
    })
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        name: String,
    }
    impl Record for Sample {
        const VERSION: u8 = 2;
        const NAME: &'static str = "sample";
        fn upgrade(version: u8, json: &[u8]) -> Result<Self, Malformed> {
            let name = String::from_utf8_lossy(json).into_owned();
            if version == 1 {
                Ok(Self { name })
            } else {
                Err(Malformed { record: "sample", reason: String::new() })
            }
        }
    }

    #[test]
    fn record_matches_golden_bytes_and_upgrades() {
        let sample = Sample { name: "a".to_owned() };
        assert_eq!(encode(&sample).unwrap(), b"\x02{\"name\":\"a\"}");
        assert_eq!(decode::<Sample>(b"\x02{\"name\":\"a\"}").unwrap(), sample);
        assert_eq!(decode::<Sample>(b"\x01a").unwrap(), sample);
        for bad in [&b""[..], b"\x02{", b"\x09{}"] {
            assert!(decode::<Sample>(bad).is_err());
        }
    }
}
