//! Fills the `default` values of a schema into absent properties, including those of nested objects
//! and arrays. Each value is visited once with all subschemas that apply to it, and each subschema
//! once, regardless of how many references lead to it. The number of bytes added is limited.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::graph::{Id, Node};
use super::{FILLED_BYTES_MAX, LEVELS_MAX};

/// The reason that filling in the defaults stopped early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// Filling takes too many steps, or the value is nested too deeply.
    Steps,
    /// The defaults exceed [`FILLED_BYTES_MAX`].
    Bytes,
}

/// Fills the defaults of the schema with these nodes into `value`. Idempotent.
///
/// # Errors
///
/// [`Stopped`]; `value` then contains only some of the defaults.
pub(super) fn fill(nodes: &[Node], value: &mut Value, steps: u64) -> Result<(), Stopped> {
    if nodes.iter().all(|node| node.defaults.is_empty()) {
        return Ok(());
    }
    Filler { nodes, steps, bytes: FILLED_BYTES_MAX }.fill(&[0], value, 0)
}

struct Filler<'n> {
    nodes: &'n [Node],
    steps: u64,
    bytes: usize,
}

impl<'n> Filler<'n> {
    fn fill(&mut self, ids: &[Id], value: &mut Value, level: usize) -> Result<(), Stopped> {
        if level > LEVELS_MAX {
            return Err(Stopped::Steps);
        }
        match value {
            Value::Object(fields) => {
                let nodes = self.applied(ids)?;
                self.object(&nodes, fields, level)
            }
            Value::Array(items) => {
                let nodes = self.applied(ids)?;
                let of_items: Vec<Id> = nodes.iter().filter_map(|node| node.fill_items).collect();
                if of_items.is_empty() {
                    return Ok(());
                }
                items.iter_mut().try_for_each(|item| self.fill(&of_items, item, level + 1))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => self.spend(1),
        }
    }

    /// Returns all subschemas that these subschemas apply to the same value, without duplicates.
    /// Referenced subschemas come before the subschemas that refer to them.
    fn applied(&mut self, ids: &[Id]) -> Result<Vec<&'n Node>, Stopped> {
        let mut seen = HashSet::new();
        let mut applied = Vec::new();
        let mut open: Vec<(Id, bool)> = ids.iter().rev().map(|id| (*id, false)).collect();
        while let Some((id, is_entered)) = open.pop() {
            self.spend(1)?;
            let Some(node) = self.nodes.get(id) else { continue };
            if is_entered {
                applied.push(node);
            } else if seen.insert(id) {
                open.push((id, true));
                open.extend(node.fills.iter().rev().map(|part| (*part, false)));
            }
        }
        Ok(applied)
    }

    fn object(
        &mut self,
        nodes: &[&'n Node],
        fields: &mut Map<String, Value>,
        level: usize,
    ) -> Result<(), Stopped> {
        // The number of the subschema that added each property. This subschema is not applied to
        // its own default.
        let mut put_in: HashMap<&str, usize> = HashMap::new();
        for (number, node) in nodes.iter().enumerate() {
            for (name, default) in &node.defaults {
                self.spend(1)?;
                if !fields.contains_key(name) {
                    self.take(default)?;
                    fields.insert(name.clone(), default.clone());
                    put_in.insert(name, number);
                }
            }
        }
        for (name, field) in fields.iter_mut() {
            let from = put_in.get(name.as_str()).map_or(0, |number| number + 1);
            let of_field = nodes.iter().skip(from).filter_map(|node| node.properties.get(name));
            let of_field: Vec<Id> = of_field.copied().collect();
            self.spend(nodes.len() as u64)?;
            if !of_field.is_empty() {
                self.fill(&of_field, field, level + 1)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, default: &Value) -> Result<(), Stopped> {
        let bytes = default.to_string().len();
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Stopped::Bytes)?;
        Ok(())
    }

    fn spend(&mut self, steps: u64) -> Result<(), Stopped> {
        self.steps = self.steps.checked_sub(steps).ok_or(Stopped::Steps)?;
        Ok(())
    }
}
