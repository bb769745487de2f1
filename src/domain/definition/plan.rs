//! The plan: a definition that has been checked, in the form in which it is run.
//!
//! Steps are in one list in the order in which they are written, those within others included;
//! blocks (the whole, a branch, a map's body) name their steps by position. Nothing here runs
//! anything, and nothing can be changed: a plan is shared by all executions of a version.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde_json::Value;

use super::http::Http;
use super::wait::{EventWait, Wait};
use crate::domain::condition::Condition;
use crate::domain::json_pointer::JsonPointer;
use crate::domain::reference::{Reference, Root};
use crate::domain::retry::Policy;
use crate::domain::template::Template;

/// A checked workflow.
#[derive(Debug, Clone)]
pub struct Plan {
    steps: Vec<Step>,
    positions: HashMap<String, StepIndex>,
    /// For each step, those of its block that wait for it.
    dependents: Vec<Vec<StepIndex>>,
    /// For each step, those that it refers to when it starts.
    uses: Vec<Vec<StepIndex>>,
    root: Block,
    input_schema: Option<Value>,
    output: Output,
    /// Which steps refer to which secrets, by name and step.
    secrets: Vec<SecretUse>,
}

/// A step that refers to a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretUse {
    /// The name of the secret.
    pub name: String,
    /// The step whose request has it.
    pub step: StepIndex,
    /// The first place in the definition where it does, as a JSON pointer.
    pub path: String,
}

/// The place of a step in its plan's list: from 0, in the order written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepIndex(pub(super) usize);

/// Steps of one list. A block is done when all of them are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Block(pub(super) Vec<StepIndex>);

/// The block that contains a nested step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Parent {
    /// The step that holds the block.
    pub step: StepIndex,
    /// Which of its blocks, from 0: the branch of a `parallel`; of a `choice`, 0 is
    /// `condition_met_branch` and 1 `default_branch`; 0 for the body of a `map`.
    pub block: usize,
}

/// One step.
#[derive(Debug, Clone)]
pub struct Step {
    /// Unique in the whole definition: 1 to 64 characters of `a-zA-Z0-9_-`.
    pub id: String,
    pub name: Option<String>,
    pub position: StepIndex,
    /// None for a step of the whole.
    pub parent: Option<Parent>,
    /// The steps of the same block that must have ended before this one starts, in order: what it
    /// (or a step within it) refers to, what its `depends_on` names, and what the ordering rule
    /// adds (`docs/spec/steps.md`, "Order"). No step waits for itself, however far around.
    pub waits_for: Vec<StepIndex>,
    /// Its failure is kept to itself: what waits for it starts all the same.
    pub continue_on_error: bool,
    /// When its last attempt has failed, the execution is paused in place of failing: a resume tries it
    /// again.
    pub pauses_when_exhausted: bool,
    /// For HTTP steps never absent; for others absent means the limits of the model and workflow.
    pub timeout: Option<Duration>,
    /// One attempt for all but model and HTTP steps.
    pub retry: Policy,
    pub kind: Kind,
}

/// What a step does.
#[derive(Debug, Clone)]
pub enum Kind {
    Model(Model),
    Http(Box<Http>),
    Parallel(Parallel),
    Choice(Choice),
    Map(Map),
    Wait(Wait),
    Pass(Pass),
    Workflow(SubWorkflow),
}

/// How the engine treats a step of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It makes attempts, each a call to something else.
    Calls,
    /// It has steps of its own.
    Contains,
    /// It gives out a value, now or later.
    Yields,
    /// It makes attempts, each an execution of its own.
    Starts,
}

/// Runs a model.
#[derive(Debug, Clone)]
pub struct Model {
    /// The model's slug.
    pub slug: String,
    /// The input: resolves to an object.
    pub params: Template,
    pub fallback: Option<ModelFallback>,
}

/// The model that runs when a model step fails.
#[derive(Debug, Clone)]
pub struct ModelFallback {
    pub slug: String,
    /// Its own input; the step's, when the definition gives none.
    pub params: Template,
}

/// Runs its branches at once.
#[derive(Debug, Clone)]
pub struct Parallel {
    /// At least one.
    pub branches: Vec<Branch>,
}

/// A branch of a `parallel`.
#[derive(Debug, Clone)]
pub struct Branch {
    /// Unique among the branches of its step.
    pub name: Option<String>,
    /// At least one step.
    pub steps: Block,
}

/// Runs one of two branches; the steps of the other are skipped.
#[derive(Debug, Clone)]
pub struct Choice {
    pub condition: Condition,
    /// May be empty.
    pub met: Block,
    /// May be empty.
    pub otherwise: Block,
}

/// Runs its steps once for each item.
#[derive(Debug, Clone)]
pub struct Map {
    /// Resolves to an array, or the step fails.
    pub items: Template,
    pub item_name: String,
    /// How many items are worked on at once, at least 1.
    pub max_concurrency: u32,
    /// At least one step.
    pub steps: Block,
    /// What each item gives, resolved after its steps; absent: the output of the last of them.
    pub output: Option<Template>,
}

/// Gives out a value.
#[derive(Debug, Clone)]
pub struct Pass {
    pub result: Template,
}

/// Runs another workflow, as an execution of its own: its child.
#[derive(Debug, Clone)]
pub struct SubWorkflow {
    /// The id or slug of a workflow of the organization that the definition belongs to.
    pub workflow: String,
    /// Absent: the latest version at the moment when the step starts.
    pub version: Option<String>,
    /// The inputs of the child: resolves to an object.
    pub inputs: Template,
    /// Whether the step ends with the child; else at once, with the child's id as its output.
    pub waits: bool,
}

/// What an execution gives out.
#[derive(Debug, Clone)]
pub enum Output {
    /// `metadata.output_mapping`: resolves to an object.
    Mapping(Template),
    /// The output of the last step of the whole.
    LastStep(StepIndex),
}

impl Plan {
    pub(super) fn new(
        steps: Vec<Step>,
        root: Block,
        input_schema: Option<Value>,
        output: Output,
        secrets: Vec<SecretUse>,
    ) -> Self {
        let positions: HashMap<String, StepIndex> =
            steps.iter().map(|step| (step.id.clone(), step.position)).collect();
        let mut dependents = vec![Vec::new(); steps.len()];
        for step in &steps {
            for waited_for in &step.waits_for {
                if let Some(dependents) = dependents.get_mut(waited_for.0) {
                    dependents.push(step.position);
                }
            }
        }
        let uses = steps.iter().map(|step| {
            let mut names = Vec::new();
            step.kind.visit(&mut |_, reference| names.push(reference));
            used(&positions, names)
        });
        let uses = uses.collect();
        Self { steps, positions, dependents, uses, root, input_schema, output, secrets }
    }

    /// The steps that are in no other.
    #[must_use]
    pub const fn root(&self) -> &Block {
        &self.root
    }

    /// Every step, in the order written; a step comes before those within it.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter()
    }

    /// The step at a position; none for a position of another plan.
    #[must_use]
    pub fn at(&self, position: StepIndex) -> Option<&Step> {
        self.steps.get(position.0)
    }

    /// The step with this id.
    #[must_use]
    pub fn step(&self, id: &str) -> Option<&Step> {
        self.at(*self.positions.get(id)?)
    }

    /// The steps of a block, in the order written.
    pub fn block<'p>(&'p self, block: &'p Block) -> impl Iterator<Item = &'p Step> {
        block.0.iter().filter_map(|position| self.at(*position))
    }

    /// The steps that `step` waits for, in the order written.
    pub fn waits_for<'p>(&'p self, step: &'p Step) -> impl Iterator<Item = &'p Step> {
        step.waits_for.iter().filter_map(|position| self.at(*position))
    }

    /// The steps of its block that wait for the step at `position`.
    #[must_use]
    pub fn dependents(&self, position: StepIndex) -> &[StepIndex] {
        self.dependents.get(position.0).map_or(&[], Vec::as_slice)
    }

    /// The steps that the one at `position` refers to when it starts.
    #[must_use]
    pub fn uses(&self, position: StepIndex) -> &[StepIndex] {
        self.uses.get(position.0).map_or(&[], Vec::as_slice)
    }

    /// The steps that a template of this plan refers to.
    #[must_use]
    pub fn used_by(&self, template: &Template) -> Vec<StepIndex> {
        used(&self.positions, template.references())
    }

    /// The `map` steps around a step, outermost first.
    #[must_use]
    pub fn maps_around(&self, position: StepIndex) -> Vec<&Step> {
        let mut maps = Vec::new();
        let mut parent = self.at(position).and_then(|step| step.parent);
        while let Some(step) = parent.and_then(|parent| self.at(parent.step)) {
            if matches!(step.kind, Kind::Map(_)) {
                maps.push(step);
            }
            parent = step.parent;
        }
        maps.reverse();
        maps
    }

    /// The schema of the inputs, an object, as it was written.
    #[must_use]
    pub const fn input_schema(&self) -> Option<&Value> {
        self.input_schema.as_ref()
    }

    /// The step that waits for an event, and the event.
    #[must_use]
    pub fn event(&self, name: &str) -> Option<(&Step, &EventWait)> {
        self.events().find(|(_, event)| event.name == name)
    }

    /// The events that its steps wait for.
    pub fn events(&self) -> impl Iterator<Item = (&Step, &EventWait)> {
        self.steps.iter().filter_map(|step| Some((step, step.kind.event()?)))
    }

    /// The steps that run other workflows, and which.
    pub fn children(&self) -> impl Iterator<Item = (&Step, &SubWorkflow)> {
        self.steps.iter().filter_map(|step| match &step.kind {
            Kind::Workflow(child) => Some((step, child)),
            Kind::Model(_)
            | Kind::Http(_)
            | Kind::Parallel(_)
            | Kind::Choice(_)
            | Kind::Map(_)
            | Kind::Wait(_)
            | Kind::Pass(_) => None,
        })
    }

    /// Which steps refer to which secrets, each pair once.
    #[must_use]
    pub fn secrets(&self) -> &[SecretUse] {
        &self.secrets
    }

    /// The names of the secrets that the step at `position` refers to, each once.
    #[must_use]
    pub fn secrets_of(&self, position: StepIndex) -> Vec<String> {
        let of_step = self.secrets.iter().filter(|secret| secret.step == position);
        of_step.map(|secret| secret.name.clone()).collect()
    }

    /// What an execution gives out.
    #[must_use]
    pub const fn output(&self) -> &Output {
        &self.output
    }
}

/// The steps that the references start from, each once.
fn used(positions: &HashMap<String, StepIndex>, references: Vec<&Reference>) -> Vec<StepIndex> {
    let steps = references.into_iter().filter_map(|reference| match reference.root() {
        Root::Name(name) => positions.get(name).copied(),
        Root::Inputs | Root::Execution | Root::Secrets => None,
    });
    steps.collect::<BTreeSet<_>>().into_iter().collect()
}

impl StepIndex {
    /// The step of this number, from 0 in the order written.
    #[must_use]
    pub fn new(number: u16) -> Self {
        Self(usize::from(number))
    }

    /// Its number, from 0; a plan has fewer steps than a `u16` can count.
    #[must_use]
    pub fn number(self) -> u16 {
        u16::try_from(self.0).unwrap_or(u16::MAX)
    }
}

impl Block {
    /// The positions of its steps, ascending.
    #[must_use]
    pub fn positions(&self) -> &[StepIndex] {
        &self.0
    }
}

impl Kind {
    /// How the engine treats steps of this type.
    #[must_use]
    pub const fn role(&self) -> Role {
        match self {
            Self::Model(_) | Self::Http(_) => Role::Calls,
            Self::Parallel(_) | Self::Choice(_) | Self::Map(_) => Role::Contains,
            Self::Wait(_) | Self::Pass(_) => Role::Yields,
            Self::Workflow(_) => Role::Starts,
        }
    }

    /// Whether steps of this type start in the order written, and those after them wait: see
    /// `docs/spec/steps.md`, "Order".
    #[must_use]
    pub(super) const fn is_barrier(&self) -> bool {
        match self {
            Self::Model(_) => false,
            Self::Http(_)
            | Self::Parallel(_)
            | Self::Choice(_)
            | Self::Map(_)
            | Self::Wait(_)
            | Self::Pass(_)
            | Self::Workflow(_) => true,
        }
    }

    /// As the definition spells it.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Model(_) => "model",
            Self::Http(_) => "http",
            Self::Parallel(_) => "parallel",
            Self::Choice(_) => "choice",
            Self::Map(_) => "map",
            Self::Wait(_) => "wait",
            Self::Pass(_) => "pass",
            Self::Workflow(_) => "workflow",
        }
    }

    /// The event that a step of this kind waits for.
    #[must_use]
    pub const fn event(&self) -> Option<&EventWait> {
        match self {
            Self::Wait(wait) => wait.event(),
            Self::Model(_)
            | Self::Http(_)
            | Self::Parallel(_)
            | Self::Choice(_)
            | Self::Map(_)
            | Self::Pass(_)
            | Self::Workflow(_) => None,
        }
    }

    /// The block with this number, in the order of [`Parent::block`].
    #[must_use]
    pub fn block(&self, number: usize) -> Option<&Block> {
        match self {
            Self::Parallel(parallel) => parallel.branches.get(number).map(|branch| &branch.steps),
            Self::Choice(choice) => [&choice.met, &choice.otherwise].get(number).copied(),
            Self::Map(map) => (number == 0).then_some(&map.steps),
            Self::Model(_) | Self::Http(_) | Self::Wait(_) | Self::Pass(_) | Self::Workflow(_) => {
                None
            }
        }
    }

    /// The blocks that it holds, in the order of [`Parent::block`].
    #[must_use]
    pub fn blocks(&self) -> Vec<&Block> {
        match self {
            Self::Parallel(parallel) => {
                parallel.branches.iter().map(|branch| &branch.steps).collect()
            }
            Self::Choice(choice) => vec![&choice.met, &choice.otherwise],
            Self::Map(map) => vec![&map.steps],
            Self::Model(_) | Self::Http(_) | Self::Wait(_) | Self::Pass(_) | Self::Workflow(_) => {
                Vec::new()
            }
        }
    }

    /// Shows every reference that is resolved when the step starts, with its place in the step: all
    /// but a map's `output`.
    pub(super) fn visit<'k>(&'k self, see: &mut dyn FnMut(&JsonPointer<'_>, &'k Reference)) {
        let root = JsonPointer::Root;
        match self {
            Self::Model(model) => {
                model.params.visit(&root.field("params"), see);
                if let Some(fallback) = &model.fallback {
                    fallback.params.visit(&root.field("fallback").field("params"), see);
                }
            }
            Self::Http(http) => {
                http.request.visit(&root, see);
                if let Some(fallback) = &http.fallback {
                    fallback.visit(&root.field("fallback"), see);
                }
            }
            Self::Parallel(_) => {}
            Self::Choice(choice) => {
                choice.condition.visit(&mut |reference| see(&root.field("condition"), reference));
            }
            Self::Map(map) => map.items.visit(&root.field("items"), see),
            Self::Wait(wait) => wait.visit(&root, see),
            Self::Pass(pass) => pass.result.visit(&root.field("result"), see),
            Self::Workflow(child) => child.inputs.visit(&root.field("inputs"), see),
        }
    }
}
