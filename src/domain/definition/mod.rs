//! Workflow definitions: JSON as a client writes it -> a checked [`Plan`]. [`Plan::compile`] is the
//! only way to a plan, so code that holds one need not check anything again.
//!
//! ```text
//! fields  one JSON object, field by field; what is left over is unknown
//! steps   the steps, to a depth of 16       http, wait   the steps with much of their own
//! scope   who may refer to whom             order        who waits for whom; no circles
//! plan    what comes out                    secrets        its credentials: sealed, masked
//! ```
//!
//! Every problem is a sentence that names the step and the reference, and all of them are reported at
//! once. A definition is stored as it was written and compiled again when it is loaded; a plan is
//! never stored. An optional field that is null counts as absent.
//!
//! Not here: compiling `input_schema` (its checker is not part of the domain), and running anything.

mod fields;
mod http;
mod order;
mod plan;
mod scope;
pub mod secrets;
mod steps;
mod wait;

use serde::Serialize;
use serde_json::{Map, Value};

use self::fields::{Fields, Problems};
use self::order::order;
use self::scope::{Checker, Inputs};
use self::steps::{Draft, Reader};
use super::json_pointer::JsonPointer;
use super::template::fits_in;

pub use self::http::{
    Auth, FailWhen, Http, KeyPlace, Method, Request, TIMEOUT_DEFAULT as HTTP_TIMEOUT_DEFAULT,
};
pub use self::plan::Map as MapStep;
pub use self::plan::{
    Block, Branch, Choice, Kind, Model, ModelFallback, Output, Parallel, Parent, Pass, Plan, Role,
    SecretUse, Step, StepIndex, SubWorkflow,
};
pub use self::wait::{Error as WaitError, EventWait, WAIT_MAX, Wait};

/// The largest definition, in bytes of JSON: 1 MiB.
pub const DEFINITION_BYTES_MAX: usize = 1 << 20;
/// The most steps of a definition, those within others included.
pub const STEPS_MAX: usize = 500;
/// The deepest nesting of steps; a step that is in no other has depth 1.
pub const DEPTH_MAX: usize = 16;
/// The most patterns (`matches`) of a definition. Each may hold 256 KiB when compiled.
pub const PATTERNS_MAX: usize = 100;
/// The most different secrets that a definition refers to: answers are searched for each of them.
pub const SECRETS_MAX: usize = 50;
/// The problems that one answer lists.
pub const PROBLEMS_MAX: usize = 20;

/// A definition that cannot be used. Prints as its first problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .first.message)]
pub struct Error {
    first: Problem,
    others: Vec<Problem>,
}

/// One thing that is wrong with a definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where in the definition, as a JSON pointer; empty: the definition itself.
    pub path: String,
    /// A sentence that names the step and the reference.
    pub message: String,
}

impl Error {
    fn one(message: impl Into<String>) -> Self {
        Self { first: Problem { path: String::new(), message: message.into() }, others: Vec::new() }
    }

    /// Every problem, up to 20, in the order of the definition; never none.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl Plan {
    /// Compiles a definition. `model_exists` says whether the catalog has a model.
    ///
    /// # Errors
    /// [`Error`] lists every problem.
    pub fn compile(
        definition: Option<&Value>,
        model_exists: &dyn Fn(&str) -> bool,
    ) -> Result<Self, Error> {
        Self::compile_with(definition, Problems::default(), model_exists)
    }

    /// Compiles a definition that was stored, perhaps by an earlier release. A missing model, or a reference
    /// in a host, fails the step that has it and not the workflow.
    ///
    /// # Errors
    /// [`Error`] lists every problem.
    pub fn load(definition: Option<&Value>) -> Result<Self, Error> {
        Self::compile_with(definition, Problems::of_stored(), &|_| true)
    }

    fn compile_with(
        definition: Option<&Value>,
        problems: Problems,
        model_exists: &dyn Fn(&str) -> bool,
    ) -> Result<Self, Error> {
        let fields = match definition {
            None | Some(Value::Null) => return Err(Error::one("definition is required")),
            Some(Value::Object(fields)) => fields,
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                return Err(Error::one("definition must be an object"));
            }
        };
        let steps = fields.get("steps").filter(|steps| !steps.is_null());
        if steps.is_none_or(|steps| steps.as_array().is_some_and(Vec::is_empty)) {
            return Err(Error::one("definition must include at least one step"));
        }
        if definition.is_some_and(|written| !fits_in(written, DEFINITION_BYTES_MAX)) {
            let message = format!("definition is larger than {DEFINITION_BYTES_MAX} bytes");
            return Err(Error::one(message));
        }
        let plan = compile(fields.clone(), &problems, model_exists);
        problems.into_result()?;
        // Only a problem stops a plan from being made; this one would be ours.
        plan.ok_or_else(|| Error::one("definition cannot be compiled"))
    }
}

fn compile(
    definition: Map<String, Value>,
    problems: &Problems,
    model_exists: &dyn Fn(&str) -> bool,
) -> Option<Plan> {
    let mut fields = Fields::new(problems, "definition", JsonPointer::Root, definition);
    fields.text("version");
    let input_schema = fields.object("input_schema");
    let inputs = Inputs::of(&fields, input_schema.as_ref());
    let mapping = read_mapping(&mut fields);
    let mut reader = Reader::new(problems, model_exists);
    let root = fields
        .list("steps")
        .map(|steps| reader.block(steps, &JsonPointer::Root.field("steps"), None, DEPTH_MAX));
    fields.end("a definition");
    // A reference to a step that could not be read is not a problem of its own.
    let drafts = reader.finish()?;
    let root = root?;

    let mut checker = Checker::new(&drafts, &inputs, problems);
    checker.check_steps();
    if let Some(mapping) = &mapping {
        checker.check_output(mapping);
    }
    let (waits, secrets) = checker.into_waits_and_secrets();
    let waits = order(&drafts, waits, problems)?;
    let output = match mapping {
        Some(mapping) => Output::Mapping(mapping),
        None => Output::LastStep(*root.positions().last()?),
    };
    let steps =
        drafts.into_iter().zip(waits).map(|(draft, waits_for)| Draft::finish(draft, waits_for));
    Some(Plan::new(steps.collect(), root, input_schema.map(Value::Object), output, secrets))
}

/// Reads `metadata`, of which only `output_mapping` means something here.
fn read_mapping(fields: &mut Fields<'_>) -> Option<super::template::Template> {
    let mut metadata = fields.object("metadata")?;
    let written = metadata.shift_remove("output_mapping").filter(|mapping| !mapping.is_null())?;
    let mapping = Map::from_iter([("output_mapping".to_owned(), written)]);
    fields.nested("metadata", mapping).object_template("output_mapping")
}

#[cfg(test)]
mod tests;
