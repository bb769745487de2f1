//! An organization's history: predictions, workflow executions, chat calls, decisions and exchanges
//! of the agent in one list.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::{ExecutionStatus, PredictionStatus, Text, Time};
use orrery_domain::account::dashboard_key;
use orrery_domain::agent;
use orrery_domain::chat;
use orrery_domain::classify::ErrorClass;
use orrery_domain::decision;
use orrery_domain::execution::{Execution, Kind, Source, StepOf};
use orrery_domain::ids::{BulkId, ExecutionId, KeyId, ScheduleId, WorkflowId};
use orrery_domain::waits_for::WaitsFor;

/// An execution in the history.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HistoryRow")]
pub struct Row<'a> {
    /// The ID of the execution.
    pub id: ExecutionId,
    /// What was run.
    #[serde(rename = "type")]
    pub kind: RowType,
    /// The model that ran or is running. Null for workflows.
    pub model: Option<&'a str>,
    /// The requested model.
    pub requested_model: Option<&'a str>,
    /// The workflow. Null for rows that belong to no workflow.
    pub workflow_id: Option<WorkflowId>,
    /// The name of the workflow.
    pub workflow_name: Option<String>,
    /// The version of the workflow.
    pub version_id: Option<&'a str>,
    /// For a step's prediction, the workflow execution. For a sub-workflow, the parent execution.
    pub workflow_execution_id: Option<ExecutionId>,
    /// The bulk trigger that started the execution.
    pub bulk_id: Option<BulkId>,
    /// The status. The values depend on the type.
    pub status: RowStatus,
    /// What the execution needs to continue: an event (`event`) or a resume request (`paused`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<WaitsFor>")]
    pub waiting_for: Option<&'static str>,
    /// The name of the error.
    pub error: Option<&'a str>,
    /// The cause of the error.
    pub error_cause: Option<&'a str>,
    /// The class of the error.
    pub error_classification: Option<ErrorClass>,
    /// The cost in US dollars.
    pub execution_cost: f64,
    /// The run time in seconds.
    pub run_time: Option<f64>,
    /// When the execution was created.
    pub created_at: Time,
    /// When the execution started. Null until then.
    pub started_at: Option<Time>,
    /// When the execution ended. Null until then.
    pub completed_at: Option<Time>,
    /// The output as JSON text. Null if the output would make the page too large.
    pub output: Option<String>,
    /// Why the output is missing or damaged on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// The API key that started the execution. Null if the execution was started in the dashboard.
    pub api_key_id: Option<KeyId>,
    /// What started the execution.
    pub source: Source,
    /// The schedule that started the execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<ScheduleId>,
    /// Usage of a chat call. Absent in rows of other types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat: Option<Call>,
    /// Usage of a decisions request. Absent in rows of other types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// Usage of an exchange of the agent. Absent in rows of other types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Exchange<'a>>,
}

/// A call of the chat router.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HistoryChatCall")]
pub struct Call {
    /// What was called.
    pub operation: CallOperation,
    /// Whether the upstream handled the call, rather than a local model.
    pub upstream: bool,
    /// Whether the answer was streamed.
    pub stream: bool,
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
    /// Prompt tokens that the model read from its cache. Absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    /// Reasoning tokens in the answer. Absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// Whether the token counts are estimated because the model did not report them.
    pub tokens_estimated: bool,
    /// Seconds of audio that were transcribed. Absent for other operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio_seconds: Option<f64>,
    /// Characters of text that were read aloud. Absent for other operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub characters: Option<u64>,
    /// The number of images that were made. Absent for other operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<u64>,
    /// Whether the model has a price. Otherwise, the call is free.
    pub priced: bool,
    /// True if the answer comes from the result cache of the model. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<bool>,
    /// Seconds from the request to the first byte of the answer.
    pub first_byte_time: Option<f64>,
}

/// The type of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HistoryChatOperation")]
pub enum CallOperation {
    Chat,
    Embeddings,
    Completions,
    Rerank,
    Transcriptions,
    Translations,
    Speech,
    Images,
    ImageEdits,
}

impl From<&chat::Call> for Call {
    fn from(call: &chat::Call) -> Self {
        let first_byte = call.first_byte_ms.map(Duration::from_millis);
        Self {
            operation: match call.operation {
                chat::Operation::Chat => CallOperation::Chat,
                chat::Operation::Embeddings => CallOperation::Embeddings,
                chat::Operation::Completions => CallOperation::Completions,
                chat::Operation::Rerank => CallOperation::Rerank,
                chat::Operation::Transcriptions => CallOperation::Transcriptions,
                chat::Operation::Translations => CallOperation::Translations,
                chat::Operation::Speech => CallOperation::Speech,
                chat::Operation::Images => CallOperation::Images,
                chat::Operation::ImageEdits => CallOperation::ImageEdits,
            },
            upstream: call.is_upstream,
            stream: call.is_stream,
            input_tokens: call.tokens.input,
            output_tokens: call.tokens.output,
            cached_input_tokens: (call.tokens.cached > 0).then_some(call.tokens.cached),
            reasoning_tokens: (call.tokens.reasoning > 0).then_some(call.tokens.reasoning),
            tokens_estimated: call.tokens.is_estimated,
            audio_seconds: call.media.audio_ms.map(|ms| Duration::from_millis(ms).as_secs_f64()),
            characters: call.media.characters,
            images: call.media.images,
            priced: call.is_priced,
            cached: call.is_cached.then_some(true),
            first_byte_time: first_byte.map(|time| time.as_secs_f64()),
        }
    }
}

/// A decisions request.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HistoryDecision")]
pub struct Decision {
    /// `logprobs`, or `votes` if at least one question was answered by sampling.
    #[schemars(extend("enum" = ["logprobs", "votes"]))]
    pub method: &'static str,
    /// Whether the upstream handled the request, rather than a local model.
    pub upstream: bool,
    /// The number of questions.
    pub questions: u32,
    /// The number of answers that the model gave.
    pub calls: u32,
    /// Tokens that the model read.
    pub input_tokens: u64,
    /// Tokens that the model wrote.
    pub output_tokens: u64,
    /// Whether the token counts are estimated because the model did not report them.
    pub tokens_estimated: bool,
    /// Whether the model has a price. Otherwise, the request is free.
    pub priced: bool,
}

impl From<&decision::Decision> for Decision {
    fn from(decision: &decision::Decision) -> Self {
        Self {
            method: decision.method.as_str(),
            upstream: decision.is_upstream,
            questions: decision.questions,
            calls: decision.calls,
            input_tokens: decision.tokens.input,
            output_tokens: decision.tokens.output,
            tokens_estimated: decision.tokens.is_estimated,
            priced: decision.is_priced,
        }
    }
}

/// An exchange of the agent.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HistoryExchange")]
pub struct Exchange<'a> {
    /// The session that the exchange belongs to.
    pub session_id: &'a str,
    /// Prompt tokens of the agent's model.
    pub input_tokens: u64,
    /// Tokens that the agent's model wrote.
    pub output_tokens: u64,
    /// Whether the token counts are estimated because the model did not report them.
    pub tokens_estimated: bool,
}

impl<'a> From<&'a agent::Exchange> for Exchange<'a> {
    fn from(exchange: &'a agent::Exchange) -> Self {
        Self {
            session_id: &exchange.session_name,
            input_tokens: exchange.tokens.input,
            output_tokens: exchange.tokens.output,
            tokens_estimated: exchange.tokens.is_estimated,
        }
    }
}

/// The type of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HistoryRowType")]
pub enum RowType {
    Prediction,
    Workflow,
    Chat,
    Decision,
    Agent,
}

impl From<Kind> for RowType {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Prediction => Self::Prediction,
            Kind::Workflow => Self::Workflow,
            Kind::Chat => Self::Chat,
            Kind::Decision => Self::Decision,
            Kind::Agent => Self::Agent,
        }
    }
}

/// The status of a row. The values depend on its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "HistoryRowStatus")]
pub enum RowStatus {
    Prediction(PredictionStatus),
    Workflow(ExecutionStatus),
}

/// The workflow of an execution: its ID, version, step's run and bulk trigger.
#[derive(Debug, Clone, Copy)]
pub struct OfWorkflow<'a> {
    pub workflow: WorkflowId,
    version: &'a str,
    run: Option<ExecutionId>,
    bulk: Option<BulkId>,
}

impl<'a> OfWorkflow<'a> {
    /// Returns the workflow of a workflow run, or of a prediction that is a step of a workflow run.
    #[must_use]
    pub fn of(execution: &'a Execution) -> Option<Self> {
        if let Some(run) = execution.workflow() {
            let version = run.version.as_str();
            let parent = run.parent.as_ref().map(|parent| parent.execution);
            return Some(Self { workflow: run.workflow, version, run: parent, bulk: run.bulk });
        }
        let step: &StepOf = execution.prediction()?.step.as_ref()?;
        Some(Self {
            workflow: step.workflow,
            version: &step.version,
            run: Some(step.execution),
            bulk: step.bulk,
        })
    }
}

impl<'a> Row<'a> {
    /// Returns the row of `execution`. The caller looks up the workflow's name and the output.
    #[must_use]
    pub fn of(execution: &'a Execution, workflow_name: Option<String>, output: Text) -> Self {
        let fault = execution.fault.as_ref();
        let models = execution.models();
        let of = OfWorkflow::of(execution);
        let kind = execution.kind();
        let status = match kind {
            Kind::Workflow => RowStatus::Workflow(execution.status.into()),
            Kind::Prediction | Kind::Chat | Kind::Decision | Kind::Agent => {
                RowStatus::Prediction(execution.status.into())
            }
        };
        Self {
            id: execution.id,
            kind: kind.into(),
            model: models.map(|(model, _)| model),
            requested_model: models.map(|(_, requested)| requested),
            workflow_id: of.map(|of| of.workflow),
            workflow_name,
            version_id: of.map(|of| of.version),
            workflow_execution_id: of.and_then(|of| of.run),
            bulk_id: of.and_then(|of| of.bulk),
            status,
            waiting_for: execution.waits_for().map(WaitsFor::as_str),
            error: fault.map(|fault| fault.name.as_str()),
            error_cause: fault.map(|fault| fault.cause.as_str()),
            error_classification: fault.map(|fault| fault.class),
            execution_cost: execution.cost.dollars(),
            run_time: execution.run_time().map(|time| time.as_secs_f64()),
            created_at: execution.created_at.into(),
            started_at: execution.started_at.map(Time::from),
            completed_at: execution.completed_at.map(Time::from),
            output: output.text.map(|text| Box::<str>::from(text).into_string()),
            output_error: output.error,
            api_key_id: (execution.key != dashboard_key(execution.organization))
                .then_some(execution.key),
            source: execution.source,
            schedule_id: execution.schedule(),
            chat: execution.call().map(Call::from),
            decision: execution.decision().map(Decision::from),
            agent: execution.agent().map(Exchange::from),
        }
    }
}

/// The columns of a row.
pub const COLUMNS: [&str; 27] = [
    "id",
    "type",
    "model",
    "requested_model",
    "workflow_id",
    "workflow_name",
    "version_id",
    "workflow_execution_id",
    "bulk_id",
    "status",
    "waiting_for",
    "error",
    "error_cause",
    "error_classification",
    "execution_cost",
    "run_time",
    "created_at",
    "started_at",
    "completed_at",
    "output",
    "output_error",
    "api_key_id",
    "source",
    "schedule_id",
    "chat",
    "decision",
    "agent",
];

/// A row, either complete or with only the requested columns.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Selected<'a> {
    Whole(Box<Row<'a>>),
    Parts(serde_json::Value),
}

/// Uses the schema of a complete row.
impl JsonSchema for Selected<'_> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        Row::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Row::json_schema(generator)
    }
}

/// A page by offset.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HistoryPageByOffset")]
pub struct PageByOffset<'a> {
    /// The rows, newest first.
    pub executions: Vec<Selected<'a>>,
    /// The number of matching rows, up to 1000.
    pub total_count: usize,
    /// Whether there are more rows than were counted.
    pub total_capped: bool,
    /// The requested offset.
    pub offset: u64,
    /// The requested page size.
    pub limit: u64,
}

/// A page by cursor.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HistoryPage")]
pub struct Page<'a> {
    /// The rows, newest first.
    pub executions: Vec<Selected<'a>>,
    /// The requested page size.
    pub limit: u64,
    /// Whether there is another page.
    pub has_more: bool,
    /// The `cursor` for the next page.
    pub next_cursor: Option<String>,
}
