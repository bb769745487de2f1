//! Payload usage: how many bytes of payloads each organization stores.
//!
//! Each owner of payloads (an execution, a delivery) has a counter, and each organization has a
//! counter of the sum. The commits that add and remove payloads change both counters, so the
//! counters agree with the payloads after any crash. Amounts below [`RECORDED_FROM`] are not
//! recorded, since a single request can take as much space anyway.

use super::commit::{Commit, Expect};
use super::error::Error;
use super::key::{Key, Table};
use super::store::Store;
use orrery_domain::ids::{Id, OrganizationId};

/// The smallest recorded amount in bytes.
pub const RECORDED_FROM: u64 = 64 * 1024;

fn of_organization(organization: OrganizationId) -> Key {
    Key::table(Table::PayloadUsage).id(organization)
}

impl Store {
    /// The recorded bytes of an organization's payloads.
    ///
    /// # Errors
    /// The same errors as [`Store::counter`].
    pub async fn payload_usage(&self, organization: OrganizationId) -> Result<u64, Error> {
        Ok(self.counter(&of_organization(organization)).await?.try_into().unwrap_or_default())
    }

    /// The recorded bytes of one owner.
    ///
    /// # Errors
    /// The same errors as [`Store::counter`].
    pub async fn payload_usage_of<T: Id>(
        &self,
        organization: OrganizationId,
        owner: T,
    ) -> Result<u64, Error> {
        let key = of_organization(organization).id(owner);
        Ok(self.counter(&key).await?.try_into().unwrap_or_default())
    }

    /// Adds to `commit` the growth of an owner's payloads by `bytes`. Returns the number of bytes
    /// recorded: 0 for amounts below [`RECORDED_FROM`].
    pub fn record_usage<T: Id>(
        &self,
        commit: &mut Commit,
        organization: OrganizationId,
        owner: T,
        bytes: u64,
    ) -> u64 {
        if bytes < RECORDED_FROM {
            return 0;
        }
        let delta = i64::try_from(bytes).unwrap_or(i64::MAX);
        commit.add(of_organization(organization), delta);
        commit.add(of_organization(organization).id(owner), delta);
        bytes
    }

    /// Adds to `commit` the release of the recorded bytes of these owners. The commit fails with
    /// [`Error::Conflict`] if a concurrent commit has already done this.
    ///
    /// # Errors
    /// The same errors as [`Store::counter`].
    pub async fn release_usage<T: Id>(
        &self,
        commit: &mut Commit,
        organization: OrganizationId,
        owners: impl IntoIterator<Item = T>,
    ) -> Result<(), Error> {
        let of_owner = |owner| of_organization(organization).id(owner);
        let keys: Vec<Key> = owners.into_iter().map(of_owner).collect();
        for (key, bytes) in keys.iter().zip(self.counters(&keys).await?) {
            if bytes > 0 {
                // The usage is released only once, even if the owner is removed concurrently.
                commit.expect(Expect::Equal(key.clone(), bytes.to_be_bytes().to_vec()));
                commit.add(of_organization(organization), bytes.saturating_neg());
                commit.delete(key.clone());
            }
        }
        Ok(())
    }
}
