//! From a definition to the older shape.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{KEPT, MODEL_TYPE, MODEL_VERSION, Object, names, object, print_of, text};
use crate::domain::template::Template;

/// A workflow in the older shape, apart from its name and description.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    pub workspace_id: String,
    pub thumbnail_url: String,
    pub inputs: Vec<Value>,
    pub outputs: Vec<Value>,
    pub steps: Vec<Value>,
    /// As they came while the steps are those that were drawn; else a plain drawing of the steps.
    pub nodes_json: String,
    pub edges_json: String,
    /// Which step refers to which.
    pub edges: Vec<Value>,
}

/// The older shape of a definition.
#[must_use]
pub fn view(definition: &Value) -> View {
    let metadata = definition.get("metadata");
    let kept = metadata.and_then(|metadata| metadata.get(KEPT));
    let empty = Vec::new();
    let written = definition.get("steps");
    let steps = written.and_then(Value::as_array).unwrap_or(&empty);
    let is_drawn = written.is_some_and(|steps| text(kept, "drawn_for") == print_of(steps));
    let drawn = |name: &str| {
        let drawing = text(kept, name);
        if is_drawn && !drawing.is_empty() { Some(drawing.to_owned()) } else { None }
    };
    let edges = edges(steps);
    let nodes_json = drawn("nodes_json").unwrap_or_else(|| nodes(steps).to_string());
    let edges_json = drawn("edges_json").unwrap_or_else(|| Value::from(edges.clone()).to_string());
    View {
        workspace_id: text(kept, "workspace_id").to_owned(),
        thumbnail_url: text(kept, "thumbnail_url").to_owned(),
        inputs: inputs(definition, kept),
        outputs: outputs(metadata, kept),
        steps: steps.iter().map(|step| legacy_step(step, kept)).collect(),
        nodes_json,
        edges_json,
        edges,
    }
}

fn inputs(definition: &Value, kept: Option<&Value>) -> Vec<Value> {
    let schema = definition.get("input_schema");
    let types = object(kept, "input_types");
    let properties = object(schema, "properties");
    let input = |(name, property): (&String, &Value)| {
        let word = types.and_then(|types| types.get(name)?.as_str()).unwrap_or_default();
        let kind = property.get("type").and_then(Value::as_str).unwrap_or("string");
        let default = match property.get("default") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let word = if word.is_empty() { kind } else { word };
        json!({"name": name, "type": word, "default_value": default})
    };
    properties.into_iter().flatten().map(input).collect()
}

fn outputs(metadata: Option<&Value>, kept: Option<&Value>) -> Vec<Value> {
    let types = object(kept, "output_types");
    let output = |(name, value): (&String, &Value)| {
        let word = types.and_then(|types| types.get(name)?.as_str()).unwrap_or("string");
        let value = names::to_legacy(value);
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        json!({"name": name, "type": word, "value": value})
    };
    object(metadata, "output_mapping").into_iter().flatten().map(output).collect()
}

fn legacy_step(step: &Value, kept: Option<&Value>) -> Value {
    let id = step_id(step);
    let name = text(Some(step), "name");
    let name = if name.is_empty() { id } else { name };
    if text(Some(step), "type") == "model" {
        let version =
            object(kept, "model_versions").and_then(|versions| versions.get(id)?.as_str());
        return json!({
            "id": id,
            "name": name,
            "type": MODEL_TYPE,
            "model_slug": text(Some(step), "model"),
            "model_version": version.unwrap_or(MODEL_VERSION),
            "params": names::to_legacy(step.get("params").unwrap_or(&json!({}))),
        });
    }
    let mut params = step.as_object().cloned().unwrap_or_default();
    for name in ["step_id", "id", "name", "type"] {
        params.shift_remove(name);
    }
    json!({
        "id": id,
        "name": name,
        "type": text(Some(step), "type"),
        "model_slug": "",
        "model_version": "",
        "params": names::to_legacy(&Value::Object(params)),
    })
}

fn step_id(step: &Value) -> &str {
    let id = text(Some(step), "step_id");
    if id.is_empty() { text(Some(step), "id") } else { id }
}

fn nodes(steps: &[Value]) -> Value {
    let node = |step: &Value| {
        let name = text(Some(step), "name");
        let label = if name.is_empty() { step_id(step) } else { name };
        json!({"id": step_id(step), "type": text(Some(step), "type"), "data": {"label": label}})
    };
    steps.iter().map(node).collect()
}

/// An edge for each step that another one refers to or names in `depends_on`.
fn edges(steps: &[Value]) -> Vec<Value> {
    let mut edges = Vec::new();
    for step in steps {
        let target = step_id(step);
        let mut sources: HashSet<String> = HashSet::new();
        let waits_for = step.get("depends_on").and_then(Value::as_array).into_iter().flatten();
        sources.extend(waits_for.filter_map(Value::as_str).map(str::to_owned));
        let fields: Object = step.as_object().cloned().unwrap_or_default();
        if let Ok(template) = Template::parse(&Value::Object(fields)) {
            for reference in template.references() {
                if let crate::domain::reference::Root::Name(name) = reference.root() {
                    sources.insert(name.clone());
                }
            }
        }
        for other in steps.iter().map(step_id).filter(|other| *other != target) {
            if sources.contains(other) {
                let id = format!("{other}-{target}");
                edges.push(json!({"id": id, "source": other, "target": target, "type": "default"}));
            }
        }
    }
    edges
}
