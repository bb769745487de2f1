//! Writes a backup: rows, rows that changed during the export, files, and the end entry.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::{
    CHANGES, DAMAGED_MAX, END, Error, FILES, FORMAT, HEAD, Head, PAYLOADS, Point, ROWS, SEAL,
    SEAL_NEXT, Sum, Summary, TLS, damaged_content,
};
use orrery_domain::file::Digest;
use orrery_domain::ids::PayloadId;
use orrery_domain::time::Timestamp;
use orrery_records::files::{self, Files};
use orrery_runtime::regular_file;
use orrery_storage::export::{Change, write_change};
use orrery_storage::{self as storage, Claim, Store};

/// Size of the rows in each entry, in bytes.
pub(super) const CHUNK: usize = 4 * 1024 * 1024;
/// zstd's default level, a compromise between speed and size.
const LEVEL: i32 = 3;

/// The source of a backup.
#[derive(Debug, Clone)]
pub struct Source {
    /// The store, whose folder also contains the seal key and the self-signed authority.
    pub store: Store,
    pub files: Files,
}

/// Progress of a backup.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    pub rows: u64,
    pub files: u64,
    /// Bytes processed so far, before compression.
    pub bytes: u64,
}

/// Writes a backup of a consistent state while the service runs. Blocks; call it on its own thread.
/// The caller must prevent the files of `place` from being deleted in the meantime. Returns `out`,
/// and a summary of the backup.
///
/// # Errors
/// [`Error`]; the output is then not a valid backup.
pub fn write<W: Write>(
    place: &Source,
    now: Timestamp,
    out: W,
    progress: &mut dyn FnMut(Progress),
) -> Result<(W, Summary), Error> {
    let pin = place.store.pin_payloads();
    let mut archive = Archive::begin(out, now, progress)?;
    let mut rows = Rows { archive: &mut archive, chunk: Vec::new(), number: 0, is_behind: false };
    let mut last = None;
    let mut refers_to_contents = false;
    let exported = place.store.export(&mut |change| {
        // Rows arrive in key order, followed by rows written during the export. The first row that
        // is out of key order is therefore the first row written during the export.
        let is_next = last.as_ref().is_none_or(|last| change.0 > *last);
        rows.is_behind |= !is_next || change.1.is_none();
        last = Some(change.0.clone());
        refers_to_contents |= change.1.is_some() && files::of_reference(&change.0).is_some();
        rows.add(&change)
    })?;
    rows.flush()?;
    archive.summary.point = Some(Point {
        store: place.store.id(),
        chain: place
            .store
            .archive_position()
            .filter(|kept| kept.from <= exported.record)
            .map(|kept| kept.chain),
        record: exported.record,
        at: exported.at,
    });
    exported.claims.each(&mut |id, claim| {
        archive.add_payload(id, claim, &place.store.payload_path(id), &place.store)
    })?;
    add_contents(&mut archive, &place.files, refers_to_contents)?;
    let folder = place.store.folder();
    archive.add_if_there(SEAL, &folder.join(SEAL))?;
    archive.add_if_there(SEAL_NEXT, &folder.join(SEAL_NEXT))?;
    for (name, path) in plain_files(&folder.join("tls"))? {
        archive.add_if_there(&format!("{TLS}{name}"), &path)?;
    }
    drop(pin);
    archive.end()
}

/// Adds all file contents. If `is_needed`, the store refers to some of them, so the folder must
/// exist both before and after the listing.
fn add_contents<W: Write>(
    archive: &mut Archive<'_, W>,
    files: &Files,
    is_needed: bool,
) -> Result<(), Error> {
    if is_needed {
        files.check_in_place()?;
    }
    files.each_blob(&mut |digest, path| archive.add_content(digest, &path, files))?;
    if is_needed {
        files.check_in_place()?;
    }
    Ok(())
}

/// Returns the files in a folder by name; none if the folder does not exist.
fn plain_files(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let (Ok(name), true) = (entry.file_name().into_string(), entry.file_type()?.is_file()) {
            found.push((name, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// Writes rows into entries.
struct Rows<'a, 'p, W: Write> {
    archive: &'a mut Archive<'p, W>,
    chunk: Vec<u8>,
    number: u64,
    /// Whether the writer has reached the rows that changed during the export.
    is_behind: bool,
}

impl<W: Write> Rows<'_, '_, W> {
    fn add(&mut self, change: &Change) -> io::Result<()> {
        if self.is_behind && self.archive.summary.changes == 0 {
            self.flush()?;
            self.number = 0;
        }
        let summary = &mut self.archive.summary;
        if self.is_behind {
            summary.changes += 1;
        } else {
            summary.rows += 1;
        }
        write_change(&mut self.chunk, change)?;
        if self.chunk.len() >= CHUNK { self.flush_as(self.is_behind) } else { Ok(()) }
    }

    /// Writes the buffered rows as another entry of the current kind.
    fn flush(&mut self) -> io::Result<()> {
        self.flush_as(self.archive.summary.changes > 0)
    }

    fn flush_as(&mut self, is_behind: bool) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let folder = if is_behind { CHANGES } else { ROWS };
        let name = format!("{folder}{:08}", self.number);
        self.number += 1;
        let chunk = std::mem::take(&mut self.chunk);
        self.archive.add_bytes(&name, &chunk)
    }
}

/// The archive, hashed as it is written.
pub(super) struct Archive<'p, W: Write> {
    tar: tar::Builder<zstd::Encoder<'static, W>>,
    sum: Sum,
    pub summary: Summary,
    progress: &'p mut dyn FnMut(Progress),
}

impl<'p, W: Write> Archive<'p, W> {
    /// Starts an archive with the head entry.
    pub(crate) fn begin(
        out: W,
        now: Timestamp,
        progress: &'p mut dyn FnMut(Progress),
    ) -> io::Result<Self> {
        let mut encoder = zstd::Encoder::new(out, LEVEL)?;
        encoder.include_checksum(true)?;
        let head = Head {
            format: FORMAT,
            store_format: storage::FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            created_at: now.to_string(),
        };
        let sum = Sum::default();
        let mut summary = Summary::default();
        summary.version.clone_from(&head.version);
        summary.created_at.clone_from(&head.created_at);
        let mut archive = Self { tar: tar::Builder::new(encoder), sum, summary, progress };
        archive.add_bytes(HEAD, &serde_json::to_vec(&head)?)?;
        Ok(archive)
    }

    pub(crate) fn add_bytes(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.add(name, bytes.len() as u64, bytes)
    }

    fn add_file(&mut self, name: &str, path: &Path) -> io::Result<()> {
        let file = regular_file::open(path)?;
        let length = file.metadata()?.len();
        self.add(name, length, file)
    }

    /// Adds a payload of `store`. A damaged payload is added and also listed as damaged; a missing
    /// payload is only listed. Fails while the folder of payload files is missing.
    pub(crate) fn add_payload(
        &mut self,
        id: PayloadId,
        claim: Option<Claim>,
        path: &Path,
        store: &Store,
    ) -> io::Result<()> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                let error = damage(error, || store.check_payload_lost(path))?;
                return self.list(format!("the payload {id} cannot be read: {error}"));
            }
        };
        if claim.is_some_and(|claim| !claim.fits(&bytes)) {
            self.list(format!("the payload {id} differs from what was written"))?;
        }
        self.summary.payloads += 1;
        self.add_bytes(&format!("{PAYLOADS}{id}"), &bytes)
    }

    /// Adds file contents from `files`. Contents that cannot be read completely are padded with
    /// zeros and listed as damaged. Fails while the folder of file contents is missing.
    pub(crate) fn add_content(
        &mut self,
        digest: Digest,
        path: &Path,
        files: &Files,
    ) -> io::Result<()> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) => {
                let error = damage(error, || files.check_lost(digest))?;
                return self.list(format!("the content {digest} cannot be read: {error}"));
            }
        };
        let length = file.metadata()?.len();
        let mut content = Content { file, left: length, hash: Sha256::new() };
        self.add(&format!("{FILES}{digest}"), length, &mut content)?;
        self.summary.files += 1;
        if content.hash.finalize()[..] == digest.0[..] {
            return Ok(());
        }
        self.list(damaged_content(digest))
    }

    fn list(&mut self, sentence: String) -> io::Result<()> {
        tracing::error!("backup lists damage: {sentence}");
        if self.summary.damaged.len() >= DAMAGED_MAX {
            return Err(io::Error::other(format!(
                "more than {DAMAGED_MAX} payloads and files are damaged: run `orrery verify`"
            )));
        }
        self.summary.damaged.push(sentence);
        Ok(())
    }

    fn add_if_there(&mut self, name: &str, path: &Path) -> io::Result<()> {
        match self.add_file(name, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn add(&mut self, name: &str, length: u64, content: impl Read) -> io::Result<()> {
        self.sum.entry(name, length);
        let mut header = tar::Header::new_ustar();
        header.set_size(length);
        header.set_mode(0o600);
        let summed = Summed { content: content.take(length), sum: &mut self.sum };
        self.tar.append_data(&mut header, name, summed)?;
        let Summary { rows, changes, payloads, files, .. } = self.summary;
        let rows = rows + changes;
        let files = payloads + files;
        let bytes = self.sum.bytes;
        (self.progress)(Progress { rows, files, bytes });
        Ok(())
    }

    pub(crate) fn end(mut self) -> Result<(W, Summary), Error> {
        self.summary.bytes = self.sum.bytes;
        self.summary.sha256 = self.sum.hex();
        let end = serde_json::to_vec(&self.summary).map_err(io::Error::from)?;
        self.add_bytes(END, &end)?;
        Ok((self.tar.into_inner()?.finish()?, self.summary))
    }
}

/// Returns the error as damage if the file itself is the cause: its blocks are unreadable, or the
/// file is missing (which `check_lost` must confirm). Any other error is transient, so that error
/// is returned, and nothing is listed as damaged.
fn damage(error: io::Error, check_lost: impl FnOnce() -> io::Result<()>) -> io::Result<io::Error> {
    if error.kind() == io::ErrorKind::NotFound {
        check_lost()?;
        return Ok(error);
    }
    if is_unreadable(&error) { Ok(error) } else { Err(error) }
}

/// Returns whether the disk could not read a block.
fn is_unreadable(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// A reader for file contents of known length, which returns zeros in place of unreadable parts.
struct Content {
    file: File,
    left: u64,
    hash: Sha256,
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..most) else { return Ok(0) };
        let count = match self.file.read(buffer) {
            Err(error) if is_unreadable(&error) => 0,
            count => count?,
        };
        let count = if count == 0 {
            // The file is shorter than its known length; the checksum will reveal the damage.
            buffer.fill(0);
            most
        } else {
            count
        };
        self.hash.update(buffer.get(..count).unwrap_or_default());
        self.left -= count as u64;
        Ok(count)
    }
}

/// A reader that hashes file contents while reading them. The reader fails if the contents are
/// shorter than declared.
struct Summed<'s, R> {
    content: io::Take<R>,
    sum: &'s mut Sum,
}

impl<R: Read> Read for Summed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        if count == 0 && self.content.limit() > 0 && !buffer.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a file became shorter while it was read",
            ));
        }
        self.sum.content(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}
