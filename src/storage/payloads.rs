//! Payload files: JSON text too large to stand beside its record.
//!
//! A file is written and synced before the commit that refers to it, and claimed by a row in that
//! commit; a file without such a row was never acknowledged, and the sweep after a start deletes
//! it. A file is never changed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::value::RawValue;

use super::commit::Commit;
use super::error::Error;
use super::key::{Key, Table};
use super::store::Store;
use crate::domain::ids::PayloadId;
use crate::domain::payload::{FileRef, Payload};
use crate::runtime::fresh;

/// The folder of payload files, within the data folder.
pub(super) const PAYLOADS: &str = "payloads";
/// Rows that the sweep looks up at once.
const SWEEP_BATCH: usize = 500;

impl Store {
    /// Keeps JSON text as a payload: inline when it is small, else in a file that is durable when
    /// this returns. The commit that refers to it must [`Store::claim`] it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the disk refuses.
    pub async fn write_payload(&self, json: Box<RawValue>) -> Result<Payload, Error> {
        if json.get().len() <= self.shared.inline_bytes {
            return Ok(Payload::Inline(json));
        }
        let id: PayloadId = fresh();
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            let (path, bytes) = (path_of(&shared.folder, id), json.get().as_bytes());
            let mut written = write_file(&path, bytes);
            if written.as_ref().is_err_and(is_full) && shared.room.give_up_ballast() {
                written = write_file(&path, bytes);
            }
            written.map_err(|error| Error::unavailable(&error))?;
            let crc32 = crc32fast::hash(bytes);
            Ok(Payload::File(FileRef { id, bytes: bytes.len() as u64, crc32 }))
        })
        .await
    }

    /// Notes in `commit` that a record refers to the payload's file, if it has one.
    pub fn claim(&self, commit: &mut Commit, payload: &Payload) {
        if let Some(file) = payload.file() {
            commit.put_bytes(claim_key(file.id), Vec::new());
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
        blocking(move || {
            let fault = |reason: String| Error::Payload { id: file.id, reason };
            let path = path_of(&folder, file.id);
            let bytes = fs::read(&path).map_err(|error| unread(&folder, file.id, &error))?;
            if bytes.len() as u64 != file.bytes || crc32fast::hash(&bytes) != file.crc32 {
                return Err(fault("its content is not what was written".to_owned()));
            }
            let text = String::from_utf8(bytes).map_err(|error| fault(error.to_string()))?;
            RawValue::from_string(text).map_err(|error| fault(error.to_string()))
        })
        .await
    }

    /// Deletes a payload's file that no record refers to any more. One that is gone is no fault.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the disk refuses.
    pub async fn remove_payload(&self, payload: &Payload) -> Result<(), Error> {
        let Some(file) = payload.file() else { return Ok(()) };
        if self.holds(file.id) {
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

    /// Deletes the files that were written before this start and that no record refers to; answers
    /// how many. Files of this run are left alone: their ids are later than `started`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the disk cannot be read.
    pub async fn sweep_payloads(&self, started: PayloadId) -> Result<usize, Error> {
        let folder = self.shared.folder.join(PAYLOADS);
        let found =
            blocking(move || list(&folder, started).map_err(|error| Error::unavailable(&error)))
                .await?;
        let mut swept = 0;
        for batch in found.chunks(SWEEP_BATCH) {
            let keys: Vec<Key> = batch.iter().map(|id| claim_key(*id)).collect();
            let claims = self.get_many(&keys).await?;
            for (id, claim) in batch.iter().zip(claims) {
                if claim.is_none() {
                    let file = FileRef { id: *id, bytes: 0, crc32: 0 };
                    self.remove_payload(&Payload::File(file)).await?;
                    swept += 1;
                }
            }
        }
        Ok(swept)
    }
}

/// Why a payload's file cannot be read. Only a file that is absent from a folder that is there was
/// deleted; a folder that is away (a volume that is not mounted) says nothing about its files.
fn unread(folder: &Path, id: PayloadId, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound && holds_payloads(folder) {
        return Error::Gone { id };
    }
    Error::unavailable(&format!("payload {id}: {error}"))
}

/// Whether the folder of payloads is there and is not the empty mount point of a missing volume.
fn holds_payloads(folder: &Path) -> bool {
    let shelves = fs::read_dir(folder.join(PAYLOADS));
    shelves.is_ok_and(|mut shelves| shelves.next().is_some_and(|shelf| shelf.is_ok()))
}

pub(super) fn claim_key(id: PayloadId) -> Key {
    Key::table(Table::PayloadFile).id(id)
}

/// Two characters of the id's random end name the folder, so that none grows too large.
pub(super) fn path_of(folder: &Path, id: PayloadId) -> PathBuf {
    let name = id.to_string();
    let shelf = name.get(name.len().saturating_sub(2)..).unwrap_or("00").to_owned();
    folder.join(PAYLOADS).join(shelf).join(name)
}

/// Writes a file durably. Nothing stays of one that could not be written whole.
fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let shelf = path.parent().unwrap_or(path);
    if !shelf.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(shelf)?;
        for above in shelf.ancestors().skip(1).take(2) {
            File::open(above)?.sync_all()?;
        }
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let written = written.and_then(|()| File::open(shelf)?.sync_all());
    if written.is_err() {
        let _swept_later = fs::remove_file(path);
    }
    written
}

/// Whether an error says that the disk has no block left.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The ids of all payload files made before `started`.
fn list(folder: &Path, started: PayloadId) -> io::Result<Vec<PayloadId>> {
    let mut found = Vec::new();
    let shelves = match fs::read_dir(folder) {
        Ok(shelves) => shelves,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    for shelf in shelves {
        for file in fs::read_dir(shelf?.path())? {
            let name = file?.file_name();
            let id = name.to_str().and_then(|name| name.parse::<PayloadId>().ok());
            found.extend(id.filter(|id| *id < started));
        }
    }
    Ok(found)
}

async fn blocking<T, F>(work: F) -> Result<T, Error>
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
