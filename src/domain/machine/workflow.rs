//! Workflows: the steps of a plan, each when what it waits for has ended.
//!
//! [`Progress`] is what an execution remembers of its steps. Only what finished has to outlive the
//! process: which step is next follows from the plan and the finished ones, so that a restored
//! progress goes on behind them. The machine knows when a step's turn has come and what its end
//! means for the others; what its references resolve to, and what its run gives, comes in as events.
//!
//! A step that fails for good fails what it stands in, up to the execution, unless it (or something
//! around it) has `continue_on_error`. What is in flight beside it is cancelled.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{Effect as Whole, finish};
use crate::domain::attempt::{Attempt, Failure, Outcome};
use crate::domain::classify::ErrorClass;
use crate::domain::definition::{Block, Kind, Plan, Position};
use crate::domain::execution::{Execution, Fault, Status, Work, append_logs};
use crate::domain::ids::ExecutionId;
use crate::domain::money::Usd;
use crate::domain::payload::Payload;
use crate::domain::step::{self, Answer, Instance, Step};
use crate::domain::template::RESOLVED_BYTES_MAX;
use crate::domain::time::Timestamp;

/// The most items that a `map` takes.
pub const ITEMS_MAX: u32 = 10_000;

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Its lane gave it a place: for the first time, after a crash, after a wait.
    Taken,
    /// What a model or HTTP step is given is known. `prediction` names the run of a model.
    Resolved { instance: Instance, input: Payload, prediction: Option<ExecutionId> },
    /// The attempt has its place at the model.
    Started { instance: Instance, attempt: u32 },
    /// The attempt gave an output. `attempt` is the fence.
    Succeeded { instance: Instance, attempt: u32, success: Success },
    /// The attempt failed. `cost` is what it reported all the same.
    Failed { instance: Instance, attempt: u32, fault: Fault, cost: Usd, logs: Option<String> },
    /// The condition of a `choice` is known.
    Decided { instance: Instance, met: bool },
    /// A `map` has this many items.
    Opened { instance: Instance, items: u32 },
    /// A `wait` ends at this moment.
    Waits { instance: Instance, until: Timestamp },
    /// A `pass` gives this.
    Passed { instance: Instance, output: Payload },
    /// What an item of a `map`, or the whole step that holds others, gives.
    Gathered { instance: Instance, item: Option<u32>, output: Payload },
    /// A step other than a model or HTTP step cannot go on.
    Broken { instance: Instance, fault: Fault },
    /// The moment that a step waited for has come.
    Due { instance: Instance },
    /// What the execution gives.
    Concluded { output: Result<Payload, Fault> },
    /// It has been running for as long as a workflow may.
    TimedOut { cause: String },
    /// The client wants it stopped.
    Cancelled,
    /// Nothing runs and nothing is due for long: it gives up its place. `ran_ms` is for how long it
    /// has been running in all.
    PutAside { until: Timestamp, ran_ms: u64 },
}

/// What a run gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Success {
    pub output: Payload,
    pub answer: Option<Answer>,
    pub cost: Usd,
    pub logs: Option<String>,
}

/// What has to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// What concerns the execution as a whole.
    Whole(Whole),
    /// Durable: a model step has ended; it is written as a prediction of its own.
    Publish { instance: Instance },
    /// Resolve what the step refers to; run it, or say what came of it. An attempt has to wait for
    /// the commit of everything before it.
    Begin { instance: Instance, attempt: u32 },
    /// Say what an item of a `map` gives, or what a step gives whose blocks have ended.
    Gather { instance: Instance, item: Option<u32> },
    /// Say what the execution gives.
    Conclude,
    /// Volatile: say when this moment has come.
    Sleep { instance: Instance, until: Timestamp },
    /// Volatile: stop its run, if it still works.
    Stop { instance: Instance },
}

/// The steps side by side that are being worked on: the whole, a branch, an item's steps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Frame {
    /// The step that holds them; none for the whole.
    owner: Option<Instance>,
    /// The number of the branch, or of the item.
    number: u32,
}

#[derive(Debug, Clone)]
struct Open {
    /// How many each step still waits for.
    unmet: BTreeMap<Position, u32>,
    /// Steps that have not ended.
    left: usize,
}

/// A step that holds others and has begun.
#[derive(Debug, Clone)]
enum Container {
    /// Branches that have not ended.
    Branches(usize),
    Items(Items),
}

#[derive(Debug, Clone)]
struct Items {
    count: u32,
    next: u32,
    working: u32,
    outputs: Vec<Option<Payload>>,
    bytes: u64,
}

/// How far an execution has come.
#[derive(Debug, Clone)]
pub struct Progress {
    plan: Arc<Plan>,
    steps: BTreeMap<Instance, Step>,
    /// Those of `steps` that have not ended.
    unfinished: BTreeSet<Instance>,
    frames: HashMap<Frame, Open>,
    containers: HashMap<Instance, Container>,
    changed: BTreeSet<Instance>,
    /// Those of `changed` that are in memory for the next commit alone.
    forgotten: BTreeSet<Instance>,
    is_pressing: bool,
}

impl Progress {
    /// The progress that the stored steps tell of; none for a new execution.
    #[must_use]
    pub fn restore(plan: Arc<Plan>, steps: impl IntoIterator<Item = (Instance, Step)>) -> Self {
        let steps: BTreeMap<_, _> = steps.into_iter().collect();
        let unfinished = steps.iter().filter(|(_, step)| !step.status.is_final());
        let unfinished = unfinished.map(|(instance, _)| instance.clone()).collect();
        let (frames, containers) = (HashMap::new(), HashMap::new());
        let (changed, forgotten) = (BTreeSet::new(), BTreeSet::new());
        let is_pressing = false;
        Self { plan, steps, unfinished, frames, containers, changed, forgotten, is_pressing }
    }

    /// The plan that it follows.
    #[must_use]
    pub const fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// A step that has begun.
    #[must_use]
    pub fn step(&self, instance: &Instance) -> Option<&Step> {
        self.steps.get(instance)
    }

    /// Every step that has begun, but for those of a map's items that have been gathered.
    pub fn steps(&self) -> impl Iterator<Item = (&Instance, &Step)> {
        self.steps.iter()
    }

    /// The steps that have begun and not ended.
    pub fn unfinished(&self) -> impl Iterator<Item = (&Instance, &Step)> {
        self.unfinished.iter().filter_map(|instance| Some((instance, self.steps.get(instance)?)))
    }

    /// The outputs of the items of an open `map`, in order; none for those that are not gathered.
    #[must_use]
    pub fn items(&self, map: &Instance) -> Option<&[Option<Payload>]> {
        match self.containers.get(map)? {
            Container::Items(items) => Some(&items.outputs),
            Container::Branches(_) => None,
        }
    }

    /// Whether something changed that must be on the disk before anything is begun.
    #[must_use]
    pub const fn is_pressing(&self) -> bool {
        self.is_pressing
    }

    /// The steps that changed since the last time; they go into the commit that is made now.
    #[must_use]
    pub fn take_changed(&mut self) -> Vec<(Instance, Step)> {
        self.is_pressing = false;
        let changed = std::mem::take(&mut self.changed).into_iter().filter_map(|instance| {
            let step = if self.forgotten.remove(&instance) {
                self.steps.remove(&instance)
            } else {
                self.steps.get(&instance).cloned()
            };
            Some((instance, step?))
        });
        changed.collect()
    }

    /// Changes the progress and the execution as `event` demands at the moment `now`, and says what
    /// has to be done.
    #[must_use]
    pub fn apply(
        &mut self,
        execution: &mut Execution,
        event: Event,
        now: Timestamp,
    ) -> Vec<Effect> {
        if execution.status.is_final() {
            return Vec::new();
        }
        let mut effects = Vec::new();
        let mut change = Change { progress: self, execution, now, effects: &mut effects };
        change.apply(event);
        effects
    }
}

/// One event's change under way.
struct Change<'c> {
    progress: &'c mut Progress,
    execution: &'c mut Execution,
    now: Timestamp,
    effects: &'c mut Vec<Effect>,
}

impl Change<'_> {
    fn apply(&mut self, event: Event) {
        match event {
            Event::Taken => self.take(),
            Event::Resolved { instance, input, prediction } => {
                if let Some(step) = self.progress.steps.get_mut(&instance) {
                    step.input = Some(input);
                    step.prediction = step.prediction.or(prediction);
                }
            }
            Event::Started { instance, attempt } => self.start(&instance, attempt),
            Event::Succeeded { instance, attempt, success } => {
                self.succeed(&instance, attempt, success);
            }
            Event::Failed { instance, attempt, fault, cost, logs } => {
                self.fail_attempt(&instance, attempt, fault, cost, logs);
            }
            Event::Decided { instance, met } => self.decide(&instance, met),
            Event::Opened { instance, items } => self.open_map(&instance, items),
            Event::Waits { instance, until } => self.wait(&instance, until),
            Event::Passed { instance, output } => self.complete(&instance, output),
            Event::Gathered { instance, item: Some(item), output } => {
                self.gather_item(&instance, item, output);
            }
            Event::Gathered { instance, item: None, output } => self.complete(&instance, output),
            Event::Broken { instance, fault } => {
                if self.is_unfinished(&instance) {
                    self.fail(&instance, fault);
                }
            }
            Event::Due { instance } => self.due(&instance),
            Event::Concluded { output } => match output {
                Ok(output) => {
                    self.execution.output = Some(output);
                    self.finish(Status::Success);
                }
                Err(fault) => self.fail_whole(fault),
            },
            Event::TimedOut { cause } => {
                let class = ErrorClass::ExecutionTimeout;
                self.fail_whole(Fault::new("ExecutionTimeout", class, cause));
            }
            Event::Cancelled => {
                self.cancel_within(None);
                self.finish(Status::Cancelled);
            }
            Event::PutAside { until, ran_ms } => self.put_aside(until, ran_ms),
        }
    }

    fn take(&mut self) {
        self.execution.status = Status::Processing;
        self.execution.started_at.get_or_insert(self.now);
        if self.progress.frames.is_empty() {
            self.execution.cost = self.progress.steps.values().map(|step| step.cost).sum();
            self.open(Frame { owner: None, number: 0 });
        }
    }

    fn put_aside(&mut self, until: Timestamp, ran_ms: u64) {
        let lane = self.execution.lane();
        if let Work::Workflow(run) = &mut self.execution.work {
            run.ran_ms = ran_ms;
            run.aside_until = Some(until);
            self.progress.is_pressing = true;
            self.effects.push(Effect::Whole(Whole::Dequeue { lane }));
            self.effects.push(Effect::Whole(Whole::SetTimer { due: until }));
        }
    }

    // --- where a step stands ---

    fn is_unfinished(&self, instance: &Instance) -> bool {
        self.progress.unfinished.contains(instance)
    }

    /// The frame that a step stands in.
    fn frame_of(&self, instance: &Instance) -> Frame {
        let plan = &self.progress.plan;
        let Some(parent) = plan.at(instance.step).and_then(|step| step.parent) else {
            return Frame { owner: None, number: 0 };
        };
        let is_map = plan.at(parent.step).is_some_and(|step| matches!(step.kind, Kind::Map(_)));
        let mut items = instance.items.clone();
        let number = if is_map {
            items.pop().unwrap_or_default()
        } else {
            u32::try_from(parent.block).unwrap_or_default()
        };
        Frame { owner: Some(Instance { step: parent.step, items }), number }
    }

    /// The steps of a frame, as instances.
    fn instances(&self, frame: &Frame) -> Vec<Instance> {
        let plan = &self.progress.plan;
        let Some(owner) = &frame.owner else {
            return plan.root().positions().iter().copied().map(Instance::of).collect();
        };
        let Some(step) = plan.at(owner.step) else { return Vec::new() };
        let mut items = owner.items.clone();
        let mut number = usize::try_from(frame.number).unwrap_or(usize::MAX);
        if matches!(step.kind, Kind::Map(_)) {
            items.push(frame.number);
            number = 0;
        }
        let positions = step.kind.block(number).map_or(&[][..], Block::positions);
        let instance = |step: &Position| Instance { step: *step, items: items.clone() };
        positions.iter().map(instance).collect()
    }

    // --- beginning ---

    /// Begins with the steps of a frame, those that have ended already taken for granted.
    fn open(&mut self, frame: Frame) {
        let plan = Arc::clone(&self.progress.plan);
        let instances = self.instances(&frame);
        let mut unmet = BTreeMap::new();
        for instance in &instances {
            let waits_for = plan.at(instance.step).map_or(0, |step| step.waits_for.len());
            unmet.insert(instance.step, u32::try_from(waits_for).unwrap_or(u32::MAX));
        }
        let has_ended = |progress: &Progress, instance: &Instance| {
            progress.steps.get(instance).is_some_and(|step| step.status.is_final())
        };
        let mut left = instances.len();
        for ended in instances.iter().filter(|one| has_ended(self.progress, one)) {
            left = left.saturating_sub(1);
            for dependent in plan.dependents(ended.step) {
                if let Some(unmet) = unmet.get_mut(dependent) {
                    *unmet = unmet.saturating_sub(1);
                }
            }
        }
        if left == 0 {
            return self.close(&frame);
        }
        let is_free = |instance: &&Instance| unmet.get(&instance.step) == Some(&0);
        let ready: Vec<_> = instances.iter().filter(is_free).cloned().collect();
        self.progress.frames.insert(frame, Open { unmet, left });
        for instance in ready {
            if !has_ended(self.progress, &instance) {
                self.begin(&instance);
            }
        }
    }

    /// A step's turn has come, or it goes on behind what is stored of it.
    fn begin(&mut self, instance: &Instance) {
        let plan = Arc::clone(&self.progress.plan);
        let Some(planned) = plan.at(instance.step) else { return };
        let now = self.now;
        let first = if matches!(planned.kind, Kind::Model(_)) {
            step::Status::Queued
        } else {
            step::Status::Running
        };
        self.progress.unfinished.insert(instance.clone());
        let is_new = !self.progress.steps.contains_key(instance);
        let step =
            self.progress.steps.entry(instance.clone()).or_insert_with(|| Step::new(first, now));
        let is_container =
            matches!(planned.kind, Kind::Parallel(_) | Kind::Choice(_) | Kind::Map(_));
        if is_new && is_container {
            step.due = planned.timeout.map(|timeout| now.plus(timeout));
        }
        if let Some(due) = step.due {
            self.effects.push(Effect::Sleep { instance: instance.clone(), until: due });
            if !is_container {
                return;
            }
        }
        match &planned.kind {
            Kind::Model(_) | Kind::Http(_) => self.begin_attempt(instance),
            Kind::Parallel(parallel) => {
                let branches = parallel.branches.len();
                let container = Container::Branches(branches);
                self.progress.containers.insert(instance.clone(), container);
                for number in 0..u32::try_from(branches).unwrap_or(u32::MAX) {
                    self.open(Frame { owner: Some(instance.clone()), number });
                }
            }
            Kind::Choice(_) | Kind::Map(_) | Kind::Wait(_) | Kind::Pass(_) => {
                self.effects.push(Effect::Begin { instance: instance.clone(), attempt: 1 });
            }
        }
    }

    /// Begins the next attempt, or the one that was in flight when the process died, under its
    /// number.
    fn begin_attempt(&mut self, instance: &Instance) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now;
        let Some(step) = self.progress.steps.get_mut(instance) else { return };
        let attempt = match step.running() {
            Some(running) => running.number,
            None => {
                let number = step.attempts.last().map_or(1, |last| last.number.saturating_add(1));
                let model = model_of(&plan, instance, step.primary_error.is_some());
                step.attempts.push(Attempt::begin(number, model.to_owned(), now));
                number
            }
        };
        self.effects.push(Effect::Begin { instance: instance.clone(), attempt });
    }

    fn start(&mut self, instance: &Instance, attempt: u32) {
        let now = self.now;
        let Some(step) = self.progress.steps.get_mut(instance) else { return };
        let Some(last) = step.attempts.last_mut() else { return };
        if last.number != attempt || last.outcome != Outcome::Running {
            return;
        }
        last.started_at = now;
        if step.status == step::Status::Queued {
            step.status = step::Status::Running;
            step.started_at = now;
        }
    }

    // --- models and HTTP ---

    fn succeed(&mut self, instance: &Instance, attempt: u32, success: Success) {
        let now = self.now;
        if !self.is_unfinished(instance) {
            return;
        }
        let Some(step) = self.progress.steps.get_mut(instance) else { return };
        let Some(last) = step.attempts.last_mut() else { return };
        if !last.close(attempt, Outcome::Success, None, now) {
            return;
        }
        step.cost = step.cost.plus(success.cost);
        step.answer = success.answer;
        append_logs(&mut step.logs, success.logs);
        self.execution.cost = self.execution.cost.plus(success.cost);
        self.progress.is_pressing = true;
        self.complete(instance, success.output);
    }

    fn fail_attempt(
        &mut self,
        instance: &Instance,
        attempt: u32,
        fault: Fault,
        cost: Usd,
        logs: Option<String>,
    ) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now;
        if !self.is_unfinished(instance) {
            return;
        }
        let (Some(planned), Some(step)) =
            (plan.at(instance.step), self.progress.steps.get_mut(instance))
        else {
            return;
        };
        let failure = Failure::new(fault.class, fault.cause.clone());
        let Some(last) = step.attempts.last_mut() else { return };
        if !last.close(attempt, Outcome::Error, Some(failure), now) {
            return;
        }
        step.cost = step.cost.plus(cost);
        append_logs(&mut step.logs, logs);
        self.execution.cost = self.execution.cost.plus(cost);
        self.progress.is_pressing = true;
        self.progress.changed.insert(instance.clone());
        if step.primary_error.is_none() {
            if let Some(delay) = planned.retry.delay_after(attempt, fault.class) {
                let until = now.plus(delay);
                step.due = Some(until);
                self.effects.push(Effect::Sleep { instance: instance.clone(), until });
                return;
            }
            if has_fallback(&planned.kind) {
                step.primary_error = Some(fault.cause);
                return self.begin_attempt(instance);
            }
        }
        self.fail(instance, fault);
    }

    // --- the other kinds ---

    fn decide(&mut self, instance: &Instance, met: bool) {
        if !self.is_unfinished(instance) || self.progress.containers.contains_key(instance) {
            return;
        }
        let (taken, other) = if met { (0, 1) } else { (1, 0) };
        self.skip(&Frame { owner: Some(instance.clone()), number: other });
        self.progress.containers.insert(instance.clone(), Container::Branches(1));
        self.open(Frame { owner: Some(instance.clone()), number: taken });
    }

    /// Marks the steps of a frame, and those within them, as skipped.
    fn skip(&mut self, frame: &Frame) {
        let plan = Arc::clone(&self.progress.plan);
        for instance in self.instances(frame) {
            let Some(planned) = plan.at(instance.step) else { continue };
            if !self.progress.steps.contains_key(&instance) {
                let mut step = Step::new(step::Status::Skipped, self.now);
                step.completed_at = Some(self.now);
                self.progress.steps.insert(instance.clone(), step);
                self.progress.changed.insert(instance.clone());
            }
            if !matches!(planned.kind, Kind::Map(_)) {
                for number in 0..u32::try_from(planned.kind.blocks().len()).unwrap_or(u32::MAX) {
                    self.skip(&Frame { owner: Some(instance.clone()), number });
                }
            }
        }
    }

    fn open_map(&mut self, instance: &Instance, count: u32) {
        if !self.is_unfinished(instance) || self.progress.containers.contains_key(instance) {
            return;
        }
        let outputs = vec![None; usize::try_from(count).unwrap_or_default()];
        let items = Items { count, next: 0, working: 0, outputs, bytes: 0 };
        self.progress.containers.insert(instance.clone(), Container::Items(items));
        if count == 0 {
            let gather = Effect::Gather { instance: instance.clone(), item: None };
            return self.effects.push(gather);
        }
        self.open_items(instance);
    }

    /// Begins with further items, as many as may be worked on at once.
    fn open_items(&mut self, instance: &Instance) {
        let plan = Arc::clone(&self.progress.plan);
        let Some(Kind::Map(map)) = plan.at(instance.step).map(|step| &step.kind) else { return };
        loop {
            let Some(Container::Items(items)) = self.progress.containers.get_mut(instance) else {
                return;
            };
            if items.working >= map.max_concurrency || items.next >= items.count {
                return;
            }
            let number = items.next;
            items.next += 1;
            items.working += 1;
            self.open(Frame { owner: Some(instance.clone()), number });
        }
    }

    fn gather_item(&mut self, instance: &Instance, item: u32, output: Payload) {
        let Some(Container::Items(items)) = self.progress.containers.get_mut(instance) else {
            return;
        };
        let index = usize::try_from(item).unwrap_or(usize::MAX);
        let Some(slot @ None) = items.outputs.get_mut(index) else { return };
        items.bytes = items.bytes.saturating_add(output.len());
        *slot = Some(output);
        items.working = items.working.saturating_sub(1);
        let (bytes, all) = (items.bytes, items.next >= items.count && items.working == 0);
        self.forget_item(instance, item);
        if bytes > RESOLVED_BYTES_MAX as u64 {
            let cause = format!("its items give more than {RESOLVED_BYTES_MAX} bytes");
            let fault = Fault::new("StepFailed", ErrorClass::InvalidModelConfig, cause);
            return self.fail(instance, fault);
        }
        if all {
            self.effects.push(Effect::Gather { instance: instance.clone(), item: None });
        } else {
            self.open_items(instance);
        }
    }

    /// The steps of a gathered item are on the disk or about to be; nobody refers to them again.
    fn forget_item(&mut self, map: &Instance, item: u32) {
        let mut items = map.items.clone();
        items.push(item);
        let progress = &mut *self.progress;
        let inside = progress.plan.steps().skip(usize::from(map.step.number()).saturating_add(1));
        let inside = inside.take_while(|step| is_part_of(&progress.plan, step.position, map.step));
        for step in inside.map(|step| step.position).collect::<Vec<_>>() {
            let first = Instance { step, items: items.clone() };
            let of_item = progress.steps.range(first..).map(|(instance, _)| instance);
            let of_item: Vec<_> = of_item
                .take_while(|one| one.step == step && one.items.starts_with(&items))
                .cloned()
                .collect();
            for instance in of_item {
                if progress.changed.contains(&instance) {
                    progress.forgotten.insert(instance);
                } else {
                    progress.steps.remove(&instance);
                }
            }
        }
    }

    fn wait(&mut self, instance: &Instance, until: Timestamp) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now;
        if !self.is_unfinished(instance) {
            return;
        }
        let Some(step) = self.progress.steps.get_mut(instance) else { return };
        let limit = plan.at(instance.step).and_then(|step| step.timeout);
        let until = limit.map_or(until, |limit| until.min(step.started_at.plus(limit)));
        if until <= now {
            return self.due(instance);
        }
        step.due = Some(until);
        self.progress.is_pressing = true;
        self.progress.changed.insert(instance.clone());
        self.effects.push(Effect::Sleep { instance: instance.clone(), until });
    }

    fn due(&mut self, instance: &Instance) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now;
        if !self.is_unfinished(instance) {
            return;
        }
        let (Some(planned), Some(step)) =
            (plan.at(instance.step), self.progress.steps.get_mut(instance))
        else {
            return;
        };
        if step.due.is_some_and(|due| due > now) {
            return;
        }
        let timed_out = || {
            let cause = format!("it took longer than {:?}", planned.timeout.unwrap_or_default());
            Fault::new("StepTimeout", ErrorClass::ExecutionTimeout, cause)
        };
        match &planned.kind {
            Kind::Model(_) | Kind::Http(_) => {
                if step.due.take().is_some() && step.running().is_none() {
                    self.begin_attempt(instance);
                }
            }
            Kind::Wait(_) => {
                let due = step.due.take();
                let limit = planned.timeout.map(|limit| step.started_at.plus(limit));
                self.progress.is_pressing |= due.is_some();
                if due.is_some() && due == limit {
                    return self.fail(instance, timed_out());
                }
                if let Ok(nothing) = Payload::of(&()) {
                    self.complete(instance, nothing);
                }
            }
            Kind::Parallel(_) | Kind::Choice(_) | Kind::Map(_) => {
                if step.due.take().is_some() {
                    self.progress.is_pressing = true;
                    self.fail(instance, timed_out());
                }
            }
            Kind::Pass(_) => {}
        }
    }

    // --- ending ---

    fn complete(&mut self, instance: &Instance, output: Payload) {
        if !self.is_unfinished(instance) {
            return;
        }
        if let Some(step) = self.progress.steps.get_mut(instance) {
            step.output = Some(output);
        }
        self.end(instance, step::Status::Completed);
        self.move_on(instance);
    }

    /// A step has failed for good, and with it what it stands in.
    fn fail(&mut self, instance: &Instance, mut fault: Fault) {
        let plan = Arc::clone(&self.progress.plan);
        let Some(planned) = plan.at(instance.step) else { return };
        // The innermost step is the one to name.
        let is_named = fault.cause.starts_with("step '");
        if !is_named {
            fault.cause = format!("step '{}': {}", planned.id, fault.cause);
        }
        self.cancel_within(Some(instance));
        if let Some(step) = self.progress.steps.get_mut(instance) {
            step.fault = Some(fault.clone());
        }
        self.end(instance, step::Status::Failed);
        if planned.continue_on_error {
            return self.move_on(instance);
        }
        match self.frame_of(instance).owner {
            Some(owner) => self.fail(&owner, fault),
            None => self.fail_whole(fault),
        }
    }

    fn fail_whole(&mut self, fault: Fault) {
        self.cancel_within(None);
        self.execution.fault = Some(fault);
        self.finish(Status::Error);
    }

    fn finish(&mut self, status: Status) {
        self.progress.is_pressing = true;
        let whole = finish(self.execution, status, self.now);
        self.effects.extend(whole.into_iter().map(Effect::Whole));
    }

    /// Writes a step's end.
    fn end(&mut self, instance: &Instance, status: step::Status) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now;
        self.progress.unfinished.remove(instance);
        self.progress.containers.remove(instance);
        self.progress.changed.insert(instance.clone());
        let Some(step) = self.progress.steps.get_mut(instance) else { return };
        step.status = status;
        step.due = None;
        step.completed_at = Some(now);
        let is_model =
            plan.at(instance.step).is_some_and(|step| matches!(step.kind, Kind::Model(_)));
        if let Some(prediction) = step.prediction.filter(|_| is_model) {
            self.effects.push(Effect::Publish { instance: instance.clone() });
            if step.cost > Usd::ZERO {
                let charge = Whole::Charge { execution: prediction, amount: step.cost };
                self.effects.push(Effect::Whole(charge));
            }
        }
    }

    /// Cancels what is in flight within a step, or everything.
    fn cancel_within(&mut self, around: Option<&Instance>) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now;
        let is_within = |instance: &Instance| match around {
            None => true,
            Some(around) => {
                instance != around
                    && instance.items.starts_with(&around.items)
                    && is_part_of(&plan, instance.step, around.step)
            }
        };
        let within: Vec<_> =
            self.progress.unfinished.iter().filter(|one| is_within(one)).cloned().collect();
        for instance in within {
            if let Some(step) = self.progress.steps.get_mut(&instance)
                && let Some(last) = step.attempts.last_mut()
            {
                last.close(last.number, Outcome::Cancelled, None, now);
            }
            self.end(&instance, step::Status::Cancelled);
            self.effects.push(Effect::Stop { instance });
        }
        self.progress.frames.retain(|frame, _| match (&frame.owner, around) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(owner), Some(around)) => owner != around && !is_within(owner),
        });
    }

    /// A step has ended, and what waited for it may start.
    fn move_on(&mut self, instance: &Instance) {
        let plan = Arc::clone(&self.progress.plan);
        let frame = self.frame_of(instance);
        let Some(open) = self.progress.frames.get_mut(&frame) else { return };
        open.left = open.left.saturating_sub(1);
        let is_done = open.left == 0;
        let mut ready = Vec::new();
        for dependent in plan.dependents(instance.step) {
            if let Some(unmet) = open.unmet.get_mut(dependent) {
                *unmet = unmet.saturating_sub(1);
                if *unmet == 0 {
                    ready.push(Instance { step: *dependent, items: instance.items.clone() });
                }
            }
        }
        if is_done {
            self.progress.frames.remove(&frame);
            return self.close(&frame);
        }
        for instance in ready {
            let has_ended =
                self.progress.steps.get(&instance).is_some_and(|step| step.status.is_final());
            if !has_ended {
                self.begin(&instance);
            }
        }
    }

    /// All steps of a frame have ended.
    fn close(&mut self, frame: &Frame) {
        let Some(owner) = &frame.owner else { return self.effects.push(Effect::Conclude) };
        let item = match self.progress.containers.get_mut(owner) {
            None => return,
            Some(Container::Items(_)) => Some(frame.number),
            Some(Container::Branches(left)) => {
                *left = left.saturating_sub(1);
                if *left > 0 {
                    return;
                }
                None
            }
        };
        self.effects.push(Effect::Gather { instance: owner.clone(), item });
    }
}

/// Whether `step` stands within `around`, however deep.
fn is_part_of(plan: &Plan, step: Position, around: Position) -> bool {
    let mut parent = plan.at(step).and_then(|step| step.parent);
    while let Some(above) = parent {
        if above.step == around {
            return true;
        }
        parent = plan.at(above.step).and_then(|step| step.parent);
    }
    false
}

fn has_fallback(kind: &Kind) -> bool {
    match kind {
        Kind::Model(model) => model.fallback.is_some(),
        Kind::Http(http) => http.fallback.is_some(),
        Kind::Parallel(_) | Kind::Choice(_) | Kind::Map(_) | Kind::Wait(_) | Kind::Pass(_) => false,
    }
}

/// The model that an attempt runs; nothing for an HTTP step.
fn model_of<'p>(plan: &'p Plan, instance: &Instance, is_fallback: bool) -> &'p str {
    match plan.at(instance.step).map(|step| &step.kind) {
        Some(Kind::Model(model)) => match &model.fallback {
            Some(fallback) if is_fallback => &fallback.slug,
            _ => &model.slug,
        },
        _ => "",
    }
}
