//! Faults for tests: a slow disk, and what a kill at a chosen point would leave.
//!
//! A point calls the function that a test has set, on the thread that reached it: it can copy the
//! data folder as a kill would leave it there, or wait.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Where a thread of the store is: just before the step that the name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// A group's record is written to the log.
    Write,
    /// The log is synced.
    Sync,
    /// The group is made visible.
    Publish,
    /// Its commits are answered.
    Answer,
    /// A row is put into the tree.
    Row,
    /// The tree's last record is noted.
    Applied,
    /// The tree is flushed.
    Flush,
    /// The mark is written.
    Marker,
    /// Segments of the log are removed.
    Remove,
    /// The checkpoint has ended.
    Ended,
    /// A part of the log is written beside the backups.
    Archive,
    /// It gets its name there.
    ArchiveName,
    /// It is noted as archived.
    ArchiveNote,
    /// What waited for that is deleted.
    ArchiveFree,
}

type Hook = Arc<dyn Fn(Point) + Send + Sync>;

/// What goes wrong; nothing at first.
#[derive(Default)]
pub struct Faults {
    sync_millis: AtomicU64,
    hook: Mutex<Option<Hook>>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults").field("sync_millis", &self.sync_millis).finish_non_exhaustive()
    }
}

impl Faults {
    /// Every sync of the log takes so much longer.
    pub fn slow_syncs(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.sync_millis.store(millis, Ordering::Relaxed);
    }

    /// Calls `hook` at every point from now on.
    pub fn at_points(&self, hook: impl Fn(Point) + Send + Sync + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    }

    pub(crate) fn hit(&self, point: Point) {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = hook {
            hook(point);
        }
        let slow = self.sync_millis.load(Ordering::Relaxed);
        if point == Point::Sync && slow > 0 {
            std::thread::sleep(Duration::from_millis(slow));
        }
    }
}

/// Copies a folder with everything below it: what a kill at this moment would leave.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
