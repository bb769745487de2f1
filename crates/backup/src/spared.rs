//! A writer that respects the disk's reserve: a backup fails before it fills the disk.

use std::io::{self, Write};
use std::path::Path;

use orrery_storage::DiskSpaceMonitor;

/// Number of bytes written between checks of the free disk space.
const CHECK_EVERY_BYTES: usize = 16 * 1024 * 1024;

/// A writer that fails when the disk's free space falls to the reserve.
#[derive(Debug)]
pub struct Spared<W> {
    out: W,
    disk_space: DiskSpaceMonitor,
    since_check: usize,
}

impl<W: Write> Spared<W> {
    /// Creates a writer that writes to `out`, a file in `folder`. `expected` is the file's expected
    /// maximum size, if known; `reserve` is the disk's reserve (`None` for the default).
    ///
    /// # Errors
    /// If the disk has too little free space.
    pub fn new(out: W, folder: &Path, reserve: Option<u64>, expected: u64) -> io::Result<Self> {
        let disk_space = DiskSpaceMonitor::with_reserve(folder.to_path_buf(), reserve);
        let spared = Self { out, disk_space, since_check: 0 };
        spared.check(expected)?;
        Ok(spared)
    }

    fn check(&self, expected: u64) -> io::Result<()> {
        let spare = self.disk_space.spare();
        if spare <= expected {
            let message = format!(
                "the disk has only {spare} free bytes above its reserve: free some space, or write \
                 to another disk"
            );
            return Err(io::Error::new(io::ErrorKind::StorageFull, message));
        }
        Ok(())
    }

    /// Returns the underlying writer.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Write for Spared<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.since_check >= CHECK_EVERY_BYTES {
            self.since_check = 0;
            self.check(0)?;
        }
        let written = self.out.write(bytes)?;
        self.since_check += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_does_not_use_disk_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let error = Spared::new(Vec::new(), folder.path(), Some(u64::MAX), 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let error = Spared::new(Vec::new(), folder.path(), Some(0), u64::MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let mut out = Spared::new(Vec::new(), folder.path(), Some(0), 1).unwrap();
        out.write_all(b"abc").unwrap();
        assert_eq!(out.into_inner(), b"abc");
    }
}
