//! The jobs of workers: what they claim and what they report.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use orrery_domain::classify::ErrorClass;
use orrery_domain::ids::WorkerJobId;
use orrery_domain::logs::LOGS_MAX;

/// Maximum length of the error of a job, in characters.
const ERROR_CHARS_MAX: usize = 10_000;

/// A job that is leased to the worker.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WorkerJob")]
pub struct Job {
    /// The ID of the job, for the reports about it.
    pub job_id: WorkerJobId,
    /// The number of this lease of the job. Each report contains it.
    pub attempt: u32,
    /// The input, which is valid under the request schema of the model.
    pub input: Arc<Value>,
    /// The seconds after which the job goes to another worker unless this worker reports something.
    pub lease_seconds: u64,
}

/// A sign of life.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WorkerHeartbeat")]
pub struct Heartbeat {
    /// The number of the lease.
    #[schemars(range(min = 1))]
    pub attempt: u32,
}

/// Text that the model has logged.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WorkerLog")]
pub struct Log {
    /// The number of the lease.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// The text, of one or several lines.
    #[schemars(length(max = LOGS_MAX))]
    pub log: String,
}

/// A part of the output.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WorkerPart")]
pub struct Part {
    /// The number of the lease.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// The part. All parts together are the output or its beginning.
    pub output: Value,
}

/// The output of a job.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WorkerOutput")]
pub struct Completion {
    /// The number of the lease.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// The whole output. A file is a `data:` URI.
    pub output: Value,
    /// What the run used: `input_tokens`, `output_tokens`, and `cost` in US dollars. Other fields
    /// have no effect unless the manifest's `cost.report` refers to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Map<String, Value>>,
}

/// The error of a job.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WorkerFailure")]
pub struct Failure {
    /// The number of the lease.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// What went wrong. The caller sees this text.
    #[schemars(length(max = ERROR_CHARS_MAX))]
    pub error: String,
    /// The class of the error; by default `provider_error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classification: Option<ErrorClass>,
}

impl Failure {
    /// Creates a failure; an error that is too long is cut.
    #[must_use]
    pub fn new(attempt: u32, error: &str, class: ErrorClass) -> Self {
        let error = error.chars().take(ERROR_CHARS_MAX).collect();
        Self { attempt, error, classification: Some(class) }
    }
}
