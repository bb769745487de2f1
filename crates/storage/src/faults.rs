//! Fault injection for tests: a slow disk, and the files as they would be if the process were
//! killed at a chosen point.
//!
//! On reaching a point, a thread calls the function that the test has set. The function can wait,
//! or copy the data folder, which yields the files that would remain if the process were killed at
//! that point.

use std::fs;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// A position in a store thread, just before the named step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// Writing a group's record to the log.
    Write,
    /// Syncing the log.
    Sync,
    /// Making the group visible.
    Publish,
    /// Returning the results of the group's commits.
    Answer,
    /// Putting a row into the tree.
    Row,
    /// Noting the last applied record in the tree.
    Applied,
    /// Flushing the tree.
    Flush,
    /// Writing the marker.
    Marker,
    /// Removing log segments.
    Remove,
    /// The end of the checkpoint.
    Ended,
    /// Writing a part of the log to the archive.
    Archive,
    /// Renaming the archive file to its final name.
    ArchiveName,
    /// Noting the part as archived.
    ArchiveNote,
    /// Carrying out the deletions that waited for the archive.
    ArchiveFree,
}

type Hook = Arc<dyn Fn(Point) + Send + Sync>;

/// The injected faults. Initially none.
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
    /// Delays every sync of the log.
    pub fn slow_syncs(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.sync_millis.store(millis, Ordering::Relaxed);
    }

    /// Calls `hook` at every point from now on.
    pub fn at_points(&self, hook: impl Fn(Point) + Send + Sync + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    }

    /// Polls `caller` until the writer has reached the sync of its commit, and returns the caller
    /// while it is pending. The writer waits there until the returned sender is dropped.
    ///
    /// # Panics
    /// If the caller ends without a commit.
    #[expect(clippy::unwrap_used, reason = "a helper of tests: a panic is the test's failure")]
    pub async fn hold_at_sync<F: Future>(&self, caller: F) -> (Pin<Box<F>>, mpsc::Sender<()>) {
        let (reached, at_sync) = mpsc::channel();
        let (release, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        self.at_points(move |point| {
            if point == Point::Sync {
                let _dropped = reached.send(());
                let _dropped = held.lock().unwrap().recv();
            }
        });
        let mut caller = Box::pin(caller);
        loop {
            assert!(futures_util::poll!(caller.as_mut()).is_pending(), "it ended without a commit");
            if at_sync.try_recv().is_ok() {
                return (caller, release);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub fn hit(&self, point: Point) {
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

/// Copies a folder recursively. The copy is what would remain if the process were killed now.
#[expect(clippy::unwrap_used, reason = "a helper of tests: a panic is the test's failure")]
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
