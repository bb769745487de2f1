//! The executor: loads, applies the machine, commits, and only then acts.
//!
//! One task for each running execution. Durable effects go into the commit of the new state;
//! volatile ones are performed once it is on the disk. A commit that fails performs nothing: the
//! row in the lane is still there, and the next start takes it up.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::cells::Cell;
use super::lanes::{Next, Ticket};
use super::outcome::{announcement, shape_output};
use super::{Error, Inner, Place, ends, rows};
use crate::billing;
use crate::domain::attempt::Failure;
use crate::domain::classify::ErrorClass;
use crate::domain::delivery::Delivery;
use crate::domain::execution::{Execution, lane_of_model};
use crate::domain::machine::{self, Effect, Event};
use crate::domain::money::Usd;
use crate::runners::{self, Job};
use crate::runtime::fresh;
use crate::storage::record::Malformed;
use crate::storage::{self, Commit};
use crate::webhooks;

use super::models::Work;

/// A run that lasts longer is marked as begun on the disk. A shorter one needs no write for it:
/// should the process die, it runs again under the same number.
const MARK_AFTER: Duration = Duration::from_millis(25);

/// When a lane that could not be read is tried again.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// What the lane of a model that the catalog lost is given, so that its work comes up and fails.
const ORPHAN_CONCURRENCY: usize = 16;

impl Inner {
    /// The model's lane, made with its limits when it is new.
    pub(super) fn open_lane(&self, model: &str) -> String {
        let lane = lane_of_model(model);
        let known = self.lanes().load(&lane).cap > 0;
        if !known {
            self.set_limits(&lane);
        }
        lane
    }

    /// Gives a lane the limits that its model has now.
    pub(super) fn set_limits(&self, lane: &str) {
        let model = lane.strip_prefix("model:").unwrap_or(lane);
        let (cap, queue_limit) = self
            .models
            .work(model)
            .map_or((ORPHAN_CONCURRENCY, 0), |work| (work.concurrency, work.queue_limit));
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

    /// Runs one execution from its place in the lane until it ends or waits in another lane.
    async fn take(self: &Arc<Self>, lane: &str, ticket: Ticket<Place>) {
        let id = ticket.id;
        let cell = ticket.payload.cell.unwrap_or_else(|| self.cells.enter(id));
        let key = rows::execution(ticket.payload.organization, id);
        let moved = match self.run_in_cell(&cell, &key).await {
            Ok(moved) => moved,
            Err(error) => {
                tracing::error!(execution = %id, %error, "an execution cannot go on");
                None
            }
        };
        if moved.is_none() {
            self.cells.leave(id, &cell);
        }
        self.lanes().release(lane, id);
        if let Some(execution) = moved {
            self.move_on(execution, cell);
        }
        self.pump();
    }

    /// Puts an execution whose next model was committed into that model's lane.
    fn move_on(&self, execution: Execution, cell: Arc<Cell>) {
        let lane = self.open_lane(execution.model());
        let payload = Place { organization: execution.organization, cell: Some(cell) };
        let mut lanes = self.lanes();
        lanes.admit(&lane, 1);
        if !lanes.has_room(&lane) {
            // It is read again when its turn comes.
            if let Some(cell) = &payload.cell {
                self.cells.leave(execution.id, cell);
            }
        }
        lanes.push(&lane, Ticket { id: execution.id, payload });
    }

    /// One attempt. `Some` when the execution now waits for its next model.
    async fn run_in_cell(
        &self,
        cell: &Cell,
        key: &crate::storage::Key,
    ) -> Result<Option<Execution>, Error> {
        let Some((execution, attempt)) = self.begin(cell, key).await? else { return Ok(None) };
        let work = self.models.work(execution.model());
        let report = match self.store.read_payload(&execution.input).await {
            Ok(input) => tokio::select! {
                biased;
                () = cell.stop.cancelled() => return Ok(None),
                report = self.attempt(cell, &execution, attempt, work.as_ref(), &input) => report,
            },
            // Also what cannot be read must come to an end.
            Err(error @ storage::Error::Payload { .. }) => {
                let sentence = format!("the stored input is damaged: {error}");
                Err(Failure::new(ErrorClass::InternalError, sentence).into())
            }
            Err(error) => return Err(error.into()),
        };
        let (event, output) = self.digest(attempt, report, work.as_ref()).await?;
        let mut state = cell.state.lock().await;
        let Some(current) = state.as_ref() else { return Ok(None) };
        let mut next = current.clone();
        let effects = self.transit(&mut next, event, output.as_deref()).await?;
        *state = Some(next.clone());
        drop(state);
        self.perform(&next, &effects);
        Ok((!effects.is_empty() && !ends(&effects)).then_some(next))
    }

    /// Takes the execution: reads it if need be and begins its attempt, in memory. `None` when
    /// there is nothing to run: it has ended meanwhile.
    async fn begin(
        &self,
        cell: &Cell,
        key: &crate::storage::Key,
    ) -> Result<Option<(Execution, u32)>, Error> {
        let mut state = cell.state.lock().await;
        if state.is_none() {
            *state = self.store.read(key).await?;
        }
        let Some(execution) = state.as_mut() else { return Ok(None) };
        let effects = machine::apply(execution, Event::Taken, self.clock.now());
        let attempt = effects.iter().find_map(|effect| match effect {
            Effect::Start { attempt } => Some(*attempt),
            Effect::Dequeue { .. }
            | Effect::Enqueue { .. }
            | Effect::Charge { .. }
            | Effect::Announce
            | Effect::Stop
            | Effect::Wake => None,
        });
        Ok(attempt.map(|attempt| (execution.clone(), attempt)))
    }

    /// Runs the model, and marks the run on the disk when it lasts.
    async fn attempt(
        &self,
        cell: &Cell,
        execution: &Execution,
        attempt: u32,
        work: Option<&Work>,
        input: &RawValue,
    ) -> Result<runners::Success, runners::Error> {
        let run = run_model(execution, attempt, work, input);
        tokio::pin!(run);
        tokio::select! {
            biased;
            report = &mut run => return report,
            () = tokio::time::sleep(MARK_AFTER) => {}
        }
        let (report, ()) = tokio::join!(run, self.mark(cell, attempt));
        report
    }

    /// Commits that the attempt has begun, unless it has ended meanwhile.
    async fn mark(&self, cell: &Cell, attempt: u32) {
        let state = cell.state.lock().await;
        let Some(execution) = state.as_ref() else { return };
        if execution.running().is_none_or(|running| running.number != attempt) {
            return;
        }
        let mut commit = Commit::new();
        let key = rows::execution(execution.organization, execution.id);
        let written = match commit.put(key, execution) {
            Ok(_) => self.store.commit(commit).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = written {
            tracing::error!(execution = %execution.id, %error, "a begun run cannot be marked");
        }
    }

    /// Turns a runner's report into an event, keeping a large output in a file. With it comes the
    /// output's text, for the webhook.
    async fn digest(
        &self,
        attempt: u32,
        report: Result<runners::Success, runners::Error>,
        work: Option<&Work>,
    ) -> Result<(Event, Option<Box<RawValue>>), Error> {
        let success = match report {
            Ok(success) => success,
            Err(runners::Error { failure, cost, logs }) => {
                let cost = cost.unwrap_or(Usd::ZERO);
                return Ok((Event::Failed { attempt, failure, cost, logs }, None));
            }
        };
        let output = match work {
            Some(work) => shape_output(success.output, work.output_type),
            None => success.output,
        };
        let cost = work
            .and_then(|work| work.pricing.as_ref())
            .map_or(success.usage.cost.unwrap_or(Usd::ZERO), |p| p.charge(&success.usage));
        let text = to_raw_value(&output).map_err(|error| no_json("output", &error))?;
        let output = self.store.write_payload(text.clone()).await?;
        Ok((Event::Succeeded { attempt, output, cost, logs: success.logs }, Some(text)))
    }

    /// Applies the event and commits the new state with all durable effects. No effects: nothing
    /// changed, nothing was written.
    pub(super) async fn transit(
        &self,
        execution: &mut Execution,
        event: Event,
        output: Option<&RawValue>,
    ) -> Result<Vec<Effect>, Error> {
        let now = self.clock.now();
        let effects = machine::apply(execution, event, now);
        if effects.is_empty() {
            return Ok(effects);
        }
        let mut commit = Commit::new();
        let mut announced = None;
        for effect in &effects {
            match effect {
                Effect::Dequeue { lane } => {
                    commit.delete(rows::queued(lane, execution.id));
                }
                Effect::Enqueue { lane } => {
                    let value = rows::queued_value(execution.organization);
                    commit.put_bytes(rows::queued(lane, execution.id), value);
                }
                Effect::Charge { amount } => {
                    let (organization, id) = (execution.organization, execution.id);
                    billing::charge(&mut commit, organization, *amount, id, fresh(), now)?;
                }
                Effect::Announce => {
                    announced = self.announce(&mut commit, execution, output).await?
                }
                Effect::Start { .. } | Effect::Stop | Effect::Wake => {}
            }
        }
        commit.put(rows::execution(execution.organization, execution.id), execution)?;
        if let Some(output) = &execution.output {
            self.store.claim(&mut commit, output);
        }
        self.store.commit(commit).await?;
        if let Some(delivery) = announced {
            (self.on_delivery)(delivery);
        }
        Ok(effects)
    }

    /// Adds the webhook's delivery to the commit of the completion.
    async fn announce(
        &self,
        commit: &mut Commit,
        execution: &Execution,
        output: Option<&RawValue>,
    ) -> Result<Option<Delivery>, Error> {
        let Some(webhook) = execution.webhook.clone() else { return Ok(None) };
        let body = announcement(execution, output);
        let body = body.map_err(|error| no_json("webhook body", &error))?;
        let body = self.store.write_payload(body).await?;
        self.store.claim(commit, &body);
        let (organization, id, now) = (execution.organization, execution.id, self.clock.now());
        let delivery = Delivery::new(fresh(), organization, id, webhook, body, now);
        webhooks::enqueue(commit, &delivery)?;
        Ok(Some(delivery))
    }

    /// Performs the volatile effects of a committed change.
    pub(super) fn perform(&self, execution: &Execution, effects: &[Effect]) {
        if ends(effects) {
            self.waiters.wake(execution.id);
            let status = execution.status.prediction_word();
            metrics::counter!("orrery_executions_total", "status" => status).increment(1);
            let total = execution.completed_at.map(|end| end.since(execution.created_at));
            metrics::histogram!("orrery_execution_seconds").record(total.unwrap_or_default());
        }
    }
}

/// What has no JSON form (nothing that gets here, in practice) cannot be stored either.
fn no_json(record: &'static str, error: &serde_json::Error) -> Malformed {
    Malformed { record, reason: error.to_string() }
}

/// One call of the runner, bounded in time; a panic fails this run and nothing else.
async fn run_model(
    execution: &Execution,
    attempt: u32,
    work: Option<&Work>,
    input: &RawValue,
) -> Result<runners::Success, runners::Error> {
    let model = execution.model();
    let Some(work) = work else {
        let sentence = format!("the model '{model}' is no longer in the catalog");
        return Err(Failure::new(ErrorClass::InvalidModelConfig, sentence).into());
    };
    let input: Value = serde_json::from_str(input.get()).map_err(|error| {
        Failure::new(ErrorClass::InternalError, format!("the stored input is damaged: {error}"))
    })?;
    let job = Job { attempt_key: execution.attempt_key(attempt), input: Arc::new(input) };
    let run = AssertUnwindSafe(async { work.runner.run(job).await }).catch_unwind();
    match tokio::time::timeout(work.timeout, run).await {
        Ok(Ok(report)) => report,
        Ok(Err(_panic)) => {
            let sentence = format!("the runner of the model '{model}' panicked");
            Err(Failure::new(ErrorClass::InternalError, sentence).into())
        }
        Err(_elapsed) => {
            let limit = work.timeout;
            let sentence = format!("the model '{model}' gave no answer within {limit:?}");
            Err(Failure::new(ErrorClass::ExecutionTimeout, sentence).into())
        }
    }
}
