//! The scheduler: the lanes, and the one path by which work gets into them.
//!
//! A commit carries the tickets of the work that it makes ready. A ticket is announced to its lane
//! before the commit is sent and enlisted by the commit's hook, which the store's writer calls in
//! the order of the commits, once the rows are durable. A submission, the next model of a chain and
//! a timer take this path, whether or not anybody still waits for the commit; when the commit fails,
//! the ticket is dropped, which takes the announcement back.
//!
//! Nothing is started here: [`Scheduler::wake`] tells the dispatcher to look.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::domain::execution::Execution;
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::engine::active::{ActiveExecutions, Handle};
use crate::engine::scheduler::lanes::{Full, Lanes, Ticket};

/// An execution with a payload up to this many bytes waits in memory whole; a larger one is read
/// again when its turn comes.
pub const KEEP_BYTES_MAX: u64 = 4096;

/// What a ticket of a lane carries.
#[derive(Debug)]
pub struct Entry {
    pub organization: OrganizationId,
    /// The state, where it is kept in memory while it waits.
    pub active: Option<Handle>,
}

/// A step that waits for a place at its model; notified when it has one.
pub type StepWaiter = oneshot::Sender<()>;

#[derive(Debug)]
pub struct Scheduler {
    lanes: Mutex<Lanes<Entry, StepWaiter>>,
    active: ActiveExecutions,
    /// Notified when something may start.
    ready: Notify,
}

/// An execution that is about to be accepted, counted for its organization. Dropped before it is on the
/// disk, it is not counted any more.
#[derive(Debug)]
pub struct Admission {
    scheduler: Arc<Scheduler>,
    organization: OrganizationId,
    is_open: bool,
}

impl Admission {
    /// It is on the disk: it counts until it ends.
    pub fn keep(mut self) {
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

/// Work that a commit makes ready. Dropped before it is enlisted, it takes its announcement back.
#[derive(Debug)]
pub struct LaneReservation {
    scheduler: Arc<Scheduler>,
    lane: String,
    id: ExecutionId,
    is_open: bool,
}

impl Scheduler {
    pub fn new(active_max: usize, active: ActiveExecutions) -> Self {
        Self { lanes: Mutex::new(Lanes::new(active_max)), active, ready: Notify::new() }
    }

    pub fn lanes(&self) -> MutexGuard<'_, Lanes<Entry, StepWaiter>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the dispatcher look for something to start.
    pub fn wake(&self) {
        self.ready.notify_one();
    }

    /// Resolves when something may start.
    pub async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Counts an execution that is about to be accepted, within the organization's limit.
    ///
    /// # Errors
    /// [`Full`] when as many of the organization wait as may.
    pub fn admit(
        self: &Arc<Self>,
        organization: OrganizationId,
        limit: Option<usize>,
    ) -> Result<Admission, Full> {
        self.lanes().admit(organization, limit)?;
        Ok(Admission { scheduler: Arc::clone(self), organization, is_open: true })
    }

    /// Announces new work to its lane, within the lane's limit. The lane is made when it is new, with
    /// these limits: its cap and how many may wait.
    ///
    /// # Errors
    /// [`Full`] when the lane holds its limit.
    pub fn reserve(
        self: &Arc<Self>,
        lane: String,
        (cap, queue_limit): (usize, usize),
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

    /// Announces work that was accepted before.
    pub fn reserve_accepted(self: &Arc<Self>, lane: String, id: ExecutionId) -> LaneReservation {
        self.lanes().reserve_accepted(&lane, id);
        LaneReservation { scheduler: Arc::clone(self), lane, id, is_open: true }
    }
}

impl LaneReservation {
    /// The row is durable: the work waits in its lane.
    pub fn enqueue(mut self, entry: Entry) {
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

    /// As [`LaneReservation::enqueue`], for new work. A small one is kept in memory while it waits there.
    pub fn enqueue_new(self, execution: &Execution) {
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
