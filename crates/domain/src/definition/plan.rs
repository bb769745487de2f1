//! The plan: a checked definition, ready to run.
//!
//! All steps, including nested ones, are in one list in the order written; blocks (the top level, a
//! branch, the body of a map) refer to their steps by position. Nothing here runs anything. A plan
//! is immutable and shared by all executions of a version.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde_json::Value;

use super::http::Http;
use super::wait::{EventWait, Wait};
use crate::condition::Condition;
use crate::json_pointer::JsonPointer;
use crate::reference::{Reference, Root};
use crate::retry::Policy;
use crate::template::Template;

/// A checked workflow.
#[derive(Debug, Clone)]
pub struct Plan {
    steps: Vec<Step>,
    positions: HashMap<String, StepIndex>,
    /// For each step, the steps of the same block that wait for it.
    dependents: Vec<Vec<StepIndex>>,
    /// For each step, the steps that it refers to when it starts.
    uses: Vec<Vec<StepIndex>>,
    root: Block,
    input_schema: Option<Value>,
    output: Output,
    /// The references to secrets, by name and step.
    secrets: Vec<SecretUse>,
}

/// A reference of a step to a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretUse {
    /// The name of the secret.
    pub name: String,
    /// The step whose request uses the secret.
    pub step: StepIndex,
    /// The first reference, as a JSON pointer into the definition.
    pub path: String,
}

/// The index of a step in its plan's list, counted from 0 in the order written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepIndex(pub(super) usize);

/// A list of steps. A block is done when all of its steps are done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Block(pub(super) Vec<StepIndex>);

/// The block that contains a nested step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Parent {
    /// The step that contains the block.
    pub step: StepIndex,
    /// The index of the block, from 0: the branch of a `parallel`; for a `choice`, 0 is
    /// `condition_met_branch` and 1 is `default_branch`; 0 for the body of a `map`.
    pub block: usize,
}

/// One step.
#[derive(Debug, Clone)]
pub struct Step {
    /// The step's id, which is unique in the definition: 1 to 64 characters of `a-zA-Z0-9_-`.
    pub id: String,
    pub name: Option<String>,
    pub position: StepIndex,
    /// The enclosing block; `None` for a top-level step.
    pub parent: Option<Parent>,
    /// The steps of the same block that must end before this step starts, in order: the steps that
    /// this step (or a step inside it) refers to, the steps named in `depends_on`, and the steps
    /// added by the ordering rule (`docs/spec/steps.md`, "Order"). There are no cycles.
    pub waits_for: Vec<StepIndex>,
    /// Whether a failure is tolerated: steps that wait for this step still start.
    pub continue_on_error: bool,
    /// Whether the execution is paused instead of failing when the last attempt fails. Resuming the
    /// execution retries the step.
    pub pauses_when_exhausted: bool,
    /// The timeout, which is always set for HTTP steps. For other steps, `None` means that the
    /// limits of the model and the workflow apply.
    pub timeout: Option<Duration>,
    /// The retry policy: a single attempt, except for model, HTTP and workflow steps.
    pub retry: Policy,
    pub kind: Kind,
}

/// The type of a step, with its settings.
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

/// How the engine treats a type of step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Makes attempts, each of which calls another service.
    Calls,
    /// Contains other steps.
    Contains,
    /// Yields a value, immediately or later.
    Yields,
    /// Makes attempts, each of which starts an execution.
    Starts,
}

/// Runs a model.
#[derive(Debug, Clone)]
pub struct Model {
    /// The model's slug.
    pub slug: String,
    /// The input; resolves to an object.
    pub params: Template,
    pub fallback: Option<ModelFallback>,
}

/// The fallback model of a model step.
#[derive(Debug, Clone)]
pub struct ModelFallback {
    pub slug: String,
    /// The fallback's own input, or a copy of the step's input if the definition does not set an
    /// input for the fallback.
    pub params: Template,
}

/// Runs branches in parallel.
#[derive(Debug, Clone)]
pub struct Parallel {
    /// The branches, at least one.
    pub branches: Vec<Branch>,
}

/// A branch of a `parallel`.
#[derive(Debug, Clone)]
pub struct Branch {
    /// The branch's name, which is unique among the step's branches.
    pub name: Option<String>,
    /// The steps, at least one.
    pub steps: Block,
}

/// Runs one of two branches; the steps of the other branch are skipped.
#[derive(Debug, Clone)]
pub struct Choice {
    pub condition: Condition,
    /// The steps that run if the condition is true; may be empty.
    pub met: Block,
    /// The steps that run if the condition is false; may be empty.
    pub otherwise: Block,
}

/// Runs its steps once per item.
#[derive(Debug, Clone)]
pub struct Map {
    /// The items, which must resolve to an array; otherwise, the step fails.
    pub items: Template,
    pub item_name: String,
    /// Maximum number of items processed in parallel, at least 1.
    pub max_concurrency: u32,
    /// The steps, at least one.
    pub steps: Block,
    /// The output of each item, resolved after its steps. `None` means the output of the last step.
    pub output: Option<Template>,
}

/// Returns a value.
#[derive(Debug, Clone)]
pub struct Pass {
    pub result: Template,
}

/// Runs another workflow as a child execution.
#[derive(Debug, Clone)]
pub struct SubWorkflow {
    /// The id or slug of a workflow of the organization that owns the definition.
    pub workflow: String,
    /// The version's id; `None` means the version that is latest when the step starts.
    pub version: Option<String>,
    /// The inputs of the child; resolves to an object.
    pub inputs: Template,
    /// Whether the step waits for the child. Otherwise, the step ends at once with the child's id
    /// as its output.
    pub waits: bool,
}

/// The output of an execution.
#[derive(Debug, Clone)]
pub enum Output {
    /// `metadata.output_mapping`: resolves to an object.
    Mapping(Template),
    /// The output of the last top-level step.
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

    /// Returns the top-level steps.
    #[must_use]
    pub const fn root(&self) -> &Block {
        &self.root
    }

    /// Returns all steps in the order written; a step comes before the steps inside it.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter()
    }

    /// Returns the step at a position; `None` if the position is from another plan.
    #[must_use]
    pub fn at(&self, position: StepIndex) -> Option<&Step> {
        self.steps.get(position.0)
    }

    /// Returns the step with this id.
    #[must_use]
    pub fn step(&self, id: &str) -> Option<&Step> {
        self.at(*self.positions.get(id)?)
    }

    /// Returns the steps of a block, in the order written.
    pub fn block<'p>(&'p self, block: &'p Block) -> impl Iterator<Item = &'p Step> {
        block.0.iter().filter_map(|position| self.at(*position))
    }

    /// Returns the steps that `step` waits for, in the order written.
    pub fn waits_for<'p>(&'p self, step: &'p Step) -> impl Iterator<Item = &'p Step> {
        step.waits_for.iter().filter_map(|position| self.at(*position))
    }

    /// Returns the steps of the same block that wait for the step at `position`.
    #[must_use]
    pub fn dependents(&self, position: StepIndex) -> &[StepIndex] {
        self.dependents.get(position.0).map_or(&[], Vec::as_slice)
    }

    /// Returns the steps that the step at `position` refers to when it starts.
    #[must_use]
    pub fn uses(&self, position: StepIndex) -> &[StepIndex] {
        self.uses.get(position.0).map_or(&[], Vec::as_slice)
    }

    /// Returns the steps that a template of this plan refers to.
    #[must_use]
    pub fn used_by(&self, template: &Template) -> Vec<StepIndex> {
        used(&self.positions, template.references())
    }

    /// Returns the enclosing `map` steps of a step, outermost first.
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

    /// Returns the input schema as written, an object.
    #[must_use]
    pub const fn input_schema(&self) -> Option<&Value> {
        self.input_schema.as_ref()
    }

    /// Returns the event with this name, and the step that waits for it.
    #[must_use]
    pub fn event(&self, name: &str) -> Option<(&Step, &EventWait)> {
        self.events().find(|(_, event)| event.name == name)
    }

    /// Returns the events that steps wait for.
    pub fn events(&self) -> impl Iterator<Item = (&Step, &EventWait)> {
        self.steps.iter().filter_map(|step| Some((step, step.kind.event()?)))
    }

    /// Returns the steps that run other workflows.
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

    /// Returns the references of steps to secrets, each pair once.
    #[must_use]
    pub fn secrets(&self) -> &[SecretUse] {
        &self.secrets
    }

    /// Returns the names of the secrets that the step at `position` refers to, without duplicates.
    #[must_use]
    pub fn secrets_of(&self, position: StepIndex) -> Vec<String> {
        let of_step = self.secrets.iter().filter(|secret| secret.step == position);
        of_step.map(|secret| secret.name.clone()).collect()
    }

    /// Returns the output of an execution.
    #[must_use]
    pub const fn output(&self) -> &Output {
        &self.output
    }
}

/// Returns the steps at the roots of the references, without duplicates.
fn used(positions: &HashMap<String, StepIndex>, references: Vec<&Reference>) -> Vec<StepIndex> {
    let steps = references.into_iter().filter_map(|reference| match reference.root() {
        Root::Name(name) => positions.get(name).copied(),
        Root::Inputs | Root::Execution | Root::Secrets => None,
    });
    steps.collect::<BTreeSet<_>>().into_iter().collect()
}

impl StepIndex {
    /// Creates the index of the step with this number, from 0 in the order written.
    #[must_use]
    pub fn new(number: u16) -> Self {
        Self(usize::from(number))
    }

    /// Returns the number, from 0. A plan always has fewer steps than a `u16` can count.
    #[must_use]
    pub fn number(self) -> u16 {
        u16::try_from(self.0).unwrap_or(u16::MAX)
    }
}

impl Block {
    /// Returns the positions of the block's steps, ascending.
    #[must_use]
    pub fn positions(&self) -> &[StepIndex] {
        &self.0
    }
}

impl Kind {
    /// Returns how the engine treats steps of this type.
    #[must_use]
    pub const fn role(&self) -> Role {
        match self {
            Self::Model(_) | Self::Http(_) => Role::Calls,
            Self::Parallel(_) | Self::Choice(_) | Self::Map(_) => Role::Contains,
            Self::Wait(_) | Self::Pass(_) => Role::Yields,
            Self::Workflow(_) => Role::Starts,
        }
    }

    /// Returns whether steps of this type start in the order written and block later steps; see
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

    /// Returns the name that is used in definitions.
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

    /// Returns the event that a step of this type waits for.
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

    /// Returns the block with this number, in the order of [`Parent::block`].
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

    /// Returns the blocks that the step contains, in the order of [`Parent::block`].
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

    /// Calls `see` with every reference that is resolved when the step starts, and its position in
    /// the step. The references in a map's `output` are excluded.
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
