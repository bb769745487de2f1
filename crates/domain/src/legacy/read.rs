//! Conversion from the legacy form to a definition.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::{KEPT, MODEL_TYPE, Object, names, object, print_of, text};
use crate::definition::STEPS_MAX;
use crate::model::VERSION;
use crate::wide_integer::wide_integer;

/// Maximum inputs, and maximum outputs, of a workflow in the legacy form.
const LISTED_MAX: usize = 1000;

/// The problem of a workflow in the legacy form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

fn wrong<T>(message: impl Into<String>) -> Result<T, Error> {
    Err(Error(message.into()))
}

/// A workflow in the legacy form, without its name and description.
#[derive(Debug, Clone, Default)]
pub struct Fields {
    pub workspace_id: String,
    pub thumbnail_url: String,
    pub inputs: Value,
    pub outputs: Value,
    pub steps: Value,
    pub nodes_json: String,
    pub edges_json: String,
}

/// Converts to an equivalent definition. Data that only the definition `before` can express (a
/// step's fallback and retries, an input's description) is retained for steps and inputs that still
/// exist.
///
/// # Errors
/// [`Error`] names the invalid field.
pub fn definition(fields: &Fields, before: Option<&Value>) -> Result<Value, Error> {
    let inputs = list(&fields.inputs, "inputs", LISTED_MAX)?;
    let input_names: HashSet<String> = inputs.iter().map(|input| field(input, "name")).collect();
    let steps = list(&fields.steps, "steps", STEPS_MAX)?;
    let held = held_steps(before);
    let mut read = Vec::with_capacity(steps.len());
    let mut versions = Object::new();
    for (index, step) in steps.iter().enumerate() {
        let step = read_step(index, step, &input_names, &held)?;
        if let Some(version) = step.version {
            versions.insert(step.id, version);
        }
        read.push(Value::Object(step.fields));
    }
    let steps = Value::Array(read);
    let mut mapping = Object::new();
    let mut output_types = Object::new();
    for output in list(&fields.outputs, "outputs", LISTED_MAX)? {
        let name = named(output, "outputs")?;
        let value = output.get("value").cloned().unwrap_or_default();
        mapping.insert(name.clone(), names::to_definition(&value, &input_names));
        output_types.insert(name, output.get("type").cloned().unwrap_or_default());
    }
    let mut metadata = object(before, "metadata").cloned().unwrap_or_default();
    metadata.shift_remove("output_mapping");
    if !mapping.is_empty() {
        metadata.insert("output_mapping".to_owned(), Value::Object(mapping));
    }
    let (schema, input_types) = input_schema(inputs, before)?;
    let kept = json!({
        "workspace_id": fields.workspace_id,
        "thumbnail_url": fields.thumbnail_url,
        "nodes_json": fields.nodes_json,
        "edges_json": fields.edges_json,
        "drawn_for": print_of(&steps),
        "input_types": input_types,
        "output_types": output_types,
        "model_versions": versions,
    });
    metadata.insert(KEPT.to_owned(), kept);
    Ok(json!({"input_schema": schema, "steps": steps, "metadata": metadata}))
}

struct ReadStep {
    id: String,
    fields: Object,
    /// The model's version, unless it equals the one version that all models have.
    version: Option<Value>,
}

/// The model steps of a definition, by id and model. If there are duplicates, the first one is
/// used.
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

fn read_step(
    index: usize,
    step: &Value,
    inputs: &HashSet<String>,
    held: &HashMap<(&str, &str), &Object>,
) -> Result<ReadStep, Error> {
    let Some(written) = step.as_object() else {
        return wrong(format!("steps[{index}] must be an object"));
    };
    let id = field(step, "id");
    let params = match written.get("params") {
        None | Some(Value::Null) => Object::new(),
        Some(Value::Object(params)) => params.clone(),
        Some(_) => return wrong(format!("steps[{index}].params must be an object")),
    };
    let params = names::to_definition(&Value::Object(params), inputs);
    let mut fields = Object::new();
    fields.insert("step_id".to_owned(), id.clone().into());
    let name = field(step, "name");
    if !name.is_empty() {
        fields.insert("name".to_owned(), name.into());
    }
    let kind = field(step, "type");
    if !["", MODEL_TYPE, "model"].contains(&kind.as_str()) {
        // Steps that the legacy form cannot express are kept unchanged.
        fields.insert("type".to_owned(), kind.into());
        fields.extend(params.as_object().cloned().unwrap_or_default());
        return Ok(ReadStep { id, fields, version: None });
    }
    fields.insert("type".to_owned(), "model".into());
    let slug = field(step, "model_slug");
    if slug.is_empty() {
        return wrong(format!("steps[{index}].model_slug is required"));
    }
    fields.insert("model".to_owned(), slug.clone().into());
    fields.insert("params".to_owned(), params);
    let same = held.get(&(id.as_str(), slug.as_str())).copied();
    for (name, value) in same.into_iter().flatten() {
        if !["step_id", "id", "name", "type", "model", "params"].contains(&name.as_str()) {
            fields.insert(name.clone(), value.clone());
        }
    }
    let version = written.get("model_version").filter(|version| {
        version.as_str().is_some_and(|version| !version.is_empty() && version != VERSION)
    });
    Ok(ReadStep { id, fields, version: version.cloned() })
}

/// Returns the schema and the original type names.
fn input_schema(inputs: &[Value], before: Option<&Value>) -> Result<(Value, Object), Error> {
    let schema = object(before, "input_schema");
    let held = schema.and_then(|schema| schema.get("properties")?.as_object());
    let mut properties = Object::new();
    let mut required = Vec::new();
    let mut types = Object::new();
    for input in inputs {
        let name = named(input, "inputs")?;
        let word = field(input, "type");
        let kind = schema_type(&word);
        let same = held
            .and_then(|held| held.get(&name)?.as_object())
            .filter(|property| property.get("type").is_none_or(|held| held == kind));
        // The legacy form does not distinguish a missing default from an empty one.
        let had_none = same.is_some_and(|property| property.get("default").is_none());
        let mut property = same.cloned().unwrap_or_default();
        property.insert("type".to_owned(), kind.into());
        property.shift_remove("default");
        match input.get("default_value") {
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

/// The schema type of a legacy type name; unknown types are strings.
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

/// Parses a string as a value of a schema type. `None` also for an integer beyond 64 bits, which
/// would change.
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

fn list<'v>(value: &'v Value, name: &str, most: usize) -> Result<&'v [Value], Error> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(items) if items.len() > most => {
            wrong(format!("{name} must have at most {most} items"))
        }
        Value::Array(items) => Ok(items),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            wrong(format!("{name} must be an array"))
        }
    }
}

fn named(item: &Value, list: &str) -> Result<String, Error> {
    let name = field(item, "name");
    if name.is_empty() || name.contains("']") || name.contains(['{', '}']) {
        return wrong(format!("each of {list} must have a name without braces and brackets"));
    }
    if name.len() > names::NAME_BYTES_MAX {
        let most = names::NAME_BYTES_MAX;
        return wrong(format!("each of {list} must have a name of at most {most} bytes"));
    }
    Ok(name)
}

fn field(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}
