//! Packed values: the tree's storage format for the value of a single row, and for the rows of a
//! [block].
//!
//! A record is JSON and consists mostly of field names. With a dictionary of typical records,
//! [`pack`] compresses a value to a third or a quarter of its size, so the tree writes, caches and
//! stores correspondingly fewer bytes. Only checkpoints pack, and only reads of the tree unpack:
//! the log and the memtable keep values uncompressed, so that commits never wait for compression.
//!
//! A packed value begins with [`MAGIC`]. A block begins with [`RESERVED`] and a different third
//! byte. A value that itself begins with the reserved bytes is always packed, so that it cannot be
//! mistaken for packed data. The dictionary never changes; a new dictionary gets a new number.
//!
//! [block]: super::blocks

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::LazyLock;

use zstd::bulk::{Compressor, Decompressor};
use zstd::dict::{DecoderDictionary, EncoderDictionary};

use super::log::form::RECORD_BYTES_MAX;
use super::record::Malformed;

/// The prefix of all packed data. No record, id or text begins with the first byte.
pub(crate) const RESERVED: [u8; 2] = [0xff, b'z'];
/// The prefix of a packed value; the last byte is the number of the dictionary.
const MAGIC: [u8; 4] = [RESERVED[0], RESERVED[1], b's', 1];
/// Values shorter than this number of bytes are not packed.
const PACKED_FROM: usize = 96;
/// At this level, literals are not entropy-coded, and most of the compression comes from the
/// dictionary. Compared with level 1, compressing a record takes half the time, and the result is 2
/// to 8 % larger.
const LEVEL: i32 = -1;
/// Fields and strings of typical records, the most frequent last.
static DICTIONARY: &[u8] = include_bytes!("pack.dict");

static ENCODER: LazyLock<EncoderDictionary<'static>> =
    LazyLock::new(|| EncoderDictionary::copy(DICTIONARY, LEVEL));
static DECODER: LazyLock<DecoderDictionary<'static>> =
    LazyLock::new(|| DecoderDictionary::copy(DICTIONARY));

thread_local! {
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Returns the value as stored in the tree.
pub(crate) fn pack(value: &[u8]) -> Cow<'_, [u8]> {
    let looks_packed = value.starts_with(&RESERVED);
    if value.len() < PACKED_FROM && !looks_packed {
        return Cow::Borrowed(value);
    }
    match compress(value) {
        Some(packed) if looks_packed || packed.len() + MAGIC.len() < value.len() => {
            Cow::Owned([&MAGIC, &packed[..]].concat())
        }
        Some(_) | None => Cow::Borrowed(value),
    }
}

/// Returns the value from its stored form.
///
/// # Errors
/// [`Malformed`] if the stored form is damaged, or was packed by a later release.
pub(crate) fn unpack(held: &[u8]) -> Result<Vec<u8>, Malformed> {
    match held.strip_prefix(&MAGIC) {
        Some(packed) => decompress(packed),
        None => Ok(held.to_vec()),
    }
}

/// Compresses `bytes`. Returns `None` if there is not enough memory.
pub(crate) fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|compressor| {
        if compressor.is_none() {
            *compressor = Compressor::with_prepared_dictionary(&ENCODER).ok();
        }
        compressor.as_mut()?.compress(bytes).ok()
    })
}

/// Decompresses the output of [`compress`].
///
/// # Errors
/// The same errors as [`unpack`].
pub(crate) fn decompress(packed: &[u8]) -> Result<Vec<u8>, Malformed> {
    let malformed = |reason: String| Malformed { record: "row", reason };
    let length = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten();
    let length = length.filter(|length| *length <= RECORD_BYTES_MAX);
    let length = length.and_then(|length| usize::try_from(length).ok());
    let length = length.ok_or_else(|| malformed("its length is damaged".to_owned()))?;
    let unpacked = DECOMPRESSOR.with_borrow_mut(|decompressor| {
        let decompressor = match decompressor {
            Some(decompressor) => decompressor,
            None => decompressor.insert(Decompressor::with_prepared_dictionary(&DECODER)?),
        };
        decompressor.decompress(packed, length)
    });
    match unpacked {
        Ok(value) if value.len() == length => Ok(value),
        Ok(_) => Err(malformed("its end is missing".to_owned())),
        Err(error) => Err(malformed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STEP: &str = concat!(
        "\u{1}{\"status\":\"completed\",\"input\":{\"inline\":{\"method\":\"POST\",",
        "\"url\":\"http://10.0.0.7:8080/step\",\"headers\":{},\"query_params\":{},\"body\":{}}},",
        "\"output\":{\"inline\":{\"value\":\"an answer\"}},\"attempts\":[{\"number\":1,",
        "\"outcome\":\"success\",\"started_at\":1795292881767342,",
        "\"completed_at\":1795292881809335}],\"cost\":0}"
    );

    #[test]
    fn pack_shrinks_record_to_a_third_and_round_trips() {
        let held = pack(STEP.as_bytes());
        assert!(held.len() * 3 < STEP.len(), "{} of {}", held.len(), STEP.len());
        assert_eq!(unpack(&held).unwrap(), STEP.as_bytes());
    }

    /// Golden bytes: this release writes them, and later releases must be able to read them.
    #[test]
    fn pack_dictionary_matches_golden_bytes() {
        let digest = crc32fast::hash(DICTIONARY);
        assert_eq!(
            digest, 0x2a16_d7b0,
            "a new dictionary takes a new number, and the old one stays"
        );
    }

    #[test]
    fn pack_reports_damaged_bytes() {
        let held = pack(STEP.as_bytes()).into_owned();
        for damaged in [&held[..held.len() - 3], &held[..MAGIC.len()], &[&held[..], b"x"].concat()]
        {
            assert!(unpack(damaged).is_err());
        }
        let longest = [&MAGIC[..], &[0x28, 0xb5, 0x2f, 0xfd, 0xe0], &[0xff; 8]].concat();
        assert!(unpack(&longest).is_err());
    }

    proptest! {
        #[test]
        fn pack_round_trips_every_value(
            value in prop::collection::vec(any::<u8>(), 0..2000),
            looks_packed: bool,
            repeated in 1..20_usize,
        ) {
            let value = value.repeat(repeated);
            let value = if looks_packed { [&RESERVED[..], &value].concat() } else { value };
            let held = pack(&value);
            prop_assert!(held.len() <= value.len() + 64);
            prop_assert_eq!(unpack(&held).unwrap(), value);
        }
    }
}
