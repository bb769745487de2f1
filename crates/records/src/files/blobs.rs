//! Blobs: bytes on disk, named by their SHA-256, so that identical contents are stored only once.
//!
//! A blob is written to a temporary file, synced, and then renamed to its digest, so a file whose
//! name is a digest is always complete. The module `files` tracks whether a blob is still
//! referenced. All functions block.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::digest::{self, SHA256};

use orrery_domain::file::Digest;
use orrery_domain::ids::FileId;
use orrery_domain::time::Timestamp;
use orrery_runtime::new_id;
use orrery_storage::root_folder::{RootFolder, make_shard};
use orrery_storage::{Shards, trash};

/// The folder for blobs that are being written.
const INCOMING: &str = "incoming";
/// Number of bytes read at a time.
const BLOCK: usize = 64 * 1024;
/// Number of blobs listed at a time.
const WALK_BATCH: usize = 500;

/// An error that occurs while a blob is written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("it is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error(transparent)]
    Disk(#[from] io::Error),
}

/// A blob that has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    pub digest: Digest,
    pub size: u64,
}

/// A blob that is being written. Dropping it unfinished deletes its temporary file.
pub(super) struct IncomingBlob {
    blobs: BlobStore,
    file: fs::File,
    path: PathBuf,
    hash: digest::Context,
    size: u64,
    limit: u64,
    is_final: bool,
}

impl std::fmt::Debug for IncomingBlob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IncomingBlob").field("path", &self.path).finish_non_exhaustive()
    }
}

impl IncomingBlob {
    /// Appends bytes to the blob.
    ///
    /// # Errors
    /// [`Error`].
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.size = self.size.saturating_add(bytes.len() as u64);
        if self.size > self.limit {
            return Err(Error::TooLarge { limit: self.limit });
        }
        self.hash.update(bytes);
        Ok(self.file.write_all(bytes)?)
    }

    /// Returns the size and the digest of the bytes written so far.
    pub(super) fn written(&self) -> Written {
        let mut sum = [0; 32];
        let hash = self.hash.clone().finish();
        sum.iter_mut().zip(hash.as_ref()).for_each(|(path, byte)| *path = *byte);
        Written { digest: Digest(sum), size: self.size }
    }

    /// Reads bytes that have been written.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let left = self.size.saturating_sub(offset);
        let mut bytes = vec![0; length.min(usize::try_from(left).unwrap_or(usize::MAX))];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Moves the blob to its final path. The blob is durable when this function returns.
    ///
    /// An existing blob with the same digest is replaced, even if that blob is intact. The time
    /// that an upload takes therefore does not reveal whether another organization already has
    /// these bytes.
    ///
    /// # Errors
    /// When the disk fails; the partial blob is then deleted.
    pub(super) fn finalize(mut self) -> io::Result<Written> {
        let written = self.written();
        let path = self.blobs.path(written.digest);
        let shard = path.parent().unwrap_or(self.blobs.folder());
        self.file.sync_all()?;
        self.blobs.root.ensure()?;
        make_shard(shard)?;
        fs::rename(&self.path, &path)?;
        self.is_final = true;
        sync(shard)?;
        Ok(written)
    }
}

impl Drop for IncomingBlob {
    fn drop(&mut self) {
        if !self.is_final {
            // If the removal fails, the sweep at the next start removes the file.
            let _swept_later = fs::remove_file(&self.path);
        }
    }
}

/// The folder of blobs.
#[derive(Debug, Clone)]
pub(super) struct BlobStore {
    root: Arc<RootFolder>,
}

impl BlobStore {
    /// Creates a blob store in `folder`, which is created by the first write.
    #[must_use]
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { root: Arc::new(RootFolder::new(folder)) }
    }

    /// Returns the path of the blob with this digest.
    #[must_use]
    pub(super) fn path(&self, digest: Digest) -> PathBuf {
        let name = digest.to_string();
        self.folder().join(name.get(..2).unwrap_or_default()).join(name)
    }

    /// Starts writing a blob of up to `limit` bytes.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn begin(&self, limit: u64) -> io::Result<IncomingBlob> {
        let incoming = self.folder().join(INCOMING);
        self.root.ensure()?;
        make_shard(&incoming)?;
        let name: FileId = new_id();
        let path = incoming.join(name.to_string());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path)?;
        let blobs = self.clone();
        Ok(IncomingBlob {
            blobs,
            file,
            path,
            hash: digest::Context::new(&SHA256),
            size: 0,
            limit,
            is_final: false,
        })
    }

    /// Writes all bytes from `source` to a blob, up to `limit` bytes. On error, the partial blob is
    /// deleted.
    ///
    /// # Errors
    /// [`Error`].
    pub(super) fn receive(&self, source: &mut dyn Read, limit: u64) -> Result<IncomingBlob, Error> {
        let mut incoming = self.begin(limit)?;
        each_block(source, |block| incoming.write(block))?;
        Ok(incoming)
    }

    /// Deletes a blob. Succeeds if the blob does not exist.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn remove(&self, digest: Digest) -> io::Result<()> {
        fs::remove_file(self.path(digest)).or_else(absent_is_fine)
    }

    /// Iterates over all blobs in batches.
    ///
    /// # Errors
    /// When the disk cannot be read.
    pub(super) fn walk(&self) -> io::Result<Walk> {
        Ok(Walk(Shards::of(self.folder())?))
    }

    /// Returns the folder of the blobs.
    #[must_use]
    pub(super) fn folder(&self) -> &Path {
        self.root.path()
    }

    /// Returns whether the blob with this digest is missing although the folder itself is present.
    #[must_use]
    pub(super) fn lacks(&self, digest: Digest) -> bool {
        self.root.lacks(&self.path(digest))
    }

    /// Checks that a missing blob is really lost; see [`RootFolder::check_lost`].
    ///
    /// # Errors
    /// When the folder is missing, so that the state of its blobs is unknown.
    pub(super) fn check_lost(&self, digest: Digest) -> io::Result<()> {
        self.root.check_lost(&self.path(digest))
    }

    /// Returns whether the folder is present, as opposed to the empty mount point of a missing
    /// volume.
    #[must_use]
    pub(super) fn is_there(&self) -> bool {
        self.root.has_shards()
    }

    /// Accepts the folder in its current state, with its missing blobs; see
    /// [`RootFolder::accept_loss`].
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn accept_loss(&self) -> io::Result<()> {
        self.root.accept_loss()
    }

    /// Moves an orphaned blob to the [`trash`].
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn move_to_trash(&self, digest: Digest, now: Timestamp) -> io::Result<()> {
        trash::move_in(self.folder(), &self.path(digest), now).or_else(absent_is_fine)
    }

    /// Reads a blob and compares it with its digest.
    ///
    /// # Errors
    /// When the blob cannot be read.
    pub(super) fn matches_digest(&self, digest: Digest) -> io::Result<bool> {
        let mut file = fs::File::open(self.path(digest))?;
        let mut hash = digest::Context::new(&SHA256);
        each_block(&mut file, |block| {
            hash.update(block);
            Ok::<_, io::Error>(())
        })?;
        Ok(hash.finish().as_ref() == digest.0)
    }

    /// Deletes partial blobs that were started before `started`.
    ///
    /// # Errors
    /// When the disk cannot be read.
    pub(super) fn remove_partial(&self, started: FileId) -> io::Result<()> {
        self.remove_partial_from(started).or_else(absent_is_fine)
    }

    fn remove_partial_from(&self, started: FileId) -> io::Result<()> {
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

/// A batched iteration over blobs.
#[derive(Debug)]
pub(super) struct Walk(Shards);

impl Walk {
    /// Returns the next batch, which is empty at the end.
    ///
    /// # Errors
    /// When the disk cannot be read.
    pub(super) fn batch(&mut self) -> io::Result<Vec<Digest>> {
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

/// Passes all bytes from `source` to `take`, one block at a time.
fn each_block<E: From<io::Error>>(
    source: &mut dyn Read,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut block = vec![0; BLOCK];
    loop {
        let count = match source.read(&mut block) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count?,
        };
        let read = block.get(..count).unwrap_or_default();
        if read.is_empty() {
            return Ok(());
        }
        take(read)?;
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
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn blob_store_deduplicates_and_leaves_no_rejected_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = BlobStore::new(folder.path().join("files"));
        let keep = |mut bytes: &[u8]| blobs.receive(&mut bytes, 3).map(|it| it.finalize().unwrap());
        let all = || blobs.walk().unwrap().batch().unwrap();
        blobs.remove_partial(new_id()).unwrap();
        assert_eq!(all(), []);
        let one = keep(b"abc").unwrap();
        assert_eq!(one, keep(b"abc").unwrap());
        let sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((one.digest.to_string().as_str(), one.size), (sha, 3));
        assert_eq!(fs::read(blobs.path(one.digest)).unwrap(), b"abc");
        assert_eq!(keep(b"abcd").unwrap_err().to_string(), "it is larger than 3 bytes");
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        blobs.receive(&mut (&b"ab"[..]).chain(Broken), 3).unwrap_err();
        assert_eq!(fs::read_dir(folder.path().join("files/incoming")).unwrap().count(), 0);
        let left = blobs.begin(3).unwrap();
        let left_path = left.path.clone();
        std::mem::forget(left);
        let started = new_id();
        let mut on_its_way = blobs.begin(3).unwrap();
        blobs.remove_partial(started).unwrap();
        assert_eq!(all(), [one.digest]);
        assert!(!left_path.exists(), "partial blobs from before the start are removed");
        on_its_way.write(b"new").unwrap();
        blobs.remove(on_its_way.finalize().unwrap().digest).unwrap();
        assert!(blobs.matches_digest(one.digest).unwrap());
        fs::write(blobs.path(one.digest), "abd").unwrap();
        assert!(!blobs.matches_digest(one.digest).unwrap());
        keep(b"abc").unwrap();
        assert!(blobs.matches_digest(one.digest).unwrap(), "a repeated upload replaces it");
        let inode = || fs::metadata(blobs.path(one.digest)).unwrap().ino();
        let intact = inode();
        keep(b"abc").unwrap();
        assert_ne!(inode(), intact, "a duplicate takes the same path as a new blob");
        blobs.remove(one.digest).unwrap();
        blobs.remove(one.digest).unwrap();
        assert_eq!(all(), []);
    }
}
