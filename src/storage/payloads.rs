//! Payload files: JSON text too large to be stored in its record.
//!
//! A file's id is made from its content and from its owner, so that equal payloads of one owner (an
//! execution, a delivery, a definition) are one file, and two owners never share one: what an owner
//! deletes nobody else misses, and no organization can tell what another one stores.
//!
//! A file is written and synced before the commit that refers to it, and claimed by a row in that
//! commit; a file without such a row was never acknowledged, and the sweep after a start takes it
//! away. A file is never changed. Releases up to 0.1.0 gave files ids of their own (UUID version
//! 7); they are read and deleted in the same way.

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
use crate::domain::ids::{Id, PayloadId};
use crate::domain::payload::{FileRef, Payload};
use crate::runtime::new_id;

/// The folder of payload files, within the data folder.
pub(super) const PAYLOADS: &str = "payloads";
/// What a file is called while it is written: behind its name and a number.
pub(super) const PART: &str = "part";
/// Ids that are noted for the sweep of this start; past it there is no sweep.
const RECENT_MAX: usize = 1_000_000;
/// Bytes of the copies of one text that are inline in the records of its owners.
const INLINE_COPIES_MAX: usize = 256 * 1024;
/// Bytes that are compared at once.
const BLOCK: usize = 64 * 1024;

/// A payload on its way to the disk: its length and its id are known, and nothing is written.
#[derive(Debug)]
pub struct Prepared {
    json: Box<RawValue>,
    /// The id of its file; none: it stays beside its record.
    id: Option<PayloadId>,
}

impl Prepared {
    /// Length of the text in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.json.get().len() as u64
    }

    /// The id of its file, if it is written to one.
    #[must_use]
    pub const fn id(&self) -> Option<PayloadId> {
        self.id
    }
}

/// The ids that were given out since this start, while its sweep has not ended: it leaves them
/// alone, whether a commit refers to them yet or not.
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

    /// Does `take` unless the id was given out. None of them is given out in the meantime.
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

    /// Ends the notes.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Store {
    /// Prepares JSON text of an owner as a payload: of a large one, the id of its file is made.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when no thread is free for it.
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

    /// Keeps a prepared payload: inline when it is small, else in a file that is durable when this
    /// returns. The commit that refers to it must [`Store::claim`] it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the disk refuses.
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

    /// Keeps JSON text of an owner as a payload: [`Store::prepare_payload`] and
    /// [`Store::write_prepared`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the disk refuses.
    pub async fn write_payload<T: Id>(
        &self,
        owner: T,
        json: Box<RawValue>,
    ) -> Result<Payload, Error> {
        let prepared = self.prepare_payload(owner, json).await?;
        self.write_prepared(prepared).await
    }

    /// Keeps JSON text for several owners, each of which has a payload of its own. The bytes on the
    /// disk are shared; copies that are inline come to [`INLINE_COPIES_MAX`] bytes at most.
    ///
    /// # Errors
    /// As [`Store::read_payload`] and [`Store::write_payload`].
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

    /// Gives another owner a payload of its own with the same text. The bytes on the disk are
    /// shared, so that this takes no room.
    ///
    /// # Errors
    /// As [`Store::read_payload`] and [`Store::write_payload`].
    pub async fn copy_payload<T: Id>(&self, owner: T, payload: &Payload) -> Result<Payload, Error> {
        let text = self.read_payload(payload).await?;
        let prepared = self.prepare_payload(owner, text).await?;
        self.link(payload, &prepared).await?;
        self.write_prepared(prepared).await
    }

    /// Has a payload that is about to be written share the bytes of another one with the same text.
    async fn link(&self, payload: &Payload, prepared: &Prepared) -> Result<(), Error> {
        if let (Some(from), Some(id)) = (payload.file(), prepared.id) {
            let shared = Arc::clone(&self.shared);
            let from = from.id;
            blocking(move || {
                shared.recent.note(id);
                // Where the file system has no links, the text is written below.
                let linked = shared.payloads.ensure();
                let _written_instead = linked.and_then(|()| link_file(&shared.folder, from, id));
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Notes in `commit` that a record refers to the payload's file, if it has one.
    pub fn claim(&self, commit: &mut Commit, payload: &Payload) {
        if let Some(file) = payload.file() {
            commit.put_bytes(claim_key(file.id), Claim::of(file).value());
        }
    }

    /// Notes in `commit` that no record refers to the payload's file any more. The file itself goes
    /// with [`Store::remove_payload`] after the commit, or with the next sweep.
    pub fn release(&self, commit: &mut Commit, payload: &Payload) {
        if let Some(file) = payload.file() {
            commit.delete(claim_key(file.id));
        }
    }

    /// The JSON text of a payload.
    ///
    /// # Errors
    /// [`Error::Gone`] when its file was deleted, [`Error::Payload`] when it is damaged, and
    /// [`Error::Unavailable`] when the disk cannot be read now.
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

    /// Checks that a payload file that was not found at `path` is lost, see [`RootFolder::check_lost`].
    ///
    /// # Errors
    /// When the folder of payload files is away: that says nothing about its files.
    pub fn check_payload_lost(&self, path: &Path) -> io::Result<()> {
        self.shared.payloads.check_lost(path)
    }

    /// Takes the folder of payload files as it is, see [`RootFolder::accept_loss`].
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn accept_payload_loss(&self) -> io::Result<()> {
        self.shared.payloads.accept_loss()
    }

    /// Deletes a payload's file that no record refers to any more. One that is already deleted
    /// is not an error.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the disk refuses.
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

/// What the row of a claim says about its file. Rows of releases up to 0.1.0 say nothing.
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

    /// The claim behind a row's value, where it says something.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let (bytes, rest) = value.split_first_chunk()?;
        let crc32 = u32::from_be_bytes(rest.try_into().ok()?);
        Some(Self { bytes: u64::from_be_bytes(*bytes), crc32 })
    }

    /// Whether these are the bytes that were written.
    #[must_use]
    pub fn fits(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == self.bytes && crc32fast::hash(bytes) == self.crc32
    }
}

/// The id of an owner's content: 122 bits of their SHA-256, as a UUID of version 8.
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

/// Why a payload's file cannot be read. Only a file that is absent from the folder that is known was
/// deleted; a folder that is away (a volume that is not mounted) says nothing about its files.
fn unread(root: &RootFolder, path: &Path, id: PayloadId, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound && root.lacks(path) {
        return Error::Gone { id };
    }
    Error::unavailable(&format!("payload {id}: {error}"))
}

pub(super) fn claim_key(id: PayloadId) -> Key {
    Key::table(Table::PayloadFile).id(id)
}

/// Two characters of the id's random end name the folder, so that none grows too large.
pub(super) fn path_of(folder: &Path, id: PayloadId) -> PathBuf {
    let name = id.to_string();
    let shard = name.get(name.len().saturating_sub(2)..).unwrap_or("00").to_owned();
    folder.join(PAYLOADS).join(shard).join(name)
}

/// Makes a file durable under its name, whole or not at all; one that is there with this content is
/// not written again.
fn keep_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let shard = path.parent().unwrap_or(path);
    if has_content(path, bytes)? {
        // It may be there without being on the disk: written just before a kill.
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

/// Whether the file is there and has exactly this content; one that is damaged has not.
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

/// Gives a file a second name.
fn link_file(folder: &Path, from: PayloadId, to: PayloadId) -> io::Result<()> {
    let from = path_of(folder, from);
    let to = path_of(folder, to);
    make_shard(to.parent().unwrap_or(&to))?;
    fs::hard_link(from, to)
}

/// Whether an error says that the disk has no block left.
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
