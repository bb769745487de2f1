//! Validates the inputs of workflows against the schemas of their versions.

use serde_json::Value;

use super::body::validation_error;
use orrery_schema::{Patience, ValidationError};
use orrery_workflows::Compiled;

/// Validates the inputs, and returns them with the defaults of the workflow's schema filled in.
pub(crate) async fn check_inputs(
    compiled: &Compiled,
    inputs: Value,
) -> Result<Value, crate::Error> {
    match &compiled.inputs {
        None => Ok(inputs),
        Some(schema) => {
            schema.check_off_thread(inputs, Patience::Request).await.map_err(validation_error)
        }
    }
}

/// Like [`check_inputs`], for one entry of a bulk trigger. The inner error is a message.
pub(crate) async fn check_entry(
    compiled: &Compiled,
    inputs: Value,
) -> Result<Result<Value, String>, crate::Error> {
    if !inputs.is_object() {
        return Ok(Err("invalid input: it must be an object".to_owned()));
    }
    let Some(schema) = &compiled.inputs else { return Ok(Ok(inputs)) };
    match schema.check_off_thread(inputs, Patience::Request).await {
        Ok(inputs) => Ok(Ok(inputs)),
        Err(broken @ ValidationError::Violations(_)) => Ok(Err(format!("invalid input: {broken}"))),
        Err(unavailable) => Err(validation_error(unavailable)),
    }
}
