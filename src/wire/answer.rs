//! Events that steps wait for: what is sent, and what is answered.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::ids::ExecutionId;

/// An event for a step that waits for it.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "EventToSend", example = json!({"payload": {"approved": true}}))]
pub struct Event {
    /// What the step gives; fits the event's `schema`, if it has one. Null where it is absent.
    pub payload: Option<Value>,
}

/// The event was taken.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventAccepted")]
pub struct Accepted<'a> {
    pub execution_id: ExecutionId,
    pub event: &'a str,
    pub accepted: bool,
}
