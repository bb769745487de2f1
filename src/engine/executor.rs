//! The executor: one dispatcher gives places to what waits in the lanes, and one task runs each
//! execution that has a place. How a prediction or a workflow runs, `prediction` and `workflow` say.
//!
//! Whatever goes wrong on our side while an execution runs (the disk, a panic of this program), its
//! task gives the place back and leaves it to `retries`.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::cells::{Cell, Held};
use super::in_flight::Run;
use super::lanes::{Next, Ticket};
use super::{Entry, Error, Inner, rows};
use crate::domain::execution::{Execution, Work};
use crate::domain::ids::ExecutionId;
use crate::runtime;
use crate::storage::Commit;

/// When a lane that could not be read is tried again.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// What the lane of a model that the catalog lost is given, so that its work comes up and fails.
const ORPHAN_CONCURRENCY: usize = 16;

/// How many executions of one workflow may wait.
const WORKFLOW_QUEUE_LIMIT: usize = 1_000_000;

impl Inner {
    /// Makes the lane with its limits when it is new.
    pub(super) fn open_lane(&self, lane: &str) {
        let known = self.lanes().load(lane).cap > 0;
        if !known {
            self.set_limits(lane);
        }
    }

    /// Gives a lane the limits that its model has now. A workflow may have half of all places, so
    /// that a flood of one leaves room for the others.
    pub(super) fn set_limits(&self, lane: &str) {
        let (cap, queue_limit) = match lane.strip_prefix("model:") {
            Some(model) => self
                .models
                .work(model)
                .map_or((ORPHAN_CONCURRENCY, 0), |work| (work.concurrency, work.queue_limit)),
            None => (self.options.active.div_ceil(2), WORKFLOW_QUEUE_LIMIT),
        };
        self.lanes().set_limits(lane, cap, queue_limit);
    }

    pub(super) fn models_changed(&self) {
        let names = self.lanes().names();
        for lane in names {
            self.set_limits(&lane);
        }
    }

    /// Starts whatever may start, as soon as it may, for as long as the service runs.
    pub(super) async fn dispatch(self: Arc<Self>) {
        let stopping = self.tasks.stopping();
        tokio::pin!(stopping);
        loop {
            for (lane, id) in self.retries.take_due() {
                self.lanes().resume(&lane, id);
            }
            self.pump();
            let next_retry = self.retries.next_due();
            tokio::select! {
                () = &mut stopping => return,
                () = self.scheduler.ready() => {}
                () = tokio::time::sleep_until(next_retry.unwrap_or_else(runtime::monotonic_now)),
                    if next_retry.is_some() => {}
            }
        }
    }

    /// Starts whatever may start now.
    fn pump(self: &Arc<Self>) {
        while !self.tasks.is_stopping() {
            let next = self.lanes().next();
            let inner = Arc::clone(self);
            match next {
                None => return,
                Some(Next::Admit { lane, guest }) => {
                    if guest.send(()).is_err() {
                        // It waits no more.
                        self.lanes().leave(&lane);
                    }
                }
                Some(Next::Start { lane, ticket, task }) => {
                    let permit = Permit::new(inner, lane, ticket.id, task);
                    let entry = ticket.payload;
                    self.tasks.spawn(async move { permit.take(entry).await });
                }
                Some(Next::Refill { lane }) => {
                    self.tasks.spawn(async move {
                        if let Err(error) = inner.refill(&lane).await {
                            tracing::error!(lane = &*lane, %error, "a lane cannot be read");
                            tokio::select! {
                                () = tokio::time::sleep(READ_AGAIN) => {}
                                () = inner.tasks.stopping() => {}
                            }
                            inner.lanes().refilled(&lane, Vec::new(), false);
                        }
                        inner.scheduler.wake();
                    });
                }
            }
        }
    }

    /// Runs what the cell holds, if it still waits in `lane`.
    async fn run_in_cell(
        self: &Arc<Self>,
        cell: &Cell,
        lane: &str,
        id: ExecutionId,
        key: &crate::storage::Key,
    ) -> Result<(), Error> {
        let is_workflow = {
            let mut state = cell.state.lock().await;
            if state.is_none() {
                *state = self.store.read::<Execution>(key).await?.map(Held::from);
            }
            let Some(held) = state.as_ref().filter(|held| waits_in(&held.execution, lane)) else {
                return self.clear_row(lane, id).await;
            };
            matches!(held.execution.work, Work::Workflow(_))
        };
        if is_workflow {
            Box::pin(self.run_workflow(cell)).await
        } else {
            self.run_prediction(cell).await
        }
    }

    /// Deletes the row of an execution that is not in the lane: it does not exist, has ended, or
    /// stands elsewhere. Without that, the row would come up with each refill. Called while the cell
    /// is locked.
    async fn clear_row(&self, lane: &str, id: ExecutionId) -> Result<(), Error> {
        let row = rows::queued(lane, id);
        if self.store.get(&row).await?.is_none() {
            return Ok(());
        }
        tracing::error!(lane, execution = %id, "a row of a lane belongs to no execution that waits");
        let mut commit = Commit::new();
        commit.delete(row);
        Ok(self.store.commit(commit).await?)
    }
}

/// Whether the execution has not ended and stands in this lane, not in another nor in the timers.
fn waits_in(execution: &Execution, lane: &str) -> bool {
    let is_aside = execution.workflow().is_some_and(|run| run.aside_until.is_some());
    !execution.status.is_final() && !is_aside && execution.lane() == lane
}

/// A place, for as long as its execution runs. Dropping it gives the place back.
pub(super) struct Permit {
    inner: Arc<Inner>,
    lane: Arc<str>,
    id: ExecutionId,
    /// Tells the lane that the task which runs the execution is alive.
    _task: Arc<()>,
    is_held: bool,
}

impl Permit {
    /// The place that the lane has given to the execution.
    pub(super) const fn new(
        inner: Arc<Inner>,
        lane: Arc<str>,
        id: ExecutionId,
        task: Arc<()>,
    ) -> Self {
        Self { inner, lane, id, _task: task, is_held: true }
    }

    /// Runs one execution until it ends, waits elsewhere, or has to be tried again.
    pub(super) async fn take(self, entry: Entry) {
        let (inner, id) = (Arc::clone(&self.inner), self.id);
        let Entry { organization, cell } = entry;
        let cell = cell.unwrap_or_else(|| inner.cells.enter(id));
        let key = rows::execution(organization, id);
        let mark = inner.in_flight.begin(Run::whole(organization, id));
        let run = AssertUnwindSafe(inner.run_in_cell(&cell, &self.lane, id, &key));
        let ran = run.catch_unwind().await;
        drop(mark);
        let failure = match ran {
            Ok(Ok(())) if unfinished(&cell, &self.lane).await => Failed::Left,
            Ok(Ok(())) => return inner.retries.clear(id),
            Ok(Err(error)) => Failed::Error(error),
            Err(panic) => Failed::panicked(&*panic),
        };
        if inner.tasks.is_stopping() {
            // The next start takes it up.
            return;
        }
        // What is in memory may be ahead of the disk: whoever comes next reads it again.
        *cell.state.lock().await = None;
        drop(cell);
        self.put_off(Entry { organization, cell: None }, &failure);
    }

    /// Gives the place back. The execution keeps its row and is tried again after a pause.
    fn put_off(mut self, entry: Entry, failure: &Failed) {
        self.is_held = false;
        let Self { inner, lane, id, .. } = &self;
        // In this order: once it is noted, it may be resumed.
        inner.lanes().pause(lane, Ticket { id: *id, payload: entry });
        let (lane, now) = (Arc::clone(lane), inner.clock.steady());
        inner.retries.note(*id, Some(lane), failure.cause(), failure, now);
        inner.scheduler.wake();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_held {
            self.inner.lanes().release(&self.lane, self.id);
            self.inner.scheduler.wake();
        }
    }
}

/// Whether the execution still waits in the lane although its run is over.
async fn unfinished(cell: &Cell, lane: &str) -> bool {
    let state = cell.state.lock().await;
    state.as_ref().is_some_and(|held| waits_in(&held.execution, lane))
}

/// Why an execution has to be tried again.
enum Failed {
    Error(Error),
    Panicked(String),
    /// Its run was over before it was.
    Left,
}

impl Failed {
    fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Self::Panicked(text.unwrap_or("it says nothing").to_owned())
    }

    /// What clients may read.
    const fn cause(&self) -> &'static str {
        match self {
            Self::Error(_) => "the service could not read or write its data",
            Self::Panicked(_) | Self::Left => "the service made an error of its own",
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Panicked(text) => write!(f, "the engine panicked: {text}"),
            Self::Left => f.write_str("its run was over before it was"),
        }
    }
}
