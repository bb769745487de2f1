//! Events that waiting steps receive: request and response bodies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use orrery_domain::ids::ExecutionId;

/// An event for a waiting step.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EventToSend", example = json!({"payload": {"approved": true}}))]
pub struct Event {
    /// The output of the step. Must match the event's `schema`, if it has one.
    pub payload: Value,
}

/// An accepted event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventAccepted")]
pub struct Accepted<'a> {
    /// The execution that received the event.
    pub execution_id: ExecutionId,
    /// The name of the event.
    pub event: &'a str,
    /// Always true.
    pub accepted: bool,
}
