//! Retention: deletes old finished deliveries and their payloads, in small batches.
//!
//! An unfinished delivery is never deleted, regardless of its age, unless its organization is
//! deleted.

use std::time::Duration;

use super::outbox::Outbox;
use super::{Error, rows};
use orrery_domain::delivery::{self, Status};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::time::Timestamp;
use orrery_runtime::SweepPace;
use orrery_storage::{Commit, Key, Page};

/// Number of deliveries deleted per commit.
const BATCH_MAX: usize = 128;

impl Outbox {
    /// Deletes an organization's finished deliveries that were created before `cutoff`, and returns
    /// their number.
    ///
    /// # Errors
    /// [`Error::Store`]; deliveries deleted before the error stay deleted.
    pub async fn purge_before(
        &self,
        organization: OrganizationId,
        cutoff: Timestamp,
    ) -> Result<usize, Error> {
        self.purge_of(organization, &[Status::Delivered, Status::Failed], cutoff).await
    }

    /// Deletes all deliveries of a deleted organization, including pending ones.
    ///
    /// # Errors
    /// As [`Outbox::purge_before`].
    pub async fn erase(&self, organization: OrganizationId) -> Result<(), Error> {
        let all = [Status::Pending, Status::Delivered, Status::Failed];
        let cutoff = self.context.clock.now().plus(Duration::from_secs(24 * 3600));
        self.purge_of(organization, &all, cutoff).await.map(drop)
    }

    async fn purge_of(
        &self,
        organization: OrganizationId,
        statuses: &[Status],
        cutoff: Timestamp,
    ) -> Result<usize, Error> {
        let mut forgotten = 0;
        let pace = SweepPace::begin();
        for status in statuses.iter().copied() {
            let prefix = rows::status_rows(organization, status);
            let older = prefix.clone().time_newest_first(cutoff).raw(&[u8::MAX; 17]);
            loop {
                // The lock is held while one batch is deleted, so that a redelivery finds either
                // the complete delivery or nothing.
                let one_at_a_time = self.context.taking_up.lock().await;
                let after = Some(older.clone());
                let page = Page { after, ..Page::of(prefix.clone(), BATCH_MAX) };
                let found: Vec<Key> =
                    self.context.store.page(page).await?.into_iter().map(|(key, _)| key).collect();
                self.purge(organization, status, &found).await?;
                drop(one_at_a_time);
                forgotten += found.len();
                if found.len() < BATCH_MAX {
                    break;
                }
                pace.pause(found.len()).await;
            }
        }
        Ok(forgotten)
    }

    async fn purge(
        &self,
        organization: OrganizationId,
        status: Status,
        standing: &[Key],
    ) -> Result<(), Error> {
        let store = &self.context.store;
        let mut commit = Commit::new();
        for key in standing {
            commit.delete(key.clone());
            commit.add(rows::status_count(organization, status), -1);
        }
        let ids = standing.iter().filter_map(Key::last_id_inverted::<ExecutionId>);
        let ids: Vec<_> = ids.map(|id| (organization, id)).collect();
        // Damaged deliveries are deleted as well; a sweep finds their payloads.
        let found = rows::load_many(store, &ids).await?;
        let mut bodies = Vec::new();
        for delivery in found.iter().flatten() {
            if delivery.is_one_of_many() {
                let of_execution = rows::of_execution(organization, delivery.execution);
                commit.delete(of_execution.id(delivery.id));
            }
            if let Some(next) = delivery.progress.next_attempt_at {
                let receiver = delivery::receiver(&delivery.webhook.url);
                commit.delete(rows::due(next, organization, delivery.row()));
                commit.delete(rows::parked(&receiver, next, organization, delivery.row()));
            }
            store.release(&mut commit, &delivery.body);
            bodies.push(delivery.body.clone());
        }
        let owners = found.iter().flatten().map(|delivery| delivery.id);
        store.release_usage(&mut commit, organization, owners).await?;
        for (_, id) in ids {
            commit.delete(rows::delivery(organization, id));
            commit.delete(rows::progress(organization, id));
        }
        store.commit(commit).await?;
        for body in bodies {
            store.remove_payload(&body).await?;
        }
        Ok(())
    }
}
