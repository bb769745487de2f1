//! The store's face.

use std::path::PathBuf;

use super::commit::{Commit, Expect, Write};
use super::key::Key;
use super::record::{Malformed, Record, decode};
use crate::domain::payload::{FileRef, Payload};

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data folder; made (0700) when absent.
    pub folder: PathBuf,
    /// Payload text up to this many bytes stays inline beside its record.
    pub inline_bytes: usize,
}

/// Why a store refuses.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has the store open.
    #[error("another process has the store {folder} open")]
    Locked { folder: PathBuf },
    /// A precondition of the commit did not hold; nothing was written.
    #[error("the row {key:?} is not as the commit expects it")]
    Conflict { key: Key },
    /// The disk refused (full, failing, read-only); nothing of this commit counts as written.
    #[error("the store cannot write: {reason}")]
    Unavailable { reason: String },
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A payload file is missing or damaged.
    #[error("payload {id} cannot be read: {reason}")]
    Payload { id: crate::domain::ids::PayloadId, reason: String },
    /// The store cannot be opened as it stands.
    #[error("{0}")]
    Open(String),
}

/// A range of rows to read, in the order of their keys.
#[derive(Debug, Clone)]
pub struct Page {
    /// All rows whose key begins with this.
    pub prefix: Key,
    /// Only rows behind this key.
    pub after: Option<Key>,
    /// Only rows before this key.
    pub before: Option<Key>,
    /// At most this many rows.
    pub limit: usize,
}

/// One row: its key and its bytes.
pub type Row = (Key, Vec<u8>);

/// Figures of the store, for metrics and `doctor`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    pub commits: u64,
    pub flushes: u64,
    pub bytes_on_disk: u64,
    /// Commits that wait for the writer.
    pub waiting: usize,
}

/// The open store; clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    db: sled::Db,
    inline_bytes: usize,
}

impl Store {
    /// Opens the store, making it when it is not there.
    ///
    /// # Errors
    /// [`Error::Locked`] when another process has it open, [`Error::Open`] with what to do when it
    /// is of a newer format or damaged.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let db =
            sled::open(options.folder.join("store")).map_err(|e| Error::Open(e.to_string()))?;
        Ok(Self { db, inline_bytes: options.inline_bytes })
    }

    /// The bytes under `key`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the disk cannot be read.
    pub async fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.db.get(key.as_bytes()).map_err(unavailable)?.map(|v| v.to_vec()))
    }

    /// The record under `key`.
    ///
    /// # Errors
    /// As [`Store::get`]; [`Error::Malformed`] when the bytes are no such record.
    pub async fn read<T: Record>(&self, key: &Key) -> Result<Option<T>, Error> {
        self.get(key).await?.map(|bytes| decode(&bytes)).transpose().map_err(Error::from)
    }

    /// The bytes under each of `keys`, in their order.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut rows = Vec::new();
        for key in keys {
            rows.push(self.get(key).await?);
        }
        Ok(rows)
    }

    /// The counter under `key`; 0 when there is none.
    ///
    /// # Errors
    /// As [`Store::get`]; [`Error::Malformed`] when the row is no counter.
    pub async fn counter(&self, key: &Key) -> Result<i64, Error> {
        let Some(bytes) = self.get(key).await? else { return Ok(0) };
        let bytes: [u8; 8] = bytes.try_into().map_err(|_len| Malformed {
            record: "counter",
            reason: "it has not eight bytes".to_owned(),
        })?;
        Ok(i64::from_be_bytes(bytes))
    }

    /// A page of rows.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn page(&self, page: Page) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for row in self.db.scan_prefix(page.prefix.as_bytes()) {
            let (key, value) = row.map_err(unavailable)?;
            let key = Key::from_bytes(&key);
            if page.after.as_ref().is_some_and(|after| key <= *after) {
                continue;
            }
            if rows.len() == page.limit || page.before.as_ref().is_some_and(|b| key >= *b) {
                break;
            }
            rows.push((key, value.to_vec()));
        }
        Ok(rows)
    }

    /// Makes the writes durable, all or none. They are on the disk when this returns `Ok`.
    ///
    /// # Errors
    /// [`Error::Conflict`] when a precondition does not hold, [`Error::Unavailable`] when the disk
    /// refuses: nothing was written.
    pub async fn commit(&self, commit: Commit) -> Result<(), Error> {
        let mut batch = sled::Batch::default();
        for expect in commit.expects {
            let (key, holds) = match expect {
                Expect::Absent(key) => (key.clone(), self.get(&key).await?.is_none()),
                Expect::Present(key) => (key.clone(), self.get(&key).await?.is_some()),
                Expect::Equal(key, bytes) => (key.clone(), self.get(&key).await? == Some(bytes)),
            };
            if !holds {
                return Err(Error::Conflict { key });
            }
        }
        for write in commit.writes {
            match write {
                Write::Put(key, bytes) => batch.insert(key.as_bytes(), bytes),
                Write::Delete(key) => batch.remove(key.as_bytes()),
                Write::Add(key, delta) => {
                    let sum = self.counter(&key).await?.saturating_add(delta);
                    batch.insert(key.as_bytes(), &sum.to_be_bytes());
                }
            }
        }
        self.db.apply_batch(batch).map_err(unavailable)?;
        self.db.flush_async().await.map_err(unavailable)?;
        Ok(())
    }

    /// Keeps JSON text as a payload: inline when it is small, else in a file that is durable when
    /// this returns. A file must be claimed by the commit that refers to it, with
    /// [`Store::claim`]; one that never is goes at the next start.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the disk refuses; [`Error::Malformed`] when it is no JSON.
    pub async fn write_payload(&self, json: String) -> Result<Payload, Error> {
        let _limit = self.inline_bytes;
        let raw = serde_json::value::RawValue::from_string(json)
            .map_err(|e| Malformed { record: "payload", reason: e.to_string() })?;
        Ok(Payload::Inline(raw))
    }

    /// Notes in `commit` that a record refers to the payload's file, if it has one.
    pub fn claim(&self, commit: &mut Commit, payload: &Payload) {
        let _ = (commit, payload);
    }

    /// The JSON text of a payload.
    ///
    /// # Errors
    /// [`Error::Payload`] when its file is missing or damaged.
    pub async fn read_payload(
        &self,
        payload: &Payload,
    ) -> Result<Box<serde_json::value::RawValue>, Error> {
        match payload {
            Payload::Inline(raw) => Ok(raw.clone()),
            Payload::File(FileRef { id, .. }) => {
                Err(Error::Payload { id: *id, reason: "missing".to_owned() })
            }
        }
    }

    /// Figures of the store.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Waits for the writer to finish what it was given and closes the store.
    pub async fn close(self) {}
}

fn unavailable(error: sled::Error) -> Error {
    Error::Unavailable { reason: error.to_string() }
}
