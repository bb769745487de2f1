//! Rotation of `seal.key`: reseals all secrets with a new key. The service must be stopped.
//!
//! 1. The new key is written as `seal.key.next`. From then on, both keys can unseal secrets: see
//!    [`super::Sealer::open`].
//! 2. Rows are resealed in batches. Secrets that are already sealed with the new key are skipped.
//! 3. The new key replaces the old key by a single rename.
//!
//! A crash at any point leaves a usable store; the next rotation continues with the same new key.

use std::fs;
use std::path::{Path, PathBuf};

use super::commit::Commit;
use super::data_dir;
use super::encryption::{self, KEY_FILE, NEXT_FILE, Opener, SealError};
use super::error::Error;
use super::key::Key;
use super::record::{Record, decode};
use super::store::Store;
use orrery_runtime::random_bytes;

/// The progress of a rotation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resealed {
    /// Rows examined.
    pub rows: u64,
    /// Secrets sealed with the new key.
    pub secrets: u64,
    /// Records that cannot be read, and secrets that neither key can unseal; both are left
    /// unchanged.
    pub unreadable: u64,
}

/// A callback that receives the progress after each step. An error stops the rotation.
pub type Watch<'w> = dyn FnMut(Resealed) -> Result<(), Error> + Send + 'w;

/// A rotation in progress: the new key is on disk.
#[derive(Debug)]
pub struct Rotation {
    data: PathBuf,
    old: Opener,
    new: Opener,
    pub resealed: Resealed,
}

impl Rotation {
    /// Starts a rotation, or continues an interrupted rotation.
    ///
    /// # Errors
    /// [`Error::Folder`] if a key cannot be read or written.
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

    /// Seals a secret with the new key. Returns `None` if the secret is already sealed with the new
    /// key, or if neither key can unseal the secret.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there are no random bytes.
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

    /// Reseals the secrets of all records under `prefix`. `secret` returns a record's secret.
    ///
    /// # Errors
    /// If the store cannot be read or written, or if `watch` fails. Committed changes remain, and
    /// the next rotation skips them.
    pub async fn records<R: Record>(
        &mut self,
        store: &Store,
        prefix: Key,
        secret: fn(&mut R) -> Option<&mut String>,
        watch: &mut Watch<'_>,
    ) -> Result<(), Error> {
        let mut scan = store.scan(prefix);
        while let Some(rows) = scan.next_page().await? {
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
                    commit.put(key, &record)?;
                }
            }
            store.commit(commit).await?;
            watch(self.resealed)?;
        }
        Ok(())
    }

    /// Completes the rotation by replacing the old key with the new one.
    ///
    /// # Errors
    /// [`Error::Folder`]: the rotation is still incomplete.
    pub fn finish(self) -> Result<Resealed, Error> {
        let path = self.data.join(KEY_FILE);
        fs::rename(self.data.join(NEXT_FILE), &path)
            .map_err(|error| Error::folder(&path, &error))?;
        data_dir::sync(&self.data)?;
        Ok(self.resealed)
    }
}

/// Whether a rotation of this data folder is incomplete.
#[must_use]
pub fn is_under_way(data: &Path) -> bool {
    data.join(NEXT_FILE).exists()
}
