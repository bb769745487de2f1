//! Changes of API keys: their expiry, their policy and, with a rotation, their text.

use std::time::Duration;

use super::{
    Accounts, Error, Hash, KEY_PREFIX, hash, hash_key, id_key, random_key, shown, subject,
};
use orrery_domain::account::{ApiKey, GRACE_SECONDS_MAX};
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_domain::key_policy::KeyPolicy;
use orrery_domain::time::Timestamp;
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Key, Page, Table};

/// Keys read per page while policies are loaded.
const PAGE: usize = 1000;
/// [`GRACE_SECONDS_MAX`] as a duration.
pub(super) const GRACE_MAX: Duration = Duration::from_secs(GRACE_SECONDS_MAX as u64);

/// A stored key with the row that contains it.
struct Found {
    hash: Hash,
    row: Key,
    before: Vec<u8>,
    key: ApiKey,
}

impl Accounts {
    /// Loads the policies of all keys into memory. Called once at startup, before any request is
    /// served.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn load_policies(&self) -> Result<(), Error> {
        let mut rows = self.store.scan(Page::of(Key::table(Table::ApiKey), PAGE));
        while let Some((row, bytes)) = rows.next().await? {
            let key: ApiKey = decode(&bytes)?;
            // The record of a replaced text expires, and does not say what the key may do.
            let current = self.store.get(&id_key(key.organization, key.id)).await?;
            if current.is_some_and(|hash| row.as_bytes().ends_with(&hash)) {
                self.policies.set(&key);
            }
        }
        Ok(())
    }

    /// Creates a key that expires at the given time; without a time, the key never expires.
    ///
    /// # Errors
    /// As [`Accounts::create_key`]; [`Error::Policy`].
    pub async fn create_key_with(
        &self,
        organization: OrganizationId,
        name: &str,
        created_by: &str,
        expires_at: Option<Timestamp>,
        policy: KeyPolicy,
    ) -> Result<(ApiKey, String), Error> {
        self.make_key(KEY_PREFIX, organization, name, created_by, expires_at, policy).await
    }

    /// Changes a key's expiry or policy. Once this function has returned, the change applies to
    /// every request.
    ///
    /// # Errors
    /// [`Error::NoKey`], [`Error::Policy`], [`Error::Storage`].
    pub async fn change_key(
        &self,
        organization: OrganizationId,
        id: KeyId,
        change: impl FnOnce(&mut ApiKey) + Send + 'static,
    ) -> Result<ApiKey, Error> {
        let accounts = self.clone();
        // The change completes even if the client disconnects: otherwise, the cache could keep the
        // old values.
        let changing = async move { accounts.write_change(organization, id, change).await };
        self.tasks.complete(changing).await.unwrap_or_else(|error| {
            Err(storage::Error::Unavailable { reason: error.to_string() }.into())
        })
    }

    async fn write_change(
        &self,
        organization: OrganizationId,
        id: KeyId,
        change: impl FnOnce(&mut ApiKey),
    ) -> Result<ApiKey, Error> {
        let _alone = self.limiting.lock().await;
        let Found { hash, row, before, mut key } = self.stored(organization, id).await?;
        let old = key.clone();
        change(&mut key);
        if key == old {
            return Ok(key);
        }
        key.policy.check().map_err(Error::Policy)?;
        let mut commit = Commit::new();
        commit.expect(Expect::Equal(row.clone(), before));
        commit.put(row, &key)?;
        let subject = format!("{id} {}: {}", key.name, described(&old, &key));
        self.recorder.add(&mut commit, "key.change", subject, organization)?;
        self.store.commit(commit).await?;
        self.forget(&hash, id);
        self.policies.set(&key);
        Ok(key)
    }

    /// Gives a key a new text, which is returned and cannot be shown again. The previous text
    /// works until the grace period ends.
    ///
    /// # Errors
    /// [`Error::NoKey`], [`Error::Grace`], [`Error::Randomness`], [`Error::Storage`].
    pub async fn rotate_key(
        &self,
        organization: OrganizationId,
        id: KeyId,
        grace: Duration,
    ) -> Result<(ApiKey, String), Error> {
        if grace > GRACE_MAX {
            return Err(Error::Grace);
        }
        let accounts = self.clone();
        let rotating = async move { accounts.write_rotation(organization, id, grace).await };
        self.tasks.complete(rotating).await.unwrap_or_else(|error| {
            Err(storage::Error::Unavailable { reason: error.to_string() }.into())
        })
    }

    async fn write_rotation(
        &self,
        organization: OrganizationId,
        id: KeyId,
        grace: Duration,
    ) -> Result<(ApiKey, String), Error> {
        let _alone = self.limiting.lock().await;
        let Found { hash: old_hash, row: old_row, before, key: mut old } =
            self.stored(organization, id).await?;
        let full = random_key(KEY_PREFIX)?;
        let oldest = old.previous.take();
        let key = ApiKey { prefix: shown(&full), previous: Some(old_hash), ..old.clone() };
        let mut commit = Commit::new();
        commit.expect(Expect::Equal(old_row.clone(), before));
        let end = self.clock.now().plus(grace);
        old.expires_at = Some(old.expires_at.map_or(end, |expiry| expiry.min(end)));
        commit.put(old_row, &old)?;
        if let Some(oldest) = &oldest {
            commit.delete(hash_key(oldest));
        }
        let new_hash = hash(&full);
        commit.put(hash_key(&new_hash), &key)?;
        commit.put_bytes(id_key(organization, id), new_hash.to_vec());
        let subject = format!("{}, {} works until {end}", subject(&key), old.prefix);
        self.recorder.add(&mut commit, "key.rotate", subject, organization)?;
        self.store.commit(commit).await?;
        for hash in oldest.iter().chain([&old_hash]) {
            self.forget(hash, id);
        }
        Ok((key, full))
    }

    async fn stored(&self, organization: OrganizationId, id: KeyId) -> Result<Found, Error> {
        let by_id = self.store.get(&id_key(organization, id)).await?.ok_or(Error::NoKey)?;
        let hash = Hash::try_from(by_id.as_slice()).map_err(|_length| Error::NoKey)?;
        let row = hash_key(&hash);
        let before = self.store.get(&row).await?.ok_or(Error::NoKey)?;
        let key = decode(&before)?;
        Ok(Found { hash, row, before, key })
    }
}

/// Describes a change for the audit log.
fn described(old: &ApiKey, new: &ApiKey) -> String {
    let mut parts = Vec::new();
    if old.expires_at != new.expires_at {
        let until = new.expires_at.map_or("no end".to_owned(), |end| end.to_string());
        parts.push(format!("valid until {until}"));
    }
    if old.policy != new.policy {
        // Metadata is the operator's own text, which the log does not need.
        let policy = KeyPolicy { metadata: None, ..new.policy.clone() };
        let text = serde_json::to_string(&policy).unwrap_or_default();
        parts.push(format!("may {text}"));
    }
    parts.join(", ")
}
