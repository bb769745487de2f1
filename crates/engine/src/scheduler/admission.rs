//! The scheduler: the lanes, and the only path by which work enters them.
//!
//! A commit carries the tickets of the work that it makes ready. A ticket is announced to its lane
//! before the commit is submitted. The commit's hook enqueues the ticket. The store's writer calls
//! hooks in commit order once the rows are durable, even if no task is waiting for the commit
//! anymore. Submissions, fallbacks to the next model and timers all take this path. If the commit
//! fails, the ticket is dropped, which withdraws the announcement.
//!
//! This module starts nothing: [`Scheduler::wake`] wakes the dispatcher.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::active::{ActiveExecutions, Handle};
use crate::scheduler::lanes::{Full, Lanes, Ticket};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, OrganizationId};

/// A queued execution stays in memory if its input has at most this many bytes; otherwise, the
/// execution is read again when it starts.
pub(crate) const KEEP_BYTES_MAX: u64 = 4096;

/// The payload of a ticket.
#[derive(Debug)]
pub(crate) struct Entry {
    pub organization: OrganizationId,
    /// The execution's cell, if the execution stays in memory while queued.
    pub active: Option<Handle>,
}

/// Notifies a step that waits for a model permit when the permit is granted.
pub(crate) type StepWaiter = oneshot::Sender<()>;

#[derive(Debug)]
pub(crate) struct Scheduler {
    lanes: Mutex<Lanes<Entry, StepWaiter>>,
    active: ActiveExecutions,
    /// Notified when there may be work that can start.
    ready: Notify,
}

/// An execution that is about to be accepted and is already counted for its organization. Dropping
/// this value before the commit is durable undoes the count.
#[derive(Debug)]
pub(crate) struct Admission {
    scheduler: Arc<Scheduler>,
    organization: OrganizationId,
    is_open: bool,
}

impl Admission {
    /// Makes the count permanent. Called once the commit is durable; the execution then counts
    /// until it ends.
    pub(crate) fn keep(mut self) {
        self.is_open = false;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.is_open {
            self.scheduler.lanes().ended(self.organization);
        }
    }
}

/// The announcement of work that a commit makes ready. Dropping the announcement before the work is
/// enqueued withdraws it.
#[derive(Debug)]
pub(crate) struct LaneReservation {
    scheduler: Arc<Scheduler>,
    lane: String,
    id: ExecutionId,
    is_open: bool,
}

impl Scheduler {
    pub(crate) fn new(active_max: usize, active: ActiveExecutions) -> Self {
        Self { lanes: Mutex::new(Lanes::new(active_max)), active, ready: Notify::new() }
    }

    pub(crate) fn lanes(&self) -> MutexGuard<'_, Lanes<Entry, StepWaiter>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the dispatcher check for work to start.
    pub(crate) fn wake(&self) {
        self.ready.notify_one();
    }

    /// Resolves when there may be work that can start.
    pub(crate) async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Counts an execution that is about to be accepted, subject to the organization's limit.
    ///
    /// # Errors
    /// [`Full`] if the organization's queue is full.
    pub(crate) fn admit(
        self: &Arc<Self>,
        organization: OrganizationId,
        limit: Option<usize>,
    ) -> Result<Admission, Full> {
        self.lanes().admit(organization, limit)?;
        Ok(Admission { scheduler: Arc::clone(self), organization, is_open: true })
    }

    /// Announces new work to its lane, subject to the lane's queue limit. If the lane does not
    /// exist, creates it with the given concurrency cap and queue limit.
    ///
    /// # Errors
    /// [`Full`] if the lane's queue is full.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        lane: String,
        cap: usize,
        queue_limit: usize,
        id: ExecutionId,
    ) -> Result<LaneReservation, Full> {
        let mut lanes = self.lanes();
        if lanes.load(&lane).cap == 0 {
            lanes.set_limits(&lane, cap, queue_limit);
        }
        lanes.reserve(&lane, id)?;
        drop(lanes);
        Ok(LaneReservation { scheduler: Arc::clone(self), lane, id, is_open: true })
    }

    /// Announces work that was already accepted, without a limit.
    pub(crate) fn reserve_accepted(
        self: &Arc<Self>,
        lane: String,
        id: ExecutionId,
    ) -> LaneReservation {
        self.lanes().reserve_accepted(&lane, id);
        LaneReservation { scheduler: Arc::clone(self), lane, id, is_open: true }
    }
}

impl LaneReservation {
    /// Adds the work to its lane's queue; its row must be durable.
    pub(crate) fn enqueue(mut self, entry: Entry) {
        self.is_open = false;
        let ticket = Ticket { id: self.id, organization: entry.organization, payload: entry };
        let has_turns = {
            let mut lanes = self.scheduler.lanes();
            lanes.enqueue(&self.lane, ticket);
            lanes.has_turns()
        };
        if has_turns {
            self.scheduler.wake();
        }
    }

    /// [`LaneReservation::enqueue`] for new work. A small execution stays in memory while queued.
    pub(crate) fn enqueue_new(self, execution: &Execution) {
        let is_kept = execution.input.len() <= KEEP_BYTES_MAX
            && self.scheduler.lanes().has_room(&self.lane, execution.organization);
        let active = is_kept.then(|| self.scheduler.active.insert_loaded(execution));
        self.enqueue(Entry { organization: execution.organization, active });
    }
}

impl Drop for LaneReservation {
    fn drop(&mut self) {
        if self.is_open {
            self.scheduler.lanes().cancel_reservation(&self.lane, self.id);
        }
    }
}
