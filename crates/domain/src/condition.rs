//! Conditions of a `choice` step (`docs/spec/steps.md`, "Conditions"): parsed and compiled once,
//! then evaluated on a running execution.
//!
//! ```json
//! {"and": [
//!     {"expression": "{{score.output}}", "operator": "greater_than", "value": 0.5},
//!     {"not": {"expression": "$.inputs.draft", "operator": "exists"}}
//! ]}
//! ```
//!
//! Values keep their types: the string `"5"` does not equal the number 5, and a string is neither
//! less nor greater than a number. `1` and `1.0` are the same number. A missing subject is an
//! error, except with the operators `exists`, `not_exists`, `is_null` and `is_not_null`. `and` and
//! `or` short-circuit. Patterns run in linear time.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

use super::json_pointer::{JsonPointer, brief};
use super::pattern::{Pattern, Syntax};
use super::reference::{self, Reference, Scope};
use super::template::{RESOLVED_BYTES_MAX, Template};

/// Maximum nesting depth of `and`, `or` and `not`.
pub const DEPTH_MAX: usize = 16;
/// Maximum number of tests in one condition.
pub const TESTS_MAX: usize = 100;

/// A compiled condition.
#[derive(Debug, Clone)]
pub enum Condition {
    /// True if all parts are true.
    And(Vec<Condition>),
    /// True if any part is true.
    Or(Vec<Condition>),
    Not(Box<Condition>),
    Test(Test),
}

/// One comparison.
#[derive(Debug, Clone)]
pub struct Test {
    subject: Reference,
    operator: Operator,
}

#[derive(Debug, Clone)]
enum Operator {
    Exists(bool),
    IsNull(bool),
    Equals { value: Template, wanted: bool },
    Compares { value: Template, wanted: &'static [Ordering] },
    Contains(Template),
    Matches(Pattern),
    In { value: Template, wanted: bool },
}

/// A condition that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The position in the condition as a JSON pointer; empty for the condition itself.
    pub place: String,
    /// The rest of a sentence that begins with the position.
    pub message: String,
}

/// The names of all operators.
const OPERATORS: [&str; 15] = [
    "equals",
    "not_equals",
    "greater_than",
    "less_than",
    "greater_than_or_equal",
    "less_than_or_equal",
    "contains",
    "matches",
    "string_matches",
    "in",
    "not_in",
    "exists",
    "not_exists",
    "is_null",
    "is_not_null",
];

impl Condition {
    /// Parses a condition and compiles its patterns.
    ///
    /// # Errors
    /// [`Error`] describes the problem and its position.
    pub fn parse(written: &Value) -> Result<Self, Error> {
        Parser { tests_left: TESTS_MAX }.parse(written, &JsonPointer::Root, DEPTH_MAX)
    }

    /// Calls `see` with every reference, in the order in which they are written.
    pub fn visit<'c>(&'c self, see: &mut dyn FnMut(&'c Reference)) {
        match self {
            Self::And(parts) | Self::Or(parts) => parts.iter().for_each(|part| part.visit(see)),
            Self::Not(part) => part.visit(see),
            Self::Test(test) => {
                see(&test.subject);
                if let Some(value) = test.operator.value() {
                    value.references().into_iter().for_each(see);
                }
            }
        }
    }

    /// Returns the number of compiled patterns. Each pattern takes up to 256 KiB.
    #[must_use]
    pub fn patterns(&self) -> usize {
        match self {
            Self::And(parts) | Self::Or(parts) => parts.iter().map(Self::patterns).sum(),
            Self::Not(part) => part.patterns(),
            Self::Test(test) => usize::from(test.operator.has_compiled_pattern()),
        }
    }

    /// Evaluates the condition.
    ///
    /// # Errors
    /// [`reference::Error`] names the reference that resolves to nothing, or, for `in` and
    /// `not_in`, to something other than an array.
    pub fn holds(&self, scope: &dyn Scope) -> Result<bool, reference::Error> {
        match self {
            Self::And(parts) => {
                for part in parts {
                    if !part.holds(scope)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Or(parts) => {
                for part in parts {
                    if part.holds(scope)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Not(part) => part.holds(scope).map(|holds| !holds),
            Self::Test(test) => test.holds(scope),
        }
    }
}

impl Test {
    fn holds(&self, scope: &dyn Scope) -> Result<bool, reference::Error> {
        let found = self.subject.look_up(scope);
        match &self.operator {
            Operator::Exists(wanted) => return Ok(found.is_some() == *wanted),
            Operator::IsNull(wanted) => {
                return Ok(found.is_some_and(|value| value.is_null() == *wanted));
            }
            Operator::Equals { .. }
            | Operator::Compares { .. }
            | Operator::Contains(_)
            | Operator::Matches(_)
            | Operator::In { .. } => {}
        }
        let nothing = || fault(&self.subject.to_string(), reference::ErrorKind::Nothing);
        self.operator.holds(&*found.ok_or_else(nothing)?, scope)
    }
}

impl Operator {
    /// Evaluates the operator on an existing subject.
    fn holds(&self, subject: &Value, scope: &dyn Scope) -> Result<bool, reference::Error> {
        let resolve = |value: &Template| value.resolve(scope, RESOLVED_BYTES_MAX);
        Ok(match self {
            Self::Exists(wanted) => *wanted,
            Self::IsNull(wanted) => subject.is_null() == *wanted,
            Self::Equals { value, wanted } => same(subject, &resolve(value)?) == *wanted,
            Self::Compares { value, wanted } => {
                compare(subject, &resolve(value)?).is_some_and(|order| wanted.contains(&order))
            }
            Self::Contains(value) => contains(subject, &resolve(value)?),
            Self::Matches(pattern) => pattern.matches(subject, scope)?,
            Self::In { value, wanted } => match resolve(value)?.as_array() {
                Some(items) => items.iter().any(|item| same(subject, item)) == *wanted,
                None => {
                    let culprit = value.reference().map(Reference::to_string).unwrap_or_default();
                    return Err(fault(&culprit, reference::ErrorKind::NotAnArray));
                }
            },
        })
    }

    const fn value(&self) -> Option<&Template> {
        match self {
            Self::Equals { value, .. } | Self::Compares { value, .. } | Self::In { value, .. } => {
                Some(value)
            }
            Self::Contains(value) => Some(value),
            Self::Matches(pattern) => pattern.template(),
            Self::Exists(_) | Self::IsNull(_) => None,
        }
    }

    const fn has_compiled_pattern(&self) -> bool {
        matches!(self, Self::Matches(pattern) if pattern.template().is_none())
    }
}

fn fault(reference: &str, fault: reference::ErrorKind) -> reference::Error {
    reference::Error::new(&JsonPointer::Root, reference, fault)
}

// --- parsing ---

struct Parser {
    tests_left: usize,
}

impl Parser {
    fn parse(
        &mut self,
        written: &Value,
        place: &JsonPointer<'_>,
        levels: usize,
    ) -> Result<Condition, Error> {
        let Some(inside) = levels.checked_sub(1) else {
            return Err(error(place, format!("nests deeper than {DEPTH_MAX} levels")));
        };
        let Value::Object(fields) = written else {
            let message = "must be an object with expression and operator, or with and, or, or not";
            return Err(error(place, message));
        };
        for (name, combine) in
            [("and", Condition::And as fn(Vec<Condition>) -> Condition), ("or", Condition::Or)]
        {
            if let Some(parts) = fields.get(name) {
                only_field(fields, name, place)?;
                return self.parse_parts(parts, &place.field(name), inside).map(combine);
            }
        }
        if let Some(part) = fields.get("not") {
            only_field(fields, "not", place)?;
            let part = self.parse(part, &place.field("not"), inside)?;
            return Ok(Condition::Not(Box::new(part)));
        }
        self.tests_left = self
            .tests_left
            .checked_sub(1)
            .ok_or_else(|| error(place, format!("has more than {TESTS_MAX} tests")))?;
        parse_test(fields, place).map(Condition::Test)
    }

    fn parse_parts(
        &mut self,
        parts: &Value,
        place: &JsonPointer<'_>,
        levels: usize,
    ) -> Result<Vec<Condition>, Error> {
        let parts = parts.as_array().filter(|parts| !parts.is_empty());
        parts
            .ok_or_else(|| error(place, "must be an array of at least one condition"))?
            .iter()
            .enumerate()
            .map(|(index, part)| self.parse(part, &place.item(index), levels))
            .collect()
    }
}

fn parse_test(fields: &Map<String, Value>, place: &JsonPointer<'_>) -> Result<Test, Error> {
    let known = ["expression", "operator", "value"];
    if let Some(unknown) = fields.keys().find(|name| !known.contains(&name.as_str())) {
        let message =
            format!("has the unknown field '{}'; it may have {}", brief(unknown), known.join(", "));
        return Err(error(&place.field(unknown), message));
    }
    let subject = parse_expression(fields.get("expression"), &place.field("expression"))?;
    let operator_place = place.field("operator");
    let operator = fields.get("operator").and_then(Value::as_str).ok_or_else(|| {
        error(&operator_place, format!("needs an operator: one of {}", OPERATORS.join(", ")))
    })?;
    let value = fields.get("value");
    let operator = parse_operator(operator, value, &operator_place, &place.field("value"))?;
    Ok(Test { subject, operator })
}

/// Parses `"{{reference}}"` or `"$.reference"`.
fn parse_expression(written: Option<&Value>, place: &JsonPointer<'_>) -> Result<Reference, Error> {
    let form = "needs an expression such as {{step.output}} or $.step.output";
    let text = written.and_then(Value::as_str).ok_or_else(|| error(place, form))?.trim();
    let inside = match text.strip_prefix("$.") {
        Some(inside) => inside,
        None => text
            .strip_prefix("{{")
            .and_then(|rest| rest.strip_suffix("}}"))
            .ok_or_else(|| error(place, form))?,
    };
    Reference::parse(inside).map_err(|fault| {
        error(place, format!("has an invalid expression: {} {fault}", brief(text)))
    })
}

fn parse_operator(
    name: &str,
    value: Option<&Value>,
    place: &JsonPointer<'_>,
    value_place: &JsonPointer<'_>,
) -> Result<Operator, Error> {
    if matches!(name, "exists" | "not_exists" | "is_null" | "is_not_null") {
        if value.is_some_and(|value| !value.is_null()) {
            return Err(error(value_place, format!("has a value, which {name} does not take")));
        }
        return Ok(match name {
            "exists" => Operator::Exists(true),
            "not_exists" => Operator::Exists(false),
            "is_null" => Operator::IsNull(true),
            _ => Operator::IsNull(false),
        });
    }
    if !OPERATORS.contains(&name) {
        let message =
            format!("has the unknown operator '{}': use {}", brief(name), OPERATORS.join(", "));
        return Err(error(place, message));
    }
    let written = value.ok_or_else(|| error(value_place, format!("needs a value for {name}")))?;
    let syntax = match name {
        "matches" => Some(Syntax::Regex),
        "string_matches" => Some(Syntax::Wildcards),
        _ => None,
    };
    if let Some(syntax) = syntax {
        let text = written.as_str();
        let text = text
            .ok_or_else(|| error(value_place, format!("needs a string as the value of {name}")))?;
        let pattern = Pattern::parse(text, syntax);
        return pattern.map(Operator::Matches).map_err(|fault| error(value_place, fault));
    }
    let value = Template::parse(written)
        .map_err(|fault| error(value_place, format!("has an invalid value: {fault}")))?;
    Ok(match name {
        "equals" => Operator::Equals { value, wanted: true },
        "not_equals" => Operator::Equals { value, wanted: false },
        "greater_than" => Operator::Compares { value, wanted: &[Ordering::Greater] },
        "less_than" => Operator::Compares { value, wanted: &[Ordering::Less] },
        "greater_than_or_equal" => {
            Operator::Compares { value, wanted: &[Ordering::Greater, Ordering::Equal] }
        }
        "less_than_or_equal" => {
            Operator::Compares { value, wanted: &[Ordering::Less, Ordering::Equal] }
        }
        "contains" => Operator::Contains(value),
        _ if !written.is_array() && value.reference().is_none() => {
            let message = format!("needs an array, or a reference to one, for {name}");
            return Err(error(value_place, message));
        }
        "in" => Operator::In { value, wanted: true },
        _ => Operator::In { value, wanted: false },
    })
}

/// Rejects any other fields next to `and`, `or` or `not`.
fn only_field(
    fields: &Map<String, Value>,
    name: &str,
    place: &JsonPointer<'_>,
) -> Result<(), Error> {
    match fields.keys().find(|key| *key != name) {
        Some(other) => {
            let message =
                format!("has '{}' next to '{name}', which must be the only field", brief(other));
            Err(error(place, message))
        }
        None => Ok(()),
    }
}

fn error(place: &JsonPointer<'_>, message: impl Into<String>) -> Error {
    Error { place: place.to_string(), message: message.into() }
}

// --- comparison ---

/// Returns whether two values are equal. Numbers are compared by value, and the order of object
/// fields is ignored.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(_), Value::Number(_)) => compare(left, right) == Some(Ordering::Equal),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(name, value)| right.get(name).is_some_and(|other| same(value, other)))
        }
        _ => left == right,
    }
}

/// Compares two numbers or two strings. Returns `None` for other values.
fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => match (whole(left), whole(right)) {
            (Some(left), Some(right)) => Some(left.cmp(&right)),
            _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
        },
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

/// Converts an integer for an exact comparison: as floats, large neighboring integers would be
/// equal.
fn whole(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

fn contains(subject: &Value, wanted: &Value) -> bool {
    match (subject, wanted) {
        (Value::String(text), Value::String(part)) => text.contains(part.as_str()),
        (Value::Array(items), wanted) => items.iter().any(|item| same(item, wanted)),
        _ => false,
    }
}

#[cfg(test)]
#[path = "condition_tests.rs"]
mod tests;
