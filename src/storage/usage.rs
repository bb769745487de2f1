//! How many bytes of payloads an organization keeps.
//!
//! Each owner of payloads (an execution, a delivery) has a counter of what was recorded for it, and
//! each organization the sum. Both change in the commits that bring the payloads and take them
//! away, so that they agree after any crash. Amounts below [`RECORDED_FROM`] are not recorded: a
//! request brings as much by itself.

use super::commit::{Commit, Expect};
use super::error::Error;
use super::key::{Key, Table};
use super::store::Store;
use crate::domain::ids::{Id, OrganizationId};

/// The smallest amount that is recorded, in bytes.
pub const RECORDED_FROM: u64 = 64 * 1024;

fn of_organization(organization: OrganizationId) -> Key {
    Key::table(Table::PayloadUsage).id(organization)
}

impl Store {
    /// Bytes of payloads that are recorded for an organization.
    ///
    /// # Errors
    /// As [`Store::counter`].
    pub async fn payload_usage(&self, organization: OrganizationId) -> Result<u64, Error> {
        Ok(self.counter(&of_organization(organization)).await?.try_into().unwrap_or_default())
    }

    /// Bytes that are recorded for one owner.
    ///
    /// # Errors
    /// As [`Store::counter`].
    pub async fn payload_usage_of<T: Id>(
        &self,
        organization: OrganizationId,
        owner: T,
    ) -> Result<u64, Error> {
        let key = of_organization(organization).id(owner);
        Ok(self.counter(&key).await?.try_into().unwrap_or_default())
    }

    /// Records in `commit` that an owner's payloads have so many bytes more. Answers how many were
    /// recorded: none of an amount below [`RECORDED_FROM`].
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

    /// Records in `commit` that these owners have no payloads any more. The commit is refused with
    /// [`Error::Conflict`] where another one was first.
    ///
    /// # Errors
    /// As [`Store::counter`].
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
                // Released once, however many remove the owner.
                commit.expect(Expect::Equal(key.clone(), bytes.to_be_bytes().to_vec()));
                commit.add(of_organization(organization), bytes.saturating_neg());
                commit.delete(key.clone());
            }
        }
        Ok(())
    }
}
