//! The end of files: what is deleted, what is past its time, and bytes that nothing refers to.
//!
//! A file that goes leaves a trace for a while, so that deleting it again is not a fault. Its bytes go
//! with the last file that refers to them.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::Duration;

use super::rows;
use super::{Error, Files, Shared, blocking};
use crate::domain::file::{Digest, File, Upload};
use crate::domain::ids::{FileId, OrganizationId};
use crate::domain::time::Timestamp;
use crate::storage::{self, Commit, Page, Swept, Terms, lost};

/// How long it is known that there was a file.
const TRACE_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Files that go in one commit.
const AT_ONCE: usize = 128;
/// Between two such commits, so that the writer serves everyone else.
const PAUSE: Duration = Duration::from_millis(20);
/// Contents that one sweep takes at most; the rest goes with the next start.
const SWEPT_MAX: usize = 100_000;

/// Contents whose deletion waits for backups or for the kept log.
#[derive(Debug, Default)]
pub struct Held {
    backups: usize,
    /// Each with the last record of the store's log when it was to go.
    later: HashMap<Digest, u64>,
}

/// While it lives, no content goes.
#[derive(Debug)]
pub struct Hold {
    files: Files,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.files.held().backups -= 1;
    }
}

/// What goes with one commit.
#[derive(Default)]
struct Ending {
    commit: Commit,
    digests: Vec<Digest>,
    files: usize,
}

impl Files {
    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.shared.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps every content that is there now.
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.held().backups += 1;
        Hold { files: self.clone() }
    }

    /// Ends a hold, and deletes what nothing refers to any more if it was the last. A hold that is
    /// dropped in another way leaves that to the next start's sweep.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`].
    pub async fn let_go(&self, hold: Hold) -> Result<(), Error> {
        drop(hold);
        self.remove_unheld().await
    }

    /// Deletes the contents whose deletion has waited long enough and that nothing refers to.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`].
    pub async fn remove_unheld(&self) -> Result<(), Error> {
        let kept = self.shared.store.kept().map_or(u64::MAX, |kept| kept.through);
        let due: Vec<Digest> = {
            let mut held = self.held();
            if held.backups > 0 {
                return Ok(());
            }
            held.later.extract_if(|_, record| *record <= kept).map(|(digest, _)| digest).collect()
        };
        for digest in due {
            self.remove_now(digest).await?;
        }
        Ok(())
    }

    /// Whether a content has to stay for now; it goes later then.
    fn holds(&self, digest: Digest) -> bool {
        let store = &self.shared.store;
        let (record, is_needed) = (store.last_record(), !store.is_kept());
        let mut held = self.held();
        let stays = held.backups > 0 || is_needed;
        if stays {
            held.later.insert(digest, record);
        }
        stays
    }

    fn is_held_by_a_backup(&self) -> bool {
        self.held().backups > 0
    }

    /// Where a content is, also when a sweep has moved it away.
    #[must_use]
    pub fn path_or_lost(&self, digest: Digest) -> PathBuf {
        let path = self.path(digest);
        if path.is_file() {
            return path;
        }
        lost::find(self.shared.contents.folder(), &digest.to_string()).unwrap_or(path)
    }

    /// Where a content stands, if it is there.
    #[must_use]
    pub fn path(&self, digest: Digest) -> PathBuf {
        self.shared.contents.path(digest)
    }

    /// Gives every content, with where it stands. Blocks.
    ///
    /// # Errors
    /// [`Error::Disk`], and whatever `give` fails with.
    pub fn each_content(
        &self,
        give: &mut dyn FnMut(Digest, PathBuf) -> io::Result<()>,
    ) -> Result<(), Error> {
        let contents = &self.shared.contents;
        let mut walk = contents.walk()?;
        loop {
            let batch = walk.batch()?;
            if batch.is_empty() {
                return Ok(());
            }
            for digest in batch {
                give(digest, contents.path(digest))?;
            }
        }
    }

    /// Refuses a folder of contents that is missing although files refer to it: a volume that is not
    /// mounted, say.
    ///
    /// # Errors
    /// [`storage::Error::Folder`] with what to do; [`Error::Storage`].
    pub async fn check_folder(&self) -> Result<(), Error> {
        let Shared { contents, store, .. } = &*self.shared;
        let page = Page { prefix: rows::contents(), after: None, before: None, limit: 1 };
        if contents.is_there() || store.page(page).await?.is_empty() {
            return Ok(());
        }
        Err(storage::Error::missing_folder(contents.folder()).into())
    }

    /// Deletes a file or an announced upload. False when there never was one, as far as is known.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`].
    pub async fn delete(&self, organization: OrganizationId, id: FileId) -> Result<bool, Error> {
        let mut ending = Ending::default();
        let store = &self.shared.store;
        if let Some(upload) = store.read::<Upload>(&rows::upload(organization, id)).await? {
            self.forget(&mut ending, &upload);
        } else if let Some(file) = store.read::<File>(&rows::file(organization, id)).await? {
            self.retire(&mut ending, &file);
        } else {
            return Ok(store.get(&rows::gone(organization, id)).await?.is_some());
        }
        self.end(ending).await?;
        Ok(true)
    }

    /// Deletes the files whose time is over, a few at a time, with the uploads that have not come
    /// and the traces of what went long ago. Answers how many files went.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`]; what went until then is gone.
    pub async fn remove_expired(&self) -> Result<usize, Error> {
        let (store, now) = (&self.shared.store, self.shared.clock.believed());
        let mut removed = 0;
        loop {
            let before = Some(rows::expiries().time(now));
            let page = Page { prefix: rows::expiries(), after: None, before, limit: AT_ONCE };
            let due = store.page(page).await?;
            let mut ending = Ending::default();
            for (key, _) in &due {
                ending.commit.delete(key.clone());
                let Some((organization, id)) = rows::of_expiry(key) else { continue };
                self.expire(&mut ending, organization, id, now).await?;
            }
            removed += ending.files;
            self.end(ending).await?;
            if due.len() < AT_ONCE {
                return Ok(removed);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Adds what there is of the id and is past its time.
    async fn expire(
        &self,
        ending: &mut Ending,
        organization: OrganizationId,
        id: FileId,
        now: Timestamp,
    ) -> Result<(), Error> {
        let store = &self.shared.store;
        let upload = store.read::<Upload>(&rows::upload(organization, id)).await?;
        if let Some(upload) = upload.filter(|upload| upload.expires_at <= now) {
            self.forget(ending, &upload);
            return Ok(());
        }
        let file = store.read::<File>(&rows::file(organization, id)).await?;
        if let Some(file) = file.filter(|file| file.expires_at <= now) {
            self.retire(ending, &file);
            return Ok(());
        }
        let trace = rows::gone(organization, id);
        let until = store.get(&trace).await?.and_then(|time| time.try_into().ok());
        if until.is_some_and(|until| Timestamp::from_sortable(until) <= now) {
            ending.commit.delete(trace);
        }
        Ok(())
    }

    fn retire(&self, ending: &mut Ending, file: &File) {
        rows::remove(&mut ending.commit, file);
        self.leave_trace(ending, file.organization, file.id);
        ending.digests.push(file.sha256);
        ending.files += 1;
    }

    fn forget(&self, ending: &mut Ending, upload: &Upload) {
        rows::remove_upload(&mut ending.commit, upload);
        self.leave_trace(ending, upload.organization, upload.id);
    }

    fn leave_trace(&self, ending: &mut Ending, organization: OrganizationId, id: FileId) {
        let until = self.shared.clock.steady().plus(TRACE_KEPT);
        let commit = &mut ending.commit;
        commit.put_bytes(rows::gone(organization, id), until.sortable().to_vec());
        commit.put_bytes(rows::expiry(until, organization, id), Vec::new());
    }

    async fn end(&self, ending: Ending) -> Result<(), Error> {
        if !ending.commit.is_empty() {
            self.shared.store.commit(ending.commit).await?;
        }
        for digest in ending.digests {
            self.remove_unused(digest).await?;
        }
        Ok(())
    }

    /// Moves contents that no file refers to into `lost`. To be run once, after a start: what began
    /// to come before `started` has broken off and is deleted.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`].
    pub async fn sweep(&self, started: FileId, terms: Terms) -> Result<Swept, Error> {
        let contents = self.shared.contents.clone();
        let mut walk = blocking(move || {
            contents.clean(started)?;
            Ok(contents.walk()?)
        })
        .await?;
        let (mut swept, mut unused) = (Swept::default(), Vec::new());
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
        swept.refused = !terms.accepts_loss && !lost::may_take(swept.unused, swept.total);
        if swept.refused {
            return Ok(swept);
        }
        for digest in unused {
            let _nothing_is_on_its_way = self.shared.gate.write().await;
            if !self.is_held_by_a_backup() && !self.is_used(digest).await? {
                let contents = self.shared.contents.clone();
                blocking(move || Ok(contents.lose(digest, terms.now)?)).await?;
                swept.moved += 1;
            }
        }
        Ok(swept)
    }

    /// Deletes the contents that a sweep moved away a week ago.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub async fn forget_lost(&self, terms: Terms) -> Result<usize, Error> {
        let folder = self.shared.contents.folder().to_path_buf();
        blocking(move || Ok(lost::forget(&folder, terms.now)?)).await
    }

    async fn is_used(&self, digest: Digest) -> Result<bool, Error> {
        let page = Page { prefix: rows::references(digest), after: None, before: None, limit: 1 };
        Ok(!self.shared.store.page(page).await?.is_empty())
    }

    /// Deletes a content that no file refers to; whether it did.
    pub(super) async fn remove_unused(&self, digest: Digest) -> Result<bool, Error> {
        if self.holds(digest) {
            return Ok(false);
        }
        self.remove_now(digest).await
    }

    async fn remove_now(&self, digest: Digest) -> Result<bool, Error> {
        let _nothing_is_on_its_way = self.shared.gate.write().await;
        let is_unused = !self.is_used(digest).await?;
        if is_unused {
            let contents = self.shared.contents.clone();
            blocking(move || Ok(contents.remove(digest)?)).await?;
        }
        Ok(is_unused)
    }
}
