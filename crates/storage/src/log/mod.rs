//! The write-ahead log: each group of commits is one checksummed, numbered record, which is durable
//! before any of its writes become visible.
//!
//! The log consists of segment files in `store/log`, each named by the number of its first record.
//! The writer appends with one `pwrite` into space that was filled with zeros in advance, so that
//! `fdatasync` need not update the file's length. Every start of the service begins a new segment.
//! The number of a segment's first record proves where the previous segment ends. A failed write or
//! sync is final: the caller must not use the log again.

pub(crate) mod follow;
pub(crate) mod form;
pub(crate) mod replay;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use self::follow::ArchiveState;
use self::form::{HEADER_BYTES, Header, StoreId};
use super::data_dir;
use super::memtable::Rows;
use orrery_domain::time::Timestamp;
use orrery_runtime::random_bytes;
use orrery_runtime::shortage::with_descriptor;

/// The log's folder within the store's folder.
pub(crate) const FOLDER: &str = "log";
/// The extension of segment files.
const SUFFIX: &str = ".log";
/// The extension of a segment that is being created. The segment is renamed once it is durable.
const HALF: &str = "half";
/// The size of a segment, unless a single record needs more.
pub(crate) const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// The number of bytes filled with zeros in advance: in the first step, and the maximum per step.
const ZEROS_FIRST: u64 = 256 * 1024;
const ZEROS_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// Maximum old segments kept for reuse. Old segments need not be filled with zeros, because their
/// blocks are already allocated. A checkpoint that has fallen behind frees this many segments at
/// once.
const SPARES: usize = 4;

/// The segments of an open log, shared by the writer, which adds them, and the checkpoint, which
/// removes them.
#[derive(Debug)]
pub(crate) struct Segments {
    folder: PathBuf,
    held: Mutex<Held>,
    /// Locked while the archive position is written.
    noting: Mutex<()>,
}

#[derive(Debug, Default)]
struct Held {
    /// The first record's number and the size of each segment, oldest first. The last segment is
    /// being written.
    segments: Vec<(u64, u64)>,
    spares: Vec<PathBuf>,
    archive: ArchiveState,
}

impl Segments {
    /// Creates the list of existing segments, oldest first.
    pub(crate) fn new(folder: PathBuf, segments: Vec<(u64, u64)>) -> Self {
        let archive = ArchiveState::of(&folder);
        let held = Held { segments, spares: Vec::new(), archive };
        Self { folder, held: Mutex::new(held), noting: Mutex::default() }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Total bytes of all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.held().segments.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Removes the segments that contain no record after `applied`, except the last segment and the
    /// segments that a chain of backups still needs. If `keep_spares` is set, keeps some of the
    /// files for reuse.
    pub(crate) fn remove_through(&self, applied: u64, keep_spares: bool) -> io::Result<()> {
        self.enforce_archive_budget();
        let mut held = self.held();
        let kept = held.archive.position.as_ref().map_or(u64::MAX, |kept| kept.through);
        let applied = applied.min(kept);
        let mut removed = false;
        while let [(first, bytes), (next, _), ..] = held.segments[..] {
            if next > applied.saturating_add(1) {
                break;
            }
            let path = path_of(&self.folder, first);
            if keep_spares && bytes == SEGMENT_BYTES && held.spares.len() < SPARES {
                let spare = self.folder.join(format!("{first:016x}.spare"));
                fs::rename(&path, &spare)?;
                held.spares.push(spare);
            } else {
                fs::remove_file(&path)?;
            }
            held.segments.remove(0);
            removed = true;
        }
        drop(held);
        if removed { sync_folder(&self.folder) } else { Ok(()) }
    }
}

/// The path of the segment whose first record has this number.
pub(crate) fn path_of(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{first:016x}{SUFFIX}"))
}

/// The first record number in a segment's file name; `None` for other files.
pub(crate) fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

/// Removes incomplete and spare segments, which contain no valid records.
pub(crate) fn remove_leftovers(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("spare" | HALF)) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// The log, open for appending.
#[derive(Debug)]
pub(crate) struct Log {
    store: StoreId,
    segments: Arc<Segments>,
    file: File,
    nonce: u32,
    /// The offset of the next record, the end of the filled part, and the maximum size.
    at: u64,
    filled: u64,
    capacity: u64,
    /// The number of the last record.
    number: u64,
    /// Bytes written since the writer last reset this counter.
    pub since_freeze: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// Starts a segment after record `number`.
    pub(crate) fn begin(
        segments: Arc<Segments>,
        store: StoreId,
        number: u64,
        checkpoint: u64,
    ) -> io::Result<Self> {
        let made = make(&segments, store, number + 1, checkpoint, SEGMENT_BYTES)?;
        let Made { file, nonce, filled } = made;
        Ok(Self {
            store,
            segments,
            file,
            nonce,
            at: HEADER_BYTES,
            filled,
            capacity: SEGMENT_BYTES,
            number,
            since_freeze: 0,
            buffer: Vec::new(),
        })
    }

    /// The number of the last record.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The segments, shared with the checkpoint.
    pub(crate) const fn segments(&self) -> &Arc<Segments> {
        &self.segments
    }

    /// Writes `rows` as the next record. The record is durable once [`Log::sync`] has returned.
    pub(crate) fn write(
        &mut self,
        rows: &Rows,
        checkpoint: u64,
        now: Timestamp,
    ) -> io::Result<u64> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let number = self.number + 1;
        let estimate = form::record_bytes(rows);
        if self.at + estimate > self.capacity && self.at > HEADER_BYTES {
            self.roll(checkpoint, estimate)?;
        }
        form::encode(&mut buffer, self.nonce, number, checkpoint, now, rows)?;
        let end = self.at + buffer.len() as u64;
        self.fill_to(end)?;
        self.file.write_all_at(&buffer, self.at)?;
        self.since_freeze += buffer.len() as u64;
        (self.at, self.number) = (end, number);
        buffer.clear();
        if buffer.capacity() > 4 << 20 {
            buffer = Vec::new();
        }
        self.buffer = buffer;
        Ok(number)
    }

    /// Syncs the written records.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Starts the next segment.
    pub(crate) fn roll(&mut self, checkpoint: u64, record: u64) -> io::Result<()> {
        let capacity = SEGMENT_BYTES.max(HEADER_BYTES + record);
        let made = make(&self.segments, self.store, self.number + 1, checkpoint, capacity)?;
        let Made { file, nonce, filled } = made;
        (self.file, self.nonce, self.filled) = (file, nonce, filled);
        (self.at, self.capacity) = (HEADER_BYTES, capacity);
        Ok(())
    }

    /// Whether the segment contains no records.
    pub(crate) const fn is_fresh(&self) -> bool {
        self.at == HEADER_BYTES
    }

    /// Fills the file with zeros up to `end` or further, in growing steps.
    fn fill_to(&mut self, end: u64) -> io::Result<()> {
        if end <= self.filled {
            return Ok(());
        }
        let step = self.filled.clamp(ZEROS_FIRST, ZEROS_BYTES_MAX);
        let until = (self.filled + step).min(self.capacity).max(end);
        write_zeros(&self.file, end.max(self.filled), until)?;
        self.filled = until;
        let mut held = self.segments.held();
        if let Some((_, bytes)) = held.segments.last_mut() {
            *bytes = until;
        }
        Ok(())
    }
}

struct Made {
    file: File,
    nonce: u32,
    filled: u64,
}

/// Creates a segment, makes it durable under its final name, and then registers it.
fn make(
    segments: &Segments,
    store: StoreId,
    first: u64,
    checkpoint: u64,
    capacity: u64,
) -> io::Result<Made> {
    let folder = &segments.folder;
    let nonce = u32::from_be_bytes(random_bytes().map_err(io::Error::other)?);
    let header = Header { store, nonce, first, checkpoint };
    let half = folder.join(format!("{first:016x}.{HALF}"));
    let spare = if capacity == SEGMENT_BYTES { segments.held().spares.pop() } else { None };
    if let Some(spare) = &spare {
        fs::rename(spare, &half)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = with_descriptor(|| options.open(&half))?;
    file.write_all_at(&header.encode(), 0)?;
    let filled = if spare.is_some() {
        SEGMENT_BYTES
    } else {
        let filled = ZEROS_FIRST.min(capacity);
        write_zeros(&file, HEADER_BYTES, filled)?;
        filled
    };
    file.sync_all()?;
    fs::rename(&half, path_of(folder, first))?;
    sync_folder(folder)?;
    let mut held = segments.held();
    held.segments.retain(|(held, _)| *held != first);
    held.segments.push((first, filled));
    Ok(Made { file, nonce, filled })
}

fn write_zeros(file: &File, mut from: u64, to: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    while from < to {
        let length = usize::try_from(to - from).unwrap_or(ZEROS.len()).min(ZEROS.len());
        let zeros = ZEROS.get(..length).unwrap_or(&ZEROS);
        file.write_all_at(zeros, from)?;
        from += length as u64;
    }
    Ok(())
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    data_dir::sync(folder).map_err(io::Error::other)
}

#[cfg(test)]
mod tests;
