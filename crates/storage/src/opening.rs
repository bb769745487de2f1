//! Opens a store: reads the tree, the log and the marker, and checks that they belong together.
//!
//! Missing, outdated, foreign or damaged parts are refused with an error that says what to do. A
//! new store is never created in place of a missing one, and nothing is repaired silently.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::error::Error;
use super::key::Key;
use super::log::form::StoreId;
use super::log::replay::{self, Found};
use super::log::{self, Log, Segments};
use super::marker::{self, Marker};
use super::memtable::Memtable;
use super::store::FORMAT;
use super::view::View;
use super::{data_dir, tree, tree_file};
use orrery_domain::ids::{Id, RequestId};
use orrery_runtime::new_id;

/// The store's folder within the data folder.
pub(crate) const STORE: &str = "store";

/// The parts of an open store.
pub(crate) struct Opened {
    pub view: View,
    pub log: Log,
    pub store: StoreId,
    /// The number of the last record that is in the tree.
    pub applied: u64,
}

/// Opens the store of the data folder `data`, which this process has locked, or creates it.
pub(crate) fn open(data: &Path) -> Result<Opened, Error> {
    let path = data.join(STORE);
    data_dir::refuse_special_files(data)?;
    let mark = Marker::read(data)?;
    if !path.join("db").exists() {
        refuse_missing(data, &path, mark.as_ref())?;
    }
    data_dir::remove_half_snapshots(&path)?;
    let damaged = |reason| Error::Damaged { folder: path.clone(), reason: since(reason, &mark) };
    tree_file::keep_damaged(&path).map_err(|error| Error::folder(&path, &error))?;
    let db = tree::open(&path).map_err(|error| {
        if let Error::Damaged { reason, .. } = error { damaged(reason) } else { error }
    })?;
    let log_folder = path.join(log::FOLDER);
    data_dir::make(&log_folder)?;
    let disk = |error: io::Error| Error::folder(&log_folder, &error);
    log::remove_leftovers(&log_folder).map_err(disk)?;
    let known = tree::store(&db)?;
    let applied = tree::applied(&db)?;
    let mut memtable = Memtable::new(applied);
    let mut bytes = 0;
    let mut malformed = None;
    let found = replay::read(&log_folder, applied, false, &mut |record| {
        if record.number > applied {
            bytes += record.bytes;
            match record.entries() {
                Some(rows) => memtable.load(record.number, rows),
                None => malformed = Some(record.number),
            }
        }
    });
    let found = found.map_err(disk)?;
    if let Some(number) = malformed {
        return Err(damaged(format!("the rows of record {number} of the log cannot be read")));
    }
    refuse_faults(&found, data, &damaged)?;
    refuse_misfits(known, applied, &found, mark.as_ref(), data)?;
    let store = known.or(found.store).unwrap_or_else(|| new_id::<RequestId>().bytes());
    let view = View { db, memtable: Arc::new(memtable) };
    check_format(&view, data)?;
    if found.is_torn {
        tracing::info!(
            record = found.last + 1,
            "incomplete record dropped from the end of the log"
        );
    }
    let number = found.last.max(applied);
    let segments = Arc::new(Segments::new(log_folder.clone(), found.segments));
    let mut log = Log::begin(Arc::clone(&segments), store, number, applied).map_err(disk)?;
    log.since_freeze = bytes;
    if known.is_none() {
        tree::set_store(&view.db, store)?;
    }
    tree::flush(&view.db)?;
    data_dir::sync_new(data, &path)?;
    if view.memtable.is_empty() {
        segments.remove_through(number, false).map_err(disk)?;
    }
    Marker::new(store, number, view.memtable.len() as u64).write(data)?;
    tree_file::forget_damaged(&path).map_err(|error| Error::folder(&path, &error))?;
    Ok(Opened { view, log, store, applied })
}

/// Extends an error's reason with the time when the store was last known to be intact, and with
/// advice on what to do.
fn since(reason: String, mark: &Option<Marker>) -> String {
    match mark {
        None => reason,
        Some(mark) => format!(
            "{reason}; the store was intact on {} (up to record {}). Restore a backup, or save \
             what can be read with `orrery salvage --into DIR`",
            mark.at, mark.record
        ),
    }
}

/// Refuses to create a store where one existed before.
fn refuse_missing(data: &Path, path: &Path, mark: Option<&Marker>) -> Result<(), Error> {
    let misfit = |reason| Err(Error::Misfit { folder: data.to_path_buf(), reason });
    if let Some(mark) = mark {
        return misfit(format!(
            "its store is missing: {} does not exist, but did on {} (up to record {}). Mount or \
             move it back, or restore a backup into an empty folder. To start over, move \
             everything out of {}",
            path.join("db").display(),
            mark.at,
            mark.record,
            data.display()
        ));
    }
    if path.join(log::FOLDER).is_dir() && has_entries(&path.join(log::FOLDER))? {
        return misfit(format!(
            "the tree of its store is missing: {} has a log and no `db`. Put the whole folder back, \
             or save what the log holds with `orrery salvage --into DIR`",
            path.display()
        ));
    }
    Ok(())
}

fn has_entries(folder: &Path) -> Result<bool, Error> {
    let entries = fs::read_dir(folder).map_err(|error| Error::folder(folder, &error))?;
    Ok(entries.flatten().any(|entry| entry.file_name().to_str().and_then(log::first_of).is_some()))
}

/// Refuses a log that cannot be read to its end.
fn refuse_faults(
    found: &Found,
    data: &Path,
    damaged: &dyn Fn(String) -> Error,
) -> Result<(), Error> {
    match found.errors.first() {
        None => Ok(()),
        Some(replay::Error::Newer { format }) => Err(Error::NewerFormat {
            folder: data.to_path_buf(),
            found: *format,
            known: log::form::FORMAT,
        }),
        Some(fault) => Err(damaged(fault.to_string())),
    }
}

/// Refuses parts that do not belong together, or one of which is outdated.
fn refuse_misfits(
    tree: Option<StoreId>,
    applied: u64,
    log: &Found,
    mark: Option<&Marker>,
    data: &Path,
) -> Result<(), Error> {
    const BACK: &str = "put the whole `store` folder back as it was, or restore a backup";
    let refuse = |reason| Err(Error::Misfit { folder: data.to_path_buf(), reason });
    let store = tree.or(log.store);
    match (tree, log.store) {
        (Some(_), None) => return refuse(format!("the log of its store is missing: {BACK}")),
        (Some(tree), Some(log)) if tree != log => {
            return refuse(format!("its log belongs to another store: {BACK}"));
        }
        // A first start that was killed leaves an empty log and a tree without a store id.
        (None, Some(_)) if log.last > 0 || log.checkpoint > 0 => {
            return refuse(format!("its tree is new or older than its log: {BACK}"));
        }
        (None | Some(_), _) => {}
    }
    if tree.is_some() {
        if applied < log.checkpoint {
            return refuse(format!(
                "its tree has lost rows or is older than its log: it contains the records up \
                 to {applied}, but had been flushed up to {}: {BACK}, or save what can be read with \
                 `orrery salvage --into DIR`",
                log.checkpoint
            ));
        }
        if log.first > applied.saturating_add(1) {
            let first = log.first;
            return refuse(format!(
                "the beginning of its log is missing: the tree holds the records up to {applied}, \
                 and the log begins with {first}: {BACK}"
            ));
        }
        if log.last < applied {
            let last = log.last;
            return refuse(format!(
                "its log is older than its tree, or has lost its end: it ends with record {last}, \
                 and the tree holds the records up to {applied}: {BACK}, or save all rows with \
                 `orrery salvage --into DIR`"
            ));
        }
    }
    let Some(mark) = mark else { return Ok(()) };
    let file = marker::path_of(data);
    let is = |id: uuid::Uuid| store == Some(id.into_bytes());
    if mark.next.is_some_and(is) {
        return Ok(());
    }
    if !is(mark.store) {
        return refuse(format!(
            "its store is not the one that belongs here (that one was here on {}): {BACK}. To use \
             this store anyway, delete {}",
            mark.at,
            file.display()
        ));
    }
    let last = log.last.max(applied);
    if last < mark.record {
        return refuse(format!(
            "its store is older than it was, or the end of its log is lost: it ends with record \
             {last}, but had record {} on {}: {BACK}. To use this store anyway, delete {}",
            mark.record,
            mark.at,
            file.display()
        ));
    }
    Ok(())
}

/// Refuses a store written by a newer release. Upgrades the format number of an older store.
fn check_format(view: &View, data: &Path) -> Result<(), Error> {
    let key: Key = tree::format_key();
    let row = view.get(&key)?;
    let found = match row.as_deref().map(<[u8; 4]>::try_from) {
        None => None,
        Some(Ok(bytes)) => Some(u32::from_be_bytes(bytes)),
        Some(Err(_length)) => {
            let reason = "its format marker is not a number".to_owned();
            return Err(Error::Damaged { folder: data.to_path_buf(), reason });
        }
    };
    match found {
        Some(found) if found > FORMAT => {
            Err(Error::NewerFormat { folder: data.to_path_buf(), found, known: FORMAT })
        }
        Some(FORMAT) => Ok(()),
        // Data in earlier formats is readable without conversion. From now on, the current format
        // is written.
        Some(_) | None => tree::set_format(&view.db, FORMAT),
    }
}
