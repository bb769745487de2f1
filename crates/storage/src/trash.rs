//! The trash: a sweep moves files to a folder `lost` within the folder that it cleans, and deletes
//! them a week later. A sweep that finds many more orphaned files than a crash can cause removes
//! nothing, unless the operator accepts the loss.
//!
//! If files are orphaned only because rows are missing (in an outdated or damaged store), this
//! limit and the week in the trash protect the files.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orrery_domain::time::Timestamp;

/// The trash folder, within the folder that is swept.
pub const LOST: &str = "lost";
/// How long trashed files are retained.
pub const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// A sweep may remove this many files, or a fixed share of all files if that is more.
const SWEEP_FILES_MAX: usize = 1000;
const SWEEP_SHARE: usize = 100;
/// The length of the name of a day folder: `2026-11-21`.
const DAY: usize = 10;

/// The options of a sweep.
#[derive(Debug, Clone, Copy)]
pub struct SweepOptions {
    pub now: Timestamp,
    /// Whether the operator accepts the removal of an unlimited number of files.
    pub accepts_loss: bool,
}

/// The result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of orphaned files, and of all files.
    pub unused: usize,
    pub total: usize,
    /// The number of files moved to the trash.
    pub moved: usize,
    /// Whether the sweep was aborted because there were too many orphaned files.
    pub refused: bool,
}

/// Whether a sweep may remove `unused` of `total` files without the operator's consent.
#[must_use]
pub const fn may_take(unused: usize, total: usize) -> bool {
    let share = total / SWEEP_SHARE;
    unused <= SWEEP_FILES_MAX || unused <= share
}

/// Moves a file in the folder `place` to the trash of that folder, keeping the file's name.
///
/// # Errors
/// If the disk fails. The file then stays in place.
pub fn move_in(place: &Path, path: &Path, now: Timestamp) -> io::Result<()> {
    let folder = place.join(LOST).join(day(now));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let name = path.file_name().unwrap_or_default();
    fs::rename(path, folder.join(name))
}

/// Returns the path of a file in the trash of the folder `place`, or `None` if the trash contains
/// no file with this name.
#[must_use]
pub fn find(place: &Path, name: &str) -> Option<PathBuf> {
    let days = fs::read_dir(place.join(LOST)).ok()?;
    days.flatten().map(|day| day.path().join(name)).find(|path| path.is_file())
}

/// Deletes files trashed more than [`RETENTION`] ago. Returns the number of day folders deleted.
///
/// # Errors
/// If the disk fails.
pub fn empty(place: &Path, now: Timestamp) -> io::Result<usize> {
    let days = match fs::read_dir(place.join(LOST)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        days => days?,
    };
    // A day folder can be deleted once its day ended at least RETENTION ago.
    let last = now.before(RETENTION + Duration::from_secs(24 * 3600)).map(day);
    let mut removed = 0;
    for entry in days {
        let path: PathBuf = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.len() == DAY && last.as_ref().is_some_and(|last| name <= *last) {
            fs::remove_dir_all(&path)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// The day of a time, in a form that sorts by time.
fn day(time: Timestamp) -> String {
    time.to_string().chars().take(DAY).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_limit_is_a_thousand_files_or_one_percent() {
        for (unused, total, may) in [
            (0, 0, true),
            (1000, 1000, true),
            (1001, 1001, false),
            (1001, 100_099, false),
            (1001, 100_100, true),
            (5000, 500_000, true),
            (5001, 500_000, false),
        ] {
            assert_eq!(may_take(unused, total), may, "{unused} of {total}");
        }
    }

    #[test]
    fn trash_keeps_files_for_a_week() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "x").unwrap();
        let hours = |hours: u64| Timestamp::from_micros(0).plus(Duration::from_secs(hours * 3600));
        move_in(folder.path(), &path, hours(23)).unwrap();
        assert!(!path.exists());
        assert_eq!(empty(folder.path(), hours(23 + 7 * 24)).unwrap(), 0);
        assert_eq!(fs::read(folder.path().join("lost/1970-01-01/a")).unwrap(), b"x");
        assert_eq!(empty(folder.path(), hours(24 + 7 * 24)).unwrap(), 1);
        assert_eq!(empty(folder.path(), hours(24 + 7 * 24)).unwrap(), 0);
    }
}
