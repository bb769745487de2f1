//! Monitors the free space of the data folder's disk, and keeps a reserve of free space.
//!
//! New work is refused once the free space is below the reserve, so that accepted work can still
//! finish. Part of the reserve is a ballast file, so that other programs cannot use it up. The file
//! is deleted when the disk is about to be full, and recreated when there is space again.
//!
//! [`DiskSpaceMonitor::is_low`] checks the disk at most once a second. As long as requests arrive
//! and call it, the service notices when the disk fills up and when space is freed.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use tokio::time::Instant;

use super::data_dir;
use orrery_domain::bytes::gigabytes;
use orrery_runtime as runtime;

const MIB: u64 = 1024 * 1024;
/// The default reserve is the larger of this number of bytes and a twentieth of the disk.
const RESERVE_BYTES: u64 = 2048 * MIB;
const RESERVE_SHARE: u64 = 20;
/// The default reserve is at most a quarter of the disk.
const RESERVE_SHARE_MAX: u64 = 4;
/// The ballast is an eighth of the reserve, but at most the following number of bytes.
const BALLAST_SHARE: u64 = 8;
const BALLAST_MAX: u64 = 256 * MIB;
/// The disk is about to be full when its free space is below a quarter of the ballast.
const FLOOR_SHARE: u64 = 4;
/// The minimum interval between disk checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The ballast's name within the data folder.
const BALLAST: &str = "ballast";

/// Monitors the free space of one disk.
#[derive(Debug)]
pub struct DiskSpaceMonitor {
    folder: PathBuf,
    /// The reserve, in bytes.
    reserve: AtomicU64,
    low: AtomicBool,
    /// Whether to keep a ballast file, which only a running service does.
    has_ballast: AtomicBool,
    checked: Mutex<Option<Instant>>,
}

/// Returns the default reserve for a disk of `total` bytes.
const fn default_reserve(total: u64) -> u64 {
    let share = total / RESERVE_SHARE;
    let wanted = if share > RESERVE_BYTES { share } else { RESERVE_BYTES };
    let most = total / RESERVE_SHARE_MAX;
    if wanted < most { wanted } else { most }
}

impl DiskSpaceMonitor {
    /// Monitors the disk that contains `folder`. There is no reserve until [`Self::keep`] sets it.
    /// Only a running service sets a reserve, so that a command that repairs a store can write to a
    /// disk that is nearly full.
    pub fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            reserve: AtomicU64::new(0),
            low: AtomicBool::new(false),
            has_ballast: AtomicBool::new(false),
            checked: Mutex::new(None),
        }
    }

    /// Monitors a disk without a store, such as the disk for backups. Such a disk has no ballast.
    /// The reserve is in bytes; `None` means the default.
    #[must_use]
    pub fn with_reserve(folder: PathBuf, reserve: Option<u64>) -> Self {
        let monitor = Self::new(folder);
        monitor.set_reserve(reserve);
        monitor
    }

    /// Sets the reserve in bytes (`None` means the default), and keeps a ballast file as part of
    /// the reserve.
    pub fn keep(&self, reserve: Option<u64>) {
        self.set_reserve(reserve);
        self.has_ballast.store(true, Ordering::Relaxed);
        self.check();
    }

    fn set_reserve(&self, reserve: Option<u64>) {
        let of_disk =
            || data_dir::sizes(&self.folder).map_or(0, |sizes| default_reserve(sizes.total));
        self.reserve.store(reserve.unwrap_or_else(of_disk), Ordering::Relaxed);
    }

    /// Bytes to keep free, including the ballast.
    #[must_use]
    pub fn reserve(&self) -> u64 {
        self.reserve.load(Ordering::Relaxed)
    }

    /// The size of the disk, in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        data_dir::sizes(&self.folder).map_or(u64::MAX, |sizes| sizes.total)
    }

    /// Bytes that can be written before the reserve is touched.
    #[must_use]
    pub fn spare(&self) -> u64 {
        self.free().saturating_sub(self.reserve())
    }

    /// Bytes available to this user, including the ballast.
    #[must_use]
    pub fn free(&self) -> u64 {
        let free = data_dir::sizes(&self.folder).map_or(u64::MAX, |sizes| sizes.free);
        free.saturating_add(self.ballast_bytes())
    }

    /// A warning for the operator while the disk is nearly full.
    #[must_use]
    pub fn concern(&self) -> Option<String> {
        self.is_low().then(|| shortage(self.free(), self.reserve()))
    }

    /// Whether the disk is nearly full. Never blocks: while one caller checks, other callers get
    /// the previous result.
    pub fn is_low(&self) -> bool {
        if let Ok(mut checked) = self.checked.try_lock()
            && checked.is_none_or(|at| at.elapsed() >= CHECK_INTERVAL)
        {
            *checked = Some(runtime::monotonic_now());
            self.check();
        }
        self.low.load(Ordering::Relaxed)
    }

    /// Deletes the ballast if the disk is about to be full, so that a starting service has space.
    pub(super) fn free_ballast_if_full(&self) {
        let ballast = self.ballast_bytes();
        let free = data_dir::sizes(&self.folder).map_or(u64::MAX, |sizes| sizes.free);
        if ballast > 0 && free < ballast / FLOOR_SHARE {
            self.release_ballast();
        }
    }

    /// Deletes the ballast. Returns whether there was a ballast, in which case a write that failed
    /// on a full disk can be retried.
    pub fn release_ballast(&self) -> bool {
        let path = self.folder.join(BALLAST);
        let released = fs::remove_file(&path).is_ok();
        if released {
            self.low.store(true, Ordering::Relaxed);
            tracing::error!(path = %path.display(), "disk full: ballast file deleted");
        }
        released
    }

    /// The size of the ballast file, in bytes.
    #[must_use]
    pub fn ballast_bytes(&self) -> u64 {
        fs::metadata(self.folder.join(BALLAST)).map_or(0, |metadata| metadata.len())
    }

    fn check(&self) {
        let Some(sizes) = data_dir::sizes(&self.folder) else { return };
        let reserve = self.reserve();
        let ballast = self.ballast_bytes();
        let is_low = sizes.free.saturating_add(ballast) < reserve;
        let folder = self.folder.display();
        match (self.low.swap(is_low, Ordering::Relaxed), is_low) {
            (false, true) => tracing::error!(
                %folder, free = sizes.free, reserve,
                "disk nearly full: new work is refused until there is more free space"
            ),
            (true, false) => tracing::info!(%folder, "disk has free space again"),
            (true, true) | (false, false) => {}
        }
        if !self.has_ballast.load(Ordering::Relaxed) {
            return;
        }
        let wanted = (reserve / BALLAST_SHARE).min(BALLAST_MAX);
        if ballast > 0 && sizes.free < ballast / FLOOR_SHARE {
            self.release_ballast();
        } else if ballast != wanted && sizes.free.saturating_add(ballast) >= reserve {
            let path = self.folder.join(BALLAST);
            if let Err(error) = create_ballast(&path, wanted) {
                let _half_created = fs::remove_file(&path);
                tracing::warn!(path = %path.display(), %error, "failed to create the ballast file");
                self.has_ballast.store(false, Ordering::Relaxed);
            }
        }
    }
}

/// Returns the warning for a disk with less free space than its reserve.
#[must_use]
pub fn shortage(free: u64, reserve: u64) -> String {
    format!(
        "{} are free, less than the reserve of {} (limits.disk_reserve): new work is refused until \
         there is more free space",
        gigabytes(free),
        gigabytes(reserve)
    )
}

/// Creates the ballast with `bytes` bytes of allocated blocks.
fn create_ballast(path: &Path, bytes: u64) -> io::Result<()> {
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
    fn disk_space_default_reserve_scales_with_disk_size() {
        for (total_gib, reserve_mib) in [(1, 256), (4, 1024), (8, 2048), (30, 2048), (100, 5120)] {
            assert_eq!(default_reserve(total_gib * 1024 * MIB), reserve_mib * MIB, "{total_gib}");
        }
    }

    #[test]
    fn disk_space_has_no_reserve_until_set() {
        let folder = tempfile::tempdir().unwrap();
        let monitor = DiskSpaceMonitor::new(folder.path().to_path_buf());
        assert_eq!((monitor.reserve(), monitor.is_low()), (0, false));
        let of_disk = default_reserve(monitor.total());
        assert!(of_disk > 0);
        let other = DiskSpaceMonitor::with_reserve(folder.path().to_path_buf(), None);
        assert_eq!(other.reserve(), of_disk);
        monitor.set_reserve(Some(MIB));
        assert_eq!(monitor.reserve(), MIB);
        monitor.set_reserve(None);
        assert_eq!(monitor.reserve(), of_disk);
    }

    #[test]
    fn disk_space_ballast_is_released_and_recreated() {
        let folder = tempfile::tempdir().unwrap();
        let monitor = DiskSpaceMonitor::new(folder.path().to_path_buf());
        let ballast = folder.path().join(BALLAST);
        monitor.keep(Some(8 * MIB));
        assert_eq!(fs::metadata(&ballast).unwrap().len(), MIB);
        assert!(monitor.release_ballast() && !ballast.exists());
        assert!(monitor.low.load(Ordering::Relaxed), "until the next check");
        assert!(!monitor.release_ballast(), "there is none");
        monitor.check();
        assert_eq!(fs::metadata(&ballast).unwrap().len(), MIB);
        assert!(!monitor.low.load(Ordering::Relaxed));
        assert_eq!(monitor.concern(), None);
    }

    #[test]
    fn disk_space_below_reserve_is_low_and_gets_no_ballast() {
        let folder = tempfile::tempdir().unwrap();
        let monitor = DiskSpaceMonitor::new(folder.path().to_path_buf());
        monitor.keep(Some(u64::MAX));
        assert!(monitor.is_low());
        assert!(monitor.concern().unwrap().contains("new work is refused"));
        assert_eq!(monitor.spare(), 0);
        assert!(!folder.path().join(BALLAST).exists());
    }
}
