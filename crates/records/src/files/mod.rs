//! Files: bytes that belong to an organization, each file with a URL.
//!
//! The bytes are durable under their digest before the row that references the bytes is committed.
//! Bytes without such a row were never acknowledged to a client; the sweep after a start removes
//! such bytes. A file never changes. This module is independent of HTTP and of models.

mod artefacts;
mod blobs;
mod deletion;
mod erasure;
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

pub use self::artefacts::{Origin, inline_artefacts};
use self::blobs::{BlobStore, IncomingBlob};
pub use self::deletion::BlobPin;
pub use self::list::{Listed, Usage};
pub use self::rows::{of_reference, references};
pub use self::upload::{Announced, Receiving, Refusal, Temporary};
use crate::limits;
use crate::signed_urls::SignedUrls;
use orrery_domain::file::{self, Digest, File, FileSource, NAME_MAX, Upload};
use orrery_domain::ids::{ExecutionId, FileId, KeyId, OrganizationId};
use orrery_domain::time::Timestamp;
use orrery_runtime::Clock;
use orrery_storage::{self as storage, Commit, DeferredDeletions, Store};

/// Delays before a failed read of a file is retried.
const READ_AGAIN: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1600),
    Duration::from_millis(3200),
];

/// The limits of files.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Maximum size of a file, in bytes.
    pub max_bytes: u64,
    /// Maximum total size of an organization's files, in bytes. An upload that would exceed this
    /// size is rejected.
    pub quota_bytes: Option<u64>,
    /// Default for how long a file is kept.
    pub retention: Duration,
}

/// An error while a file is stored or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input is not a valid file. The string is a sentence that begins with "it".
    #[error("{0}")]
    Invalid(String),
    #[error("it is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    /// The bytes of a file are missing or damaged.
    #[error("the content of the file is {0}: restore it from a backup")]
    Damaged(&'static str),
    /// The disk failed.
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

/// A file to store.
#[derive(Debug)]
struct NewFile {
    /// The file's ID. An existing file with this ID is replaced.
    id: FileId,
    organization: OrganizationId,
    execution: Option<ExecutionId>,
    filename: Option<String>,
    content_type: String,
    source: FileSource,
    purpose: Option<String>,
    /// The client's own data: a JSON object.
    metadata: Option<String>,
    /// How long the file is kept; `None` for the default retention.
    keep: Option<Duration>,
    key: Option<KeyId>,
}

/// A file that the service writes for an organization.
#[derive(Debug)]
pub struct Report {
    /// An existing file with this ID is replaced.
    pub id: FileId,
    pub organization: OrganizationId,
    pub filename: String,
    pub content_type: &'static str,
    pub purpose: &'static str,
}

/// The source of a new file's bytes.
pub type Source = Box<dyn Read + Send>;

struct Shared {
    store: Store,
    clock: Clock,
    signed_urls: SignedUrls,
    blobs: BlobStore,
    options: Options,
    limits: limits::Handle,
    /// Read-locked while a blob is finalized and referenced; write-locked while a blob is checked
    /// for references and deleted.
    gate: Arc<RwLock<()>>,
    /// Locked while an upload is checked against the quota.
    counting: Mutex<()>,
    /// Blobs to delete once no backup needs them.
    deferred: std::sync::Mutex<DeferredDeletions<Digest>>,
}

/// All files; clones share the same state.
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
    /// Creates the access to files whose bytes are in `folder` and whose rows are in `store`.
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

    /// Creates files for a test, in the folder of the test's store.
    #[cfg(any(test, feature = "test-support"))]
    #[expect(clippy::unwrap_used, reason = "a helper of tests: a panic is the test's failure")]
    pub fn scratch(folder: &std::path::Path, store: Store) -> Self {
        let sealer = storage::Sealer::open(folder).unwrap();
        let keys = Arc::new(crate::signed_urls::AllKeysLive);
        let signed_urls = SignedUrls::new(sealer, Clock::system(), keys, "http://box".to_owned());
        let retention = Duration::from_secs(3600);
        let options = Options { max_bytes: 1024, quota_bytes: None, retention };
        let limits = limits::Handle::default();
        Self::new(folder.join("files"), store, Clock::system(), signed_urls, options, limits)
    }

    /// Stores the bytes of `source`. When this function returns, the bytes and the row are durable.
    async fn keep(&self, new: NewFile, mut source: Source) -> Result<File, Error> {
        let blobs = self.shared.blobs.clone();
        let limit = self.shared.options.max_bytes;
        let received = blocking(move || Ok(blobs.receive(&mut *source, limit)?)).await?;
        self.finalize(new, received, Commit::new()).await
    }

    /// Stores a file that the service writes. When this function returns, the bytes, the file's row
    /// and the changes in `beside` are durable.
    ///
    /// # Errors
    /// [`Error::Disk`] if `source` or the disk fails; [`Error::Storage`].
    pub async fn keep_report(
        &self,
        report: Report,
        mut source: Source,
        beside: Commit,
    ) -> Result<File, Error> {
        let Report { id, organization, filename, content_type, purpose } = report;
        let new = NewFile {
            id,
            organization,
            execution: None,
            filename: Some(filename),
            content_type: content_type.to_owned(),
            source: FileSource::Output,
            purpose: Some(purpose.to_owned()),
            metadata: None,
            keep: None,
            key: None,
        };
        let blobs = self.shared.blobs.clone();
        let received = blocking(move || Ok(blobs.receive(&mut *source, u64::MAX)?)).await?;
        self.finalize(new, received, beside).await
    }

    /// Turns received bytes into a file. When this function returns, the bytes, the file's row and
    /// the changes in `beside` are durable.
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
            purpose: new.purpose,
            metadata: new.metadata,
            execution: new.execution,
            key: new.key,
            created_at: shared.clock.now(),
            // The clock may be behind: an expiry based on its current time could already be past
            // once the clock is corrected.
            expires_at: shared.clock.steady().plus(keep),
        };
        let key = rows::file(file.organization, file.id);
        if let Some(before) = shared.store.read::<File>(&key).await? {
            rows::remove(&mut beside, &before);
        }
        rows::add(&mut beside, &file)?;
        // The commit continues even if the client disconnects and this future is dropped, so the
        // gate must stay locked until the commit is durable.
        beside.after_durable(move || drop(referred_to_before_a_sweep_looks));
        shared.store.commit(beside).await?;
        Ok(file)
    }

    /// Returns the latest possible expiry of the file that a pending upload becomes.
    #[must_use]
    pub fn latest_end(&self, upload: &Upload) -> Timestamp {
        let keep = upload.keep_seconds.map_or(self.shared.options.retention, Duration::from_secs);
        upload.expires_at.plus(keep)
    }

    /// Returns a file and the path of its bytes; `None` if this organization has no such file or
    /// the file has expired.
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

    /// Returns the signer of file URLs.
    #[must_use]
    pub fn signed_urls(&self) -> &SignedUrls {
        &self.shared.signed_urls
    }

    /// See [`SignedUrls::render`].
    #[must_use]
    pub fn render_links(
        &self,
        organization: OrganizationId,
        output: Box<RawValue>,
    ) -> Box<RawValue> {
        self.shared.signed_urls.render(organization, output)
    }

    /// Reads the file behind one of the service's own URLs, with content of up to `limit` bytes;
    /// `None` for any other URL.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the file has been deleted, [`Error::TooLarge`], [`Error::Damaged`],
    /// [`Error::Disk`].
    pub async fn read_linked(
        &self,
        url: &str,
        limit: u64,
    ) -> Result<Option<(File, Vec<u8>)>, Error> {
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
                // A run should not fail because file descriptors ran out or a volume was missing
                // for a moment.
                (Err(Error::Disk(_)), Some(pause)) => tokio::time::sleep(pause).await,
                (read, _) => return Ok(Some((file, read?))),
            }
        }
    }

    /// Compares the blob of a file with its digest.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Disk`].
    pub async fn check_blob(&self, digest: Digest) -> Result<(), Error> {
        let blobs = self.shared.blobs.clone();
        blocking(move || blobs.check(digest)).await
    }
}

impl BlobStore {
    /// Checks that the blob with this digest is intact.
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
