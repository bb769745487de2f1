//! Recovery: what a start finds unfinished.
//!
//! Only the rows of the lanes are read, a page at a time, and only counted: the executions behind
//! them are read when their turn comes, under the same caps as new ones. Work that was in flight
//! has a row too; it is taken again and runs again under its attempt's number. What waits for a
//! moment stands in the timers, which are read as they come due. What may have killed the process is
//! held back and runs alone first, see `isolation`.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::{Engine, Error, Inner, lanes, rows};
use crate::domain::ids::ExecutionId;
use crate::runtime;
use crate::storage::{Page, Store};

/// Rows of the lanes that are read at once.
const PAGE: usize = 4096;

impl Engine {
    /// Takes up everything unfinished and begins to run. Answers how many there were.
    ///
    /// # Errors
    /// [`Error::Storage`] when the lanes cannot be read.
    pub async fn recover(&self) -> Result<usize, Error> {
        if let Some(since) = self.inner.read_pause().await? {
            tracing::warn!(
                restored_at = %since,
                "this store was restored from a backup: its unfinished executions and webhooks wait \
                 for `orrery resume`"
            );
        }
        let held = self.inner.judge_crash().await?;
        let waiting = count_queued(&self.inner.store).await?;
        let mut total = 0;
        for (lane, count) in &waiting {
            self.inner.set_limits(lane);
            let mut lanes = self.inner.lanes();
            lanes.admit(lane, *count);
            lanes.spill(lane);
            total += count;
        }
        let inner = std::sync::Arc::clone(&self.inner);
        self.inner.tasks.spawn(inner.keep_time());
        self.inner.is_recovered.store(true, Ordering::Release);
        if !held.is_empty() {
            self.inner.lanes().hold_starts(true);
            let inner = std::sync::Arc::clone(&self.inner);
            self.inner.tasks.spawn(inner.run_held(held));
        }
        self.inner.pump();
        Ok(total)
    }
}

/// Rows by lane.
async fn count_queued(store: &Store) -> Result<HashMap<String, usize>, Error> {
    let mut waiting = HashMap::new();
    let (mut after, mut newest) = (None, None);
    loop {
        let page = Page { prefix: rows::queues(), after, before: None, limit: PAGE };
        let rows = store.page(page).await?;
        for (key, value) in &rows {
            if let Some((lane, ..)) = rows::parse_queued(key, value) {
                *waiting.entry(lane).or_insert(0) += 1;
                newest = newest.max(key.last_id::<ExecutionId>());
            }
        }
        match rows.into_iter().last() {
            Some((key, _)) => after = Some(key),
            None => {
                // New work stands behind what waits, also after the machine's clock was set back.
                newest.into_iter().for_each(runtime::ids_follow);
                return Ok(waiting);
            }
        }
    }
}

impl Inner {
    /// Reads the head of a lane whose window ran dry and hands it over.
    pub(super) async fn refill(&self, lane: &str) -> Result<(), Error> {
        // Rows of running ones stand at the head; they are read over.
        let held = self.held().clone();
        let limit = self.lanes().running(lane).saturating_add(lanes::WINDOW + held.len());
        let page = Page { prefix: rows::queue(lane), after: None, before: None, limit };
        let rows = self.store.page(page).await?;
        let complete = rows.len() < limit;
        let tickets = rows.iter().filter_map(|(key, value)| {
            let (_, organization, id) = rows::parse_queued(key, value)?;
            if held.contains(&id) {
                return None;
            }
            Some(lanes::Ticket { id, payload: super::Place { organization, cell: None } })
        });
        let tickets = tickets.collect();
        self.lanes().refilled(lane, tickets, complete);
        Ok(())
    }
}
