//! Conversion from the legacy form to a definition.

use std::collections::{HashMap, HashSet};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{KEPT, MODEL_TYPE, Object, names, object, print_of, text};
use crate::definition::STEPS_MAX;
use crate::model::VERSION;
use crate::wide_integer::wide_integer;

/// Maximum number of inputs, and of outputs, of a workflow in the legacy form.
const LISTED_MAX: usize = 1000;

/// The problem of a workflow in the legacy form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

fn wrong<T>(message: impl Into<String>) -> Result<T, Error> {
    Err(Error(message.into()))
}

/// A workflow in the legacy form, without its name and description.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct Shape {
    /// A string that the client chooses, which is returned unchanged.
    pub workspace_id: Option<String>,
    /// The URL of a picture, which is returned unchanged.
    pub thumbnail_url: Option<String>,
    /// The inputs of the workflow.
    #[schemars(length(max = LISTED_MAX))]
    pub inputs: Option<Vec<NewInput>>,
    /// The outputs of the workflow.
    #[schemars(length(max = LISTED_MAX))]
    pub outputs: Option<Vec<NewOutput>>,
    /// The steps of the workflow.
    #[schemars(length(min = 1, max = STEPS_MAX))]
    pub steps: Vec<NewStep>,
    /// The nodes of the editor's graph, as JSON text.
    pub nodes_json: Option<String>,
    /// The edges of the editor's graph, as JSON text.
    pub edges_json: Option<String>,
}

/// An input of a workflow in the legacy form.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(rename = "LegacyNewInput")]
pub struct NewInput {
    /// The name of the input.
    #[schemars(length(min = 1, max = names::NAME_BYTES_MAX))]
    pub name: String,
    /// The type of the input, such as `string`, which is the default.
    pub r#type: Option<String>,
    /// The default value as a string, which must be valid for the input's type.
    pub default_value: Option<Value>,
}

/// An output of a workflow in the legacy form.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(rename = "LegacyNewOutput")]
pub struct NewOutput {
    /// The name of the output.
    #[schemars(length(min = 1, max = names::NAME_BYTES_MAX))]
    pub name: String,
    /// The type of the output, such as `string`, which is the default.
    pub r#type: Option<String>,
    /// A value, or a reference such as `{{step.output}}`.
    pub value: Option<Value>,
}

/// A step of a workflow in the legacy form.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[schemars(rename = "LegacyNewStep")]
pub struct NewStep {
    /// The ID of the step, unique within the workflow.
    pub id: String,
    /// The name of the step.
    pub name: Option<String>,
    /// `1019Model`, or the type of a step that the legacy format does not have.
    pub r#type: Option<String>,
    /// The slug of the model, for a step that runs one.
    pub model_slug: Option<String>,
    /// The version of the model, which is stored and returned, but has no effect.
    pub model_version: Option<String>,
    /// The step's parameters. Values may be references to inputs and to earlier steps.
    pub params: Option<Map<String, Value>>,
}

/// Converts to an equivalent definition. Data in the definition `before` that the legacy form
/// cannot express (a step's fallback and retries, an input's description) is retained for steps and
/// inputs that still exist.
///
/// # Errors
/// [`Error`] names the invalid field.
pub fn definition(shape: &Shape, before: Option<&Value>) -> Result<Value, Error> {
    let inputs = shape.inputs.as_deref().unwrap_or_default();
    let input_names: HashSet<String> = inputs.iter().map(|input| input.name.clone()).collect();
    let held = held_steps(before);
    let mut read = Vec::with_capacity(shape.steps.len());
    let mut versions = Object::new();
    for (index, step) in shape.steps.iter().enumerate() {
        read.push(Value::Object(read_step(index, step, &input_names, &held)?));
        let is_model = is_model(step);
        let version = step
            .model_version
            .as_deref()
            .filter(|version| is_model && !version.is_empty() && *version != VERSION);
        versions.extend(version.map(|version| (step.id.clone(), version.into())));
    }
    let steps = Value::Array(read);
    let mut mapping = Object::new();
    let mut output_types = Object::new();
    for output in shape.outputs.iter().flatten() {
        check_name(&output.name, "outputs")?;
        let value = output.value.clone().unwrap_or_default();
        mapping.insert(output.name.clone(), names::to_definition(&value, &input_names));
        output_types.insert(output.name.clone(), json!(output.r#type));
    }
    let mut metadata = object(before, "metadata").cloned().unwrap_or_default();
    metadata.shift_remove("output_mapping");
    if !mapping.is_empty() {
        metadata.insert("output_mapping".to_owned(), Value::Object(mapping));
    }
    let (schema, input_types) = input_schema(inputs, before)?;
    let kept = json!({
        "workspace_id": shape.workspace_id.as_deref().unwrap_or_default(),
        "thumbnail_url": shape.thumbnail_url.as_deref().unwrap_or_default(),
        "nodes_json": shape.nodes_json.as_deref().unwrap_or_default(),
        "edges_json": shape.edges_json.as_deref().unwrap_or_default(),
        "drawn_for": print_of(&steps),
        "input_types": input_types,
        "output_types": output_types,
        "model_versions": versions,
    });
    metadata.insert(KEPT.to_owned(), kept);
    Ok(json!({"input_schema": schema, "steps": steps, "metadata": metadata}))
}

/// Returns whether a step runs a model.
fn is_model(step: &NewStep) -> bool {
    ["", MODEL_TYPE, "model"].contains(&step.r#type.as_deref().unwrap_or_default())
}

/// Returns the model steps of a definition, by id and model. If there are duplicates, the first one
/// is used.
fn held_steps(before: Option<&Value>) -> HashMap<(&str, &str), &Object> {
    let steps = before.and_then(|before| before.get("steps")?.as_array()).into_iter().flatten();
    let models = steps.filter(|step| text(Some(step), "type") == "model");
    let mut held = HashMap::new();
    for step in models {
        let named = (text(Some(step), "step_id"), text(Some(step), "model"));
        if let Some(fields) = step.as_object() {
            held.entry(named).or_insert(fields);
        }
    }
    held
}

/// Returns the step of the definition.
fn read_step(
    index: usize,
    step: &NewStep,
    inputs: &HashSet<String>,
    held: &HashMap<(&str, &str), &Object>,
) -> Result<Object, Error> {
    let params = Value::Object(step.params.clone().unwrap_or_default());
    let params = names::to_definition(&params, inputs);
    let mut fields = Object::new();
    fields.insert("step_id".to_owned(), step.id.clone().into());
    if let Some(name) = step.name.as_ref().filter(|name| !name.is_empty()) {
        fields.insert("name".to_owned(), name.clone().into());
    }
    if !is_model(step) {
        // Steps that the legacy form cannot express are kept unchanged.
        fields.insert("type".to_owned(), json!(step.r#type));
        fields.extend(params.as_object().cloned().unwrap_or_default());
        return Ok(fields);
    }
    fields.insert("type".to_owned(), "model".into());
    let Some(slug) = step.model_slug.as_deref().filter(|slug| !slug.is_empty()) else {
        return wrong(format!("steps[{index}].model_slug is required"));
    };
    fields.insert("model".to_owned(), slug.into());
    fields.insert("params".to_owned(), params);
    let same = held.get(&(step.id.as_str(), slug)).copied();
    for (name, value) in same.into_iter().flatten() {
        if !["step_id", "id", "name", "type", "model", "params"].contains(&name.as_str()) {
            fields.insert(name.clone(), value.clone());
        }
    }
    Ok(fields)
}

/// Returns the schema and the original type names.
fn input_schema(inputs: &[NewInput], before: Option<&Value>) -> Result<(Value, Object), Error> {
    let schema = object(before, "input_schema");
    let held = schema.and_then(|schema| schema.get("properties")?.as_object());
    let mut properties = Object::new();
    let mut required = Vec::new();
    let mut types = Object::new();
    for input in inputs {
        check_name(&input.name, "inputs")?;
        let name = input.name.clone();
        let word = input.r#type.clone().unwrap_or_default();
        let kind = schema_type(&word);
        let same = held
            .and_then(|held| held.get(&name)?.as_object())
            .filter(|property| property.get("type").is_none_or(|held| held == kind));
        // The legacy form does not distinguish a missing default from an empty one.
        let had_none = same.is_some_and(|property| property.get("default").is_none());
        let mut property = same.cloned().unwrap_or_default();
        property.insert("type".to_owned(), kind.into());
        property.shift_remove("default");
        match &input.default_value {
            Some(Value::String(text)) if !text.is_empty() || (kind == "string" && !had_none) => {
                let Some(value) = typed(text, kind) else {
                    let shown: String = text.chars().take(80).collect();
                    let problem = match wide_integer(text.as_bytes()) {
                        Some(_) => "has an integer that does not fit into 64 bits".to_owned(),
                        None => format!("is not of type {kind}"),
                    };
                    return wrong(format!(
                        "the default_value '{shown}' of the input '{name}' {problem}"
                    ));
                };
                property.insert("default".to_owned(), value);
            }
            None | Some(Value::Null | Value::String(_)) => required.push(name.clone()),
            Some(value) => {
                property.insert("default".to_owned(), value.clone());
            }
        }
        types.insert(name.clone(), word.into());
        properties.insert(name, Value::Object(property));
    }
    let schema = json!({"type": "object", "required": required, "properties": properties});
    Ok((schema, types))
}

/// Returns the schema type of a legacy type name; unknown types are strings.
fn schema_type(word: &str) -> &'static str {
    match word.to_ascii_lowercase().as_str() {
        "number" | "float" | "double" => "number",
        "integer" | "int" => "integer",
        "boolean" | "bool" => "boolean",
        "array" | "list" => "array",
        "object" | "json" => "object",
        _ => "string",
    }
}

/// Parses a string as a value of a schema type. Returns `None` if the string is invalid, or if it
/// is an integer beyond 64 bits, which would lose digits.
#[must_use]
pub fn typed(text: &str, kind: &str) -> Option<Value> {
    if kind == "string" {
        return Some(text.into());
    }
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    if wide_integer(text.as_bytes()).is_some() {
        return None;
    }
    let fits = match kind {
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    fits.then_some(value)
}

fn check_name(name: &str, list: &str) -> Result<(), Error> {
    if name.contains("']") || name.contains(['{', '}']) {
        return wrong(format!("each of {list} must have a name without braces and brackets"));
    }
    if name.len() > names::NAME_BYTES_MAX {
        let most = names::NAME_BYTES_MAX;
        return wrong(format!("each of {list} must have a name of at most {most} bytes"));
    }
    Ok(())
}
