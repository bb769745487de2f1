//! The older shape of workflows (`spec/api.md`, "Legacy workflow"), and how it and a definition
//! become one another.
//!
//! A workflow is stored in one shape, its definition. What only the older shape has (the drawing,
//! the workspace, the types' own words) stands in the definition's `metadata.legacy`; everything
//! else is made from the definition whenever it is asked for, so that a change through either host
//! shows on the other. Nothing here checks a definition: `definition` does.
//!
//! ```text
//! {{name}}      <->  {{inputs.name}}          inputs   <->  input_schema
//! 1019Model     <->  model                    outputs  <->  metadata.output_mapping
//! ```

mod names;
mod read;
mod view;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::definition::secrets;

pub use self::read::{Error, Fields, definition, typed};
pub use self::view::{View, view};

/// What a step that runs a model is called.
pub const MODEL_TYPE: &str = "1019Model";
/// The version that every model has.
const MODEL_VERSION: &str = "0.0.1";
/// Where in `metadata` the older shape keeps its own.
const KEPT: &str = "legacy";

type Object = Map<String, Value>;

/// The object under a key, if there is one.
fn object<'v>(value: Option<&'v Value>, key: &str) -> Option<&'v Object> {
    value?.get(key)?.as_object()
}

/// The text under a key, or none at all.
fn text<'v>(value: Option<&'v Value>, key: &str) -> &'v str {
    value.and_then(|value| value.get(key)?.as_str()).unwrap_or_default()
}

/// Names the steps that a drawing was made for, by what clients see of them: credentials masked.
fn print_of(steps: &Value) -> String {
    let definition = Map::from_iter([("steps".to_owned(), steps.clone())]);
    let seen = secrets::mask(Value::Object(definition));
    let steps = seen.get("steps").unwrap_or(steps);
    let hash = Sha256::digest(steps.to_string().as_bytes());
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
