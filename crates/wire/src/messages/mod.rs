//! Messages in Anthropic's format: the request, the answer, the events of a stream, and the error
//! body. The list of models is in [`models`].
//!
//! Each role has its own blocks, so that the error for a block in the wrong role lists the valid
//! blocks. Blocks may have fields that are not listed here, such as `cache_control`.

pub mod answer;
pub mod models;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::chat::{MODEL_CHARS_MAX, STOPS_MAX};
use super::pattern;

/// Maximum number of messages in a conversation.
pub const MESSAGES_MAX: usize = 5000;
/// Maximum number of blocks in a message, a system prompt, a document or a tool's result.
pub const BLOCKS_MAX: usize = 5000;
/// Maximum number of tools in a request.
pub const TOOLS_MAX: usize = 1024;

/// A message to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "MessageRequest",
    example = json!({
        "model": "llama-3",
        "max_tokens": 1024,
        "messages": [{"role": "user", "content": "Say hello."}],
    })
)]
pub struct CreateRequest {
    /// The slug of a local chat model, an alias from the configuration, or a model ID of the
    /// upstream.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The maximum number of tokens in the answer.
    #[schemars(range(min = 1, max = u32::MAX))]
    pub max_tokens: u64,
    /// The conversation, oldest message first.
    #[schemars(length(min = 1, max = MESSAGES_MAX))]
    pub messages: Vec<InputMessage>,
    /// Instructions that precede the conversation.
    pub system: Option<System>,
    /// The functions that the model may call.
    #[schemars(length(max = TOOLS_MAX))]
    pub tools: Option<Vec<Tool>>,
    /// Whether the model calls tools. Defaults to `auto`.
    pub tool_choice: Option<ToolChoice>,
    /// Strings at which the model stops.
    #[schemars(length(max = STOPS_MAX))]
    pub stop_sequences: Option<Vec<String>>,
    /// The sampling temperature. Higher values make the answer more random.
    #[schemars(range(min = 0, max = 1))]
    pub temperature: Option<f64>,
    /// Sample only from the most likely tokens whose probabilities add up to this value.
    #[schemars(range(min = 0, max = 1))]
    pub top_p: Option<f64>,
    /// Sample only from this many of the most likely tokens.
    pub top_k: Option<u32>,
    /// Whether to stream the answer as server-sent events.
    pub stream: Option<bool>,
    /// Data about the request.
    pub metadata: Option<Metadata>,
    /// Whether the model reasons before it answers. If omitted, the answer has no `thinking`
    /// blocks.
    pub thinking: Option<Thinking>,
    /// The format of the answer, and the reasoning effort.
    pub output_config: Option<OutputConfig>,
    /// The former name of `output_config.format`.
    pub output_format: Option<OutputFormat>,
    /// Accepted and ignored: model servers cache prompts automatically.
    pub cache_control: Option<Map<String, Value>>,
    /// Accepted and ignored.
    pub service_tier: Option<String>,
}

/// A prompt whose tokens are counted. The prompt has the same fields as a message to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "MessageTokensRequest",
    example = json!({"model": "llama-3", "messages": [{"role": "user", "content": "Say hello."}]})
)]
pub struct CountRequest {
    /// The slug of a local chat model, an alias from the configuration, or a model ID of the
    /// upstream.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The conversation, oldest message first.
    #[schemars(length(min = 1, max = MESSAGES_MAX))]
    pub messages: Vec<InputMessage>,
    /// Instructions that precede the conversation.
    pub system: Option<System>,
    /// The functions that the model may call.
    #[schemars(length(max = TOOLS_MAX))]
    pub tools: Option<Vec<Tool>>,
    /// Whether the model calls tools. Defaults to `auto`.
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model reasons before it answers.
    pub thinking: Option<Thinking>,
    /// The format of the answer, and the reasoning effort.
    pub output_config: Option<OutputConfig>,
    /// The former name of `output_config.format`.
    pub output_format: Option<OutputFormat>,
    /// Accepted and ignored.
    pub cache_control: Option<Map<String, Value>>,
}

/// A message of the conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "role", rename_all = "snake_case")]
#[schemars(rename = "MessageInput")]
pub enum InputMessage {
    /// A message from the user, or the results of tools.
    User {
        /// The content, as text or as blocks.
        content: UserContent,
    },
    /// An earlier answer from the model.
    Assistant {
        /// The content, as text or as blocks.
        content: AssistantContent,
    },
}

/// The content of a user's message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "MessageUserContent")]
pub enum UserContent {
    Text(String),
    Blocks(#[schemars(length(max = BLOCKS_MAX))] Vec<UserBlock>),
}

/// The content of a model's message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "MessageAssistantContent")]
pub enum AssistantContent {
    Text(String),
    Blocks(#[schemars(length(max = BLOCKS_MAX))] Vec<AssistantBlock>),
}

/// A block of a user's message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageUserBlock")]
pub enum UserBlock {
    /// A block of text.
    Text {
        /// The text.
        text: String,
    },
    /// An image.
    Image {
        /// Where the image is.
        source: ImageSource,
    },
    /// A text document.
    Document {
        /// The text of the document.
        source: DocumentSource,
        /// The title of the document.
        title: Option<String>,
        /// What the model should know about the document.
        context: Option<String>,
        /// Whether the answer cites the document. Citations are not supported.
        citations: Option<Citations>,
    },
    /// The result of a tool that the model called.
    ToolResult {
        /// The `id` of the `tool_use` block.
        tool_use_id: String,
        /// The result, as text or as blocks.
        content: Option<ResultContent>,
        /// Whether the tool failed.
        is_error: Option<bool>,
    },
}

/// A block of a model's message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageAssistantBlock")]
pub enum AssistantBlock {
    /// A block of text.
    Text {
        /// The text.
        text: String,
    },
    /// A tool call.
    ToolUse {
        /// The ID of the call.
        id: String,
        /// The name of the tool.
        name: String,
        /// The arguments.
        input: Map<String, Value>,
    },
    /// Reasoning from an earlier answer, which is passed back to the model.
    Thinking {
        /// The text of the reasoning.
        thinking: String,
        /// The `signature` of the answer.
        signature: Option<String>,
    },
}

/// The result of a tool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "MessageResultContent")]
pub enum ResultContent {
    Text(String),
    Blocks(#[schemars(length(max = BLOCKS_MAX))] Vec<PlainBlock>),
}

/// A block of a tool's result, or of a document.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessagePlainBlock")]
pub enum PlainBlock {
    /// A block of text.
    Text {
        /// The text.
        text: String,
    },
    /// An image.
    Image {
        /// Where the image is.
        source: ImageSource,
    },
}

/// Where an image is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageImageSource")]
pub enum ImageSource {
    /// An image in the request.
    Base64 {
        /// The type of the image.
        media_type: ImageType,
        /// The image in base64.
        data: String,
    },
    /// An image on a web server, from which the model's server loads it.
    Url {
        /// The address.
        url: String,
    },
}

/// The type of an image.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[schemars(rename = "MessageImageType")]
pub enum ImageType {
    #[serde(rename = "image/jpeg")]
    Jpeg,
    #[serde(rename = "image/png")]
    Png,
    #[serde(rename = "image/gif")]
    Gif,
    #[serde(rename = "image/webp")]
    Webp,
}

impl ImageType {
    /// Returns the media type.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Jpeg => "image/jpeg",
            Self::Png => "image/png",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
        }
    }
}

/// The text of a document. Other kinds of documents, such as PDF, are not supported.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageDocumentSource")]
pub enum DocumentSource {
    /// Plain text.
    Text {
        /// The text.
        data: String,
    },
    /// Text, or blocks.
    Content {
        /// The content.
        content: ResultContent,
    },
}

/// Whether the answer cites a document.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "MessageCitations")]
pub struct Citations {
    /// Only false is supported.
    #[schemars(extend("enum" = [false, null]))]
    pub enabled: Option<bool>,
}

/// The system prompt, as text or as blocks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "MessageSystem")]
pub enum System {
    Text(String),
    Blocks(#[schemars(length(max = BLOCKS_MAX))] Vec<SystemBlock>),
}

/// A block of the system prompt.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageSystemBlock")]
pub enum SystemBlock {
    /// A block of text.
    Text {
        /// The text.
        text: String,
    },
}

/// A function that the model may call.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "MessageTool")]
pub struct Tool {
    /// Only `custom`, which is the default. Tools that Anthropic's servers run are not available.
    #[serde(rename = "type")]
    pub kind: Option<ToolKind>,
    /// The name of the function.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// What the function does.
    pub description: Option<String>,
    /// The JSON Schema of the arguments.
    pub input_schema: Map<String, Value>,
    /// Whether the arguments must match the schema exactly.
    pub strict: Option<bool>,
}

/// The kind of a tool.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "MessageToolKind")]
pub enum ToolKind {
    Custom,
}

/// Whether the model calls tools.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageToolChoice")]
pub enum ToolChoice {
    /// The model decides.
    Auto {
        /// Whether the model calls at most one tool.
        disable_parallel_tool_use: Option<bool>,
    },
    /// The model calls at least one tool.
    Any {
        /// Whether the model calls at most one tool.
        disable_parallel_tool_use: Option<bool>,
    },
    /// The model calls this tool.
    Tool {
        /// The name of the tool.
        name: String,
        /// Whether the model calls at most one tool.
        disable_parallel_tool_use: Option<bool>,
    },
    /// The model calls no tool.
    None {},
}

/// Data about a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "MessageMetadata")]
pub struct Metadata {
    /// An ID of the end user, which is passed on as `user`.
    pub user_id: Option<String>,
}

/// Whether the model reasons before it answers.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageThinking")]
pub enum Thinking {
    /// The model reasons. The budget selects the effort: below 4096 `low`, below 16,384 `medium`,
    /// else `high`.
    Enabled {
        /// The number of tokens for reasoning.
        #[schemars(range(min = 1, max = u32::MAX))]
        budget_tokens: u64,
        /// `omitted` leaves the reasoning out of the answer.
        display: Option<ThinkingDisplay>,
    },
    /// The model reasons as much as it needs, with the effort of `output_config`.
    Adaptive {
        /// `omitted` leaves the reasoning out of the answer.
        display: Option<ThinkingDisplay>,
    },
    /// The model does not reason, if the model supports this.
    Disabled {},
}

/// Whether the answer contains the reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "MessageThinkingDisplay")]
pub enum ThinkingDisplay {
    Summarized,
    Omitted,
}

/// The format of the answer, and the reasoning effort.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "MessageOutputConfig")]
pub struct OutputConfig {
    /// The effort of the reasoning, if `thinking` is on. Levels above `high` count as `high`.
    pub effort: Option<Effort>,
    /// The format of the answer.
    pub format: Option<OutputFormat>,
}

/// The effort of the reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "MessageEffort")]
pub enum Effort {
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// The format of the answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageOutputFormat")]
pub enum OutputFormat {
    /// JSON that matches a schema.
    JsonSchema {
        /// The JSON Schema.
        schema: Map<String, Value>,
    },
}
