//! Workflow definitions: JSON from a client is compiled into a checked [`Plan`]. [`Plan::compile`]
//! is the only way to create a plan, so code that has a plan need not check anything again.
//!
//! ```text
//! fields  one JSON object, field by field; unread fields are unknown
//! steps   the steps, to a depth of 16        http, wait   step types with many fields
//! scope   visibility of steps and values     order        dependencies; no cycles
//! plan    the result                         secrets      credentials: sealed, masked
//! ```
//!
//! Every problem is a sentence that names the step and the reference, and all problems are reported
//! at once. A definition is stored as it was written and compiled again when it is loaded; plans
//! are never stored. An optional field that is null counts as absent.
//!
//! Out of scope: compiling `input_schema` (its validator is not part of the domain), and running
//! anything.

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
use super::json_size::fits_in;

pub use self::http::{
    Auth, FailWhen, Http, KeyPlace, Method, Request, TIMEOUT_DEFAULT as HTTP_TIMEOUT_DEFAULT,
};
pub use self::plan::Map as MapStep;
pub use self::plan::{
    Block, Branch, Choice, Kind, Model, ModelFallback, Output, Parallel, Parent, Pass, Plan, Role,
    SecretUse, Step, StepIndex, SubWorkflow,
};
pub use self::wait::{Error as WaitError, EventWait, WAIT_MAX, Wait};

/// Maximum size of a definition as JSON, in bytes: 1 MiB.
pub const DEFINITION_BYTES_MAX: usize = 1 << 20;
/// Maximum number of steps per definition, including nested steps.
pub const STEPS_MAX: usize = 500;
/// Maximum nesting depth of steps; a top-level step has depth 1.
pub const DEPTH_MAX: usize = 16;
/// Maximum number of patterns (`matches`) per definition. Each pattern takes up to 256 KiB when
/// compiled.
pub const PATTERNS_MAX: usize = 100;
/// Maximum number of distinct secrets per definition. The number is limited because responses are
/// searched for each secret.
pub const SECRETS_MAX: usize = 50;
/// Maximum number of problems in one response.
pub const PROBLEMS_MAX: usize = 20;

/// An invalid definition. `Display` prints its first problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .first.message)]
pub struct Error {
    first: Problem,
    others: Vec<Problem>,
}

/// One problem of a definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The position in the definition as a JSON pointer; empty for the definition itself.
    pub path: String,
    /// A sentence that names the step and, if applicable, the reference.
    pub message: String,
}

impl Error {
    fn one(message: impl Into<String>) -> Self {
        Self { first: Problem { path: String::new(), message: message.into() }, others: Vec::new() }
    }

    /// Iterates over the problems, in the order of the definition: at least 1 and at most 20.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl Plan {
    /// Compiles a definition. `model_exists` returns whether a model is in the catalog.
    ///
    /// # Errors
    /// [`Error`] lists every problem.
    pub fn compile(
        definition: Option<&Value>,
        model_exists: &dyn Fn(&str) -> bool,
    ) -> Result<Self, Error> {
        Self::compile_with(definition, Problems::default(), model_exists)
    }

    /// Compiles a stored definition, which may be from an earlier release. A missing model, or a
    /// reference in a host name, fails only the affected step instead of the entire workflow.
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
        // A missing plan without a reported problem would be a bug.
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
    // Stop here, so that references to unreadable steps are not reported as further problems.
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

/// Parses `metadata`, of which only `output_mapping` is used.
fn read_mapping(fields: &mut Fields<'_>) -> Option<super::template::Template> {
    let mut metadata = fields.object("metadata")?;
    let written = metadata.shift_remove("output_mapping").filter(|mapping| !mapping.is_null())?;
    let mapping = Map::from_iter([("output_mapping".to_owned(), written)]);
    fields.nested("metadata", mapping).object_template("output_mapping")
}

#[cfg(test)]
mod tests;
