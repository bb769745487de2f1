//! What a client of Anthropic's API receives: the answer, the events of a stream, token counts, and
//! the error body.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// An answer in Anthropic's format.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageAnswer")]
pub struct Answer {
    /// The ID of the answer.
    pub id: String,
    /// Always `message`.
    #[serde(rename = "type")]
    #[schemars(extend("const" = "message"))]
    pub kind: &'static str,
    /// Always `assistant`.
    #[schemars(extend("const" = "assistant"))]
    pub role: &'static str,
    /// The `model` of the request.
    pub model: String,
    /// The blocks of the answer.
    pub content: Vec<Block>,
    /// Why the answer ended. Null at the start of a stream.
    pub stop_reason: Option<StopReason>,
    /// The stop sequence at which the answer ended, if the model's server reports it.
    pub stop_sequence: Option<String>,
    /// The tokens of the call, and their cost.
    pub usage: Usage,
}

/// A block of an answer.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageAnswerBlock")]
pub enum Block {
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
    /// The model's reasoning.
    Thinking {
        /// The text of the reasoning.
        thinking: String,
        /// The name of the field in which the model expects its reasoning. Clients return it with
        /// the block.
        signature: String,
    },
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "MessageStopReason")]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
    Refusal,
}

/// The tokens of a call, and their cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "MessageUsage")]
pub struct Usage {
    /// Tokens of the prompt that were not read from a cache.
    pub input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
    /// Always 0.
    pub cache_creation_input_tokens: u64,
    /// Tokens of the prompt that were read from a cache.
    pub cache_read_input_tokens: u64,
    /// The cost in US dollars. Absent at the start of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

/// The data of an event in a streamed answer.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageStreamEvent")]
pub enum Event {
    /// The first event. The input tokens are an estimate; the last usage has the exact number.
    MessageStart {
        /// The answer without content.
        message: Answer,
    },
    /// A block begins.
    ContentBlockStart {
        /// The number of the block, starting at 0.
        index: u64,
        /// The block without content.
        content_block: Block,
    },
    /// A block continues.
    ContentBlockDelta {
        /// The number of the block.
        index: u64,
        /// The next part of the block.
        delta: Delta,
    },
    /// A block ends.
    ContentBlockStop {
        /// The number of the block.
        index: u64,
    },
    /// The answer is complete.
    MessageDelta {
        /// Why the answer ended.
        delta: MessageEnd,
        /// The tokens of the call, and their cost.
        usage: Usage,
    },
    /// The last event.
    MessageStop,
    /// Sent while there are no other events.
    Ping,
    /// The stream failed. This is the last event.
    Error {
        /// The details of the error.
        error: ErrorBody,
        /// The ID of the request.
        request_id: String,
    },
}

impl Event {
    /// Returns the name of the event.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
            Self::Error { .. } => "error",
        }
    }
}

/// The next part of a block.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageBlockDelta")]
pub enum Delta {
    /// The next part of a text.
    TextDelta {
        /// The text.
        text: String,
    },
    /// A part of a tool call's arguments.
    InputJsonDelta {
        /// A part of the JSON text.
        partial_json: String,
    },
    /// The next part of the reasoning.
    ThinkingDelta {
        /// The text.
        thinking: String,
    },
    /// The signature of a reasoning block.
    SignatureDelta {
        /// The signature.
        signature: String,
    },
}

/// Why an answer ended.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageEnd")]
pub struct MessageEnd {
    /// Why the answer ended.
    pub stop_reason: StopReason,
    /// The stop sequence at which the answer ended, if the model's server reports it.
    pub stop_sequence: Option<String>,
}

/// The number of tokens in a prompt.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageTokens")]
pub struct TokenCount {
    /// The number of tokens in the prompt.
    pub input_tokens: u64,
}

/// An error in Anthropic's format.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(
    rename = "AnthropicError",
    example = json!({
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "max_tokens is required"},
        "request_id": "0198f0aa-5ab1-7a52-8f0a-3d52b7e7c101",
    })
)]
pub struct Error<'a> {
    /// Always `error`.
    #[serde(rename = "type")]
    #[schemars(extend("const" = "error"))]
    pub kind: &'static str,
    /// The details of the error.
    pub error: ErrorBody,
    /// The ID of the request.
    pub request_id: &'a str,
}

/// The details of an error.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorBody")]
pub struct ErrorBody {
    /// The kind of error, which depends on the status.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// A message for people.
    pub message: String,
}

/// Returns the kind of error for a status (`docs/spec/messages.md`, "Errors").
#[must_use]
pub const fn kind_of(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 | 529 => "overloaded_error",
        _ => "api_error",
    }
}
