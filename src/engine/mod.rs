//! The engine: takes work, runs it, brings every accepted id to exactly one end.
//!
//! [`Engine`] is the handle: cheap to clone, safe to call from any task. Behind it, `lanes` says
//! who runs next, `scheduler` puts work into them, `cells` holds what is being changed, `executor`
//! loads, applies the machine, commits and only then acts, `retries` holds what failed because of
//! an error of ours until it is tried again, `recovery` takes up what a stop left unfinished. An
//! acknowledged submission is on the disk; nothing is marked failed because of a restart.

pub mod facets;
pub mod history;
pub mod lists;
pub mod outcome;
pub mod rows;

mod attempt;
mod audit;
mod budget;
mod cells;
mod commit;
mod detail;
mod executor;
mod feed;
mod follow;
mod in_flight;
mod isolation;
mod lanes;
mod models;
mod prediction;
mod recovery;
mod redrive;
mod resume;
mod retention;
mod retries;
mod scheduler;
mod submit;
mod timers;
mod unfinished;
mod waiters;
mod workflow;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use self::cells::{Cells, Held};
use self::feed::{Feeds, Told};
use self::in_flight::InFlight;
use self::lanes::Lanes;
use self::retries::{Delay, Retries};
use self::scheduler::{Entry, Guest, Scheduler};
use self::waiters::Waiters;
use crate::billing::{Billing, Unreserved};
use crate::domain::delivery::Delivery;
use crate::domain::execution::{self, Execution, Status, lane_of_model};
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::machine;
use crate::domain::machine::workflow::Event;
use crate::domain::money::Usd;
use crate::domain::time::Timestamp;
use crate::files::Files;
use crate::http::client::Client;
use crate::runtime::{Clock, Tasks};
use crate::storage::{self, Commit, Store};

pub use self::attempt::try_out;
pub use self::detail::Detail;
pub use self::follow::Follower;
pub use self::lanes::Load;
pub use self::models::{CheckingInput, FindingOwner, FindingPlan, Models, Plans, Work};
pub use self::resume::Resumed;
pub use self::retries::Pauses;
pub use self::submit::Submission;

/// Hands a committed delivery to whoever sends it.
pub type OnDelivery = Arc<dyn Fn(Delivery) + Send + Sync>;

/// The engine's limits.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Executions that run at once, over all lanes.
    pub active: usize,
    /// How long a workflow may be running, waits not counted.
    pub workflow_timeout: Duration,
    /// An execution for which nothing is due for longer gives up its place and its memory.
    pub aside_after: Duration,
    /// Whether what the balance cannot pay is refused.
    pub enforce_balance: bool,
    /// When an execution is tried again that failed because of an error on our side.
    pub pauses: Pauses,
    /// Bytes of inputs and outputs that one execution may make.
    pub execution_bytes: u64,
    /// Bytes of inputs and outputs that one organization may keep.
    pub organization_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            active: 4096,
            workflow_timeout: Duration::from_secs(15 * 60),
            aside_after: Duration::from_secs(5),
            enforce_balance: false,
            pauses: Pauses::default(),
            execution_bytes: 256 << 20,
            organization_bytes: u64::MAX,
        }
    }
}

/// Why the engine refuses.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model's queue holds its limit. Nothing was created.
    #[error("queue is full")]
    QueueFull { queued: usize },
    /// The model's queue holds its limit, and the model does not answer. Nothing was created.
    #[error("the model '{model}' does not answer: {reason}")]
    Failing { model: String, reason: String },
    /// The balance cannot pay for it. Nothing was created.
    #[error("payment required")]
    Unpaid { balance: Usd, reserved: Usd, needed: Usd },
    /// The organization's payloads have as many bytes as they may. Nothing was created.
    #[error(
        "the stored inputs and outputs of this organization may have {quota} bytes and have {used}"
    )]
    OverQuota { quota: u64, used: u64 },
    /// No such execution in this organization.
    #[error("execution not found")]
    NotFound,
    /// It has ended already, and not by a cancel.
    #[error("it has already ended with {}", .0.prediction_word())]
    AlreadyEnded(Status),
    /// Only what has failed or was cancelled can be taken up again.
    #[error("only a failed or cancelled execution can be redriven")]
    NotRedrivable,
    /// What it was given is gone by the configured retention.
    #[error("its inputs are no longer stored")]
    Forgotten,
    #[error(transparent)]
    Storage(#[from] storage::Error),
    /// The service is about to stop and takes no more work.
    #[error("the service is stopping")]
    Stopping,
}

impl From<Unreserved> for Error {
    fn from(error: Unreserved) -> Self {
        match error {
            Unreserved::Short { balance, reserved, needed } => {
                Self::Unpaid { balance, reserved, needed }
            }
            Unreserved::Storage(error) => Self::Storage(error),
        }
    }
}

impl From<storage::record::Malformed> for Error {
    fn from(error: storage::record::Malformed) -> Self {
        Self::Storage(error.into())
    }
}

/// What the engine works with.
pub struct Doors {
    pub store: Store,
    pub clock: Clock,
    pub tasks: Tasks,
    pub models: Arc<dyn Models>,
    pub plans: Arc<dyn Plans>,
    /// Sends the requests of HTTP steps, through the egress guard.
    pub client: Client,
    /// Keeps what models give out as bytes.
    pub files: Files,
    pub on_delivery: OnDelivery,
}

impl std::fmt::Debug for Doors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doors").finish_non_exhaustive()
    }
}

struct Inner {
    store: Store,
    clock: Clock,
    tasks: Tasks,
    models: Arc<dyn Models>,
    plans: Arc<dyn Plans>,
    client: Client,
    files: Files,
    on_delivery: OnDelivery,
    billing: Billing,
    options: Options,
    scheduler: Arc<Scheduler>,
    retries: Retries,
    cells: Cells,
    feeds: Arc<Feeds>,
    waiters: Waiters,
    /// What runs, for the start after a crash.
    in_flight: InFlight,
    /// Executions that are held back until they run alone.
    held: Mutex<HashSet<ExecutionId>>,
    /// The one of them that runs now.
    suspect: Mutex<Option<ExecutionId>>,
    /// Whether what a stop left has been taken up: before that, nothing runs.
    is_recovered: AtomicBool,
    /// When the store was restored, while what it carried over is held back.
    paused: Mutex<Option<Timestamp>>,
    resuming: tokio::sync::Mutex<()>,
    /// What organizations keep of payloads.
    figures: budget::All,
    /// Told when an execution was put aside.
    timers: Notify,
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
    fn held(&self) -> std::sync::MutexGuard<'_, HashSet<ExecutionId>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_recovered(&self) -> bool {
        self.is_recovered.load(Ordering::Acquire)
    }

    fn lanes(&self) -> std::sync::MutexGuard<'_, Lanes<Entry, Guest>> {
        self.scheduler.lanes()
    }
}

impl Engine {
    /// An engine over an open store. Nothing runs before [`Engine::recover`].
    #[must_use]
    pub fn new(doors: Doors, options: Options) -> Self {
        let Doors { store, clock, tasks, models, plans, client, files, on_delivery } = doors;
        let cells = Cells::default();
        let inner = Inner {
            billing: Billing::new(store.clone(), clock.clone()),
            store,
            clock,
            tasks,
            models,
            plans,
            client,
            files,
            on_delivery,
            options,
            scheduler: Arc::new(Scheduler::new(options.active, cells.clone())),
            retries: Retries::new(options.pauses),
            cells,
            feeds: Arc::default(),
            waiters: Waiters::default(),
            in_flight: InFlight::default(),
            held: Mutex::default(),
            suspect: Mutex::default(),
            is_recovered: AtomicBool::new(false),
            paused: Mutex::default(),
            resuming: tokio::sync::Mutex::default(),
            figures: budget::All::default(),
            timers: Notify::new(),
        };
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

    /// Why an unfinished prediction waits, in words; `None` when it does not.
    #[must_use]
    pub fn waiting_for(&self, execution: &Execution) -> Option<String> {
        let prediction = execution.prediction()?;
        if !execution.status.is_final()
            && let Some(delay) = self.inner.retries.find(execution.id)
        {
            let Delay { cause, failures, at } = delay;
            return Some(format!("waiting for a retry: {cause}; failures: {failures}, next: {at}"));
        }
        if execution.status.is_final() || prediction.running().is_some() {
            return None;
        }
        if self.inner.held().contains(&execution.id) {
            return Some(
                "held: it was running when the service crashed, and runs alone next".into(),
            );
        }
        if self.paused_since().is_some_and(|since| execution.created_at < since) {
            return Some("held: it came with a restored backup, until `orrery resume`".into());
        }
        let (place, running) = self.inner.place_in_lane(execution);
        let place = place.map_or_else(
            || format!("behind the first {}", lanes::WINDOW),
            |position| format!("position {position}"),
        );
        Some(format!("queued: {place} in lane {}, {running} running", prediction.model()))
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

    /// Executions that wait for another try after an error on our side, and those that are being
    /// tried again.
    #[must_use]
    pub fn retrying(&self) -> usize {
        self.inner.retries.len()
    }

    /// Executions that are held in memory, running or waiting in a window.
    #[must_use]
    pub fn in_memory(&self) -> usize {
        self.inner.cells.len()
    }

    /// The catalog has changed: takes over its caps.
    pub fn models_changed(&self) {
        self.inner.models_changed();
        self.inner.scheduler.wake();
    }
}

impl Inner {
    /// The execution's position in its lane, from 1, unless it stands behind the window; and how
    /// many run.
    fn place_in_lane(&self, execution: &Execution) -> (Option<usize>, usize) {
        let lane = execution.lane();
        let lanes = self.lanes();
        (lanes.position(&lane, execution.id), lanes.load(&lane).running)
    }

    async fn cancel(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Execution, Error> {
        let cell = self.cells.enter(id);
        let mut state = cell.state.lock().await;
        if state.is_none() {
            let stored = self.store.read::<Execution>(&rows::execution(organization, id)).await?;
            *state = stored.map(Held::from);
        }
        let held = state
            .as_mut()
            .filter(|held| held.execution.organization == organization)
            .ok_or(Error::NotFound)?;
        match held.execution.status {
            Status::Cancelled => return Ok(held.execution.clone()),
            ended @ (Status::Success | Status::Error) => return Err(Error::AlreadyEnded(ended)),
            Status::Created | Status::Processing => {}
        }
        let lane = held.execution.lane();
        let was_aside = held.execution.workflow().is_some_and(|run| run.aside_until.is_some());
        self.commit_cancel(held, &cell.told).await?;
        let cancelled = held.execution.clone();
        cell.stop.cancel();
        self.held().remove(&id);
        if !was_aside {
            // While the state is locked: a task that took it meanwhile has its place until then.
            self.lanes().forget(&lane, id);
        }
        drop(state);
        self.retries.clear(id);
        self.scheduler.wake();
        Ok(cancelled)
    }

    async fn commit_cancel(self: &Arc<Self>, held: &mut Held, told: &Told) -> Result<(), Error> {
        let now = self.clock.reading();
        let mut next = held.execution.clone();
        let Some(progress) = &held.progress else {
            if let execution::Work::Prediction(prediction) = &mut next.work {
                prediction.add_logs(told.logs());
            }
            let effects = machine::cancel(&mut next, now.wall);
            self.write(Commit::new(), &next, &effects, None).await?;
            held.execution = next;
            return Ok(());
        };
        // What is in flight is written as cancelled.
        let mut progress = progress.clone();
        let effects = progress.apply(&mut next, Event::Cancelled, now);
        self.write_progress(&mut next, &mut progress, effects).await?;
        held.execution = next;
        held.progress = Some(progress);
        Ok(())
    }
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod workflow_tests;
