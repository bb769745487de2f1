//! The time of each key's last use: recorded in memory at most once a minute, and written to the
//! store in batches.
//!
//! A request takes a lock only for the first use of a key in a minute, and never waits for the
//! disk. A crash loses the uses since the last write: the reported time may then be too early, but
//! never too late.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Accounts, Caller, Error, Known, Prefix, id_key};
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_domain::time::Timestamp;
use orrery_storage::commit::Expect;
use orrery_storage::{self as storage, Commit, Key, Table};

const MINUTE: i64 = 60_000_000;
/// Maximum number of keys with unwritten uses. When this number is reached, uses of other keys are
/// not recorded until the next write.
const PENDING_MAX: usize = 100_000;
/// Maximum number of rows in one commit.
const BATCH_MAX: usize = 256;

/// The minute in which a cached key's use was last recorded. Copies of the cached key share this
/// value.
#[derive(Debug, Clone, Default)]
pub(super) struct Minute(Arc<AtomicI64>);

impl Minute {
    /// Advances to the minute of `now`. Returns true once per minute.
    fn advance(&self, now: Timestamp) -> bool {
        let minute = now.micros() / MINUTE;
        // Two threads may both see a new minute; the swap lets only one thread record it. A minute
        // in the past, after the clock was set back, also counts as a new minute.
        self.0.load(Ordering::Relaxed) != minute && self.0.swap(minute, Ordering::Relaxed) != minute
    }
}

/// A key's organization and ID.
type Of = (OrganizationId, KeyId);

/// Last uses that are not in the store yet.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<HashMap<Of, Timestamp>>);

impl Pending {
    fn note(&self, of: Of, at: Timestamp) {
        let mut uses = self.lock();
        if uses.len() < PENDING_MAX || uses.contains_key(&of) {
            uses.insert(of, at);
        }
    }

    /// Restores uses that could not be written, except for keys with a later recorded use.
    fn put_back<'u>(&self, taken: impl Iterator<Item = &'u (Of, Timestamp)>) {
        let mut uses = self.lock();
        for (of, at) in taken {
            uses.entry(*of).or_insert(*at);
        }
    }

    fn take(&self) -> Vec<(Of, Timestamp)> {
        std::mem::take(&mut *self.lock()).into_iter().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Of, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the row of a key's last use.
pub(super) fn key_use(organization: OrganizationId, id: KeyId) -> Key {
    Key::table(Table::KeyUse).id(organization).id(id)
}

impl Accounts {
    /// Returns the caller by the key with this ID, whose text is not known; `None` if the key has
    /// been deleted or has expired.
    ///
    /// # Errors
    /// [`Error::Storage`] when the store cannot be read.
    pub async fn caller_of(&self, id: KeyId) -> Result<Option<Caller>, Error> {
        for organization in self.organizations().await? {
            let Some(key) = self.key(organization.id, id).await? else { continue };
            let caller =
                Caller { organization: key.organization, key: id, prefix: Prefix::of(&key.prefix) };
            let noted = Minute::default();
            return Ok(self.valid(&Known { caller, expires_at: key.expires_at, noted }));
        }
        Ok(None)
    }

    /// Records a use of a key for the next [`Accounts::write_uses`].
    pub(super) fn used(&self, organization: OrganizationId, key: KeyId, minute: &Minute) {
        let now = self.clock.now();
        if minute.advance(now) {
            self.uses.note((organization, key), now);
        }
    }

    /// Writes the uses recorded since the last call. Called once a minute.
    ///
    /// # Errors
    /// [`Error::Storage`]. Unwritten uses are retried by the next call.
    pub async fn write_uses(&self) -> Result<(), Error> {
        let uses = self.uses.take();
        for (number, some) in uses.chunks(BATCH_MAX).enumerate() {
            if let Err(error) = self.write_some_uses(some).await {
                self.uses.put_back(uses.iter().skip(number.saturating_mul(BATCH_MAX)));
                return Err(error.into());
            }
        }
        Ok(())
    }

    async fn write_some_uses(&self, uses: &[(Of, Timestamp)]) -> Result<(), storage::Error> {
        if !self.commit_uses(uses).await? {
            // A key was deleted, so the batch failed: write each use in its own commit.
            for one in uses.chunks(1) {
                self.commit_uses(one).await?;
            }
        }
        Ok(())
    }

    async fn commit_uses(&self, uses: &[(Of, Timestamp)]) -> Result<bool, storage::Error> {
        let mut commit = Commit::new();
        for ((organization, id), at) in uses {
            commit.expect(Expect::Present(id_key(*organization, *id)));
            commit.put_bytes(key_use(*organization, *id), at.sortable().to_vec());
        }
        self.store.try_commit(commit).await
    }

    /// Returns when each of these keys was last used, according to the store.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn last_uses(
        &self,
        organization: OrganizationId,
        keys: impl IntoIterator<Item = KeyId>,
    ) -> Result<Vec<Option<Timestamp>>, Error> {
        let rows: Vec<Key> = keys.into_iter().map(|id| key_use(organization, id)).collect();
        let found = self.store.get_many(&rows).await?;
        let time = |bytes: Vec<u8>| bytes.try_into().ok().map(Timestamp::from_sortable);
        Ok(found.into_iter().map(|row| row.and_then(time)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::accounts::Accounts;
    use orrery_runtime::Clock;
    use orrery_storage::{Options, Store};

    #[tokio::test]
    async fn api_key_last_use_is_written_once_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { folder: folder.path().join("data"), inline_bytes: 65_536 };
        let store = Store::open(&options).unwrap();
        let clock = Clock::scripted("2026-11-20T09:30:10Z".parse().unwrap());
        let accounts = Accounts::new(store.clone(), clock.clone());
        let (organization, _) = accounts.ensure_default().await.unwrap();
        let (used, full) = accounts.create_key(organization.id, "a", "t", None).await.unwrap();
        let (deleted, gone) = accounts.create_key(organization.id, "b", "t", None).await.unwrap();
        let (idle, _) = accounts.create_key(organization.id, "c", "t", None).await.unwrap();
        let ids = [used.id, deleted.id, idle.id];
        let shown = async |accounts: &Accounts| {
            let uses = accounts.last_uses(organization.id, ids).await.unwrap();
            uses.into_iter().map(|at| at.map(|at| at.to_string())).collect::<Vec<_>>()
        };

        for _ in 0..3 {
            assert!(accounts.authenticate(&full).await.unwrap().is_some());
            assert!(accounts.authenticate(&gone).await.unwrap().is_some());
        }
        assert_eq!(shown(&accounts).await, [None, None, None], "a request wrote");
        // A key that is deleted in the meantime does not affect the other keys, and leaves no row.
        accounts.delete_key(organization.id, deleted.id).await.unwrap();
        accounts.write_uses().await.unwrap();
        let first = Some("2026-11-20T09:30:10.000Z".to_owned());
        assert_eq!(shown(&accounts).await, [first, None, None]);

        // Within the same minute, nothing is recorded, so nothing is written.
        clock.advance(Duration::from_secs(20));
        accounts.authenticate(&full).await.unwrap();
        assert!(accounts.uses.take().is_empty());
        clock.advance(Duration::from_secs(60));
        accounts.authenticate(&full).await.unwrap();
        accounts.write_uses().await.unwrap();
        drop(accounts);
        store.close().await;
        let accounts = Accounts::new(Store::open(&options).unwrap(), clock);
        let second = Some("2026-11-20T09:31:30.000Z".to_owned());
        assert_eq!(shown(&accounts).await, [second, None, None]);
        accounts.delete_key(organization.id, used.id).await.unwrap();
        assert_eq!(shown(&accounts).await, [None, None, None], "a deleted key left its row");
    }
}
