//! Translates between the formats in which AI clients and servers converse. It has pure functions
//! only: no I/O, no clock, no configuration.
//!
//! Each format is a thin reader and writer of the types in this file, which belong to no vendor:
//!
//! | module | format | requests | answers and streams |
//! |---|---|---|---|
//! | [`chat`] | OpenAI's chat completions | read, written | read, written |
//! | [`messages`] | Anthropic's Messages API | read, written | read, written |
//! | [`responses`] | OpenAI's Responses API | read | written |
//!
//! A request of a client is read to a [`Request`], and written for the model's server. The answer is
//! read to an [`Answer`], or to the [`Event`]s of a stream, and written for the client. All requests
//! pass the router as chat completions, which are translated again for upstreams with Anthropic's
//! API.
//!
//! # Invariants
//!
//! - What all formats can express is never lost (`tests` checks this with random
//!   conversations). What a request asks for and no answer could have is rejected by its schema in
//!   `wire`.
//! - The memory of a translation is proportional to its input. A stream's state has a fixed size,
//!   plus one entry per tool call; that of a response is the answer, which its last event repeats.

pub mod chat;
pub mod messages;
pub mod ollama;
pub mod responses;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

/// A request for an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    pub model: String,
    pub messages: Vec<Message>,
    pub tools: Vec<Tool>,
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model may call several tools at once.
    pub parallel_calls: Option<bool>,
    /// The form of the answer. Any text if `None`.
    pub format: Option<Format>,
    pub verbosity: Option<Verbosity>,
    pub token_limit: Option<u64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<u32>,
    pub stops: Vec<String>,
    pub thinking: Thinking,
    pub is_stream: bool,
    /// An ID of the end user.
    pub user: Option<String>,
}

/// The form of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    /// Any JSON object.
    JsonObject,
    /// JSON that matches a schema.
    JsonSchema {
        name: Option<String>,
        description: Option<String>,
        schema: Map<String, Value>,
        is_strict: Option<bool>,
    },
}

/// How detailed an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    Low,
    Medium,
    High,
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub role: Role,
    pub parts: Vec<Part>,
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Text(String),
    Image(Image),
    ToolCall(ToolCall),
    ToolResult {
        /// The ID of the call.
        id: String,
        /// Texts and images.
        parts: Vec<Part>,
        is_error: bool,
    },
    Reasoning(Reasoning),
    Refusal(String),
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// On a web server, or in a data URL.
    Url {
        url: String,
        detail: Option<Detail>,
    },
    Data {
        media_type: String,
        base64: String,
    },
}

/// The resolution in which the model sees an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    Low,
    High,
    Auto,
}

/// A call of a tool by the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Empty if the model's server gives no ID.
    pub id: String,
    pub name: String,
    /// The arguments as JSON text, which models may get wrong.
    pub arguments: String,
}

/// Reasoning of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasoning {
    pub text: String,
    /// The field of the answer that had the reasoning, and in which the same model expects it.
    pub signature: Option<String>,
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    /// The JSON Schema of the arguments.
    pub parameters: Map<String, Value>,
    pub is_strict: Option<bool>,
}

/// Whether the model must call tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    Auto,
    None,
    /// At least one tool.
    Required,
    Named(String),
}

/// Whether the model reasons before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Thinking {
    /// The client does not say.
    #[default]
    Unset,
    Off,
    /// With this effort, or as much as the model needs.
    On(Option<Effort>),
}

/// The effort of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// None at all, as some servers name it.
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
}

/// A complete answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Texts, refusals, reasoning and tool calls.
    pub parts: Vec<Part>,
    pub end: End,
    pub usage: Usage,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum End {
    #[default]
    Complete,
    /// At this stop string.
    StopString(String),
    TokenLimit,
    ToolCalls,
    /// The model or its server refused to go on.
    Refused,
}

impl End {
    /// Returns the end of an answer with these parts: many servers report any complete answer in
    /// the same way.
    fn of_parts(self, has_calls: bool, is_refused: bool) -> Self {
        if self != Self::Complete {
            return self;
        }
        match (has_calls, is_refused) {
            (true, _) => Self::ToolCalls,
            (false, true) => Self::Refused,
            (false, false) => Self::Complete,
        }
    }
}

/// The tokens of a call, and its cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Tokens of the prompt, including cached ones.
    pub input: u64,
    /// Tokens of the answer, including reasoning.
    pub output: u64,
    /// Tokens of the prompt that were read from a cache.
    pub cached: u64,
    /// Tokens of the answer that are reasoning.
    pub reasoning: u64,
    /// In US dollars.
    pub cost: Option<f64>,
}

/// A part of a streamed answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Text(String),
    Reasoning(Reasoning),
    Refusal(String),
    /// A tool call begins. Its arguments follow.
    ToolStart {
        /// The number of the call within the answer.
        call: usize,
        /// Empty if the model's server gives no ID.
        id: String,
        name: String,
    },
    ToolArguments {
        call: usize,
        /// The next part of the JSON text.
        text: String,
    },
    End(End),
    Usage(Usage),
    /// The stream broke. It is the last event.
    Failure {
        /// The type of the error in OpenAI's form.
        kind: String,
        message: String,
    },
}

/// An answer cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the model's answer {0}")]
pub struct Unreadable(pub String);
