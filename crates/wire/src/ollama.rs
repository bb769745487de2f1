//! Ollama's API: its requests, and its answers, which are also the lines of its streams.
//!
//! Requests may have fields that are not listed here, such as options of llama.cpp. They are ignored.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::chat::{INPUTS_MAX, MESSAGES_MAX, MODEL_CHARS_MAX, Texts};
use super::messages::TOOLS_MAX;
use super::{Time, pattern};

/// Maximum number of images of a message or a prompt.
pub const IMAGES_MAX: usize = 64;

/// A conversation to continue.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaChatRequest")]
pub struct ChatRequest {
    /// The ID of a chat model, with or without `:latest`.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The conversation, oldest message first.
    #[schemars(length(max = MESSAGES_MAX))]
    pub messages: Option<Vec<Message>>,
    /// The functions that the model may call.
    #[schemars(length(max = TOOLS_MAX))]
    pub tools: Option<Vec<Tool>>,
    /// The form of the answer.
    pub format: Option<Format>,
    /// How the model writes.
    pub options: Option<Options>,
    /// Whether to stream the answer. Defaults to true.
    pub stream: Option<bool>,
    /// Whether the model reasons before it answers.
    pub think: Option<Think>,
    /// Accepted and ignored.
    pub keep_alive: Option<KeepAlive>,
}

/// A prompt to answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaGenerateRequest")]
pub struct GenerateRequest {
    /// The ID of a chat model, with or without `:latest`.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The prompt.
    pub prompt: Option<String>,
    /// Instructions that precede the prompt.
    pub system: Option<String>,
    /// Images in base64.
    #[schemars(length(max = IMAGES_MAX))]
    pub images: Option<Vec<String>>,
    /// The form of the answer.
    pub format: Option<Format>,
    /// How the model writes.
    pub options: Option<Options>,
    /// Whether to stream the answer. Defaults to true.
    pub stream: Option<bool>,
    /// Whether the model reasons before it answers.
    pub think: Option<Think>,
    /// The text after the answer, for models that fill in the middle.
    pub suffix: Option<String>,
    /// Whether the model continues the prompt as it is, without a chat template.
    pub raw: Option<bool>,
    /// Accepted and ignored.
    pub keep_alive: Option<KeepAlive>,
}

/// A message of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaMessage")]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The text.
    pub content: Option<String>,
    /// The reasoning of the model.
    pub thinking: Option<String>,
    /// Images in base64.
    #[schemars(length(max = IMAGES_MAX))]
    pub images: Option<Vec<String>>,
    /// The calls of the model.
    #[schemars(length(max = TOOLS_MAX))]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The name of the tool whose result this is.
    pub tool_name: Option<String>,
    /// The ID of the call whose result this is.
    pub tool_call_id: Option<String>,
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "OllamaRole")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaToolCall")]
pub struct ToolCall {
    /// The ID of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The function.
    pub function: Function,
}

/// The function of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaFunction")]
pub struct Function {
    /// The name of the tool.
    pub name: String,
    /// The arguments.
    pub arguments: Map<String, Value>,
}

/// A function that the model may call.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaTool")]
pub struct Tool {
    /// The function.
    pub function: ToolFunction,
}

/// The description of a function.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaToolFunction")]
pub struct ToolFunction {
    /// The name.
    pub name: String,
    /// What the function does.
    pub description: Option<String>,
    /// The JSON Schema of the arguments.
    pub parameters: Option<Map<String, Value>>,
}

/// The form of an answer: `json`, or a JSON Schema.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "OllamaFormat")]
pub enum Format {
    Name(FormatName),
    Schema(Map<String, Value>),
}

/// The name of a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaFormatName")]
pub enum FormatName {
    #[serde(rename = "")]
    Text,
    #[serde(rename = "json")]
    Json,
}

/// How the model writes. Other options are ignored.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaOptions")]
pub struct Options {
    /// The sampling temperature.
    #[schemars(range(min = 0, max = 2))]
    pub temperature: Option<f64>,
    /// The maximum number of tokens of the answer. Negative values mean limited only by the context.
    #[schemars(range(min = -2, max = u32::MAX))]
    pub num_predict: Option<i64>,
    /// Sample only from the most likely tokens whose probabilities add up to this value.
    #[schemars(range(min = 0, max = 1))]
    pub top_p: Option<f64>,
    /// Sample only from this many of the most likely tokens.
    pub top_k: Option<u32>,
    /// Where the model stops: a string, or up to 64 of them.
    pub stop: Option<Texts>,
    /// The seed of the sampling.
    pub seed: Option<i64>,
    /// Positive values make tokens less likely that already occur in the text.
    #[schemars(range(min = -2, max = 2))]
    pub presence_penalty: Option<f64>,
    /// Positive values make tokens less likely the more often they occur in the text.
    #[schemars(range(min = -2, max = 2))]
    pub frequency_penalty: Option<f64>,
}

/// Whether the model reasons: a boolean, or the effort.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "OllamaThink")]
pub enum Think {
    Flag(bool),
    Effort(Effort),
}

/// The effort of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "OllamaEffort")]
pub enum Effort {
    Low,
    Medium,
    High,
}

/// How long a model stays loaded: a text such as `5m`, or seconds.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "OllamaKeepAlive")]
pub enum KeepAlive {
    Text(String),
    Seconds(f64),
}

/// Texts to embed.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaEmbedRequest")]
pub struct EmbedRequest {
    /// The ID of an embedding model, with or without `:latest`.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The text or texts.
    pub input: EmbedInput,
    /// The number of dimensions of each embedding, if the model supports a choice.
    #[schemars(range(min = 1))]
    pub dimensions: Option<u32>,
    /// Accepted and ignored.
    pub keep_alive: Option<KeepAlive>,
    /// Accepted and ignored: texts that are too long return an error.
    pub truncate: Option<bool>,
}

/// One text, or several.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "OllamaEmbedInput")]
pub enum EmbedInput {
    Text(#[schemars(length(min = 1))] String),
    Texts(#[schemars(length(min = 1, max = INPUTS_MAX))] Vec<String>),
}

/// A text to embed, in the older form.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaEmbeddingsRequest")]
pub struct EmbeddingsRequest {
    /// The ID of an embedding model, with or without `:latest`.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The text.
    #[schemars(length(min = 1))]
    pub prompt: String,
    /// Accepted and ignored.
    pub keep_alive: Option<KeepAlive>,
}

/// A model to describe.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaShowRequest")]
pub struct ShowRequest {
    /// The ID of a model, with or without `:latest`.
    pub model: Option<String>,
    /// The older name of `model`.
    pub name: Option<String>,
}

/// An answer, or a line of a streamed answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaAnswer")]
pub struct Answer {
    /// The `model` of the request.
    pub model: String,
    /// When the line was written.
    pub created_at: Time,
    /// The new part of the message. Only for chats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<AnswerMessage>,
    /// The new part of the text. Only for prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// The new part of the reasoning. Only for prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Whether the answer is complete.
    pub done: bool,
    /// Why the answer ended: `stop`, `length`, or `load` for a request without a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<&'static str>,
    /// The tokens and times of the answer, once it is complete.
    #[serde(flatten)]
    pub figures: Option<Figures>,
}

/// A part of a model's message.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "OllamaAnswerMessage")]
pub struct AnswerMessage {
    /// Always `assistant`.
    pub role: &'static str,
    /// The text.
    pub content: String,
    /// The reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// The calls of the model, each complete.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// The tokens and times of an answer. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
#[schemars(rename = "OllamaFigures")]
pub struct Figures {
    /// The time of the whole answer.
    pub total_duration: u64,
    /// Always 0: the time to load the model is in `prompt_eval_duration`.
    pub load_duration: u64,
    /// Tokens of the prompt.
    pub prompt_eval_count: u64,
    /// The time until the answer began.
    pub prompt_eval_duration: u64,
    /// Tokens of the answer.
    pub eval_count: u64,
    /// The time from the beginning of the answer to its end.
    pub eval_duration: u64,
    /// The cost in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

/// Embeddings.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbeddings")]
pub struct Embeddings {
    /// The `model` of the request.
    pub model: String,
    /// The vectors, in the order of the texts.
    #[schemars(with = "Vec<Vec<f64>>")]
    pub embeddings: Vec<Box<RawValue>>,
    /// The tokens and times of the call.
    #[serde(flatten)]
    pub figures: Figures,
}

/// An embedding, in the older form.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbedding")]
pub struct Embedding {
    /// The vector.
    #[schemars(with = "Vec<f64>")]
    pub embedding: Box<RawValue>,
}

/// The version of Ollama's API.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaVersion")]
pub struct Version {
    /// The version.
    pub version: &'static str,
}

/// The models that can be called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModels")]
pub struct Models {
    /// The models.
    pub models: Vec<Model>,
}

/// A model that can be called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModel")]
pub struct Model {
    /// The ID.
    pub name: String,
    /// The same ID.
    pub model: String,
    /// When the model was created. The start of Unix time if unknown.
    pub modified_at: Time,
    /// The size of the file in bytes. 0 for models of other servers.
    pub size: u64,
    /// The SHA-256 of the ID, in place of that of the file.
    pub digest: String,
    /// About the file.
    pub details: Details,
    /// When the model will be unloaded. Only for loaded models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Always 0: models run on processors. Only for loaded models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_vram: Option<u64>,
    /// The context length in tokens. Only for loaded models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u32>,
}

/// About a model's file. Empty for models of other servers.
#[derive(Debug, Default, Clone, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModelDetails")]
pub struct Details {
    /// Always empty.
    pub parent_model: &'static str,
    /// `gguf`.
    pub format: &'static str,
    /// Always empty.
    pub family: &'static str,
    /// Always empty.
    pub families: Vec<&'static str>,
    /// Always empty.
    pub parameter_size: &'static str,
    /// The most common data type of the weights.
    pub quantization_level: &'static str,
}

/// The description of a model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModelDescription")]
pub struct Description {
    /// Always empty.
    pub modelfile: &'static str,
    /// Always empty.
    pub parameters: &'static str,
    /// Always empty.
    pub template: &'static str,
    /// About the file.
    pub details: Details,
    /// `general.architecture`, and its `context_length` if it is known.
    pub model_info: Map<String, Value>,
    /// What the model can do: `completion`, `tools`, `embedding`.
    pub capabilities: Vec<&'static str>,
    /// When the model was created. The start of Unix time if unknown.
    pub modified_at: Time,
}
