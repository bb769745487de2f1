//! Checks the disk of the data folder by flushing a temporary file.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use orrery_api::Finding;
use orrery_runtime as runtime;

/// Number of timed flushes.
const FLUSHES: usize = 9;
/// Bytes written per flush.
const BLOCK: usize = 4096;
/// Median flush time above which every commit is slow.
const SLOW: Duration = Duration::from_millis(50);
/// Median flush time below which the disk cannot really be persisting data.
const TOO_FAST: Duration = Duration::from_micros(5);
/// In-memory file systems, by the magic number of `statfs`: tmpfs and ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58F6];

pub(super) fn findings(folder: &Path) -> Option<Finding> {
    if !folder.is_dir() {
        return None;
    }
    let mend = "move the data folder to a disk that stores data before it acknowledges a flush";
    if is_in_memory(folder) {
        let detail = "the data folder is in memory: a restart of the machine loses everything";
        return Some(Finding::fault("fsync", detail).mended_by(mend));
    }
    Some(match flush_time(folder) {
        Err(error) => Finding::fault("fsync", format!("a file cannot be flushed: {error}"))
            .mended_by("dmesg; the permissions of the data folder"),
        Ok(time) => {
            judge(time).unwrap_or_else(|detail| Finding::warning("fsync", detail).mended_by(mend))
        }
    })
}

/// Evaluates the median flush time.
fn judge(time: Duration) -> Result<Finding, String> {
    let shown = format!("{:.2} ms", time.as_secs_f64() * 1000.0);
    if time < TOO_FAST {
        return Err(format!(
            "a flush takes {shown}, which is implausibly fast: the disk may acknowledge writes \
             before it has stored them"
        ));
    }
    if time > SLOW {
        return Err(format!("a flush takes {shown}: every commit waits for a flush"));
    }
    Ok(Finding::good("fsync", format!("a flush takes {shown}")))
}

/// Returns whether a folder is on an in-memory file system.
#[must_use]
pub fn is_in_memory(folder: &Path) -> bool {
    let magic = rustix::fs::statfs(folder).map(|found| found.f_type.cast_unsigned());
    magic.is_ok_and(|magic| IN_MEMORY.contains(&magic))
}

/// Measures the median time of a flush after a write.
fn flush_time(folder: &Path) -> io::Result<Duration> {
    let path = folder.join(format!(".orrery-doctor-{}", std::process::id()));
    let tried = try_flushes(&path);
    let removed = fs::remove_file(&path);
    let mut times = tried?;
    removed?;
    times.sort_unstable();
    Ok(times.get(FLUSHES / 2).copied().unwrap_or_default())
}

fn try_flushes(path: &Path) -> io::Result<Vec<Duration>> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    let mut times = Vec::with_capacity(FLUSHES);
    for number in 0..FLUSHES {
        let block = [u8::try_from(number).unwrap_or_default(); BLOCK];
        file.write_all(&block)?;
        let begun = runtime::monotonic_now();
        file.sync_data()?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_times_flushes_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(findings(folder.path()).is_some());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(findings(&folder.path().join("none")), None);
    }

    #[test]
    fn flush_time_has_verdict() {
        assert!(judge(Duration::from_micros(1)).unwrap_err().contains("implausibly fast"));
        assert!(
            judge(Duration::from_millis(80)).unwrap_err().starts_with("a flush takes 80.00 ms")
        );
        assert_eq!(judge(Duration::from_micros(1500)).unwrap().detail, "a flush takes 1.50 ms");
    }
}
