//! Backups: all data of a data folder in one file, which is written while the service runs, and
//! checked before a restore writes anything.
//!
//! The file is a tar archive compressed with zstd, so that common tools can read it:
//!
//! ```text
//! orrery-backup.json     the format and the release that wrote it
//! rows/00000000 …        the rows of the store
//! changes/00000000 …     rows that changed during the export; applied after the others
//! payloads/ID            payloads too large for a row
//! files/SHA-256          contents of files
//! records/00000000 …     groups of commits: in a file of the log archive, instead of rows
//! seal.key, tls/…        the key of sealed secrets, the self-signed authority
//! end.json               the number of entries of each kind, and the SHA-256 of all before it
//! ```
//!
//! The files of the log archive ([`mod@log_archive`]) are stored next to the backups as
//! `log/CHAIN/FIRST-LAST-TIME.log`: each contains the commits FIRST to LAST and the payloads and
//! files that they refer to, in the same format. A restore applies these files on top of a backup
//! ([`replay`]).
//!
//! The entire file may be encrypted: see [`encryption`].
//!
//! A file without its end entry, or with a wrong one, is not a valid backup. Rows are copied as
//! bytes; only checks parse them, to find references to payloads and files.

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
use orrery_domain::hex::hex;
use orrery_domain::time::Timestamp;

/// The backup format that this release writes.
const FORMAT: u32 = 1;
const HEAD: &str = "orrery-backup.json";
const END: &str = "end.json";
const ROWS: &str = "rows/";
const CHANGES: &str = "changes/";
const PAYLOADS: &str = "payloads/";
const FILES: &str = "files/";
const RECORDS: &str = "records/";
const SEAL: &str = "seal.key";
/// The next seal key, which exists only during a rotation of the key.
const SEAL_NEXT: &str = "seal.key.next";
const TLS: &str = "tls/";

/// An error while writing, reading or restoring a backup.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not a backup, or it is damaged.
    #[error("{0}")]
    Damaged(String),
    /// The target is not empty, or the request cannot be fulfilled.
    #[error("{0}")]
    Refused(String),
    /// The chain of the log archive cannot be continued.
    #[error("{0}")]
    Chain(String),
    #[error(transparent)]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Storage(#[from] orrery_storage::Error),
    #[error(transparent)]
    Files(#[from] orrery_records::files::Error),
}

/// The first entry of a backup.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Head {
    format: u32,
    /// The format version of the store.
    store_format: u32,
    /// The release that wrote the backup.
    version: String,
    created_at: String,
}

/// Summary of a backup's contents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub version: String,
    /// The store's format version, as read from the head of a backup.
    #[serde(skip)]
    pub store_format: u32,
    pub created_at: String,
    /// Number of rows read, including rows that changed during the export.
    pub rows: u64,
    pub changes: u64,
    pub payloads: u64,
    pub files: u64,
    /// Size in bytes before compression.
    pub bytes: u64,
    /// Descriptions of payloads and files that were missing or damaged when the backup was made.
    /// Damaged but readable payloads and files are included in their damaged state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
    /// The position of a backup in the log; `None` if a release without the log archive wrote the
    /// backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
    /// The records in a file of the log archive; `None` for a backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<Range>,
    /// Hash over the name, length and contents of each entry before the end entry.
    pub sha256: String,
}

/// The position of a backup in the log of its store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    pub store: Uuid,
    /// The chain that archives the log after the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Uuid>,
    /// The last log record that the backup contains.
    pub record: u64,
    /// The time of the backup, in microseconds; no commit in the backup is later.
    pub at: Timestamp,
}

/// The log records in a file of the log archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub store: Uuid,
    pub chain: Uuid,
    pub first: u64,
    pub last: u64,
    /// The time at which the last record was written, in microseconds.
    pub last_at: Timestamp,
}

/// Maximum number of damaged items listed in a backup; with more damaged items, the backup fails.
const DAMAGED_MAX: usize = 5000;

/// Returns the list entry for damaged file contents.
fn damaged_content(digest: orrery_domain::file::Digest) -> String {
    format!("the content {digest} is damaged")
}

/// The running checksum over all entries.
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
        hex(&self.hash.clone().finalize())
    }
}

#[cfg(test)]
mod away_tests;
#[cfg(test)]
mod log_archive_tests;
#[cfg(test)]
mod tests;
