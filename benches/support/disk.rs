//! Disk usage: bytes written to the disk of a folder, and the size of a folder.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Counters of the disk that contains a folder. They include all processes.
pub(crate) struct Disk(Option<PathBuf>);

/// Disk activity so far; NaN if the kernel does not count it.
#[derive(Clone, Copy)]
pub(crate) struct Use {
    /// Number of cache flushes.
    pub flushes: f64,
    pub bytes: f64,
}

impl Disk {
    /// Returns the disk that contains `folder`.
    pub(crate) fn of(folder: &Path) -> Self {
        let device = std::fs::metadata(folder).unwrap().dev();
        let major = libc::major(device);
        let minor = libc::minor(device);
        let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        Self(path.exists().then_some(path))
    }

    /// Waits until nothing has been written for a second, at most half a minute: pending writes of
    /// other processes would count.
    pub(crate) async fn until_quiet(&self) {
        let mut before = self.read().bytes;
        let mut quiet = 0;
        for _ in 0..150 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = self.read().bytes;
            quiet = if now > before { 0 } else { quiet + 1 };
            if quiet == 5 {
                return;
            }
            before = now;
        }
    }

    /// Reads the current counters.
    pub(crate) fn read(&self) -> Use {
        let Some(path) = &self.0 else { return Use { flushes: f64::NAN, bytes: f64::NAN } };
        let text = std::fs::read_to_string(path).unwrap();
        let fields: Vec<f64> =
            text.split_whitespace().map(|field| field.parse().unwrap()).collect();
        // Field 7 is the number of sectors written, of 512 bytes each; field 16 is the number of
        // flush requests.
        let field = |at: usize| fields.get(at).copied().unwrap_or(f64::NAN);
        Use { flushes: field(15), bytes: field(6) * 512.0 }
    }
}

/// Returns the bytes that the folder occupies on disk; 0 if it does not exist.
pub(crate) fn kept(folder: &Path) -> u64 {
    let mut bytes = 0;
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    for entry in entries {
        let entry = entry.unwrap();
        // The file has been removed in the meantime and takes no space.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { kept(&entry.path()) } else { metadata.blocks() * 512 };
    }
    bytes
}
