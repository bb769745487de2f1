//! Salvage: copies all readable data of a damaged data folder into a new one, and lists the losses.
//! The damaged folder is only read.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::restore::{Importing, PLACES, STORE, close, make, remove_folder};
use super::{Error, Report};
use orrery_storage::{Options, Store, salvage as reading};

/// The temporary folder in which a tree is rebuilt, inside the new data folder.
const PART: &str = "salvage.part";

impl Report {
    fn keep(&mut self, wreck: reading::Wreck) {
        let reading::Wreck { rows, faults, notes } = wreck;
        self.tables = rows;
        self.faults = faults;
        self.notes = notes;
    }
}

/// Reads a store that can no longer be opened, and reports its damage. Rebuilds the store's tree in
/// a temporary folder next to the store, which takes as much disk space as the store. Blocks; call
/// it on its own thread.
///
/// # Errors
/// [`Error::Storage`] if a service uses the store; [`Error::Disk`].
pub fn check_damaged(data: &Path, progress: &mut dyn FnMut(u64)) -> Result<Report, Error> {
    let scratch = tempfile::tempdir_in(data)?;
    let mut report = Report::default();
    let wreck = reading::read(data, scratch.path(), &mut |_row| {
        report.rows += 1;
        progress(report.rows);
        Ok(())
    })?;
    report.keep(wreck);
    if report.faults.is_empty() && report.notes.is_empty() {
        // Each part is readable, but the store still cannot be opened.
        report.faults.push("every row can be read, but the parts are inconsistent".to_owned());
    }
    Ok(report)
}

/// Copies all readable data from the data folder `data` into the new data folder `into`: rows,
/// payloads, files and keys. Files are hard-linked if both folders are on the same file system.
/// Blocks; within a runtime, call it on its own thread.
///
/// # Errors
/// [`Error::Refused`] if `into` is not empty; [`Error::Storage`] if a service uses `data`;
/// [`Error::Disk`].
pub fn salvage(
    data: &Path,
    into: &Path,
    inline_bytes: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, Error> {
    if !data.join(STORE).is_dir() {
        return Err(Error::Refused(format!("there is no store in {}", data.display())));
    }
    if let Some(place) = PLACES.iter().find(|place| into.join(place).exists()) {
        let message =
            format!("{} already contains {place}: salvage into an empty folder", into.display());
        return Err(Error::Refused(message));
    }
    make(into)?;
    let scratch = into.join(PART);
    remove_folder(&scratch)?;
    make(&scratch)?;
    let store = Store::open(&Options { folder: into.to_path_buf(), inline_bytes })?;
    let mut rows = Importing::into(&store, |key| key);
    let mut report = Report::default();
    let wreck = reading::read(data, &scratch, &mut |change| {
        report.rows += 1;
        rows.add(change)?;
        progress(rows.total);
        Ok(())
    });
    let wreck = wreck.map_err(Error::from).and_then(|wreck| {
        rows.flush()?;
        Ok(wreck)
    });
    close(store)?;
    remove_folder(&scratch)?;
    report.keep(wreck?);
    for place in PLACES.iter().filter(|place| **place != STORE) {
        link(&data.join(place), &into.join(place), &mut report)?;
    }
    fs::File::open(into)?.sync_all()?;
    Ok(report)
}

/// Hard-links or copies a file or folder recursively; unreadable parts are reported as faults.
fn link(from: &Path, to: &Path, report: &mut Report) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if metadata.is_file() {
        report.files += 1;
        report.bytes += metadata.len();
        if fs::hard_link(from, to).is_err()
            && let Err(error) = fs::copy(from, to)
        {
            report.faults.push(format!("{} cannot be read: {error}", from.display()));
        }
    } else if metadata.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            link(&entry.path(), &to.join(entry.file_name()), report)?;
        }
        fs::File::open(to)?.sync_all()?;
    }
    Ok(())
}
