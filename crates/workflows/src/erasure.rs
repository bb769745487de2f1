//! Erases the workflows of a deleted organization.

use super::{Error, Workflows, rows};
use orrery_domain::ids::{OrganizationId, WorkflowId};
use orrery_storage::record::decode;
use orrery_storage::{Commit, Key, Table};

impl Workflows {
    /// Deletes an organization's workflows with all revisions of their definitions.
    ///
    /// # Errors
    /// [`Error::Storage`]: some workflows may remain.
    pub async fn erase(&self, organization: OrganizationId) -> Result<(), Error> {
        let mut ids = std::collections::HashSet::new();
        let mut scan = self.store.scan(rows::of_organization(organization));
        while let Some((key, _)) = scan.next().await? {
            // The key of the workflow counter contains no id.
            if key.as_bytes().len() > rows::count(organization).as_bytes().len() {
                ids.extend(key.last_id_inverted::<WorkflowId>());
            }
        }
        if ids.is_empty() {
            return Ok(());
        }
        // No row leads from a workflow to its earlier revisions.
        let mut scan = self.store.scan(Key::table(Table::Definition));
        while let Some((key, bytes)) = scan.next().await? {
            let Ok(found) = decode::<rows::Definition>(&bytes) else { continue };
            if ids.contains(&found.workflow) {
                let mut commit = Commit::new();
                commit.delete(key);
                self.store.release(&mut commit, &found.definition);
                self.store.commit(commit).await?;
                self.store.remove_payload(&found.definition).await?;
            }
        }
        for id in ids {
            let mut commit = Commit::new();
            commit.delete(rows::workflow(id));
            commit.delete(rows::of_organization(organization).id_newest_first(id));
            let mut scan = self.store.scan(rows::triggers(id));
            while let Some((counter, _)) = scan.next().await? {
                commit.delete(counter);
            }
            let known = std::sync::Arc::clone(&self.known);
            commit.after_durable(move || known.forget(id));
            self.store.commit(commit).await?;
        }
        Ok(())
    }
}
