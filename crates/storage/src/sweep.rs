//! The sweep of payload files: after a start, removes the files that no row claims.
//!
//! Folders are read in batches, and claims are looked up per batch, so that memory use does not
//! grow with the store.

use std::fs::{self, ReadDir};
use std::io;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::key::{Key, Table};
use super::payloads::{PART, PAYLOADS, blocking, claim_key, path_of};
use super::store::Store;
use super::trash::{self, LOST, SweepOptions, Swept};
use orrery_domain::ids::{Id, PayloadId};

/// The number of files checked together.
const BATCH: usize = 500;
/// The maximum number of files that one sweep removes. The sweep of the next start removes the
/// rest.
const TAKEN_MAX: usize = 100_000;

/// Iterates over the files in a folder of shards.
#[derive(Debug)]
pub struct Shards {
    shards: Option<ReadDir>,
    shard: Option<ReadDir>,
}

impl Shards {
    /// Iterates over the files below `folder`, which may not exist. Files in `lost` are excluded.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let shards = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            shards => Some(shards?),
        };
        Ok(Self { shards, shard: None })
    }

    /// Returns up to `most` more files, or an empty list at the end.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub fn batch(&mut self, most: usize) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        while found.len() < most {
            if let Some(file) = self.shard.as_mut().and_then(Iterator::next) {
                found.push(file?.path());
                continue;
            }
            let Some(next) = self.shards.as_mut().and_then(Iterator::next) else { break };
            let next = next?;
            let is_shard = next.file_name() != LOST && next.file_type()?.is_dir();
            self.shard = if is_shard { Some(fs::read_dir(next.path())?) } else { None };
        }
        Ok(found)
    }
}

impl Store {
    /// Moves orphaned files that were written before this start into `lost`. Files written since
    /// this start are skipped. Call this function once, after the start.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the disk cannot be read.
    pub async fn sweep_payloads(
        &self,
        started: PayloadId,
        options: SweepOptions,
    ) -> Result<Swept, Error> {
        let swept = self.sweep_unclaimed(started, options).await;
        self.shared.recent.forget();
        swept
    }

    async fn sweep_unclaimed(
        &self,
        started: PayloadId,
        options: SweepOptions,
    ) -> Result<Swept, Error> {
        let place = self.shared.folder.join(PAYLOADS);
        let mut swept = Swept::default();
        let mut unused: Vec<PayloadId> = Vec::new();
        let folder = place.clone();
        let mut shards = on_disk(move || Shards::of(&folder)).await?;
        loop {
            let (found, rest) = on_disk(move || {
                let found = shards.batch(BATCH)?;
                found.iter().filter(|path| is_left(path, started)).try_for_each(fs::remove_file)?;
                Ok((found, shards))
            })
            .await?;
            shards = rest;
            let ids: Vec<PayloadId> = found.iter().filter_map(|path| id_of_file(path)).collect();
            if found.is_empty() {
                break;
            }
            swept.total += ids.len();
            let old: Vec<PayloadId> =
                ids.into_iter().filter(|id| may_be_old(*id, started)).collect();
            let keys: Vec<Key> = old.iter().map(|id| claim_key(*id)).collect();
            let claims = self.get_many(&keys).await?;
            let unclaimed = old.iter().zip(claims).filter(|(_, claim)| claim.is_none());
            let unclaimed: Vec<PayloadId> = unclaimed.map(|(id, _)| *id).collect();
            swept.unused += unclaimed.len();
            let room = TAKEN_MAX.saturating_sub(unused.len());
            unused.extend(unclaimed.into_iter().take(room));
        }
        swept.refused = !options.accepts_loss && !trash::may_take(swept.unused, swept.total);
        if swept.refused {
            return Ok(swept);
        }
        for batch in unused.chunks(BATCH) {
            let batch = batch.to_vec();
            let store = self.clone();
            let place = place.clone();
            swept.moved += on_disk(move || store.take_away(&place, &batch, options)).await?;
        }
        Ok(swept)
    }

    fn take_away(
        &self,
        place: &Path,
        ids: &[PayloadId],
        options: SweepOptions,
    ) -> io::Result<usize> {
        let mut moved = 0;
        for id in ids {
            let path = path_of(&self.shared.folder, *id);
            let taken =
                self.shared.recent.unless_noted(*id, || trash::move_in(place, &path, options.now));
            moved += usize::from(taken?);
        }
        Ok(moved)
    }

    /// Deletes the payload files that were moved to the trash more than a week ago.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the disk fails.
    pub async fn empty_payload_trash(&self, options: SweepOptions) -> Result<usize, Error> {
        let place = self.shared.folder.join(PAYLOADS);
        on_disk(move || trash::empty(&place, options.now)).await
    }

    /// Fails if the folder of payload files is missing although records refer to files in it, for
    /// example because a volume is not mounted.
    ///
    /// # Errors
    /// [`Error::Folder`], which says what to do.
    pub async fn check_payload_folder(&self) -> Result<(), Error> {
        let payloads = &self.shared.payloads;
        if payloads.has_shards() || !self.has_any(Key::table(Table::PayloadFile)).await? {
            return Ok(());
        }
        Err(Error::missing_folder(payloads.path()))
    }
}

/// Whether the file may have been written before `started`. Ids of version 7 contain their creation
/// time. Other ids do not contain this time, so the store notes each such id that it uses.
fn may_be_old(id: PayloadId, started: PayloadId) -> bool {
    let version = id.bytes().get(6).map_or(0, |byte| byte >> 4);
    version != 7 || id < started
}

/// Whether a file is an incomplete write left by a crash.
fn is_left(path: &Path, started: PayloadId) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let begun = name.strip_suffix(PART).and_then(|name| name.strip_suffix('.'));
    let begun = begun.and_then(|name| name.rsplit_once('.')?.1.parse::<PayloadId>().ok());
    begun.is_some_and(|begun| begun < started)
}

fn id_of_file(path: &Path) -> Option<PayloadId> {
    path.file_name()?.to_str()?.parse().ok()
}

async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    blocking(move || work().map_err(|error| Error::unavailable(&error))).await
}
