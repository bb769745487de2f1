//! Chat completions and embeddings as OpenAI's clients send them, as far as the router reads them,
//! and the list of what can be called.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Time;

/// A conversation to complete. Fields that are not listed are passed on to the model as they are.
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
    /// The slug of a local chat model, or an id of the upstream exactly as it lists it.
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[ -~]+$"))]
    pub model: String,
    #[schemars(length(min = 1, max = 10_000))]
    pub messages: Vec<Message>,
    /// Whether the answer comes as server-sent events.
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    /// How many answers.
    #[schemars(range(min = 1, max = 128))]
    pub n: Option<u64>,
    /// The older name of `max_completion_tokens`.
    #[schemars(range(min = -1, max = 4_294_967_295_u32), extend("not" = {"const": 0}))]
    pub max_tokens: Option<i64>,
    /// The most tokens of one answer; -1: no limit but the context's.
    #[schemars(range(min = -1, max = 4_294_967_295_u32), extend("not" = {"const": 0}))]
    pub max_completion_tokens: Option<i64>,
    #[schemars(range(min = 0, max = 2))]
    pub temperature: Option<f64>,
    #[schemars(range(min = 0, max = 1))]
    pub top_p: Option<f64>,
    #[schemars(range(min = -2, max = 2))]
    pub presence_penalty: Option<f64>,
    #[schemars(range(min = -2, max = 2))]
    pub frequency_penalty: Option<f64>,
    #[schemars(range(min = 0, max = 20))]
    pub top_logprobs: Option<u64>,
    /// Where an answer ends: a string, or at most 64 of them.
    pub stop: Option<Texts>,
    /// The fallback chain of a local model that is to be used; without it, the first by name.
    pub fallback_selector: Option<String>,
}

/// One message of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatMessage")]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the model knows.
    pub role: String,
    /// A text, or a list of parts.
    pub content: Option<MessageContent>,
}

/// A text, or a list of parts.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ChatMessageContent")]
pub enum MessageContent {
    Text(String),
    Parts(Vec<Map<String, Value>>),
}

/// What a stream contains.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatStreamOptions")]
pub struct StreamOptions {
    /// Whether the stream ends with an event of the usage, which has the cost.
    pub include_usage: Option<bool>,
}

/// One text, or several.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "OneTextOrSeveral")]
pub enum Texts {
    One(String),
    Several(#[schemars(length(max = 64))] Vec<String>),
}

/// Texts to embed. Fields that are not listed are passed on to the model as they are.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "EmbeddingsRequest",
    example = json!({"model": "minilm", "input": ["a text", "another"]})
)]
pub struct EmbeddingsRequest {
    /// The slug of a local embedding model, or an id of the upstream exactly as it lists it.
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[ -~]+$"))]
    pub model: String,
    pub input: EmbeddingsInput,
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub dimensions: Option<u32>,
    /// The fallback chain of a local model that is to be used; without it, the first by name.
    pub fallback_selector: Option<String>,
}

/// A text, several (at most 2048), or their tokens.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EmbeddingsInput {
    Text(#[schemars(length(min = 1))] String),
    Texts(#[schemars(length(min = 1, max = 2048))] Vec<String>),
    Tokens(#[schemars(length(min = 1))] Vec<u64>),
    TokenLists(#[schemars(length(min = 1, max = 2048))] Vec<Vec<u64>>),
}

/// What a model answers, as OpenAI's API has it, with the cost in `usage`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelAnswer")]
pub struct Answer {
    pub usage: AnswerUsage,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// What an answer used.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelAnswerUsage")]
pub struct AnswerUsage {
    pub prompt_tokens: Option<u64>,
    pub total_tokens: Option<u64>,
    /// US dollars; 0 for a model without a price.
    pub cost: f64,
}

/// Every model that can be called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RouterModelCatalog")]
pub struct ModelCatalog<'a> {
    /// `list`
    pub object: &'static str,
    pub data: Vec<Model<'a>>,
    /// The upstream's list; null where there is no upstream.
    pub upstream: Option<Upstream<'a>>,
}

/// What can be called, as OpenAI's clients read it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RouterModels")]
pub struct Models<'a> {
    /// `list`
    pub object: &'static str,
    /// Local models by slug, the agent, then those that the upstream lists.
    pub data: Vec<Model<'a>>,
}

/// A model that can be called.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RouterModel")]
pub struct Model<'a> {
    /// What `model` of a request has to be.
    pub id: &'a str,
    /// `model`
    pub object: &'static str,
    /// Unix seconds; 0 where it is not known.
    pub created: i64,
    pub owned_by: &'a str,
    pub source: ModelSource,
    /// What it is for; null where the upstream does not say.
    pub kind: Option<ModelKind>,
    /// Tokens of a prompt and its answer; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u32>,
    /// `ok`, or `failing` while it does not answer.
    pub status: &'static str,
    /// The price; null where there is none, so that calls cost nothing.
    pub pricing: Option<ModelPricing>,
}

/// Where a model is.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "RouterModelSource")]
pub enum ModelSource {
    Local,
    Upstream,
}

/// What a model is for.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "RouterModelKind")]
pub enum ModelKind {
    Chat,
    Embeddings,
}

/// A price in US dollars, the fee of this service included.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RouterModelPricing")]
pub struct ModelPricing {
    pub per_answer: Option<f64>,
    pub per_second: Option<f64>,
    pub per_million_input_tokens: Option<f64>,
    pub per_million_output_tokens: Option<f64>,
}

/// How current the upstream's list is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RouterUpstream")]
pub struct Upstream<'a> {
    /// Whether the upstream did not answer when it was last asked.
    pub stale: bool,
    /// When the list was read; null when it never was.
    pub fetched_at: Option<Time>,
    /// Why the upstream did not answer.
    pub error: Option<&'a str>,
}
