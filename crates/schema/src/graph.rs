//! A schema as a graph of its subschemas, connected by keywords and references: the basis of
//! [`super::size`], [`super::work`] and [`super::defaults`].
//!
//! There is an edge wherever a validator may go. If the target is not known in advance (dynamic
//! references, duplicate anchors), there is an edge to every candidate. The counts are therefore
//! never too low.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::{Error, PATTERN_BYTES, Violation, faults};

/// Maximum number of edges. A schema with more edges expands too far, regardless of its shape.
const EDGES_MAX: usize = 1_000_000;
/// The worst-case cost of matching: the maximum size of the compiled pattern, and the steps per
/// [`CHARGED_BYTES`] of text. Small patterns become automata that read one byte at a time; for
/// large patterns, the engine may have to follow thousands of states per byte.
const CHARGES: [(usize, u64); 5] =
    [(8 << 10, 1), (16 << 10, 400), (32 << 10, 800), (64 << 10, 1600), (128 << 10, 3200)];
const CHARGE_MAX: u64 = 6400;
/// Bytes of text to which a pattern's charge applies.
pub(super) const CHARGED_BYTES: u64 = 16;

pub(super) type Id = usize;

/// A subschema. The fields up to `unused` contain its children, grouped by the values to which the
/// children are applied.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Children that apply to the same value.
    pub in_place: Vec<Id>,
    /// Children that apply to an object's member, by the member's name.
    pub properties: HashMap<String, Id>,
    /// Children that apply to members whose names match a pattern with this charge.
    pub pattern_properties: Vec<(u64, Id)>,
    /// The child that applies to members that `properties` does not name.
    pub additional: Option<Id>,
    /// Children that apply to any member to which no other child was applied.
    pub unevaluated: Vec<Id>,
    /// The child that applies to the names of members.
    pub names: Option<Id>,
    /// Children that apply to the first elements of an array, in order.
    pub prefix: Vec<Id>,
    /// The child that applies to the remaining elements.
    pub rest: Option<Id>,
    /// Children that apply to any element.
    pub elements: Vec<Id>,
    /// Children that are never used in validation, such as `contentSchema`.
    pub unused: Vec<Id>,
    /// Number of values in `enum`, `const`, `required` and the like, which are compared one by one.
    pub constants: u64,
    /// Steps of `pattern` per [`CHARGED_BYTES`] of text.
    pub pattern: u64,
    pub is_unique: bool,
    /// Whether the subschema has `unevaluatedProperties` or `unevaluatedItems`, which require
    /// tracking the members to which other subschemas were applied.
    pub marks: bool,
    /// Whether the subschema reports the violations of several alternatives.
    pub branches: bool,
    /// The members of `in_place` whose defaults are filled in: `$ref`, then `allOf`.
    pub fills: Vec<Id>,
    /// The defaults of properties.
    pub defaults: Vec<(String, Value)>,
    /// The schema of all elements, if there is a single one.
    pub fill_items: Option<Id>,
}

impl Node {
    /// Returns all children, starting with those applied in place.
    pub(crate) fn children(&self) -> Vec<Id> {
        let mut all = self.in_place.clone();
        all.extend(self.properties.values());
        all.extend(self.pattern_properties.iter().map(|(_, id)| id));
        all.extend(self.additional.iter().chain(&self.names).chain(&self.rest));
        all.extend(self.unevaluated.iter().chain(&self.prefix).chain(&self.elements));
        all.extend(&self.unused);
        all
    }
}

/// Builds the graph of a schema. The root is the first node.
pub(super) fn build(schema: &Value) -> Result<Vec<Node>, Error> {
    let mut builder = Builder {
        root: schema,
        is_draft_4: text(schema, "$schema").is_some_and(|uri| uri.contains("draft-04")),
        anchors: HashMap::new(),
        ids: HashMap::new(),
        queue: Vec::new(),
        nodes: 0,
        edges: 0,
    };
    builder.index_anchors(schema);
    builder.id(schema)?;
    let mut nodes = Vec::new();
    let mut next = 0;
    // Processes subschemas in the order of their ids and without recursion, since chains of
    // references can be long.
    while let Some(value) = builder.queue.get(next).copied() {
        nodes.push(builder.read(value)?);
        next += 1;
    }
    Ok(nodes)
}

struct Builder<'s> {
    root: &'s Value,
    is_draft_4: bool,
    anchors: HashMap<&'s str, Vec<&'s Value>>,
    /// Ids by the address of the subschema in the document.
    ids: HashMap<*const Value, Id>,
    /// Subschemas by their ids.
    queue: Vec<&'s Value>,
    nodes: usize,
    edges: usize,
}

impl<'s> Builder<'s> {
    fn index_anchors(&mut self, value: &'s Value) {
        match value {
            Value::Object(fields) => {
                for keyword in ["$anchor", "$dynamicAnchor"] {
                    if let Some(name) = text(value, keyword) {
                        self.anchors.entry(name).or_default().push(value);
                    }
                }
                for keyword in ["$id", "id"] {
                    if let Some(name) = text(value, keyword).and_then(|id| id.strip_prefix('#')) {
                        self.anchors.entry(name).or_default().push(value);
                    }
                }
                fields.values().for_each(|field| self.index_anchors(field));
            }
            Value::Array(items) => items.iter().for_each(|item| self.index_anchors(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn id(&mut self, schema: &'s Value) -> Result<Id, Error> {
        self.edges += 1;
        if self.edges > EDGES_MAX {
            return Err(Error::TooExpanded);
        }
        let known = self.ids.get(&std::ptr::from_ref(schema)).copied();
        Ok(known.unwrap_or_else(|| {
            let id = self.nodes;
            self.nodes += 1;
            self.ids.insert(schema, id);
            self.queue.push(schema);
            id
        }))
    }

    fn ids<I: IntoIterator<Item = &'s Value>>(&mut self, schemas: I) -> Result<Vec<Id>, Error> {
        schemas.into_iter().map(|schema| self.id(schema)).collect()
    }

    fn read(&mut self, schema: &'s Value) -> Result<Node, Error> {
        let mut node = Node::default();
        let Value::Object(fields) = schema else { return Ok(node) };
        self.refuse_base(schema)?;
        // References come before alternatives.
        self.references(fields, &mut node)?;
        for (keyword, value) in fields {
            self.keyword(keyword, value, &mut node)?;
        }
        if let Some(Value::Object(properties)) = fields.get("properties") {
            let defaults = properties.iter().filter_map(|(name, property)| {
                Some((name.clone(), property.get("default")?.clone()))
            });
            node.defaults = defaults.collect();
        }
        Ok(node)
    }

    /// Rejects a nested `$id`, because it would make the meaning of references inside it depend on
    /// the path that leads there.
    fn refuse_base(&self, schema: &Value) -> Result<(), Error> {
        let is_root = std::ptr::eq(schema, self.root);
        let id = text(schema, if self.is_draft_4 { "id" } else { "$id" });
        match id {
            Some(id) if !is_root && !id.starts_with('#') => Err(Error::NestedId(id.to_owned())),
            _ => Ok(()),
        }
    }

    fn references(&mut self, fields: &'s Map<String, Value>, node: &mut Node) -> Result<(), Error> {
        for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
            let Some(Value::String(reference)) = fields.get(keyword) else { continue };
            let targets = self.targets(reference)?;
            let targets = self.ids(targets)?;
            if keyword == "$ref" {
                node.fills.extend(&targets);
            }
            node.in_place.extend(targets);
        }
        Ok(())
    }

    fn keyword(&mut self, keyword: &str, value: &'s Value, node: &mut Node) -> Result<(), Error> {
        let subschemas = match value {
            Value::Array(items) => items.iter().collect::<Vec<_>>(),
            Value::Object(fields) => fields.values().collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        };
        match keyword {
            "allOf" => {
                let parts = self.ids(subschemas)?;
                node.fills.extend(&parts);
                node.in_place.extend(parts);
            }
            "anyOf" | "oneOf" => {
                node.branches = true;
                node.in_place.extend(self.ids(subschemas)?);
            }
            "not" | "if" | "then" | "else" => node.in_place.push(self.id(value)?),
            "dependentSchemas" => node.in_place.extend(self.ids(subschemas)?),
            "dependencies" => {
                node.constants += values_in(value);
                let schemas = subschemas.into_iter().filter(|schema| !schema.is_array());
                node.in_place.extend(self.ids(schemas)?);
            }
            "properties" => {
                for (name, property) in value.as_object().into_iter().flatten() {
                    let id = self.id(property)?;
                    node.properties.insert(name.clone(), id);
                }
            }
            "patternProperties" => {
                for (pattern, property) in value.as_object().into_iter().flatten() {
                    let id = self.id(property)?;
                    node.pattern_properties.push((charge(pattern), id));
                }
            }
            "additionalProperties" => node.additional = Some(self.id(value)?),
            "propertyNames" => node.names = Some(self.id(value)?),
            "unevaluatedProperties" => {
                node.marks = true;
                node.unevaluated.push(self.id(value)?);
            }
            "unevaluatedItems" => {
                node.marks = true;
                node.elements.push(self.id(value)?);
            }
            "contains" => node.elements.push(self.id(value)?),
            "prefixItems" => node.prefix = self.ids(subschemas)?,
            "items" if value.is_array() => node.prefix = self.ids(subschemas)?,
            "items" => {
                let id = self.id(value)?;
                (node.rest, node.fill_items) = (Some(id), Some(id));
            }
            "additionalItems" if node.rest.is_none() => node.rest = Some(self.id(value)?),
            "contentSchema" => node.unused.push(self.id(value)?),
            "uniqueItems" => node.is_unique = *value == Value::Bool(true),
            "pattern" => node.pattern = value.as_str().map_or(0, charge),
            "enum" | "const" | "required" | "dependentRequired" => {
                node.constants += values_in(value);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the possible targets of a reference within the document.
    fn targets(&self, reference: &str) -> Result<Vec<&'s Value>, Error> {
        let nothing = || {
            let message = format!("\"$ref\": \"{reference}\" points to nothing in the schema");
            let path = faults::place_of(self.root, reference, "").unwrap_or_default();
            Error::Invalid(Violation { path, message })
        };
        let fragment = reference.strip_prefix('#').ok_or_else(nothing)?;
        let decoded = percent_decode_str(fragment).decode_utf8_lossy();
        if decoded.is_empty() {
            return Ok(vec![self.root]);
        }
        let Some(pointer) = decoded.strip_prefix('/') else {
            return self.anchors.get(decoded.as_ref()).cloned().ok_or_else(nothing);
        };
        let mut found = self.root;
        for segment in pointer.split('/') {
            let segment = segment.replace("~1", "/").replace("~0", "~");
            let next = match found {
                Value::Object(fields) => fields.get(&segment),
                Value::Array(items) => segment.parse::<usize>().ok().and_then(|at| items.get(at)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
            };
            found = next.ok_or_else(nothing)?;
            self.refuse_base(found)?;
        }
        Ok(vec![found])
    }
}

fn text<'v>(value: &'v Value, keyword: &str) -> Option<&'v str> {
    value.get(keyword)?.as_str()
}

/// Returns the number of JSON values in a value, including itself. Long strings count as several.
fn values_in(value: &Value) -> u64 {
    match value {
        Value::Object(fields) => fields.values().map(values_in).sum::<u64>() + 1,
        Value::Array(items) => items.iter().map(values_in).sum::<u64>() + 1,
        Value::String(text) => 1 + text.len() as u64 / 64,
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

fn charge(pattern: &str) -> u64 {
    let fits = |limit: usize| {
        let limit = limit.min(PATTERN_BYTES);
        regex::RegexBuilder::new(pattern).size_limit(limit).build().is_ok()
    };
    CHARGES.into_iter().find(|(limit, _)| fits(*limit)).map_or(CHARGE_MAX, |(_, charge)| charge)
}
