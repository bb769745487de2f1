//! Workflows: each running execution has one task, which runs the steps of the plan in order.
//!
//! The task applies events to the state machine, answers the machine's requests (such as the result
//! of a condition or the items of a map), commits the ended steps, and only then starts the model
//! runs and HTTP requests that follow. All other state of the task can be derived from the
//! committed rows. So a crash loses only the runs in flight, which are repeated with the same
//! attempt numbers.
//!
//! ```text
//! mod       the loop: events in, changes, commit, runs    view    the values that references see
//! resolve   answers to the state machine                  runs    models and HTTP requests
//! store     rows of steps: read at the start, written with each commit
//! children  steps that run other workflows                load    reading the stored execution
//! memory    the memory budget                             alarms  time-driven wakeups
//! ```

mod alarms;
mod children;
mod load;
pub(crate) mod memory;
mod resolve;
mod runs;
mod store;
mod view;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::children::{Begun, NewChild};
use self::memory::Memory;
use self::runs::{Job, Report, Running, Used};
use self::store::PendingEffects;
use self::view::Values;
use crate::active::{ActiveExecution, LoadedExecution};
use crate::run::budget::Budget;
use crate::scheduler::lanes::Parking;
use crate::trees::Tree;
use crate::{Error, Inner};
use orrery_domain::definition::{Plan, Role};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, KeyId, OrganizationId};
use orrery_domain::machine::PAUSED_UNTIL;
use orrery_domain::machine::workflow::{Effect, Event, StepProgress};
use orrery_domain::step::Instance;
use orrery_domain::time::Timestamp;
use orrery_domain::trace::Trace;
use orrery_records::billing::Reservation;
use orrery_runtime::turns::Turn;
use orrery_runtime::{self as runtime, TimeSlice, Timer};
use orrery_storage::Commit;

/// The in-memory state of one running execution.
struct Actor {
    inner: Arc<Inner>,
    id: ExecutionId,
    organization: OrganizationId,
    /// The API key that created the execution.
    api_key: KeyId,
    trace: Trace,
    /// The owner of the workflow; `None` if the workflow no longer exists.
    owner: Option<OrganizationId>,
    /// Whether another organization owns the workflow. If so, step inputs are not stored, and step
    /// errors are redacted.
    is_foreign: bool,
    plan: Arc<Plan>,
    inputs: Arc<Value>,
    memory: Memory,
    /// The items of the open maps.
    items: HashMap<Instance, Arc<Vec<Value>>>,
    values: Values,
    budget: Arc<Budget>,
    /// Attempts for whose inputs a memory share was granted.
    granted: Vec<(Instance, u32, Turn)>,
    /// Reservations of ended calls, held until a commit charges them.
    reservations: Vec<Reservation>,
    /// What ended calls have used, until a commit counts it.
    used: Vec<Used>,
    running: FuturesUnordered<Abortable<Running>>,
    stops: HashMap<Instance, AbortHandle>,
    /// The members of `running` that hold a model permit or need none.
    admitted: BTreeSet<Instance>,
    /// Whether steps of the plan wait for events.
    has_events: bool,
    /// Whether an event may have arrived without a notification.
    may_have_events: bool,
    /// Nesting depth.
    depth: u32,
    /// The execution's tree; `None` if the execution is not part of a tree and does not start one.
    tree: Option<Arc<Tree>>,
    /// The children that steps are waiting for, with the step and attempt of each.
    children: HashMap<ExecutionId, (Instance, u32)>,
    /// Children that have ended since the last check.
    ended_children: Vec<ExecutionId>,
    /// Children that are about to be created.
    new_children: HashMap<Instance, NewChild>,
    /// The last known pause state.
    is_paused: bool,
    /// The time since which the execution has only been waiting for children.
    waits_since: Option<Instant>,
    /// The lane that the execution runs in.
    lane: String,
    /// The parking state last reported to the lane.
    parking: Parking,
    timers: BTreeSet<(Timestamp, Instance)>,
    /// The timer that fires at the next scheduled wakeup.
    timer: Timer,
    /// Whether the start of the execution is recorded on disk.
    is_marked: bool,
    begun: Instant,
    /// Limits how long a series of answers or reports may occupy the thread.
    slice: TimeSlice,
    /// Total time with at least one run in flight.
    running_time: Duration,
}

/// Executions that run longer than this duration are marked as started on disk. The row of a faster
/// execution is written only when it ends; after a crash, its progress can be seen from the rows of
/// its steps. In tests, models take tens of milliseconds.
const MARK_AFTER: Duration = Duration::from_millis(if cfg!(test) { 25 } else { 250 });

/// The next action of the run loop.
#[derive(Debug, PartialEq, Eq)]
enum NextStep {
    /// Wait for the next wakeup.
    Wait,
    /// Release the execution, which has ended or was suspended.
    Release,
    /// Drop the changes and leave the execution to a cancellation that waits for its lock.
    Yield,
}

/// The event that woke the run loop.
enum Wakeup {
    Reports(Vec<Report>),
    Timer,
    /// An event was sent, or a child ended.
    Event,
    /// The execution has waited for children for too long.
    Idle,
    Mark,
    TimedOut,
    Stopped,
}

impl Actor {
    async fn run(&mut self, active: &ActiveExecution) -> Result<(), Error> {
        let mut events = vec![Event::Dispatched];
        loop {
            // New children are committed separately, so that a full disk rejects only them.
            let is_child = |event: &mut Event| matches!(event, Event::ChildStarted { .. });
            let starts: Vec<_> = events.extract_if(.., is_child).collect();
            let rounds = match (events.is_empty(), starts.is_empty()) {
                (_, true) => [Some(events), None],
                (true, false) => [Some(starts), None],
                (false, false) => [Some(events), Some(starts)],
            };
            for events in rounds.into_iter().flatten() {
                let mut state = active.state.lock().await;
                if state.as_ref().is_none_or(|loaded| loaded.execution.status.is_final()) {
                    return Ok(());
                }
                // Take the state out of the cell until it is committed. After an error, the cell is
                // then empty, and the state is read from the store again.
                let Some(mut loaded) = state.take() else { return Ok(()) };
                // Record the end of children here, under this lock, before their timers are
                // deleted. Otherwise an execution that is about to be suspended could miss the end
                // of a child.
                self.ended_children.extend(active.take_ended_children());
                let is_first = events.contains(&Event::Dispatched);
                let next = self.advance(&mut loaded, events, &active.cancellation_waits()).await?;
                if next == NextStep::Yield {
                    return Ok(());
                }
                if is_first {
                    self.inner.news.tell_status(&loaded.execution);
                }
                *state = Some(loaded);
                if next == NextStep::Release {
                    return Ok(());
                }
            }
            self.update_parked();
            let is_busy = !self.running.is_empty();
            let since = runtime::monotonic_now();
            let woken = self.wait(active).await;
            if is_busy && !self.is_paused {
                self.running_time = self.running_time.saturating_add(since.elapsed());
            }
            events = match woken {
                Wakeup::Stopped => return Ok(()),
                Wakeup::Reports(reports) => {
                    let mut events = Vec::new();
                    for report in reports {
                        events.extend(self.event_for(report)?);
                    }
                    events
                }
                Wakeup::Timer => self.due(),
                Wakeup::Event => {
                    self.may_have_events = true;
                    self.ended_children.extend(active.take_ended_children());
                    Vec::new()
                }
                Wakeup::Idle => Vec::new(),
                Wakeup::Mark => {
                    self.mark(active).await?;
                    Vec::new()
                }
                Wakeup::TimedOut => vec![self.timed_out()],
            };
        }
    }

    /// Reports a change to the lane: whether the execution only waits for model permits, only waits
    /// for children, or neither. While the execution only waits, it holds no permit.
    fn update_parked(&mut self) {
        let parking = match (self.running.is_empty(), self.admitted.is_empty()) {
            (true, _) if self.waits_since.is_some() => Parking::ForOthers,
            (false, true) => Parking::ForModels,
            (true | false, _) => Parking::Not,
        };
        if parking != self.parking {
            self.parking = parking;
            self.inner.lanes().park(&self.lane, self.id, parking);
            self.inner.scheduler.wake();
        }
    }

    /// Waits for the first wakeup.
    async fn wait(&mut self, active: &ActiveExecution) -> Wakeup {
        let is_busy = !self.running.is_empty();
        // Compute the time of the timeout once: if the timer fires for another reason, the limit
        // must not be extended.
        let times_out_at = self.times_out_at().filter(|_| is_busy && !self.is_paused);
        loop {
            if active.stop.is_cancelled() {
                return Wakeup::Stopped;
            }
            let alarm = self.alarm(is_busy, times_out_at);
            if let Some((at, _)) = &alarm {
                self.timer.ring_by(*at);
            }
            tokio::select! {
                biased;
                Some(first) = self.running.next(), if is_busy => {
                    let mut reports: Vec<Report> = first.into_iter().collect();
                    // All reports that are ready now share one commit.
                    while let Some(Some(next)) = self.running.next().now_or_never() {
                        reports.extend(next);
                        self.slice.end().await;
                    }
                    return Wakeup::Reports(reports);
                }
                // This notification is also sent when the execution is stopped.
                () = active.event.notified() => {
                    let is_stopped = active.stop.is_cancelled();
                    return if is_stopped { Wakeup::Stopped } else { Wakeup::Event };
                }
                () = self.timer.rings(), if alarm.is_some() => {
                    // The timer may have been set for an earlier wakeup that has already been
                    // handled.
                    let now = runtime::monotonic_now();
                    if let Some((_, wakeup)) = alarm.filter(|(at, _)| *at <= now) {
                        return wakeup;
                    }
                }
            }
        }
    }

    /// Applies the events and all resulting events, commits the changes, and starts new runs. If
    /// `cancellation` is cancelled before the commit, drops the changes.
    async fn advance(
        &mut self,
        loaded: &mut LoadedExecution,
        events: Vec<Event>,
        cancellation: &CancellationToken,
    ) -> Result<NextStep, Error> {
        let LoadedExecution { execution, progress: Some(progress), .. } = loaded else {
            return Ok(NextStep::Release);
        };
        let paused_before = execution.paused().cloned();
        let mut written = PendingEffects::default();
        let mut jobs = Vec::new();
        let starts = tokio::select! {
            biased;
            () = cancellation.cancelled() => return Ok(NextStep::Yield),
            starts = self.apply(execution, progress, events, &mut written, &mut jobs) => starts?,
        };
        let inner = Arc::clone(&self.inner);
        let is_news = execution.paused() != paused_before.as_ref();
        if progress.must_commit() || !written.is_empty() {
            let mut commit = self.commit()?;
            for child in written.children.drain(..) {
                commit.extend(child);
            }
            inner.commit_progress(commit, execution, progress, &written, is_news).await?;
            self.is_marked |= is_news;
        }
        if is_news {
            self.inner.news.tell_pause(execution);
        }
        self.is_paused = execution.paused().is_some();
        if written.is_final() || execution.workflow().is_some_and(|run| run.aside_until.is_some()) {
            return Ok(NextStep::Release);
        }
        for instance in starts {
            if let Some(step) = progress.step(&instance).filter(|step| !step.status.is_final()) {
                self.inner.news.tell_begun(execution, &self.plan, &instance, step);
            }
        }
        for job in jobs {
            self.start(execution, progress, job);
        }
        Ok(NextStep::Wait)
    }

    /// Applies the events and all resulting events. Returns the steps that start.
    async fn apply(
        &mut self,
        execution: &mut Execution,
        progress: &mut StepProgress,
        events: Vec<Event>,
        written: &mut PendingEffects,
        jobs: &mut Vec<Job>,
    ) -> Result<Vec<Instance>, Error> {
        let events = self.with_sent_events(execution, progress, events).await?;
        let has_news = !events.is_empty() || !self.granted.is_empty();
        let starts_children =
            events.iter().any(|event| matches!(event, Event::ChildStarted { .. }));
        let starts: Vec<Instance> = events.iter().filter_map(started).collect();
        for event in events {
            let event = self.unless_tree_closed(event)?;
            self.apply_event(execution, progress, event, written, jobs).await?;
        }
        self.begin_granted(execution, progress, written, jobs).await?;
        if starts_children {
            // The remaining children belong to steps that have ended in the meantime, so these
            // children are not created.
            self.new_children.clear();
        }
        // Check for events before the permit is released, under the lock that senders of events
        // also take.
        self.may_have_events |= jobs.is_empty() && self.running.is_empty();
        if !written.is_final() {
            for event in self.take_answers(progress).await? {
                self.apply_event(execution, progress, event, written, jobs).await?;
            }
        }
        let is_idle = jobs.is_empty() && self.running.is_empty() && self.new_children.is_empty();
        if !is_idle || has_news {
            self.waits_since = None;
        }
        if !written.is_final()
            && is_idle
            && let Some(event) = self.idle(execution).or_else(|| self.standstill(execution))
        {
            self.apply_event(execution, progress, event, written, jobs).await?;
        }
        Ok(starts)
    }

    /// Starts the attempts whose inputs have a memory share, unless their steps have ended in the
    /// meantime.
    async fn begin_granted(
        &mut self,
        execution: &mut Execution,
        progress: &mut StepProgress,
        written: &mut PendingEffects,
        jobs: &mut Vec<Job>,
    ) -> Result<(), Error> {
        for (instance, attempt, room) in std::mem::take(&mut self.granted) {
            let running = progress.step(&instance).and_then(|step| step.running());
            if running.is_none_or(|running| running.number != attempt) {
                continue;
            }
            let prepared = self.prepare(progress, instance, attempt, Some(room)).await?;
            let event = match prepared {
                Ok(Some((job, resolved))) => {
                    jobs.push(job);
                    resolved
                }
                Ok(None) => continue,
                Err(failed) => failed,
            };
            self.apply_event(execution, progress, event, written, jobs).await?;
        }
        Ok(())
    }

    /// Returns the events, preceded by events sent to the execution and the results of its
    /// children.
    async fn with_sent_events(
        &mut self,
        execution: &Execution,
        progress: &StepProgress,
        mut events: Vec<Event>,
    ) -> Result<Vec<Event>, Error> {
        if progress.is_resumed() {
            events.insert(0, Event::Continued);
        }
        events.extend(self.hold_waiting(execution, progress));
        // An event that was sent before a step's timeout takes precedence over the timeout.
        self.may_have_events |= events.iter().any(|event| matches!(event, Event::Due { .. }));
        if events.contains(&Event::Dispatched) {
            return Ok(events);
        }
        let mut all = self.take_answers(progress).await?;
        all.extend(self.take_ended_children().await?);
        all.extend(events);
        Ok(all)
    }

    /// After a pause, withdraws the attempts that have not started to run.
    fn hold_waiting(&mut self, execution: &Execution, progress: &StepProgress) -> Vec<Event> {
        if self.is_paused || execution.paused().is_none() {
            return Vec::new();
        }
        let mut held = Vec::new();
        for (instance, step) in progress.unfinished() {
            let waits = step.running().is_some() && step.child.is_none();
            if !waits || self.admitted.contains(instance) {
                continue;
            }
            if let Some(stop) = self.stops.remove(instance) {
                stop.abort();
                held.push(Event::Held { instance: instance.clone() });
            }
        }
        held
    }

    /// Applies one event, and answers the resulting requests of the state machine.
    async fn apply_event(
        &mut self,
        execution: &mut Execution,
        progress: &mut StepProgress,
        event: Event,
        written: &mut PendingEffects,
        jobs: &mut Vec<Job>,
    ) -> Result<(), Error> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.slice.end().await;
            let now = self.inner.clock.reading();
            for effect in progress.apply(execution, event, now) {
                match effect {
                    Effect::Execution(whole) => written.effects.push(whole),
                    Effect::Publish { instance } => written.published.push(instance),
                    Effect::SetTimer { instance, until } => {
                        self.timers.insert((until, instance));
                    }
                    Effect::CreateChild { instance } => {
                        if let Some(child) = self.new_children.remove(&instance) {
                            let attempt = progress.step(&instance).and_then(|step| step.running());
                            if let Some(attempt) = attempt.map(|attempt| attempt.number) {
                                self.children.insert(child.id, (instance, attempt));
                            }
                            written.children.push(child.commit);
                        }
                    }
                    Effect::Stop { instance } => {
                        self.children.retain(|_, (held, _)| *held != instance);
                        self.admitted.remove(&instance);
                        if let Some(stop) = self.stops.remove(&instance) {
                            stop.abort();
                        }
                    }
                    Effect::Begin { instance, attempt } => {
                        self.slice.end().await;
                        let role = self.plan.at(instance.step).map(|step| step.kind.role());
                        if role == Some(Role::Starts) {
                            match self.begin_child(progress, instance, attempt).await? {
                                Begun::Job(job, resolved) => {
                                    jobs.push(*job);
                                    events.push_back(resolved);
                                }
                                Begun::Event(event) => events.push_back(event),
                                Begun::Waits => {}
                            }
                        } else if role == Some(Role::Calls) {
                            match self.prepare(progress, instance, attempt, None).await? {
                                Ok(Some((job, resolved))) => {
                                    jobs.push(job);
                                    events.push_back(resolved);
                                }
                                Ok(None) => {}
                                Err(failed) => events.push_back(failed),
                            }
                        } else {
                            events.push_back(self.answer(progress, instance).await?);
                        }
                    }
                    Effect::JoinOutputs { instance, item } => {
                        events.push_back(self.join_outputs(progress, instance, item).await?);
                    }
                    Effect::ResolveOutput => events.push_back(self.resolve_output(progress).await?),
                }
            }
        }
        Ok(())
    }

    /// Returns the event that suspends an idle execution, if nothing is due soon.
    fn idle(&mut self, execution: &Execution) -> Option<Event> {
        let ran_ms = u64::try_from(self.running_time.as_millis()).unwrap_or(u64::MAX);
        if execution.paused().is_some() && !execution.status.is_final() {
            return Some(Event::Suspended { until: PAUSED_UNTIL, ran_ms });
        }
        let (due, _) = self.timers.first()?;
        let suspend_after = self.inner.options.suspend_after;
        let is_long = due.since(self.inner.clock.steady()) > suspend_after;
        if !is_long {
            self.waits_since = None;
            return None;
        }
        if !self.children.is_empty() {
            // The children may end soon, so wait for a while before suspending.
            let since = self.waits_since.get_or_insert_with(runtime::monotonic_now);
            if since.elapsed() < suspend_after {
                return None;
            }
        }
        (is_long && !execution.status.is_final())
            .then_some(Event::Suspended { until: *due, ran_ms })
    }

    /// Starts a run unless its step has ended in the meantime. If no permit for the model is free,
    /// the run first waits for a permit.
    fn start(&mut self, execution: &mut Execution, progress: &mut StepProgress, job: Job) {
        let running = progress.step(job.instance()).and_then(|step| step.running());
        if running.is_none_or(|running| running.number != job.attempt()) {
            return;
        }
        let instance = job.instance().clone();
        let attempt = job.attempt();
        if self.start_job(job) {
            let started = Event::Started { instance: instance.clone(), attempt };
            let now = self.inner.clock.reading();
            // The event only records the time.
            let _no_effects = progress.apply(execution, started, now);
        }
        if let Some(step) = progress.step(&instance) {
            self.inner.news.tell_begun(execution, &self.plan, &instance, step);
        }
    }

    fn push(&mut self, instance: Instance, future: Running) {
        let (stop, registration) = AbortHandle::new_pair();
        self.running.push(Abortable::new(future, registration));
        self.stops.insert(instance, stop);
    }

    /// Creates a commit that records the bytes that the execution has produced, and the tokens that
    /// its calls have used.
    fn commit(&mut self) -> Result<Commit, Error> {
        let mut commit = Commit::new();
        let settled = std::mem::take(&mut self.reservations);
        if !settled.is_empty() {
            commit.after_durable(move || drop(settled));
        }
        self.count_used(&mut commit)?;
        self.inner.record_produced(&mut commit, self.organization, self.id, &self.budget);
        Ok(commit)
    }

    /// Commits that the execution has started.
    async fn mark(&mut self, active: &ActiveExecution) -> Result<(), Error> {
        let mut state = active.state.lock().await;
        let Some(LoadedExecution { execution, progress: Some(progress), .. }) = state.as_mut()
        else {
            return Ok(());
        };
        if !execution.status.is_final() && !self.is_marked {
            let written = PendingEffects::default();
            let commit = self.commit()?;
            self.inner.commit_progress(commit, execution, progress, &written, true).await?;
            self.is_marked = true;
        }
        Ok(())
    }
}

/// Returns the step whose attempt an event starts.
fn started(event: &Event) -> Option<Instance> {
    let Event::Started { instance, .. } = event else { return None };
    Some(instance.clone())
}
