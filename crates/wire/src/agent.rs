//! The agent's request and response bodies: prompts, replies, tasks and sessions. The agent's
//! events are defined in `agent`, each an object with `type` (`docs/spec/agent.md`, "Events").

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Time, chat, pattern};
use orrery_domain::agent::{Behavior, Mode};

/// Maximum number of messages before the prompt, if no session is given.
pub const TURNS_MAX: usize = 100;
/// Maximum length of a session's name, in characters.
pub const SESSION_CHARS_MAX: usize = 128;
/// Maximum number of images in one prompt.
pub const IMAGES_MAX: usize = 4;
/// Maximum length of an image's URL, in characters.
pub const IMAGE_URL_CHARS_MAX: usize = 4096;

/// A prompt in OpenAI's format. Other fields are accepted and ignored.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "AgentCompletionRequest",
    example = json!({
        "session_id": "demo",
        "stream": false,
        "messages": [{"role": "user", "content": "Which models make images?"}],
    })
)]
pub struct CompletionRequest {
    /// The conversation. The last message is the prompt and has the role `user`. Earlier messages
    /// are only used if neither the body nor the header `X-Session-Id` names a session, and are
    /// then limited to 100.
    #[schemars(length(min = 1))]
    pub messages: Vec<chat::Message>,
    #[serde(flatten)]
    pub options: Options,
}

/// A prompt as a single message. Other fields are accepted and ignored.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "AgentMessageRequest",
    example = json!({"message": "Which models make images?", "session_id": "demo"})
)]
pub struct MessageRequest {
    /// The prompt, at most 256 KiB.
    #[schemars(transform = pattern::filled)]
    pub message: String,
    #[serde(flatten)]
    pub options: Options,
}

/// Options for answering a prompt.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "AgentOptions")]
pub struct Options {
    /// Whether to stream the reply as server-sent events. Defaults to true.
    pub stream: Option<bool>,
    /// The session that remembers this exchange. Omit to start a new session.
    #[schemars(length(min = 1, max = SESSION_CHARS_MAX), transform = pattern::line)]
    pub session_id: Option<String>,
    /// The mode. `eco` uses the cheaper model and a quarter of the steps.
    pub mode: Option<Mode>,
    /// What the agent may do: use all tools, only plan, or only read.
    pub behavior: Option<Behavior>,
    /// URLs of images to show to the model.
    #[schemars(length(max = IMAGES_MAX), inner(length(max = IMAGE_URL_CHARS_MAX)))]
    #[schemars(transform = pattern::each_web_url)]
    pub image_urls: Option<Vec<String>>,
}

/// A complete reply in OpenAI's format.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentCompletion")]
pub struct Completion<'a> {
    /// The ID of the completion: `chatcmpl-` and the ID of the task.
    pub id: String,
    /// Always `chat.completion`.
    #[schemars(extend("const" = "chat.completion"))]
    pub object: &'static str,
    /// When the reply was created, in Unix seconds.
    pub created: i64,
    /// The ID of the agent.
    pub model: &'a str,
    /// The only choice.
    pub choices: [Choice<'a>; 1],
    /// Tokens and cost of the exchange.
    pub usage: Usage,
    /// The media files that were generated.
    pub generations: &'a Value,
    /// The ID of the task that answered the prompt.
    pub task_id: String,
    /// The session that the exchange belongs to.
    pub session_id: &'a str,
}

/// The only choice.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentChoice")]
pub struct Choice<'a> {
    /// Always 0.
    pub index: u32,
    /// The agent's message.
    pub message: Message<'a>,
    /// Always `stop`.
    #[schemars(extend("const" = "stop"))]
    pub finish_reason: &'static str,
}

/// The agent's message.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentMessage")]
pub struct Message<'a> {
    /// Always `assistant`.
    #[schemars(extend("const" = "assistant"))]
    pub role: &'static str,
    /// The text of the answer.
    pub content: &'a str,
}

/// Tokens and cost of the exchange.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "AgentUsage")]
pub struct Usage {
    /// Tokens of the prompts that the model read.
    pub prompt_tokens: u64,
    /// Tokens that the model wrote.
    pub completion_tokens: u64,
    /// The sum of `prompt_tokens` and `completion_tokens`.
    pub total_tokens: u64,
    /// Total cost in US dollars, including tools.
    pub cost: f64,
}

/// A complete reply as a single message.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentReply")]
pub struct Reply<'a> {
    /// The text of the answer, or the agent's question.
    pub message: &'a str,
    /// Either `ok` or `clarification_needed`.
    #[schemars(extend("enum" = ["ok", "clarification_needed"]))]
    pub status: &'a str,
    /// Tokens and cost of the exchange.
    pub usage: Usage,
    /// The media files that were generated.
    pub generations: &'a Value,
    /// The ID of the task that answered the prompt.
    pub task_id: String,
    /// The session that the exchange belongs to.
    pub session_id: &'a str,
}

/// The memory of a session.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SessionMemory")]
pub struct Memory<'a> {
    /// The name of the session.
    pub session_id: &'a str,
    /// The latest 50 exchanges, oldest first.
    pub conversation_history: Vec<Exchange<'a>>,
    /// Total number of exchanges in the session.
    pub total_exchanges: u64,
    /// A summary that replaces older exchanges in the model's prompts. Null if nothing has been
    /// summarized yet.
    pub summary: Option<&'a str>,
    /// The URLs of all media files of these exchanges.
    pub generated_media_urls: Vec<&'a str>,
}

/// A prompt and its reply.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SessionExchange")]
pub struct Exchange<'a> {
    /// When the exchange began.
    pub timestamp: Time,
    /// The prompt.
    pub user_prompt: &'a str,
    /// The answer. For a failed exchange, the reason; empty for a cancelled exchange.
    pub chatbot_response: &'a str,
    /// The URLs of the media files that the exchange generated.
    pub generated_media_urls: &'a [String],
}

/// The result of deleting a session's memory.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SessionCleared")]
pub struct Cleared<'a> {
    /// Whether the session existed.
    pub cleared: bool,
    /// The name of the session.
    pub session_id: &'a str,
}

/// The IDs of the sessions.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Sessions")]
pub struct Sessions {
    /// The names of the sessions.
    pub sessions: Vec<String>,
}

/// The list with the agent's only model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentModels")]
pub struct Models<'a> {
    /// Always `list`.
    #[schemars(extend("const" = "list"))]
    pub object: &'static str,
    /// The agent, as the only model.
    pub data: [Model<'a>; 1],
}

/// The agent, described as a model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentModel")]
pub struct Model<'a> {
    /// The ID of the agent, to use as `model`.
    pub id: &'a str,
    /// Always `model`.
    #[schemars(extend("const" = "model"))]
    pub object: &'static str,
    /// When the model was created, in Unix seconds.
    pub created: i64,
    /// Always `orrery`.
    #[schemars(extend("const" = "orrery"))]
    pub owned_by: &'static str,
}

/// A cancelled task.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TaskCancelled")]
pub struct TaskCancelled {
    /// The ID of the task.
    pub task_id: String,
    /// Always `cancelled`.
    #[schemars(extend("const" = "cancelled"))]
    pub status: &'static str,
}
