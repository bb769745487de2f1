//! Admin keys, which administer the box over HTTP and belong to no organization.
//!
//! Admin keys are created, hashed, listed and deleted like API keys, and stored in the same index,
//! with an owner ID that no organization can have. A different prefix ensures that an admin key is
//! never looked up as an API key, or vice versa; the record's owner is checked as well.

use std::time::Duration;

use super::bootstrap_key::may_be_a_key;
use super::{Accounts, Error, KEY_PREFIX, has_the_form_of_a_key, hash, hash_key};
use orrery_domain::account::{ApiKey, box_owner};
use orrery_domain::ids::KeyId;
use orrery_domain::key_policy::KeyPolicy;

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
        let policy = KeyPolicy::default();
        self.make_key(ADMIN_KEY_PREFIX, box_owner(), name, created_by, expires_at, policy).await
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
}
