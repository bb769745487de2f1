//! Bulk jobs: one act on all executions that a filter names.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Time;
use crate::domain::bulk::{Action, Job, Status};
use crate::domain::ids::JobId;

/// A job that is asked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BulkJobRequest")]
pub struct Request {
    pub action: Action,
    /// Which executions; absent fields: any.
    #[serde(default)]
    pub filter: Filter,
    /// The most executions, newest first: 1 to 100000, which is the default.
    pub limit: Option<u64>,
}

/// The filters of the history, in the same words.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BulkJobFilter")]
pub struct Filter {
    pub model: Option<String>,
    /// One or more, separated by commas.
    pub status: Option<String>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub workflow_id: Option<String>,
    pub workflow_execution_id: Option<String>,
    /// One or more, separated by commas.
    pub error_classification: Option<String>,
    /// Created at this time or later.
    pub from: Option<String>,
    /// Created before.
    pub to: Option<String>,
}

impl Filter {
    /// The names of its fields.
    pub const NAMES: [&str; 8] = [
        "model",
        "status",
        "type",
        "workflow_id",
        "workflow_execution_id",
        "error_classification",
        "from",
        "to",
    ];

    /// The field of that name.
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

/// A job was accepted.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BulkJobAccepted")]
pub struct Accepted {
    pub job_id: JobId,
}

/// How far a job has come.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BulkJob")]
pub struct View {
    pub job_id: JobId,
    pub action: Action,
    pub status: Status,
    /// How many executions it acts on; null until they are counted.
    pub total: Option<u64>,
    pub done: u64,
    /// Those that the act could not be done with, such as the cancel of one that has ended.
    pub failed: u64,
    pub started_at: Time,
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
