//! A writer that leaves the disk its reserve: a backup that would fill it breaks off instead.

use std::io::{self, Write};
use std::path::Path;

use crate::storage::Room;

/// Bytes between two looks at the disk.
const LOOK_EVERY: usize = 16 * 1024 * 1024;

/// Writes as long as the disk has more free than its reserve.
#[derive(Debug)]
pub struct Spared<W> {
    out: W,
    room: Room,
    since_look: usize,
}

impl<W: Write> Spared<W> {
    /// Writes to `out`, a file in `folder`. `expected` is how many bytes it may come to, where that
    /// is known; `reserve` what the disk keeps, where that is not the default.
    ///
    /// # Errors
    /// When there is no room for so much.
    pub fn new(out: W, folder: &Path, reserve: Option<u64>, expected: u64) -> io::Result<Self> {
        let room = Room::with_reserve(folder.to_path_buf(), reserve);
        let spared = Self { out, room, since_look: 0 };
        spared.look(expected)?;
        Ok(spared)
    }

    fn look(&self, expected: u64) -> io::Result<()> {
        let spare = self.room.spare();
        if spare <= expected {
            let message = format!(
                "the disk has room for {spare} bytes more beside its reserve: free some space, or \
                 write the backup to another disk"
            );
            return Err(io::Error::new(io::ErrorKind::StorageFull, message));
        }
        Ok(())
    }

    /// The writer behind it.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Write for Spared<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.since_look >= LOOK_EVERY {
            self.since_look = 0;
            self.look(0)?;
        }
        let written = self.out.write(bytes)?;
        self.since_look += written;
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
    fn a_disk_without_room_beside_its_reserve_takes_no_backup() {
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
