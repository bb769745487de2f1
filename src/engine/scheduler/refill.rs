//! Refills: what waits in a lane beyond its window, read from the disk when the window runs dry.
//!
//! The executions are read with their rows in the lane, all at one moment: one read for a window in place
//! of several for each execution when its turn comes. Nothing is changed here.

use std::collections::HashMap;

use crate::domain::execution::{Execution, Status};
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::engine::active::{Handle, LoadedExecution};
use crate::engine::scheduler::admission::{Entry, KEEP_BYTES_MAX};
use crate::engine::scheduler::lanes::{self, Ticket};
use crate::engine::{Error, Inner, rows};
use crate::storage::Page;
use crate::storage::record::decode;

/// Rows of one lane that a refill reads at once.
const REFILL_PAGE: usize = lanes::WINDOW;

impl Inner {
    /// Reads the head of a lane whose window ran dry and hands it over. Rows that the lane knows in
    /// memory (those that run, are paused or are being committed) and those that are held back are passed
    /// over, however many; so are those of organizations that may run no more.
    pub(in crate::engine) async fn refill(&self, lane: &str) -> Result<(), Error> {
        let mut tickets = Vec::new();
        let mut taken: HashMap<OrganizationId, usize> = HashMap::new();
        let mut after = None;
        while tickets.len() < lanes::WINDOW {
            let prefix = rows::queue(lane);
            let page = Page { prefix, after, before: None, limit: REFILL_PAGE };
            let rows = self.store.page(page).await?;
            let Some((last, _)) = rows.last() else {
                self.load(lane, &mut tickets).await;
                self.lanes().refilled(lane, tickets, true);
                return Ok(());
            };
            after = Some(last.clone());
            let quarantined = self.quarantined();
            let mut lanes = self.lanes();
            for (key, value) in &rows {
                match rows::parse_queued(key, value) {
                    Some((_, organization, id))
                        if !lanes.knows(lane, id) && !quarantined.contains(&id) =>
                    {
                        let taken = taken.entry(organization).or_default();
                        if lanes.takes(lane, (organization, id), *taken) {
                            *taken += 1;
                            tickets.push(ticket(organization, id));
                        }
                    }
                    Some(_) => {}
                    None => tracing::error!(lane, ?key, "a row of a lane cannot be read"),
                }
            }
        }
        self.load(lane, &mut tickets).await;
        self.lanes().refilled(lane, tickets, false);
        Ok(())
    }

    /// Reads up to `most` rows of one organization in a lane, from a row on, and hands them over. Those
    /// of others are left to the lane's own refills.
    pub(in crate::engine) async fn refill_of(
        &self,
        lane: &str,
        organization: OrganizationId,
        from: ExecutionId,
        most: usize,
    ) -> Result<(), Error> {
        let mut tickets = Vec::new();
        let mut after = Some(rows::before(lane, from));
        loop {
            let prefix = rows::queue(lane);
            let page = Page { prefix, after, before: None, limit: REFILL_PAGE };
            let rows = self.store.page(page).await?;
            let Some((last, _)) = rows.last() else {
                self.lanes().refilled_of(lane, organization, tickets, None);
                return Ok(());
            };
            after = Some(last.clone());
            let quarantined = self.quarantined();
            let mut lanes = self.lanes();
            for (key, value) in &rows {
                let Some((_, owner, id)) = rows::parse_queued(key, value) else { continue };
                if owner != organization || lanes.knows(lane, id) || quarantined.contains(&id) {
                    continue;
                }
                if tickets.len() == most {
                    lanes.refilled_of(lane, organization, tickets, Some(id));
                    return Ok(());
                }
                tickets.push(ticket(organization, id));
            }
        }
    }

    /// Reads the executions of these tickets, those that are small and that nobody has in hand. The entries
    /// are locked while they are read, so that none is changed in between. What cannot be read is left to
    /// the turn of each: one that is damaged fails alone.
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

fn ticket(organization: OrganizationId, id: ExecutionId) -> lanes::Ticket<Entry> {
    let payload = Entry { organization, active: None };
    lanes::Ticket { id, organization, payload }
}
