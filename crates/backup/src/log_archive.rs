//! Archives the log: writes the commits since the last run, together with the payloads and files
//! that they refer to, as the chain's next file.
//!
//! The store is not scanned, so the cost depends only on the amount of new data. A file is written
//! under a temporary name, synced, read back, renamed, and only then marked as archived. Until
//! then, the store keeps the file's commits in its log, and also keeps the payloads and files that
//! these commits refer to. A crash before the mark leaves a complete file without a mark; the next
//! run adopts the file if the file's last commit matches the store's commit with the same number.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::chain::{Listed, Named, check_file, folder_of, name_of, write_group};
use super::restore::{make, sync};
use super::write::{Archive, CHUNK};
use super::{Encryption, Error, RECORDS, Range, Source, Spared, encryption};
use orrery_domain::file::Digest;
use orrery_domain::ids::PayloadId;
use orrery_domain::time::Timestamp;
use orrery_records::files;
#[cfg(test)]
use orrery_storage::faults::Point;
use orrery_storage::{ArchivePosition, Claim, Group, Store, claim_of, claimed_by, payload_in};

/// Maximum amount of log per file, in bytes; the rest is written to the next file.
const FILE_BYTES: u64 = 64 * 1024 * 1024;
/// The temporary name of a file that is being written.
const PART: &str = "next.part";

/// A file written to the log archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub first: u64,
    pub last: u64,
    /// Compressed size in bytes.
    pub bytes: u64,
    /// Number of payloads and files that were missing or damaged.
    pub damaged: usize,
}

/// Writes the part of the log that the chain does not contain yet, up to [`FILE_BYTES`], as the
/// chain's next file in `log`. Returns `None` if the chain already contains the entire log, or if
/// there is no chain. Blocks; call it on its own thread.
///
/// # Errors
/// [`Error::Chain`] if the chain cannot be continued and must be abandoned. After other errors, the
/// next run may succeed.
pub fn archive_log(
    place: &Source,
    log: &Path,
    encryption: &Encryption,
    reserve: Option<u64>,
    now: Timestamp,
) -> Result<Option<Part>, Error> {
    let store = &place.store;
    let Some(kept) = store.archive_position() else { return Ok(None) };
    let folder = folder_of(log, kept.chain);
    let listed = Listed::of(&folder)?;
    let through = take_up(store, &kept, &listed)?;
    let until = store.last_record();
    if until <= through {
        return Ok(None);
    }
    if !folder.is_dir() {
        make(&folder)?;
        folder.ancestors().skip(1).take(2).try_for_each(sync)?;
    }
    let next = Next { place, kept: &kept, after: through, until };
    let part = folder.join(PART);
    #[cfg(test)]
    store.faults().hit(Point::Archive);
    let written = next.write(&part, encryption, reserve, now);
    let (range, damaged) = written.inspect_err(|_failed| {
        let _written_over_next_time = fs::remove_file(&part);
    })?;
    let first = range.first;
    let last = range.last;
    let path = folder.join(name_of(&range));
    #[cfg(test)]
    store.faults().hit(Point::ArchiveName);
    fs::rename(&part, &path)?;
    sync(&folder)?;
    #[cfg(test)]
    store.faults().hit(Point::ArchiveNote);
    store.mark_archived(kept.chain, last)?;
    let bytes = fs::metadata(&path)?.len();
    Ok(Some(Part { first, last, bytes, damaged }))
}

/// Returns the last record in the chain. Adopts a file that was not marked as archived because of a
/// crash.
fn take_up(store: &Store, kept: &ArchivePosition, listed: &Listed) -> Result<u64, Error> {
    let through = kept.through;
    let reach = listed.reach().max(kept.from);
    if reach < through {
        return Err(Error::Chain(format!(
            "the commits {} to {through} are missing from its folder",
            reach.saturating_add(1)
        )));
    }
    let ahead: Vec<&Named> = listed.files.iter().filter(|file| file.last > through).collect();
    match ahead[..] {
        [] => Ok(through),
        [file] if file.first == through.saturating_add(1) => {
            // The file has its final name, so it is complete; only the mark is missing.
            if !is_ours(store, file) {
                return Err(other_history(file));
            }
            store.mark_archived(kept.chain, file.last)?;
            Ok(file.last)
        }
        [file, ..] => Err(other_history(file)),
    }
}

fn other_history(file: &Named) -> Error {
    Error::Chain(format!(
        "{} contains commits that are missing from this store: the store was replaced by an older \
         copy",
        file.path.display()
    ))
}

/// Returns whether the last record of a file matches the store's record with the same number.
fn is_ours(store: &Store, file: &Named) -> bool {
    if file.last > store.last_record() {
        return false;
    }
    let mut time = None;
    let before = file.last.saturating_sub(1);
    let read = store.read_log(before, file.last, 1, &mut |group| {
        time = Some(group.time);
        Ok(())
    });
    read.is_ok() && time == Some(file.last_at)
}

/// The contents of the next file.
struct Next<'a> {
    place: &'a Source,
    kept: &'a ArchivePosition,
    after: u64,
    until: u64,
}

/// Payloads and files that the commits refer to.
#[derive(Default)]
struct Referred {
    payloads: BTreeMap<PayloadId, Option<Claim>>,
    contents: HashSet<Digest>,
}

impl Referred {
    fn note(&mut self, group: &Group) {
        for (key, value) in &group.rows {
            let Some(value) = value else { continue };
            if let Some(id) = claimed_by(key) {
                self.payloads.insert(id, claim_of(value));
            } else if let Some(digest) = files::of_reference(key) {
                self.contents.insert(digest);
            }
        }
    }
}

impl Next<'_> {
    /// Writes a file and reads it back. Returns the range of its records, and the number of damaged
    /// items.
    fn write(
        &self,
        part: &Path,
        encryption: &Encryption,
        reserve: Option<u64>,
        now: Timestamp,
    ) -> Result<(Range, usize), Error> {
        let out = encryption.writer(create(part, reserve)?)?;
        let mut nothing = |_| {};
        let (out, range, damaged) = self.fill(Archive::begin(out, now, &mut nothing)?)?;
        let (out, digest) = out.finish()?;
        out.into_inner().into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        // A file that cannot be read back does not count as archived.
        let is_good = match encryption.own_keys() {
            Some(keys) => check_file(part, &keys, self.after, &mut |_| {})?.range == range,
            None => encryption::has_digest(File::open(part)?, digest)?,
        };
        if is_good { Ok((range, damaged)) } else { Err(encryption::not_written()) }
    }

    fn fill<W: Write>(&self, mut archive: Archive<'_, W>) -> Result<(W, Range, usize), Error> {
        let store = &self.place.store;
        let now = Timestamp::default();
        let mut referred = Referred::default();
        let mut last_at = now;
        let mut chunk = Vec::new();
        let mut number = 0;
        let mut flush = |archive: &mut Archive<'_, W>, chunk: &mut Vec<u8>| {
            let name = format!("{RECORDS}{number:08}");
            number += 1;
            archive.add_bytes(&name, &std::mem::take(chunk))
        };
        let last = store.read_log(self.after, self.until, FILE_BYTES, &mut |group| {
            referred.note(&group);
            last_at = group.time;
            write_group(&mut chunk, group)?;
            if chunk.len() >= CHUNK { flush(&mut archive, &mut chunk) } else { Ok(()) }
        });
        let last = last.map_err(|error| {
            if error.kind() == io::ErrorKind::InvalidData {
                return Error::Chain(error.to_string());
            }
            Error::Disk(error)
        })?;
        if !chunk.is_empty() {
            flush(&mut archive, &mut chunk)?;
        }
        for (id, claim) in referred.payloads {
            archive.add_payload(id, claim, &payload_in(store.folder(), id), store)?;
        }
        let files = &self.place.files;
        for digest in referred.contents {
            archive.add_content(digest, &files.path_or_trash(digest), files)?;
        }
        let chain = self.kept.chain;
        let first = self.after.saturating_add(1);
        let range = Range { store: store.id(), chain, first, last, last_at };
        archive.summary.range = Some(range.clone());
        let (out, summary) = archive.end()?;
        Ok((out, range, summary.damaged.len()))
    }
}

/// Creates a file of the log archive.
fn create(part: &Path, reserve: Option<u64>) -> io::Result<Spared<BufWriter<File>>> {
    let file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(part)?;
    let folder: PathBuf = part.parent().unwrap_or(part).to_path_buf();
    Spared::new(BufWriter::new(file), &folder, reserve, 0)
}
