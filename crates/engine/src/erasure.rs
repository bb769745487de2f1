//! Erasure of the executions and bulk jobs of a deleted organization.

use std::time::Duration;

use crate::{Engine, Error, bulk, rows};
use orrery_domain::ids::{JobId, OrganizationId};
use orrery_storage::Commit;

/// Number of unfinished executions that are cancelled before the remaining ones are read again.
const PAGE: usize = 500;

impl Engine {
    /// Cancels an organization's unfinished executions and bulk jobs, and then deletes all of its
    /// executions and bulk jobs.
    ///
    /// # Errors
    /// [`Error::Storage`]: some executions or jobs may remain.
    pub async fn erase(&self, organization: OrganizationId) -> Result<(), Error> {
        let store = &self.inner.store;
        let mut jobs = store.scan(bulk::jobs_of(organization));
        while let Some((key, _)) = jobs.next().await? {
            if let Some(id) = key.last_id_inverted::<JobId>() {
                self.cancel_job(organization, id).await?;
            }
            let mut commit = Commit::new();
            commit.delete(key);
            store.commit(commit).await?;
        }
        loop {
            let mut cancelled = 0;
            for execution in self.unfinished(Some(organization), PAGE).await? {
                match self.cancel(organization, execution.id).await {
                    Ok(_) => cancelled += 1,
                    Err(Error::NotFound | Error::AlreadyEnded(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            if cancelled == 0 {
                break;
            }
        }
        // Executions that end during the sweep are deleted as well.
        let cutoff = self.inner.clock.now().plus(Duration::from_secs(24 * 3600));
        self.purge_before(organization, cutoff).await?;
        let mut commit = Commit::new();
        commit.delete(rows::payloads_forgotten(organization));
        store.commit(commit).await?;
        Ok(())
    }
}
