//! Rotation of `seal.key`: everything sealed with the old key is sealed again with a new one, on a
//! store that no service uses.
//!
//! 1. The new key is written beside the old one, as `seal.key.next`. From then on both open what is
//!    sealed: see [`super::Sealer::open`].
//! 2. Rows are sealed again, some in each commit. What the new key opens already is left alone.
//! 3. The new key takes the old one's place. That is one rename, and the end of the old key.
//!
//! A process that dies anywhere in between leaves a store that can be used as it is; the next rotation
//! goes on with the same new key.

use std::fs;
use std::path::{Path, PathBuf};

use super::commit::Commit;
use super::data_dir;
use super::encryption::{self, KEY_FILE, NEXT_FILE, Opener, SealError};
use super::error::Error;
use super::key::Key;
use super::record::{Record, decode, encode};
use super::store::{Page, Store};
use crate::runtime::random_bytes;

/// Rows that are read at once. An execution holds up to two inline payloads.
const BATCH_MAX: usize = 64;

/// What was done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resealed {
    /// Rows that were looked at.
    pub rows: u64,
    /// Secrets that are sealed with the new key now.
    pub secrets: u64,
    /// Secrets and records that neither key opens, as before. They are left as they are.
    pub unreadable: u64,
}

/// Is shown how far a rotation has come, after each step. An error ends the rotation there.
pub type Watch<'w> = dyn FnMut(Resealed) -> Result<(), Error> + Send + 'w;

/// A rotation that has begun: the new key is on the disk.
#[derive(Debug)]
pub struct Rotation {
    data: PathBuf,
    old: Opener,
    new: Opener,
    pub resealed: Resealed,
}

impl Rotation {
    /// Begins a rotation, or goes on with one that was interrupted.
    ///
    /// # Errors
    /// [`Error::Folder`] when a key cannot be read or written.
    pub fn begin(data: &Path) -> Result<Self, Error> {
        let path = data.join(NEXT_FILE);
        let fault = |reason: String| Error::Folder { path: path.clone(), reason };
        let old = encryption::read(&data.join(KEY_FILE))?;
        if !fs::exists(&path).map_err(|error| Error::folder(&path, &error))? {
            let key: [u8; encryption::KEY_BYTES] =
                random_bytes().map_err(|error| fault(error.to_string()))?;
            data_dir::write_new(&path, &key)?;
        }
        let new = encryption::read(&path)?;
        Ok(Self { data: data.to_owned(), old, new, resealed: Resealed::default() })
    }

    /// A sealed secret, sealed with the new key; `None` when it is already, or when neither key opens
    /// it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there are no random bytes.
    pub fn reseal(&mut self, sealed: &str) -> Result<Option<String>, Error> {
        if self.new.open(sealed).is_ok() {
            return Ok(None);
        }
        let Ok(plain) = self.old.open(sealed) else {
            self.resealed.unreadable += 1;
            return Ok(None);
        };
        let resealed = self.new.seal(&plain).map_err(|error: SealError| Error::Unavailable {
            reason: format!("a secret cannot be sealed: {error}"),
        })?;
        self.resealed.secrets += 1;
        Ok(Some(resealed))
    }

    /// Seals the secrets of all records under `prefix` again. `secret` gives the one of a record.
    ///
    /// # Errors
    /// [`Error`] when the store cannot be read or written, or `watch` says so. What was committed
    /// stays, and is left alone by the next rotation.
    pub async fn records<R: Record>(
        &mut self,
        store: &Store,
        prefix: Key,
        secret: fn(&mut R) -> Option<&mut String>,
        watch: &mut Watch<'_>,
    ) -> Result<(), Error> {
        let mut after = None;
        loop {
            let page = Page { prefix: prefix.clone(), after, before: None, limit: BATCH_MAX };
            let rows = store.page(page).await?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            after = Some(last.clone());
            let mut commit = Commit::new();
            for (key, bytes) in rows {
                self.resealed.rows += 1;
                let Ok(mut record) = decode::<R>(&bytes) else {
                    self.resealed.unreadable += 1;
                    continue;
                };
                let Some(secret) = secret(&mut record) else { continue };
                if let Some(resealed) = self.reseal(secret)? {
                    *secret = resealed;
                    commit.put_bytes(key, encode(&record)?);
                }
            }
            store.commit(commit).await?;
            watch(self.resealed)?;
        }
    }

    /// Ends the rotation: the new key replaces the old one, which is deleted.
    ///
    /// # Errors
    /// [`Error::Folder`]; then the rotation has not ended.
    pub fn finish(self) -> Result<Resealed, Error> {
        let path = self.data.join(KEY_FILE);
        fs::rename(self.data.join(NEXT_FILE), &path)
            .map_err(|error| Error::folder(&path, &error))?;
        data_dir::sync(&self.data)?;
        Ok(self.resealed)
    }
}

/// Whether a rotation of this data folder was begun and has not ended.
#[must_use]
pub fn is_under_way(data: &Path) -> bool {
    data.join(NEXT_FILE).exists()
}
