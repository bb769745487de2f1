//! The folder of a chain: the files of the log archive, each named after its first and last record,
//! and a note for each scheduled backup that the chain continues.
//!
//! A file is renamed to its final name once it is complete and durable. A file is deleted when
//! every remaining backup contains all of the file's records. The notes show which records a backup
//! contains, so no backup has to be read to delete old files.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::read::{self, Entry};
use super::restore::make;
use super::{Error, Keys, Point, Range, Summary, damaged_content, encryption};
use orrery_domain::time::Timestamp;
use orrery_runtime::regular_file;
use orrery_storage::Group;
use orrery_storage::export::{read_change, write_change};

/// The folder of all chains, inside the folder of backups.
pub const LOG: &str = "log";
const FILE: &str = ".log";
const BASE: &str = ".base";
/// Maximum number of rows accepted when a group is read back.
const ROWS_MAX: u32 = 1 << 27;

/// The contents of a chain's folder.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// The files, oldest first.
    pub files: Vec<Named>,
    /// The last record and the name of each backup that the chain continues.
    pub bases: Vec<(u64, String)>,
}

/// A file of the log archive, described by its file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub first: u64,
    pub last: u64,
    /// The time at which the file's last record was written.
    pub last_at: Timestamp,
    pub path: PathBuf,
}

/// Returns the folder of a chain.
pub(crate) fn folder_of(log: &Path, chain: Uuid) -> PathBuf {
    log.join(chain.to_string())
}

impl Named {
    fn of(name: &str, path: PathBuf) -> Option<Self> {
        let mut parts = name.strip_suffix(FILE)?.split('-');
        let first = parts.next()?.parse().ok()?;
        let last = parts.next()?.parse().ok()?;
        let last_at = Timestamp::from_micros(parts.next()?.parse().ok()?);
        Some(Self { first, last, last_at, path })
    }
}

/// Returns the name of a file with these records.
pub(crate) fn name_of(range: &Range) -> String {
    let Range { first, last, last_at, .. } = range;
    format!("{first:020}-{last:020}-{}{FILE}", last_at.micros())
}

impl Listed {
    /// Lists `folder`. Returns an empty list if the folder does not exist.
    pub(crate) fn of(folder: &Path) -> io::Result<Self> {
        let mut listed = Self::default();
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(listed),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            if let Some(file) = Named::of(name, entry.path()) {
                listed.files.push(file);
            } else if let Some(record) = name.strip_suffix(BASE).and_then(|it| it.parse().ok()) {
                listed.bases.push((record, regular_file::read_to_string(&entry.path())?));
            }
        }
        listed.files.sort_by_key(|file| (file.first, file.last));
        listed.bases.sort();
        Ok(listed)
    }

    /// Returns the last record that any file or backup contains; 0 if there are no files and no
    /// backups.
    pub(crate) fn reach(&self) -> u64 {
        let files = self.files.last().map_or(0, |file| file.last);
        files.max(self.bases.last().map_or(0, |(record, _)| *record))
    }
}

/// Writes a note that the chain continues the scheduled backup `name` in `folder`.
///
/// # Errors
/// If the disk fails.
pub fn note_base(folder: &Path, point: &Point, name: &str) -> io::Result<()> {
    let Some(chain) = point.chain else { return Ok(()) };
    let log = folder.join(LOG);
    let chain = folder_of(&log, chain);
    make(&chain)?;
    let path = chain.join(format!("{:020}{BASE}", point.record));
    let mut file = File::create(&path)?;
    file.write_all(name.as_bytes())?;
    file.sync_all()?;
    [&chain, &log, folder].into_iter().try_for_each(|folder| File::open(folder)?.sync_all())
}

/// Returns whether a backup that the chain continues still exists in `folder`.
///
/// # Errors
/// If the disk cannot be read.
pub fn has_base(folder: &Path, chain: Uuid) -> io::Result<bool> {
    let listed = Listed::of(&folder_of(&folder.join(LOG), chain))?;
    Ok(listed.bases.iter().any(|(_, name)| folder.join(name).is_file()))
}

/// Deletes the files of the log archive that no scheduled backup in `folder` needs any more. The
/// files of the chain `current` are kept even if the chain has no backup yet. Returns the number of
/// deleted files.
///
/// # Errors
/// If the disk fails. Even then, the remaining log has no gap.
pub fn prune(folder: &Path, current: Option<Uuid>) -> io::Result<usize> {
    let chains = match fs::read_dir(folder.join(LOG)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        chains => chains?,
    };
    let mut deleted = 0;
    for chain in chains {
        let path = chain?.path();
        let name = path.file_name().and_then(|name| name.to_str()?.parse::<Uuid>().ok());
        let Some(chain) = name.filter(|_| path.is_dir()) else { continue };
        let listed = Listed::of(&path)?;
        let (left, stale): (Vec<_>, Vec<_>) =
            listed.bases.into_iter().partition(|(_, name)| folder.join(name).is_file());
        for (record, _) in stale {
            fs::remove_file(path.join(format!("{record:020}{BASE}")))?;
        }
        let needed_behind = match left.first() {
            Some((record, _)) => *record,
            None if current == Some(chain) => 0,
            None => u64::MAX,
        };
        // Deletes the oldest files first, so that the remaining log never has a gap.
        for file in listed.files.iter().filter(|file| file.last <= needed_behind) {
            fs::remove_file(&file.path)?;
            deleted += 1;
        }
        if left.is_empty() && current != Some(chain) {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(deleted)
}

/// Writes a group: its number, its time, its number of rows, and the rows.
pub(crate) fn write_group(out: &mut dyn Write, group: Group) -> io::Result<()> {
    out.write_all(&group.number.to_be_bytes())?;
    out.write_all(&group.time.micros().to_be_bytes())?;
    let rows = u32::try_from(group.rows.len()).map_err(io::Error::other)?;
    out.write_all(&rows.to_be_bytes())?;
    group.rows.into_iter().try_for_each(|change| write_change(out, &change))
}

/// Reads the next group; returns `None` at the end.
pub(crate) fn read_group(from: &mut dyn Read) -> io::Result<Option<Group>> {
    let mut head = Vec::with_capacity(20);
    from.take(20).read_to_end(&mut head)?;
    if head.is_empty() {
        return Ok(None);
    }
    let odd = || io::Error::new(io::ErrorKind::InvalidData, "a group of commits is cut off");
    let (number, rest) = head.split_first_chunk().ok_or_else(odd)?;
    let (time, rest) = rest.split_first_chunk().ok_or_else(odd)?;
    let (count, _) = rest.split_first_chunk().ok_or_else(odd)?;
    let count = u32::from_be_bytes(*count);
    let mut group = Group {
        number: u64::from_be_bytes(*number),
        time: Timestamp::from_micros(i64::from_be_bytes(*time)),
        rows: std::collections::BTreeMap::new(),
    };
    if count > ROWS_MAX {
        return Err(odd());
    }
    for _ in 0..count {
        let (key, value) = read_change(from)?.ok_or_else(odd)?;
        group.rows.insert(key, value);
    }
    Ok(Some(group))
}

/// The result of checking a file of the log archive.
#[derive(Debug)]
pub(crate) struct Checked {
    pub range: Range,
    /// The time of the latest commit after the record `after`; the minimum time if there is no such
    /// commit.
    pub latest: Timestamp,
    /// Size in bytes before compression.
    pub bytes: u64,
    /// Items that were missing or damaged when the file was written.
    pub damaged: Vec<String>,
}

/// Reads an entire file of the log archive and checks every checksum, every commit, and that the
/// commit numbers have no gap. Only commits after the record `after` count for the latest time.
pub(crate) fn check_file(
    path: &Path,
    keys: &Keys,
    after: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<Checked, Error> {
    let mut numbers = Vec::new();
    let mut latest = Timestamp::from_micros(i64::MIN);
    let mut bytes = 0;
    let mut other = Vec::new();
    let summary = read_file(path, keys, &mut |entry, content| {
        match entry {
            Entry::Records => {
                let mut content = BufReader::new(content);
                while let Some(group) = read_group(&mut content)? {
                    numbers.push(group.number);
                    if group.number > after {
                        latest = latest.max(group.time);
                    }
                }
            }
            Entry::Content(digest) => {
                let (read, is_whole) = read::check_content(*digest, content)?;
                bytes += read;
                if !is_whole {
                    other.push(damaged_content(*digest));
                }
            }
            Entry::Payload(_) => bytes += io::copy(content, &mut io::sink())?,
            Entry::Rows | Entry::Changes | Entry::Seal | Entry::NextSeal | Entry::Tls(_) => {
                return Err(foreign());
            }
        }
        progress(bytes);
        Ok(())
    })?;
    let shown = path.display();
    let damaged = |what: &str| Error::Damaged(format!("{shown}: {what}"));
    let range = summary.range.ok_or_else(|| damaged("it is not a file of the log archive"))?;
    if !numbers.iter().copied().eq(range.first..=range.last) {
        return Err(damaged("some of its commits are missing"));
    }
    if other.iter().any(|damage| !summary.damaged.contains(damage)) {
        return Err(damaged("a file in it does not match its digest"));
    }
    Ok(Checked { range, latest, bytes: summary.bytes, damaged: summary.damaged })
}

/// Passes every entry of a file of the log archive to `visit`, like [`read::read`].
pub(crate) fn read_file(
    path: &Path,
    keys: &Keys,
    visit: &mut dyn FnMut(&Entry, &mut dyn Read) -> io::Result<()>,
) -> Result<Summary, Error> {
    let shown = path.display();
    let file = regular_file::open(path)
        .map_err(|error| Error::Damaged(format!("{shown} cannot be read: {error}")))?;
    let named = |error| match error {
        Error::Damaged(what) => Error::Damaged(format!("{shown}: {what}")),
        Error::Refused(what) => Error::Refused(format!("{shown}: {what}")),
        Error::Chain(_) | Error::Disk(_) | Error::Storage(_) | Error::Files(_) => error,
    };
    read::read(encryption::open(BufReader::new(file), keys).map_err(named)?, visit).map_err(named)
}

/// Returns the error for an unexpected entry.
pub(crate) fn foreign() -> io::Error {
    io::Error::other("it is not part of a log archive")
}
