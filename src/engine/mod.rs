//! The engine: takes work, runs it, brings every accepted id to exactly one end.
//!
//! [`Engine`] is the handle: cheap to clone, safe to call from any task. Behind it, `lanes` says
//! who runs next, `cells` holds what is being changed, `executor` loads, applies the machine,
//! commits and only then acts, `recovery` takes up what a stop left unfinished. An acknowledged
//! submission is on the disk; nothing is marked failed because of a restart.

pub mod outcome;
pub mod rows;

mod cells;
mod executor;
mod lanes;
mod models;
mod recovery;
mod submit;
mod waiters;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use self::cells::{Cell, Cells};
use self::lanes::Lanes;
use self::waiters::Waiters;
use crate::domain::delivery::Delivery;
use crate::domain::execution::{Execution, Status, lane_of_model};
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::machine::{Effect, Event};
use crate::runtime::{Clock, Tasks};
use crate::storage::{self, Store};

pub use self::lanes::Load;
pub use self::models::{Models, Work};
pub use self::submit::Submission;

/// Hands a committed delivery to whoever sends it.
pub type OnDelivery = Arc<dyn Fn(Delivery) + Send + Sync>;

/// The engine's limits.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Executions that run at once, over all lanes.
    pub active: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { active: 4096 }
    }
}

/// Why the engine refuses.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model's queue holds its limit. Nothing was created.
    #[error("queue is full")]
    QueueFull { queued: usize },
    /// No such execution in this organization.
    #[error("execution not found")]
    NotFound,
    /// It has ended already, and not by a cancel.
    #[error("it has already ended with {}", .0.prediction_word())]
    AlreadyEnded(Status),
    #[error(transparent)]
    Storage(#[from] storage::Error),
    /// The service is about to stop and takes no more work.
    #[error("the service is stopping")]
    Stopping,
}

impl From<storage::record::Malformed> for Error {
    fn from(error: storage::record::Malformed) -> Self {
        Self::Storage(error.into())
    }
}

/// What a ticket of a lane carries.
#[derive(Debug)]
struct Place {
    organization: OrganizationId,
    /// The state, where it is kept in memory while it waits.
    cell: Option<Arc<Cell>>,
}

struct Inner {
    store: Store,
    clock: Clock,
    tasks: Tasks,
    models: Arc<dyn Models>,
    on_delivery: OnDelivery,
    lanes: Mutex<Lanes<Place>>,
    cells: Cells,
    waiters: Waiters,
}

/// The handle to the engine; clones share it.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (running, queued) = self.inner.lanes().totals();
        f.debug_struct("Engine").field("running", &running).field("queued", &queued).finish()
    }
}

impl Inner {
    fn lanes(&self) -> std::sync::MutexGuard<'_, Lanes<Place>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// An engine over an open store. Nothing runs before [`Engine::recover`].
    #[must_use]
    pub fn new(
        store: Store,
        clock: Clock,
        tasks: Tasks,
        models: Arc<dyn Models>,
        on_delivery: OnDelivery,
        options: Options,
    ) -> Self {
        let lanes = Mutex::new(Lanes::new(options.active));
        let (cells, waiters) = (Cells::default(), Waiters::default());
        let inner = Inner { store, clock, tasks, models, on_delivery, lanes, cells, waiters };
        Self { inner: Arc::new(inner) }
    }

    /// The execution, as it stands on the disk.
    ///
    /// # Errors
    /// [`Error::NotFound`] also for another organization's; [`Error::Storage`].
    pub async fn get(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Execution, Error> {
        let key = rows::execution(organization, id);
        self.inner.store.read(&key).await?.ok_or(Error::NotFound)
    }

    /// The execution, once it has ended or `patience` has passed.
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub async fn wait(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
        patience: Duration,
    ) -> Result<Execution, Error> {
        let waiter = self.inner.waiters.register(id);
        let woken = waiter.woken();
        let execution = self.get(organization, id).await?;
        if execution.status.is_final() || patience.is_zero() {
            return Ok(execution);
        }
        tokio::select! {
            () = woken => self.get(organization, id).await,
            () = tokio::time::sleep(patience) => self.get(organization, id).await,
            () = self.inner.tasks.stopping() => Ok(execution),
        }
    }

    /// Ends the execution now: its run is stopped, its place freed, no webhook is sent. Cancelling
    /// a cancelled one is no fault.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::AlreadyEnded`], [`Error::Storage`] (then nothing changed).
    pub async fn cancel(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Execution, Error> {
        let inner = Arc::clone(&self.inner);
        // In a task of its own: a client that hangs up must not leave the cancel half done.
        let task = self.inner.tasks.spawn(async move { inner.cancel(organization, id).await });
        task.await.unwrap_or(Err(Error::Stopping))
    }

    /// Why an unfinished execution waits, in words; `None` when it does not.
    #[must_use]
    pub fn waiting_for(&self, execution: &Execution) -> Option<String> {
        if execution.status.is_final() || execution.running().is_some() {
            return None;
        }
        let lanes = self.inner.lanes();
        let (lane, model) = (execution.lane(), execution.model());
        let load = lanes.load(&lane);
        let place = lanes.position(&lane, execution.id).map_or_else(
            || format!("behind the first {}", lanes::WINDOW.min(load.queued)),
            |position| format!("position {position}"),
        );
        Some(format!("queued: {place} in lane {model}, {} running", load.running))
    }

    /// How a model's lane stands.
    #[must_use]
    pub fn load(&self, model: &str) -> Load {
        self.inner.lanes().load(&lane_of_model(model))
    }

    /// Executions that run and that wait, over all lanes.
    #[must_use]
    pub fn totals(&self) -> (usize, usize) {
        self.inner.lanes().totals()
    }

    /// Executions that are held in memory, running or waiting in a window.
    #[must_use]
    pub fn in_memory(&self) -> usize {
        self.inner.cells.len()
    }

    /// The catalog has changed: takes over its caps.
    pub fn models_changed(&self) {
        self.inner.models_changed();
        self.inner.pump();
    }
}

impl Inner {
    async fn cancel(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Execution, Error> {
        let cell = self.cells.enter(id);
        let mut state = cell.state.lock().await;
        let result = self.cancel_in_cell(organization, id, &mut state).await;
        if result.is_ok() {
            cell.stop.cancel();
        }
        let idle = state.as_ref().is_none_or(|execution| execution.status.is_final());
        drop(state);
        if idle {
            self.cells.leave(id, &cell);
        }
        result
    }

    async fn cancel_in_cell(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
        state: &mut Option<Execution>,
    ) -> Result<Execution, Error> {
        if state.is_none() {
            *state = self.store.read(&rows::execution(organization, id)).await?;
        }
        let execution = state
            .as_ref()
            .filter(|execution| execution.organization == organization)
            .ok_or(Error::NotFound)?;
        match execution.status {
            Status::Cancelled => return Ok(execution.clone()),
            ended @ (Status::Success | Status::Error) => return Err(Error::AlreadyEnded(ended)),
            Status::Created | Status::Processing => {}
        }
        let lane = execution.lane();
        let mut cancelled = execution.clone();
        let effects = self.transit(&mut cancelled, Event::Cancelled, None).await?;
        *state = Some(cancelled.clone());
        self.lanes().forget(&lane, id);
        self.perform(&cancelled, &effects);
        self.pump();
        Ok(cancelled)
    }
}

/// Whether `effects` end the execution's stay in its lane for good.
fn ends(effects: &[Effect]) -> bool {
    effects.contains(&Effect::Wake)
}

#[cfg(test)]
mod simulation_tests;
