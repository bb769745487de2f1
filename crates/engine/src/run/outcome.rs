//! Shapes the output of a run by its output type, and builds the webhook body of a prediction.
//!
//! All functions are pure.

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use orrery_domain::execution::Execution;
use orrery_domain::model::OutputType;
use orrery_wire::prediction::Announcement;

/// For artifact types, unwraps an array with a single artifact; several artifacts remain an array.
/// Returns other outputs unchanged (`docs/spec/predictions.md`, "Output").
#[must_use]
pub fn shape_output(mut output: Value, output_type: OutputType) -> Value {
    if let Value::Array(artefacts) = &mut output
        && output_type.is_artefact()
        && artefacts.len() == 1
    {
        return artefacts.pop().unwrap_or_default();
    }
    output
}

/// Builds the webhook body of an ended prediction. `output` is the JSON text of the prediction's
/// output.
///
/// # Errors
/// None in practice, because every part can be expressed in JSON.
pub fn webhook_body(
    execution: &Execution,
    output: Option<&RawValue>,
) -> Result<Box<RawValue>, serde_json::Error> {
    to_raw_value(&Announcement::of(execution, output))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn output_with_single_artefact_becomes_a_string() {
        for (output_type, output, shaped) in [
            (OutputType::Image, json!(["a"]), json!("a")),
            (OutputType::Image, json!(["a", "b"]), json!(["a", "b"])),
            (OutputType::Image, json!([]), json!([])),
            (OutputType::Array, json!(["a"]), json!(["a"])),
            (OutputType::String, json!("a"), json!("a")),
        ] {
            assert_eq!(shape_output(output, output_type), shaped);
        }
    }
}
