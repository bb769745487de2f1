//! Lists unfinished executions across all organizations, for the operator. Also works while the
//! service is stopped.

use crate::{Engine, Error, rows};
use orrery_domain::execution::{Execution, Kind, Status};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::waits_for::WaitsFor;
use orrery_storage::record::decode;
use orrery_storage::{Key, Page, Row, Table, held_back};

/// Maximum number of unfinished executions of each kind that are checked for suspension.
const SUSPENDED_MAX: usize = 5_000;

impl Engine {
    /// Returns up to `limit` unfinished executions: queued or running in lanes, suspended until a
    /// due time, or held back by a restore. Unreadable executions are skipped.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn unfinished(
        &self,
        organization: Option<OrganizationId>,
        limit: usize,
    ) -> Result<Vec<Execution>, Error> {
        let mut found = Vec::new();
        for prefix in [rows::queues(), rows::timers(), held_back::all()] {
            let mut scan = self.inner.store.scan(prefix);
            while found.len() < limit
                && let Some(rows) = scan.next_page().await?
            {
                let ids = rows.iter().filter_map(ids_of);
                let ids = ids.filter(|(owner, _)| organization.is_none_or(|one| one == *owner));
                let room = limit.saturating_sub(found.len());
                let keys: Vec<Key> =
                    ids.take(room).map(|(owner, id)| rows::execution(owner, id)).collect();
                for bytes in self.inner.store.get_many(&keys).await?.iter().flatten() {
                    match decode::<Execution>(bytes) {
                        Ok(execution) if !execution.status.is_final() => found.push(execution),
                        Ok(_ended) => {}
                        Err(error) => tracing::error!(%error, "skipped an unreadable execution"),
                    }
                }
            }
        }
        Ok(found)
    }
}

/// Suspended executions, which hold no permit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Aside {
    /// Executions waiting for an event.
    pub for_person: usize,
    /// Executions waiting for a timer, the next attempt or the end of a pause.
    pub for_time: usize,
    /// Whether there may be more, because the organization has more unfinished executions than were
    /// checked.
    pub is_capped: bool,
}

impl Engine {
    /// Counts the organization's suspended executions among its first [`SUSPENDED_MAX`] unfinished
    /// executions of each kind.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn aside(&self, organization: OrganizationId) -> Result<Aside, Error> {
        let store = &self.inner.store;
        let mut aside = Aside::default();
        for kind in [Kind::Workflow, Kind::Prediction] {
            let prefix = rows::standing(organization, kind, Status::Created);
            let ids = store.page(Page::of(prefix, SUSPENDED_MAX)).await?;
            aside.is_capped |= ids.len() == SUSPENDED_MAX;
            let ids = ids.iter().filter_map(|(key, _)| key.last_id_inverted::<ExecutionId>());
            let keys: Vec<Key> = ids.map(|id| rows::execution(organization, id)).collect();
            for bytes in store.get_many(&keys).await?.iter().flatten() {
                let execution: Execution = decode(bytes)?;
                match (execution.aside_until(), execution.waits_for()) {
                    (None, _) => {}
                    (Some(_), Some(WaitsFor::Event)) => aside.for_person += 1,
                    (Some(_), Some(WaitsFor::Resume) | None) => aside.for_time += 1,
                }
            }
        }
        Ok(aside)
    }
}

/// Returns the ids of the organization and the execution that a row schedules.
fn ids_of((key, value): &Row) -> Option<(OrganizationId, ExecutionId)> {
    let original = held_back::original(key);
    let key = original.as_ref().map_or(key, |(_, key)| key);
    if key.as_bytes().first() == Some(&(Table::Timer as u8)) {
        return rows::parse_timer(key, value).map(|(_, organization, id)| (organization, id));
    }
    if key.as_bytes().first() == Some(&(Table::Lane as u8)) {
        return rows::parse_queued(key).map(|(_, organization, id)| (organization, id));
    }
    None
}
