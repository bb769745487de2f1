//! Workflow triggers, single and bulk: requests and results.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{ExecutionStatus, Time, pattern};
use orrery_domain::delivery::URL_BYTES_MAX;
use orrery_domain::execution::{Execution, Status};
use orrery_domain::ids::{BulkId, ExecutionId};
use orrery_domain::signature::SECRET_BYTES_MAX;
use orrery_domain::time::Timestamp;

/// A workflow trigger.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({"inputs": {"name": "Ada"}}))]
pub struct Trigger {
    /// The version to run. Defaults to the latest.
    pub version_id: Option<String>,
    #[serde(flatten)]
    pub run: VersionTrigger,
}

/// A trigger of the version in the path.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({"inputs": {"name": "Ada"}}))]
pub struct VersionTrigger {
    /// The inputs. Must match the version's `input_schema`.
    pub inputs: Option<Map<String, Value>>,
    /// The URL to notify when the execution ends. An empty string means no webhook.
    #[schemars(length(max = URL_BYTES_MAX), transform = pattern::optional_web_url)]
    pub webhook_url: Option<String>,
    /// The secret that signs the webhook.
    #[schemars(length(max = SECRET_BYTES_MAX), transform = pattern::line)]
    pub webhook_secret: Option<String>,
    /// Whether the webhook also carries the secret itself, in `X-Webhook-Secret`. Defaults to the
    /// service's `webhooks.send_plain_secret`. Null means the default.
    pub webhook_send_plain_secret: Option<bool>,
}

/// A trigger of a shared version.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({"api_key": "smk_…", "inputs": {"name": "Ada"}}))]
pub struct PublicTrigger {
    /// The caller's API key, as an alternative to a header.
    pub api_key: Option<String>,
    #[serde(flatten)]
    pub run: VersionTrigger,
}

/// Maximum number of inputs of one bulk trigger (`docs/spec/hosts.md`, "Limits").
pub const BULK_MAX: usize = 10;

/// A bulk trigger of a workflow. An invalid entry fails without affecting the others.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({"inputs": [{"name": "Ada"}, {"name": "Grace"}]}))]
pub struct BulkTrigger {
    /// The version to run. Defaults to the latest.
    pub version_id: Option<String>,
    #[serde(flatten)]
    pub runs: BulkVersionTrigger,
}

/// A bulk trigger of the version in the path.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({"inputs": [{"name": "Ada"}, {"name": "Grace"}]}))]
pub struct BulkVersionTrigger {
    /// The inputs, one entry for each execution. Each must match the version's `input_schema`.
    #[schemars(length(min = 1, max = BULK_MAX))]
    pub inputs: Vec<Value>,
    /// The URL to notify when each execution ends. An empty string means no webhook.
    #[schemars(length(max = URL_BYTES_MAX), transform = pattern::optional_web_url)]
    pub webhook_url: Option<String>,
    /// The secret that signs the webhooks.
    #[schemars(length(max = SECRET_BYTES_MAX), transform = pattern::line)]
    pub webhook_secret: Option<String>,
    /// Whether the webhooks also carry the secret itself, in `X-Webhook-Secret`. Defaults to the
    /// service's `webhooks.send_plain_secret`. Null means the default.
    pub webhook_send_plain_secret: Option<bool>,
}

/// An accepted execution.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ExecutionAccepted")]
#[schemars(example = json!({
    "execution_id": "0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
    "status": "queued",
    "started_at": "2026-11-20T09:30:00.123Z",
}))]
pub struct Accepted {
    /// The ID of the execution.
    pub execution_id: ExecutionId,
    /// Always `queued`.
    pub status: ExecutionStatus,
    /// When the execution was accepted.
    pub started_at: Time,
    /// The failed execution whose completed steps this execution reuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redriven_from: Option<ExecutionId>,
}

impl Accepted {
    /// Returns an execution that was accepted at `moment`.
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

/// The result of a bulk trigger.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BulkAccepted")]
pub struct Bulk {
    /// The ID of the bulk trigger, which selects its executions in lists.
    pub bulk_id: BulkId,
    /// One result for each input, in the order of the inputs.
    pub executions: Vec<BulkEntry>,
}

/// The result for one input.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum BulkEntry {
    Accepted(Accepted),
    Refused(BulkRefused),
}

/// An invalid input, for which no execution was created.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BulkRefused {
    /// Always `failed`.
    pub status: ExecutionStatus,
    /// Why the input is invalid.
    pub message: String,
}

impl BulkEntry {
    /// Returns an entry that failed with `message`.
    #[must_use]
    pub fn refused(message: String) -> Self {
        Self::Refused(BulkRefused { status: Status::Error.into(), message })
    }
}
