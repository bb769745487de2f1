//! What a client of OpenAI's Responses API receives: the response and its items. The events of its
//! stream are in [`super::event`].

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{Effort, ImageDetail, InputRole, ReasoningPart, ToolChoice, Truncation, Verbosity};

/// A response in OpenAI's format.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Response")]
pub struct Response {
    /// The ID of the response.
    pub id: String,
    /// Always `response`.
    #[schemars(extend("const" = "response"))]
    pub object: &'static str,
    /// When the request came, in Unix seconds.
    pub created_at: i64,
    /// The state of the response, and its answer.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The settings of the request.
    #[serde(flatten)]
    pub settings: Settings,
}

/// The state of a response, and its answer.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ResponseOutcome")]
pub struct Outcome {
    /// When the response was complete, in Unix seconds. Null if it is not.
    pub completed_at: Option<i64>,
    /// The status of the response.
    pub status: Status,
    /// Why the response failed. Null unless it did.
    pub error: Option<ResponseError>,
    /// Why the response is incomplete. Null unless it is.
    pub incomplete_details: Option<IncompleteDetails>,
    /// The items of the answer.
    pub output: Vec<Item>,
    /// The tokens of the call, and their cost. Null until the end.
    pub usage: Option<Usage>,
}

/// The settings of a request, with their defaults.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ResponseSettings")]
pub struct Settings {
    /// The `model` of the request.
    pub model: String,
    /// Whether the response is created in the background.
    pub background: bool,
    /// Instructions that precede the conversation.
    pub instructions: Option<String>,
    /// The maximum number of tokens of the answer.
    pub max_output_tokens: Option<u64>,
    /// Always null.
    pub max_tool_calls: Option<u64>,
    /// Names and values of the client.
    pub metadata: BTreeMap<String, String>,
    /// Whether the model may call several tools at once.
    pub parallel_tool_calls: bool,
    /// The response that this one continues.
    pub previous_response_id: Option<String>,
    /// The `prompt_cache_key` of the request.
    pub prompt_cache_key: Option<String>,
    /// How much the model reasons.
    pub reasoning: Reasoning,
    /// An ID of the end user.
    pub safety_identifier: Option<String>,
    /// Always `default`.
    #[schemars(extend("const" = "default"))]
    pub service_tier: &'static str,
    /// Whether the response is stored.
    pub store: bool,
    /// The sampling temperature, 1 if the request has none.
    pub temperature: f64,
    /// The form of the text.
    pub text: Text,
    /// Whether the model calls tools.
    pub tool_choice: ToolChoice,
    /// The functions that the model may call.
    pub tools: Vec<Tool>,
    /// Always 0.
    pub top_logprobs: u32,
    /// The share of the most likely tokens, 1 if the request has none.
    pub top_p: f64,
    /// Always 0.
    pub presence_penalty: f64,
    /// Always 0.
    pub frequency_penalty: f64,
    /// The `truncation` of the request.
    pub truncation: Truncation,
    /// An ID of the end user.
    pub user: Option<String>,
}

/// The status of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseStatus")]
pub enum Status {
    Queued,
    InProgress,
    Completed,
    Incomplete,
    Failed,
    Cancelled,
}

/// Why a response failed.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ResponseError")]
pub struct ResponseError {
    /// A code for programs.
    #[schemars(extend("enum" = ["server_error", "rate_limit_exceeded", "invalid_prompt"]))]
    pub code: &'static str,
    /// A message for people.
    pub message: String,
}

/// Why a response is incomplete.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ResponseIncompleteDetails")]
pub struct IncompleteDetails {
    /// The reason.
    #[schemars(extend("enum" = ["max_output_tokens", "content_filter"]))]
    pub reason: &'static str,
}

/// How much the model reasons.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "ResponseReasoning")]
pub struct Reasoning {
    /// The effort. Null if the model decides.
    pub effort: Option<Effort>,
    /// Always null.
    pub summary: Option<&'static str>,
}

/// The form of the text.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ResponseText")]
pub struct Text {
    /// The format of the text.
    pub format: Format,
    /// How detailed the text is.
    pub verbosity: Verbosity,
}

/// The format of the text.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseFormat")]
pub enum Format {
    /// Any text.
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that matches a schema.
    JsonSchema {
        /// The name of the format.
        name: String,
        /// What the format is for.
        description: Option<String>,
        /// The JSON Schema.
        schema: Map<String, Value>,
        /// Whether the text must match the schema exactly.
        strict: bool,
    },
}

/// A function that the model may call.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ResponseTool")]
pub struct Tool {
    /// Always `function`.
    #[serde(rename = "type")]
    #[schemars(extend("const" = "function"))]
    pub kind: &'static str,
    /// The name of the function.
    pub name: String,
    /// What the function does.
    pub description: Option<String>,
    /// The JSON Schema of the arguments.
    pub parameters: Option<Map<String, Value>>,
    /// Whether the arguments must match the schema exactly.
    pub strict: Option<bool>,
}

/// An item of an input or an answer.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseItem")]
pub enum Item {
    /// A message.
    Message {
        /// The ID of the item.
        id: String,
        /// Whether the item is complete.
        status: ItemStatus,
        /// The author's role.
        role: Role,
        /// The parts of the message.
        content: Vec<Part>,
    },
    /// A call of a function.
    FunctionCall {
        /// The ID of the item.
        id: String,
        /// Whether the item is complete.
        status: ItemStatus,
        /// The ID of the call, to which its output refers.
        call_id: String,
        /// The name of the function.
        name: String,
        /// The arguments as JSON text.
        arguments: String,
    },
    /// The output of a function.
    FunctionCallOutput {
        /// The ID of the item.
        id: String,
        /// Whether the item is complete.
        status: ItemStatus,
        /// The `call_id` of the call.
        call_id: String,
        /// The output.
        output: CallOutput,
    },
    /// The model's reasoning.
    Reasoning {
        /// The ID of the item.
        id: String,
        /// Whether the item is complete.
        status: ItemStatus,
        /// Always empty.
        summary: Vec<ReasoningPart>,
        /// The text of the reasoning.
        content: Vec<ReasoningPart>,
        /// To be returned with the item: names the field in which the model expects its reasoning.
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
    },
    /// The summary of a conversation.
    Compaction {
        /// The ID of the item.
        id: String,
        /// The summary, to be returned with the item in the input of a later request. It is not
        /// encrypted.
        encrypted_content: String,
    },
}

impl Item {
    /// Returns the ID of the item.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Message { id, .. }
            | Self::FunctionCall { id, .. }
            | Self::FunctionCallOutput { id, .. }
            | Self::Reasoning { id, .. }
            | Self::Compaction { id, .. } => id,
        }
    }
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseRole")]
pub enum Role {
    User,
    System,
    Developer,
    Assistant,
}

impl From<InputRole> for Role {
    fn from(role: InputRole) -> Self {
        match role {
            InputRole::User => Self::User,
            InputRole::System => Self::System,
            InputRole::Developer => Self::Developer,
        }
    }
}

/// Whether an item is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseItemStatus")]
pub enum ItemStatus {
    InProgress,
    Completed,
    Incomplete,
}

/// A part of a message.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponsePart")]
pub enum Part {
    /// A text to the model.
    InputText {
        /// The text.
        text: String,
    },
    /// An image.
    InputImage {
        /// The address of the image, or the image itself as a data URL.
        image_url: String,
        /// The resolution in which the model sees the image.
        detail: ImageDetail,
    },
    /// A text of the model.
    OutputText {
        /// The text.
        text: String,
        /// Always empty.
        annotations: [(); 0],
        /// Always empty.
        logprobs: [(); 0],
    },
    /// A refusal of the model.
    Refusal {
        /// The text of the refusal.
        refusal: String,
    },
    /// Reasoning of the model.
    ReasoningText {
        /// The text.
        text: String,
    },
}

/// The output of a function.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ResponseCallOutput")]
pub enum CallOutput {
    Text(String),
    Parts(Vec<Part>),
}

/// The tokens of a call, and their cost.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "ResponseUsage")]
pub struct Usage {
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Details of the prompt's tokens.
    pub input_tokens_details: InputDetails,
    /// Tokens of the answer.
    pub output_tokens: u64,
    /// Details of the answer's tokens.
    pub output_tokens_details: OutputDetails,
    /// Tokens of the prompt and the answer.
    pub total_tokens: u64,
    /// The cost in US dollars. 0 if the model has no price.
    pub cost: f64,
}

/// Details of the prompt's tokens.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "ResponseInputDetails")]
pub struct InputDetails {
    /// Tokens that were read from a cache.
    pub cached_tokens: u64,
    /// Always 0.
    pub cache_write_tokens: u64,
}

/// Details of the answer's tokens.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "ResponseOutputDetails")]
pub struct OutputDetails {
    /// Tokens of reasoning.
    pub reasoning_tokens: u64,
}

/// A conversation that was compacted.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseCompaction")]
pub struct Compaction {
    /// The ID of the compaction. It is not stored.
    pub id: String,
    /// Always `response.compaction`.
    #[schemars(extend("const" = "response.compaction"))]
    pub object: &'static str,
    /// When it was created, in seconds since 1970.
    pub created_at: i64,
    /// One item of type `compaction`, which replaces the conversation in later requests.
    pub output: Vec<Item>,
    /// The tokens of the call that summarized the conversation, and their cost.
    pub usage: Usage,
}

/// A page of items.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseItems")]
pub struct ItemList<'a> {
    /// Always `list`.
    #[schemars(extend("const" = "list"))]
    pub object: &'static str,
    /// The items.
    #[schemars(with = "Vec<Item>")]
    pub data: Vec<&'a RawValue>,
    /// The ID of the first item. Null if there is none.
    pub first_id: Option<&'a str>,
    /// The ID of the last item. Null if there is none.
    pub last_id: Option<&'a str>,
    /// Whether more items follow.
    pub has_more: bool,
}

/// A response that was deleted.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeletedResponse")]
pub struct Deleted {
    /// The ID of the response.
    pub id: String,
    /// Always `response`.
    #[schemars(extend("const" = "response"))]
    pub object: &'static str,
    /// Always true.
    #[schemars(extend("const" = true))]
    pub deleted: bool,
}
