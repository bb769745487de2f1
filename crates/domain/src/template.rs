//! Templates: JSON whose strings may contain references, such as the `params` of a step.
//!
//! A string that is a single reference becomes the value itself, with its type; inside a longer
//! string, the value is inserted as text (objects and arrays as JSON). `\{{` is a literal `{{`.
//! References in field names are not resolved: [`check_names`] rejects them.
//!
//! Parsing and resolving take linear time in their input and output. The output is bounded in bytes
//! and depth, and measured before it is copied.

use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value};

use super::json_pointer::{JsonPointer, brief, unescaped};
use super::json_size::{BRACKETS, Budget, COMMA, QUOTES, QUOTES_COLON_COMMA, Size};
use super::reference::{Error, ErrorKind, Reference, Scope};

/// Maximum size of a resolved step input as JSON, in bytes: 8 MiB, so that a few references to
/// large outputs cannot exhaust memory.
pub const RESOLVED_BYTES_MAX: usize = 8 << 20;

/// Maximum nesting depth of a template and its resolved value. JSON is parsed up to a depth of 128,
/// which leaves room for the records in which a resolved value is stored.
pub const DEPTH_MAX: usize = 96;

/// How a reference to a missing value is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// An error that names the reference.
    Refuse,
    /// Null if the reference is the entire string, otherwise an empty string.
    Null,
}

/// How much is known about a part of a template before its references are resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The entire value is known.
    Whole,
    /// The value is an array or object with unknown parts.
    Parts,
    /// The value is a string.
    Text,
    /// The value can be anything.
    Nothing,
}

/// A parsed JSON value with references in its strings.
#[derive(Debug, Clone, PartialEq)]
pub struct Template(Node);

#[derive(Debug, Clone, PartialEq)]
enum Node {
    /// Contains no reference.
    Constant(Value),
    /// A single reference, which keeps its type.
    Reference(Reference),
    Text(Vec<Part>),
    Array(Vec<Node>),
    Object(Vec<(String, Node)>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    Literal(String),
    Reference(Reference),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// [`Error`] names the reference and its position; also for a value that is nested too deeply.
    pub fn parse(written: &Value) -> Result<Self, Error> {
        Node::parse(written, &JsonPointer::Root, DEPTH_MAX).map(Self)
    }

    /// Returns the value itself if it contains no references.
    #[must_use]
    pub const fn constant(&self) -> Option<&Value> {
        match &self.0 {
            Node::Constant(value) => Some(value),
            Node::Reference(_) | Node::Text(_) | Node::Array(_) | Node::Object(_) => None,
        }
    }

    /// Returns the reference, if the template is a single reference.
    #[must_use]
    pub const fn reference(&self) -> Option<&Reference> {
        match &self.0 {
            Node::Reference(reference) => Some(reference),
            Node::Constant(_) | Node::Text(_) | Node::Array(_) | Node::Object(_) => None,
        }
    }

    /// Returns whether the template always resolves to an array.
    #[must_use]
    pub const fn is_array(&self) -> bool {
        matches!(&self.0, Node::Array(_) | Node::Constant(Value::Array(_)))
    }

    /// Returns whether the template is a string with text and references.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        matches!(&self.0, Node::Text(_))
    }

    /// Returns the parts of a string that contains text as well as references.
    pub(super) fn text_parts(&self) -> Option<&[Part]> {
        match &self.0 {
            Node::Text(parts) => Some(parts),
            Node::Constant(_) | Node::Reference(_) | Node::Array(_) | Node::Object(_) => None,
        }
    }

    /// Returns all references, in the order in which they are written.
    #[must_use]
    pub fn references(&self) -> Vec<&Reference> {
        let mut all = Vec::new();
        self.visit(&JsonPointer::Root, &mut |_, reference| all.push(reference));
        all
    }

    /// Returns the value with null for each reference, and an empty string for each string that
    /// contains references. [`Template::known_at`] reports which parts these are.
    #[must_use]
    pub fn outline(&self) -> Value {
        self.0.outline()
    }

    /// Returns how much is known about the part at a JSON pointer before references are resolved. A
    /// part that the template does not contain is fully known, since no resolved value can change
    /// it.
    #[must_use]
    pub fn known_at(&self, pointer: &str) -> Known {
        let mut node = &self.0;
        for name in pointer.split('/').skip(1) {
            let name = unescaped(name);
            let inner = match node {
                Node::Array(items) => name.parse().ok().and_then(|index: usize| items.get(index)),
                Node::Object(fields) => {
                    fields.iter().find(|(field, _)| *field == name).map(|(_, node)| node)
                }
                Node::Constant(_) | Node::Reference(_) | Node::Text(_) => break,
            };
            match inner {
                Some(inner) => node = inner,
                None => return Known::Whole,
            }
        }
        match node {
            Node::Constant(_) => Known::Whole,
            Node::Array(_) | Node::Object(_) => Known::Parts,
            Node::Text(_) => Known::Text,
            Node::Reference(_) => Known::Nothing,
        }
    }

    /// Returns whether the template refers to a secret.
    #[must_use]
    pub fn has_secrets(&self) -> bool {
        self.references().iter().any(|reference| reference.secret().is_some())
    }

    /// Calls `see` with every reference and its position, for a template at `place`.
    pub fn visit<'t>(
        &'t self,
        place: &JsonPointer<'_>,
        see: &mut dyn FnMut(&JsonPointer<'_>, &'t Reference),
    ) {
        self.0.visit(place, see);
    }

    /// Resolves all references. `limit_bytes` bounds the JSON text of the result, except for
    /// escapes in strings made of several parts; [`RESOLVED_BYTES_MAX`] is the limit of a step's
    /// input.
    ///
    /// # Errors
    /// [`Error`] names the reference that resolves to nothing or makes the value too large or too
    /// deep.
    pub fn resolve(&self, scope: &dyn Scope, limit_bytes: usize) -> Result<Value, Error> {
        self.evaluate(scope, Missing::Refuse, limit_bytes)
    }

    /// Returns the approximate size of the resolved value, counted up to `most` bytes of JSON.
    #[must_use]
    pub fn size(&self, scope: &dyn Scope, most: usize) -> Size {
        Size::counted(most, |budget| self.0.count(scope, budget))
    }

    /// Resolves all references as [`Template::resolve`] does, with a choice of how to treat
    /// references to missing values.
    ///
    /// # Errors
    /// The same errors as [`Template::resolve`].
    pub fn evaluate(
        &self,
        scope: &dyn Scope,
        missing: Missing,
        limit_bytes: usize,
    ) -> Result<Value, Error> {
        let budget = Budget::new(limit_bytes);
        Resolver { scope, missing, budget }.fill(&self.0, &JsonPointer::Root, DEPTH_MAX)
    }
}

/// Rejects references in field names, at any depth. Parsing accepts them because earlier releases
/// stored them.
///
/// # Errors
/// [`Error`] names the reference and its position.
pub fn check_names(written: &Value) -> Result<(), Error> {
    check_names_at(written, &JsonPointer::Root, DEPTH_MAX)
}

fn check_names_at(written: &Value, place: &JsonPointer<'_>, levels: usize) -> Result<(), Error> {
    // Parsing rejects a more deeply nested value anyway.
    let Some(inside) = levels.checked_sub(1) else { return Ok(()) };
    match written {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| check_names_at(item, &place.item(index), inside)),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            let place = place.field(name);
            check_name(name, &place)?;
            check_names_at(value, &place, inside)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// Rejects a field name at `place` that contains a reference.
///
/// # Errors
/// [`Error`] names the reference.
pub fn check_name(name: &str, place: &JsonPointer<'_>) -> Result<(), Error> {
    let literal = name.replace("\\{{", "");
    let Some((_, reference)) = literal.split_once("{{") else { return Ok(()) };
    let reference = reference.split_once("}}").map_or(reference, |(inside, _)| inside);
    Err(Error::new(place, format!("{{{{{}}}}}", brief(reference)), ErrorKind::InName))
}

// --- parsing ---

impl Node {
    fn parse(written: &Value, place: &JsonPointer<'_>, levels: usize) -> Result<Self, Error> {
        let Some(inside) = levels.checked_sub(1) else {
            return Err(Error::new(place, "the value", ErrorKind::TooDeep));
        };
        match written {
            Value::String(text) => parse_text(text, place),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(index, item)| Self::parse(item, &place.item(index), inside))
                .collect::<Result<Vec<_>, _>>()
                .map(Self::of_items),
            Value::Object(fields) => fields
                .iter()
                .map(|(name, value)| {
                    let node = Self::parse(value, &place.field(name), inside)?;
                    Ok((name.replace("\\{{", "{{"), node))
                })
                .collect::<Result<Vec<_>, _>>()
                .map(Self::of_fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(Self::Constant(written.clone())),
        }
    }

    fn of_items(items: Vec<Self>) -> Self {
        if !items.iter().all(|item| matches!(item, Self::Constant(_))) {
            return Self::Array(items);
        }
        Self::Constant(items.into_iter().filter_map(Self::into_constant).collect())
    }

    fn of_fields(fields: Vec<(String, Self)>) -> Self {
        if !fields.iter().all(|(_, node)| matches!(node, Self::Constant(_))) {
            return Self::Object(fields);
        }
        let constants =
            fields.into_iter().filter_map(|(name, node)| Some((name, node.into_constant()?)));
        Self::Constant(Value::Object(constants.collect()))
    }

    fn outline(&self) -> Value {
        match self {
            Self::Constant(value) => value.clone(),
            Self::Reference(_) => Value::Null,
            Self::Text(_) => Value::String(String::new()),
            Self::Array(items) => items.iter().map(Self::outline).collect(),
            Self::Object(fields) => {
                fields.iter().map(|(name, node)| (name.clone(), node.outline())).collect()
            }
        }
    }

    fn into_constant(self) -> Option<Value> {
        match self {
            Self::Constant(value) => Some(value),
            Self::Reference(_) | Self::Text(_) | Self::Array(_) | Self::Object(_) => None,
        }
    }

    /// Counts the bytes of the resolved value. Returns `None` if the budget is exhausted.
    fn count(&self, scope: &dyn Scope, budget: &mut Budget) -> Option<()> {
        let of = |reference: &Reference, budget: &mut Budget| match reference.look_up(scope) {
            Some(value) => budget.count(&value),
            None => Some(()),
        };
        match self {
            Self::Constant(value) => budget.count(value),
            Self::Reference(reference) => of(reference, budget),
            Self::Text(parts) => budget.count_as_text(|budget| {
                parts.iter().try_for_each(|part| match part {
                    Part::Literal(literal) => budget.spend(literal.len()),
                    Part::Reference(reference) => of(reference, budget),
                })
            }),
            Self::Array(items) => {
                budget.open()?;
                items.iter().try_for_each(|item| {
                    budget.spend(COMMA)?;
                    item.count(scope, budget)
                })
            }
            Self::Object(fields) => {
                budget.open()?;
                fields.iter().try_for_each(|(name, node)| {
                    budget.count_field(name)?;
                    node.count(scope, budget)
                })
            }
        }
    }

    fn visit<'t>(
        &'t self,
        place: &JsonPointer<'_>,
        see: &mut dyn FnMut(&JsonPointer<'_>, &'t Reference),
    ) {
        match self {
            Self::Constant(_) => {}
            Self::Reference(reference) => see(place, reference),
            Self::Text(parts) => parts.iter().for_each(|part| {
                if let Part::Reference(reference) = part {
                    see(place, reference);
                }
            }),
            Self::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    item.visit(&place.item(index), see);
                }
            }
            Self::Object(fields) => {
                fields.iter().for_each(|(name, node)| node.visit(&place.field(name), see));
            }
        }
    }
}

/// Splits a string into literals and references in one pass.
fn parse_text(text: &str, place: &JsonPointer<'_>) -> Result<Node, Error> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("{{") {
        if let Some(before) = before.strip_suffix('\\') {
            literal.push_str(before);
            literal.push_str("{{");
            rest = behind;
            continue;
        }
        literal.push_str(before);
        let (inside, after) = behind
            .split_once("}}")
            .ok_or_else(|| Error::new(place, format!("{{{{{}", brief(behind)), ErrorKind::Open))?;
        let reference = Reference::parse(inside)
            .map_err(|fault| Error::new(place, format!("{{{{{}}}}}", brief(inside)), fault))?;
        if !literal.is_empty() {
            parts.push(Part::Literal(std::mem::take(&mut literal)));
        }
        parts.push(Part::Reference(reference));
        rest = after;
    }
    literal.push_str(rest);
    if parts.is_empty() {
        return Ok(Node::Constant(Value::String(literal)));
    }
    if !literal.is_empty() {
        parts.push(Part::Literal(literal));
    }
    Ok(match (parts.pop(), parts.is_empty()) {
        (Some(Part::Reference(only)), true) => Node::Reference(only),
        (last, _) => Node::Text(parts.into_iter().chain(last).collect()),
    })
}

// --- resolution ---

struct Resolver<'s> {
    scope: &'s dyn Scope,
    missing: Missing,
    budget: Budget,
}

impl<'s> Resolver<'s> {
    fn fill(
        &mut self,
        node: &Node,
        place: &JsonPointer<'_>,
        levels: usize,
    ) -> Result<Value, Error> {
        // Parsing has limited the depth of the template; only resolved values can exceed the limit.
        let inside = levels.saturating_sub(1);
        match node {
            Node::Constant(value) => {
                self.spend_value(value, "the value", place)?;
                Ok(value.clone())
            }
            Node::Reference(reference) => self.put_in(reference, place, levels),
            Node::Text(parts) => self.write_out(parts, place).map(Value::String),
            Node::Array(items) => {
                self.spend(BRACKETS, place)?;
                let filled = items.iter().enumerate().map(|(index, item)| {
                    self.spend(COMMA, place)?;
                    self.fill(item, &place.item(index), inside)
                });
                filled.collect()
            }
            Node::Object(fields) => {
                self.spend(BRACKETS, place)?;
                let filled = fields.iter().map(|(name, node)| {
                    self.spend(name.len().saturating_add(QUOTES_COLON_COMMA), place)?;
                    Ok((name.clone(), self.fill(node, &place.field(name), inside)?))
                });
                filled.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
        }
    }

    /// Inserts the value of a reference that is the entire string.
    fn put_in(
        &mut self,
        reference: &Reference,
        place: &JsonPointer<'_>,
        levels: usize,
    ) -> Result<Value, Error> {
        let Some(value) = self.find(reference, place)? else {
            self.spend_value(&Value::Null, reference, place)?;
            return Ok(Value::Null);
        };
        if !nests_within(&value, levels) {
            return Err(Error::new(place, reference.to_string(), ErrorKind::TooDeep));
        }
        self.spend_value(&value, reference, place)?;
        Ok(value.into_owned())
    }

    /// Returns the string with its references replaced by their values.
    fn write_out(&mut self, parts: &[Part], place: &JsonPointer<'_>) -> Result<String, Error> {
        self.spend(QUOTES, place)?;
        let mut text = String::new();
        for part in parts {
            match part {
                Part::Literal(literal) => {
                    self.spend(literal.len(), place)?;
                    text.push_str(literal);
                }
                Part::Reference(reference) => {
                    let Some(value) = self.find(reference, place)? else { continue };
                    self.spend_value(&value, reference, place)?;
                    match value.as_str() {
                        Some(inner) => text.push_str(inner),
                        None => text.push_str(&value.to_string()),
                    }
                }
            }
        }
        Ok(text)
    }

    fn find(
        &self,
        reference: &Reference,
        place: &JsonPointer<'_>,
    ) -> Result<Option<Cow<'s, Value>>, Error> {
        match (reference.look_up(self.scope), self.missing) {
            (None, Missing::Refuse) => {
                Err(Error::new(place, reference.to_string(), ErrorKind::Nothing))
            }
            (found, Missing::Refuse | Missing::Null) => Ok(found),
        }
    }

    /// Deducts the length of `value` as JSON text from the budget, before anything is copied.
    fn spend_value(
        &mut self,
        value: &Value,
        what: impl fmt::Display,
        place: &JsonPointer<'_>,
    ) -> Result<(), Error> {
        // The only error of the writer is an exhausted budget.
        serde_json::to_writer(&mut self.budget, value).map_err(|_spent| {
            Error::new(place, what.to_string(), ErrorKind::TooLarge(self.budget.limit))
        })
    }

    fn spend(&mut self, bytes: usize, place: &JsonPointer<'_>) -> Result<(), Error> {
        self.budget
            .spend(bytes)
            .ok_or_else(|| Error::new(place, "the value", ErrorKind::TooLarge(self.budget.limit)))
    }
}

fn nests_within(value: &Value, levels: usize) -> bool {
    let Some(inside) = levels.checked_sub(1) else { return false };
    match value {
        Value::Array(items) => items.iter().all(|item| nests_within(item, inside)),
        Value::Object(fields) => fields.values().all(|field| nests_within(field, inside)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
