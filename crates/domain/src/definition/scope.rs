//! The scope of references. Each reference of a step must lead to an input, to the item of an
//! enclosing map, or to a step that has ended before the step with the reference starts.
//!
//! A step can refer to the earlier steps of its own block and of the enclosing blocks, and to the
//! steps inside those earlier steps: the steps of a `parallel` and of both branches of a `choice`
//! (steps of the other branch are `skipped`), but not those of a `map`, which run once per item.
//! Later steps are out of scope, unless `depends_on` orders them first.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::{Map as Object, Value};

use super::SECRETS_MAX;
use super::fields::{Fields, Problems};
use super::plan::{Kind, Parent, SecretUse, StepIndex};
use super::steps::{Draft, RESERVED_NAMES};
use crate::json_pointer::{JsonPointer, brief};
use crate::reference::{Field, Reference, Root, Segment};
use crate::template::Template;

/// For each step, the steps of its block that it waits for.
pub(super) type Waits = Vec<BTreeSet<StepIndex>>;

/// The input names that references may use.
#[derive(Debug)]
pub(super) enum Inputs {
    /// Unknown: any name is allowed.
    Any,
    /// Only these names are allowed.
    Named(HashSet<String>),
}

/// Keywords with which a schema can allow inputs beyond its `properties`.
const OPEN_KEYWORDS: [&str; 11] = [
    "$ref",
    "$dynamicRef",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "patternProperties",
    "propertyNames",
];

impl Inputs {
    /// Reads the names from `input_schema`, and reports problems at its top level.
    pub(super) fn of(fields: &Fields<'_>, schema: Option<&Object<String, Value>>) -> Self {
        let Some(schema) = schema else { return Self::Any };
        let is_object = |kind: &Value| kind == "object";
        let admits_objects = |kind: &Value| {
            is_object(kind) || kind.as_array().is_some_and(|kinds| kinds.iter().any(is_object))
        };
        if schema.get("type").is_some_and(|kind| !admits_objects(kind)) {
            fields.refuse_at(
                "input_schema",
                "/type",
                "must be object: the inputs of a workflow are an object",
            );
        }
        let required = schema.get("required").map(|list| list.as_array());
        if required.is_some_and(|list| !list.is_some_and(|list| list.iter().all(Value::is_string)))
        {
            fields.refuse_at("input_schema", "/required", "must be an array of names");
        }
        let Some(properties) = schema.get("properties") else { return Self::Any };
        let Value::Object(properties) = properties else {
            fields.refuse_at("input_schema", "/properties", "must be an object");
            return Self::Any;
        };
        let others = schema.get("additionalProperties");
        let is_open = others.is_some_and(|others| others != &Value::Bool(false))
            || OPEN_KEYWORDS.into_iter().any(|keyword| schema.contains_key(keyword));
        if is_open { Self::Any } else { Self::Named(properties.keys().cloned().collect()) }
    }
}

/// One level of the path from the top level to a step: a block, and a position in it.
#[derive(Debug, Clone, Copy)]
struct Stop {
    block: Option<Parent>,
    at: StepIndex,
}

/// The position after every step of a block, from which a map's `output` and `output_mapping` are
/// resolved.
const END: StepIndex = StepIndex(usize::MAX);

pub(super) struct Checker<'c> {
    drafts: &'c [Draft],
    positions: HashMap<&'c str, StepIndex>,
    inputs: &'c Inputs,
    problems: &'c Problems,
    waits: Waits,
    /// The steps that wait for events, by event name.
    events: HashMap<&'c str, &'c str>,
    secret_names: HashSet<String>,
    /// The position of each step's first reference to each secret.
    secrets: BTreeMap<(String, StepIndex), String>,
}

impl<'c> Checker<'c> {
    pub(super) fn new(drafts: &'c [Draft], inputs: &'c Inputs, problems: &'c Problems) -> Self {
        let positions =
            drafts.iter().map(|draft| (draft.step.id.as_str(), draft.step.position)).collect();
        let waits = drafts.iter().map(|_| BTreeSet::new()).collect();
        Self {
            drafts,
            positions,
            inputs,
            problems,
            waits,
            events: HashMap::new(),
            secret_names: HashSet::new(),
            secrets: BTreeMap::new(),
        }
    }

    /// Checks every reference and every `depends_on`, and records the resulting dependencies.
    pub(super) fn check_steps(&mut self) {
        for draft in self.drafts {
            if self.problems.is_full() {
                return;
            }
            let way = self.way_to(draft.step.position);
            self.check_dependencies(draft);
            self.check_event(draft, &way);
            let owner = format!("step '{}'", draft.step.id);
            draft.step.kind.visit(&mut |place, reference| {
                self.check(&way, reference, &owner, &format_args!("{}{place}", draft.place), place);
            });
            if let Kind::Map(map) = &draft.step.kind {
                self.check_item_name(draft, &map.item_name, &way);
                if let Some(output) = &map.output {
                    let block = Some(Parent { step: draft.step.position, block: 0 });
                    let mut way = way;
                    way.push(Stop { block, at: END });
                    output.visit(&JsonPointer::Root.field("output"), &mut |place, reference| {
                        let path = format_args!("{}{place}", draft.place);
                        self.check(&way, reference, &owner, &path, place);
                    });
                }
            }
        }
    }

    /// Checks `metadata.output_mapping`, which can refer to all top-level steps.
    pub(super) fn check_output(&mut self, mapping: &Template) {
        let way = [Stop { block: None, at: END }];
        let root = JsonPointer::Root;
        let metadata = root.field("metadata");
        mapping.visit(&metadata.field("output_mapping"), &mut |place, reference| {
            self.check(&way, reference, "definition", place, place);
        });
    }

    pub(super) fn into_waits_and_secrets(self) -> (Waits, Vec<SecretUse>) {
        let uses = self.secrets.into_iter();
        let uses = uses.map(|((name, step), path)| SecretUse { name, step, path });
        (self.waits, uses.collect())
    }

    fn draft(&self, position: StepIndex) -> Option<&'c Draft> {
        self.drafts.get(position.0)
    }

    /// Returns the path from the top level to a step, including the step itself.
    fn way_to(&self, position: StepIndex) -> Vec<Stop> {
        let mut way = Vec::new();
        let mut next = self.draft(position);
        while let Some(Draft { step, .. }) = next {
            way.push(Stop { block: step.parent, at: step.position });
            next = step.parent.and_then(|parent| self.draft(parent.step));
        }
        way.reverse();
        way
    }

    fn check_dependencies(&mut self, draft: &Draft) {
        for (index, name) in draft.depends_on.iter().flatten().enumerate() {
            let problem = match self.positions.get(name.as_str()) {
                None => "which is not a step of this workflow",
                Some(position) if *position == draft.step.position => "which is the step itself",
                Some(position) => {
                    let other = self.draft(*position).map(|other| other.step.parent);
                    if other == Some(draft.step.parent) {
                        self.wait(draft.step.position, *position);
                        continue;
                    }
                    "which is in another list of steps: a step can depend only on steps of its own \
                     list"
                }
            };
            let message =
                format!("step '{}': depends_on names '{}', {problem}", draft.step.id, brief(name));
            self.problems.add(format_args!("{}/depends_on/{index}", draft.place), message);
        }
    }

    /// Checks that only one step waits for each event, and that this step runs only once.
    fn check_event(&mut self, draft: &'c Draft, way: &[Stop]) {
        let Some(event) = draft.step.kind.event() else { return };
        let id = &draft.step.id;
        let path = format_args!("{}/event/name", draft.place);
        if way.iter().rev().skip(1).any(|stop| self.map_item(stop.at).is_some()) {
            let message = format!(
                "step '{id}': a step inside a map cannot wait for an event, because all \
                 items would share the event's name"
            );
            self.problems.add(path, message);
        } else if let Some(other) = self.events.insert(&event.name, id) {
            let message = format!(
                "step '{id}': the step '{other}' already waits for the event '{}'",
                event.name
            );
            self.problems.add(path, message);
        }
    }

    fn check_item_name(&self, draft: &Draft, name: &str, way: &[Stop]) {
        let outer = way.iter().rev().skip(1).filter_map(|stop| self.map_item(stop.at));
        let is_outer = outer.into_iter().any(|outer| outer == name);
        if is_outer || self.positions.contains_key(name) || RESERVED_NAMES.contains(&name) {
            let id = &draft.step.id;
            let message =
                format!("step '{id}': item_name '{name}' is already used for something else");
            self.problems.add(format_args!("{}/item_name", draft.place), message);
        }
    }

    /// Returns the item name if the step at `position` is a map.
    fn map_item(&self, position: StepIndex) -> Option<&'c str> {
        match &self.draft(position)?.step.kind {
            Kind::Map(map) => Some(&map.item_name),
            Kind::Model(_)
            | Kind::Http(_)
            | Kind::Parallel(_)
            | Kind::Choice(_)
            | Kind::Wait(_)
            | Kind::Pass(_)
            | Kind::Workflow(_) => None,
        }
    }

    fn check(
        &mut self,
        way: &[Stop],
        reference: &Reference,
        owner: &str,
        path: &dyn std::fmt::Display,
        place: &JsonPointer<'_>,
    ) {
        if self.problems.is_full() {
            return;
        }
        let followed = match reference.secret() {
            Some(name) => self.follow_secret(way, name, path),
            None => self.follow(way, reference),
        };
        let Err(problem) = followed else { return };
        let place = place.to_string();
        let inside = place.trim_start_matches('/');
        self.problems.add(path, format!("{owner}: {reference} in {inside} {problem}"));
    }

    /// Records a reference to a secret. Whether the secret exists is not checked here.
    fn follow_secret(
        &mut self,
        way: &[Stop],
        name: &str,
        path: &dyn std::fmt::Display,
    ) -> Result<(), String> {
        let step = way.last().map(|stop| stop.at).filter(|at| {
            matches!(self.draft(*at).map(|draft| &draft.step.kind), Some(Kind::Http(_)))
        });
        let Some(step) = step else {
            return Err("refers to a secret, which only http steps can use".to_owned());
        };
        let used = (name.to_owned(), step);
        if self.secrets.contains_key(&used) {
            return Ok(());
        }
        if !self.secret_names.contains(name) && self.secret_names.len() >= SECRETS_MAX {
            return Err(format!("exceeds the limit of {SECRETS_MAX} secrets per definition"));
        }
        self.secret_names.insert(name.to_owned());
        self.secrets.insert(used, path.to_string());
        Ok(())
    }

    /// Checks a reference in the scope at the end of `way`. The error is the rest of a sentence.
    fn follow(&mut self, way: &[Stop], reference: &Reference) -> Result<(), String> {
        let name = match reference.root() {
            Root::Execution | Root::Secrets => return Ok(()),
            Root::Inputs => return self.follow_input(reference),
            Root::Name(name) => name.as_str(),
        };
        let around = way.split_last().map_or(way, |(_, around)| around);
        if around.iter().any(|stop| self.map_item(stop.at) == Some(name)) {
            return Ok(());
        }
        let Some(position) = self.positions.get(name).copied() else {
            return Err(unknown(name));
        };
        self.follow_field(position, reference)?;
        if reference.field() == Some(Field::ResumeUrl) {
            // The link exists from the start, so it can be passed to the person or system that will
            // send the event.
            return Ok(());
        }
        self.reach(way, position)
    }

    fn follow_input(&self, reference: &Reference) -> Result<(), String> {
        match (self.inputs, reference.path().first()) {
            (Inputs::Any, _) | (Inputs::Named(_), None) => Ok(()),
            (Inputs::Named(names), Some(Segment::Key(name))) if names.contains(name) => Ok(()),
            (Inputs::Named(_), Some(_)) => {
                Err("refers to an input that input_schema does not have".to_owned())
            }
        }
    }

    fn follow_field(&self, position: StepIndex, reference: &Reference) -> Result<(), String> {
        let kind = self.draft(position).map(|draft| &draft.step.kind);
        let is_http = matches!(kind, Some(Kind::Http(_)));
        let is_event = kind.is_some_and(|kind| kind.event().is_some());
        let has =
            |field: &Field| (is_http || !field.is_of_http()) && (is_event || !field.is_of_event());
        match reference.field() {
            Some(field) if has(&field) => Ok(()),
            _ => {
                let fields = Field::ALL.into_iter().filter(has);
                let fields: Vec<_> = fields.map(Field::as_str).collect();
                let kind = kind.map_or("", Kind::as_str);
                let fields = fields.join(", ");
                Err(format!(
                    "refers to a field that a step of type {kind} does not have: use {fields}"
                ))
            }
        }
    }

    /// Checks that the step at `target` has ended by the time the step at the end of `way` starts.
    fn reach(&mut self, way: &[Stop], target: StepIndex) -> Result<(), String> {
        let target_way = self.way_to(target);
        let fork = way
            .iter()
            .zip(&target_way)
            .position(|(mine, its)| mine.block != its.block || mine.at != its.at);
        let Some(fork) = fork else {
            return Err(match way.len().cmp(&target_way.len()) {
                std::cmp::Ordering::Less => "refers to a step within the step itself",
                std::cmp::Ordering::Equal => "refers to the step itself",
                std::cmp::Ordering::Greater => {
                    "refers to a step that contains this one and is still running"
                }
            }
            .to_owned());
        };
        let (Some(mine), Some(its)) = (way.get(fork), target_way.get(fork)) else { return Ok(()) };
        if mine.block != its.block {
            return Err(
                "refers to a step that cannot be reached: it is in another branch".to_owned()
            );
        }
        let mut behind = target_way.iter().skip(fork).rev().skip(1);
        if let Some(map) = behind.find(|stop| self.map_item(stop.at).is_some()) {
            let map = self.draft(map.at).map_or("", |draft| draft.step.id.as_str());
            return Err(format!(
                "refers to a step that runs once for each item of the map '{map}': \
                 {{{{{map}.output}}}} holds their outputs"
            ));
        }
        if mine.at == END {
            return Ok(());
        }
        let is_named = self.waits.get(mine.at.0).is_some_and(|waits| waits.contains(&its.at));
        if its.at > mine.at && !is_named {
            return Err("refers to a step that comes later".to_owned());
        }
        self.wait(mine.at, its.at);
        Ok(())
    }

    fn wait(&mut self, step: StepIndex, other: StepIndex) {
        if let Some(waits) = self.waits.get_mut(step.0) {
            waits.insert(other);
        }
    }
}

/// Returns the error for a name that is neither a step nor an item in scope, phrased as the rest of
/// a sentence.
fn unknown(name: &str) -> String {
    let hint = match name {
        "input" => ": an input is written {{inputs.NAME}}",
        "steps" => ": a step is written {{STEP_ID.output}}",
        _ => "",
    };
    format!("refers to '{}', which is not a step of this workflow{hint}", brief(name))
}
