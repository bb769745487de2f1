//! Chat completions and embeddings in OpenAI's format, limited to the fields that the router reads,
//! and the lists of callable models.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Time, openai, pattern};

/// Maximum length of a model ID, in characters.
pub const MODEL_CHARS_MAX: usize = 256;
/// Maximum number of model IDs in `models`.
pub const MODELS_MAX: usize = 8;
/// Maximum number of messages in a conversation.
pub const MESSAGES_MAX: usize = 10_000;
/// Maximum number of inputs in an embeddings request.
pub const INPUTS_MAX: usize = 2048;
/// Maximum number of stop strings in a request.
pub const STOPS_MAX: usize = 64;
/// Maximum number of answers (`n`) to a request.
pub const ANSWERS_MAX: u64 = 128;

/// A chat completion to create. Fields that are not listed here are passed to the model unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "ChatCompletionRequest",
    example = json!({
        "model": "llama-3",
        "messages": [{"role": "user", "content": "Say hello."}],
        "stream": true,
        "stream_options": {"include_usage": true},
    })
)]
pub struct CompletionRequest {
    /// The slug of a local chat model, or a model ID exactly as the upstream lists it.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// Model IDs to try in this order if `model` fails before its answer begins.
    #[schemars(length(max = MODELS_MAX), inner(length(max = MODEL_CHARS_MAX)), transform = pattern::each_name)]
    pub models: Option<Vec<String>>,
    /// The conversation, oldest message first.
    #[schemars(length(min = 1, max = MESSAGES_MAX))]
    pub messages: Vec<Message>,
    #[serde(flatten)]
    pub writing: Writing,
    /// The number of answers to generate.
    #[schemars(range(min = 1, max = ANSWERS_MAX))]
    pub n: Option<u64>,
    /// The older name of `max_completion_tokens`.
    #[schemars(range(min = -1, max = u32::MAX), extend("not" = {"const": 0}))]
    pub max_tokens: Option<i64>,
    /// The maximum number of tokens per answer. -1 means limited only by the context length.
    #[schemars(range(min = -1, max = u32::MAX), extend("not" = {"const": 0}))]
    pub max_completion_tokens: Option<i64>,
    /// The number of most likely tokens to report at each position.
    #[schemars(range(min = 0, max = 20))]
    pub top_logprobs: Option<u64>,
}

/// The fields that chat and text completions have in common: how the model writes.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Writing {
    /// Whether to stream the answer as server-sent events.
    pub stream: Option<bool>,
    /// Options for a streamed answer.
    pub stream_options: Option<StreamOptions>,
    /// The sampling temperature. Higher values make the answer more random.
    #[schemars(range(min = 0, max = 2))]
    pub temperature: Option<f64>,
    /// Sample only from the most likely tokens whose probabilities add up to this value.
    #[schemars(range(min = 0, max = 1))]
    pub top_p: Option<f64>,
    /// Positive values make tokens that already occur in the text less likely.
    #[schemars(range(min = -2, max = 2))]
    pub presence_penalty: Option<f64>,
    /// Positive values make tokens less likely the more often they occur in the text.
    #[schemars(range(min = -2, max = 2))]
    pub frequency_penalty: Option<f64>,
    /// The string at which the model stops, or up to 64 such strings.
    pub stop: Option<Texts>,
    /// The fallback chain to use for a local model. Defaults to the first enabled chain by name.
    pub fallback_selector: Option<String>,
}

impl Writing {
    /// Returns the fallback chain that the request names.
    #[must_use]
    pub fn selector(self) -> Option<String> {
        self.fallback_selector.filter(|name| !name.is_empty())
    }

    /// Returns whether the client wants the usage at the end of a stream.
    #[must_use]
    pub fn wants_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }
}

/// A message of the conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatMessage")]
pub struct Message {
    /// The author's role: `system`, `user`, `assistant`, `tool`, or another role that the model
    /// supports.
    pub role: String,
    /// The content, as text or as a list of parts.
    pub content: Option<MessageContent>,
}

/// The content of a message, as text or as a list of parts.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ChatMessageContent")]
pub enum MessageContent {
    Text(String),
    Parts(Vec<Map<String, Value>>),
}

/// Options for a streamed answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatStreamOptions")]
pub struct StreamOptions {
    /// Whether the stream ends with a usage event, which includes the cost.
    pub include_usage: Option<bool>,
}

/// One string, or several.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "OneTextOrSeveral")]
pub enum Texts {
    One(String),
    Several(#[schemars(length(max = STOPS_MAX))] Vec<String>),
}

/// Embeddings to create. Fields that are not listed here are passed to the model unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "EmbeddingsRequest",
    example = json!({"model": "minilm", "input": ["a text", "another"]})
)]
pub struct EmbeddingsRequest {
    /// The slug of a local embedding model, or a model ID exactly as the upstream lists it.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The text or texts to embed.
    pub input: EmbeddingsInput,
    /// The number of dimensions of each embedding, if the model supports a choice.
    #[schemars(range(min = 1))]
    pub dimensions: Option<u32>,
    /// The fallback chain to use for a local model. Defaults to the first enabled chain by name.
    pub fallback_selector: Option<String>,
}

/// The input to embed: a string, up to 2048 strings, or arrays of tokens.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EmbeddingsInput {
    Text(#[schemars(length(min = 1))] String),
    Texts(#[schemars(length(min = 1, max = INPUTS_MAX))] Vec<String>),
    Tokens(#[schemars(length(min = 1))] Vec<u64>),
    TokenLists(#[schemars(length(min = 1, max = INPUTS_MAX))] Vec<Vec<u64>>),
}

impl EmbeddingsInput {
    /// Returns the number of inputs.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
        }
    }
}

/// The model's answer in OpenAI's format, with the cost in `usage`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelAnswer")]
pub struct Answer {
    /// Tokens used by the answer, and their cost.
    pub usage: AnswerUsage,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Tokens used by an answer, and their cost.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelAnswerUsage")]
pub struct AnswerUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the prompt and the answer.
    pub total_tokens: Option<u64>,
    /// The cost in US dollars. 0 if the model has no price.
    pub cost: f64,
}

/// The data of an event in a streamed answer. The model's chunks are forwarded byte for byte, with
/// the cost in `usage`. `[DONE]` is the last event; a stream that breaks ends with an error
/// instead.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ChatStreamEvent")]
pub enum StreamEvent {
    Chunk(Chunk),
    Error(openai::Error<'static>),
    End(StreamEnd),
}

/// A part of a streamed answer. Models may add other fields.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatCompletionChunk")]
pub struct Chunk {
    /// The next parts of the choices. Empty in the usage event.
    pub choices: Vec<ChunkChoice>,
    /// Tokens used by the answer. Only in the usage event, unless the model sends it earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<ChunkUsage>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Tokens used by a streamed answer. Models may add other fields.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatChunkUsage")]
pub struct ChunkUsage {
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens of the prompt and the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    /// The cost in US dollars. Only in the usage event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The next part of a choice. Models may add other fields.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ChatChunkChoice")]
pub struct ChunkChoice {
    /// The number of the choice, starting at 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// The new parts of the message, such as `role`, `content` and `tool_calls`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<Map<String, Value>>,
    /// Why the choice has ended, such as `stop` or `length`. Null until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The text that ends a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub enum StreamEnd {
    #[serde(rename = "[DONE]")]
    Done,
}

/// All models that can be called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RouterModelCatalog")]
pub struct ModelCatalog<'a> {
    /// Always `list`.
    #[schemars(extend("const" = "list"))]
    pub object: &'static str,
    /// Local models by slug, then the models of the upstream.
    pub data: Vec<Model<'a>>,
    /// The status of the upstream's model list. Null if there is no upstream.
    pub upstream: Option<Upstream<'a>>,
}

/// The models that can be called, in OpenAI's format.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RouterModels")]
pub struct Models<'a> {
    /// Always `list`.
    #[schemars(extend("const" = "list"))]
    pub object: &'static str,
    /// Local models by slug, then the agent, then the models that the upstream lists.
    pub data: Vec<Model<'a>>,
}

/// A model that can be called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RouterModel")]
pub struct Model<'a> {
    /// The value to use for `model` in requests.
    pub id: &'a str,
    /// Always `model`.
    #[schemars(extend("const" = "model"))]
    pub object: &'static str,
    /// When the model was created, in Unix seconds. 0 if unknown.
    pub created: i64,
    /// The owner of the model, as reported by its source.
    pub owned_by: &'a str,
    /// Where the model runs.
    pub source: ModelSource,
    /// What the model is for. Null if the upstream does not report the kind.
    pub kind: Option<ModelKind>,
    /// The maximum number of tokens in a prompt and its answer. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u32>,
    /// Either `ok`, or `failing` while the model does not respond.
    #[schemars(extend("enum" = ["ok", "failing"]))]
    pub status: &'static str,
    /// The price. Null if calls are free.
    pub pricing: Option<ModelPricing>,
}

/// Where a model runs.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "RouterModelSource")]
pub enum ModelSource {
    Local,
    Upstream,
}

/// The kind of a model.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "RouterModelKind")]
pub enum ModelKind {
    Chat,
    Embeddings,
    Completions,
    Rerank,
    Transcriptions,
    Speech,
    Images,
}

/// A price in US dollars, including this service's platform fee.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "RouterModelPricing")]
pub struct ModelPricing {
    /// The price per answer.
    pub per_answer: Option<f64>,
    /// The price per second of run time.
    pub per_second: Option<f64>,
    /// The price per million tokens of the prompt.
    pub per_million_input_tokens: Option<f64>,
    /// The price per million tokens of the answer.
    pub per_million_output_tokens: Option<f64>,
    /// The price per million prompt tokens that the model read from its cache. Absent if cached
    /// tokens cost the same as other input tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_million_cached_input_tokens: Option<f64>,
    /// The price per million reasoning tokens. Absent if reasoning tokens cost the same as other
    /// output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_million_reasoning_tokens: Option<f64>,
    /// The price per minute of audio that is transcribed or translated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_audio_minute: Option<f64>,
    /// The price per million characters of text that are read aloud.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_million_characters: Option<f64>,
    /// The price per image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_image: Option<f64>,
}

/// How current the upstream's model list is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RouterUpstream")]
pub struct Upstream<'a> {
    /// Whether the last attempt to fetch the list failed.
    pub stale: bool,
    /// When the list was last fetched. Null if the list was never fetched.
    pub fetched_at: Option<Time>,
    /// Why the last attempt to fetch the list failed.
    pub error: Option<&'a str>,
}
