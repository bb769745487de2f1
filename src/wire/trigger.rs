//! Triggers of workflows: what starts executions, one or several at once, and what came of it.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{ExecutionStatus, Time};
use crate::domain::execution::{Execution, Status};
use crate::domain::ids::{BulkId, ExecutionId};
use crate::domain::time::Timestamp;

/// What a workflow is triggered with.
#[derive(Debug, JsonSchema)]
#[schemars(example = json!({"inputs": {"name": "Ada"}}))]
pub struct Trigger {
    /// The version to run; the latest where it is absent.
    pub version_id: Option<String>,
    /// Fits the version's `input_schema`.
    pub inputs: Option<Map<String, Value>>,
    /// Where the end is announced; empty for nowhere.
    pub webhook_url: Option<String>,
    /// Signs the webhook.
    #[schemars(length(max = 256))]
    pub webhook_secret: Option<String>,
}

/// What a version that the path names is triggered with.
#[derive(Debug, JsonSchema)]
#[schemars(example = json!({"inputs": {"name": "Ada"}}))]
pub struct VersionTrigger {
    /// Fits the version's `input_schema`.
    pub inputs: Option<Map<String, Value>>,
    /// Where the end is announced; empty for nowhere.
    pub webhook_url: Option<String>,
    /// Signs the webhook.
    #[schemars(length(max = 256))]
    pub webhook_secret: Option<String>,
}

/// What a shared version is triggered with.
#[derive(Debug, JsonSchema)]
#[schemars(example = json!({"api_key": "smk_…", "inputs": {"name": "Ada"}}))]
pub struct PublicTrigger {
    /// The caller's key, instead of a header.
    pub api_key: Option<String>,
    /// Fits the version's `input_schema`.
    pub inputs: Option<Map<String, Value>>,
    /// Where the end is announced; empty for nowhere.
    pub webhook_url: Option<String>,
    /// Signs the webhook.
    #[schemars(length(max = 256))]
    pub webhook_secret: Option<String>,
}

/// The most inputs of one bulk trigger (`docs/spec/hosts.md`, "Limits").
pub const BULK_MAX: usize = 10;

/// What a workflow is triggered with, several times at once. An entry that does not fit fails alone.
#[derive(Debug, JsonSchema)]
#[schemars(example = json!({"inputs": [{"name": "Ada"}, {"name": "Grace"}]}))]
pub struct BulkTrigger {
    /// The version to run; the latest where it is absent.
    pub version_id: Option<String>,
    /// Each fits the version's `input_schema`.
    #[schemars(length(min = 1, max = BULK_MAX))]
    pub inputs: Vec<Value>,
    /// Where each end is announced; empty for nowhere.
    pub webhook_url: Option<String>,
    /// Signs the webhooks.
    #[schemars(length(max = 256))]
    pub webhook_secret: Option<String>,
}

/// What a version that the path names is triggered with, several times at once.
#[derive(Debug, JsonSchema)]
#[schemars(example = json!({"inputs": [{"name": "Ada"}, {"name": "Grace"}]}))]
pub struct BulkVersionTrigger {
    /// Each fits the version's `input_schema`.
    #[schemars(length(min = 1, max = BULK_MAX))]
    pub inputs: Vec<Value>,
    /// Where each end is announced; empty for nowhere.
    pub webhook_url: Option<String>,
    /// Signs the webhooks.
    #[schemars(length(max = 256))]
    pub webhook_secret: Option<String>,
}

/// An execution was accepted.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ExecutionAccepted")]
#[schemars(example = json!({
    "execution_id": "0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
    "status": "queued",
    "started_at": "2026-11-20T09:30:00.123Z",
}))]
pub struct Accepted {
    pub execution_id: ExecutionId,
    pub status: ExecutionStatus,
    /// When it was accepted.
    pub started_at: Time,
    /// The failed execution whose finished steps it takes over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redriven_from: Option<ExecutionId>,
}

impl Accepted {
    /// An execution that was accepted at that moment.
    #[must_use]
    pub fn at(execution_id: ExecutionId, moment: Timestamp) -> Self {
        let status = Status::Created.into();
        Self { execution_id, status, started_at: moment.into(), redriven_from: None }
    }
}

impl From<&Execution> for Accepted {
    fn from(execution: &Execution) -> Self {
        Self::at(execution.id, execution.created_at)
    }
}

/// What came of a bulk trigger.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BulkAccepted")]
pub struct Bulk {
    pub bulk_id: BulkId,
    /// In the order of the inputs.
    pub executions: Vec<BulkEntry>,
}

/// What came of one of the inputs.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum BulkEntry {
    Accepted(Accepted),
    Refused(BulkRefused),
}

/// An input that does not fit: nothing was created for it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BulkRefused {
    pub status: ExecutionStatus,
    pub message: String,
}

impl BulkEntry {
    /// An entry that failed for the reason that `message` gives.
    #[must_use]
    pub fn refused(message: String) -> Self {
        Self::Refused(BulkRefused { status: Status::Error.into(), message })
    }
}
