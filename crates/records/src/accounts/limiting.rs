//! Limits of organizations: stored in the organizations' records, and cached in memory for
//! enforcement.

use super::{Accounts, Error, organization_key};
use orrery_domain::account::{Limits, Organization};
use orrery_domain::ids::OrganizationId;
use orrery_storage::commit::Expect;
use orrery_storage::{self as storage, Commit};

impl Accounts {
    /// Loads the limits of all organizations into memory. Called once at startup, before any limit
    /// is enforced.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn load_limits(&self) -> Result<(), Error> {
        let _alone = self.limiting.lock().await;
        for organization in self.organizations().await? {
            if !organization.limits.are_none() {
                self.limits.set(organization.id, organization.limits);
            }
        }
        Ok(())
    }

    /// Changes the limits of an organization for all later requests. Work that was already accepted
    /// is not affected. Does nothing if the limits are unchanged.
    ///
    /// # Errors
    /// [`Error::NoOrganization`], [`Error::Storage`].
    pub async fn change_limits(
        &self,
        id: OrganizationId,
        change: impl FnOnce(Limits) -> Limits + Send + 'static,
    ) -> Result<Organization, Error> {
        let accounts = self.clone();
        // The change completes even if the client disconnects: otherwise, the cache could keep the
        // old limits.
        let changing = self.tasks.complete(async move { accounts.write_limits(id, change).await });
        changing.await.unwrap_or_else(|error| {
            Err(storage::Error::Unavailable { reason: error.to_string() }.into())
        })
    }

    async fn write_limits(
        &self,
        id: OrganizationId,
        change: impl FnOnce(Limits) -> Limits,
    ) -> Result<Organization, Error> {
        let _alone = self.limiting.lock().await;
        let mut organization = self.organization_of(id).await?;
        let limits = change(organization.limits);
        if limits == organization.limits {
            return Ok(organization);
        }
        organization.limits = limits;
        let key = organization_key(id);
        let mut commit = Commit::new();
        commit.expect(Expect::Present(key.clone()));
        commit.put(key, &organization)?;
        let subject = format!("{}: {}", organization.name, described(limits));
        self.recorder.add(&mut commit, "organization.limit", subject, id)?;
        self.store.commit(commit).await?;
        self.limits.set(id, limits);
        Ok(organization)
    }
}

/// Formats the limits for the audit log.
fn described(limits: Limits) -> String {
    let Limits { requests_per_second, running, queued, storage_bytes, monthly_budget } = limits;
    let named = [
        ("requests_per_second", requests_per_second.map(u64::from)),
        ("running", running.map(u64::from)),
        ("queued", queued.map(u64::from)),
        ("storage_bytes", storage_bytes),
    ];
    let set = named.into_iter().filter_map(|(name, limit)| Some(format!("{name} {}", limit?)));
    let budget = monthly_budget.map(|budget| format!("monthly_budget_usd {budget}"));
    let all = set.chain(budget).collect::<Vec<_>>().join(", ");
    if all.is_empty() { "no limits".to_owned() } else { all }
}
