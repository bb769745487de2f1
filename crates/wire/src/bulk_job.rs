//! Bulk jobs: one action on all executions that match a filter.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Time, pattern};
use orrery_domain::bulk::{Action, Job, LIMIT_MAX, Status};
use orrery_domain::ids::JobId;

/// A bulk job to start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BulkJobRequest")]
pub struct Request {
    /// What to do with each execution.
    pub action: Action,
    /// Which executions to process. Omitted fields match all.
    #[serde(default)]
    pub filter: Filter,
    /// The maximum number of executions, newest first. Defaults to 100000.
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    pub limit: Option<u64>,
}

/// A filter, with the same fields and values as the filters of the history.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BulkJobFilter")]
pub struct Filter {
    /// Only executions of this model.
    #[schemars(length(min = 1))]
    pub model: Option<String>,
    /// A comma-separated list of statuses.
    #[schemars(length(min = 1))]
    pub status: Option<String>,
    /// Only executions of this type, such as `workflow`.
    #[serde(rename = "type")]
    #[schemars(length(min = 1))]
    pub kind: Option<String>,
    /// Only executions of this workflow.
    #[schemars(transform = pattern::uuid)]
    pub workflow_id: Option<String>,
    /// Only steps of this execution.
    #[schemars(transform = pattern::uuid)]
    pub workflow_execution_id: Option<String>,
    /// A comma-separated list of error classifications.
    #[schemars(length(min = 1))]
    pub error_classification: Option<String>,
    /// Only executions created at or after this time.
    #[schemars(transform = pattern::time)]
    pub from: Option<String>,
    /// Only executions created before this time.
    #[schemars(transform = pattern::time)]
    pub to: Option<String>,
}

impl Filter {
    /// Returns the value of the field with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let field = match name {
            "model" => &self.model,
            "status" => &self.status,
            "type" => &self.kind,
            "workflow_id" => &self.workflow_id,
            "workflow_execution_id" => &self.workflow_execution_id,
            "error_classification" => &self.error_classification,
            "from" => &self.from,
            "to" => &self.to,
            _ => return None,
        };
        field.as_deref()
    }
}

/// An accepted bulk job.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BulkJobAccepted")]
pub struct Accepted {
    /// The ID of the job.
    pub job_id: JobId,
}

/// A bulk job and its progress.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BulkJob")]
pub struct View {
    /// The ID of the job.
    pub job_id: JobId,
    /// What the job does with each execution.
    pub action: Action,
    /// Whether the job is running.
    pub status: Status,
    /// The number of executions to process. Null until the executions have been counted.
    pub total: Option<u64>,
    /// The number of executions that were processed.
    pub done: u64,
    /// The number of executions on which the action failed, such as cancelling an execution that
    /// has ended.
    pub failed: u64,
    /// When the job was started.
    pub started_at: Time,
    /// When the job ended. Null while the job is running.
    pub completed_at: Option<Time>,
}

impl From<&Job> for View {
    fn from(job: &Job) -> Self {
        Self {
            job_id: job.id,
            action: job.action,
            status: job.status,
            total: job.total,
            done: job.done,
            failed: job.failed,
            started_at: job.started_at.into(),
            completed_at: job.completed_at.map(Time::from),
        }
    }
}
