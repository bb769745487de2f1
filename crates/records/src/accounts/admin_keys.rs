//! Admin keys, which administer the box over HTTP and belong to no organization.
//!
//! Admin keys are created, hashed, listed and deleted like API keys, and stored in the same index,
//! with an owner ID that no organization can have. A different prefix ensures that an admin key is
//! never looked up as an API key, or vice versa; the record's owner is checked as well.

use std::time::Duration;

use super::bootstrap_key::may_be_a_key;
use super::{Accounts, Error, Hash, KEY_PREFIX, has_the_form_of_a_key, hash, hash_key, id_key};
use orrery_domain::account::{ApiKey, box_owner};
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_domain::time::Timestamp;
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit};

/// The prefix of every admin key, which has the same length as the prefix of API keys.
pub const ADMIN_KEY_PREFIX: &str = "sma_";

/// The reason for refusing a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFault {
    /// The string does not have the format of a key.
    Form,
    /// The string has the format of an admin key where an API key is expected, or vice versa.
    OtherKind,
    Expired,
    Unknown,
}

impl Accounts {
    /// Creates an admin key. The returned string is the full key, which is not stored and cannot be
    /// shown again.
    ///
    /// # Errors
    /// [`Error::InvalidKeyName`], [`Error::Randomness`], [`Error::Storage`].
    pub async fn create_admin_key(
        &self,
        name: &str,
        created_by: &str,
        expires_in: Option<Duration>,
    ) -> Result<(ApiKey, String), Error> {
        let expires_at = self.expiry(expires_in)?;
        self.make_key(ADMIN_KEY_PREFIX, box_owner(), name, created_by, expires_at).await
    }

    /// Authenticates an admin key. Returns `None` if the key is not a valid admin key.
    ///
    /// # Errors
    /// [`Error::Storage`] when the store cannot be read.
    pub async fn authenticate_admin(&self, presented: &str) -> Result<Option<KeyId>, Error> {
        let found = self.identify(ADMIN_KEY_PREFIX, presented).await?;
        Ok(found.filter(|caller| caller.organization == box_owner()).map(|caller| caller.key))
    }

    /// Returns the reason why the refused key `presented` is not a valid key with this `prefix`.
    ///
    /// # Errors
    /// [`Error::Storage`] when the store cannot be read.
    pub async fn fault_of(&self, prefix: &str, presented: &str) -> Result<KeyFault, Error> {
        let other = if prefix == KEY_PREFIX { ADMIN_KEY_PREFIX } else { KEY_PREFIX };
        if has_the_form_of_a_key(other, presented) {
            return Ok(KeyFault::OtherKind);
        }
        if !may_be_a_key(prefix, presented) {
            return Ok(KeyFault::Form);
        }
        let key = self.store.get(&hash_key(&hash(presented))).await?;
        Ok(if key.is_some() { KeyFault::Expired } else { KeyFault::Unknown })
    }

    /// Creates a key that expires at the given time; without a time, the key never expires.
    ///
    /// # Errors
    /// As [`Accounts::create_key`].
    pub async fn create_key_until(
        &self,
        organization: OrganizationId,
        name: &str,
        created_by: &str,
        expires_at: Option<Timestamp>,
    ) -> Result<(ApiKey, String), Error> {
        self.make_key(KEY_PREFIX, organization, name, created_by, expires_at).await
    }

    /// Changes the expiry of a key. Once this function has returned, requests with an expired key
    /// are refused.
    ///
    /// # Errors
    /// [`Error::NoKey`], [`Error::Storage`].
    pub async fn change_expiry(
        &self,
        organization: OrganizationId,
        id: KeyId,
        expires_at: Option<Timestamp>,
    ) -> Result<ApiKey, Error> {
        let accounts = self.clone();
        // The change completes even if the client disconnects: otherwise, the cache could keep the
        // old expiry.
        let changing = async move { accounts.write_expiry(organization, id, expires_at).await };
        self.tasks.complete(changing).await.unwrap_or_else(|error| {
            Err(storage::Error::Unavailable { reason: error.to_string() }.into())
        })
    }

    async fn write_expiry(
        &self,
        organization: OrganizationId,
        id: KeyId,
        expires_at: Option<Timestamp>,
    ) -> Result<ApiKey, Error> {
        let by_id = self.store.get(&id_key(organization, id)).await?.ok_or(Error::NoKey)?;
        let hash = Hash::try_from(by_id.as_slice()).map_err(|_length| Error::NoKey)?;
        let row = hash_key(&hash);
        let before = self.store.get(&row).await?.ok_or(Error::NoKey)?;
        let mut key: ApiKey = decode(&before)?;
        key.expires_at = expires_at;
        let mut commit = Commit::new();
        commit.expect(Expect::Equal(row.clone(), before));
        commit.put(row, &key)?;
        let until = expires_at.map_or("no end".to_owned(), |end| end.to_string());
        let subject = format!("{id} {}: valid until {until}", key.name);
        self.recorder.add(&mut commit, "key.change", subject, organization)?;
        self.store.commit(commit).await?;
        self.forget(&hash, id);
        Ok(key)
    }
}
