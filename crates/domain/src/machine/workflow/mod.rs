//! Workflows: executes each step of a plan when its dependencies have ended.
//!
//! [`StepProgress`] is the state of an execution's steps. Only ended steps must survive the
//! process: the plan and the ended steps determine the next steps, so a restored execution
//! continues with the next steps. The state machine decides when a step is ready and how its end
//! affects other steps; resolved references and the results of runs arrive as events.
//!
//! A step that fails permanently fails the step that contains it, up to the execution, unless the
//! step (or an enclosing step) has `continue_on_error`. Other steps in flight inside the failed
//! step are cancelled.

mod begin;
mod end;
mod pause;
mod report;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use self::begin::Change;
use super::Effect as ExecutionEffect;
use crate::definition::{Kind, Plan, StepIndex};
use crate::execution::{Execution, Fault};
use crate::ids::ExecutionId;
use crate::money::Usd;
use crate::payload::Payload;
use crate::step::{self, EventSource, HttpResponse, Instance, Step};
use crate::time::{Now, Timestamp};

/// Maximum number of items in a `map`.
pub const ITEMS_MAX: u32 = 10_000;

/// An event of a workflow execution.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The lane granted the execution a permit: for the first time, after a crash, or after a
    /// suspension.
    Dispatched,
    /// The input of a model or HTTP step is resolved. `prediction` is the id of a model run.
    Resolved { instance: Instance, input: Payload, prediction: Option<ExecutionId> },
    /// The attempt has a model permit.
    Started { instance: Instance, attempt: u32 },
    /// The attempt returned an output. `attempt` is the fencing token.
    Succeeded { instance: Instance, attempt: u32, success: Success },
    /// The attempt failed. `cost` is the cost that the attempt reported despite the failure.
    Failed { instance: Instance, attempt: u32, fault: Fault, cost: Usd, logs: Option<String> },
    /// The condition of a `choice` has been evaluated.
    Decided { instance: Instance, met: bool },
    /// The items of a `map` have been resolved.
    MapOpened { instance: Instance, items: u32 },
    /// The end time of a `wait` has been resolved.
    WaitUntil { instance: Instance, until: Timestamp },
    /// The event that a `wait` step waits for has arrived.
    Answered { instance: Instance, output: Payload, source: EventSource },
    /// The attempt of a workflow step is the execution `child`, which is about to be created.
    ChildStarted { instance: Instance, attempt: u32, child: ExecutionId },
    /// The result of a `pass` has been resolved.
    ResultReady { instance: Instance, output: Payload },
    /// The output of one item of a `map` (with `item`), or of an entire container step, has been
    /// built.
    Joined { instance: Instance, item: Option<u32>, output: Payload },
    /// A step other than a model or HTTP step failed permanently.
    StepInvalid { instance: Instance, fault: Fault },
    /// The due time of a step has been reached.
    Due { instance: Instance },
    /// The output of the execution has been resolved.
    OutputResolved { output: Result<Payload, Fault> },
    /// The execution has reached the maximum running time of a workflow.
    TimedOut { cause: String },
    /// Cancellation was requested.
    Cancelled,
    /// Nothing is running or due soon: the execution is suspended and releases its permit. `ran_ms`
    /// is the execution's total running time.
    Suspended { until: Timestamp, ran_ms: u64 },
    /// The execution was paused: no steps start.
    Paused { by: String },
    /// The execution was resumed. [`Event::Continued`] follows once the resumption is committed.
    Resumed,
    /// Begins the steps that became ready during the pause.
    Continued,
    /// The execution is paused, and the step's attempt has not started running: the step begins
    /// again after the pause.
    Held { instance: Instance },
}

/// The result of a successful run.
#[derive(Debug, Clone, PartialEq)]
pub struct Success {
    pub output: Payload,
    pub answer: Option<Arc<HttpResponse>>,
    pub cost: Usd,
    pub logs: Option<String>,
    /// Whether the output comes from the result cache of a model.
    pub is_cached: bool,
}

/// An effect of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// An effect on the execution as a whole.
    Execution(ExecutionEffect),
    /// Durable: a model step has ended, and is written as a separate prediction.
    Publish { instance: Instance },
    /// Resolve the step's references, then run the step or report its result. An attempt must not
    /// start until all earlier changes are committed.
    Begin { instance: Instance, attempt: u32 },
    /// Durable: the child of the step is created.
    CreateChild { instance: Instance },
    /// Build the output of one item of a `map`, or of a container step whose blocks have ended.
    JoinOutputs { instance: Instance, item: Option<u32> },
    /// Resolve the output of the execution.
    ResolveOutput,
    /// Volatile: send [`Event::Due`] at this time.
    SetTimer { instance: Instance, until: Timestamp },
    /// Volatile: stop the step's run, if it is still running.
    Stop { instance: Instance },
}

/// A list of steps in progress: the top level, a branch, or the steps of a map item.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Frame {
    /// The step that contains the frame; `None` for the top level.
    owner: Option<Instance>,
    /// The index of the branch or the item.
    number: u32,
}

#[derive(Debug, Clone)]
struct OpenFrame {
    /// The number of unfinished dependencies of each step.
    unmet_dependencies: BTreeMap<StepIndex, u32>,
    /// Number of unfinished steps.
    unfinished: usize,
}

/// A running step that contains other steps.
#[derive(Debug, Clone)]
enum Container {
    /// Number of unfinished branches.
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

/// The progress of an execution.
#[derive(Debug, Clone)]
pub struct StepProgress {
    plan: Arc<Plan>,
    steps: BTreeMap<Instance, Step>,
    /// The unfinished members of `steps`.
    unfinished: BTreeSet<Instance>,
    frames: HashMap<Frame, OpenFrame>,
    containers: HashMap<Instance, Container>,
    changed: BTreeSet<Instance>,
    /// Members of `changed` that stay in memory only until the next commit.
    forgotten: BTreeSet<Instance>,
    is_pressing: bool,
    /// Steps that became ready while the execution was paused.
    held: BTreeSet<Instance>,
    /// Whether the execution was resumed but its steps have not continued yet.
    is_resumed: bool,
    /// The latest timestamp of any change.
    stamped: Timestamp,
}

impl StepProgress {
    /// Restores the progress from the stored steps. A new execution has no stored steps.
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

    /// Returns the plan of the execution.
    #[must_use]
    pub const fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Returns the state of a step that has begun.
    #[must_use]
    pub fn step(&self, instance: &Instance) -> Option<&Step> {
        self.steps.get(instance)
    }

    /// Returns all steps that have begun, except the steps of joined map items.
    pub fn steps(&self) -> impl Iterator<Item = (&Instance, &Step)> {
        self.steps.iter()
    }

    /// Returns the steps that have begun and not ended.
    pub fn unfinished(&self) -> impl Iterator<Item = (&Instance, &Step)> {
        self.unfinished.iter().filter_map(|instance| Some((instance, self.steps.get(instance)?)))
    }

    /// Returns the outputs of the items of an open `map`, in order; `None` for items that have not
    /// been joined.
    #[must_use]
    pub fn items(&self, map: &Instance) -> Option<&[Option<Payload>]> {
        match self.containers.get(map)? {
            Container::Items(items) => Some(&items.outputs),
            Container::Branches(_) => None,
        }
    }

    /// Returns whether a change must be durable before another run starts.
    #[must_use]
    pub const fn must_commit(&self) -> bool {
        self.is_pressing
    }

    /// Returns whether the execution has been resumed since the last [`Event::Continued`].
    #[must_use]
    pub const fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Returns the steps that changed since [`StepProgress::forget_changed`], which belong in the
    /// next commit.
    pub fn changed(&self) -> impl Iterator<Item = (&Instance, &Step)> {
        self.changed.iter().filter_map(|instance| Some((instance, self.steps.get(instance)?)))
    }

    /// Clears the list of changed steps. Called when the steps from [`StepProgress::changed`] are
    /// in the commit being made.
    pub fn forget_changed(&mut self) {
        self.is_pressing = false;
        for instance in std::mem::take(&mut self.changed) {
            if self.forgotten.remove(&instance) {
                self.steps.remove(&instance);
            }
        }
    }

    /// Applies `event` to the progress and the execution at the time `now`, and returns the
    /// effects.
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

/// Returns whether a redrive can reuse an ended step: the step completed, was skipped, or failed
/// with its failure tolerated.
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

/// Extends the deadline of a step by the duration of a pause. Returns false if the step has no
/// deadline because it waits for a fixed time or its next attempt.
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

/// Returns whether a step has ended.
fn has_ended(progress: &StepProgress, instance: &Instance) -> bool {
    progress.steps.get(instance).is_some_and(|step| step.status.is_final())
}

/// Returns whether `step` is inside `around`, at any depth.
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

/// Returns the model of an attempt; empty for an HTTP step.
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
