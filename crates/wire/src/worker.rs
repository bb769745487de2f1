//! Workers' jobs: the job that a claim returns, and the reports about the job.

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
    /// The attempt number of this lease: 1 for the job's first lease, and one more for each later
    /// lease. Each report contains this number.
    pub attempt: u32,
    /// The input, which is valid under the request schema of the model.
    pub input: Arc<Value>,
    /// The lease time: the job goes to another worker if this worker sends no report for this many
    /// seconds.
    pub lease_seconds: u64,
}

/// A report that only extends the lease.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WorkerHeartbeat")]
pub struct Heartbeat {
    /// The attempt number that the claim returned.
    #[schemars(range(min = 1))]
    pub attempt: u32,
}

/// Text that the model has logged.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WorkerLog")]
pub struct Log {
    /// The attempt number that the claim returned.
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
    /// The attempt number that the claim returned.
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
    /// The attempt number that the claim returned.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// The whole output. A file is a `data:` URI.
    pub output: Value,
    /// The usage of the run: `input_tokens`, `output_tokens`, and `cost` in US dollars. Other
    /// fields have no effect unless the manifest's `cost.report` refers to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Map<String, Value>>,
}

/// The error of a job.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WorkerFailure")]
pub struct Failure {
    /// The attempt number that the claim returned.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// The error message, which the client that started the run also sees.
    #[schemars(length(max = ERROR_CHARS_MAX))]
    pub error: String,
    /// The class of the error; by default `provider_error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classification: Option<ErrorClass>,
}

impl Failure {
    /// Creates a failure, and truncates an error that is too long.
    #[must_use]
    pub fn new(attempt: u32, error: &str, class: ErrorClass) -> Self {
        let error = error.chars().take(ERROR_CHARS_MAX).collect();
        Self { attempt, error, classification: Some(class) }
    }
}
