//! Computes an upper bound on the steps for validating a value against a schema. The bound must be
//! known before a validator runs, because a validating thread cannot be stopped.
//!
//! Counting follows the paths of the validator, without its early exits and without evaluating
//! patterns or numbers, and stops at a limit. Counting also detects recursive schemas with repeated
//! alternatives, whose cost grows exponentially with the depth of the value.

use std::collections::HashMap;

use serde_json::Value;

use super::graph::{Id, Node};
use super::size::InPlace;
use super::{LEVELS_MAX, Schema};

/// Upper bounds on steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Steps to decide whether the value is valid.
    pub steps: u64,
    /// Steps to determine the members and elements to which a subschema was applied.
    marks: u64,
    /// Steps to report all violations: each level first decides whether it is valid and then
    /// reports.
    pub telling: u64,
    /// Nesting depth of subschemas below this one.
    below: usize,
}

/// Maximum number of steps counted without memoization. Beyond that, equal parts are counted once.
const PLAIN_MAX: u64 = 200_000;
/// Maximum number of memoized parts.
const KEPT_MAX: usize = 500_000;

impl Work {
    fn add(&mut self, part: Self) {
        self.steps = self.steps.saturating_add(part.steps);
        self.telling = self.telling.saturating_add(part.telling);
        self.below = self.below.max(part.below.saturating_add(1));
    }
}

/// The limit was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Over;

/// Measures the cost of validating `value`.
///
/// # Errors
/// [`Over`] if validation takes more than `limit` steps, or if `value` is nested deeper than a
/// thread's stack allows.
pub(super) fn measure(schema: &Schema, value: &Value, limit: u64) -> Result<Work, Over> {
    let plain = limit.min(PLAIN_MAX);
    let mut counter = Counter { schema, left: plain, limit: plain, kept: None };
    counter.node(0, value, 0).or_else(|over| {
        if limit <= plain {
            return Err(over);
        }
        let kept = Some(HashMap::new());
        Counter { schema, left: limit, limit, kept }.node(0, value, 0)
    })
}

struct Counter<'s> {
    schema: &'s Schema,
    /// Number of steps that counting itself may still take.
    left: u64,
    limit: u64,
    /// The measured cost of each pair of a subschema and the address of an object or array.
    kept: Option<HashMap<(Id, *const Value), Work>>,
}

impl Counter<'_> {
    fn node(&mut self, id: Id, value: &Value, level: usize) -> Result<Work, Over> {
        self.spend(1)?;
        let schema = self.schema;
        let (Some(node), Some(cost)) = (schema.nodes.get(id), schema.costs.get(id)) else {
            return Ok(Work::default());
        };
        if level.saturating_add(cost.depth) > LEVELS_MAX {
            return Err(Over);
        }
        let work = match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => whole(cost, cost.steps),
            Value::String(text) => whole(cost, cost.steps_of_text(text.len())),
            Value::Array(_) | Value::Object(_) => self.once(id, node, value, level)?,
        };
        let is_over = work.steps > self.limit || level.saturating_add(work.below) > LEVELS_MAX;
        if is_over { Err(Over) } else { Ok(work) }
    }

    fn once(&mut self, id: Id, node: &Node, value: &Value, level: usize) -> Result<Work, Over> {
        let key = (id, std::ptr::from_ref(value));
        if let Some(work) = self.kept.as_ref().and_then(|kept| kept.get(&key)) {
            return Ok(*work);
        }
        let work = self.container(node, value, level)?;
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.len() < KEPT_MAX) {
            kept.insert(key, work);
        }
        Ok(work)
    }

    fn container(&mut self, node: &Node, value: &Value, level: usize) -> Result<Work, Over> {
        // For each level, a validator searches the levels above it for a cyclic reference.
        let own = 1 + node.constants + level as u64 / 16;
        let mut work = Work { steps: own, marks: 1, telling: own, below: 0 };
        for part in &node.in_place {
            let part = self.node(*part, value, level + 1)?;
            work.add(part);
            work.marks = work.marks.saturating_add(part.steps).saturating_add(part.marks);
        }
        let before = work.steps;
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    self.member(node, name, field, level, &mut work)?;
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.element(node, index, item, level, &mut work)?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        if node.is_unique {
            let size = self.size(value)?;
            work.steps = work.steps.saturating_add(size.saturating_mul(8));
        }
        if node.marks {
            let inside = work.steps.saturating_sub(before);
            work.marks = work.marks.saturating_add(inside);
            work.steps = work.steps.saturating_add(work.marks);
        }
        work.telling = work.telling.saturating_add(work.steps);
        Ok(work)
    }

    fn member(
        &mut self,
        node: &Node,
        name: &str,
        field: &Value,
        level: usize,
        work: &mut Work,
    ) -> Result<(), Over> {
        self.spend(1)?;
        work.steps = work.steps.saturating_add(1);
        work.marks = work.marks.saturating_add(1);
        let named = node.properties.get(name);
        for id in named.or(node.additional.as_ref()).into_iter().chain(&node.unevaluated) {
            work.add(self.node(*id, field, level + 1)?);
        }
        for (charge, id) in &node.pattern_properties {
            let matching = charge.saturating_mul(name.len() as u64 / 16).saturating_add(1);
            work.steps = work.steps.saturating_add(matching);
            work.add(self.node(*id, field, level + 1)?);
        }
        if let Some(cost) = node.names.and_then(|id| self.schema.costs.get(id)) {
            work.steps = work.steps.saturating_add(cost.steps_of_text(name.len()));
        }
        Ok(())
    }

    fn element(
        &mut self,
        node: &Node,
        index: usize,
        item: &Value,
        level: usize,
        work: &mut Work,
    ) -> Result<(), Over> {
        let first = node.prefix.get(index);
        for id in first.or(node.rest.as_ref()).into_iter().chain(&node.elements) {
            work.add(self.node(*id, item, level + 1)?);
        }
        Ok(())
    }

    /// Returns the number of JSON values in a value.
    fn size(&mut self, value: &Value) -> Result<u64, Over> {
        self.spend(1)?;
        let mut size = 1_u64;
        match value {
            Value::Object(fields) => {
                for field in fields.values() {
                    size = size.saturating_add(self.size(field)?);
                }
            }
            Value::Array(items) => {
                for item in items {
                    size = size.saturating_add(self.size(item)?);
                }
            }
            Value::String(text) => size = size.saturating_add(text.len() as u64 / 64),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(size)
    }

    fn spend(&mut self, steps: u64) -> Result<(), Over> {
        self.left = self.left.checked_sub(steps).ok_or(Over)?;
        Ok(())
    }
}

fn whole(cost: &InPlace, steps: u64) -> Work {
    let depth = cost.depth as u64;
    let telling = steps.saturating_mul(depth.saturating_add(1));
    Work { steps, marks: cost.marks, telling, below: cost.depth }
}
