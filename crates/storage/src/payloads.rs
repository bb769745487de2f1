//! Payload files: JSON text too large to be stored in its record.
//!
//! A file's id is a hash of its owner and its contents. So equal payloads of one owner (an
//! execution, a delivery, a definition) share one file, but different owners never share a file.
//! Deleting the payloads of one owner therefore never affects another owner, and no organization
//! can find out what another organization stores.
//!
//! A file is written and synced before the commit that refers to it, and that commit adds a row
//! that claims the file. A file without such a row belongs to no acknowledged commit, and the sweep
//! after a start removes it. Files are immutable. Releases up to 0.1.0 used random ids (UUID
//! version 7); such files are read and deleted in the same way.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ring::digest::{Context, SHA256};
use serde_json::value::RawValue;

use super::commit::Commit;
use super::error::Error;
use super::key::{Key, Table};
use super::root_folder::{RootFolder, make_shard};
use super::store::Store;
use orrery_domain::ids::{Id, PayloadId};
use orrery_domain::payload::{FileRef, Payload};
use orrery_runtime::new_id;

/// The folder of payload files, within the data folder.
pub(super) const PAYLOADS: &str = "payloads";
/// The extension of a file while it is being written, after the file's name and a number.
pub(super) const PART: &str = "part";
/// The maximum number of ids noted for the sweep of this start. Beyond that, no sweep runs after
/// this start.
const RECENT_MAX: usize = 1_000_000;
/// Maximum total bytes of a text's inline copies in the records of its owners.
const INLINE_COPIES_MAX: usize = 256 * 1024;
/// The number of bytes compared at a time.
const BLOCK: usize = 64 * 1024;

/// A payload that has not been written yet, but whose length and id are known.
#[derive(Debug)]
pub struct Prepared {
    json: Box<RawValue>,
    /// The id of the payload's file; `None` if the payload is stored in its record.
    id: Option<PayloadId>,
}

impl Prepared {
    /// Length of the text in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.json.get().len() as u64
    }

    /// The id of the payload's file, if it has one.
    #[must_use]
    pub const fn id(&self) -> Option<PayloadId> {
        self.id
    }
}

/// The ids used since this start, noted until the sweep after the start has ended. The sweep skips
/// the files with these ids, even if no commit refers to them yet.
#[derive(Debug)]
pub(super) struct Recent(Mutex<Option<HashSet<PayloadId>>>);

impl Default for Recent {
    fn default() -> Self {
        Self(Mutex::new(Some(HashSet::new())))
    }
}

impl Recent {
    fn note(&self, id: PayloadId) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ids) = recent.as_mut() {
            ids.insert(id);
        }
        if recent.as_ref().is_some_and(|ids| ids.len() > RECENT_MAX) {
            *recent = None;
        }
    }

    /// Runs `take` unless the id has been noted as used. Until `take` returns, no id can be noted.
    pub(super) fn unless_noted(
        &self,
        id: PayloadId,
        take: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<bool> {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match recent.as_ref() {
            Some(ids) if !ids.contains(&id) => take().map(|()| true),
            Some(_) | None => Ok(false),
        }
    }

    /// Stops noting ids.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Store {
    /// Prepares JSON text of an owner as a payload. If the text is large, computes the id of its
    /// file.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no thread is free.
    pub async fn prepare_payload<T: Id>(
        &self,
        owner: T,
        json: Box<RawValue>,
    ) -> Result<Prepared, Error> {
        self.prepare(owner.bytes(), json, self.shared.inline_bytes).await
    }

    async fn prepare(
        &self,
        owner: [u8; 16],
        json: Box<RawValue>,
        inline_bytes: usize,
    ) -> Result<Prepared, Error> {
        if json.get().len() <= inline_bytes {
            return Ok(Prepared { json, id: None });
        }
        blocking(move || {
            let id = Some(id_of(&owner, json.get().as_bytes()));
            Ok(Prepared { json, id })
        })
        .await
    }

    /// Stores a prepared payload: inline if it is small, otherwise in a file that is durable when
    /// this function returns. The commit that refers to the payload must [`Store::claim`] it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the disk fails.
    pub async fn write_prepared(&self, prepared: Prepared) -> Result<Payload, Error> {
        let Prepared { json, id: Some(id) } = prepared else {
            return Ok(Payload::Inline(prepared.json));
        };
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            shared.recent.note(id);
            shared.deferred.lock().unwrap_or_else(PoisonError::into_inner).keep(id);
            let path = path_of(&shared.folder, id);
            let bytes = json.get().as_bytes();
            let mut written = shared.payloads.ensure().and_then(|()| keep_file(&path, bytes));
            if written.as_ref().is_err_and(is_full) && shared.disk_space.release_ballast() {
                written = keep_file(&path, bytes);
            }
            written.map_err(|error| Error::unavailable(&error))?;
            let crc32 = crc32fast::hash(bytes);
            Ok(Payload::File(FileRef { id, bytes: bytes.len() as u64, crc32 }))
        })
        .await
    }

    /// Stores JSON text of an owner: [`Store::prepare_payload`], then [`Store::write_prepared`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the disk fails.
    pub async fn write_payload<T: Id>(
        &self,
        owner: T,
        json: Box<RawValue>,
    ) -> Result<Payload, Error> {
        let prepared = self.prepare_payload(owner, json).await?;
        self.write_prepared(prepared).await
    }

    /// Stores JSON text for several owners, as one payload per owner. The payloads share their
    /// bytes on disk; inline copies take at most [`INLINE_COPIES_MAX`] bytes in total.
    ///
    /// # Errors
    /// The same errors as [`Store::read_payload`] and [`Store::write_payload`].
    pub async fn write_payload_for<T: Id>(
        &self,
        owners: &[T],
        json: Box<RawValue>,
    ) -> Result<Vec<Payload>, Error> {
        let share = INLINE_COPIES_MAX / owners.len().max(1);
        let inline_bytes = self.shared.inline_bytes.min(share);
        let mut payloads = Vec::with_capacity(owners.len());
        for owner in owners {
            let prepared = self.prepare(owner.bytes(), json.clone(), inline_bytes).await?;
            if let Some(first) = payloads.first() {
                self.link(first, &prepared).await?;
            }
            payloads.push(self.write_prepared(prepared).await?);
        }
        Ok(payloads)
    }

    /// Creates a payload with the same text for another owner. Both payloads share their bytes on
    /// disk.
    ///
    /// # Errors
    /// The same errors as [`Store::read_payload`] and [`Store::write_payload`].
    pub async fn copy_payload<T: Id>(&self, owner: T, payload: &Payload) -> Result<Payload, Error> {
        let text = self.read_payload(payload).await?;
        let prepared = self.prepare_payload(owner, text).await?;
        self.link(payload, &prepared).await?;
        self.write_prepared(prepared).await
    }

    /// Hard-links the file of a payload to a second payload with the same text.
    async fn link(&self, payload: &Payload, prepared: &Prepared) -> Result<(), Error> {
        if let (Some(from), Some(id)) = (payload.file(), prepared.id) {
            let shared = Arc::clone(&self.shared);
            let from = from.id;
            blocking(move || {
                shared.recent.note(id);
                // If the file system does not support hard links, the text is written below.
                let linked = shared.payloads.ensure();
                let _written_instead = linked.and_then(|()| link_file(&shared.folder, from, id));
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Adds to `commit` a row that claims the payload's file, if it has one.
    pub fn claim(&self, commit: &mut Commit, payload: &Payload) {
        if let Some(file) = payload.file() {
            commit.put_bytes(claim_key(file.id), Claim::of(file).value());
        }
    }

    /// Removes in `commit` the row that claims the payload's file. [`Store::remove_payload`] after
    /// the commit, or the next sweep, deletes the file.
    pub fn release(&self, commit: &mut Commit, payload: &Payload) {
        if let Some(file) = payload.file() {
            commit.delete(claim_key(file.id));
        }
    }

    /// Reads the JSON text of a payload.
    ///
    /// # Errors
    /// [`Error::Gone`] if its file was deleted, [`Error::Payload`] if it is damaged, and
    /// [`Error::Unavailable`] if the disk cannot be read now.
    pub async fn read_payload(&self, payload: &Payload) -> Result<Box<RawValue>, Error> {
        let file = match payload {
            Payload::Inline(raw) => return Ok(raw.clone()),
            Payload::File(file) => *file,
        };
        let folder = self.shared.folder.clone();
        let root = Arc::clone(&self.shared.payloads);
        blocking(move || {
            let fault = |reason: String| Error::Payload { id: file.id, reason };
            let path = path_of(&folder, file.id);
            let bytes = fs::read(&path).map_err(|error| unread(&root, &path, file.id, &error))?;
            if bytes.len() as u64 != file.bytes || crc32fast::hash(&bytes) != file.crc32 {
                return Err(fault("its content differs from what was written".to_owned()));
            }
            let text = String::from_utf8(bytes).map_err(|error| fault(error.to_string()))?;
            RawValue::from_string(text).map_err(|error| fault(error.to_string()))
        })
        .await
    }

    /// Checks that a payload file that was not found at `path` is really lost; see
    /// [`RootFolder::check_lost`].
    ///
    /// # Errors
    /// If the folder of payload files is not in place. In that case, nothing is known about the
    /// files.
    pub fn check_payload_lost(&self, path: &Path) -> io::Result<()> {
        self.shared.payloads.check_lost(path)
    }

    /// Accepts the folder of payload files in its current state; see [`RootFolder::accept_loss`].
    ///
    /// # Errors
    /// If the disk fails.
    pub fn accept_payload_loss(&self) -> io::Result<()> {
        self.shared.payloads.accept_loss()
    }

    /// Deletes a payload's file once no record refers to it. A file that is already deleted is not
    /// an error.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the disk fails.
    pub async fn remove_payload(&self, payload: &Payload) -> Result<(), Error> {
        let Some(file) = payload.file() else { return Ok(()) };
        if self.deferred().defer(file.id, self) {
            return Ok(());
        }
        let path = path_of(&self.shared.folder, file.id);
        blocking(move || match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::unavailable(&error))
            }
            Ok(()) | Err(_) => Ok(()),
        })
        .await
    }
}

/// The length and checksum that a claim's row records about its file. Rows of releases up to 0.1.0
/// are empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub bytes: u64,
    pub crc32: u32,
}

impl Claim {
    const fn of(file: &FileRef) -> Self {
        Self { bytes: file.bytes, crc32: file.crc32 }
    }

    fn value(self) -> Vec<u8> {
        [&self.bytes.to_be_bytes()[..], &self.crc32.to_be_bytes()].concat()
    }

    /// Parses the value of a row. Returns `None` if the value is empty.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let (bytes, rest) = value.split_first_chunk()?;
        let crc32 = u32::from_be_bytes(rest.try_into().ok()?);
        Some(Self { bytes: u64::from_be_bytes(*bytes), crc32 })
    }

    /// Whether `bytes` match the recorded length and checksum.
    #[must_use]
    pub fn fits(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == self.bytes && crc32fast::hash(bytes) == self.crc32
    }
}

/// Returns the id of the file for an owner and its contents: 122 bits of the SHA-256 of both, as
/// a UUID of version 8.
fn id_of(owner: &[u8; 16], content: &[u8]) -> PayloadId {
    let mut hash = Context::new(&SHA256);
    hash.update(owner);
    hash.update(content);
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(hash.finish().as_ref()).for_each(|(place, byte)| *place = *byte);
    let [.., version, _, variant, _, _, _, _, _, _, _] = &mut bytes;
    *version = (*version & 0x0f) | 0x80;
    *variant = (*variant & 0x3f) | 0x80;
    PayloadId::from(bytes)
}

/// Returns the error for a payload file that cannot be read. The file counts as deleted only if the
/// folder is known to be in place and does not contain the file. If a volume is not mounted,
/// nothing is known about its files.
fn unread(root: &RootFolder, path: &Path, id: PayloadId, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound && root.lacks(path) {
        return Error::Gone { id };
    }
    Error::unavailable(&format!("payload {id}: {error}"))
}

pub(super) fn claim_key(id: PayloadId) -> Key {
    Key::table(Table::PayloadFile).id(id)
}

/// The subfolder is named by two characters of the id's random end, so that no folder grows too
/// large.
pub(super) fn path_of(folder: &Path, id: PayloadId) -> PathBuf {
    let name = id.to_string();
    let shard = name.get(name.len().saturating_sub(2)..).unwrap_or("00").to_owned();
    folder.join(PAYLOADS).join(shard).join(name)
}

/// Writes a file durably and atomically, unless a file with the same contents exists.
fn keep_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let shard = path.parent().unwrap_or(path);
    if has_content(path, bytes)? {
        // The file may exist without being durable, if it was written just before a crash.
        File::open(path)?.sync_all()?;
        return File::open(shard)?.sync_all();
    }
    make_shard(shard)?;
    let part: PayloadId = new_id();
    let part = path.with_extension(format!("{part}.{PART}"));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        File::open(shard)?.sync_all()
    };
    let written = write();
    if written.is_err() {
        let _swept_later = fs::remove_file(&part);
    }
    written
}

/// Whether the file exists with exactly these contents. A damaged file does not match.
fn has_content(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    if file.metadata()?.len() != bytes.len() as u64 {
        return Ok(false);
    }
    let mut block = vec![0; BLOCK];
    for expected in bytes.chunks(BLOCK) {
        let Some(block) = block.get_mut(..expected.len()) else { return Ok(false) };
        match file.read_exact(block) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if block != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Hard-links a file under a second id.
fn link_file(folder: &Path, from: PayloadId, to: PayloadId) -> io::Result<()> {
    let from = path_of(folder, from);
    let to = path_of(folder, to);
    make_shard(to.parent().unwrap_or(&to))?;
    fs::hard_link(from, to)
}

/// Whether the disk is full.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub(super) async fn blocking<T, F>(work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, Error> + Send + 'static,
{
    let working = tokio::task::spawn_blocking(work);
    working.await.unwrap_or_else(|error| Err(Error::unavailable(&error)))
}

#[cfg(test)]
#[path = "payloads_tests.rs"]
mod tests;
