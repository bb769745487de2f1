//! Cells: the one place where an unfinished execution is changed.
//!
//! Whoever changes an execution holds its cell's lock from reading the state until the commit has
//! returned, so that a cancel and a finish never cross. A cell exists while its execution waits in
//! memory, runs, or is being cancelled; others are read from the store when they are needed.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use super::feed::Told;
use crate::domain::execution::Execution;
use crate::domain::ids::ExecutionId;
use crate::domain::machine::workflow::Progress;

/// What is held of an unfinished execution.
#[derive(Debug)]
pub struct Held {
    pub execution: Execution,
    /// How far its steps have come, while it runs; none for predictions.
    pub progress: Option<Box<Progress>>,
    /// Accepted by this process and not run yet: nothing is stored of its steps.
    pub is_new: bool,
}

impl From<Execution> for Held {
    fn from(execution: Execution) -> Self {
        Self { execution, progress: None, is_new: false }
    }
}

/// An unfinished execution in memory.
#[derive(Debug, Default)]
pub struct Cell {
    /// The state as it was last committed, or `None` before it was read from the store. Of a
    /// workflow's steps it may know more than the disk: what follows from the committed ones.
    pub state: tokio::sync::Mutex<Option<Held>>,
    /// Cancelled when the run has to stop.
    pub stop: CancellationToken,
    /// What its run tells.
    pub told: Arc<Told>,
}

/// The cells in use, by execution.
#[derive(Debug, Default, Clone)]
pub struct Cells {
    cells: Arc<Mutex<HashMap<ExecutionId, Arc<Cell>>>>,
}

/// The right to use a cell; with the last one the cell goes.
#[derive(Debug)]
pub struct Hold {
    cells: Cells,
    id: ExecutionId,
    cell: Arc<Cell>,
}

impl Cells {
    /// The execution's cell, made when there is none.
    pub fn enter(&self, id: ExecutionId) -> Hold {
        let cell = Arc::clone(self.lock().entry(id).or_default());
        Hold { cells: self.clone(), id, cell }
    }

    /// The execution's cell, if it has one.
    pub fn find(&self, id: ExecutionId) -> Option<Hold> {
        let cell = Arc::clone(self.lock().get(&id)?);
        Some(Hold { cells: self.clone(), id, cell })
    }

    /// The cell of a new execution, with its state where that is not known. A cell that is in use
    /// stays as it is: a reader that uses it has read the state.
    pub fn fill(&self, execution: &Execution) -> Hold {
        let hold = self.enter(execution.id);
        if let Ok(mut state) = hold.state.try_lock()
            && state.is_none()
        {
            *state = Some(Held { is_new: true, ..execution.clone().into() });
        }
        hold
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ExecutionId, Arc<Cell>>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Hold {
    type Target = Cell;
    fn deref(&self) -> &Cell {
        &self.cell
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut cells = self.cells.lock();
        // The map's and this one: under the map's lock, nobody can take another.
        if Arc::strong_count(&self.cell) == 2 {
            cells.remove(&self.id);
        }
    }
}
