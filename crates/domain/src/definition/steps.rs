//! Parses the steps from JSON into drafts, in the order written, each in its block.
//!
//! References are only parsed here; `scope` checks them once all steps are known.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde_json::{Map as Object, Value};

use super::fields::{Fields, Problems};
use super::http::{self, Http};
use super::plan::{
    Block, Branch, Choice, Kind, Map, Model, ModelFallback, Parallel, Parent, Pass, Step,
    StepIndex, SubWorkflow,
};
use super::wait::Wait;
use super::{DEPTH_MAX, PATTERNS_MAX, STEPS_MAX};
use crate::classify::ErrorClass;
use crate::condition::Condition;
use crate::json_pointer::{JsonPointer, brief};
use crate::reference::is_root_char;
use crate::retry::{self, Policy};
use crate::template::Template;

/// Maximum length of a step id or an item name, in bytes.
const ID_BYTES_MAX: usize = 64;
/// Maximum timeout of a step other than an HTTP step: 24 hours.
const TIMEOUT_SECONDS_MAX: f64 = 86_400.0;
/// Minimum timeout, in seconds.
const TIMEOUT_SECONDS_MIN: f64 = 0.001;
/// Default number of map items processed in parallel.
const MAP_CONCURRENCY_DEFAULT: u32 = 10;
/// Maximum number of map items processed in parallel.
const MAP_CONCURRENCY_MAX: u32 = 1000;
/// Names with a special meaning in references.
pub(super) const RESERVED_NAMES: [&str; 3] = ["inputs", "execution", "secrets"];
/// The types of steps, as listed in error messages.
const TYPES: &str = "model, http, parallel, choice, map, wait, pass, workflow";

/// A parsed step whose dependencies are not final yet.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) step: Step,
    /// The position in the definition, as a JSON pointer.
    pub(super) place: String,
    /// The dependencies as written. An empty list differs in meaning from an absent list.
    pub(super) depends_on: Option<Vec<String>>,
}

impl Draft {
    /// Completes the step with its dependencies.
    pub(super) fn finish(self, waits_for: Vec<StepIndex>) -> Step {
        Step { waits_for, ..self.step }
    }
}

/// Parses steps into one list.
pub(super) struct Reader<'a> {
    problems: &'a Problems,
    model_exists: &'a dyn Fn(&str) -> bool,
    /// A slot for each step, reserved before the step is parsed, so that the step precedes the
    /// steps inside it.
    slots: Vec<Option<Draft>>,
    ids: HashMap<String, StepIndex>,
    patterns: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(problems: &'a Problems, model_exists: &'a dyn Fn(&str) -> bool) -> Self {
        Self { problems, model_exists, slots: Vec::new(), ids: HashMap::new(), patterns: 0 }
    }

    /// Returns all steps in the order written; `None` if there was any problem.
    pub(super) fn finish(self) -> Option<Vec<Draft>> {
        if self.problems.is_empty() { self.slots.into_iter().collect() } else { None }
    }

    /// Parses a block of steps. `levels` is the number of further nesting levels allowed.
    pub(super) fn block(
        &mut self,
        steps: Vec<Value>,
        place: &JsonPointer<'_>,
        parent: Option<Parent>,
        levels: usize,
    ) -> Block {
        let Some(inside) = levels.checked_sub(1) else {
            let message = format!("definition: steps nest deeper than {DEPTH_MAX} levels");
            self.problems.add(place, message);
            return Block::default();
        };
        let mut block = Block::default();
        for (index, step) in steps.into_iter().enumerate() {
            if self.slots.len() >= STEPS_MAX {
                let message = format!("definition: there are more than {STEPS_MAX} steps");
                self.problems.add(place, message);
                break;
            }
            if self.problems.is_full() {
                break;
            }
            let position = StepIndex(self.slots.len());
            self.slots.push(None);
            block.0.push(position);
            let draft = self.step(step, &place.item(index), position, parent, inside);
            if let Some(slot) = self.slots.get_mut(position.0) {
                *slot = draft;
            }
        }
        block
    }

    fn step(
        &mut self,
        written: Value,
        place: &JsonPointer<'_>,
        position: StepIndex,
        parent: Option<Parent>,
        levels: usize,
    ) -> Option<Draft> {
        let Value::Object(object) = written else {
            self.problems.add(place, format!("the step at {place} must be an object"));
            return None;
        };
        let owner = owner(&object, place);
        let mut fields = Fields::new(self.problems, &owner, *place, object);
        let id = self.id(&mut fields, position);
        let name = fields.text("name");
        let kind = fields.required_text("type");
        let depends_on = fields.list("depends_on").map(|names| read_names(&fields, names));
        let continue_on_error = fields.flag("continue_on_error").unwrap_or(false);
        let kind = kind?;
        let timeout = if kind == "http" {
            Some(http::read_timeout(&mut fields))
        } else {
            fields.seconds("timeout_seconds", &(TIMEOUT_SECONDS_MIN..=TIMEOUT_SECONDS_MAX))
        };
        let retry = match kind.as_str() {
            "model" | "http" | "workflow" => read_retry(&mut fields),
            _ => Policy::once(),
        };
        let pauses_when_exhausted = match kind.as_str() {
            "model" | "http" | "workflow" => read_exhausted(&mut fields),
            _ => false,
        };
        let mut nest = Nest { reader: self, position, levels };
        let (kind, what) = match kind.as_str() {
            "model" => (nest.reader.model(&mut fields).map(Kind::Model), "a model step"),
            "http" => (Http::read(&mut fields).map(Box::new).map(Kind::Http), "an http step"),
            "parallel" => (nest.parallel(&mut fields).map(Kind::Parallel), "a parallel step"),
            "choice" => (nest.choice(&mut fields).map(Kind::Choice), "a choice step"),
            "map" => (nest.map(&mut fields).map(Kind::Map), "a map step"),
            "wait" => (Wait::read(&mut fields).map(Kind::Wait), "a wait step"),
            "pass" => (read_pass(&mut fields).map(Kind::Pass), "a pass step"),
            "workflow" => (read_child(&mut fields).map(Kind::Workflow), "a workflow step"),
            other => {
                fields.refuse("type", format!("'{}' is not one of {TYPES}", brief(other)));
                return None;
            }
        };
        fields.end(what);
        let place = place.to_string();
        let id = id?;
        let kind = kind?;
        let waits_for = Vec::new();
        let step = Step {
            id,
            name,
            position,
            parent,
            waits_for,
            continue_on_error,
            pauses_when_exhausted,
            timeout,
            retry,
            kind,
        };
        Some(Draft { step, place, depends_on })
    }

    /// Parses `step_id` or its alias `id`, which must be unique.
    fn id(&mut self, fields: &mut Fields<'_>, position: StepIndex) -> Option<String> {
        let step_id = fields.text("step_id");
        let id = fields.text("id");
        let id = match (step_id, id) {
            (Some(step_id), Some(id)) if step_id != id => {
                fields.say("id", "step_id and id differ");
                return None;
            }
            (Some(id), _) | (None, Some(id)) => id,
            (None, None) => {
                fields.say("step_id", "step_id is required");
                return None;
            }
        };
        if let Some(problem) = name_problem(&id) {
            fields.refuse("step_id", problem);
            return None;
        }
        match self.ids.entry(id.clone()) {
            Entry::Occupied(_) => {
                fields.say("step_id", "another step has the same step_id");
                None
            }
            Entry::Vacant(free) => {
                free.insert(position);
                Some(id)
            }
        }
    }

    fn model(&self, fields: &mut Fields<'_>) -> Option<Model> {
        let slug = self.slug(fields);
        ignore_version(fields);
        let params = read_params(fields);
        let fallback = fields.object("fallback");
        let fallback = fallback.and_then(|fallback| {
            let mut fallback = fields.nested("fallback", fallback);
            let is_enabled = fallback.flag("enabled").unwrap_or(true);
            // A disabled fallback may name a model that no longer exists.
            let slug = if is_enabled { self.slug(&mut fallback) } else { fallback.text("model") };
            ignore_version(&mut fallback);
            let params = read_params(&mut fallback);
            fallback.end("the fallback of a model step");
            is_enabled.then_some((slug, params))
        });
        let params = match params {
            Some(params) => params,
            None => Template::parse(&Value::Object(Object::new())).ok()?,
        };
        let fallback = match fallback {
            Some((slug, own)) => {
                Some(ModelFallback { slug: slug?, params: own.unwrap_or_else(|| params.clone()) })
            }
            None => None,
        };
        Some(Model { slug: slug?, params, fallback })
    }

    /// Reads the slug of a model in the catalog.
    fn slug(&self, fields: &mut Fields<'_>) -> Option<String> {
        let slug = fields.required_text("model")?;
        if !(self.model_exists)(&slug) {
            fields
                .refuse("model", format!("'{}' is unknown: there is no such model", brief(&slug)));
        }
        Some(slug)
    }
}

/// Parses a step that contains other steps.
struct Nest<'n, 'a> {
    reader: &'n mut Reader<'a>,
    position: StepIndex,
    levels: usize,
}

impl Nest<'_, '_> {
    fn parallel(&mut self, fields: &mut Fields<'_>) -> Option<Parallel> {
        let written = fields.required_list("branches", "one branch")?;
        let within = fields.nested("branches", Object::new());
        let mut branches = Vec::new();
        let mut names = HashSet::new();
        for (index, branch) in written.into_iter().enumerate() {
            if within.problems().is_full() {
                return None;
            }
            let place = within.place().item(index);
            let Value::Object(branch) = branch else {
                within.refuse(&index.to_string(), "must be an object");
                continue;
            };
            let mut branch = within.item(index, &place, branch);
            let name = branch.text("name");
            if name.as_ref().is_some_and(|name| !names.insert(name.clone())) {
                branch.refuse("name", "is also the name of an earlier branch");
            }
            let steps = self.steps(&mut branch, index, true);
            branch.end("a branch");
            branches.push(Branch { name, steps });
        }
        Some(Parallel { branches })
    }

    fn choice(&mut self, fields: &mut Fields<'_>) -> Option<Choice> {
        let condition = self.condition(fields);
        let met = fields.required_object("condition_met_branch");
        let met = met.map(|met| self.branch(fields.nested("condition_met_branch", met), 0));
        let otherwise = fields.object("default_branch");
        let otherwise =
            otherwise.map(|steps| self.branch(fields.nested("default_branch", steps), 1));
        Some(Choice { condition: condition?, met: met?, otherwise: otherwise.unwrap_or_default() })
    }

    fn branch(&mut self, mut fields: Fields<'_>, index: usize) -> Block {
        let steps = self.steps(&mut fields, index, false);
        fields.end("the branch of a choice");
        steps
    }

    fn condition(&mut self, fields: &mut Fields<'_>) -> Option<Condition> {
        let Some(written) = fields.take("condition") else {
            fields.refuse("condition", "is required");
            return None;
        };
        fields
            .check_names(&written)
            .map_err(|error| fields.refuse_reference("condition", &error))
            .ok()?;
        let condition = Condition::parse(&written)
            .map_err(|error| fields.refuse_at("condition", &error.place, error.message))
            .ok()?;
        self.reader.patterns = self.reader.patterns.saturating_add(condition.patterns());
        if self.reader.patterns > PATTERNS_MAX {
            let message = format!("brings the definition to more than {PATTERNS_MAX} patterns");
            fields.refuse("condition", message);
            return None;
        }
        Some(condition)
    }

    fn map(&mut self, fields: &mut Fields<'_>) -> Option<Map> {
        let items = fields.take("items").unwrap_or_default();
        let items = fields.parse("items", &items);
        if items.as_ref().is_some_and(|items| !may_be_array(items)) {
            fields.refuse("items", "must be a reference or an array");
        }
        let item_name = fields.text("item_name").unwrap_or_else(|| "item".to_owned());
        if let Some(problem) = name_problem(&item_name) {
            fields.refuse("item_name", problem);
        }
        let max_concurrency = fields.whole("max_concurrency", 1..=MAP_CONCURRENCY_MAX);
        let output = fields.template("output");
        let steps = self.steps(fields, 0, true);
        let max_concurrency = max_concurrency.unwrap_or(MAP_CONCURRENCY_DEFAULT);
        Some(Map { items: items?, item_name, max_concurrency, steps, output })
    }

    /// Parses the block `index` of the step from the field `steps`.
    fn steps(&mut self, fields: &mut Fields<'_>, index: usize, needs_one: bool) -> Block {
        let steps = if needs_one {
            fields.required_list("steps", "one step")
        } else {
            fields.list("steps")
        };
        let steps = steps.unwrap_or_default();
        let parent = Parent { step: self.position, block: index };
        let place = fields.place().field("steps");
        self.reader.block(steps, &place, Some(parent), self.levels)
    }
}

/// Returns the start of a sentence about the step.
fn owner(step: &Object<String, Value>, place: &JsonPointer<'_>) -> String {
    let id = step.get("step_id").or_else(|| step.get("id")).and_then(Value::as_str);
    match id {
        Some(id) => format!("step '{}'", brief(id)),
        None => format!("the step at {place}"),
    }
}

/// Describes the problem of a step id or item name, phrased as the rest of a sentence.
fn name_problem(name: &str) -> Option<String> {
    if name.is_empty() || name.len() > ID_BYTES_MAX || !name.chars().all(is_root_char) {
        return Some(format!(
            "must be a name of 1 to {ID_BYTES_MAX} characters of a-z A-Z 0-9 _ -"
        ));
    }
    RESERVED_NAMES.contains(&name).then(|| format!("'{name}' is reserved in references"))
}

/// Returns whether a template can resolve to an array; a reference surrounded by text resolves to a
/// string.
fn may_be_array(items: &Template) -> bool {
    items.is_array() || items.reference().is_some()
}

fn read_names(fields: &Fields<'_>, names: Vec<Value>) -> Vec<String> {
    let mut read = Vec::new();
    for (index, name) in names.into_iter().enumerate() {
        if let Value::String(name) = name {
            read.push(name);
        } else {
            fields.refuse_at("depends_on", &format!("/{index}"), "must be a step_id");
        }
    }
    read
}

/// Ignores the model version that older definitions set, because it has no meaning here.
fn ignore_version(fields: &mut Fields<'_>) {
    let _ignored = fields.take("version");
}

fn read_params(fields: &mut Fields<'_>) -> Option<Template> {
    fields.object_template("params")
}

fn read_pass(fields: &mut Fields<'_>) -> Option<Pass> {
    let result = fields.take("result").unwrap_or_default();
    Some(Pass { result: fields.parse("result", &result)? })
}

/// Reads whether the execution is paused when the step's last attempt fails.
fn read_exhausted(fields: &mut Fields<'_>) -> bool {
    match fields.text("on_exhausted").as_deref() {
        None | Some("fail") => false,
        Some("pause") => true,
        Some(_) => {
            fields.refuse("on_exhausted", "must be fail or pause");
            false
        }
    }
}

/// Parses a workflow step. Whether the workflow exists is not checked here.
fn read_child(fields: &mut Fields<'_>) -> Option<SubWorkflow> {
    let workflow = fields.required_text("workflow");
    let version = fields.text("version_id");
    let inputs = match fields.object_template("inputs") {
        Some(inputs) => inputs,
        None => Template::parse(&Value::Object(Object::new())).ok()?,
    };
    let waits = fields.flag("wait").unwrap_or(true);
    Some(SubWorkflow { workflow: workflow?, version, inputs, waits })
}

fn read_retry(fields: &mut Fields<'_>) -> Policy {
    let Some(retry) = fields.object("retry") else { return Policy::once() };
    let mut fields = fields.nested("retry", retry);
    let delays = 0.0..=retry::DELAY_MAX.as_secs_f64();
    let written = retry::Written {
        max_attempts: fields.whole("max_attempts", 1..=retry::ATTEMPTS_MAX),
        initial_delay: fields.seconds("initial_delay_seconds", &delays),
        backoff_multiplier: fields.number("backoff_multiplier", &(1.0..=retry::MULTIPLIER_MAX)),
        max_delay: fields.seconds("max_delay_seconds", &delays),
        retry_on: fields.list("retry_on").map(|classes| read_classes(&fields, &classes)),
    };
    fields.end("a retry");
    written.policy()
}

fn read_classes(fields: &Fields<'_>, classes: &[Value]) -> Vec<ErrorClass> {
    let mut known = Vec::new();
    for (index, written) in classes.iter().enumerate() {
        match written.as_str().and_then(|class| class.parse::<ErrorClass>().ok()) {
            Some(class) if known.contains(&class) => {}
            Some(class) => known.push(class),
            None => {
                let all = ErrorClass::ALL.map(ErrorClass::as_str).join(", ");
                fields.refuse_at("retry_on", &format!("/{index}"), format!("must be one of {all}"));
            }
        }
    }
    known
}
