//! A call of the chat router, as it is stored: which model answered, what it used, and how fast.
//!
//! A call is written once, when it has ended, in the commit of its charge. It never waits in a lane,
//! and it holds nothing that was said, unless the configuration asks for it.

use serde::{Deserialize, Serialize};

use super::model::Usage;

/// Output tokens that are reserved for an answer whose request has no maximum.
pub const OUTPUT_TOKENS_RESERVED: u64 = 16_384;

/// The lane of calls in the history's indexes. Model ids of an upstream are without number, so they
/// have no lanes of their own.
pub const LANE: &str = "chat";

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Chat,
    Embeddings,
}

impl Operation {
    /// The path below the `/v1` of an OpenAI-compatible server.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Embeddings => "/embeddings",
        }
    }
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub operation: Operation,
    /// The model that answered, or the last one that was tried.
    pub model: String,
    /// The model id of the request.
    pub requested_model: String,
    /// Whether the upstream was asked, and not a model of the catalog.
    pub is_upstream: bool,
    /// Whether the answer came as a stream.
    pub is_stream: bool,
    pub tokens: Tokens,
    /// Whether the model has a price. One without costs nothing.
    pub is_priced: bool,
    /// From the request to the first byte of the answer; `None` when none came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte_ms: Option<u64>,
}

/// What a call used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
    /// The model did not count them: they are estimated from the length of the texts.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_estimated: bool,
}

impl Tokens {
    /// Both together.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

impl Tokens {}

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Self {
        Self {
            input_tokens: Some(tokens.input),
            output_tokens: Some(tokens.output),
            ..Self::default()
        }
    }
}

/// Bytes of text that make a token, on average over languages: the rule of thumb of the models'
/// makers.
const BYTES_PER_TOKEN: u64 = 4;

/// How many tokens a text of so many bytes has, estimated.
#[must_use]
pub const fn estimate(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// The most tokens of texts that were estimated: no token is shorter than a byte.
#[must_use]
pub const fn most_of(estimated: u64) -> u64 {
    estimated.saturating_mul(BYTES_PER_TOKEN)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_estimate_rounds_up() {
        assert_eq!([0, 1, 4, 5].map(estimate), [0, 1, 1, 2]);
        assert_eq!(most_of(estimate(5)), 8);
    }
}
