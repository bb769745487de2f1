//! The history of an organization: predictions, executions of workflows, calls of the chat router,
//! requests for decisions and exchanges of the agent in one list.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::{ExecutionStatus, PredictionStatus, Text, Time};
use crate::domain::account::dashboard_key;
use crate::domain::agent;
use crate::domain::chat;
use crate::domain::classify::ErrorClass;
use crate::domain::decision;
use crate::domain::execution::{Execution, Kind, Source, StepOf};
use crate::domain::ids::{BulkId, ExecutionId, KeyId, ScheduleId, WorkflowId};
use crate::domain::waits_for::WaitsFor;

/// An execution, as the history shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HistoryRow")]
pub struct Row<'a> {
    pub id: ExecutionId,
    #[serde(rename = "type")]
    pub kind: RowType,
    /// The model that ran or runs; null for a workflow.
    pub model: Option<&'a str>,
    /// The model that was asked for.
    pub requested_model: Option<&'a str>,
    pub workflow_id: Option<WorkflowId>,
    pub workflow_name: Option<String>,
    pub version_id: Option<&'a str>,
    /// The execution of which this prediction is a step, or a step of which started this execution.
    pub workflow_execution_id: Option<ExecutionId>,
    pub bulk_id: Option<BulkId>,
    pub status: RowStatus,
    /// `event` or `paused`: what a run of a workflow waits for that somebody has to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<&'static str>,
    /// The name of the error.
    pub error: Option<&'a str>,
    /// What happened.
    pub error_cause: Option<&'a str>,
    pub error_classification: Option<ErrorClass>,
    /// US dollars.
    pub execution_cost: f64,
    /// Seconds.
    pub run_time: Option<f64>,
    pub created_at: Time,
    pub started_at: Option<Time>,
    pub completed_at: Option<Time>,
    /// The output as JSON text; null also where the page has no room for it.
    pub output: Option<String>,
    /// Why the output is missing: it is lost or damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// Null where the dashboard made it.
    pub api_key_id: Option<KeyId>,
    pub source: Source,
    /// The schedule that started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<ScheduleId>,
    /// What a call of the chat router used; absent in rows of other types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat: Option<Call>,
    /// What a request for decisions used; absent in rows of other types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// An exchange of the agent; absent in rows of other types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Exchange<'a>>,
}

/// A call of the chat router.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HistoryChatCall")]
pub struct Call {
    pub operation: CallOperation,
    /// Whether the upstream was asked, and not a model of the catalog.
    pub upstream: bool,
    pub stream: bool,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Whether the model did not count the tokens, so that they are estimated from the texts.
    pub tokens_estimated: bool,
    /// Whether the model has a price; without one the call costs nothing.
    pub priced: bool,
    /// Seconds from the request to the first byte of the answer.
    pub first_byte_time: Option<f64>,
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HistoryChatOperation")]
pub enum CallOperation {
    Chat,
    Embeddings,
}

impl From<&chat::Call> for Call {
    fn from(call: &chat::Call) -> Self {
        let first_byte = call.first_byte_ms.map(Duration::from_millis);
        Self {
            operation: match call.operation {
                chat::Operation::Chat => CallOperation::Chat,
                chat::Operation::Embeddings => CallOperation::Embeddings,
            },
            upstream: call.is_upstream,
            stream: call.is_stream,
            input_tokens: call.tokens.input,
            output_tokens: call.tokens.output,
            tokens_estimated: call.tokens.is_estimated,
            priced: call.is_priced,
            first_byte_time: first_byte.map(|time| time.as_secs_f64()),
        }
    }
}

/// A request for decisions.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HistoryDecision")]
pub struct Decision {
    /// `logprobs`, or `votes` if at least one question was answered by repeated answers.
    pub method: &'static str,
    /// Whether the upstream was asked, and not a model of the catalog.
    pub upstream: bool,
    pub questions: u32,
    /// How many answers the model gave.
    pub calls: u32,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Whether the model did not count the tokens, so that they are estimated from the texts.
    pub tokens_estimated: bool,
    /// Whether the model has a price; without one the request costs nothing.
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
    pub session_id: &'a str,
    /// What the answers of its model used.
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Whether the model did not count the tokens, so that they are estimated from the texts.
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

/// What a row is.
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

/// The status of a row, in the words of its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "HistoryRowStatus")]
pub enum RowStatus {
    Prediction(PredictionStatus),
    Workflow(ExecutionStatus),
}

/// What an execution is of a workflow: the workflow, its version, the run whose step it is, the bulk.
#[derive(Debug, Clone, Copy)]
pub struct OfWorkflow<'a> {
    pub workflow: WorkflowId,
    version: &'a str,
    run: Option<ExecutionId>,
    bulk: Option<BulkId>,
}

impl<'a> OfWorkflow<'a> {
    /// Of a run of a workflow, and of a prediction that is a step of one.
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
    /// The row of `execution`; the name and the output's text are found by the caller.
    #[must_use]
    pub fn of(execution: &'a Execution, workflow_name: Option<String>, output: Text) -> Self {
        let fault = execution.fault.as_ref();
        let models = execution.models();
        let of = OfWorkflow::of(execution);
        let (kind, status) = match execution.kind() {
            Kind::Prediction => {
                (RowType::Prediction, RowStatus::Prediction(execution.status.into()))
            }
            Kind::Workflow => (RowType::Workflow, RowStatus::Workflow(execution.status.into())),
            Kind::Chat => (RowType::Chat, RowStatus::Prediction(execution.status.into())),
            Kind::Decision => (RowType::Decision, RowStatus::Prediction(execution.status.into())),
            Kind::Agent => (RowType::Agent, RowStatus::Prediction(execution.status.into())),
        };
        Self {
            id: execution.id,
            kind,
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

/// A row, or the columns of one that were asked for.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Selected<'a> {
    Whole(Box<Row<'a>>),
    Parts(serde_json::Value),
}

/// In the API's description, a row.
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
    pub executions: Vec<Selected<'a>>,
    /// How many there are, up to 1000.
    pub total_count: usize,
    /// Whether there are more than were counted.
    pub total_capped: bool,
    pub offset: u64,
    pub limit: u64,
}

/// A page by cursor.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HistoryPage")]
pub struct Page<'a> {
    pub executions: Vec<Selected<'a>>,
    pub limit: u64,
    pub has_more: bool,
    /// The `cursor` of the next page.
    pub next_cursor: Option<String>,
}
