//! Derives the request schema of a graph from the descriptions of its nodes (`/object_info`). This
//! module sends no requests.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::UPLOAD_PREFIX;
use super::graph::{Graph, Input};
use crate::ModelInterface;
use orrery_domain::model::OutputType;
use orrery_schema::Schema;

/// Largest random seed: larger integers are not exact in JavaScript.
const SEED_MAX: u64 = (1 << 53) - 1;

/// How the value of an input gets into the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Value,
    /// The value refers to a file, which is uploaded.
    File,
    /// A random number up to this maximum, unless the request sets the value.
    Seed(u64),
}

/// What a graph accepts and returns.
#[derive(Debug)]
pub(super) struct Interface {
    pub model: Arc<ModelInterface>,
    /// The kinds of the graph's inputs, in their order.
    pub kinds: Arc<[Kind]>,
}

/// Returns the interface of a graph; `classes` contains the description of each node class that has
/// inputs.
///
/// # Errors
/// The fault, as a phrase that follows the model's name.
pub(super) fn read(graph: &Graph, classes: &HashMap<String, Value>) -> Result<Interface, String> {
    let mut properties = Map::new();
    let mut required = Vec::new();
    let mut kinds = Vec::with_capacity(graph.inputs.len());
    for input in &graph.inputs {
        let class = graph.class(&input.node).unwrap_or_default();
        let description = classes.get(class).and_then(|class| declaration(class, &input.field));
        let place = || format!("`inputs.{}`: {}", input.name, graph.name_of(&input.node));
        let description = description
            .ok_or_else(|| format!("{}: its class has no input {:?}", place(), input.field))?;
        let (mut property, kind) = property(description)
            .ok_or_else(|| format!("{}: {:?} must be connected", place(), input.field))?;
        property.insert("title".to_owned(), input.name.clone().into());
        match (kind, graph.written(input)) {
            (Kind::Value, Some(written)) => {
                property.insert("default".to_owned(), written.clone());
            }
            (Kind::Value, None) if !property.contains_key("default") => {
                required.push(Value::from(input.name.as_str()));
            }
            (Kind::File, None) => required.push(input.name.as_str().into()),
            (Kind::Value, None) | (Kind::File | Kind::Seed(_), _) => {}
        }
        properties.insert(input.name.clone(), property.into());
        kinds.push(kind);
    }
    let schema = json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    });
    let schema = Schema::compile(&schema).map_err(|error| format!("has inputs with {error}"))?;
    let model = ModelInterface { schema: Arc::new(schema), output_type: output_type(graph) };
    Ok(Interface { model: Arc::new(model), kinds: kinds.into() })
}

/// Returns the declaration of an input, `[type, options]`, in the description of a class.
fn declaration<'c>(class: &'c Value, field: &str) -> Option<&'c Value> {
    let inputs = class.get("input")?;
    ["required", "optional"].iter().find_map(|group| inputs.get(group)?.get(field))
}

/// Returns the schema of an input; `None` if the input can only be connected to other nodes.
fn property(declaration: &Value) -> Option<(Map<String, Value>, Kind)> {
    let none = Value::Null;
    let options = declaration.get(1).unwrap_or(&none);
    let is_set = |name: &str| match options.get(name) {
        Some(Value::Bool(flag)) => *flag,
        // Since 2025, the name of the mode that is selected at first.
        Some(Value::String(_)) => true,
        _ => false,
    };
    let mut property = Map::new();
    let mut kind = Kind::Value;
    let mut set = |name: &str, value: Value| property.insert(name.to_owned(), value);
    let choices = match declaration.get(0)? {
        Value::Array(choices) => Some(choices.as_slice()),
        Value::String(name) => match name.as_str() {
            "COMBO" => Some(options.get("options").and_then(Value::as_array)?.as_slice()),
            "STRING" => {
                set("type", "string".into());
                None
            }
            "BOOLEAN" => {
                set("type", "boolean".into());
                None
            }
            "INT" | "FLOAT" => {
                set("type", if name == "INT" { "integer" } else { "number" }.into());
                for (keyword, bound) in [("minimum", "min"), ("maximum", "max")] {
                    if let Some(bound) = options.get(bound).filter(|bound| bound.is_number()) {
                        set(keyword, bound.clone());
                    }
                }
                if name == "INT" && is_set("control_after_generate") {
                    let max = options.get("max").and_then(Value::as_u64).unwrap_or(SEED_MAX);
                    kind = Kind::Seed(max.min(SEED_MAX));
                }
                None
            }
            _ => return None,
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
    };
    if let Some(choices) = choices {
        let uploads = ["image_upload", "audio_upload", "video_upload", "animated_image_upload"];
        if uploads.iter().any(|upload| is_set(upload)) {
            kind = Kind::File;
            set("type", "string".into());
            set("format", "uri".into());
        } else {
            // Uploads of other requests stay on the server.
            let is_upload = |choice: &&Value| {
                choice.as_str().is_some_and(|name| name.starts_with(UPLOAD_PREFIX))
            };
            let own = choices.iter().filter(|choice| !is_upload(choice));
            set("enum", own.cloned().collect());
        }
    }
    if let Some(default) = options.get("default").filter(|_| kind == Kind::Value) {
        set("default", default.clone());
    }
    if let Some(tip) = options.get("tooltip").filter(|tip| tip.is_string()) {
        set("description", tip.clone());
    }
    Some((property, kind))
}

/// Returns what the nodes save: files of one type, or any files.
pub(super) fn output_type(graph: &Graph) -> OutputType {
    let types = graph.classes().filter_map(|class| {
        let is = |word: &str| class.contains(word);
        let saves = is("Save") || is("Preview") || is("Combine");
        match () {
            () if !saves => None,
            () if is("Audio") => Some(OutputType::Audio),
            () if is("Video") || is("WEBM") => Some(OutputType::Video),
            () if is("Image") || is("Animated") => Some(OutputType::Image),
            () => None,
        }
    });
    types
        .reduce(|one, other| if one == other { one } else { OutputType::File })
        .unwrap_or(OutputType::File)
}

/// Returns the input's value for a seed that a request does not set.
pub(super) fn random_seed(input: &Input, max: u64) -> Result<Value, String> {
    let random = orrery_runtime::random_bytes();
    let random = random.map_err(|error| format!("no random `{}`: {error}", input.name))?;
    Ok((u64::from_be_bytes(random) % max.saturating_add(1)).into())
}
