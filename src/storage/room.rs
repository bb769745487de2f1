//! Whether the disk under the data folder has room left.
//!
//! Whoever asks makes it look, once a second at most: so a full disk is noticed as long as anybody
//! asks for work, and so is room that was made, without a write having to succeed first.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::folder;

/// With less room than this on the disk the store says so, before a write fails.
const LEAST_FREE_BYTES: u64 = 64 * 1024 * 1024;
/// How often the disk is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The room on one disk.
#[derive(Debug)]
pub struct Room {
    folder: PathBuf,
    cramped: AtomicBool,
    looked: Mutex<Option<Instant>>,
}

impl Room {
    /// The room on the disk that holds `folder`.
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder, cramped: AtomicBool::new(false), looked: Mutex::new(None) }
    }

    /// Whether the disk is nearly full. Never waits: while one looks, all others are told what the
    /// last look found.
    pub fn is_cramped(&self) -> bool {
        if let Ok(mut looked) = self.looked.try_lock()
            && looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY)
        {
            *looked = Some(Instant::now());
            self.look();
        }
        self.cramped.load(Ordering::Relaxed)
    }

    fn look(&self) {
        let cramped = folder::free_bytes(&self.folder).is_some_and(|free| free < LEAST_FREE_BYTES);
        let folder = self.folder.display();
        match (self.cramped.swap(cramped, Ordering::Relaxed), cramped) {
            (false, true) => tracing::error!(%folder, "the disk is nearly full: free some space"),
            (true, false) => tracing::info!(%folder, "the disk has room again"),
            (true, true) | (false, false) => {}
        }
    }
}
