//! Contents: bytes on the disk under their SHA-256, so that equal ones are there once.
//!
//! A content is written beside its place, synced, and moved there: what stands under a digest is
//! whole. Whether anyone still refers to it, `files` knows. Everything here blocks.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::domain::file::Digest;
use crate::domain::ids::FileId;
use crate::runtime::fresh;

/// Where contents are written before they have their name.
const INCOMING: &str = "incoming";
/// Bytes that are read at once.
const BLOCK: usize = 64 * 1024;

/// Why a content was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("it is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error(transparent)]
    Disk(#[from] io::Error),
}

/// A content that is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    pub digest: Digest,
    pub size: u64,
}

/// The folder of contents.
#[derive(Debug, Clone)]
pub struct Contents {
    folder: PathBuf,
}

impl Contents {
    /// Contents in `folder`, which is made when it is first written to.
    #[must_use]
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where the content of that digest stands.
    #[must_use]
    pub fn path(&self, digest: Digest) -> PathBuf {
        let name = digest.to_string();
        self.folder.join(name.get(..2).unwrap_or_default()).join(name)
    }

    /// Keeps what `source` gives, up to `limit` bytes. It is durable when this returns; of what is
    /// refused or breaks off, nothing stays.
    ///
    /// # Errors
    /// [`Error`].
    pub fn write(&self, source: &mut dyn Read, limit: u64) -> Result<Written, Error> {
        let incoming = self.folder.join(INCOMING);
        make(&incoming)?;
        let name: FileId = fresh();
        let path = incoming.join(name.to_string());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = copy(source, &mut file, limit).and_then(|written| {
            self.settle(&file, &path, written.digest)?;
            Ok(written)
        });
        if written.is_err() {
            // A leftover goes with the next start's sweep.
            let _swept_later = fs::remove_file(&path);
        }
        written
    }

    /// Gives a written content its name.
    fn settle(&self, file: &fs::File, path: &Path, digest: Digest) -> Result<(), Error> {
        let place = self.path(digest);
        if place.is_file() {
            return Ok(fs::remove_file(path)?);
        }
        file.sync_all()?;
        let shelf = place.parent().unwrap_or(&self.folder);
        make(shelf)?;
        fs::rename(path, &place)?;
        Ok(sync(shelf)?)
    }

    /// Deletes a content. One that is gone is no fault.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn remove(&self, digest: Digest) -> io::Result<()> {
        absent_is_fine(fs::remove_file(self.path(digest)))
    }

    /// Deletes what broke off before this start; answers the digests of all contents.
    ///
    /// # Errors
    /// When the disk cannot be read.
    pub fn clean(&self) -> io::Result<Vec<Digest>> {
        let mut found = Vec::new();
        absent_is_fine(fs::remove_dir_all(self.folder.join(INCOMING)))?;
        let shelves = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            shelves => shelves?,
        };
        for shelf in shelves {
            for file in fs::read_dir(shelf?.path())? {
                let name = file?.file_name();
                found.extend(name.to_str().and_then(Digest::parse));
            }
        }
        Ok(found)
    }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn copy(source: &mut dyn Read, file: &mut fs::File, limit: u64) -> Result<Written, Error> {
    let (mut hash, mut size) = (Sha256::new(), 0_u64);
    let mut block = vec![0; BLOCK];
    loop {
        let count = match source.read(&mut block) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count?,
        };
        let read = block.get(..count).unwrap_or_default();
        if read.is_empty() {
            return Ok(Written { digest: Digest(hash.finalize().into()), size });
        }
        size = size.saturating_add(read.len() as u64);
        if size > limit {
            return Err(Error::TooLarge { limit });
        }
        hash.update(read);
        file.write_all(read)?;
    }
}

/// Makes a folder that only its owner reads, with those above it.
fn make(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    if folder.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    folder.ancestors().skip(1).take(2).try_for_each(sync)
}

fn sync(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_are_there_once_and_what_is_refused_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let contents = Contents::new(folder.path().join("files"));
        assert_eq!(contents.clean().unwrap(), []);
        let one = contents.write(&mut &b"abc"[..], 3).unwrap();
        assert_eq!(one, contents.write(&mut &b"abc"[..], 3).unwrap());
        let sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((one.digest.to_string().as_str(), one.size), (sha, 3));
        assert_eq!(fs::read(contents.path(one.digest)).unwrap(), b"abc");
        let refused = contents.write(&mut &b"abcd"[..], 3).unwrap_err();
        assert_eq!(refused.to_string(), "it is larger than 3 bytes");
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        contents.write(&mut (&b"ab"[..]).chain(Broken), 3).unwrap_err();
        assert_eq!(fs::read_dir(folder.path().join("files/incoming")).unwrap().count(), 0);
        fs::write(folder.path().join("files/incoming/left"), "x").unwrap();
        assert_eq!(contents.clean().unwrap(), [one.digest]);
        assert!(!folder.path().join("files/incoming").exists());
        contents.remove(one.digest).unwrap();
        contents.remove(one.digest).unwrap();
        assert_eq!(contents.clean().unwrap(), []);
    }
}
