//! Erasure of the files of a deleted organization.

use super::{Error, Files, rows};
use orrery_domain::ids::OrganizationId;
use orrery_storage::Commit;

impl Files {
    /// Deletes an organization's files, pending uploads and tombstones. Blobs that another
    /// organization's files also reference are not deleted.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`]; some of the data may then be left.
    pub async fn erase(&self, organization: OrganizationId) -> Result<(), Error> {
        let store = &self.shared.store;
        let of_organization = |key: &_| {
            let ids = rows::of_expiry(key);
            ids.filter(|(owner, _)| *owner == organization).map(|(_, id)| id)
        };
        // Every file, upload and tombstone has an expiry, and the keys of the expiry index contain
        // the organization's ID.
        let mut scan = store.scan(rows::expiries());
        while let Some((key, _)) = scan.next().await? {
            if let Some(id) = of_organization(&key) {
                self.delete(organization, id).await?;
            }
        }
        let mut scan = store.scan(rows::expiries());
        while let Some((key, _)) = scan.next().await? {
            if let Some(id) = of_organization(&key) {
                let mut commit = Commit::new();
                commit.delete(rows::tombstone(organization, id)).delete(key);
                store.commit(commit).await?;
            }
        }
        Ok(())
    }
}
