//! Cells: the one place where an unfinished execution is changed.
//!
//! Code that changes an execution holds the lock of its entry from reading the state until the commit has
//! returned, so that a cancel and a finish never cross. A cell exists while its execution waits in
//! memory, runs, or is being cancelled; others are read from the store when they are needed.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::domain::execution::Execution;
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::machine::workflow::StepProgress;
use crate::engine::query::events::RunProgress;
use crate::engine::{Error, Inner, rows};

/// What is held of an unfinished execution.
#[derive(Debug)]
pub struct LoadedExecution {
    pub execution: Execution,
    /// How far its steps have come, while it runs; none for predictions.
    pub progress: Option<Box<StepProgress>>,
    /// It has not begun to run: nothing is stored of its steps.
    pub is_new: bool,
}

impl From<Execution> for LoadedExecution {
    fn from(execution: Execution) -> Self {
        Self { execution, progress: None, is_new: false }
    }
}

/// An unfinished execution in memory.
#[derive(Debug, Default)]
pub struct ActiveExecution {
    /// The state as it was last committed, or `None` before it was read from the store. Of a
    /// workflow's steps it may know more than the disk: what follows from the committed ones.
    pub state: tokio::sync::Mutex<Option<LoadedExecution>>,
    /// Cancelled when the run has to stop.
    pub stop: CancellationToken,
    /// Notified when an event was sent to it, or one of its children has ended.
    pub event: tokio::sync::Notify,
    /// Children that have ended and that its steps may wait for.
    pub ended_children: Mutex<Vec<ExecutionId>>,
    /// What its run tells.
    pub run_progress: Arc<RunProgress>,
}

impl ActiveExecution {
    /// Notes the end of a child.
    pub fn child_ended(&self, child: ExecutionId) {
        self.ended_children.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        self.event.notify_one();
    }

    /// The children that have ended since the last time.
    pub fn take_ended_children(&self) -> Vec<ExecutionId> {
        std::mem::take(&mut *self.ended_children.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inner {
    /// The execution whose locked state this is, read from the store when nothing is known of it.
    ///
    /// # Errors
    /// [`Error::NotFound`], also for another organization's; [`Error::Storage`].
    pub(in crate::engine) async fn loaded<'a>(
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

/// The cells in use, by execution.
#[derive(Debug, Default, Clone)]
pub struct ActiveExecutions {
    entries: Arc<Mutex<HashMap<ExecutionId, Arc<ActiveExecution>>>>,
}

/// The right to use a cell; with the last one the cell goes.
#[derive(Debug)]
pub struct Handle {
    registry: ActiveExecutions,
    id: ExecutionId,
    active: Arc<ActiveExecution>,
}

impl ActiveExecutions {
    /// The execution's cell, made when there is none.
    pub fn get_or_insert(&self, id: ExecutionId) -> Handle {
        let active = Arc::clone(self.lock().entry(id).or_default());
        Handle { registry: self.clone(), id, active }
    }

    /// The execution's cell, if it has one.
    pub fn find(&self, id: ExecutionId) -> Option<Handle> {
        let active = Arc::clone(self.lock().get(&id)?);
        Some(Handle { registry: self.clone(), id, active })
    }

    /// The entry of a new execution, with its state where that is not known. An entry that is in
    /// use stays as it is: a reader that uses it has read the state.
    pub fn insert_loaded(&self, execution: &Execution) -> Handle {
        let handle = self.get_or_insert(execution.id);
        if let Ok(mut state) = handle.state.try_lock()
            && state.is_none()
        {
            *state = Some(LoadedExecution { is_new: true, ..execution.clone().into() });
        }
        handle
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ExecutionId, Arc<ActiveExecution>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
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
        // The map's and this one: under the map's lock, nobody can take another.
        if Arc::strong_count(&self.active) == 2 {
            active.remove(&self.id);
        }
    }
}
