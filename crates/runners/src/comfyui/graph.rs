//! The graph of a manifest in ComfyUI's API form, and the inputs that requests fill in. This module
//! sends no requests.

use std::path::Path;

use serde_json::{Map, Value};

use crate::http::excerpt;
use orrery_config::reader::{Parsed, Section, json_beside};
use orrery_config::values::{self, problem};

/// Maximum size of a graph file, in bytes.
const GRAPH_MAX: u64 = 4 * 1024 * 1024;
/// Maximum number of nodes of a graph.
const NODES_MAX: usize = 10_000;

/// A graph, and the node inputs that requests fill in.
#[derive(Debug, PartialEq)]
pub(super) struct Graph {
    nodes: Map<String, Value>,
    pub inputs: Vec<Input>,
}

/// An input of a node that a request fills in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Input {
    /// The name of the property in requests.
    pub name: String,
    /// The ID of the node.
    pub node: String,
    /// The name of the node's input.
    pub field: String,
}

impl Graph {
    /// Reads the keys `graph` and `inputs`.
    pub(super) fn read(section: &mut Section<'_>, folder: &Path) -> Option<Self> {
        let nodes = section.required("graph", |value| {
            let graph = json_beside(&values::text(value)?, folder, GRAPH_MAX);
            graph.and_then(nodes).map_err(|message| problem(value, message))
        });
        let inputs = section.get("inputs", Vec::new(), values::map(input));
        let nodes = nodes?;
        for input in &inputs {
            if let Err(message) = check(&nodes, input) {
                section.error("inputs", message);
            }
        }
        Some(Self { nodes, inputs })
    }

    /// Returns the class of a node.
    pub(super) fn class(&self, node: &str) -> Option<&str> {
        self.nodes.get(node)?.get("class_type")?.as_str()
    }

    /// Returns the classes of all nodes.
    pub(super) fn classes(&self) -> impl Iterator<Item = &str> {
        self.nodes.values().filter_map(|node| node.get("class_type")?.as_str())
    }

    /// Returns the description of a node for messages: its ID, and its title or class.
    pub(super) fn name_of(&self, node: &str) -> String {
        let title = self.nodes.get(node).and_then(|node| node.pointer("/_meta/title")?.as_str());
        // A server may send any text in place of an ID.
        let id = excerpt(node.as_bytes());
        match title.filter(|title| !title.is_empty()).or_else(|| self.class(node)) {
            Some(name) => format!("node {id} ({})", excerpt(name.as_bytes())),
            None => format!("node {id}"),
        }
    }

    /// Returns the graph's own value for an input.
    pub(super) fn written(&self, input: &Input) -> Option<&Value> {
        self.nodes.get(&input.node)?.get("inputs")?.get(&input.field)
    }

    /// Returns the graph with these values.
    pub(super) fn fill<'i>(&self, values: impl Iterator<Item = (&'i Input, Value)>) -> Value {
        let mut nodes = self.nodes.clone();
        for (input, value) in values {
            let fields = nodes.get_mut(&input.node).and_then(|node| node.get_mut("inputs"));
            if let Some(fields) = fields.and_then(Value::as_object_mut) {
                fields.insert(input.field.clone(), value);
            }
        }
        Value::Object(nodes)
    }
}

/// Checks that a JSON value is a graph in the API form.
fn nodes(graph: Value) -> Result<Map<String, Value>, String> {
    let Value::Object(nodes) = graph else { return Err("is not a graph".to_owned()) };
    if nodes.get("nodes").is_some_and(Value::is_array) {
        let message = "is the graph of ComfyUI's editor: export it with File, Export (API)";
        return Err(message.to_owned());
    }
    if nodes.is_empty() || nodes.len() > NODES_MAX {
        return Err(format!("must have 1 to {NODES_MAX} nodes"));
    }
    for (id, node) in &nodes {
        let has_class = node.get("class_type").is_some_and(Value::is_string);
        if !has_class || !node.get("inputs").is_some_and(Value::is_object) {
            return Err(format!("its node {id:?} has no `class_type` and `inputs`"));
        }
    }
    Ok(nodes)
}

/// Reads one entry of `inputs`, such as `prompt = "6.inputs.text"`.
fn input(name: &str, value: &values::Value<'_>) -> Parsed<Input> {
    let text = values::string(value)?;
    let wrong = || values::wrong(value, "an input of a node, such as \"6.inputs.text\"");
    let (node, field) = text.split_once(".inputs.").ok_or_else(wrong)?;
    if name.is_empty() || node.is_empty() || field.is_empty() {
        return Err(wrong());
    }
    Ok(Input { name: name.to_owned(), node: node.to_owned(), field: field.to_owned() })
}

/// Checks that a request can fill in an input.
fn check(nodes: &Map<String, Value>, input: &Input) -> Result<(), String> {
    let Input { name, node, field } = input;
    let found = nodes.get(node).ok_or_else(|| format!("{name}: the graph has no node {node:?}"))?;
    let written = found.get("inputs").and_then(|inputs| inputs.get(field));
    if let Some(Value::Array(link)) = written {
        let from = link.first().and_then(Value::as_str).unwrap_or_default();
        return Err(format!("{name}: {field:?} of node {node:?} is connected to node {from:?}"));
    }
    Ok(())
}
