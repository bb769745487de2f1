//! Cells: the one place where an unfinished execution is changed.
//!
//! Whoever changes an execution holds its cell's lock from reading the state until the commit has
//! returned, so that a cancel and a finish never cross. A cell exists while its execution waits in
//! memory, runs, or is being cancelled; others are read from the store when they are needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::domain::execution::Execution;
use crate::domain::ids::ExecutionId;

/// An unfinished execution in memory.
#[derive(Debug, Default)]
pub struct Cell {
    /// The state as it was last committed, or `None` before it was read from the store.
    pub state: tokio::sync::Mutex<Option<Execution>>,
    /// Cancelled when the run has to stop.
    pub stop: CancellationToken,
}

/// The cells in use, by execution.
#[derive(Debug, Default)]
pub struct Cells {
    cells: Mutex<HashMap<ExecutionId, Arc<Cell>>>,
}

impl Cells {
    /// The execution's cell, made when there is none.
    pub fn enter(&self, id: ExecutionId) -> Arc<Cell> {
        Arc::clone(self.lock().entry(id).or_default())
    }

    /// A cell for an execution whose state is known.
    pub fn create(&self, execution: Execution) -> Arc<Cell> {
        let id = execution.id;
        let cell = Arc::new(Cell {
            state: tokio::sync::Mutex::new(Some(execution)),
            stop: CancellationToken::new(),
        });
        self.lock().insert(id, Arc::clone(&cell));
        cell
    }

    /// Takes the cell out: its execution has ended, or waits on the disk again.
    pub fn leave(&self, id: ExecutionId, cell: &Arc<Cell>) {
        let mut cells = self.lock();
        if cells.get(&id).is_some_and(|held| Arc::ptr_eq(held, cell)) {
            cells.remove(&id);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ExecutionId, Arc<Cell>>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
