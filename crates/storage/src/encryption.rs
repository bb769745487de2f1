//! Sealing: encrypts secrets that the service must be able to read again (webhook secrets). The key
//! is stored in a file that only the service's user can read.
//!
//! ChaCha20-Poly1305 with a random nonce. The key is created at the first start and leaves the data
//! folder only in backups. A copy of the store alone does not reveal any secrets.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;

use super::error::Error;
use super::{data_dir, marker};
use orrery_runtime::{random_bytes, regular_file};

pub(super) const KEY_BYTES: usize = 32;
/// The name of the key file within the data folder.
pub(super) const KEY_FILE: &str = "seal.key";
/// The file of the next key during a rotation, see [`super::rotation`].
pub(super) const NEXT_FILE: &str = "seal.key.next";

/// A key that seals and unseals.
#[derive(Clone)]
pub(super) struct Opener(Arc<LessSafeKey>);

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opener")
    }
}

impl Opener {
    /// Encrypts a secret to the base64 of nonce and ciphertext.
    pub(super) fn seal(&self, plain: &str) -> Result<String, SealError> {
        let nonce: [u8; NONCE_LEN] = random_bytes().map_err(|_none| SealError::NoRandomness)?;
        let mut sealed = plain.as_bytes().to_vec();
        let used = Nonce::assume_unique_for_key(nonce);
        self.0
            .seal_in_place_append_tag(used, Aad::empty(), &mut sealed)
            .map_err(|_unspecified| SealError::NoRandomness)?;
        Ok(STANDARD_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// Decrypts the output of [`Opener::seal`].
    pub(super) fn open(&self, sealed: &str) -> Result<String, SealError> {
        let unreadable = || SealError::Unreadable;
        let bytes = STANDARD_NO_PAD.decode(sealed).map_err(|_not_base64| unreadable())?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>().ok_or_else(unreadable)?;
        let mut sealed = sealed.to_vec();
        let plain = self
            .0
            .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::empty(), &mut sealed)
            .map_err(|_unspecified| unreadable())?;
        String::from_utf8(plain.to_vec()).map_err(|_not_text| unreadable())
    }
}

/// Reads the key in a file.
pub(super) fn read(path: &Path) -> Result<Opener, Error> {
    opener(path, &bytes_of(path)?)
}

fn opener(path: &Path, bytes: &[u8]) -> Result<Opener, Error> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, bytes).map_err(|_length| Error::Folder {
        path: path.to_owned(),
        reason: "it must have exactly 32 bytes: restore it from a backup".to_owned(),
    })?;
    Ok(Opener(Arc::new(LessSafeKey::new(key))))
}

/// Maximum bytes read from a key file. A valid file is smaller.
const KEY_FILE_MAX: u64 = 1024;

/// Reads a key file that only its owner can read.
fn bytes_of(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read =
        regular_file::open(path).and_then(|file| file.take(KEY_FILE_MAX).read_to_end(&mut bytes));
    read.map_err(|error| Error::folder(path, &error))?;
    let mode = fs::metadata(path).map_err(|error| Error::folder(path, &error))?.permissions();
    if mode.mode() & 0o077 != 0 {
        let reason = "other users can read it: run chmod 600 on it".to_owned();
        return Err(Error::Folder { path: path.to_owned(), reason });
    }
    Ok(bytes)
}

/// Seals and unseals secrets. Clones share the keys.
#[derive(Clone)]
pub struct Sealer {
    key: Opener,
    /// The next key during a rotation, with which some secrets are already sealed.
    next: Option<Opener>,
    /// The key of [`Sealer::mac`]. This key is derived from the contents of the key file, so that
    /// each key serves a single purpose.
    mac_key: Arc<hmac::Key>,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer")
    }
}

/// A secret that cannot be sealed or unsealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("the operating system returned no random bytes")]
    NoRandomness,
    #[error("a stored secret cannot be read with this data folder's seal.key")]
    Unreadable,
}

impl Sealer {
    /// Opens the sealer of a data folder that may be in use. If the folder contains a store, a
    /// missing key is an error, because a new key could not unseal the existing secrets. For a new
    /// folder, call this function before creating the store.
    ///
    /// # Errors
    /// The same errors as [`Sealer::open`]; [`Error::Folder`] if the key is missing next to a
    /// store.
    pub fn open_used(data: &Path) -> Result<Self, Error> {
        let path = data.join(KEY_FILE);
        let exists = |path: &Path| fs::exists(path).map_err(|error| Error::folder(path, &error));
        let is_used = exists(&data.join("store"))? || exists(&data.join(marker::FILE))?;
        if is_used && !exists(&path)? {
            let reason = "it is missing, but the store next to it is in use: restore the file from \
                          a backup. Without the file, the stored secrets of webhooks and all links \
                          are lost for good; to accept that, write 32 random bytes into it (mode \
                          0600)";
            return Err(Error::Folder { path, reason: reason.to_owned() });
        }
        Self::open(data)
    }

    /// Opens the sealer of a data folder. Creates the key if it does not exist.
    ///
    /// # Errors
    /// [`Error::Folder`] if the key file cannot be read, has the wrong length, or is readable by
    /// users other than its owner.
    pub fn open(data: &Path) -> Result<Self, Error> {
        let path = data.join(KEY_FILE);
        let fault = |reason: &str| Error::Folder { path: path.clone(), reason: reason.to_owned() };
        if !fs::exists(&path).map_err(|error| Error::folder(&path, &error))? {
            let key: [u8; KEY_BYTES] = random_bytes().map_err(|error| fault(&error.to_string()))?;
            data_dir::make(data)?;
            // If two processes start at once, the key of only one of them is kept.
            data_dir::write_first(&path, &key)?;
        }
        let bytes = bytes_of(&path)?;
        let key = opener(&path, &bytes)?;
        let next = data.join(NEXT_FILE);
        let has_next = fs::exists(&next).map_err(|error| Error::folder(&next, &error))?;
        let next = if has_next { Some(read(&next)?) } else { None };
        let file_key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        let mac_key = hmac::sign(&file_key, b"orrery message authentication");
        let mac_key = hmac::Key::new(hmac::HMAC_SHA256, mac_key.as_ref());
        Ok(Self { key, next, mac_key: Arc::new(mac_key) })
    }

    /// Encrypts a secret to the base64 of nonce and ciphertext.
    ///
    /// # Errors
    /// [`SealError::NoRandomness`].
    pub fn seal(&self, plain: &str) -> Result<String, SealError> {
        self.key.seal(plain)
    }

    /// Computes the HMAC-SHA256 of `bytes` (32 bytes), with which the service recognizes values
    /// that this data folder issued. Callers prefix the bytes with their purpose.
    #[must_use]
    pub fn mac(&self, bytes: &[u8]) -> Vec<u8> {
        hmac::sign(&self.mac_key, bytes).as_ref().to_vec()
    }

    /// Whether `mac` matches `bytes`. Compares in constant time.
    #[must_use]
    pub fn check_mac(&self, bytes: &[u8], mac: &[u8]) -> bool {
        hmac::verify(&self.mac_key, bytes, mac).is_ok()
    }

    /// Decrypts the output of [`Sealer::seal`].
    ///
    /// # Errors
    /// [`SealError::Unreadable`] if the secret was sealed with another key or modified.
    pub fn unseal(&self, sealed: &str) -> Result<String, SealError> {
        let opened = self.key.open(sealed);
        match (&opened, &self.next) {
            (Err(_), Some(next)) => next.open(sealed),
            _ => opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealer_decrypts_only_with_its_own_key() {
        let one = tempfile::tempdir().unwrap();
        let two = tempfile::tempdir().unwrap();
        let sealer = Sealer::open(one.path()).unwrap();
        let sealed = sealer.seal("whsec_abc").unwrap();
        assert!(!sealed.contains("abc"));
        assert_ne!(sealed, sealer.seal("whsec_abc").unwrap(), "a nonce was used twice");
        let again = Sealer::open(one.path()).unwrap();
        assert_eq!(again.unseal(&sealed).as_deref(), Ok("whsec_abc"));
        let other = Sealer::open(two.path()).unwrap();
        assert_eq!(other.unseal(&sealed), Err(SealError::Unreadable));
        for damaged in ["", "AAAA", "not base64!", &sealed[1..]] {
            assert_eq!(sealer.unseal(damaged), Err(SealError::Unreadable), "{damaged}");
        }
    }

    #[test]
    fn sealer_refuses_key_file_readable_by_others() {
        let folder = tempfile::tempdir().unwrap();
        Sealer::open(folder.path()).unwrap();
        let path = folder.path().join("seal.key");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Sealer::open(folder.path()).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }

    #[test]
    fn sealer_refuses_missing_key_of_used_store() {
        let folder = tempfile::tempdir().unwrap();
        let sealed = Sealer::open_used(folder.path()).unwrap().seal("x").unwrap();
        fs::create_dir(folder.path().join("store")).unwrap();
        assert_eq!(Sealer::open_used(folder.path()).unwrap().unseal(&sealed).as_deref(), Ok("x"));
        let path = folder.path().join(KEY_FILE);
        fs::rename(&path, folder.path().join("away")).unwrap();
        let error = Sealer::open_used(folder.path()).unwrap_err().to_string();
        assert!(error.contains("it is missing, but the store next to it is in use"), "{error}");
        assert!(!path.exists());
        fs::rename(folder.path().join("away"), &path).unwrap();
        Sealer::open_used(folder.path()).unwrap();
    }
}
