//! Why a store refuses, in sentences that say what to do.

use std::io;
use std::path::{Path, PathBuf};

use super::key::Key;
use super::record::Malformed;
use crate::domain::ids::PayloadId;

/// Why a store refuses.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Another process has the store open.
    #[error("{} is in use by another process{}; stop it first", .folder.display(), by(.pid))]
    Locked { folder: PathBuf, pid: Option<u32> },
    /// A precondition of the commit did not hold; nothing of it was written.
    #[error("the row {key:?} is not as the commit expects it")]
    Conflict { key: Key },
    /// The disk refused (full, failing, read-only): nothing of this commit counts as written.
    #[error("the store cannot be used: {reason}")]
    Unavailable { reason: String },
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A payload file is missing or damaged.
    #[error("payload {id} cannot be read: {reason}")]
    Payload { id: PayloadId, reason: String },
    /// A file or folder of the store cannot be made or read.
    #[error("{}: {reason}", .path.display())]
    Folder { path: PathBuf, reason: String },
    /// The store was written by a newer release.
    #[error(
        "{} has store format {found}, this program knows up to {known}: install a newer release",
        .folder.display()
    )]
    NewerFormat { folder: PathBuf, found: u32, known: u32 },
    /// A flush did not reach the disk's own sync.
    #[error("a flush did not end in fdatasync: this build cannot keep its promises, so it stops")]
    NotDurable,
    /// The engine cannot open what is there.
    #[error("the store {} cannot be opened: {reason}", .folder.display())]
    Damaged { folder: PathBuf, reason: String },
}

fn by(pid: &Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

impl Error {
    /// The fault of a file or folder.
    pub(super) fn folder(path: &Path, error: &io::Error) -> Self {
        Self::Folder { path: path.to_path_buf(), reason: error.to_string() }
    }

    /// The disk refused.
    pub(super) fn unavailable(error: &impl std::fmt::Display) -> Self {
        Self::Unavailable { reason: error.to_string() }
    }
}
