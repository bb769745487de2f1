//! Uploads: bytes from clients, streamed to disk in blocks.
//!
//! An upload may be presigned first; its bytes must then match the declared size and hash. If an
//! upload is interrupted, is too large or does not match, none of its bytes are kept.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::blobs::IncomingBlob;
use super::rows::{self, Sum};
use super::{Error, Files, NewFile, blocking};
use orrery_domain::file::{Digest, File, FileSource, Upload};
use orrery_domain::ids::{FileId, KeyId, OrganizationId};
use orrery_runtime::new_id;
use orrery_storage::{self as storage, Commit};

/// How long after presigning an upload may be started.
const ANNOUNCED_FOR: Duration = Duration::from_secs(15 * 60);
/// Maximum number of pending uploads of one organization.
const ANNOUNCED_MAX: i64 = 10_000;
/// Number of bytes written at a time.
const BLOCK: usize = 256 * 1024;

/// The client's description of a file that it will upload.
#[derive(Debug, Clone, Default)]
pub struct Announced {
    pub filename: Option<String>,
    pub content_type: String,
    /// The size in bytes.
    pub size: Option<u64>,
    pub sha256: Option<Digest>,
    /// The client's purpose for the file.
    pub purpose: Option<String>,
    /// The client's own data: a JSON object.
    pub metadata: Option<String>,
    /// How long the file is kept; `None` for the default retention.
    pub keep: Option<Duration>,
    /// The key that uploads the file.
    pub key: Option<KeyId>,
}

/// The reason why an upload was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The organization's files would exceed `files.quota_bytes`.
    #[error("storage quota exceeded: {used} of {quota} bytes used")]
    OverQuota { quota: u64, used: u64 },
    /// The organization's files would exceed the organization's own limit.
    #[error("this organization is limited to {limit} bytes of files and has {used}")]
    OverLimit { limit: u64, used: u64 },
    /// Too many uploads are pending.
    #[error("{0} uploads are already pending")]
    TooMany(i64),
    /// There is no pending upload with this ID.
    #[error("upload not found")]
    NotFound,
    /// The upload has already been completed.
    #[error("the upload is already complete")]
    Done,
    /// The upload URL has expired.
    #[error("the upload URL has expired")]
    Expired,
    /// The upload is invalid, or cannot be stored.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<storage::Error> for Refusal {
    fn from(error: storage::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// An upload in progress.
#[derive(Debug)]
pub struct Receiving {
    files: Files,
    /// Writes the previous block, and returns the blob.
    writing: JoinHandle<Result<IncomingBlob, Error>>,
    block: Vec<u8>,
}

impl Files {
    /// Creates a pending upload.
    ///
    /// # Errors
    /// [`Refusal`]; in that case, nothing was created.
    pub async fn announce(
        &self,
        organization: OrganizationId,
        announced: Announced,
    ) -> Result<Upload, Refusal> {
        let shared = &self.shared;
        let limit = shared.options.max_bytes;
        if announced.size.is_some_and(|size| size > limit) {
            return Err(Error::TooLarge { limit }.into());
        }
        self.check_quota(organization, announced.size.unwrap_or(0)).await?;
        let waiting = shared.store.counter(&rows::sum(organization, Sum::Uploads)).await?;
        if waiting >= ANNOUNCED_MAX {
            return Err(Refusal::TooMany(waiting));
        }
        let upload = Upload {
            id: new_id(),
            organization,
            filename: announced.filename,
            content_type: announced.content_type,
            size: announced.size,
            sha256: announced.sha256,
            keep_seconds: announced.keep.map(|keep| keep.as_secs()),
            key: announced.key,
            created_at: shared.clock.now(),
            expires_at: shared.clock.steady().plus(ANNOUNCED_FOR),
        };
        let mut commit = Commit::of_new_work();
        rows::add_upload(&mut commit, &upload)?;
        shared.store.commit(commit).await?;
        Ok(upload)
    }

    /// Returns the pending upload with this ID, if it can be started now.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::Done`], [`Refusal::Expired`], [`Refusal::Failed`].
    pub async fn awaited(
        &self,
        organization: OrganizationId,
        id: FileId,
    ) -> Result<Upload, Refusal> {
        let store = &self.shared.store;
        match store.read::<Upload>(&rows::upload(organization, id)).await? {
            Some(upload) if upload.expires_at > self.shared.clock.believed() => Ok(upload),
            Some(_late) => Err(Refusal::Expired),
            None if store.get(&rows::file(organization, id)).await?.is_some() => Err(Refusal::Done),
            None if store.get(&rows::tombstone(organization, id)).await?.is_some() => {
                Err(Refusal::Expired)
            }
            None => Err(Refusal::NotFound),
        }
    }

    /// Starts to receive an upload of `size` bytes, if the size is known.
    ///
    /// # Errors
    /// [`Error::Storage`] when the disk has too little free space, [`Error::Disk`].
    pub async fn receive(&self, size: Option<u64>) -> Result<Receiving, Error> {
        self.shared.store.admit()?;
        if size.is_some_and(|size| size > self.shared.store.disk_space().spare()) {
            return Err(storage::Error::Full.into());
        }
        let blobs = self.shared.blobs.clone();
        let limit = self.shared.options.max_bytes;
        let incoming = blocking(move || Ok(blobs.begin(limit)?)).await?;
        let writing = write_behind(incoming, Vec::new());
        Ok(Receiving { files: self.clone(), writing, block: Vec::with_capacity(BLOCK) })
    }

    async fn check_quota(&self, organization: OrganizationId, more: u64) -> Result<(), Refusal> {
        if !self.is_counted(organization) {
            return Ok(());
        }
        let used = self.usage(organization).await?.bytes;
        let wanted = used.saturating_add(more);
        if let Some(limit) = self.shared.limits.of(organization).storage_bytes
            && wanted > limit
        {
            return Err(Refusal::OverLimit { limit, used });
        }
        match self.shared.options.quota_bytes {
            Some(quota) if wanted > quota => Err(Refusal::OverQuota { quota, used }),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns whether the organization has a limit or a quota in bytes.
    fn is_counted(&self, organization: OrganizationId) -> bool {
        let limit = self.shared.limits.of(organization).storage_bytes;
        limit.is_some() || self.shared.options.quota_bytes.is_some()
    }
}

impl Receiving {
    /// Receives bytes. One block is written and hashed while the next block arrives.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Disk`]; in either case, the upload is lost.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.block.extend_from_slice(bytes);
        if self.block.len() < BLOCK {
            return Ok(());
        }
        // An upload of unknown size may use up the free space, so the space is checked again.
        self.files.shared.store.admit()?;
        let block = std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK));
        let incoming = written(&mut self.writing).await?;
        self.writing = write_behind(incoming, block);
        Ok(())
    }

    /// Returns the received bytes for a request that needs them only while it runs.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Disk`].
    pub async fn into_temporary(mut self) -> Result<Temporary, Error> {
        let block = std::mem::take(&mut self.block);
        let before = written(&mut self.writing).await?;
        let blob = written(&mut write_behind(before, block)).await?;
        Ok(Temporary { size: blob.written().size, blob: Arc::new(blob) })
    }

    /// Turns the received bytes into a file. If the upload was presigned, the file replaces the
    /// pending upload. When this function returns, the file is durable.
    ///
    /// # Errors
    /// [`Refusal::OverQuota`], [`Refusal::OverLimit`]; [`Refusal::Done`] if a concurrent upload
    /// finished first; [`Refusal::Failed`] with [`Error::Invalid`] if the bytes do not match the
    /// declared size or hash. On error, none of the upload's bytes are kept.
    pub async fn finish(
        mut self,
        organization: OrganizationId,
        announced: Announced,
        awaited: Option<&Upload>,
    ) -> Result<File, Refusal> {
        let block = std::mem::take(&mut self.block);
        let before = written(&mut self.writing).await?;
        let incoming = written(&mut write_behind(before, block)).await?;
        let came = incoming.written();
        if let Some(size) = announced.size.filter(|size| *size != came.size) {
            let sentence = format!("it has {} bytes, not the {size} announced", came.size);
            return Err(Error::Invalid(sentence).into());
        }
        if let Some(sha256) = announced.sha256.filter(|sha256| *sha256 != came.digest) {
            let sentence = format!("its SHA-256 is {}, not the {sha256} announced", came.digest);
            return Err(Error::Invalid(sentence).into());
        }
        let files = &self.files;
        let _alone_up_to_the_commit = match files.is_counted(organization) {
            true => Some(files.shared.counting.lock().await),
            false => None,
        };
        files.check_quota(organization, came.size).await?;
        let mut beside = Commit::of_new_work();
        if let Some(upload) = awaited {
            rows::remove_upload(&mut beside, upload);
        }
        let new = NewFile {
            id: awaited.map_or_else(new_id, |upload| upload.id),
            organization,
            execution: None,
            filename: announced.filename,
            content_type: announced.content_type,
            source: FileSource::Upload,
            purpose: announced.purpose,
            metadata: announced.metadata,
            keep: announced.keep,
            key: announced.key,
        };
        match files.finalize(new, incoming, beside).await {
            Err(Error::Storage(storage::Error::Conflict { .. })) => {
                files.remove_unused(came.digest).await?;
                Err(Refusal::Done)
            }
            other => Ok(other?),
        }
    }
}

impl From<&Upload> for Announced {
    fn from(upload: &Upload) -> Self {
        Self {
            filename: upload.filename.clone(),
            content_type: upload.content_type.clone(),
            size: upload.size,
            sha256: upload.sha256,
            purpose: None,
            metadata: None,
            keep: upload.keep_seconds.map(Duration::from_secs),
            key: upload.key,
        }
    }
}

/// Bytes on disk that belong to one request. They are deleted with their last clone.
#[derive(Debug, Clone)]
pub struct Temporary {
    blob: Arc<IncomingBlob>,
    size: u64,
}

impl Temporary {
    /// Returns the size in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Returns up to `length` bytes from `offset`.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let blob = Arc::clone(&self.blob);
        blocking(move || Ok(blob.read_at(offset, length)?)).await
    }
}

fn write_behind(
    mut incoming: IncomingBlob,
    block: Vec<u8>,
) -> JoinHandle<Result<IncomingBlob, Error>> {
    tokio::task::spawn_blocking(move || {
        incoming.write(&block)?;
        Ok(incoming)
    })
}

async fn written(
    writing: &mut JoinHandle<Result<IncomingBlob, Error>>,
) -> Result<IncomingBlob, Error> {
    writing.await.unwrap_or_else(|error| Err(Error::Disk(std::io::Error::other(error))))
}
