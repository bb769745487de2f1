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

use super::cells::{Cells, Hold};
use super::lanes::{Full, Lanes, Ticket};
use crate::domain::execution::Execution;
use crate::domain::ids::{ExecutionId, OrganizationId};

/// An execution with a payload up to this many bytes waits in memory whole; a larger one is read
/// again when its turn comes.
const KEEP_BYTES: u64 = 4096;

/// What a ticket of a lane carries.
#[derive(Debug)]
pub struct Entry {
    pub organization: OrganizationId,
    /// The state, where it is kept in memory while it waits.
    pub cell: Option<Hold>,
}

/// A step that waits for a place at its model; notified when it has one.
pub type Guest = oneshot::Sender<()>;

#[derive(Debug)]
pub struct Scheduler {
    lanes: Mutex<Lanes<Entry, Guest>>,
    cells: Cells,
    /// Notified when something may start.
    ready: Notify,
}

/// Work that a commit makes ready. Dropped before it is enlisted, it takes its announcement back.
#[derive(Debug)]
pub struct Announced {
    scheduler: Arc<Scheduler>,
    lane: String,
    id: ExecutionId,
    is_open: bool,
}

impl Scheduler {
    pub fn new(active: usize, cells: Cells) -> Self {
        Self { lanes: Mutex::new(Lanes::new(active)), cells, ready: Notify::new() }
    }

    pub fn lanes(&self) -> MutexGuard<'_, Lanes<Entry, Guest>> {
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

    /// Announces new work to its lane, within the lane's limit.
    ///
    /// # Errors
    /// [`Full`] when the lane holds its limit.
    pub fn reserve(self: &Arc<Self>, lane: String, id: ExecutionId) -> Result<Announced, Full> {
        self.lanes().reserve(&lane, id)?;
        Ok(Announced { scheduler: Arc::clone(self), lane, id, is_open: true })
    }

    /// Announces work that was accepted before.
    pub fn announce(self: &Arc<Self>, lane: String, id: ExecutionId) -> Announced {
        self.lanes().announce(&lane, id);
        Announced { scheduler: Arc::clone(self), lane, id, is_open: true }
    }
}

impl Announced {
    /// The row is durable: the work waits in its lane.
    pub fn enlist(mut self, entry: Entry) {
        self.is_open = false;
        let ticket = Ticket { id: self.id, payload: entry };
        self.scheduler.lanes().enlist(&self.lane, ticket);
        self.scheduler.wake();
    }

    /// As [`Announced::enlist`], for new work. A small one is kept in memory while it waits there.
    pub fn enlist_new(self, execution: &Execution) {
        let is_kept =
            execution.input.len() <= KEEP_BYTES && self.scheduler.lanes().has_room(&self.lane);
        let cell = is_kept.then(|| self.scheduler.cells.fill(execution));
        self.enlist(Entry { organization: execution.organization, cell });
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if self.is_open {
            self.scheduler.lanes().retract(&self.lane, self.id);
        }
    }
}
