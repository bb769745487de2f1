//! Events that steps wait for: what is sent, and what is answered.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::ids::ExecutionId;

/// An event for a step that waits for it.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "EventToSend", deny_unknown_fields, example = json!({"payload": {"approved": true}}))]
pub struct Event {
    /// The output of the step; fits the event's `schema`, if it has one.
    pub payload: Value,
}

/// The event was taken.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventAccepted")]
pub struct Accepted<'a> {
    pub execution_id: ExecutionId,
    pub event: &'a str,
    pub accepted: bool,
}
