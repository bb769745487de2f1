//! The free space of the disk under the data folder, and the reserve that is kept of it.
//!
//! New work is refused once less than the reserve is free, so that accepted work can still end. A
//! part of the reserve is a ballast file, which no other program on the disk can use up: it is
//! deleted when the disk is about to be full, and made again when there is room.
//!
//! Every question makes it look at the disk, at most once a second: a full disk is noticed as long
//! as anyone asks for work, and so is room that was made.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use tokio::time::Instant;

use super::folder;
use crate::runtime;

const MIB: u64 = 1024 * 1024;
/// The default reserve: the larger of this and a twentieth of the disk …
const RESERVE_BYTES: u64 = 2048 * MIB;
const RESERVE_SHARE: u64 = 20;
/// … but never more than this share of the disk.
const RESERVE_SHARE_MOST: u64 = 4;
/// The ballast's share of the reserve, and the most bytes that it has.
const BALLAST_SHARE: u64 = 8;
const BALLAST_MOST: u64 = 256 * MIB;
/// With less than this share of the ballast free, the disk is about to be full.
const FLOOR_SHARE: u64 = 4;
/// How often the disk is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The ballast's name within the data folder.
const BALLAST: &str = "ballast";

/// The room on one disk.
#[derive(Debug)]
pub struct Room {
    folder: PathBuf,
    /// Bytes.
    reserve: AtomicU64,
    cramped: AtomicBool,
    /// Whether a ballast is kept: only where a service runs.
    has_ballast: AtomicBool,
    looked: Mutex<Option<Instant>>,
}

/// The reserve on a disk of `total` bytes where the configuration names none.
const fn default_reserve(total: u64) -> u64 {
    let share = total / RESERVE_SHARE;
    let wanted = if share > RESERVE_BYTES { share } else { RESERVE_BYTES };
    let most = total / RESERVE_SHARE_MOST;
    if wanted < most { wanted } else { most }
}

impl Room {
    /// The room on the disk that holds `folder`, with the default reserve.
    pub fn new(folder: PathBuf) -> Self {
        let reserve = folder::sizes(&folder).map_or(0, |sizes| default_reserve(sizes.total));
        Self {
            folder,
            reserve: AtomicU64::new(reserve),
            cramped: AtomicBool::new(false),
            has_ballast: AtomicBool::new(false),
            looked: Mutex::new(None),
        }
    }

    /// The room on a disk that holds no store: a backup's, with the default reserve or another.
    #[must_use]
    pub fn with_reserve(folder: PathBuf, reserve: Option<u64>) -> Self {
        let room = Self::new(folder);
        if let Some(reserve) = reserve {
            room.reserve.store(reserve, Ordering::Relaxed);
        }
        room
    }

    /// Keeps so many bytes in reserve, and a ballast as a part of them.
    pub fn keep(&self, reserve: Option<u64>) {
        if let Some(reserve) = reserve {
            self.reserve.store(reserve, Ordering::Relaxed);
        }
        self.has_ballast.store(true, Ordering::Relaxed);
        self.look();
    }

    /// Bytes that are kept free, the ballast included.
    #[must_use]
    pub fn reserve(&self) -> u64 {
        self.reserve.load(Ordering::Relaxed)
    }

    /// The size of the disk, in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        folder::sizes(&self.folder).map_or(u64::MAX, |sizes| sizes.total)
    }

    /// Bytes that may be written before the reserve begins.
    #[must_use]
    pub fn spare(&self) -> u64 {
        let kept = folder::sizes(&self.folder).map_or(u64::MAX, |sizes| sizes.free);
        kept.saturating_add(self.ballast_bytes()).saturating_sub(self.reserve())
    }

    /// Whether the disk is nearly full. Never waits: while one caller looks, all others get what the
    /// last look found.
    pub fn is_cramped(&self) -> bool {
        if let Ok(mut looked) = self.looked.try_lock()
            && looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY)
        {
            *looked = Some(runtime::monotonic_now());
            self.look();
        }
        self.cramped.load(Ordering::Relaxed)
    }

    /// Deletes the ballast where the disk is about to be full, so that a start has room.
    pub(super) fn make_way(&self) {
        let ballast = self.ballast_bytes();
        let free = folder::sizes(&self.folder).map_or(u64::MAX, |sizes| sizes.free);
        if ballast > 0 && free < ballast / FLOOR_SHARE {
            self.give_up_ballast();
        }
    }

    /// Deletes the ballast. True when there was one: a write that found no room may be tried again.
    pub fn give_up_ballast(&self) -> bool {
        let path = self.folder.join(BALLAST);
        let is_given = fs::remove_file(&path).is_ok();
        if is_given {
            self.cramped.store(true, Ordering::Relaxed);
            tracing::error!(path = %path.display(), "the disk is full: the ballast was deleted");
        }
        is_given
    }

    fn ballast_bytes(&self) -> u64 {
        fs::metadata(self.folder.join(BALLAST)).map_or(0, |metadata| metadata.len())
    }

    fn look(&self) {
        let Some(sizes) = folder::sizes(&self.folder) else { return };
        let (reserve, ballast) = (self.reserve(), self.ballast_bytes());
        let cramped = sizes.free.saturating_add(ballast) < reserve;
        let folder = self.folder.display();
        match (self.cramped.swap(cramped, Ordering::Relaxed), cramped) {
            (false, true) => tracing::error!(
                %folder, free = sizes.free, reserve,
                "the disk is nearly full: new work is refused until there is more free space"
            ),
            (true, false) => tracing::info!(%folder, "the disk has room again"),
            (true, true) | (false, false) => {}
        }
        if !self.has_ballast.load(Ordering::Relaxed) {
            return;
        }
        let wanted = (reserve / BALLAST_SHARE).min(BALLAST_MOST);
        if ballast > 0 && sizes.free < ballast / FLOOR_SHARE {
            self.give_up_ballast();
        } else if ballast != wanted && sizes.free.saturating_add(ballast) >= reserve {
            let path = self.folder.join(BALLAST);
            if let Err(error) = make_ballast(&path, wanted) {
                let _half_made = fs::remove_file(&path);
                tracing::warn!(path = %path.display(), %error, "no ballast can be made");
                self.has_ballast.store(false, Ordering::Relaxed);
            }
        }
    }
}

/// Makes the ballast with so many bytes of the disk's own blocks.
fn make_ballast(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    if bytes > 0 {
        fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_reserve_follows_the_size_of_the_disk() {
        for (total_gib, reserve_mib) in [(1, 256), (4, 1024), (8, 2048), (30, 2048), (100, 5120)] {
            assert_eq!(default_reserve(total_gib * 1024 * MIB), reserve_mib * MIB, "{total_gib}");
        }
    }

    #[test]
    fn ballast_is_kept_given_up_and_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let room = Room::new(folder.path().to_path_buf());
        let ballast = folder.path().join(BALLAST);
        room.keep(Some(8 * MIB));
        assert_eq!(fs::metadata(&ballast).unwrap().len(), MIB);
        assert!(room.give_up_ballast() && !ballast.exists());
        assert!(room.cramped.load(Ordering::Relaxed), "until the next look");
        assert!(!room.give_up_ballast(), "there is none");
        room.look();
        assert_eq!(fs::metadata(&ballast).unwrap().len(), MIB);
        assert!(!room.cramped.load(Ordering::Relaxed));
    }

    #[test]
    fn a_disk_with_less_free_than_the_reserve_is_cramped_and_gets_no_ballast() {
        let folder = tempfile::tempdir().unwrap();
        let room = Room::new(folder.path().to_path_buf());
        room.keep(Some(u64::MAX));
        assert!(room.is_cramped());
        assert_eq!(room.spare(), 0);
        assert!(!folder.path().join(BALLAST).exists());
    }
}
