//! Cells: the in-memory entries through which every change to an unfinished execution is made.
//!
//! Code that changes an execution locks the cell before it reads the state, and keeps the lock
//! until its commit has returned, so a cancellation and a completion cannot interleave. A cell
//! exists while its execution is queued in memory, running, or being cancelled. All other
//! executions are read from the store on demand.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::query::events::RunProgress;
use crate::{Error, Inner, rows};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::machine::workflow::StepProgress;
use orrery_runtime as runtime;

/// How long a reader waits for changes in progress. The wait is limited because a change may itself
/// be waiting for memory.
const CHANGE_WAIT_MAX: Duration = Duration::from_millis(500);

/// The in-memory state of an unfinished execution.
#[derive(Debug)]
pub(crate) struct LoadedExecution {
    pub execution: Execution,
    /// Progress of the workflow's steps while it runs; `None` for predictions.
    pub progress: Option<Box<StepProgress>>,
    /// True until the execution first runs. Until then, the execution has no stored steps.
    pub is_new: bool,
}

impl From<Execution> for LoadedExecution {
    fn from(execution: Execution) -> Self {
        Self { execution, progress: None, is_new: false }
    }
}

/// An unfinished execution in memory.
#[derive(Debug, Default)]
pub(crate) struct ActiveExecution {
    /// The last committed state, or `None` until it is read from the store. For workflow steps,
    /// this state can be ahead of the disk: it includes transitions that recovery would derive from
    /// the committed steps.
    pub state: tokio::sync::Mutex<Option<LoadedExecution>>,
    /// A token that is cancelled to stop the run.
    pub stop: CancellationToken,
    waiting_cancellations: Mutex<WaitingCancellations>,
    /// Notified when an event is sent to the execution or one of its children ends.
    pub event: tokio::sync::Notify,
    /// Children that have ended and for which the execution's steps may be waiting.
    pub ended_children: Mutex<Vec<ExecutionId>>,
    /// Progress and logs reported by the execution's run.
    pub run_progress: Arc<RunProgress>,
}

/// The number of cancellations that wait for the cell's lock, and the token that notifies the task
/// that holds the lock.
#[derive(Debug, Default)]
struct WaitingCancellations {
    count: usize,
    token: CancellationToken,
}

impl ActiveExecution {
    /// Returns a token that is cancelled when a cancellation waits for the lock. The task that
    /// holds the lock then drops its changes, or, if it has begun to commit them, no longer waits
    /// for memory.
    pub(crate) fn cancellation_waits(&self) -> CancellationToken {
        self.waiting_cancellations().token.clone()
    }

    /// Notifies the task that holds the lock that a cancellation is waiting for the lock. The
    /// notification remains in effect until the returned guard is dropped.
    pub(crate) fn announce_cancellation(&self) -> WaitingCancellation<'_> {
        let mut waiting = self.waiting_cancellations();
        waiting.count += 1;
        waiting.token.cancel();
        WaitingCancellation(self)
    }

    fn waiting_cancellations(&self) -> MutexGuard<'_, WaitingCancellations> {
        self.waiting_cancellations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the end of a child.
    pub(crate) fn child_ended(&self, child: ExecutionId) {
        self.ended_children.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        self.event.notify_one();
    }

    /// Takes the children that have ended since the last call.
    pub(crate) fn take_ended_children(&self) -> Vec<ExecutionId> {
        std::mem::take(&mut *self.ended_children.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A cancellation that waits for the lock.
#[derive(Debug)]
pub(crate) struct WaitingCancellation<'a>(&'a ActiveExecution);

impl Drop for WaitingCancellation<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting_cancellations();
        waiting.count -= 1;
        // Tasks that take the lock from now on must not be interrupted.
        if waiting.count == 0 {
            waiting.token = CancellationToken::new();
        }
    }
}

impl Inner {
    /// Returns the locked state, reading it from the store first if it is not loaded.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such execution or it belongs to another organization;
    /// [`Error::Storage`].
    pub(crate) async fn loaded<'a>(
        &self,
        state: &'a mut Option<LoadedExecution>,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<&'a mut LoadedExecution, Error> {
        if state.is_none() {
            let stored = self.store.read::<Execution>(&rows::execution(organization, id)).await?;
            *state = stored.map(LoadedExecution::from);
        }
        let own = state.as_mut().filter(|loaded| loaded.execution.organization == organization);
        own.ok_or(Error::NotFound)
    }
}

/// All cells, keyed by execution.
#[derive(Debug, Default, Clone)]
pub(crate) struct ActiveExecutions {
    entries: Arc<Mutex<HashMap<ExecutionId, Arc<ActiveExecution>>>>,
}

/// A reference to a cell. Dropping the last reference removes the cell.
#[derive(Debug)]
pub(crate) struct Handle {
    registry: ActiveExecutions,
    id: ExecutionId,
    active: Arc<ActiveExecution>,
}

impl ActiveExecutions {
    /// Returns the execution's cell, creating it if needed.
    pub(crate) fn get_or_insert(&self, id: ExecutionId) -> Handle {
        let active = Arc::clone(self.lock().entry(id).or_default());
        Handle { registry: self.clone(), id, active }
    }

    /// Returns the execution's cell if it exists.
    pub(crate) fn find(&self, id: ExecutionId) -> Option<Handle> {
        let active = Arc::clone(self.lock().get(&id)?);
        Some(Handle { registry: self.clone(), id, active })
    }

    /// Returns the cell of a new execution and sets its state if it is not loaded. A locked cell is
    /// left unchanged, because the task that holds the lock has already read the state.
    pub(crate) fn insert_loaded(&self, execution: &Execution) -> Handle {
        let handle = self.get_or_insert(execution.id);
        if let Ok(mut state) = handle.state.try_lock()
            && state.is_none()
        {
            *state = Some(LoadedExecution { is_new: true, ..execution.clone().into() });
        }
        handle
    }

    /// Returns a reader of the current states.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { registry: self, until: runtime::monotonic_now() + CHANGE_WAIT_MAX }
    }

    /// Returns the number of cells.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ExecutionId, Arc<ActiveExecution>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads current states. Waits for changes in progress, but only for a short time in total,
/// regardless of how many executions are read.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    registry: &'a ActiveExecutions,
    until: Instant,
}

impl Reader<'_> {
    /// Applies `view` to the state of an execution. Returns `None` if the state is not in memory,
    /// or if a change in progress takes too long. In both cases, the store has the last committed
    /// state.
    pub(crate) async fn read<T>(
        &self,
        id: ExecutionId,
        view: impl FnOnce(&LoadedExecution) -> T,
    ) -> Option<T> {
        let active = self.registry.find(id)?;
        let state = timeout_at(self.until, active.state.lock()).await.ok()?;
        state.as_ref().map(view)
    }
}

impl Deref for Handle {
    type Target = ActiveExecution;
    fn deref(&self) -> &ActiveExecution {
        &self.active
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut active = self.registry.lock();
        // Only two references are left: the map's and this handle's. No new reference can be
        // created while the map is locked.
        if Arc::strong_count(&self.active) == 2 {
            active.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancellations_interrupt_a_holder_of_the_lock_only_while_they_wait() {
        let active = ActiveExecution::default();
        let holder = active.cancellation_waits();
        let first = active.announce_cancellation();
        let second = active.announce_cancellation();
        assert!(holder.is_cancelled());
        drop(first);
        assert!(active.cancellation_waits().is_cancelled(), "the second still waits");
        drop(second);
        assert!(!active.cancellation_waits().is_cancelled());
    }
}
