//! The engine's side of agent exchanges.
//!
//! The engine schedules an exchange, persists its steps and ends the exchange exactly once. A crate
//! above the engine implements [`Exchanges`], which executes the steps. A completed step is never
//! repeated, because it is committed before the next step begins.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, Weak};

use serde_json::value::RawValue;

use crate::active::{self, ActiveExecution};
use crate::query::indexes;
use crate::query::waiters::Waiter;
use crate::scheduler::lanes::Parking;
use crate::{Engine, Error, Inner, rows};
use orrery_domain::chat::Tokens;
use orrery_domain::definition::StepIndex;
use orrery_domain::execution::{Execution, Fault};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::machine::exchange;
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_domain::step::{Instance, Status, Step};
use orrery_records::billing::{Charge, Payer};
use orrery_runtime::new_id;
use orrery_storage::Commit;

/// The outcome of an exchange.
#[derive(Debug)]
pub struct Ending {
    /// The error; `None` on success.
    pub fault: Option<Fault>,
    pub tokens: Tokens,
    /// Whether the exchange ended with a question to the client.
    pub needs_clarification: bool,
    /// Writes to include in the commit that ends the exchange.
    pub beside: Commit,
}

/// A future that resolves to an [`Ending`].
pub type ExchangeFuture<'a> = Pin<Box<dyn Future<Output = Result<Ending, Error>> + Send + 'a>>;

/// Executes the steps of exchanges.
pub trait Exchanges: Send + Sync {
    /// Executes the remaining steps of an exchange. The future is dropped when the exchange is
    /// cancelled or the service stops.
    ///
    /// # Errors
    /// [`Error`] if the service is temporarily unable to read or write; the exchange is retried
    /// later.
    fn run<'a>(&'a self, exchange: &'a mut ExchangeRun) -> ExchangeFuture<'a>;
}

/// A running exchange, which holds a permit.
pub struct ExchangeRun {
    inner: Arc<Inner>,
    active: active::Handle,
    execution: Execution,
    steps: Vec<Step>,
}

impl fmt::Debug for ExchangeRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.execution.id;
        let steps = self.steps.len();
        f.debug_struct("ExchangeRun")
            .field("id", &id)
            .field("steps", &steps)
            .finish_non_exhaustive()
    }
}

/// The cost of a step, and the part of this cost that is charged when the step ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepCost {
    pub total: Usd,
    /// The part that is charged when the step ends; less than the total cost if a tool was charged
    /// separately.
    pub charged: Usd,
}

/// A guard for an exchange that has yielded its permit while it waits for its child. When the guard
/// is dropped, the exchange takes the permit back.
pub struct YieldedPlace {
    inner: Arc<Inner>,
    lane: String,
    id: ExecutionId,
}

impl fmt::Debug for YieldedPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("YieldedPlace").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for YieldedPlace {
    fn drop(&mut self) {
        self.inner.lanes().park(&self.lane, self.id, Parking::Not);
    }
}

impl Engine {
    /// Sets the implementation that executes the steps of exchanges. This function is called once,
    /// before [`Engine::recover`].
    pub fn set_exchanges(&self, exchanges: Weak<dyn Exchanges>) {
        *self.inner.exchanges.lock().unwrap_or_else(PoisonError::into_inner) = Some(exchanges);
    }

    /// Returns the steps of an execution in order.
    ///
    /// # Errors
    /// [`Error::Storage`]
    pub async fn steps_of(&self, id: ExecutionId) -> Result<Vec<Step>, Error> {
        let steps = self.inner.read_steps(id).await?;
        Ok(steps.into_iter().map(|(_, step)| step).collect())
    }

    /// Registers a waiter that is woken when a step of the execution begins or ends, and when the
    /// execution ends.
    #[must_use]
    pub fn watch_steps(&self, id: ExecutionId) -> Waiter {
        self.inner.step_waiters.register(id)
    }

    /// Fails once the service is shutting down.
    ///
    /// # Errors
    /// [`Error::Stopping`]
    pub fn check_running(&self) -> Result<(), Error> {
        if self.inner.tasks.is_stopping() { Err(Error::Stopping) } else { Ok(()) }
    }
}

impl ExchangeRun {
    #[must_use]
    pub const fn execution(&self) -> &Execution {
        &self.execution
    }

    /// Returns the steps begun so far, in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Yields the permit while the exchange waits for its child, which may need the permit.
    #[must_use]
    pub fn yield_place(&self) -> YieldedPlace {
        let (id, lane) = (self.execution.id, self.execution.lane());
        self.inner.lanes().park(&lane, id, Parking::ForOthers);
        self.inner.scheduler.wake();
        YieldedPlace { inner: Arc::clone(&self.inner), lane, id }
    }

    /// Returns the total cost of the steps.
    #[must_use]
    pub fn cost(&self) -> Usd {
        self.steps.iter().map(|step| step.cost).sum()
    }

    /// Commits the start of a step. `child` is the execution that the step will start.
    ///
    /// # Errors
    /// [`Error::Storage`]; [`Error::NotFound`] if the exchange has ended.
    pub async fn begin_step(
        &mut self,
        input: Box<RawValue>,
        child: Option<ExecutionId>,
    ) -> Result<(), Error> {
        let now = self.execution.stamp(self.inner.clock.now());
        let mut commit = Commit::new();
        let mut step = Step::new(Status::Running, now);
        step.input = Some(self.keep(&mut commit, input).await?);
        step.prediction = child;
        let index = self.steps.len();
        self.commit(commit, index, &step).await?;
        self.steps.push(step);
        Ok(())
    }

    /// Commits an update to the current step that replaces the step's input with `input`.
    ///
    /// # Errors
    /// The same errors as [`ExchangeRun::begin_step`].
    pub async fn renew_step(&mut self, input: Box<RawValue>) -> Result<(), Error> {
        let begun = self.steps.last().filter(|step| !step.status.is_final());
        let Some(mut step) = begun.cloned() else { return Ok(()) };
        let mut commit = Commit::new();
        let before = step.input.take();
        step.input = Some(self.keep(&mut commit, input).await?);
        if let Some(before) = &before {
            self.inner.store.release(&mut commit, before);
        }
        let index = self.steps.len().saturating_sub(1);
        self.commit(commit, index, &step).await?;
        self.steps.truncate(index);
        self.steps.push(step);
        Ok(())
    }

    /// Commits the end of the current step. If there is no current step, commits a new step that
    /// begins and ends in this commit.
    ///
    /// # Errors
    /// The same errors as [`ExchangeRun::begin_step`].
    pub async fn end_step(
        &mut self,
        input: Option<Box<RawValue>>,
        output: Box<RawValue>,
        cost: StepCost,
        beside: Commit,
    ) -> Result<(), Error> {
        let now = self.execution.stamp(self.inner.clock.now());
        let mut commit = Commit::new();
        commit.extend(beside);
        let begun = self.steps.last().filter(|step| !step.status.is_final()).cloned();
        let index = self.steps.len() - usize::from(begun.is_some());
        let mut step = begun.unwrap_or_else(|| Step::new(Status::Running, now));
        if let Some(input) = input {
            step.input = Some(self.keep(&mut commit, input).await?);
        }
        step.output = Some(self.keep(&mut commit, output).await?);
        (step.status, step.cost) = (Status::Completed, cost.total);
        step.completed_at = Some(now.max(step.started_at));
        if cost.charged > Usd::ZERO {
            let (payer, execution) = (Payer::of(&self.execution), self.execution.id);
            let model = self.execution.models().map_or("", |(model, _)| model);
            let charge = Charge { amount: cost.charged, execution, entry: new_id(), model };
            self.inner.billing.charge(&mut commit, payer, charge)?;
        }
        self.commit(commit, index, &step).await?;
        self.steps.truncate(index);
        self.steps.push(step);
        Ok(())
    }

    async fn keep(&self, commit: &mut Commit, text: Box<RawValue>) -> Result<Payload, Error> {
        let organization = self.execution.organization;
        let id = self.execution.id;
        let store = &self.inner.store;
        let payload = store.write_payload(id, text).await?;
        store.claim(commit, &payload);
        store.record_usage(commit, organization, id, payload.len());
        Ok(payload)
    }

    /// Writes a step, unless the exchange has ended in the meantime.
    async fn commit(&self, mut commit: Commit, index: usize, step: &Step) -> Result<(), Error> {
        let id = self.execution.id;
        let instance = Instance::of(StepIndex::new(u16::try_from(index).unwrap_or(u16::MAX)));
        commit.put(rows::step(id, &instance), step)?;
        let state = self.active.state.lock().await;
        if state.as_ref().is_none_or(|loaded| loaded.execution.status.is_final()) {
            return Err(Error::NotFound);
        }
        self.inner.store.commit(commit).await?;
        drop(state);
        self.inner.step_waiters.wake(id);
        Ok(())
    }
}

impl Inner {
    /// Runs the exchange in this cell until it ends.
    pub(crate) async fn run_exchange(
        self: &Arc<Self>,
        active: &ActiveExecution,
    ) -> Result<(), Error> {
        let Some(execution) = self.begin_exchange(active).await? else { return Ok(()) };
        let exchanges = self.exchanges.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let exchanges = exchanges.and_then(|exchanges| exchanges.upgrade());
        let exchanges = exchanges.ok_or(Error::Stopping)?;
        let Some(handle) = self.active.find(execution.id) else { return Ok(()) };
        let steps = self.read_steps(execution.id).await?.into_iter().map(|(_, step)| step);
        let steps = steps.collect();
        let mut run = ExchangeRun { inner: Arc::clone(self), active: handle, execution, steps };
        let ended = tokio::select! {
            biased;
            () = active.stop.cancelled() => return Ok(()),
            ended = exchanges.run(&mut run) => ended,
        };
        let cost = run.cost();
        drop(run);
        let mut state = active.state.lock().await;
        let Some(loaded) = state.as_mut() else { return Ok(()) };
        if loaded.execution.status.is_final() {
            // The exchange was cancelled while it was ending.
            return Ok(());
        }
        let Ending { fault, tokens, needs_clarification, beside } = ended?;
        let mut next = loaded.execution.clone();
        let ended = exchange::Ended { fault, cost, tokens, needs_clarification };
        let effects = exchange::end(&mut next, ended, self.clock.now());
        self.write(beside, &next, &effects, None).await?;
        loaded.execution = next;
        Ok(())
    }

    /// Commits the start of an exchange or a call. Returns `None` if it has already ended.
    pub(crate) async fn begin_exchange(
        &self,
        active: &ActiveExecution,
    ) -> Result<Option<Execution>, Error> {
        let mut state = active.state.lock().await;
        let Some(loaded) = state.as_mut() else { return Ok(None) };
        if loaded.execution.status.is_final() {
            return Ok(None);
        }
        let mut next = loaded.execution.clone();
        if exchange::begin(&mut next, self.clock.now()) {
            let mut commit = Commit::new();
            commit.put(rows::execution(next.organization, next.id), &next)?;
            indexes::update(&mut commit, &next);
            self.store.commit(commit).await?;
            loaded.execution = next;
        }
        Ok(Some(loaded.execution.clone()))
    }

    /// Cancels the children of the unfinished steps of a cancelled exchange.
    pub(crate) async fn cancel_children(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<(), Error> {
        let steps = self.read_steps(id).await?;
        let open = steps.iter().filter(|(_, step)| !step.status.is_final());
        for child in open.filter_map(|(_, step)| step.prediction) {
            self.cancel_unwanted(organization, child).await?;
        }
        Ok(())
    }
}
