//! The marker: a small file next to the store's folder that contains the store's id and the number
//! of the last record known to be durable. The marker lets a starting service distinguish a new
//! folder from a folder whose store is missing (an unmounted volume) or outdated (a restored copy).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::data_dir;
use super::error::Error;
use super::log::form::StoreId;
use super::opening::STORE;
use orrery_runtime::Clock;

/// The marker's file name in the data folder.
pub(crate) const FILE: &str = "store.mark";

/// The contents of the marker file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marker {
    pub store: Uuid,
    /// A store that is about to replace the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Uuid>,
    /// The number of the last log record that was durable when the marker was written.
    pub record: u64,
    /// The number of rows that were not in the tree yet.
    pub rows_in_log: u64,
    /// When the marker was written.
    pub at: String,
}

impl Marker {
    /// Creates a marker of the current state.
    pub(crate) fn new(store: StoreId, record: u64, rows_in_log: u64) -> Self {
        let at = Clock::system().now().to_string();
        Self { store: Uuid::from_bytes(store), next: None, record, rows_in_log, at }
    }

    /// Reads the marker of a data folder. Returns `None` if there is no marker.
    pub(crate) fn read(data: &Path) -> Result<Option<Self>, Error> {
        let path = path_of(data);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| Error::folder(&path, &error))?,
        };
        let marker = serde_json::from_slice(&text);
        marker.map(Some).map_err(|error| Error::Folder {
            path,
            reason: format!(
                "it is damaged ({error}). If the store next to it is the right one, delete this \
                 file and start again"
            ),
        })
    }

    /// Writes the marker durably.
    pub(crate) fn write(&self, data: &Path) -> Result<(), Error> {
        let path = path_of(data);
        let text = serde_json::to_vec(self)
            .map_err(|error| Error::Folder { path: path.clone(), reason: error.to_string() })?;
        data_dir::write_new(&path, &text)
    }
}

/// The path of a data folder's marker.
pub(crate) fn path_of(data: &Path) -> PathBuf {
    data.join(FILE)
}

/// Atomically exchanges the closed store of the data folder `from` with the store of `data`. After
/// a crash, either store may be in use; the marker contains the ids of both.
///
/// # Errors
/// [`Error::Folder`]: then the store of `data` is unchanged.
pub fn exchange(data: &Path, from: &Path) -> Result<(), Error> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let missing = |at: &Path| Error::Folder {
        path: path_of(at),
        reason: "it is missing, so the store next to it cannot be moved".to_owned(),
    };
    let new = Marker::read(from)?.ok_or_else(|| missing(from))?;
    let old = Marker::read(data)?.ok_or_else(|| missing(data))?;
    Marker { next: Some(new.store), ..old }.write(data)?;
    let here = data.join(STORE);
    let there = from.join(STORE);
    renameat_with(CWD, &there, CWD, &here, RenameFlags::EXCHANGE)
        .map_err(|error| Error::folder(&here, &error.into()))?;
    data_dir::sync(data)?;
    new.write(data)
}
