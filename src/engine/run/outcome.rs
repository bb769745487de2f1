//! The output of a run as the output type demands, and the webhook's body of a prediction.
//!
//! Pure; writes nothing.

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::domain::execution::Execution;
use crate::domain::model::OutputType;
use crate::wire::prediction::Announcement;

/// For the artefact types one artefact is given as itself, several as an array; every other
/// output stays as it came (`docs/spec/predictions.md`, "Output").
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

/// The text of the webhook's body for a prediction that has ended. `output` is its output's text.
///
/// # Errors
/// None in practice: every part has a JSON form.
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
