//! Workflows: the steps of a plan, each when what it waits for has ended.
//!
//! [`StepProgress`] is what an execution remembers of its steps. Only what finished has to outlive the
//! process: which step is next follows from the plan and the finished ones, so that a restored
//! progress goes on behind them. The machine knows when a step's turn has come and what its end
//! means for the others; what its references resolve to, and what its run gives, comes in as events.
//!
//! A step that fails for good fails what contains it, up to the execution, unless it (or something
//! around it) has `continue_on_error`. What is in flight beside it is cancelled.

mod begin;
mod end;
mod pause;
mod report;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use self::begin::Change;
use super::Effect as ExecutionEffect;
use crate::domain::definition::{Kind, Plan, StepIndex};
use crate::domain::execution::{Execution, Fault};
use crate::domain::ids::ExecutionId;
use crate::domain::money::Usd;
use crate::domain::payload::Payload;
use crate::domain::step::{self, EventSource, HttpResponse, Instance, Step};
use crate::domain::time::{Now, Timestamp};

/// The most items that a `map` takes.
pub const ITEMS_MAX: u32 = 10_000;

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Its lane gave it a place: for the first time, after a crash, after a wait.
    Dispatched,
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
    MapOpened { instance: Instance, items: u32 },
    /// A `wait` ends at this moment.
    WaitUntil { instance: Instance, until: Timestamp },
    /// The event that a `wait` waits for has come.
    Answered { instance: Instance, output: Payload, source: EventSource },
    /// The attempt at a step of type workflow is the execution `child`, which is about to be created.
    ChildStarted { instance: Instance, attempt: u32, child: ExecutionId },
    /// A `pass` gives this.
    ResultReady { instance: Instance, output: Payload },
    /// What an item of a `map`, or the whole step that holds others, gives.
    Joined { instance: Instance, item: Option<u32>, output: Payload },
    /// A step other than a model or HTTP step cannot go on.
    StepInvalid { instance: Instance, fault: Fault },
    /// The moment that a step waited for has come.
    Due { instance: Instance },
    /// What the execution gives.
    OutputResolved { output: Result<Payload, Fault> },
    /// It has been running for as long as a workflow may.
    TimedOut { cause: String },
    /// The client wants it stopped.
    Cancelled,
    /// Nothing runs and nothing is due for long: it gives up its place. `ran_ms` is for how long it
    /// has been running in all.
    Suspended { until: Timestamp, ran_ms: u64 },
    /// Somebody has paused it: no step starts.
    Paused { by: String },
    /// Somebody has resumed it. [`Event::Continued`] follows once that is committed.
    Resumed,
    /// The steps whose turn came while it was paused begin.
    Continued,
    /// It is paused, and the step's attempt has not begun to run: it begins again when it is resumed.
    Held { instance: Instance },
}

/// What a run gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Success {
    pub output: Payload,
    pub answer: Option<Arc<HttpResponse>>,
    pub cost: Usd,
    pub logs: Option<String>,
}

/// What has to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// What concerns the execution as a whole.
    Execution(ExecutionEffect),
    /// Durable: a model step has ended; it is written as a prediction of its own.
    Publish { instance: Instance },
    /// Resolve what the step refers to; run it, or say what came of it. An attempt has to wait for
    /// the commit of everything before it.
    Begin { instance: Instance, attempt: u32 },
    /// Durable: the execution that the step has started is created.
    CreateChild { instance: Instance },
    /// Say what an item of a `map` gives, or what a step gives whose blocks have ended.
    JoinOutputs { instance: Instance, item: Option<u32> },
    /// Say what the execution gives.
    ResolveOutput,
    /// Volatile: say when this moment has come.
    SetTimer { instance: Instance, until: Timestamp },
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
struct OpenFrame {
    /// How many each step still waits for.
    unmet_dependencies: BTreeMap<StepIndex, u32>,
    /// Steps that have not ended.
    unfinished: usize,
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
    active: u32,
    outputs: Vec<Option<Payload>>,
    bytes: u64,
}

/// How far an execution has come.
#[derive(Debug, Clone)]
pub struct StepProgress {
    plan: Arc<Plan>,
    steps: BTreeMap<Instance, Step>,
    /// Those of `steps` that have not ended.
    unfinished: BTreeSet<Instance>,
    frames: HashMap<Frame, OpenFrame>,
    containers: HashMap<Instance, Container>,
    changed: BTreeSet<Instance>,
    /// Those of `changed` that are in memory for the next commit alone.
    forgotten: BTreeSet<Instance>,
    is_pressing: bool,
    /// Steps whose turn has come while the execution is paused.
    held: BTreeSet<Instance>,
    /// It was resumed, and its steps have not gone on.
    is_resumed: bool,
    /// The latest stamp.
    stamped: Timestamp,
}

impl StepProgress {
    /// The progress that the stored steps tell of; none for a new execution.
    #[must_use]
    pub fn restore(plan: Arc<Plan>, steps: impl IntoIterator<Item = (Instance, Step)>) -> Self {
        let steps: BTreeMap<_, _> = steps.into_iter().collect();
        let unfinished = steps.iter().filter(|(_, step)| !step.status.is_final());
        let unfinished = unfinished.map(|(instance, _)| instance.clone()).collect();
        let frames = HashMap::new();
        let containers = HashMap::new();
        let changed = BTreeSet::new();
        let forgotten = BTreeSet::new();
        let stamped = steps.values().map(Step::latest).max().unwrap_or_default();
        Self {
            plan,
            steps,
            unfinished,
            frames,
            containers,
            changed,
            forgotten,
            is_pressing: false,
            held: BTreeSet::new(),
            is_resumed: false,
            stamped,
        }
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
    pub const fn must_commit(&self) -> bool {
        self.is_pressing
    }

    /// Whether it was resumed since the last [`Event::Continued`].
    #[must_use]
    pub const fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// The steps that changed since [`StepProgress::forget_changed`]; they go into the next commit.
    pub fn changed(&self) -> impl Iterator<Item = (&Instance, &Step)> {
        self.changed.iter().filter_map(|instance| Some((instance, self.steps.get(instance)?)))
    }

    /// What [`StepProgress::changed`] gives is in the commit that is made now.
    pub fn forget_changed(&mut self) {
        self.is_pressing = false;
        for instance in std::mem::take(&mut self.changed) {
            if self.forgotten.remove(&instance) {
                self.steps.remove(&instance);
            }
        }
    }

    /// Changes the progress and the execution as `event` demands at the moment `now`, and says what
    /// has to be done.
    #[must_use]
    pub fn apply(&mut self, execution: &mut Execution, event: Event, now: Now) -> Vec<Effect> {
        if execution.status.is_final() {
            return Vec::new();
        }
        self.stamped = execution.stamp(now.wall).max(self.stamped);
        let now = Now { wall: self.stamped, ..now };
        let mut effects = Vec::new();
        let mut change = Change { progress: self, execution, now, effects: &mut effects };
        change.apply(event);
        effects
    }
}

/// Whether a step's end stays when its execution is resumed: it has completed, was skipped,
/// or its failure was kept to itself.
#[must_use]
pub fn is_reusable(plan: &Plan, instance: &Instance, step: &Step) -> bool {
    match step.status {
        step::Status::Completed | step::Status::Skipped => true,
        step::Status::Failed => {
            plan.at(instance.step).is_some_and(|planned| planned.continue_on_error)
        }
        step::Status::Queued | step::Status::Running | step::Status::Cancelled => false,
    }
}

/// Moves the end of what a step may take by the time for which its execution was paused. False: what it
/// waits for is not the end of such a time, but a moment or its next attempt.
pub fn shift_due(kind: &Kind, step: &mut Step, by: Duration) -> bool {
    let is_limit = match kind {
        Kind::Parallel(_) | Kind::Choice(_) | Kind::Map(_) => true,
        Kind::Wait(wait) => wait.event().is_some() || step.is_cut_short,
        Kind::Workflow(_) => step.running().is_some(),
        Kind::Model(_) | Kind::Http(_) | Kind::Pass(_) => false,
    };
    let Some(due) = step.due.filter(|_| is_limit && !step.status.is_final()) else { return false };
    step.due = Some(due.plus(by));
    true
}

/// Whether a step has ended.
fn has_ended(progress: &StepProgress, instance: &Instance) -> bool {
    progress.steps.get(instance).is_some_and(|step| step.status.is_final())
}

/// Whether `step` is within `around`, however deep.
fn is_part_of(plan: &Plan, step: StepIndex, around: StepIndex) -> bool {
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
        Kind::Parallel(_)
        | Kind::Choice(_)
        | Kind::Map(_)
        | Kind::Wait(_)
        | Kind::Pass(_)
        | Kind::Workflow(_) => false,
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

#[cfg(test)]
mod tests;
