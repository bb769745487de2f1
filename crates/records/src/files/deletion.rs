//! Deletion of files (on request and after their retention period) and of orphaned blobs.
//!
//! A deleted file leaves a tombstone for some time, so that a repeated deletion succeeds. A blob is
//! deleted together with the last file that references the blob.

use std::io;
use std::path::PathBuf;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use super::rows;
use super::{Error, Files, Shared, blocking};
use orrery_domain::file::{Digest, File, Upload};
use orrery_domain::ids::{FileId, OrganizationId};
use orrery_domain::time::Timestamp;
use orrery_storage::commit::Expect;
use orrery_storage::{
    self as storage, Commit, DeferredDeletions, Page, SweepOptions, Swept, trash,
};

/// How long a tombstone is kept.
const TOMBSTONE_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// Number of files deleted in one commit.
const DELETION_BATCH: usize = 128;
/// Pause between two deletion commits, so that other writers are not delayed.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of blobs moved by one sweep. The sweep at the next start moves the rest.
const SWEPT_MAX: usize = 100_000;

/// A digest that no blob has. Even a folder that is present always lacks this blob.
const NO_BLOB: Digest = Digest([0; 32]);

/// RAII guard: while it exists, no blob is deleted.
#[derive(Debug)]
pub struct BlobPin {
    files: Files,
}

impl Drop for BlobPin {
    fn drop(&mut self) {
        self.files.deferred().unpin();
    }
}

/// The deletions of one commit.
#[derive(Default)]
struct Deletion {
    commit: Commit,
    digests: Vec<Digest>,
    files: usize,
}

impl Files {
    fn deferred(&self) -> MutexGuard<'_, DeferredDeletions<Digest>> {
        self.shared.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prevents the deletion of every blob that exists now, until the pin is released.
    #[must_use]
    pub fn pin(&self) -> BlobPin {
        self.deferred().pin();
        BlobPin { files: self.clone() }
    }

    /// Releases a pin. If it was the last pin, deletes the orphaned blobs whose deletion was
    /// deferred. If a pin is dropped without this call, the sweep at the next start deletes these
    /// blobs.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`].
    pub async fn unpin(&self, pin: BlobPin) -> Result<(), Error> {
        drop(pin);
        self.remove_unpinned().await
    }

    /// Deletes orphaned blobs whose deferred deletion has become possible.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`].
    pub async fn remove_unpinned(&self) -> Result<(), Error> {
        let due = self.deferred().due(&self.shared.store);
        for digest in due {
            let is_due = self.deferred().take(digest, &self.shared.store);
            if is_due {
                self.remove_now(digest).await?;
            }
        }
        Ok(())
    }

    /// Returns the path of a blob, even if a sweep has moved it to the trash.
    #[must_use]
    pub fn path_or_trash(&self, digest: Digest) -> PathBuf {
        let path = self.path(digest);
        if path.is_file() {
            return path;
        }
        trash::find(self.shared.blobs.folder(), &digest.to_string()).unwrap_or(path)
    }

    /// Returns the path of a blob, if it exists.
    #[must_use]
    pub fn path(&self, digest: Digest) -> PathBuf {
        self.shared.blobs.path(digest)
    }

    /// Checks that a missing blob is really lost, which requires that the folder of blobs is
    /// present and not empty.
    ///
    /// # Errors
    /// When the folder is not in place, so that the state of its blobs is unknown.
    pub fn check_lost(&self, digest: Digest) -> io::Result<()> {
        self.shared.blobs.check_lost(digest)
    }

    /// Checks that the folder of blobs is present and not empty.
    ///
    /// # Errors
    /// When the folder is missing or empty.
    pub fn check_in_place(&self) -> io::Result<()> {
        self.check_lost(NO_BLOB)
    }

    /// Accepts the folder of blobs in its current state: missing blobs count as lost.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn accept_loss(&self) -> io::Result<()> {
        self.shared.blobs.accept_loss()
    }

    /// Calls `give` with every blob and its path. Blocks.
    ///
    /// # Errors
    /// [`Error::Disk`], and the errors of `give`.
    pub fn each_blob(
        &self,
        give: &mut dyn FnMut(Digest, PathBuf) -> io::Result<()>,
    ) -> Result<(), Error> {
        let blobs = &self.shared.blobs;
        let mut walk = blobs.walk()?;
        loop {
            let batch = walk.batch()?;
            if batch.is_empty() {
                return Ok(());
            }
            for digest in batch {
                give(digest, blobs.path(digest))?;
            }
        }
    }

    /// Fails if the folder of blobs is missing although files reference blobs, for example because
    /// a volume is not mounted.
    ///
    /// # Errors
    /// [`storage::Error::Folder`] with a suggested fix; [`Error::Storage`].
    pub async fn check_folder(&self) -> Result<(), Error> {
        let Shared { blobs, store, .. } = &*self.shared;
        if blobs.is_there() || !store.has_any(rows::blob_references()).await? {
            return Ok(());
        }
        Err(storage::Error::missing_folder(blobs.folder()).into())
    }

    /// Deletes a file or a pending upload. Returns false if there is no file, upload or tombstone
    /// with this ID.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`].
    pub async fn delete(&self, organization: OrganizationId, id: FileId) -> Result<bool, Error> {
        let store = &self.shared.store;
        loop {
            let mut deletion = Deletion::default();
            if let Some(upload) = store.read::<Upload>(&rows::upload(organization, id)).await? {
                self.delete_upload(&mut deletion, &upload);
            } else if let Some(file) = store.read::<File>(&rows::file(organization, id)).await? {
                self.delete_file(&mut deletion, &file);
            } else {
                return Ok(store.get(&rows::tombstone(organization, id)).await?.is_some());
            }
            match self.commit_deletion(deletion).await {
                // There was a concurrent change: the upload became a file, or was deleted.
                Err(Error::Storage(storage::Error::Conflict { .. })) => {}
                deleted => return deleted.map(|()| true),
            }
        }
    }

    /// Deletes expired files in batches, as well as expired uploads and tombstones. Returns the
    /// number of deleted files.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`]; earlier batches stay deleted.
    pub async fn remove_expired(&self) -> Result<usize, Error> {
        let store = &self.shared.store;
        let now = self.shared.clock.believed();
        let mut removed = 0;
        loop {
            let before = Some(rows::expiries().time(now));
            let page = Page { before, ..Page::of(rows::expiries(), DELETION_BATCH) };
            let due = store.page(page).await?;
            let mut deletion = Deletion::default();
            for (key, _) in &due {
                deletion.commit.delete(key.clone());
                let Some((organization, id)) = rows::of_expiry(key) else { continue };
                self.expire(&mut deletion, organization, id, now).await?;
            }
            let files = deletion.files;
            let is_last = match self.commit_deletion(deletion).await {
                // A file was deleted concurrently, so the batch failed: read the remaining files
                // again.
                Err(Error::Storage(storage::Error::Conflict { .. })) => false,
                deleted => {
                    deleted?;
                    removed += files;
                    due.len() < DELETION_BATCH
                }
            };
            if is_last {
                return Ok(removed);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Adds the file, upload or tombstone with this ID to the deletion if it has expired.
    async fn expire(
        &self,
        deletion: &mut Deletion,
        organization: OrganizationId,
        id: FileId,
        now: Timestamp,
    ) -> Result<(), Error> {
        let store = &self.shared.store;
        let upload = store.read::<Upload>(&rows::upload(organization, id)).await?;
        if let Some(upload) = upload.filter(|upload| upload.expires_at <= now) {
            self.delete_upload(deletion, &upload);
            return Ok(());
        }
        let file = store.read::<File>(&rows::file(organization, id)).await?;
        if let Some(file) = file.filter(|file| file.expires_at <= now) {
            self.delete_file(deletion, &file);
            return Ok(());
        }
        let tombstone = rows::tombstone(organization, id);
        let until = store.get(&tombstone).await?.and_then(|time| time.try_into().ok());
        if until.is_some_and(|until| Timestamp::from_sortable(until) <= now) {
            deletion.commit.delete(tombstone);
        }
        Ok(())
    }

    fn delete_file(&self, deletion: &mut Deletion, file: &File) {
        // If the file is deleted twice concurrently, its storage usage must be released only once.
        let row = rows::file(file.organization, file.id);
        deletion.commit.expect(Expect::Present(row));
        rows::remove(&mut deletion.commit, file);
        self.write_tombstone(deletion, file.organization, file.id);
        deletion.digests.push(file.sha256);
        deletion.files += 1;
    }

    fn delete_upload(&self, deletion: &mut Deletion, upload: &Upload) {
        rows::remove_upload(&mut deletion.commit, upload);
        self.write_tombstone(deletion, upload.organization, upload.id);
    }

    fn write_tombstone(&self, deletion: &mut Deletion, organization: OrganizationId, id: FileId) {
        let until = self.shared.clock.steady().plus(TOMBSTONE_RETENTION);
        let commit = &mut deletion.commit;
        commit.put_bytes(rows::tombstone(organization, id), until.sortable().to_vec());
        commit.put_bytes(rows::expiry(until, organization, id), Vec::new());
    }

    async fn commit_deletion(&self, deletion: Deletion) -> Result<(), Error> {
        if !deletion.commit.is_empty() {
            self.shared.store.commit(deletion.commit).await?;
        }
        for digest in deletion.digests {
            self.remove_unused(digest).await?;
        }
        Ok(())
    }

    /// Moves orphaned blobs to the trash folder `lost`. Called once after a start: partial uploads
    /// started before `started` were interrupted, and are deleted.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`].
    pub async fn sweep(&self, started: FileId, options: SweepOptions) -> Result<Swept, Error> {
        let blobs = self.shared.blobs.clone();
        let mut walk = blocking(move || {
            blobs.remove_partial(started)?;
            Ok(blobs.walk()?)
        })
        .await?;
        let mut swept = Swept::default();
        let mut unused = Vec::new();
        loop {
            let (batch, rest) = blocking(move || Ok((walk.batch()?, walk))).await?;
            walk = rest;
            if batch.is_empty() {
                break;
            }
            for digest in batch {
                swept.total += 1;
                if !self.is_used(digest).await? {
                    swept.unused += 1;
                    if unused.len() < SWEPT_MAX {
                        unused.push(digest);
                    }
                }
            }
        }
        swept.refused = !options.accepts_loss && !trash::may_take(swept.unused, swept.total);
        if swept.refused {
            return Ok(swept);
        }
        for digest in unused {
            let _nothing_is_on_its_way = self.shared.gate.write().await;
            if !self.deferred().is_pinned() && !self.is_used(digest).await? {
                let blobs = self.shared.blobs.clone();
                blocking(move || Ok(blobs.move_to_trash(digest, options.now)?)).await?;
                swept.moved += 1;
            }
        }
        Ok(swept)
    }

    /// Deletes blobs that a sweep moved to the trash at least a week ago.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub async fn empty_trash(&self, options: SweepOptions) -> Result<usize, Error> {
        let folder = self.shared.blobs.folder().to_path_buf();
        blocking(move || Ok(trash::empty(&folder, options.now)?)).await
    }

    async fn is_used(&self, digest: Digest) -> Result<bool, Error> {
        Ok(self.shared.store.has_any(rows::references(digest)).await?)
    }

    /// Deletes a blob if no file references it; returns whether the blob was deleted.
    pub(super) async fn remove_unused(&self, digest: Digest) -> Result<bool, Error> {
        if self.deferred().defer(digest, &self.shared.store) {
            return Ok(false);
        }
        self.remove_now(digest).await
    }

    async fn remove_now(&self, digest: Digest) -> Result<bool, Error> {
        let _nothing_is_on_its_way = self.shared.gate.write().await;
        let is_unused = !self.is_used(digest).await?;
        if is_unused {
            let blobs = self.shared.blobs.clone();
            blocking(move || Ok(blobs.remove(digest)?)).await?;
        }
        Ok(is_unused)
    }
}
