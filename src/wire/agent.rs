//! The agent as clients call it: prompts, answers, tasks, and what is remembered. Its events are made by
//! `agent`, each an object with `type` (`docs/spec/agent.md`, "Events").

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Time;

/// A prompt in OpenAI's form. Other fields are accepted and have no effect.
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
    /// The last one is the prompt. Those before it count where no session is named.
    #[schemars(length(min = 1))]
    pub messages: Vec<Map<String, Value>>,
    /// Whether the answer comes as server-sent events; true by default.
    pub stream: Option<bool>,
    #[serde(flatten)]
    pub options: Options,
}

/// A prompt as one message. Other fields are accepted and have no effect.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "AgentMessageRequest",
    example = json!({"message": "Which models make images?", "session_id": "demo"})
)]
pub struct MessageRequest {
    #[schemars(length(min = 1))]
    pub message: String,
    /// Whether the answer comes as server-sent events; true by default.
    pub stream: Option<bool>,
    #[serde(flatten)]
    pub options: Options,
}

/// How a prompt is answered.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "AgentOptions")]
pub struct Options {
    /// The session that remembers it; without it, a new one.
    #[schemars(length(min = 1, max = 128))]
    pub session_id: Option<String>,
    pub mode: Option<Mode>,
    pub behavior: Option<Behavior>,
    /// Images that the model looks at.
    #[schemars(length(max = 4))]
    pub image_urls: Option<Vec<String>>,
}

/// `eco` uses the cheaper model and a quarter of the steps.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AgentMode")]
pub enum Mode {
    Max,
    Eco,
}

/// What the agent may do: everything, plan, or read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AgentBehavior")]
pub enum Behavior {
    Agent,
    Plan,
    Ask,
}

/// An answer at once, in OpenAI's form.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentCompletion")]
pub struct Completion<'a> {
    pub id: String,
    /// `chat.completion`
    pub object: &'static str,
    /// Unix seconds.
    pub created: i64,
    pub model: &'a str,
    pub choices: [Choice<'a>; 1],
    pub usage: Usage,
    /// The media that were made.
    pub generations: &'a Value,
    pub task_id: String,
    pub session_id: &'a str,
}

/// The one choice.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentChoice")]
pub struct Choice<'a> {
    pub index: u32,
    pub message: Message<'a>,
    /// `stop`
    pub finish_reason: &'static str,
}

/// What the agent says.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentMessage")]
pub struct Message<'a> {
    /// `assistant`
    pub role: &'static str,
    pub content: &'a str,
}

/// What the model's answers used.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "AgentUsage")]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    /// US dollars, the tools' cost included.
    pub cost: f64,
}

/// An answer at once, as one message.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentReply")]
pub struct Reply<'a> {
    pub message: &'a str,
    /// `ok` or `clarification_needed`.
    pub status: &'a str,
    pub usage: Usage,
    /// The media that were made.
    pub generations: &'a Value,
    pub task_id: String,
    pub session_id: &'a str,
}

/// What a session remembers.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SessionMemory")]
pub struct Memory<'a> {
    pub session_id: &'a str,
    /// The newest 50, oldest first.
    pub conversation_history: Vec<Exchange<'a>>,
    /// How many there were in all.
    pub total_exchanges: u64,
    /// What stands for the older exchanges in the model's prompts; null where nothing was summarized.
    pub summary: Option<&'a str>,
    pub generated_media_urls: Vec<&'a str>,
}

/// A prompt and its answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SessionExchange")]
pub struct Exchange<'a> {
    pub timestamp: Time,
    pub user_prompt: &'a str,
    pub chatbot_response: &'a str,
    pub generated_media_urls: &'a [String],
}

/// Whether a session was forgotten.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SessionCleared")]
pub struct Cleared<'a> {
    /// False where there was none.
    pub cleared: bool,
    pub session_id: &'a str,
}

/// The names of the sessions.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Sessions")]
pub struct Sessions {
    pub sessions: Vec<String>,
}

/// The one model of the agent's host.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentModels")]
pub struct Models<'a> {
    /// `list`
    pub object: &'static str,
    pub data: [Model<'a>; 1],
}

/// The agent as a model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentModel")]
pub struct Model<'a> {
    pub id: &'a str,
    /// `model`
    pub object: &'static str,
    /// Unix seconds.
    pub created: i64,
    /// `orrery`
    pub owned_by: &'static str,
}

/// A task that was cancelled.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TaskCancelled")]
pub struct TaskCancelled {
    pub task_id: String,
    /// `cancelled`
    pub status: &'static str,
}
