//! Executions in the legacy format, converted from their current view.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::execution::{Execution, Step};
use crate::{Time, pattern};
use orrery_domain::delivery::URL_BYTES_MAX;
use orrery_domain::execution::{self, TOGETHER_MAX};
use orrery_domain::ids::{ExecutionId, OrganizationId, WorkflowId};
use orrery_domain::model::VERSION;
use orrery_domain::signature::SECRET_BYTES_MAX;
use orrery_domain::step;
use orrery_domain::workflow::Workflow;

/// Maximum number of IDs in one lookup.
pub const LOOK_UP_MAX: usize = 100;

/// A legacy workflow trigger.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "LegacyTrigger", example = json!({"parameters": {"name": "Ada"}}))]
pub struct Trigger {
    /// The inputs by name. Numbers and booleans may be strings.
    pub parameters: Option<Map<String, Value>>,
    /// The URL to notify when the execution ends. An empty string means no webhook.
    #[schemars(length(max = URL_BYTES_MAX), transform = pattern::optional_web_url)]
    pub webhook_url: Option<String>,
    /// The secret that signs the webhook.
    #[schemars(length(max = SECRET_BYTES_MAX), transform = pattern::line)]
    pub webhook_secret: Option<String>,
}

/// A legacy bulk trigger: either all executions start, or none does.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "LegacyBulkTrigger",
    example = json!({"parameters": [{"name": "Ada"}, {"name": "Grace"}]})
)]
pub struct BulkTrigger {
    /// The inputs by name, one object for each execution.
    #[schemars(length(min = 1, max = TOGETHER_MAX))]
    pub parameters: Vec<Map<String, Value>>,
    /// The URL to notify when each execution ends. An empty string means no webhook.
    #[schemars(length(max = URL_BYTES_MAX), transform = pattern::optional_web_url)]
    pub webhook_url: Option<String>,
    /// The secret that signs the webhooks.
    #[schemars(length(max = SECRET_BYTES_MAX), transform = pattern::line)]
    pub webhook_secret: Option<String>,
}

/// A triggered workflow.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyTriggered")]
pub struct Triggered<'a> {
    /// Always `success`.
    #[schemars(extend("const" = "success"))]
    pub status: &'static str,
    /// A message for people.
    pub message: &'static str,
    /// The ID of the execution.
    pub trigger_id: &'a str,
}

/// A workflow that was triggered in bulk.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyBulkTriggered")]
pub struct Bulked<'a> {
    /// Always `success`.
    #[schemars(extend("const" = "success"))]
    pub status: &'static str,
    /// A message for people.
    pub message: &'static str,
    /// The IDs of the executions, in the order of the parameters.
    pub execution_ids: &'a [String],
}

/// The executions to look up.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "LegacyLookUp",
    example = json!({"execution_ids": ["0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e"]})
)]
pub struct LookUp {
    /// The IDs of the executions.
    #[schemars(length(max = LOOK_UP_MAX))]
    pub execution_ids: Vec<String>,
}

/// The executions that were found.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyLookedUp")]
pub struct LookedUp<'a> {
    /// Always `success`.
    #[schemars(extend("const" = "success"))]
    pub status: &'static str,
    /// The number of executions that were found.
    pub total: usize,
    /// The executions that were found.
    pub executions: Vec<Record<'a>>,
}

/// A page of a workflow's executions.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyExecutionList")]
pub struct List<'a> {
    /// Always `success`.
    #[schemars(extend("const" = "success"))]
    pub status: &'static str,
    /// A message for people.
    pub message: &'static str,
    /// The number of the workflow's executions.
    pub total: u64,
    /// The executions, newest first.
    pub executions: Vec<Record<'a>>,
}

/// An execution in the legacy format.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyExecution")]
pub struct Record<'a> {
    /// The ID of the workflow.
    pub flow_id: WorkflowId,
    /// The progress in percent: the share of steps that have ended.
    pub average_percent: f64,
    /// The name of the workflow.
    pub flow_name: &'a str,
    /// The organization.
    pub organization_id: OrganizationId,
    /// The first characters of the caller's API key.
    pub api_key: String,
    /// The ID of the execution.
    pub execution_id: ExecutionId,
    /// The caller's IP address. Empty if unknown.
    pub source_ip_address: String,
    /// The inputs.
    pub parameters: Vec<Parameter>,
    /// The results of the steps, in the order of the definition. Empty if the results are too large
    /// for the response.
    pub step_results: Vec<StepResult>,
    /// The status of the execution.
    pub status: Status,
    /// The output as JSON text.
    pub output: String,
    /// The output if it is an object. Otherwise, an object with the output in the field `output`.
    #[schemars(with = "Map<String, Value>")]
    pub output_json: Box<RawValue>,
    /// When the execution was created.
    pub created_at: Time,
    /// When the execution started. Null until then.
    pub started_at: Option<Time>,
    /// When the execution ended. Null until then.
    pub ended_at: Option<Time>,
    /// When the execution last started or ended.
    pub updated_at: Time,
    /// Always null.
    pub deleted_at: Option<Time>,
}

/// An input.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyParameter")]
pub struct Parameter {
    /// The name of the input.
    pub name: String,
    /// The value of the input.
    pub value: Value,
}

/// The result of a step.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyStepResult")]
pub struct StepResult {
    /// The ID of the step.
    pub step_id: String,
    /// The name of the step, or the step's ID if the step has no name.
    pub step_name: String,
    /// The model that ran. Empty for other steps.
    pub model: String,
    /// The version of the model. Empty for other steps.
    pub version: &'static str,
    /// When the step started. Null until then.
    pub started_at: Option<Time>,
    /// When the step ended. Null until then.
    pub ended_at: Option<Time>,
    /// The status of the step.
    pub status: Status,
    /// The output as JSON text.
    pub output: String,
    /// The output if it is an object. Otherwise, an object with the output in the field `output`.
    #[schemars(with = "Map<String, Value>")]
    pub output_json: Box<RawValue>,
    /// The input as JSON text.
    pub input: String,
}

/// The status of an execution or a step in the legacy format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "LegacyStatus")]
pub enum Status {
    Queued,
    Running,
    Succeeded,
    Failed,
    Cancelled,
    Skipped,
}

impl From<execution::Status> for Status {
    fn from(status: execution::Status) -> Self {
        match status {
            execution::Status::Created => Self::Queued,
            execution::Status::Processing => Self::Running,
            execution::Status::Success => Self::Succeeded,
            execution::Status::Error => Self::Failed,
            execution::Status::Cancelled => Self::Cancelled,
        }
    }
}

impl From<step::Status> for Status {
    fn from(status: step::Status) -> Self {
        match status {
            step::Status::Queued => Self::Queued,
            step::Status::Running => Self::Running,
            step::Status::Completed => Self::Succeeded,
            step::Status::Failed => Self::Failed,
            step::Status::Cancelled => Self::Cancelled,
            step::Status::Skipped => Self::Skipped,
        }
    }
}

impl<'a> Record<'a> {
    /// Returns the legacy record of `execution`, converted from its current `view`. `key` is the
    /// visible part of the caller's API key.
    #[must_use]
    pub fn of(
        workflow: &'a Workflow,
        execution: &execution::Execution,
        view: &Execution,
        key: String,
    ) -> Self {
        let run = execution.workflow();
        let ended = execution.completed_at;
        let updated = ended.or(execution.started_at).unwrap_or(execution.created_at);
        let steps = &view.step_outputs.0;
        Self {
            flow_id: workflow.id,
            average_percent: percent(execution, steps),
            flow_name: &workflow.name,
            organization_id: execution.organization,
            api_key: key,
            execution_id: execution.id,
            source_ip_address: run
                .and_then(|run| run.source_ip)
                .map_or_else(String::new, |ip| ip.to_string()),
            parameters: parameters(view.inputs.as_deref()),
            step_results: steps.iter().map(StepResult::from).collect(),
            status: execution.status.into(),
            output: text(view.output.as_deref()),
            output_json: object(view.output.as_deref()),
            created_at: execution.created_at.into(),
            started_at: execution.started_at.map(Time::from),
            ended_at: ended.map(Time::from),
            updated_at: updated.into(),
            deleted_at: None,
        }
    }
}

/// Returns the inputs by name; none if `inputs` is not an object.
fn parameters(inputs: Option<&RawValue>) -> Vec<Parameter> {
    let inputs = inputs.and_then(|inputs| serde_json::from_str(inputs.get()).ok());
    let inputs: Map<String, Value> = inputs.unwrap_or_default();
    inputs.into_iter().map(|(name, value)| Parameter { name, value }).collect()
}

/// Returns the progress in percent: the share of steps that have ended.
fn percent(execution: &execution::Execution, steps: &[Step]) -> f64 {
    if execution.status == execution::Status::Success {
        return 100.0;
    }
    let done = steps.iter().filter(|step| step.status.is_final()).count();
    #[expect(clippy::cast_precision_loss, reason = "a definition has 500 steps at most")]
    let share = done as f64 / steps.len().max(1) as f64;
    (share * 1000.0).round() / 10.0
}

impl From<&Step> for StepResult {
    fn from(step: &Step) -> Self {
        let model = step.metadata.model.clone();
        Self {
            step_id: step.step_id.clone(),
            step_name: step.name.as_ref().unwrap_or(&step.step_id).clone(),
            version: if model.is_some() { VERSION } else { "" },
            model: model.unwrap_or_default(),
            started_at: step.started_at,
            ended_at: step.completed_at,
            status: step.status.into(),
            output: text(step.output.as_deref()),
            output_json: object(step.output.as_deref()),
            input: text(step.input.as_deref()),
        }
    }
}

/// Returns the JSON text; an empty string for no value.
fn text(value: Option<&RawValue>) -> String {
    value.map(RawValue::get).filter(|text| *text != "null").unwrap_or_default().to_owned()
}

/// Returns the value if it is an object, else an object that contains it.
fn object(value: Option<&RawValue>) -> Box<RawValue> {
    match value {
        Some(value) if value.get().starts_with('{') => value.to_owned(),
        value => {
            let text = format!("{{\"output\":{}}}", value.map_or("null", RawValue::get));
            RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
        }
    }
}
