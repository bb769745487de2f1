//! The legacy form of workflows (`docs/spec/legacy.md`, "Legacy workflow"), and its conversion to a
//! definition.
//!
//! A workflow is stored in one form, its definition. Data that exists only in the legacy form (the
//! drawing, the workspace, the original type names) is kept in the definition's `metadata.legacy`.
//! Everything else is derived from the definition on each read (`wire::legacy`), so that a change
//! through either API host is visible on the other. Nothing here validates a definition;
//! `definition` does.
//!
//! ```text
//! {{name}}      <->  {{inputs.name}}          inputs   <->  input_schema
//! 1019Model     <->  model                    outputs  <->  metadata.output_mapping
//! ```

pub mod names;
mod read;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::definition::secrets;
use super::hex::hex;

pub use self::read::{Error, NewInput, NewOutput, NewStep, Shape, definition, typed};

/// The type of a step that runs a model.
pub const MODEL_TYPE: &str = "1019Model";
/// The field of `metadata` for data that exists only in the legacy form.
pub const KEPT: &str = "legacy";

type Object = Map<String, Value>;

/// Returns the object under a key, if any.
#[must_use]
pub fn object<'v>(value: Option<&'v Value>, key: &str) -> Option<&'v Object> {
    value?.get(key)?.as_object()
}

/// Returns the string under a key, or an empty string.
#[must_use]
pub fn text<'v>(value: Option<&'v Value>, key: &str) -> &'v str {
    value.and_then(|value| value.get(key)?.as_str()).unwrap_or_default()
}

/// Returns a fingerprint of the steps for which a drawing was made. Credentials are masked first,
/// because clients see them masked.
#[must_use]
pub fn print_of(steps: &Value) -> String {
    let definition = Map::from_iter([("steps".to_owned(), steps.clone())]);
    let seen = secrets::mask(Value::Object(definition));
    let steps = seen.get("steps").unwrap_or(steps);
    let hash = Sha256::digest(steps.to_string().as_bytes());
    hex(hash.iter().take(8))
}

/// Returns a workflow in the legacy shape, for tests.
#[cfg(any(test, feature = "test-support"))]
#[must_use]
pub fn sample() -> Shape {
    let sample = serde_json::json!({
        "workspace_id": "w",
        "thumbnail_url": "http://h/t.png",
        "inputs": [
            {"name": "prompt", "type": "string", "default_value": ""},
            {"name": "Image 1", "type": "image"},
            {"name": "n", "type": "number", "default_value": "2.5"},
        ],
        "outputs": [{"name": "result", "type": "image", "value": "{{b.output}}"}],
        "steps": [
            {"id": "a", "name": "First", "type": "1019Model", "model_slug": "m",
             "model_version": "7", "params": {"text": "a {{ prompt }} of {{n}}, \\{{prompt}}",
             "image": "{{Image 1}}"}},
            {"id": "b", "name": "b", "type": "1019Model", "model_slug": "m",
             "model_version": "0.0.1", "params": {"text": "{{a.output}} {{prompts}}"}},
        ],
        "nodes_json": "[{\"id\": 1}]",
        "edges_json": "[ ]",
    });
    serde_json::from_value(sample).unwrap_or_default()
}

#[cfg(test)]
mod tests;
