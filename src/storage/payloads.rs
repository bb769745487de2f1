//! Payload files: JSON text too large to stand beside its record.
//!
//! A file is written and synced before the commit that refers to it, and claimed by a row in that
//! commit; a file without such a row was never acknowledged, and the sweep after a start deletes
//! it. A file is never changed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;

use super::commit::Commit;
use super::error::Error;
use super::folder;
use super::key::{Key, Table};
use super::store::Store;
use crate::domain::ids::PayloadId;
use crate::domain::payload::{FileRef, Payload};
use crate::runtime::fresh;

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
        let path = path_of(&self.shared.folder, id);
        blocking(move || {
            let bytes = json.get().as_bytes();
            write_file(&path, bytes).map_err(|error| Error::unavailable(&error))?;
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
    /// [`Error::Payload`] when its file is missing or damaged.
    pub async fn read_payload(&self, payload: &Payload) -> Result<Box<RawValue>, Error> {
        let file = match payload {
            Payload::Inline(raw) => return Ok(raw.clone()),
            Payload::File(file) => *file,
        };
        let path = path_of(&self.shared.folder, file.id);
        blocking(move || {
            let fault = |reason: String| Error::Payload { id: file.id, reason };
            let bytes = fs::read(&path).map_err(|error| fault(error.to_string()))?;
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
        let folder = self.shared.folder.join("payloads");
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

pub(super) fn claim_key(id: PayloadId) -> Key {
    Key::table(Table::PayloadFile).id(id)
}

/// Two characters of the id's random end name the folder, so that none grows too large.
pub(super) fn path_of(folder: &Path, id: PayloadId) -> PathBuf {
    let name = id.to_string();
    let shelf = name.get(name.len().saturating_sub(2)..).unwrap_or("00").to_owned();
    folder.join("payloads").join(shelf).join(name)
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let shelf = path.parent().unwrap_or(path);
    if !shelf.is_dir() {
        folder::make(shelf).map_err(io::Error::other)?;
        for above in shelf.ancestors().skip(1).take(2) {
            folder::sync(above).map_err(io::Error::other)?;
        }
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    folder::sync(shelf).map_err(io::Error::other)
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
