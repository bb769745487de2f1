//! The files for the account, the certificate and the last failure, in a folder for each directory
//! URL. If the directory changes, the account and certificate of the previous authority are
//! therefore not used.

use std::fs;
use std::path::{Path, PathBuf};

use instant_acme::AccountCredentials;
use orrery_domain::hex::hex;
use orrery_domain::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use url::Url;

use super::super::authority::{self, KEY_MODE};
use super::super::pair::{self, Pair};
use super::{Challenges, Error, Options};

/// The paths of the files, and the challenges of the current order.
#[derive(Debug, Clone)]
pub(in crate::tls) struct Cache {
    root: PathBuf,
    folder: PathBuf,
    /// The file with the certificate chain and the private key, so that both are replaced together.
    pub(in crate::tls) certificate: PathBuf,
    /// The file for a certificate that has not been checked yet.
    new: PathBuf,
    account: PathBuf,
    failure: PathBuf,
    pub(in crate::tls) challenges: Challenges,
}

/// A failed order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The reason, including the authority's own explanation.
    pub reason: String,
    pub at: Timestamp,
    /// The time of the next attempt.
    pub next: Timestamp,
    /// Number of consecutive failures.
    pub attempts: u32,
    /// Whether the authority answered; if false, the authority could not be reached.
    pub is_refusal: bool,
    /// The order's DNS names.
    pub domains: Vec<String>,
}

/// An account as it is stored.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredAccount {
    pub(super) contact: Vec<String>,
    credentials: Value,
}

impl StoredAccount {
    pub(super) fn credentials(&self) -> Option<AccountCredentials> {
        serde_json::from_value(self.credentials.clone()).ok()
    }

    pub(super) fn new(contact: &[String], credentials: &AccountCredentials) -> Option<Self> {
        let credentials = serde_json::to_value(credentials).ok()?;
        Some(Self { contact: contact.to_vec(), credentials })
    }
}

impl Cache {
    pub(super) fn new(options: &Options) -> Self {
        let Options { directory, cache, .. } = options;
        let host = Url::parse(directory).ok();
        let host = host.as_ref().and_then(Url::host_str).unwrap_or("directory");
        let digest = Sha256::digest(directory);
        // Brackets and colons, as in IPv6 addresses, would have to be quoted in shells.
        let host = host.replace(['[', ']', ':'], "-");
        let folder = cache.join(format!("{host}-{}", hex(digest.iter().take(4))));
        Self {
            root: cache.clone(),
            certificate: folder.join("certificate.pem"),
            new: folder.join("new.pem"),
            account: folder.join("account.json"),
            failure: folder.join("failure.json"),
            folder,
            challenges: Challenges::default(),
        }
    }

    /// Creates the folders, or makes existing folders private.
    pub(super) fn make(&self) -> Result<(), Error> {
        authority::make(&self.root)?;
        authority::make(&self.folder)
    }

    /// Reads the certificate.
    pub(super) fn pair(&self) -> Result<Pair, Error> {
        pair::read(&self.certificate, &self.certificate)
    }

    /// Writes an issued certificate next to the certificate that is being served, and checks
    /// whether the issued certificate can be served.
    pub(super) fn try_certificate(&self, pem: &str) -> Result<Pair, Error> {
        self.make()?;
        authority::write(&self.new, pem.as_bytes(), KEY_MODE)?;
        pair::read(&self.new, &self.new)
    }

    /// Replaces the certificate with the checked certificate, and removes the last failure.
    pub(super) fn accept_certificate(&self) -> Result<(), Error> {
        let replaced = fs::rename(&self.new, &self.certificate);
        let replaced = replaced.and_then(|()| authority::sync(&self.folder));
        replaced.map_err(|error| Error::Write { path: self.certificate.clone(), error })?;
        match fs::remove_file(&self.failure) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Write { path: self.failure.clone(), error })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Reads the account; `None` if there is no account. An unreadable account is logged, and the
    /// next order creates a new account.
    pub(super) fn account(&self) -> Option<StoredAccount> {
        let stored: StoredAccount = read(&self.account)?;
        if stored.credentials().is_none() {
            log_unreadable(&self.account, "not an account");
            return None;
        }
        Some(stored)
    }

    pub(super) fn write_account(&self, account: &StoredAccount) -> Result<(), Error> {
        self.make()?;
        write(&self.account, account)
    }

    /// Removes an account that is unknown to the authority.
    pub(super) fn remove_account(&self) {
        if let Err(error) = fs::remove_file(&self.account) {
            tracing::warn!(%error, path = %self.account.display(), "cannot remove the account");
        }
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        read(&self.failure)
    }

    pub(super) fn write_failure(&self, failure: &Failure) -> Result<(), Error> {
        self.make()?;
        write(&self.failure, failure)
    }
}

/// Reads one of this module's files. An unreadable file is logged, and counts as missing.
fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    let bytes = match pair::bytes_of(path) {
        Ok(bytes) => bytes,
        Err(Error::Read { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
            return None;
        }
        Err(error) => {
            log_unreadable(path, &error.to_string());
            return None;
        }
    };
    // The error message may quote the file, which may contain a key.
    let read = serde_json::from_slice(&bytes);
    read.map_err(|_may_quote_the_file| log_unreadable(path, "not valid JSON")).ok()
}

fn log_unreadable(path: &Path, reason: &str) {
    tracing::warn!(path = %path.display(), reason, "cannot read file: it will be replaced");
}

fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Error> {
    let json = serde_json::to_vec_pretty(value)
        .map_err(|error| Error::Write { path: path.to_path_buf(), error: error.into() })?;
    authority::write(path, &json, KEY_MODE)
}
