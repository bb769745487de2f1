//! Files: bytes that belong to an organization, with a URL for each.
//!
//! The bytes are durable under their digest before the row that refers to them is committed; bytes
//! that no row refers to were never acknowledged and are removed by the sweep after a start. A file is
//! never changed. This module knows nothing of HTTP or of models.

mod artefacts;
mod blobs;
mod deletion;
mod list;
mod rows;
mod upload;

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::{Mutex, RwLock};

pub use self::artefacts::Origin;
use self::blobs::{BlobStore, IncomingBlob};
pub use self::deletion::BlobPin;
pub use self::list::{Listed, Usage};
pub use self::rows::{of_reference, references};
pub use self::upload::{Announced, Receiving, Refusal};
use crate::domain::file::{self, Digest, File, FileSource, NAME_MAX, Upload};
use crate::domain::ids::{ExecutionId, FileId, OrganizationId};
use crate::domain::time::Timestamp;
use crate::limits;
use crate::runtime::Clock;
use crate::signed_urls::SignedUrls;
use crate::storage::{self, Commit, DeferredDeletions, Store};

/// The pauses before a file that cannot be read now is read again.
const READ_AGAIN: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1600),
    Duration::from_millis(3200),
];

/// The limits of files.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The largest file, in bytes.
    pub max_bytes: u64,
    /// What an organization's files may take before it can send no more, in bytes.
    pub quota_bytes: Option<u64>,
    /// How long a file is kept that says nothing else.
    pub retention: Duration,
}

/// Why a file cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was given is not a file, in a sentence that begins with "it".
    #[error("{0}")]
    Invalid(String),
    #[error("it is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    /// The bytes of a file are missing or are not what was written.
    #[error("the content of the file is {0}: restore it from a backup")]
    Damaged(&'static str),
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

impl From<blobs::Error> for Error {
    fn from(error: blobs::Error) -> Self {
        match error {
            blobs::Error::TooLarge { limit } => Self::TooLarge { limit },
            blobs::Error::Disk(error) => Self::Disk(error),
        }
    }
}

/// A file that is to be kept.
#[derive(Debug)]
struct NewFile {
    /// One that is there already under this id is written over.
    id: FileId,
    organization: OrganizationId,
    execution: Option<ExecutionId>,
    filename: Option<String>,
    content_type: String,
    source: FileSource,
    /// How long it is kept; `None`: as long as any.
    keep: Option<Duration>,
}

/// Where the bytes of a new file come from.
type Source = Box<dyn Read + Send>;

struct Shared {
    store: Store,
    clock: Clock,
    signed_urls: SignedUrls,
    blobs: BlobStore,
    options: Options,
    limits: limits::Handle,
    /// Read-locked while a blob is finalized and referenced, write-locked while one is considered for
    /// deletion.
    gate: Arc<RwLock<()>>,
    /// Held while an upload is counted against its quota.
    counting: Mutex<()>,
    /// Blobs that are deleted once no backup needs them.
    deferred: std::sync::Mutex<DeferredDeletions<Digest>>,
}

/// All files; clones share them.
#[derive(Clone)]
pub struct Files {
    shared: Arc<Shared>,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Files {
    /// Files whose bytes are in `folder` and whose rows in `store`.
    #[must_use]
    pub fn new(
        folder: PathBuf,
        store: Store,
        clock: Clock,
        signed_urls: SignedUrls,
        options: Options,
        limits: limits::Handle,
    ) -> Self {
        let blobs = BlobStore::new(folder);
        let shared = Shared {
            store,
            clock,
            signed_urls,
            blobs,
            options,
            limits,
            gate: Arc::default(),
            counting: Mutex::default(),
            deferred: std::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Files of a test's store, in the folder of that store.
    #[cfg(test)]
    pub fn scratch(folder: &std::path::Path, store: Store) -> Self {
        let sealer = storage::Sealer::open(folder).unwrap();
        let keys = Arc::new(crate::signed_urls::AllKeysLive);
        let signed_urls = SignedUrls::new(sealer, Clock::system(), keys, "http://box".to_owned());
        let retention = Duration::from_secs(3600);
        let options = Options { max_bytes: 1024, quota_bytes: None, retention };
        let limits = limits::Handle::default();
        Self::new(folder.join("files"), store, Clock::system(), signed_urls, options, limits)
    }

    /// Keeps what `source` gives. When this returns, its bytes and its row are on the disk.
    async fn keep(&self, new: NewFile, mut source: Source) -> Result<File, Error> {
        let blobs = self.shared.blobs.clone();
        let limit = self.shared.options.max_bytes;
        let received = blocking(move || Ok(blobs.receive(&mut *source, limit)?)).await?;
        self.finalize(new, received, Commit::new()).await
    }

    /// Turns received bytes into a file. When this returns, they, the file's row and the changes in
    /// `beside` are on the disk.
    async fn finalize(
        &self,
        new: NewFile,
        incoming: IncomingBlob,
        mut beside: Commit,
    ) -> Result<File, Error> {
        let shared = &self.shared;
        let referred_to_before_a_sweep_looks = Arc::clone(&shared.gate).read_owned().await;
        let written = blocking(move || Ok(incoming.finalize()?)).await?;
        let keep = new.keep.unwrap_or(shared.options.retention);
        let file = File {
            id: new.id,
            organization: new.organization,
            filename: new.filename.map(|name| name.chars().take(NAME_MAX).collect()),
            content_type: file::content_type(&new.content_type),
            size: written.size,
            sha256: written.digest,
            source: new.source,
            execution: new.execution,
            created_at: shared.clock.now(),
            // A clock that is behind would give it an end that has passed once it is set right.
            expires_at: shared.clock.steady().plus(keep),
        };
        let key = rows::file(file.organization, file.id);
        if let Some(before) = shared.store.read::<File>(&key).await? {
            rows::remove(&mut beside, &before);
        }
        rows::add(&mut beside, &file).map_err(storage::Error::from)?;
        // The commit goes on when the client hangs up and drops this: the gate goes with the commit.
        beside.after_durable(move || drop(referred_to_before_a_sweep_looks));
        shared.store.commit(beside).await?;
        Ok(file)
    }

    /// When the file that an announced upload becomes is past its time, if it comes at the last
    /// moment.
    #[must_use]
    pub fn latest_end(&self, upload: &Upload) -> Timestamp {
        let keep = upload.keep_seconds.map_or(self.shared.options.retention, Duration::from_secs);
        upload.expires_at.plus(keep)
    }

    /// The file and where its bytes are; `None` when this organization has no such file, or has
    /// it no more.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn find(
        &self,
        organization: OrganizationId,
        id: FileId,
    ) -> Result<Option<(File, PathBuf)>, Error> {
        let found = self.shared.store.read::<File>(&rows::file(organization, id)).await?;
        let now = self.shared.clock.believed();
        Ok(found.filter(|file| file.expires_at > now).map(|file| {
            let path = self.shared.blobs.path(file.sha256);
            (file, path)
        }))
    }

    /// Signs the URLs of files.
    #[must_use]
    pub fn signed_urls(&self) -> &SignedUrls {
        &self.shared.signed_urls
    }

    /// [`SignedUrls::render`].
    #[must_use]
    pub fn render_links(
        &self,
        organization: OrganizationId,
        output: Box<RawValue>,
    ) -> Box<RawValue> {
        self.shared.signed_urls.render(organization, output)
    }

    /// The bytes of the file that a URL of ours names, up to `limit`; `None` when it is not such a
    /// URL.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the file is deleted, [`Error::TooLarge`], [`Error::Damaged`],
    /// [`Error::Disk`].
    pub async fn read_linked(&self, url: &str, limit: u64) -> Result<Option<Vec<u8>>, Error> {
        let opened = self.shared.signed_urls.parse(url).await?;
        let Some((path, organization)) = opened else { return Ok(None) };
        let id = path.strip_prefix("/v1/files/").and_then(|rest| rest.strip_suffix("/content"));
        let Some(id) = id.and_then(|id| id.parse().ok()) else { return Ok(None) };
        let found = self.find(organization, id).await?;
        let gone = || Error::Invalid("the file no longer exists".to_owned());
        let (file, path) = found.ok_or_else(gone)?;
        if file.size > limit {
            return Err(Error::TooLarge { limit });
        }
        let mut pauses = READ_AGAIN.into_iter();
        loop {
            let blobs = self.shared.blobs.clone();
            let path = path.clone();
            let read = blocking(move || {
                blobs.check(file.sha256)?;
                Ok(std::fs::read(path)?)
            });
            match (read.await, pauses.next()) {
                // Descriptors or a volume may be away for a moment: no reason to fail a run.
                (Err(Error::Disk(_)), Some(pause)) => tokio::time::sleep(pause).await,
                (read, _) => return read.map(Some),
            }
        }
    }

    /// Checks the blob of a file against its digest.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Disk`].
    pub async fn check_blob(&self, digest: Digest) -> Result<(), Error> {
        let blobs = self.shared.blobs.clone();
        blocking(move || blobs.check(digest)).await
    }
}

impl BlobStore {
    /// Whether the blob of that digest is intact.
    fn check(&self, digest: Digest) -> Result<(), Error> {
        match self.matches_digest(digest) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Damaged("damaged")),
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.lacks(digest) => {
                Err(Error::Damaged("missing"))
            }
            Err(error) => Err(Error::Disk(error)),
        }
    }
}

async fn blocking<T, F>(work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, Error> + Send + 'static,
{
    let working = tokio::task::spawn_blocking(work);
    working.await.unwrap_or_else(|error| Err(Error::Disk(io::Error::other(error))))
}

#[cfg(test)]
mod tests;
