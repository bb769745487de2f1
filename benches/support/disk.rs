//! Disk usage: bytes written to the disk of a folder, and the size of a folder.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Counters of the disk that a folder is on, which include all processes.
pub struct Disk(Option<PathBuf>);

/// Disk usage so far; NaN if the kernel does not count it.
#[derive(Clone, Copy)]
pub struct Use {
    /// Cache flushes.
    pub flushes: f64,
    pub bytes: f64,
}

impl Disk {
    /// The disk of `folder`.
    pub fn of(folder: &Path) -> Self {
        let device = std::fs::metadata(folder).unwrap().dev();
        let major = libc::major(device);
        let minor = libc::minor(device);
        let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        Self(path.exists().then_some(path))
    }

    /// Waits until nothing has been written for a second, at most half a minute, since other
    /// processes' pending writes would be counted.
    pub async fn until_quiet(&self) {
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

    /// The current counters.
    pub fn read(&self) -> Use {
        let Some(path) = &self.0 else { return Use { flushes: f64::NAN, bytes: f64::NAN } };
        let text = std::fs::read_to_string(path).unwrap();
        let fields: Vec<f64> =
            text.split_whitespace().map(|field| field.parse().unwrap()).collect();
        // Field 7 is sectors written, of 512 bytes; field 16 is flush requests.
        let field = |at: usize| fields.get(at).copied().unwrap_or(f64::NAN);
        Use { flushes: field(15), bytes: field(6) * 512.0 }
    }
}

/// Bytes that the folder takes on the disk; 0 if it does not exist.
pub fn kept(folder: &Path) -> u64 {
    let mut bytes = 0;
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    for entry in entries {
        let entry = entry.unwrap();
        // A file that is being removed takes no space.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { kept(&entry.path()) } else { metadata.blocks() * 512 };
    }
    bytes
}
