//! Errors of the store, with messages that say what to do.
//!
//! [`Error::is_final`] distinguishes two kinds of failed reads. If data was deleted or is damaged,
//! every later read fails too, so work that depends on this data may be marked as failed. After any
//! other error (no free descriptor, an I/O error, an unmounted volume), the data may still be
//! intact, and the read must be retried.

use std::io;
use std::path::{Path, PathBuf};

use super::key::Key;
use super::record::Malformed;
use orrery_domain::ids::PayloadId;

/// An error of the store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Another process has the store open.
    #[error("already running{}: {} is in use; stop that service first", by(.pid), .folder.display())]
    Locked { folder: PathBuf, pid: Option<u32> },
    /// A precondition of the commit did not hold; nothing was written.
    #[error("the row {key:?} is not what the commit expects")]
    Conflict { key: Key },
    /// A disk operation failed (disk full, I/O error, read-only file system). None of this commit's
    /// writes count as written.
    #[error("the store cannot be used: {reason}")]
    Unavailable { reason: String },
    /// The disk has less free space than its reserve: new work is refused, but accepted work still
    /// finishes.
    #[error("the disk is nearly full: free some space")]
    Full,
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The payload was deleted. The deletion is certain, because the payload folder exists and the
    /// volume is therefore mounted.
    #[error("payload {id} is no longer stored")]
    Gone { id: PayloadId },
    /// The contents of a payload file differ from the bytes that were written.
    #[error("payload {id} is damaged: {reason}")]
    Payload { id: PayloadId, reason: String },
    /// A file or folder of the store cannot be created or read.
    #[error("{}: {reason}", .path.display())]
    Folder { path: PathBuf, reason: String },
    /// The store was written by a newer release.
    #[error(
        "{} has store format {found}, which a newer release wrote; this program knows up to \
         {known}. Install that release again, or a newer release. To go back to this release, \
         restore a backup that was made before the upgrade into an empty folder",
        .folder.display()
    )]
    NewerFormat { folder: PathBuf, found: u32, known: u32 },
    /// A flush did not reach `fdatasync`.
    #[error("a flush ended without fdatasync: this build cannot guarantee durability, so it stops")]
    NotDurable,
    /// Parts of a data folder are missing, outdated, or do not belong together.
    #[error("{} cannot be used: {reason}", .folder.display())]
    Misfit { folder: PathBuf, reason: String },
    /// The store cannot be read.
    #[error("the store {} is damaged and cannot be opened: {reason}", .folder.display())]
    Damaged { folder: PathBuf, reason: String },
}

/// What a failed operation means for its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The data was deleted. Final.
    Gone,
    /// The data differs from the data that was written. Final.
    Damaged,
    /// Nothing is known about the data: the operation failed for lack of descriptors or memory, or
    /// because of the disk or a mount. A retry may succeed.
    TryAgain,
}

fn by(pid: &Option<u32>) -> String {
    pid.map(|pid| format!(", pid {pid}")).unwrap_or_default()
}

impl Error {
    /// Returns what this error means for the data.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Gone { .. } => Kind::Gone,
            Self::Payload { .. } | Self::Malformed(_) | Self::Damaged { .. } => Kind::Damaged,
            Self::Locked { .. }
            | Self::Conflict { .. }
            | Self::Unavailable { .. }
            | Self::Full
            | Self::Folder { .. }
            | Self::Misfit { .. }
            | Self::NewerFormat { .. }
            | Self::NotDurable => Kind::TryAgain,
        }
    }

    /// Whether a repeated read would fail in the same way. Only errors for which this function
    /// returns true may fail an execution or a delivery.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self.kind(), Kind::Gone | Kind::Damaged)
    }

    /// Creates the error for stored bytes that are not a valid `record`, or for a value that cannot
    /// be stored as a `record`.
    pub fn malformed(record: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::Malformed(Malformed { record, reason: reason.to_string() })
    }

    /// Creates the error for a failed operation on a file or folder.
    pub(super) fn folder(path: &Path, error: &io::Error) -> Self {
        let reason = if error.kind() == io::ErrorKind::ReadOnlyFilesystem {
            "its file system is read-only: mount it writable (Linux makes it read-only after an \
             error of the disk, which `dmesg` shows), or choose another data_dir"
                .to_owned()
        } else {
            error.to_string()
        };
        Self::Folder { path: path.to_path_buf(), reason }
    }

    /// Creates the error for a folder that is missing, or is an empty mount point, although the
    /// store needs files in it.
    #[must_use]
    pub fn missing_folder(path: &Path) -> Self {
        let reason = "it is missing or empty, but the store refers to files in it: mount its volume, \
                      or restore it from a backup; `orrery serve --accept-loss` starts without \
                      these files";
        Self::Folder { path: path.to_path_buf(), reason: reason.to_owned() }
    }

    /// Creates the error for a failed disk operation.
    pub(super) fn unavailable(error: &impl std::fmt::Display) -> Self {
        let reason = error.to_string();
        // Replace the engine's own message, which contains names of its types.
        let reason = if reason.contains("corrupted data") {
            "a page of its tree differs from what was written; `orrery verify` lists what can be read"
                .to_owned()
        } else {
            reason
        };
        Self::Unavailable { reason }
    }
}
