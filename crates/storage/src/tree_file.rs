//! Reads the tree's file without its engine, to [`salvage`](super::salvage) a damaged store.
//!
//! The engine (sled 0.34) stops at the first message of its log with a wrong checksum, and drops
//! all later messages of the last segment. This module continues after such a message. The format,
//! from the engine's `pagecache`:
//!
//! ```text
//! segment  header (crc 4, lsn 8, stable lsn 8), messages
//! message  crc 4 | kind 1 | length | segment number | page | body; numbers are variable-length
//! page     its newest node, and the links after that: entries that were set or deleted
//! ```
//!
//! If a single byte is damaged, the checksum determines its position and its original value, so
//! such damage is repaired. If a page's latest message cannot be repaired, an older node is used,
//! with the links after it.
//!
//! Pages may overlap if the latest state of a page is lost. A key that is in several pages belongs
//! to the page that was written last.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::covered::Covered;
use super::tree::SEGMENT_BYTES;

/// Bytes of a segment's header.
const SEGMENT_HEADER: usize = 20;
/// The maximum size of a message header. No message begins this close to the end of a segment.
const HEADER_MAX: usize = 32;
/// The size of a message's checksum.
const CRC: usize = 4;
/// The maximum length of a message whose header is guessed and that no other message follows.
const GUESSED_MAX: usize = 1024 * 1024;

/// The name of the copy of a damaged tree file, which is stored next to the original.
pub(crate) const KEPT: &str = "db.damaged";

/// The relevant kinds of messages.
mod kind {
    pub(super) const CAP: u8 = 2;
    pub(super) const FREE: u8 = 4;
    pub(super) const NODE: u8 = 8;
    pub(super) const BLOB_NODE: u8 = 9;
    pub(super) const LINK: u8 = 10;
    pub(super) const BLOB_LINK: u8 = 11;
    pub(super) const ALL: std::ops::RangeInclusive<u8> = 1..=11;
}

/// Receives each entry: its key and its value.
pub(crate) type Take<'t> = dyn FnMut(&[u8], &[u8]) -> io::Result<()> + 't;

/// A damaged part of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damage {
    pub offset: u64,
    pub bytes: u64,
    /// Whether the damage was repaired by means of the checksum, so that nothing is lost.
    pub is_restored: bool,
    /// Whether an intact message follows the damage.
    pub is_followed: bool,
}

/// The result of reading the file.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub damage: Vec<Damage>,
    /// Bytes of the messages used.
    pub bytes: u64,
    /// Key ranges without a readable page. An empty end means the end of the tree.
    pub holes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The header of a message.
#[derive(Debug, Clone, Copy)]
struct Header {
    crc: u32,
    kind: u8,
    length: usize,
    segment: u64,
    page: u64,
    /// The header's size.
    bytes: usize,
}

/// The location of a message's body.
#[derive(Debug, Clone)]
struct Body {
    /// The log sequence number.
    lsn: u64,
    kind: u8,
    offset: u64,
    length: usize,
    /// The repaired bytes, if they differ from the file.
    restored: Option<Vec<u8>>,
}

/// The messages of a page.
#[derive(Debug, Default)]
struct Page {
    node: Option<Body>,
    links: Vec<Body>,
    freed: Option<u64>,
}

/// A node in the tree.
#[derive(Debug, Default)]
struct Node {
    low: Vec<u8>,
    /// The exclusive end; empty means the end of the tree.
    high: Vec<u8>,
    prefix: Vec<u8>,
    /// The entries of a leaf; `None` for an inner node.
    entries: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
}

/// Reads every readable entry of the tree in `folder`, page by page, newest page first. Passes each
/// key to `take` once.
///
/// # Errors
/// If the file cannot be opened, or `take` fails.
pub(crate) fn read(folder: &Path, take: &mut Take<'_>) -> io::Result<Found> {
    let kept = folder.join(KEPT);
    let file = File::open(if kept.exists() { kept } else { folder.join("db") })?;
    let blobs = folder.join("blobs");
    let mut scan = Scan { file, blobs, pages: HashMap::new(), damage: Vec::new() };
    scan.read_segments()?;
    scan.read_pages(take)
}

/// Makes a copy of a tree file whose end is damaged, since the engine truncates the file when it
/// opens it. A damaged end without an intact message after it is a torn write and is not copied.
///
/// # Errors
/// If the file cannot be read or copied.
pub(crate) fn keep_damaged(folder: &Path) -> io::Result<()> {
    let path = folder.join("db");
    let kept = folder.join(KEPT);
    if kept.exists() || !path.exists() {
        return Ok(());
    }
    let file = File::open(&path)?;
    let mut scan = Scan { file, blobs: PathBuf::new(), pages: HashMap::new(), damage: Vec::new() };
    for offset in scan.newest_segments()? {
        let bytes = read_at_most(&scan.file, offset, SEGMENT_BYTES)?;
        scan.read_segment(&bytes, offset);
    }
    if !scan.damage.iter().any(|damage| damage.is_followed) {
        return Ok(());
    }
    let part = folder.join("db.part");
    let copied = copy_whole(&path, &part).and_then(|()| fs::rename(&part, &kept));
    copied.map_err(|error| {
        // The partial copy may have filled the disk.
        drop(fs::remove_file(&part));
        let bytes = fs::metadata(&path).map_or(0, |file| file.len());
        let reason = format!(
            "a part of {} is damaged, and starting would truncate the file there; a copy of it \
             ({bytes} bytes) cannot be made: {error}; free that much space on this disk",
            path.display()
        );
        io::Error::new(error.kind(), reason)
    })
}

/// Copies a file durably.
fn copy_whole(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    File::open(to)?.sync_all()
}

/// Removes the copy once the store is open: the open succeeded, so the log contains the damaged
/// records.
///
/// # Errors
/// If the disk fails.
pub(crate) fn forget_damaged(folder: &Path) -> io::Result<()> {
    match fs::remove_file(folder.join(KEPT)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

struct Scan {
    file: File,
    blobs: PathBuf,
    pages: HashMap<u64, Page>,
    damage: Vec<Damage>,
}

impl Scan {
    /// Returns the offsets of the two newest segments. The engine truncates only these segments.
    fn newest_segments(&mut self) -> io::Result<Vec<u64>> {
        let mut numbered = Vec::new();
        let mut offset = 0;
        loop {
            let bytes = read_at_most(&self.file, offset, SEGMENT_HEADER + HEADER_MAX)?;
            if bytes.len() <= SEGMENT_HEADER {
                break;
            }
            let bytes = read_at_most(&self.file, offset, SEGMENT_HEADER)?;
            numbered.extend(self.number_of_segment(&bytes, offset).map(|number| (number, offset)));
            offset += SEGMENT_BYTES as u64;
        }
        numbered.sort_unstable();
        Ok(numbered.into_iter().rev().take(2).map(|(_, offset)| offset).collect())
    }

    fn read_segments(&mut self) -> io::Result<()> {
        let mut offset = 0;
        loop {
            let bytes = read_at_most(&self.file, offset, SEGMENT_BYTES)?;
            if bytes.len() <= SEGMENT_HEADER {
                return Ok(());
            }
            self.read_segment(&bytes, offset);
            offset += SEGMENT_BYTES as u64;
        }
    }

    fn read_segment(&mut self, bytes: &[u8], offset: u64) {
        let Some(number) = self.number_of_segment(bytes, offset) else { return };
        let used = used(bytes);
        let mut at = SEGMENT_HEADER;
        while at + HEADER_MAX <= SEGMENT_BYTES && at < bytes.len() {
            if let Some(header) = whole(bytes, at, number) {
                if header.kind == kind::CAP {
                    return;
                }
                self.add(&header, number, offset, at, None);
                at += header.bytes + header.length;
                continue;
            }
            let next = (at + 1..used).find(|next| whole(bytes, *next, number).is_some());
            if next.is_none() && !is_torn_or_damaged(bytes, at, number) {
                // Nothing has been written from this offset on since the segment was last reused.
                return;
            }
            let restored = restore(bytes, at, number, next);
            let end =
                next.or(restored.as_ref().map(|(header, _)| at + header.bytes + header.length));
            let end = end.unwrap_or_else(|| claimed_end(bytes, at));
            self.damage.push(Damage {
                offset: offset + at as u64,
                bytes: (end - at) as u64,
                is_restored: restored.is_some(),
                is_followed: next.is_some(),
            });
            if let Some((header, body)) = restored {
                self.add(&header, number, offset, at, Some(body));
            }
            at = end;
        }
    }

    /// The segment's number in write order, taken from its messages if its header is damaged.
    fn number_of_segment(&mut self, bytes: &[u8], offset: u64) -> Option<u64> {
        const MASK: u64 = 0x7fff_ffff_ffff_ffff;
        let (crc, rest) = bytes.split_first_chunk::<4>()?;
        let (lsn, _) = rest.split_first_chunk::<8>()?;
        let checked = bytes.get(CRC..SEGMENT_HEADER)?;
        if crc32fast::hash(checked) == !u32::from_le_bytes(*crc) {
            return Some((u64::from_le_bytes(*lsn) ^ MASK) / SEGMENT_BYTES as u64);
        }
        let header = header(bytes, SEGMENT_HEADER)?;
        let number = whole(bytes, SEGMENT_HEADER, header.segment)?.segment;
        let bytes = SEGMENT_HEADER as u64;
        self.damage.push(Damage { offset, bytes, is_restored: true, is_followed: true });
        Some(number)
    }

    fn add(&mut self, header: &Header, number: u64, offset: u64, at: usize, body: Option<Vec<u8>>) {
        let lsn = number * SEGMENT_BYTES as u64 + at as u64;
        let page = self.pages.entry(header.page).or_default();
        let body = Body {
            lsn,
            kind: header.kind,
            offset: offset + (at + header.bytes) as u64,
            length: header.length,
            restored: body,
        };
        match header.kind {
            kind::FREE => page.freed = page.freed.max(Some(lsn)),
            kind::NODE | kind::BLOB_NODE
                if page.node.as_ref().is_none_or(|node| node.lsn < lsn) =>
            {
                page.node = Some(body);
            }
            kind::LINK | kind::BLOB_LINK => page.links.push(body),
            _ => {}
        }
    }

    /// Passes the entries of all pages, those of the latest pages first.
    fn read_pages(mut self, take: &mut Take<'_>) -> io::Result<Found> {
        let mut pages: Vec<(u64, Page)> = Vec::new();
        for (_, mut page) in std::mem::take(&mut self.pages) {
            let Some(node) = page.node.as_ref().map(|node| node.lsn) else { continue };
            if page.freed.is_some_and(|freed| freed > node) {
                continue;
            }
            page.links.retain(|link| link.lsn > node);
            page.links.sort_by_key(|link| link.lsn);
            pages.push((page.links.last().map_or(node, |link| link.lsn), page));
        }
        pages.sort_by_key(|(lsn, _)| std::cmp::Reverse(*lsn));
        let mut found = Found::default();
        let mut covered = Covered::default();
        for (_, page) in pages {
            let Some(node) = self.node_of(&page)? else { continue };
            let Some(entries) = &node.entries else { continue };
            let bodies = page.node.iter().chain(&page.links);
            found.bytes += bodies.map(|body| body.length as u64).sum::<u64>();
            for (key, value) in entries {
                if !covered.has(key) {
                    take(key, value)?;
                }
            }
            covered.add(node.low, node.high);
        }
        found.holes = covered.holes();
        found.damage = self.damage;
        Ok(found)
    }

    fn node_of(&mut self, page: &Page) -> io::Result<Option<Node>> {
        let Some(body) = &page.node else { return Ok(None) };
        let Some(mut node) = self.body(body)?.and_then(|body| Node::decode(&body)) else {
            return Ok(None);
        };
        for link in &page.links {
            if let Some(link) = self.body(link)? {
                node.apply(&link);
            }
        }
        Ok(Some(node))
    }

    /// Returns the bytes of a body; `None` if they are in a separate file that cannot be read.
    fn body(&mut self, body: &Body) -> io::Result<Option<Vec<u8>>> {
        let bytes = match &body.restored {
            Some(bytes) => bytes.clone(),
            None => read_at_most(&self.file, body.offset, body.length)?,
        };
        if !matches!(body.kind, kind::BLOB_NODE | kind::BLOB_LINK) {
            return Ok(Some(bytes));
        }
        let id = bytes.first_chunk::<8>().map(|id| i64::from_le_bytes(*id));
        let blob = id.and_then(|id| fs::read(self.blobs.join(id.to_string())).ok());
        let inner = blob.as_deref().and_then(|blob| {
            let (crc, rest) = blob.split_first_chunk::<4>()?;
            (crc32fast::hash(rest) == u32::from_le_bytes(*crc)).then_some(())?;
            rest.get(1..).map(<[u8]>::to_vec)
        });
        if inner.is_none() {
            let bytes = blob.map_or(0, |blob| blob.len() as u64);
            let offset = body.offset;
            self.damage.push(Damage { offset, bytes, is_restored: false, is_followed: true });
        }
        Ok(inner)
    }
}

impl Node {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let _next = reader.number()?;
        let _merging_child = reader.number()?;
        let _is_merging = reader.byte()?;
        let prefix = usize::from(reader.byte()?);
        let low = reader.text()?.to_vec();
        let high = reader.text()?.to_vec();
        let prefix = low.get(..prefix)?.to_vec();
        let is_leaf = reader.byte()? == 0;
        let count = reader.number()?;
        let entries = if is_leaf {
            let keys: Option<Vec<&[u8]>> = (0..count).map(|_| reader.text()).collect();
            let keys = keys?.into_iter().map(|key| [&prefix, key].concat());
            let entries: Option<BTreeMap<Vec<u8>, Vec<u8>>> =
                keys.map(|key| Some((key, reader.text()?.to_vec()))).collect();
            Some(entries?)
        } else {
            None
        };
        Some(Self { low, high, prefix, entries })
    }

    fn apply(&mut self, link: &[u8]) {
        let Some(entries) = &mut self.entries else { return };
        let mut reader = Reader(link);
        let (Some(tag), key) = (reader.byte(), reader.text()) else { return };
        let Some(key) = key.map(|key| [&self.prefix, key].concat()) else { return };
        let is_own = key >= self.low && (self.high.is_empty() || key < self.high);
        match (tag, reader.text()) {
            (0, Some(value)) if is_own => {
                entries.insert(key, value.to_vec());
            }
            (1, _) => {
                entries.remove(&key);
            }
            _ => {}
        }
    }
}

/// Reads the engine's encoding.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// Reads a variable-length integer.
    fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        Some(match first {
            0..=240 => first.into(),
            241..=248 => 240 + 256 * (u64::from(first) - 241) + u64::from(self.byte()?),
            249 => 2288 + 256 * u64::from(self.byte()?) + u64::from(self.byte()?),
            250.. => {
                let (bytes, rest) = self.0.split_at_checked(usize::from(first) - 247)?;
                self.0 = rest;
                bytes.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte))
            }
        })
    }

    fn text(&mut self) -> Option<&'b [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
    }
}

/// Returns the offset of the zeros at the end of a segment, or an offset slightly after it.
fn used(bytes: &[u8]) -> usize {
    const ZEROS: [u8; 4096] = [0; 4096];
    let is_used = |chunk: &[u8]| !ZEROS.starts_with(chunk);
    let chunks = bytes.chunks(ZEROS.len()).rposition(is_used).map_or(0, |chunk| chunk + 1);
    bytes.len().min(chunks * ZEROS.len())
}

fn read_at_most(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut read = 0;
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// Returns the header at an offset if a message may begin there.
fn header(bytes: &[u8], at: usize) -> Option<Header> {
    let own = bytes.get(at..)?;
    let (crc, rest) = own.split_first_chunk::<4>()?;
    let mut reader = Reader(rest);
    let kind = reader.byte().filter(|kind| kind::ALL.contains(kind))?;
    let length = usize::try_from(reader.number()?).ok()?;
    let segment = reader.number()?;
    let page = reader.number()?;
    let bytes = own.len() - reader.0.len();
    let is_within = length <= reader.0.len();
    let crc = u32::from_le_bytes(*crc);
    is_within.then_some(Header { crc, kind, length, segment, page, bytes })
}

/// Returns the header of the message at `at` if it is an intact message of segment `number`.
fn whole(bytes: &[u8], at: usize, number: u64) -> Option<Header> {
    let header = header(bytes, at).filter(|header| header.segment == number)?;
    let message = bytes.get(at..at + header.bytes + header.length)?;
    (check_sum(message, header.bytes) == header.crc).then_some(header)
}

/// Returns the checksum of a message with a header of this size, computed over the body and then
/// over the header.
fn check_sum(message: &[u8], header: usize) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(message.get(header..).unwrap_or_default());
    hasher.update(message.get(CRC..header).unwrap_or_default());
    !hasher.finalize()
}

/// Whether a message of this segment was written at an offset with no intact message after it.
fn is_torn_or_damaged(bytes: &[u8], at: usize, number: u64) -> bool {
    header(bytes, at).is_some_and(|header| header.segment == number)
        || restore(bytes, at, number, None).is_some()
}

/// Returns the end of a message according to its header.
fn claimed_end(bytes: &[u8], at: usize) -> usize {
    header(bytes, at).map_or(bytes.len(), |header| at + header.bytes + header.length)
}

/// Returns the message at an offset and its body, with one damaged byte repaired. `next` is the
/// offset of the next intact message.
fn restore(bytes: &[u8], at: usize, number: u64, next: Option<usize>) -> Option<(Header, Vec<u8>)> {
    let ends = |header: &Header| next.is_none_or(|next| at + header.bytes + header.length == next);
    let split = |message: &[u8]| {
        let header = whole(message, 0, number).filter(ends)?;
        Some((header, message.get(header.bytes..)?.to_vec()))
    };
    if let Some(header) = header(bytes, at).filter(ends) {
        let message = bytes.get(at..at + header.bytes + header.length)?;
        if let Some(restored) = put_right(message, header.bytes).and_then(|message| split(&message))
        {
            return Some(restored);
        }
    }
    // The damaged byte may change the length of the header or of the message.
    let most = next.map_or(GUESSED_MAX, |next| next - at).min(bytes.len() - at);
    let mut message = bytes.get(at..at + most)?.to_vec();
    for place in CRC..HEADER_MAX.min(most) {
        let own = *message.get(place)?;
        for byte in (0..=u8::MAX).filter(|byte| *byte != own) {
            *message.get_mut(place)? = byte;
            let found =
                header(&message, 0).filter(|header| header.segment == number && ends(header));
            if let Some(found) = found {
                let restored = split(message.get(..found.bytes + found.length)?);
                if restored.is_some() {
                    return restored;
                }
            }
        }
        *message.get_mut(place)? = own;
    }
    None
}

/// Repairs the byte that the checksum locates; `None` unless exactly one such byte exists.
fn put_right(message: &[u8], header: usize) -> Option<Vec<u8>> {
    let stored = u32::from_le_bytes(*message.first_chunk::<4>()?);
    let mut difference = check_sum(message, header) ^ stored;
    let mut put_right = message.to_vec();
    if difference.to_le_bytes().iter().filter(|byte| **byte != 0).count() == 1 {
        put_right.get_mut(..CRC)?.copy_from_slice(&(stored ^ difference).to_le_bytes());
        return Some(put_right);
    }
    // All bytes, in the reverse of the order in which the checksum covers them.
    let body = (header..message.len()).rev();
    let places = (CRC..header).rev().chain(body);
    let mut found = None;
    for place in places {
        let (before, byte) = step_back(difference);
        if before == u32::from(byte) {
            // A change to this byte explains the difference.
            if found.replace((place, byte)).is_some() {
                return None;
            }
        }
        difference = before;
    }
    let (place, byte) = found?;
    *put_right.get_mut(place)? ^= byte;
    Some(put_right)
}

/// The CRC-32 (IEEE) of each byte.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index: u32 = 0;
    while index < 256 {
        let mut crc = index;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { 0xedb8_8320 ^ (crc >> 1) } else { crc >> 1 };
            bit += 1;
        }
        #[expect(clippy::indexing_slicing, reason = "below 256")]
        {
            table[index as usize] = crc;
        }
        index += 1;
    }
    table
};

/// Returns the state of a checksum before it processed a zero byte, and the table index that the
/// step used.
fn step_back(state: u32) -> (u32, u8) {
    let top = state >> 24;
    let index = TABLE.iter().position(|entry| entry >> 24 == top).unwrap_or_default();
    let entry = TABLE.get(index).copied().unwrap_or_default();
    let index = u8::try_from(index).unwrap_or_default();
    (((state ^ entry) << 8) | u32::from(index), index)
}

#[cfg(test)]
#[path = "tree_file_tests.rs"]
mod tests;
