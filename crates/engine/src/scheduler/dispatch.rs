//! The executor: one dispatcher grants permits to queued work, and each execution with a permit
//! runs in its own task. The code that runs an execution is in the modules `run::prediction` and
//! `run::workflow`.
//!
//! If an internal error occurs while an execution runs (a disk error, a panic in the engine), its
//! task releases the permit and passes the execution to `retries`.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::active::{ActiveExecution, LoadedExecution};
use crate::scheduler::admission::Entry;
use crate::scheduler::in_flight::Run;
use crate::scheduler::lanes::{Next, Ticket};
use crate::{Error, Inner, rows};
use orrery_domain::agent;
use orrery_domain::chat;
use orrery_domain::execution::{Execution, Kind};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::lane::WORKFLOW_LANE;
use orrery_runtime as runtime;
use orrery_storage::{Commit, Key};

/// Retry delay after a failed read of a lane.
const REREAD_DELAY: Duration = Duration::from_secs(1);

/// Concurrency of a lane whose model was removed from the catalog. The lane's work is still
/// started, and then fails.
const REMOVED_MODEL_CONCURRENCY: usize = 16;

/// Maximum number of queued executions per workflow.
const WORKFLOW_QUEUE_LIMIT: usize = 1_000_000;

/// Maximum number of queued exchanges per session.
const SESSION_QUEUE_LIMIT: usize = 4;
/// Maximum number of running chat calls in the background: each holds an answer in memory.
const CALLS_MAX: usize = 64;

impl Inner {
    /// Creates the lane with its limits if it does not exist.
    pub(crate) fn open_lane(&self, lane: &str) {
        let known = self.lanes().load(lane).cap > 0;
        if !known {
            self.set_limits(lane);
        }
    }

    /// Applies the current limits of a lane's model to the lane. A workflow may use half of all
    /// permits, so that one busy workflow leaves room for others. An organization that triggers a
    /// shared workflow never has to wait for other organizations.
    pub(crate) fn set_limits(&self, lane: &str) {
        let (cap, queue_limit) = self.limits_of(lane);
        let model = lane.strip_prefix("model:").and_then(|model| self.models.model(model));
        let has_places = match model {
            Some(model) => model.runner.has_places(),
            None => lane.starts_with(WORKFLOW_LANE),
        };
        let mut lanes = self.lanes();
        lanes.set_limits(lane, cap, queue_limit);
        lanes.let_exceed(lane, has_places);
    }

    /// Returns the concurrency cap and the queue limit of a lane.
    pub(crate) fn limits_of(&self, lane: &str) -> (usize, usize) {
        if lane.starts_with(agent::LANE_PREFIX) {
            return (1, SESSION_QUEUE_LIMIT);
        }
        if lane == chat::LANE {
            return (CALLS_MAX, WORKFLOW_QUEUE_LIMIT);
        }
        match lane.strip_prefix("model:") {
            Some(model) => {
                self.models.model(model).map_or((REMOVED_MODEL_CONCURRENCY, 0), |work| {
                    (work.concurrency, work.queue_limit)
                })
            }
            None => (self.options.active.div_ceil(2), WORKFLOW_QUEUE_LIMIT),
        }
    }

    pub(crate) fn models_changed(&self) {
        let names = self.lanes().names();
        for lane in names {
            self.set_limits(&lane);
        }
    }

    /// Starts work as soon as permits allow, until the service stops.
    pub(crate) async fn dispatch(self: Arc<Self>) {
        let stopping = self.tasks.stopping();
        tokio::pin!(stopping);
        loop {
            for (lane, id) in self.retries.take_due() {
                self.lanes().resume(&lane, id);
            }
            self.dispatch_ready();
            let next_retry = self.retries.next_due();
            tokio::select! {
                () = &mut stopping => return,
                () = self.scheduler.ready() => {}
                () = tokio::time::sleep_until(next_retry.unwrap_or_else(runtime::monotonic_now)),
                    if next_retry.is_some() => {}
            }
        }
    }

    /// Starts all work that can start now.
    fn dispatch_ready(self: &Arc<Self>) {
        while !self.tasks.is_stopping() {
            let next = self.lanes().next();
            let inner = Arc::clone(self);
            match next {
                None => return,
                Some(Next::AdmitStep { lane, of, waiter }) => {
                    if waiter.send(()).is_err() {
                        // The step no longer waits for the permit.
                        self.lanes().release_step(&lane, of);
                    }
                }
                Some(Next::Start { lane, ticket, task }) => {
                    let permit = ExecutionPermit::new(inner, lane, ticket.id, task);
                    let entry = ticket.payload;
                    let organization = entry.organization;
                    self.tasks.spawn_for(organization, async move { permit.run(entry).await });
                }
                Some(Next::Refill { lane, organization, from, most }) => {
                    self.tasks.spawn(async move {
                        if let Err(error) = inner.refill(&lane, organization, from, most).await {
                            tracing::error!(lane = &*lane, %error, "cannot read a lane");
                            inner.pause_before_reread().await;
                            inner.lanes().refilled(&lane, organization, Vec::new(), Some(from));
                        }
                        inner.scheduler.wake();
                    });
                }
            }
        }
    }

    async fn pause_before_reread(&self) {
        tokio::select! {
            () = tokio::time::sleep(REREAD_DELAY) => {}
            () = self.tasks.stopping() => {}
        }
    }

    /// Runs the execution in the cell if it is still queued in `lane`.
    async fn run_active(
        self: &Arc<Self>,
        active: &ActiveExecution,
        lane: &str,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<(), Error> {
        let kind = {
            let mut state = active.state.lock().await;
            if state.is_none() {
                let key = rows::execution(organization, id);
                *state = self.store.read::<Execution>(&key).await?.map(LoadedExecution::from);
            }
            let Some(loaded) =
                state.as_ref().filter(|loaded| is_queued_in(&loaded.execution, lane))
            else {
                return self.delete_stale_row(rows::queued(lane, organization, id)).await;
            };
            loaded.execution.kind()
        };
        match kind {
            Kind::Workflow => Box::pin(self.run_workflow(active)).await,
            Kind::Agent => Box::pin(self.run_exchange(active)).await,
            Kind::Chat => Box::pin(self.run_call(active)).await,
            // Decisions are stored only once they have ended.
            Kind::Prediction | Kind::Decision => self.run_prediction(active).await,
        }
    }

    /// Deletes a lane row whose execution does not exist, has ended, or is not in this lane.
    /// Otherwise every refill would find the row again. The caller must hold the cell's lock.
    async fn delete_stale_row(&self, row: Key) -> Result<(), Error> {
        if self.store.get(&row).await?.is_none() {
            return Ok(());
        }
        tracing::error!(?row, "deleting a stale queue row");
        let mut commit = Commit::new();
        commit.delete(row);
        Ok(self.store.commit(commit).await?)
    }
}

/// Whether the execution is unfinished and in this lane, rather than in another lane or suspended.
fn is_queued_in(execution: &Execution, lane: &str) -> bool {
    !execution.status.is_final() && execution.aside_until().is_none() && execution.lane() == lane
}

/// The permit of a running execution. Dropping this value releases the permit.
pub(crate) struct ExecutionPermit {
    inner: Arc<Inner>,
    lane: Arc<str>,
    id: ExecutionId,
    /// While this reference exists, the lane considers the task that runs the execution to be
    /// alive.
    _task: Arc<()>,
    is_held: bool,
}

impl ExecutionPermit {
    /// Wraps a permit that the lane has granted to the execution.
    pub(crate) const fn new(
        inner: Arc<Inner>,
        lane: Arc<str>,
        id: ExecutionId,
        task: Arc<()>,
    ) -> Self {
        Self { inner, lane, id, _task: task, is_held: true }
    }

    /// Runs the execution until it ends, is suspended, moves to another lane or must be retried.
    pub(crate) async fn run(self, entry: Entry) {
        let inner = Arc::clone(&self.inner);
        let id = self.id;
        let Entry { organization, active } = entry;
        let active = active.unwrap_or_else(|| inner.active.get_or_insert(id));
        let mark = inner.isolation.in_flight.begin(Run::whole(organization, id));
        let run = AssertUnwindSafe(inner.run_active(&active, &self.lane, organization, id));
        let ran = run.catch_unwind().await;
        drop(mark);
        let failure = match ran {
            Ok(Ok(())) if is_still_queued(&active, &self.lane).await => {
                // The execution was paused and resumed in the meantime, and is queued again when
                // this permit is released.
                if inner.lanes().is_requeued(&self.lane, id) {
                    return inner.retries.clear(id);
                }
                RunError::StillQueued
            }
            Ok(Ok(())) => return inner.retries.clear(id),
            Ok(Err(error)) => RunError::Error(error),
            Err(panic) => RunError::panicked(&*panic),
        };
        if inner.tasks.is_stopping() {
            // The next start of the service resumes the execution.
            return;
        }
        // The state in memory may be ahead of the disk. Clear it, so that the next task reads it
        // from the store.
        *active.state.lock().await = None;
        drop(active);
        self.retry_later(Entry { organization, active: None }, &failure);
    }

    /// Releases the permit and schedules a retry. The execution's row stays in the lane.
    fn retry_later(mut self, entry: Entry, failure: &RunError) {
        self.is_held = false;
        let Self { inner, lane, id, .. } = &self;
        // Pause the execution first, because `resume` may be called as soon as the retry is
        // recorded.
        let ticket = Ticket { id: *id, organization: entry.organization, payload: entry };
        inner.lanes().pause(lane, ticket);
        let lane = Arc::clone(lane);
        let now = inner.clock.steady();
        inner.retries.note(*id, Some(lane), failure.cause(), failure, now);
        inner.scheduler.wake();
    }
}

impl Drop for ExecutionPermit {
    fn drop(&mut self) {
        if self.is_held {
            let mut lanes = self.inner.lanes();
            lanes.release(&self.lane, self.id);
            if self.lane.starts_with(agent::LANE_PREFIX) {
                lanes.remove_unused(&self.lane);
            }
            drop(lanes);
            self.inner.scheduler.wake();
        }
    }
}

/// Whether the execution is still queued in the lane although its run is over.
async fn is_still_queued(active: &ActiveExecution, lane: &str) -> bool {
    let state = active.state.lock().await;
    state.as_ref().is_some_and(|loaded| is_queued_in(&loaded.execution, lane))
}

/// The error that causes an execution to be retried.
enum RunError {
    Error(Error),
    Panicked(String),
    /// The run returned although the execution has neither ended nor moved.
    StillQueued,
}

impl RunError {
    fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Self::Panicked(text.unwrap_or("no message").to_owned())
    }

    /// Returns the cause that is shown to clients.
    const fn cause(&self) -> &'static str {
        match self {
            Self::Error(_) => "the service could not read or write its data",
            Self::Panicked(_) | Self::StillQueued => "an internal error of the service",
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Panicked(text) => write!(f, "the engine panicked: {text}"),
            Self::StillQueued => f.write_str("the run ended while the execution was still queued"),
        }
    }
}
