//! The executor: gives places to what waits in the lanes and runs it, one task for each running
//! execution. How a prediction or a workflow runs, `prediction` and `workflow` say.

use std::sync::Arc;
use std::time::Duration;

use super::cells::{Cell, Held, Hold};
use super::in_flight::Run;
use super::lanes::{Next, Ticket};
use super::{Error, Inner, Place, rows};
use crate::domain::execution::{Execution, Prediction, Work, lane_of_model};

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

    /// Starts whatever may start now.
    pub(super) fn pump(self: &Arc<Self>) {
        while !self.tasks.is_stopping() {
            let next = self.lanes().next();
            let inner = Arc::clone(self);
            match next {
                None => return,
                Some(Next::Admit { lane, guest }) => {
                    if guest.send(()).is_err() {
                        // It has gone meanwhile.
                        self.lanes().leave(&lane);
                    }
                }
                Some(Next::Start { lane, ticket }) => {
                    self.tasks.spawn(async move { inner.take(&lane, ticket).await });
                }
                Some(Next::Refill { lane }) => {
                    self.tasks.spawn(async move {
                        if let Err(error) = inner.refill(&lane).await {
                            tracing::error!(lane = &*lane, %error, "a lane cannot be read");
                            tokio::time::sleep(READ_AGAIN).await;
                            inner.lanes().refilled(&lane, Vec::new(), false);
                        }
                        inner.pump();
                    });
                }
            }
        }
    }

    /// Runs one execution from its place in the lane until it ends or waits elsewhere.
    pub(super) async fn take(self: &Arc<Self>, lane: &str, ticket: Ticket<Place>) {
        let id = ticket.id;
        let mark = self.in_flight.begin(Run::whole(ticket.payload.organization, id));
        let cell = ticket.payload.cell.unwrap_or_else(|| self.cells.enter(id));
        let key = rows::execution(ticket.payload.organization, id);
        let moved = match self.run_in_cell(&cell, &key).await {
            Ok(moved) => moved,
            Err(error) => {
                tracing::error!(execution = %id, %error, "an execution cannot go on");
                None
            }
        };
        drop(mark);
        self.lanes().release(lane, id);
        if let Some(execution) = moved {
            self.move_on(&execution, cell);
        }
        self.pump();
    }

    /// Runs what the cell holds. `Some` when it now waits for the next model of its chain.
    async fn run_in_cell(
        self: &Arc<Self>,
        cell: &Cell,
        key: &crate::storage::Key,
    ) -> Result<Option<Execution>, Error> {
        let is_workflow = {
            let mut state = cell.state.lock().await;
            if state.is_none() {
                *state = self.store.read::<Execution>(key).await?.map(Held::from);
            }
            let Some(held) = state.as_ref() else { return Ok(None) };
            matches!(held.execution.work, Work::Workflow(_))
        };
        if is_workflow {
            Box::pin(self.run_workflow(cell)).await?;
            return Ok(None);
        }
        self.run_prediction(cell).await
    }

    /// Puts an execution whose next model was committed into that model's lane. Where the lane's
    /// window is full its cell goes, and it is read again when its turn comes.
    fn move_on(&self, execution: &Execution, cell: Hold) {
        let lane = lane_of_model(execution.prediction().map_or("", Prediction::model));
        self.open_lane(&lane);
        let payload = Place { organization: execution.organization, cell: Some(cell) };
        let mut lanes = self.lanes();
        lanes.admit(&lane, 1);
        lanes.push(&lane, Ticket { id: execution.id, payload });
    }
}
