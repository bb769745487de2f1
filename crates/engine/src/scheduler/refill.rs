//! Refills: read an organization's rows in a lane from disk when the organization has no ticket
//! left in the lane's window.
//!
//! All executions of these rows are then fetched in a single read, instead of in several reads per
//! execution when the execution's turn comes. Only small executions are kept in memory. This module
//! writes nothing.

use crate::active::{Handle, LoadedExecution};
use crate::scheduler::admission::{Entry, KEEP_BYTES_MAX};
use crate::scheduler::lanes::Ticket;
use crate::{Error, Inner, rows};
use orrery_domain::execution::{Execution, Status};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_storage::Page;
use orrery_storage::record::decode;

impl Inner {
    /// Reads up to `most` rows of one organization in a lane, starting at `from`, and passes them
    /// to the lane. Skips any number of rows whose executions the lane has in memory (running,
    /// paused or being committed) or that are quarantined.
    pub(crate) async fn refill(
        &self,
        lane: &str,
        organization: OrganizationId,
        from: ExecutionId,
        most: usize,
    ) -> Result<(), Error> {
        let mut tickets = Vec::new();
        let mut more_from = None;
        let after = Some(rows::before(lane, organization, from));
        let page = Page::of(rows::queue_of(lane, organization), most.saturating_add(1));
        let mut scan = self.store.scan(Page { after, ..page });
        while more_from.is_none()
            && let Some(rows) = scan.next_page().await?
        {
            let quarantined = self.isolation.quarantined();
            let lanes = self.lanes();
            let ids = rows.iter().filter_map(|(key, _)| key.last_id::<ExecutionId>());
            let mut ids = ids.filter(|id| !lanes.knows(lane, *id) && !quarantined.contains(id));
            let room = most.saturating_sub(tickets.len());
            tickets.extend(ids.by_ref().take(room).map(|id| ticket(organization, id)));
            more_from = ids.next();
        }
        self.load(lane, &mut tickets).await;
        self.lanes().refilled(lane, organization, tickets, more_from);
        Ok(())
    }

    /// Reads the executions of these tickets, and keeps small executions in memory. Skips
    /// executions whose cells are in use. The cells are locked during the read, so that no state
    /// can change. An execution that cannot be read is read again when its turn comes, so that a
    /// damaged execution does not affect the others.
    async fn load(&self, lane: &str, tickets: &mut [Ticket<Entry>]) {
        let may_have_steps = !lane.starts_with("model:");
        let handles: Vec<Handle> =
            tickets.iter().map(|ticket| self.active.get_or_insert(ticket.id)).collect();
        let mut is_loaded = vec![false; handles.len()];
        {
            let locked = handles.iter().map(|handle| handle.state.try_lock().ok());
            let mut free: Vec<_> = tickets
                .iter()
                .zip(locked)
                .zip(&mut is_loaded)
                .filter_map(|((ticket, state), is_loaded)| {
                    Some((ticket, state.filter(|state| state.is_none())?, is_loaded))
                })
                .collect();
            let keys = free.iter().map(|(ticket, ..)| {
                let parts = may_have_steps.then(|| rows::steps(ticket.id));
                (rows::execution(ticket.organization, ticket.id), parts)
            });
            let found = self.store.get_with_parts(keys.collect()).await.unwrap_or_default();
            for ((_, state, is_loaded), (row, has_steps)) in free.iter_mut().zip(found) {
                let execution = row.and_then(|row| decode::<Execution>(&row).ok());
                if let Some(execution) =
                    execution.filter(|execution| execution.input.len() <= KEEP_BYTES_MAX)
                {
                    **state = Some(loaded(execution, has_steps));
                    **is_loaded = true;
                }
            }
        }
        for ((ticket, handle), is_loaded) in tickets.iter_mut().zip(handles).zip(is_loaded) {
            ticket.payload.active = is_loaded.then_some(handle);
        }
    }
}

fn loaded(execution: Execution, has_steps: bool) -> LoadedExecution {
    let has_begun = execution.status != Status::Created || execution.started_at.is_some();
    LoadedExecution { is_new: !has_steps && !has_begun, ..execution.into() }
}

fn ticket(organization: OrganizationId, id: ExecutionId) -> Ticket<Entry> {
    let payload = Entry { organization, active: None };
    Ticket { id, organization, payload }
}
