//! The events of an exchange of the agent (`docs/spec/agent.md`, "Events"), for the OpenAPI
//! document only: `agent` stores events as JSON with the steps that they belong to. The tests check
//! each stream against these types.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::chat::StreamEnd;
use super::{ExecutionStatus, openai};
use orrery_domain::ids::{ExecutionId, WorkflowId};

/// An event of an exchange.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "AgentEvent")]
pub enum AgentEvent {
    /// The reasoning of a model that thinks before it answers.
    ThinkingDelta {
        /// The text of the reasoning.
        content: String,
    },
    /// A tool on another server is called, or the conversation was summarized.
    Status {
        /// What happens, in a sentence.
        message: String,
        /// The tool that is called.
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_name: Option<String>,
        /// The arguments of the call.
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<Map<String, Value>>,
    },
    /// Text that the model writes in addition to its tool calls.
    TextResponse {
        /// The text.
        content: String,
    },
    /// The model calls a tool.
    ToolCall {
        /// The name of the tool.
        name: String,
        /// The arguments of the call. Null if the arguments are not valid JSON.
        input: Value,
    },
    /// A model that the agent ran has generated media files.
    GenerationResponse {
        /// The URL of the first file.
        url: Option<String>,
        /// The files.
        generations: Vec<Generation>,
        /// The number of files.
        total: usize,
        /// The tool that ran the model.
        tool_name: String,
        /// The model that ran.
        model: String,
        /// The run time in milliseconds.
        execution_time_ms: Option<u64>,
    },
    /// The agent has read a workflow.
    WorkflowFetched {
        /// The ID of the workflow.
        workflow_id: WorkflowId,
        /// The version that was read.
        version_id: String,
        /// The name of the workflow.
        workflow_name: String,
        /// The definition. Null if the definition is too large for an event.
        definition: Value,
    },
    /// A definition that the agent wrote was accepted.
    WorkflowBuilt {
        /// The number of steps.
        steps_count: usize,
        /// The definition. Null if the definition is too large for an event.
        definition: Value,
    },
    /// The agent has created a workflow.
    WorkflowCreated {
        /// The ID of the workflow.
        workflow_id: WorkflowId,
        /// The first version.
        version_id: String,
        /// The name of the workflow.
        workflow_name: String,
        /// The JSON Schema of the inputs. Null if the definition has none.
        input_schema: Value,
        /// The number of steps.
        steps_count: usize,
    },
    /// The agent has created or changed a version of a workflow.
    WorkflowUpdated {
        /// Always true.
        success: bool,
        /// The ID of the workflow.
        workflow_id: WorkflowId,
        /// The version.
        version_id: String,
        /// The new definition.
        definition: Value,
        /// What was changed, in a sentence.
        message: String,
    },
    /// The agent has started a workflow.
    ExecutionStarted {
        /// The ID of the execution.
        execution_id: ExecutionId,
        /// The ID of the workflow.
        workflow_id: WorkflowId,
        /// The version that runs.
        version_id: String,
        /// The inputs. Null if the inputs are too large for an event.
        inputs: Value,
    },
    /// A step of the workflow has ended, or a prediction has started or ended.
    ExecutionProgress {
        /// The ID of the execution or the prediction.
        execution_id: ExecutionId,
        /// The step. Null for a prediction.
        step_id: Option<String>,
        /// The status of the step or the prediction.
        step_status: String,
        /// The model that ran. Null for steps that run no model.
        model: Option<String>,
        /// The output of the step. Null if the output has more than 4 KiB.
        output: Value,
        /// The number of steps that have ended.
        completed_steps: usize,
        /// The number of steps.
        total_steps: usize,
        /// The share of steps that have ended, in percent.
        progress_percent: usize,
    },
    /// A tool on another server reports its progress.
    Progress {
        /// What the tool is doing, in a sentence.
        message: String,
        /// The progress in percent. Null if the tool does not report its progress.
        percent: Option<f64>,
    },
    /// The workflow that the agent started has ended.
    ExecutionCompleted {
        /// The ID of the execution.
        execution_id: ExecutionId,
        /// The ID of the workflow.
        workflow_id: WorkflowId,
        /// How the execution ended.
        status: ExecutionStatus,
        /// The output. Null if the output is too large for an event.
        output: Value,
        /// The URLs of the files in the output.
        all_outputs: Vec<String>,
        /// The run time in milliseconds.
        total_time_ms: Option<u64>,
    },
    /// The agent asks the user. The exchange ends with this question.
    ClarificationNeeded {
        /// The question.
        question: String,
        /// Suggested answers.
        options: Vec<Value>,
        /// Always null.
        context: Value,
        /// Always true.
        requires_response: bool,
    },
    /// The answer.
    Message {
        /// The text of the answer.
        content: String,
    },
    /// The exchange has failed or was cancelled. `complete` follows.
    Error {
        /// What went wrong, in a sentence.
        message: String,
        /// The name of the error.
        error_code: String,
        /// More information.
        details: ErrorDetails,
    },
    /// The exchange has ended. The last event.
    Complete {
        /// The ID of the task.
        task_id: ExecutionId,
        /// How the exchange ended: `ok`, `error` or `clarification_needed`.
        #[schemars(extend("enum" = ["ok", "error", "clarification_needed"]))]
        status: String,
        /// All media files that were generated.
        generations: Vec<Generation>,
        /// The agent's model that answered.
        model: Option<String>,
        /// The total cost in US dollars, including tools.
        cost: f64,
        /// The run time in milliseconds.
        total_time_ms: u64,
    },
}

/// A media file that a model generated for the agent.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentGeneration")]
pub struct Generation {
    /// The URL of the file, which needs no API key.
    pub url: String,
    /// The model that generated the file.
    pub model: String,
    /// The type of the model's output, such as `image`.
    pub r#type: String,
}

/// More information about the error of an exchange.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentErrorDetails")]
pub struct ErrorDetails {
    /// The class of the error. Null if the exchange was cancelled.
    pub error_classification: Option<String>,
}

/// The data of an event in the `POST /chat` stream.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "AgentStreamEvent")]
pub enum Streamed {
    Event(Box<AgentEvent>),
    End(StreamEnd),
}

/// The data of an event in a stream in OpenAI's format.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "AgentChunkEvent")]
pub enum StreamedChunk {
    Chunk(Chunk),
    Error(openai::Error<'static>),
    End(StreamEnd),
}

/// An event of an exchange as a chunk in OpenAI's format. The chunk also has the fields of the
/// event (`AgentEvent`), except that `model` is the ID of the agent.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentCompletionChunk")]
pub struct Chunk {
    /// The ID of the completion: `chatcmpl-` and the ID of the task.
    pub id: String,
    /// Always `chat.completion.chunk`.
    #[schemars(extend("const" = "chat.completion.chunk"))]
    pub object: &'static str,
    /// When the chunk was sent, in Unix seconds.
    pub created: i64,
    /// The ID of the agent.
    pub model: String,
    /// The only choice. The choice's delta has the answer's text in the events `message` and
    /// `clarification_needed`, and is empty in all other events.
    pub choices: Vec<super::chat::ChunkChoice>,
    /// The type of the event.
    pub r#type: String,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}
