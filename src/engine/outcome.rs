//! What an execution looks like from outside when it ends: its output as the output type demands,
//! its webhook's body.
//!
//! Pure; writes nothing.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::domain::execution::{Execution, Status};
use crate::domain::model::OutputType;

/// For the artefact types one artefact is given as itself, several as an array; every other
/// output stays as it came (`spec/decisions.md` part 3).
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

/// The `metrics` of a prediction: seconds and dollars.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Metrics {
    pub predict_time: Option<f64>,
    pub queue_time: Option<f64>,
    pub cost: f64,
}

impl Metrics {
    /// The figures of `execution` so far.
    #[must_use]
    pub fn of(execution: &Execution) -> Self {
        Self {
            predict_time: execution.run_time().map(|span| span.as_secs_f64()),
            queue_time: execution.queue_time().map(|span| span.as_secs_f64()),
            cost: execution.cost.dollars(),
        }
    }
}

/// The body of a prediction's webhook (`spec/decisions.md` part 3).
#[derive(Debug, Serialize)]
struct Announcement<'a> {
    execution_id: String,
    exec_id: String,
    flow_id: Option<String>,
    status: &'static str,
    output: Option<&'a RawValue>,
    error: &'a str,
    error_cause: Option<&'a str>,
    started_at: String,
    metrics: Metrics,
}

/// The text of the webhook's body for an execution that has ended. `output` is its output's text.
///
/// # Errors
/// None in practice: every part has a JSON form.
pub fn announcement(
    execution: &Execution,
    output: Option<&RawValue>,
) -> Result<Box<RawValue>, serde_json::Error> {
    let fault = execution.fault.as_ref();
    to_raw_value(&Announcement {
        execution_id: execution.id.to_string(),
        exec_id: execution.id.to_string(),
        flow_id: None,
        status: execution.status.execution_word(),
        output: output.filter(|_| execution.status == Status::Success),
        error: fault.map_or("", |fault| fault.name.as_str()),
        error_cause: fault.map(|fault| fault.cause.as_str()),
        started_at: execution.started_at.unwrap_or(execution.created_at).to_string(),
        metrics: Metrics::of(execution),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_artefact_is_a_string_and_other_outputs_stay() {
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
