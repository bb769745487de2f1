//! Workflows: one task for each execution that has its place, which takes the plan's steps in their
//! order.
//!
//! It applies the machine, answers what the machine asks for (what a condition says, what a map's
//! items are), commits what has ended, and only then starts the runs of models and HTTP requests
//! that follow. Everything that it holds beside the committed rows can be derived again from them:
//! a crash costs the runs in flight, which come again under the same attempt.
//!
//! ```text
//! mod     the loop: events in, changes, commit, runs      view    what references see
//! answer  what the machine asks for                       runs    models and HTTP requests
//! store   rows of steps: read at the start, written with each commit
//! ```

mod answer;
mod runs;
mod store;
mod view;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use serde_json::Value;
use tokio::time::Instant;

use self::runs::{Job, Report, Running};
use self::store::Written;
use self::view::Values;
use super::budget::Budget;
use super::cells::{Cell, Held};
use super::prediction::MARK_AFTER;
use super::{Error, Inner};
use crate::domain::classify::ErrorClass;
use crate::domain::definition::{Kind, Plan};
use crate::domain::execution::{Execution, Fault};
use crate::domain::ids::{ExecutionId, KeyId, OrganizationId};
use crate::domain::machine;
use crate::domain::machine::workflow::{Effect, Event, Progress};
use crate::domain::step::Instance;
use crate::domain::time::Timestamp;
use crate::runtime;
use crate::storage::Commit;

/// What one execution has in memory while it has its place.
struct Actor {
    inner: Arc<Inner>,
    id: ExecutionId,
    organization: OrganizationId,
    /// The API key that asked for it.
    api_key: KeyId,
    /// Another organization owns the workflow: what its steps are given is not kept, and how they
    /// failed is said in general words.
    is_foreign: bool,
    plan: Arc<Plan>,
    inputs: Arc<Value>,
    /// The items of the maps that are open.
    items: HashMap<Instance, Arc<Vec<Value>>>,
    values: Values,
    budget: Arc<Budget>,
    running: FuturesUnordered<Abortable<Running>>,
    stops: HashMap<Instance, AbortHandle>,
    /// Those of `running` that have a place at their model, or need none.
    seated: BTreeSet<Instance>,
    /// The lane that it runs from.
    lane: String,
    /// Whether the lane knows that it only waits for places at models.
    is_parked: bool,
    timers: BTreeSet<(Timestamp, Instance)>,
    /// Whether the disk knows that it has begun.
    is_marked: bool,
    begun: Instant,
    /// For how long something has been running.
    ran: Duration,
}

/// How an execution goes on.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// It waits for its runs and timers.
    Wait,
    /// It has ended, or was put aside.
    Leave,
}

/// What the loop waits for.
enum Woken {
    Reports(Vec<Report>),
    Timer,
    Mark,
    TimedOut,
    Stopped,
}

impl Inner {
    /// Runs the workflow that the cell holds, until it ends or is put aside.
    pub(super) async fn run_workflow(self: &Arc<Self>, cell: &Cell) -> Result<(), Error> {
        let mut state = cell.state.lock().await;
        let Some(held) = state.as_mut() else { return Ok(()) };
        if held.execution.status.is_final() {
            return Ok(());
        }
        let entered = self.enter(held).await;
        let result = match entered {
            Ok(Some(mut actor)) => {
                drop(state);
                actor.run(cell).await
            }
            Ok(None) => {
                drop(state);
                Ok(())
            }
            Err(error) => {
                drop(state);
                Err(error)
            }
        };
        let mut state = cell.state.lock().await;
        if result.is_err() {
            // What is in memory may be ahead of the disk: whoever comes next reads it again.
            *state = None;
        } else if let Some(held) = state.as_mut() {
            held.progress = None;
        }
        result
    }

    /// Loads the plan, the inputs and what is stored of the steps. `None` when it ended at once,
    /// because one of them is lost.
    async fn enter(self: &Arc<Self>, held: &mut Held) -> Result<Option<Actor>, Error> {
        let is_new = std::mem::take(&mut held.is_new);
        let execution = &held.execution;
        let Some(run) = execution.workflow() else { return Ok(None) };
        let loaded = self.load(execution, run.revision).await?;
        let (plan, inputs) = match loaded {
            Ok(loaded) => loaded,
            Err(fault) => {
                self.fail_unloaded(held, fault).await?;
                return Ok(None);
            }
        };
        let is_foreign = !self.is_own_workflow(execution).await?;
        let ran = Duration::from_millis(run.ran_ms);
        let may_have_steps = !is_new || run.redriven_from.is_some();
        let is_marked = execution.started_at.is_some();
        let (id, organization, lane) = (execution.id, execution.organization, execution.lane());
        let api_key = execution.key;
        let mut steps = if may_have_steps { self.read_steps(id).await? } else { Vec::new() };
        let known = may_have_steps.then(|| steps.iter().map(|(_, step)| step));
        let budget = self.budget(execution, known).await?;
        for (_, step) in
            steps.iter_mut().filter(|(at, step)| !at.items.is_empty() && step.status.is_final())
        {
            // There can be many, and nobody asks what they were given or how often they tried.
            (step.input, step.attempts, step.logs) = (None, Vec::new(), None);
        }
        held.progress = Some(Box::new(Progress::restore(Arc::clone(&plan), steps)));
        Ok(Some(Actor {
            inner: Arc::clone(self),
            id,
            organization,
            api_key,
            is_foreign,
            plan,
            inputs,
            items: HashMap::new(),
            values: Values::default(),
            budget,
            running: FuturesUnordered::new(),
            stops: HashMap::new(),
            seated: BTreeSet::new(),
            lane,
            is_parked: false,
            timers: BTreeSet::new(),
            is_marked,
            begun: runtime::monotonic_now(),
            ran,
        }))
    }

    /// Ends an execution whose definition or inputs are lost.
    async fn fail_unloaded(self: &Arc<Self>, held: &mut Held, fault: Fault) -> Result<(), Error> {
        let mut next = held.execution.clone();
        let effects = machine::fail(&mut next, fault, self.clock.now());
        let body = self.workflow_body(&next, None, Vec::new()).await?;
        self.write(Commit::new(), &next, &effects, Some(body)).await?;
        held.execution = next;
        Ok(())
    }
}

impl Actor {
    async fn run(&mut self, cell: &Cell) -> Result<(), Error> {
        let mut events = vec![Event::Taken];
        loop {
            {
                let mut state = cell.state.lock().await;
                let Some(held) = state.as_mut() else { return Ok(()) };
                if held.execution.status.is_final() {
                    return Ok(());
                }
                if self.advance(held, events).await? == Next::Leave {
                    return Ok(());
                }
            }
            self.park();
            let is_busy = !self.running.is_empty();
            let since = runtime::monotonic_now();
            let woken = self.wait(cell).await;
            if is_busy {
                self.ran = self.ran.saturating_add(since.elapsed());
            }
            events = match woken {
                Woken::Stopped => return Ok(()),
                Woken::Reports(reports) => {
                    let events = reports.into_iter().map(|report| self.heed(report));
                    events.collect::<Result<_, _>>()?
                }
                Woken::Timer => self.due(),
                Woken::Mark => {
                    self.mark(cell).await?;
                    Vec::new()
                }
                Woken::TimedOut => vec![self.timed_out()],
            };
        }
    }

    /// Tells the lane when the execution begins or ceases to wait for places at models alone: while
    /// it does, it holds no place itself.
    fn park(&mut self) {
        let is_parked = !self.running.is_empty() && self.seated.is_empty();
        if is_parked != self.is_parked {
            self.is_parked = is_parked;
            self.inner.lanes().park(&self.lane, self.id, is_parked);
            self.inner.scheduler.wake();
        }
    }

    /// Waits for whatever comes first.
    async fn wait(&mut self, cell: &Cell) -> Woken {
        let now = self.inner.clock.steady();
        let timer = self.timers.first().map(|(due, _)| due.since(now));
        let limit = self.inner.options.workflow_timeout.saturating_sub(self.ran);
        let is_busy = !self.running.is_empty();
        let mark_at = self.begun + MARK_AFTER;
        tokio::select! {
            biased;
            () = cell.stop.cancelled() => Woken::Stopped,
            Some(first) = self.running.next(), if is_busy => {
                let mut reports: Vec<Report> = first.into_iter().collect();
                // Whatever is ready by now goes into the same commit.
                while let Some(Some(next)) = self.running.next().now_or_never() {
                    reports.extend(next);
                }
                Woken::Reports(reports)
            }
            () = tokio::time::sleep(timer.unwrap_or_default()), if timer.is_some() => Woken::Timer,
            () = tokio::time::sleep_until(mark_at), if !self.is_marked => Woken::Mark,
            () = tokio::time::sleep(limit), if is_busy => Woken::TimedOut,
        }
    }

    /// The steps whose moment has come.
    fn due(&mut self) -> Vec<Event> {
        let now = self.inner.clock.steady();
        let mut events = Vec::new();
        while let Some(first) = self.timers.first().filter(|(due, _)| *due <= now).cloned() {
            self.timers.remove(&first);
            events.push(Event::Due { instance: first.1 });
        }
        events
    }

    fn timed_out(&self) -> Event {
        let limit = self.inner.options.workflow_timeout;
        Event::TimedOut {
            cause: format!("the workflow has been running for longer than {limit:?}"),
        }
    }

    /// Applies the events and all that follows from them, commits, and starts what may start.
    async fn advance(&mut self, held: &mut Held, events: Vec<Event>) -> Result<Next, Error> {
        let Held { execution, progress: Some(progress), .. } = held else { return Ok(Next::Leave) };
        let mut next = execution.clone();
        let mut written = Written::default();
        let mut jobs = Vec::new();
        for event in events {
            self.follow(&mut next, progress, event, &mut written, &mut jobs).await?;
        }
        if !written.ends() && jobs.is_empty() && self.running.is_empty() {
            match self.idle(&next) {
                Some(event) => {
                    self.follow(&mut next, progress, event, &mut written, &mut jobs).await?;
                }
                None if self.timers.is_empty() => {
                    let cause = "no step can go on".to_owned();
                    let fault = Fault::new("InternalError", ErrorClass::InternalError, cause);
                    let event = Event::Concluded { output: Err(fault) };
                    self.follow(&mut next, progress, event, &mut written, &mut jobs).await?;
                }
                None => {}
            }
        }
        let inner = Arc::clone(&self.inner);
        if progress.is_pressing() || !written.is_empty() {
            let commit = self.commit();
            inner.commit_progress(commit, &mut next, progress, &written, false).await?;
        }
        *execution = next;
        if written.ends() || execution.workflow().is_some_and(|run| run.aside_until.is_some()) {
            return Ok(Next::Leave);
        }
        for job in jobs {
            self.start(execution, progress, job);
        }
        Ok(Next::Wait)
    }

    /// Applies one event, and answers whatever the machine asks for because of it.
    async fn follow(
        &mut self,
        execution: &mut Execution,
        progress: &mut Progress,
        event: Event,
        written: &mut Written,
        jobs: &mut Vec<Job>,
    ) -> Result<(), Error> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let now = self.inner.clock.reading();
            for effect in progress.apply(execution, event, now) {
                match effect {
                    Effect::Whole(whole) => written.whole.push(whole),
                    Effect::Publish { instance } => written.published.push(instance),
                    Effect::Sleep { instance, until } => {
                        self.timers.insert((until, instance));
                    }
                    Effect::Stop { instance } => {
                        self.seated.remove(&instance);
                        if let Some(stop) = self.stops.remove(&instance) {
                            stop.abort();
                        }
                    }
                    Effect::Begin { instance, attempt } => {
                        let kind = self.plan.at(instance.step).map(|step| &step.kind);
                        if matches!(kind, Some(Kind::Model(_) | Kind::Http(_))) {
                            match self.prepare(progress, instance, attempt).await? {
                                Ok((job, resolved)) => {
                                    jobs.push(job);
                                    events.push_back(resolved);
                                }
                                Err(failed) => events.push_back(failed),
                            }
                        } else {
                            events.push_back(self.answer(progress, instance).await?);
                        }
                    }
                    Effect::Gather { instance, item } => {
                        events.push_back(self.gather(progress, instance, item).await?);
                    }
                    Effect::Conclude => events.push_back(self.conclude(progress).await?),
                }
            }
        }
        Ok(())
    }

    /// What an execution does for which nothing runs: it gives up its place, when nothing is due
    /// for long.
    fn idle(&self, execution: &Execution) -> Option<Event> {
        let (due, _) = self.timers.first()?;
        let is_long = due.since(self.inner.clock.steady()) > self.inner.options.aside_after;
        let ran_ms = u64::try_from(self.ran.as_millis()).unwrap_or(u64::MAX);
        (is_long && !execution.status.is_final()).then_some(Event::PutAside { until: *due, ran_ms })
    }

    /// Starts a run whose step has not ended meanwhile; of a model that has no free place, it first
    /// waits for one.
    fn start(&mut self, execution: &mut Execution, progress: &mut Progress, job: Job) {
        let running = progress.step(job.instance()).and_then(|step| step.running());
        if running.is_none_or(|running| running.number != job.attempt()) {
            return;
        }
        let (instance, attempt) = (job.instance().clone(), job.attempt());
        if self.start_job(job) {
            let started = Event::Started { instance, attempt };
            let now = self.inner.clock.reading();
            // It only notes the moment.
            let _no_effects = progress.apply(execution, started, now);
        }
    }

    fn push(&mut self, instance: Instance, future: Running) {
        let (stop, registration) = AbortHandle::new_pair();
        self.running.push(Abortable::new(future, registration));
        self.stops.insert(instance, stop);
    }

    /// A commit that records what the execution has made.
    fn commit(&self) -> Commit {
        let mut commit = Commit::new();
        self.inner.record(&mut commit, self.organization, self.id, &self.budget);
        commit
    }

    /// Commits that the execution has begun.
    async fn mark(&mut self, cell: &Cell) -> Result<(), Error> {
        let mut state = cell.state.lock().await;
        let Some(Held { execution, progress: Some(progress), .. }) = state.as_mut() else {
            return Ok(());
        };
        if !execution.status.is_final() && !self.is_marked {
            let written = Written::default();
            let commit = self.commit();
            self.inner.commit_progress(commit, execution, progress, &written, true).await?;
            self.is_marked = true;
        }
        Ok(())
    }
}
