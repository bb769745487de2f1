//! Contents: bytes on the disk under their SHA-256, so that equal ones are there once.
//!
//! A content is written beside its place, synced, and moved there: what stands under a digest is
//! whole. Whether anyone still refers to it, `files` knows. Everything here blocks.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::digest::{self, SHA256};

use crate::domain::file::Digest;
use crate::domain::ids::FileId;
use crate::domain::time::Timestamp;
use crate::runtime::fresh;
use crate::storage::root_folder::{RootFolder, make_shelf};
use crate::storage::{Shelves, lost};

/// Where contents are written before they have their name.
const INCOMING: &str = "incoming";
/// Bytes that are read at once.
const BLOCK: usize = 64 * 1024;
/// Contents that are listed at once.
const WALK_BATCH: usize = 500;

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

/// A content on its way: written beside its place, gone when it is dropped before it has one.
pub struct Incoming {
    contents: Contents,
    file: fs::File,
    path: PathBuf,
    hash: digest::Context,
    size: u64,
    limit: u64,
    is_settled: bool,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Incoming {
    /// Writes more of it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.size = self.size.saturating_add(bytes.len() as u64);
        if self.size > self.limit {
            return Err(Error::TooLarge { limit: self.limit });
        }
        self.hash.update(bytes);
        Ok(self.file.write_all(bytes)?)
    }

    /// What has been written so far.
    pub fn written(&self) -> Written {
        let mut sum = [0; 32];
        let hash = self.hash.clone().finish();
        sum.iter_mut().zip(hash.as_ref()).for_each(|(place, byte)| *place = *byte);
        Written { digest: Digest(sum), size: self.size }
    }

    /// Gives it its place. It is durable when this returns.
    ///
    /// # Errors
    /// When the disk refuses; then nothing stays.
    pub fn settle(mut self) -> io::Result<Written> {
        let written = self.written();
        let place = self.contents.path(written.digest);
        if !place.is_file() {
            self.file.sync_all()?;
            let shelf = place.parent().unwrap_or(self.contents.folder());
            self.contents.root.ensure()?;
            make_shelf(shelf)?;
            fs::rename(&self.path, &place)?;
            self.is_settled = true;
            sync(shelf)?;
        }
        Ok(written)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_settled {
            // A leftover goes with the next start's sweep.
            let _swept_later = fs::remove_file(&self.path);
        }
    }
}

/// The folder of contents.
#[derive(Debug, Clone)]
pub struct Contents {
    root: Arc<RootFolder>,
}

impl Contents {
    /// Contents in `folder`, which is made when it is first written to.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { root: Arc::new(RootFolder::new(folder)) }
    }

    /// Where the content of that digest stands.
    #[must_use]
    pub fn path(&self, digest: Digest) -> PathBuf {
        let name = digest.to_string();
        self.folder().join(name.get(..2).unwrap_or_default()).join(name)
    }

    /// Begins a content of up to `limit` bytes.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn begin(&self, limit: u64) -> io::Result<Incoming> {
        let incoming = self.folder().join(INCOMING);
        self.root.ensure()?;
        make_shelf(&incoming)?;
        let name: FileId = fresh();
        let path = incoming.join(name.to_string());
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let contents = self.clone();
        Ok(Incoming {
            contents,
            file,
            path,
            hash: digest::Context::new(&SHA256),
            size: 0,
            limit,
            is_settled: false,
        })
    }

    /// Begins a content with all that `source` gives, up to `limit` bytes. Of what is refused or
    /// breaks off, nothing stays.
    ///
    /// # Errors
    /// [`Error`].
    pub fn take(&self, source: &mut dyn Read, limit: u64) -> Result<Incoming, Error> {
        let mut incoming = self.begin(limit)?;
        let mut block = vec![0; BLOCK];
        loop {
            let count = match source.read(&mut block) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            let read = block.get(..count).unwrap_or_default();
            if read.is_empty() {
                return Ok(incoming);
            }
            incoming.write(read)?;
        }
    }

    /// Deletes a content. One that is gone is not a fault.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn remove(&self, digest: Digest) -> io::Result<()> {
        fs::remove_file(self.path(digest)).or_else(absent_is_fine)
    }

    /// All contents, a few at a time.
    ///
    /// # Errors
    /// When the disk cannot be read.
    pub fn walk(&self) -> io::Result<Walk> {
        Ok(Walk(Shelves::of(self.folder())?))
    }

    /// Where contents are kept.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.root.path()
    }

    /// Whether the folder is there, and the content of that digest is not.
    #[must_use]
    pub fn lacks(&self, digest: Digest) -> bool {
        self.root.lacks(&self.path(digest))
    }

    /// Whether the folder holds a shelf: it is not an empty mount point of a missing volume.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let Ok(shelves) = fs::read_dir(self.folder()) else { return false };
        shelves.into_iter().flatten().any(|shelf| shelf.file_name().len() == 2)
    }

    /// Moves a content that nothing refers to away, see [`lost`].
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn lose(&self, digest: Digest, now: Timestamp) -> io::Result<()> {
        lost::take(self.folder(), &self.path(digest), now).or_else(absent_is_fine)
    }

    /// Reads a content and checks it against its digest.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn has_its_bytes(&self, digest: Digest) -> io::Result<bool> {
        let mut file = fs::File::open(self.path(digest))?;
        let mut hash = digest::Context::new(&SHA256);
        let mut block = vec![0; BLOCK];
        loop {
            let count = match file.read(&mut block) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            let read = block.get(..count).unwrap_or_default();
            if read.is_empty() {
                return Ok(hash.finish().as_ref() == digest.0);
            }
            hash.update(read);
        }
    }

    /// Deletes what broke off before `started`.
    ///
    /// # Errors
    /// When the disk cannot be read.
    pub fn clean(&self, started: FileId) -> io::Result<()> {
        self.clean_incoming(started).or_else(absent_is_fine)
    }

    fn clean_incoming(&self, started: FileId) -> io::Result<()> {
        for file in fs::read_dir(self.folder().join(INCOMING))? {
            let file = file?;
            let begun = file.file_name().to_str().and_then(|name| name.parse::<FileId>().ok());
            if begun.is_none_or(|begun| begun < started) {
                fs::remove_file(file.path()).or_else(absent_is_fine)?;
            }
        }
        Ok(())
    }
}

/// Contents, a few at a time.
#[derive(Debug)]
pub struct Walk(Shelves);

impl Walk {
    /// The next ones; none at the end.
    ///
    /// # Errors
    /// When the disk cannot be read.
    pub fn batch(&mut self) -> io::Result<Vec<Digest>> {
        loop {
            let paths = self.0.batch(WALK_BATCH)?;
            let digest_of = |path: &PathBuf| Digest::parse(path.file_name()?.to_str()?);
            let found: Vec<Digest> = paths.iter().filter_map(digest_of).collect();
            if paths.is_empty() || !found.is_empty() {
                return Ok(found);
            }
        }
    }
}

fn absent_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
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
        let keep = |mut bytes: &[u8]| contents.take(&mut bytes, 3).map(|it| it.settle().unwrap());
        let all = || contents.walk().unwrap().batch().unwrap();
        contents.clean(fresh()).unwrap();
        assert_eq!(all(), []);
        let one = keep(b"abc").unwrap();
        assert_eq!(one, keep(b"abc").unwrap());
        let sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((one.digest.to_string().as_str(), one.size), (sha, 3));
        assert_eq!(fs::read(contents.path(one.digest)).unwrap(), b"abc");
        assert_eq!(keep(b"abcd").unwrap_err().to_string(), "it is larger than 3 bytes");
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        contents.take(&mut (&b"ab"[..]).chain(Broken), 3).unwrap_err();
        assert_eq!(fs::read_dir(folder.path().join("files/incoming")).unwrap().count(), 0);
        let left = contents.begin(3).unwrap();
        let left_path = left.path.clone();
        std::mem::forget(left);
        let started = fresh();
        let mut on_its_way = contents.begin(3).unwrap();
        contents.clean(started).unwrap();
        assert_eq!(all(), [one.digest]);
        assert!(!left_path.exists(), "it broke off before the start");
        on_its_way.write(b"new").unwrap();
        contents.remove(on_its_way.settle().unwrap().digest).unwrap();
        assert!(contents.has_its_bytes(one.digest).unwrap());
        fs::write(contents.path(one.digest), "abd").unwrap();
        assert!(!contents.has_its_bytes(one.digest).unwrap());
        contents.remove(one.digest).unwrap();
        contents.remove(one.digest).unwrap();
        assert_eq!(all(), []);
    }
}
