//! A stored call of the chat router: the model that answered, the token usage and the latency.
//!
//! A call is written once, after it has ended, in the commit of its charge. Only calls in the
//! background are written when they are accepted; they wait in a lane of their own. The texts of calls are stored only if the configuration enables it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::model::Usage;

/// Output tokens reserved for a request that sets no maximum.
pub const OUTPUT_TOKENS_RESERVED: u64 = 16_384;

/// The lane of chat calls in the history's indexes. Calls have no lanes per model because an
/// upstream can have any number of model ids.
pub const LANE: &str = "chat";

/// The requested operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Chat,
    Embeddings,
    /// Continues texts.
    Completions,
    /// Scores documents by their relevance to a query.
    Rerank,
    /// Writes down what is said in an audio file.
    Transcriptions,
    /// Writes down in English what is said in an audio file.
    Translations,
    /// Reads a text aloud.
    Speech,
    /// Makes images from a prompt.
    Images,
    /// Changes images as a prompt says.
    ImageEdits,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 9] = [
        Self::Chat,
        Self::Embeddings,
        Self::Completions,
        Self::Rerank,
        Self::Transcriptions,
        Self::Translations,
        Self::Speech,
        Self::Images,
        Self::ImageEdits,
    ];

    /// The path under the `/v1` of an OpenAI-compatible server.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Embeddings => "/embeddings",
            Self::Completions => "/completions",
            Self::Rerank => "/rerank",
            Self::Transcriptions => "/audio/transcriptions",
            Self::Translations => "/audio/translations",
            Self::Speech => "/audio/speech",
            Self::Images => "/images/generations",
            Self::ImageEdits => "/images/edits",
        }
    }

    /// What the operation makes, for messages.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Chat => "chat completions",
            Self::Embeddings => "embeddings",
            Self::Completions => "text completions",
            Self::Rerank => "rerank",
            Self::Transcriptions => "transcriptions",
            Self::Translations => "translations",
            Self::Speech => "speech",
            Self::Images => "image generations",
            Self::ImageEdits => "image edits",
        }
    }

    /// Whether the answer is generated text, which may be streamed.
    #[must_use]
    pub const fn writes_text(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub operation: Operation,
    /// The model that answered, or the last model that was tried.
    pub model: String,
    /// The model id of the request.
    pub requested_model: String,
    /// Whether the upstream handled the call instead of a model in the catalog.
    pub is_upstream: bool,
    /// Whether the response was streamed.
    pub is_stream: bool,
    pub tokens: Tokens,
    #[serde(default, skip_serializing_if = "Media::is_empty")]
    pub media: Media,
    /// Whether the model has a price; otherwise the call is free.
    pub is_priced: bool,
    /// Whether the answer comes from the result cache.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_cached: bool,
    /// Time from the request to the first byte of the response; `None` if there was no response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte_ms: Option<u64>,
}

/// What a call used other than tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Media {
    /// Milliseconds of audio that were transcribed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_ms: Option<u64>,
    /// Characters of text that were read aloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub characters: Option<u64>,
    /// The number of images that were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<u64>,
}

impl Media {
    /// Returns whether the call used nothing but tokens.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.audio_ms.is_none() && self.characters.is_none() && self.images.is_none()
    }

    /// Returns the usage of a call that also used `tokens`.
    #[must_use]
    pub fn with(self, tokens: Tokens) -> Usage {
        let Self { audio_ms, characters, images } = self;
        let audio = audio_ms.map(Duration::from_millis);
        Usage { audio, characters, images, ..tokens.into() }
    }
}

/// Token usage of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
    /// Input tokens that the model read from its cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached: u64,
    /// Reasoning tokens in the output.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning: u64,
    /// Whether the usage is estimated from the text length because the model did not report it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_estimated: bool,
}

impl Tokens {
    /// Creates estimated token counts.
    #[must_use]
    pub const fn estimated(input: u64, output: u64) -> Self {
        Self { input, output, cached: 0, reasoning: 0, is_estimated: true }
    }

    /// Returns the sum of two calls.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            cached: self.cached.saturating_add(other.cached),
            reasoning: self.reasoning.saturating_add(other.reasoning),
            is_estimated: self.is_estimated || other.is_estimated,
        }
    }

    /// Returns the sum of input and output tokens.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Self {
        Self {
            input_tokens: Some(tokens.input),
            output_tokens: Some(tokens.output),
            cached_input_tokens: (tokens.cached > 0).then_some(tokens.cached),
            reasoning_tokens: (tokens.reasoning > 0).then_some(tokens.reasoning),
            ..Self::default()
        }
    }
}

/// Average number of bytes of text per token across languages: a common rule of thumb among model
/// providers.
const BYTES_PER_TOKEN: u64 = 4;

/// Estimates the tokens in `bytes` bytes of text.
#[must_use]
pub const fn estimate(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Returns the maximum number of tokens in a text with this estimate: one token per byte, because
/// every token has at least one byte.
#[must_use]
pub const fn most_of(estimated: u64) -> u64 {
    estimated.saturating_mul(BYTES_PER_TOKEN)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
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
