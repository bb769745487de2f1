//! The binary format of segment headers and records.
//!
//! ```text
//! header  magic 8 | format 4 | nonce 4 | store 16 | first number 8 | checkpoint 8 | zeros 12 | crc 4
//! record  magic 4 | crc 4 | length of rows 4 | rows 4 | number 8 | checkpoint 8 | microseconds 8 | rows
//! row     length of key 4 | length of value 4, all ones: deleted | key | value
//! ```
//!
//! Numbers are big-endian; records are padded with zeros to a multiple of eight bytes. A record's
//! checksum is seeded with the segment's nonce, and covers everything after the checksum. So
//! neither bytes from an earlier use of the file nor a value that looks like a record can be
//! mistaken for a record.

use std::io;

use super::super::key::Key;
use super::super::memtable::{Entry, Rows};
use orrery_domain::time::Timestamp;

/// The id of a store, which its log, tree and marker share.
pub(crate) type StoreId = [u8; 16];

/// The format of segments that this release writes.
pub(crate) const FORMAT: u32 = 1;
pub(crate) const HEADER_BYTES: u64 = 64;
const HEADER: usize = 64;
const HEADER_MAGIC: [u8; 8] = *b"orry-log";
const RECORD: usize = 40;
const RECORD_MAGIC: [u8; 4] = *b"rec\x01";
const DELETED: u32 = u32::MAX;
/// The alignment of records.
pub(crate) const ALIGN: usize = 8;
/// Maximum bytes of rows in a record.
pub(crate) const RECORD_BYTES_MAX: u64 = 1 << 30;

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub store: StoreId,
    pub nonce: u32,
    /// The number of the first record in the segment.
    pub first: u64,
    /// The number of the last record that was durable in the tree when the segment was created.
    pub checkpoint: u64,
}

/// Why a header is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadHeader {
    Damaged,
    Newer(u32),
}

impl Header {
    /// Encodes the header.
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let parts: [&[u8]; 7] = [
            &HEADER_MAGIC,
            &FORMAT.to_be_bytes(),
            &self.nonce.to_be_bytes(),
            &self.store,
            &self.first.to_be_bytes(),
            &self.checkpoint.to_be_bytes(),
            &[0; 12],
        ];
        let text = parts.concat();
        let crc = crc32fast::hash(&text);
        let mut bytes = [0; HEADER];
        for (byte, from) in bytes.iter_mut().zip(text.iter().chain(&crc.to_be_bytes())) {
            *byte = *from;
        }
        bytes
    }

    /// Decodes the header at the beginning of `bytes`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        let text = bytes.get(..HEADER - 4).ok_or(BadHeader::Damaged)?;
        let crc = u32_at(bytes, HEADER - 4);
        if crc != Some(crc32fast::hash(text)) || !text.starts_with(&HEADER_MAGIC) {
            return Err(BadHeader::Damaged);
        }
        let format = u32_at(text, 8).unwrap_or_default();
        if format > FORMAT {
            return Err(BadHeader::Newer(format));
        }
        let read = || {
            Some(Self {
                nonce: u32_at(text, 12)?,
                store: text.get(16..32)?.try_into().ok()?,
                first: u64_at(text, 32)?,
                checkpoint: u64_at(text, 40)?,
            })
        };
        read().ok_or(BadHeader::Damaged)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

const fn padded(length: usize) -> usize {
    length.next_multiple_of(ALIGN)
}

/// The size of the record of `rows`, in bytes.
pub(crate) fn record_bytes(rows: &Rows) -> u64 {
    let length = |(key, value): (&Key, &Option<Vec<u8>>)| {
        8 + key.as_bytes().len() + value.as_ref().map_or(0, Vec::len)
    };
    padded(RECORD + rows.iter().map(length).sum::<usize>()) as u64
}

/// Encodes the record of `rows` into `buffer`.
pub(crate) fn encode(
    buffer: &mut Vec<u8>,
    nonce: u32,
    number: u64,
    checkpoint: u64,
    now: Timestamp,
    rows: &Rows,
) -> io::Result<()> {
    let length = |length: usize| u32::try_from(length).map_err(io::Error::other);
    buffer.clear();
    buffer.resize(RECORD, 0);
    for (key, value) in rows {
        let key = key.as_bytes();
        buffer.extend_from_slice(&length(key.len())?.to_be_bytes());
        let value_length = value.as_ref().map_or(Ok(DELETED), |value| length(value.len()))?;
        buffer.extend_from_slice(&value_length.to_be_bytes());
        buffer.extend_from_slice(key);
        buffer.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    let body = length(buffer.len() - RECORD)?;
    buffer.resize(padded(buffer.len()), 0);
    let head = [
        &body.to_be_bytes()[..],
        &length(rows.len())?.to_be_bytes(),
        &number.to_be_bytes(),
        &checkpoint.to_be_bytes(),
        &now.micros().to_be_bytes(),
    ]
    .concat();
    if let Some(place) = buffer.get_mut(8..RECORD) {
        place.copy_from_slice(&head);
    }
    let crc = checksum(nonce, buffer.get(8..).unwrap_or_default());
    let start = [RECORD_MAGIC, crc.to_be_bytes()].concat();
    if let Some(place) = buffer.get_mut(..8) {
        place.copy_from_slice(&start);
    }
    Ok(())
}

fn checksum(nonce: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(nonce);
    hasher.update(bytes);
    hasher.finalize()
}

/// A complete record, borrowed from its segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'b> {
    pub number: u64,
    pub checkpoint: u64,
    pub time: Timestamp,
    /// The offset of the next record.
    pub end: usize,
    /// The record's size, in bytes.
    pub bytes: u64,
    rows: u32,
    body: &'b [u8],
}

/// Decodes the record at `at`. Returns `None` if there is no complete record.
pub(crate) fn decode(bytes: &[u8], at: usize, nonce: u32) -> Option<Record<'_>> {
    let record = bytes.get(at..)?;
    if !record.starts_with(&RECORD_MAGIC) {
        return None;
    }
    let length = usize::try_from(u32_at(record, 8)?).ok()?;
    let whole = padded(RECORD.checked_add(length)?);
    if checksum(nonce, record.get(8..whole)?) != u32_at(record, 4)? {
        return None;
    }
    Some(Record {
        number: u64_at(record, 16)?,
        checkpoint: u64_at(record, 24)?,
        time: Timestamp::from_micros(i64::from_be_bytes(record.get(32..RECORD)?.try_into().ok()?)),
        end: at.checked_add(whole)?,
        bytes: whole as u64,
        rows: u32_at(record, 12)?,
        body: record.get(RECORD..RECORD + length)?,
    })
}

impl Record<'_> {
    /// Returns the record's rows. Returns `None` in the same case as [`Record::entries`].
    pub(crate) fn rows(&self) -> Option<Rows> {
        Some(self.entries()?.into_iter().collect())
    }

    /// Returns the record's rows in key order. Returns `None` if the rows do not fill the record
    /// exactly. No release has written such a record.
    pub(crate) fn entries(&self) -> Option<Vec<Entry>> {
        let mut rows = Vec::new();
        let mut rest = self.body;
        for _ in 0..self.rows {
            let key = u32_at(rest, 0)?;
            let value = u32_at(rest, 4)?;
            rest = rest.get(8..)?;
            let (key, behind) = rest.split_at_checked(usize::try_from(key).ok()?)?;
            let value_length = if value == DELETED { 0 } else { usize::try_from(value).ok()? };
            let (text, behind) = behind.split_at_checked(value_length)?;
            rows.push((Key::from_bytes(key), (value != DELETED).then(|| text.to_vec())));
            rest = behind;
        }
        rest.is_empty().then_some(rows)
    }
}

/// Whether the bytes at `at` begin like a record. If such bytes are not a complete record, they are
/// a torn or damaged record.
pub(crate) fn looks_begun(bytes: &[u8], at: usize) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(&RECORD_MAGIC))
}
