//! Renaming and deleting organizations.
//!
//! A deletion is durable before any data is erased: its commit marks the record and frees the name,
//! so that no request finds the organization any more. The service then erases the data, continuing
//! after a restart if necessary; the record is erased last.

use super::{Accounts, Error, LISTED, is_organization_name, name_key, organization_key};
use orrery_domain::account::{DEFAULT_ORGANIZATION, Limits, Organization};
use orrery_domain::ids::{Id as _, OrganizationId};
use orrery_storage::commit::Expect;
use orrery_storage::{self as storage, Commit, Key, Page, Table};

impl Accounts {
    /// Renames an organization. Does nothing if the organization already has this name.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::Exists`], [`Error::NoOrganization`],
    /// [`Error::DefaultStays`], [`Error::Storage`].
    pub async fn rename_organization(
        &self,
        id: OrganizationId,
        name: &str,
    ) -> Result<Organization, Error> {
        if !is_organization_name(name) {
            return Err(Error::InvalidName);
        }
        let _alone = self.limiting.lock().await;
        let mut organization = self.organization_of(id).await?;
        if organization.name == name {
            return Ok(organization);
        }
        if organization.name == DEFAULT_ORGANIZATION {
            return Err(Error::DefaultStays);
        }
        let before = std::mem::replace(&mut organization.name, name.to_owned());
        let mut commit = Commit::new();
        commit.expect(Expect::Absent(name_key(name)));
        commit.delete_existing(name_key(&before));
        commit.put_bytes(name_key(name), id.bytes().to_vec());
        commit.put(organization_key(id), &organization)?;
        let subject = format!("from {before} to {name}");
        self.recorder.add(&mut commit, "organization.rename", subject, id)?;
        self.store.commit_or(commit, Error::Exists(name.to_owned())).await?;
        Ok(organization)
    }

    /// Deletes an organization: from then on, no request can reach the organization by name, key or
    /// member. The organization's data is erased later, see [`Accounts::deleted_organizations`].
    ///
    /// # Errors
    /// [`Error::NoOrganization`], [`Error::Storage`].
    pub async fn delete_organization(&self, id: OrganizationId) -> Result<Organization, Error> {
        let accounts = self.clone();
        // If the client disconnects, the deletion continues until all keys are deleted.
        let deleting = self.tasks.complete(async move { accounts.mark_deleted(id).await });
        deleting.await.unwrap_or_else(|error| {
            Err(storage::Error::Unavailable { reason: error.to_string() }.into())
        })
    }

    async fn mark_deleted(&self, id: OrganizationId) -> Result<Organization, Error> {
        let _alone = self.limiting.lock().await;
        let mut organization = self.organization_of(id).await?;
        organization.deleted_at = Some(self.clock.now());
        let mut commit = Commit::new();
        commit.delete_existing(name_key(&organization.name));
        commit.put(organization_key(id), &organization)?;
        self.recorder.add(&mut commit, "organization.delete", &organization.name, id)?;
        self.store.commit_or(commit, Error::NoOrganization(organization.name.clone())).await?;
        self.delete_keys(id).await?;
        self.erasing.notify_one();
        Ok(organization)
    }

    /// Deletes all keys of an organization.
    ///
    /// # Errors
    /// [`Error::Storage`]: some keys may be left.
    pub async fn delete_keys(&self, id: OrganizationId) -> Result<(), Error> {
        loop {
            let keys = self.keys(id).await?;
            if keys.is_empty() {
                return Ok(());
            }
            for key in keys {
                match self.delete(id, key.id).await {
                    Ok(()) | Err(Error::NoKey) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Lists the deleted organizations whose data is not yet completely erased.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn deleted_organizations(&self) -> Result<Vec<Organization>, Error> {
        let page = Page::of(Key::table(Table::Organization), LISTED);
        let all: Vec<Organization> = self.store.records(page).await?;
        Ok(all.into_iter().filter(|one| one.deleted_at.is_some()).collect())
    }

    /// Resolves when an organization has been deleted.
    pub async fn organization_deleted(&self) {
        self.erasing.notified().await;
    }

    /// Removes the record of a deleted organization, after all of its data has been erased.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn remove_erased(&self, organization: &Organization) -> Result<(), Error> {
        let mut commit = Commit::new();
        commit.delete(organization_key(organization.id));
        let (action, subject) = ("organization.erase", organization.name.as_str());
        self.recorder.add(&mut commit, action, subject, organization.id)?;
        self.store.commit(commit).await?;
        self.limits.set(organization.id, Limits::default());
        Ok(())
    }
}
