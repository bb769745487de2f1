//! Backups: everything that a data folder holds in one file, written while the service runs, checked
//! before anything is restored from it.
//!
//! The file is a tar archive in zstd, so that any box can look into it:
//!
//! ```text
//! orrery-backup.json     what it is, and of which release
//! rows/00000000 …        the rows of the store as they were read
//! changes/00000000 …     what was written in the meantime; applied behind the rows
//! payloads/ID            payloads too large for a row
//! files/SHA-256          the bytes of files
//! records/00000000 …     instead of rows, in a file of the log archive: groups of commits
//! seal.key, tls/…        the key of sealed secrets, the self-made authority
//! end.json               how many of each, and the SHA-256 of all before it
//! ```
//!
//! Beside the backups, `log/CHAIN/FIRST-LAST-TIME.log` are files of the log archive ([`mod@log_archive`]): each holds the
//! commits FIRST to LAST and the bytes that they refer to, in the same form. A restore applies them
//! behind a backup ([`replay`]).
//!
//! A file may be encrypted as a whole: see [`encryption`].
//!
//! A file without its end, or with another one, is not a backup. This module knows how rows are
//! exported and where files are, but not their contents.

mod chain;
mod check;
mod encryption;
mod log_archive;
mod read;
mod replay;
mod restore;
mod salvage;
mod spared;
mod write;

use std::io;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

pub use self::chain::{LOG, has_base, note_base, prune};
pub use self::check::{Report, check_rows, check_store};
pub use self::encryption::{Encrypting, Encryption, Keys, is_encrypted, open};
pub use self::log_archive::{Part, archive_log};
pub use self::read::verify;
pub use self::replay::{Plan, Reached, Replay};
pub use self::restore::{compact, restore, restore_until};
pub use self::salvage::{check_damaged, salvage};
pub use self::spared::Spared;
pub use self::write::{Progress, Source, write};
use crate::domain::time::Timestamp;

/// The form of the file that this release writes.
const FORMAT: u32 = 1;
const HEAD: &str = "orrery-backup.json";
const END: &str = "end.json";
const ROWS: &str = "rows/";
const CHANGES: &str = "changes/";
const PAYLOADS: &str = "payloads/";
const FILES: &str = "files/";
const RECORDS: &str = "records/";
const SEAL: &str = "seal.key";
/// There only while a rotation of the key is under way.
const SEAL_NEXT: &str = "seal.key.next";
const TLS: &str = "tls/";

/// Why a backup is not written, read or restored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not a backup, or a part of one.
    #[error("{0}")]
    Damaged(String),
    /// There is something where it should go.
    #[error("{0}")]
    Refused(String),
    /// The chain of the log archive cannot go on.
    #[error("{0}")]
    Chain(String),
    #[error(transparent)]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Storage(#[from] crate::storage::Error),
    #[error(transparent)]
    Files(#[from] crate::files::Error),
}

/// The first entry.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Head {
    format: u32,
    /// Of the store.
    store_format: u32,
    /// The release that wrote it.
    version: String,
    created_at: String,
}

/// What a backup holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub version: String,
    /// The form of the store's rows, as the head of a backup that was read says it.
    #[serde(skip)]
    pub store_format: u32,
    pub created_at: String,
    /// Rows as they were read, those counted that changed in the meantime.
    pub rows: u64,
    pub changes: u64,
    pub payloads: u64,
    pub files: u64,
    /// Bytes before compression.
    pub bytes: u64,
    /// Payloads and files that were missing or damaged where it was taken, each in a sentence. Those
    /// that could be read are in it as they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
    /// Of a backup; releases before the log archive say nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
    /// Of a file of the log archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<Range>,
    /// Of the entries before the end: each with its name, its length and its content.
    pub sha256: String,
}

/// Where in the log of its store a backup was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    pub store: Uuid,
    /// The chain that keeps the log behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Uuid>,
    /// The last record of the log that it holds.
    pub record: u64,
    /// When that was, in microseconds; no commit that it holds is later.
    pub at: Timestamp,
}

/// Which records of which log a file of the log archive holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub store: Uuid,
    pub chain: Uuid,
    pub first: u64,
    pub last: u64,
    /// When the last one was written, in microseconds.
    pub last_at: Timestamp,
}

/// The most damaged things that one backup lists; with more it is refused.
const DAMAGED_MAX: usize = 5000;

/// How a damaged content is listed.
fn damaged_content(digest: crate::domain::file::Digest) -> String {
    format!("the content {digest} is damaged")
}

/// The running sum over entries.
#[derive(Debug, Clone, Default)]
struct Sum {
    hash: Sha256,
    bytes: u64,
}

impl Sum {
    fn entry(&mut self, name: &str, length: u64) {
        self.hash.update((name.len() as u64).to_be_bytes());
        self.hash.update(name.as_bytes());
        self.hash.update(length.to_be_bytes());
    }

    fn content(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    fn hex(&self) -> String {
        self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod away_tests;
#[cfg(test)]
mod log_archive_tests;
#[cfg(test)]
mod tests;
