//! JSON Schema validation: schemas are compiled once and then applied to each input.
//!
//! Nothing is ever fetched: a `$ref` to another document is rejected when the schema is compiled.
//! Patterns run on a linear-time engine. Schemas are limited in bytes, depth and expanded size when
//! they are compiled; inputs are limited in steps when they are validated.
//!
//! ```text
//! graph     the subschemas, connected by keywords and references
//! size      how far a schema expands          work        how many steps an input takes
//! defaults  filling in defaults               off_thread  running all of it on blocking threads
//! faults    error messages for schemas
//! partial   violations of partially known values
//! keywords  unknown keywords
//! ```

mod defaults;
mod faults;
mod graph;
mod keywords;
mod off_thread;
mod partial;
mod size;
mod work;

use std::fmt;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, Validator};
use serde::Serialize;
use serde_json::Value;

use self::graph::Node;
pub use self::keywords::{KEYWORDS, UnknownKeyword, unknown_keywords};
pub use self::off_thread::{
    COMPILATIONS_MAX, DEADLINE, Patience, Unavailable, VALIDATIONS_MAX, ValidationError, compile,
};
pub use self::partial::Known;
use self::size::InPlace;

/// Maximum size of a schema, in bytes of JSON.
pub const BYTES_MAX: usize = 1024 * 1024;
/// Maximum nesting depth of a schema.
pub const DEPTH_MAX: usize = 64;
/// Maximum number of subschemas after each reference is replaced by its target.
pub const EXPANDED_MAX: u64 = 100_000;
/// Maximum number of nested subschemas that apply to the same value.
pub const DEPTH_IN_PLACE_MAX: usize = 64;
/// Maximum number of steps (a subschema applied to a value) for validating one input: a few
/// seconds.
pub const STEPS_MAX: u64 = 32 * 1024 * 1024;
/// Maximum number of steps of a validation that needs no permit: a few milliseconds.
pub const QUICK_STEPS: u64 = 50_000;
/// Maximum number of steps of a validation on the caller's own thread: a few microseconds.
const INLINE_STEPS: u64 = 500;
/// Maximum size of inputs and schemas that are validated on the caller's own thread, in bytes.
/// Schemas with patterns are always validated elsewhere, because the cost of patterns is not
/// counted in steps.
const INLINE_BYTES: usize = 16 * 1024;
/// Maximum number of steps for which all violations are reported. Beyond that, at most the first
/// violation is reported, because each violation takes memory.
const TELLING_STEPS_MAX: u64 = 1_000_000;
/// Maximum number of subschemas nested along a value, which is limited by the stack size of a
/// thread.
const LEVELS_MAX: usize = 500;
/// Maximum number of bytes of JSON that defaults may add to one input.
pub const FILLED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum length of a violation's message, in characters.
const MESSAGE_MAX: usize = 1000;
/// Maximum length of the pointer to a violation, in bytes. A longer pointer is shortened to an
/// enclosing object or array.
const PATH_BYTES_MAX: usize = 4096;
/// Maximum number of violations in one response.
const VIOLATIONS_MAX: usize = 20;
/// Maximum memory of a compiled pattern, in bytes.
const PATTERN_BYTES: usize = 256 * 1024;
/// Maximum number of patterns in a schema.
const PATTERNS_MAX: usize = 100;

/// An invalid schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("a schema may have at most {BYTES_MAX} bytes; this one has {0}")]
    TooLarge(usize),
    #[error("a schema may nest at most {DEPTH_MAX} levels deep")]
    TooDeep,
    #[error("a schema may have at most {PATTERNS_MAX} patterns; this one has {0}")]
    TooManyPatterns(usize),
    #[error("\"$ref\": \"{0}\" leaves the document: only references within it (#/…) are followed")]
    RemoteRef(String),
    #[error(
        "a schema may expand to at most {EXPANDED_MAX} subschemas when its references are followed"
    )]
    TooExpanded,
    #[error(
        "a schema may not refer to itself for the same value: a reference back must be inside \
         properties, items or a similar keyword"
    )]
    RefersToItself,
    #[error("a schema may apply at most {DEPTH_IN_PLACE_MAX} nested subschemas to one value")]
    TooDeepInPlace,
    #[error("\"$id\": \"{0}\": only the root of a schema may have an $id")]
    NestedId(String),
    #[error("not a valid JSON Schema: {0}")]
    Invalid(Violation),
}

impl Error {
    /// Returns the position in the schema as a JSON pointer; empty for the schema itself.
    #[must_use]
    pub fn path(&self) -> &str {
        if let Self::Invalid(fault) = self { &fault.path } else { "" }
    }
}

/// A violation of a schema by a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The position as a JSON pointer; empty for the value itself.
    pub path: String,
    /// The problem, without repeating the value.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, message } = self;
        if path.is_empty() { f.write_str(message) } else { write!(f, "{path}: {message}") }
    }
}

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    text: Value,
    validator: Validator,
    nodes: Vec<Node>,
    /// The cost of each node, indexed by node id.
    costs: Vec<InPlace>,
    /// Whether small inputs are validated on the caller's thread.
    is_inline: bool,
}

/// The result of a check with a step limit.
enum Attempt {
    Fits(Value),
    /// At least one violation.
    Violations(Vec<Violation>),
    /// Validation would take too many steps. Contains the value with some of its defaults filled
    /// in.
    Over(Value),
}

impl PartialEq for Schema {
    /// Compares the schemas as written.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// [`Error`], phrased for the author of the schema.
    pub fn compile(schema: &Value) -> Result<Self, Error> {
        let bytes = schema.to_string().len();
        if bytes > BYTES_MAX {
            return Err(Error::TooLarge(bytes));
        }
        check_tree(schema, 0)?;
        let pattern_count = patterns(schema);
        if pattern_count > PATTERNS_MAX {
            return Err(Error::TooManyPatterns(pattern_count));
        }
        let nodes = graph::build(schema)?;
        let costs = size::check(&nodes)?;
        let patterns =
            PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
        let validator = jsonschema::options()
            .offline()
            .with_pattern_options(patterns)
            .build(schema)
            .map_err(|error| Error::Invalid(faults::of(schema, &error)))?;
        let is_inline = bytes <= INLINE_BYTES && pattern_count == 0;
        Ok(Self { text: schema.clone(), validator, nodes, costs, is_inline })
    }

    /// Returns the schema as written.
    #[must_use]
    pub const fn text(&self) -> &Value {
        &self.text
    }

    /// Returns a valid value with the schema's defaults filled in. May take a few seconds; see
    /// [`Schema::check_off_thread`].
    ///
    /// # Errors
    /// All violations, at least one and up to 20, in the order of the schema. If the value takes
    /// too many steps, a single violation says so.
    pub fn check(&self, value: Value) -> Result<Value, Vec<Violation>> {
        match self.attempt(value, STEPS_MAX) {
            Attempt::Fits(value) => Ok(value),
            Attempt::Violations(violations) => Err(violations),
            Attempt::Over(_) => Err(vec![too_much()]),
        }
    }

    fn attempt(&self, mut value: Value, steps: u64) -> Attempt {
        match defaults::fill(&self.nodes, &mut value, steps) {
            Ok(()) => {}
            Err(defaults::Stopped::Steps) => return Attempt::Over(value),
            Err(defaults::Stopped::Bytes) => {
                let most = FILLED_BYTES_MAX;
                let message = format!(
                    "the schema's defaults would make the value larger by more than {most} bytes"
                );
                return Attempt::Violations(vec![whole(message)]);
            }
        }
        let Ok(work) = work::measure(self, &value, steps) else { return Attempt::Over(value) };
        if self.validator.is_valid(&value) {
            return Attempt::Fits(value);
        }
        if steps == INLINE_STEPS && work.telling > QUICK_STEPS {
            return Attempt::Over(value);
        }
        let mut violations: Vec<Violation> = if work.telling <= TELLING_STEPS_MAX {
            let errors = self.validator.iter_errors(&value).take(VIOLATIONS_MAX);
            errors.map(|error| violation(&error)).collect()
        } else if self.nodes.iter().any(|node| node.branches) {
            Vec::new()
        } else {
            self.validator.validate(&value).err().iter().map(violation).collect()
        };
        if violations.is_empty() {
            violations.push(whole(
                "the value does not match its schema, and is too large to locate the violation",
            ));
        }
        Attempt::Violations(violations)
    }
}

/// Creates a violation that concerns the value as a whole.
fn whole(message: impl Into<String>) -> Violation {
    Violation { path: String::new(), message: message.into() }
}

/// Creates the violation of a value that takes too many steps.
fn too_much() -> Violation {
    whole(format!(
        "checking the value takes more than {STEPS_MAX} steps: make the value smaller, or simplify \
         its schema"
    ))
}

fn violation(error: &jsonschema::ValidationError<'_>) -> Violation {
    let place = error.instance_path().as_str();
    if let ValidationErrorKind::Required { property } = error.kind() {
        let name = property.as_str().unwrap_or_default();
        return Violation {
            path: within(place, name),
            message: brief(format!("missing required field '{name}'")),
        };
    }
    if let ValidationErrorKind::AdditionalProperties { unexpected } = error.kind()
        && let [name] = unexpected.as_slice()
    {
        return Violation {
            path: within(place, name),
            message: brief(format!("unknown field '{name}'")),
        };
    }
    let path = bounded(place);
    let what = if let ValidationErrorKind::Enum { options } = error.kind() {
        // The library names only a few of the allowed values.
        format!("value is not one of {}", list(options))
    } else {
        error.masked().to_string()
    };
    let message = match path.strip_prefix('/') {
        Some(field) => {
            let names = field.split('/').map(|name| name.replace("~1", "/").replace("~0", "~"));
            format!("'{}' is wrong: {what}", names.collect::<Vec<_>>().join("."))
        }
        None => what,
    };
    Violation { path: path.to_owned(), message: brief(message) }
}

fn list(options: &Value) -> String {
    let options = options.as_array().map(Vec::as_slice).unwrap_or_default();
    let options: Vec<String> = options.iter().map(Value::to_string).collect();
    match options.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Returns the pointer to a member of the object at `place`.
fn within(place: &str, name: &str) -> String {
    bounded(&format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"))).to_owned()
}

fn bounded(mut path: &str) -> &str {
    while path.len() > PATH_BYTES_MAX {
        path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    path
}

/// Rejects schemas that are nested too deeply, and references to other documents.
fn check_tree(schema: &Value, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::TooDeep);
    }
    match schema {
        Value::Object(fields) => {
            fields.iter().try_for_each(|(name, value)| match (name.as_str(), value) {
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target))
                    if !target.starts_with('#') =>
                {
                    Err(Error::RemoteRef(target.clone()))
                }
                _ => check_tree(value, depth + 1),
            })
        }
        Value::Array(items) => items.iter().try_for_each(|item| check_tree(item, depth + 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Counts the patterns anywhere in a schema.
fn patterns(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match (name.as_str(), value) {
                ("pattern", Value::String(_)) => 1,
                ("patternProperties", Value::Object(inner)) => inner.len() + patterns(value),
                _ => patterns(value),
            })
            .sum(),
        Value::Array(items) => items.iter().map(patterns).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Truncates a long message.
fn brief(message: String) -> String {
    match message.char_indices().nth(MESSAGE_MAX) {
        Some((end, _)) => format!("{}…", message.get(..end).unwrap_or_default()),
        None => message,
    }
}

#[cfg(test)]
mod tests;
