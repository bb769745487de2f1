//! Text completions and rerank requests, limited to the fields that the router reads, and the
//! answer to a rerank request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::chat::{ANSWERS_MAX, ChunkUsage, MODEL_CHARS_MAX, StreamEnd, Writing};
use super::{openai, pattern};

/// Maximum number of prompts in a request.
pub const PROMPTS_MAX: usize = 128;
/// Maximum number of documents in a rerank request.
pub const DOCUMENTS_MAX: usize = 1000;
/// Maximum length of a query, in characters. The model reads it once for each document.
pub const QUERY_CHARS_MAX: usize = 32_768;

/// A text completion to create. Fields that are not listed here are passed to the model unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "TextCompletionRequest",
    example = json!({"model": "starcoder", "prompt": "def fibonacci(n):", "max_tokens": 64})
)]
pub struct CompletionRequest {
    /// The slug of a local model of the kind `completions` or the runner `llm`, or a model ID exactly
    /// as the upstream lists it.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The text or texts to continue.
    pub prompt: Prompt,
    /// The text after the completion, for models that fill in the middle.
    pub suffix: Option<String>,
    /// Whether the answer begins with the prompt.
    pub echo: Option<bool>,
    #[serde(flatten)]
    pub writing: Writing,
    /// The number of answers to each prompt. At most 128 answers in total.
    #[schemars(range(min = 1, max = ANSWERS_MAX))]
    pub n: Option<u64>,
    /// The number of answers to each prompt of which the model's server returns the best `n`.
    #[schemars(range(min = 1, max = ANSWERS_MAX))]
    pub best_of: Option<u64>,
    /// The number of most likely tokens to report at each position.
    #[schemars(range(min = 0, max = 20))]
    pub logprobs: Option<u64>,
    /// The maximum number of tokens per answer. -1 means limited only by the context length.
    #[schemars(range(min = -1, max = u32::MAX), extend("not" = {"const": 0}))]
    pub max_tokens: Option<i64>,
}

/// The text to continue: a string, up to 128 strings, or arrays of tokens.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "TextCompletionPrompt")]
pub enum Prompt {
    Text(String),
    Texts(#[schemars(length(min = 1, max = PROMPTS_MAX))] Vec<String>),
    Tokens(#[schemars(length(min = 1))] Vec<u64>),
    TokenLists(#[schemars(length(min = 1, max = PROMPTS_MAX))] Vec<Vec<u64>>),
}

impl Prompt {
    /// Returns the number of prompts.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
        }
    }
}

/// The data of an event of a streamed text completion. The model's chunks are forwarded byte for
/// byte, with the cost in `usage`. `[DONE]` is the last event; a stream that breaks ends with an
/// error instead.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum TextStreamEvent {
    Chunk(Chunk),
    Error(openai::Error<'static>),
    End(StreamEnd),
}

/// A part of a streamed text completion. Models may add other fields.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TextCompletionChunk")]
pub struct Chunk {
    /// The next parts of the choices. Empty in the usage event.
    pub choices: Vec<ChunkChoice>,
    /// Tokens used by the answer. Only in the usage event, unless the model sends it earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<ChunkUsage>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The next part of a choice. Models may add other fields.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TextCompletionChunkChoice")]
pub struct ChunkChoice {
    /// The number of the choice, starting at 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// The new part of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Why the choice has ended, such as `stop` or `length`. Null until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Documents to sort by their relevance to a query. Fields that are not listed here are passed to
/// the model unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "RerankRequest",
    example = json!({
        "model": "reranker",
        "query": "How do I reset my password?",
        "documents": ["Billing takes a day.", "Passwords are reset on the login page."],
        "top_n": 1,
    })
)]
pub struct RerankRequest {
    /// The slug of a local model of the kind `rerank`, or a model ID exactly as the upstream lists
    /// it.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The text to which the documents may be relevant.
    #[schemars(length(min = 1, max = QUERY_CHARS_MAX))]
    pub query: String,
    /// The documents.
    #[schemars(length(min = 1, max = DOCUMENTS_MAX))]
    pub documents: Vec<Document>,
    /// The maximum number of results. Defaults to the number of documents.
    #[schemars(range(min = 1))]
    pub top_n: Option<u32>,
    /// Whether the results have their documents.
    pub return_documents: Option<bool>,
    /// The fallback chain to use for a local model. Defaults to the first enabled chain by name.
    pub fallback_selector: Option<String>,
}

/// A document: its text, or an object with its text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "RerankDocument")]
pub enum Document {
    Text(String),
    Object(DocumentObject),
}

/// An object with the text of a document.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RerankDocumentObject")]
pub struct DocumentObject {
    /// The text of the document.
    pub text: String,
}

impl Document {
    /// Returns the text.
    #[must_use]
    pub fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object(DocumentObject { text }) => text,
        }
    }
}

/// The answer to a rerank request. Models may add other fields.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RerankAnswer")]
pub struct RerankAnswer {
    /// The documents by their relevance, the most relevant first.
    pub results: Vec<RerankResult>,
    /// Tokens used, and their cost.
    pub usage: ChunkUsage,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The relevance of a document.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RerankResult {
    /// The position of the document in the request, starting at 0.
    pub index: usize,
    /// The relevance, on the scale of the model.
    pub relevance_score: f64,
    /// The document, if the request wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<DocumentObject>,
}
