//! A call of the chat router, as it is stored: which model answered, what it used, and how fast.
//!
//! A call is written once, when it has ended, in the commit of its charge. It never waits in a lane,
//! and it holds nothing that was said, unless the configuration asks for it.

use serde::{Deserialize, Serialize};

use serde_json::Value;

use super::model::Usage;

/// Output tokens that are reserved for an answer whose request has no maximum.
pub const OUTPUT_TOKENS_RESERVED: u64 = 16_384;
/// The most tokens that a usage is believed to have. The estimate takes the place of larger counts.
const TOKENS_MAX: u64 = 100_000_000;

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

impl Tokens {
    /// The tokens that a usage counts, in the names of any of the common APIs; `None` where it counts no
    /// prompt, or something that cannot be believed.
    #[must_use]
    pub fn counted(usage: &Value) -> Option<Self> {
        let first = |names: &[&str]| names.iter().find_map(|name| usage.get(*name)).map(count);
        let named =
            first(&["prompt_tokens", "promptTokenCount", "prompt_eval_count", "inputTokens"]);
        let input = match named {
            Some(input) => input?,
            // Cached tokens are counted beside the others here, and within them elsewhere.
            None => {
                let cached = ["cache_creation_input_tokens", "cache_read_input_tokens"];
                let cached = cached.iter().filter_map(|name| usage.get(*name).and_then(count));
                cached.fold(first(&["input_tokens"])??, u64::saturating_add)
            }
        };
        let names = [
            "completion_tokens",
            "output_tokens",
            "candidatesTokenCount",
            "eval_count",
            "outputTokens",
        ];
        let mut output = match first(&names) {
            Some(output) => output?,
            None => 0,
        };
        if let Some(thought) = usage.get("thoughtsTokenCount").and_then(count) {
            output = output.saturating_add(thought);
        }
        Some(Self { input, output, is_estimated: false })
    }
}

/// A count as a number or a text; `None` for one that cannot be believed.
fn count(value: &Value) -> Option<u64> {
    let number = match value {
        Value::Null => return Some(0),
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    if !(0.0..=TOKENS_MAX as f64).contains(&number) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Some(number.ceil() as u64)
}

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
pub const BYTES_PER_TOKEN: u64 = 4;

/// How many tokens a text of so many bytes has, estimated.
#[must_use]
pub const fn estimate(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_in_every_dialect_or_not_believed() {
        for (usage, expected) in [
            (r#"{"prompt_tokens":3,"completion_tokens":4}"#, Some((3, 4))),
            (r#"{"input_tokens":3,"output_tokens":4,"cache_read_input_tokens":10}"#, Some((13, 4))),
            (
                r#"{"promptTokenCount":3,"candidatesTokenCount":4,"thoughtsTokenCount":5}"#,
                Some((3, 9)),
            ),
            (r#"{"prompt_eval_count":3,"eval_count":4}"#, Some((3, 4))),
            (r#"{"prompt_tokens":3.0,"completion_tokens":"4"}"#, Some((3, 4))),
            (r#"{"prompt_tokens":100000000,"completion_tokens":0}"#, Some((TOKENS_MAX, 0))),
            (r#"{"prompt_tokens":9223372036854775808,"completion_tokens":1}"#, None),
            (r#"{"prompt_tokens":1,"completion_tokens":9223372036854775807}"#, None),
            (r#"{"prompt_tokens":1,"completion_tokens":1e308}"#, None),
            (r#"{"prompt_tokens":18446744073709551616}"#, None),
            (r#"{"prompt_tokens":1,"completion_tokens":"NaN"}"#, None),
            (r#"{"prompt_tokens":-1,"completion_tokens":4}"#, None),
            (r#"{"prompt_tokens":1,"completion_tokens":-4}"#, None),
            (r#"{"prompt_tokens":"many"}"#, None),
            ("{}", None),
        ] {
            let tokens = Tokens::counted(&serde_json::from_str(usage).unwrap());
            let found = tokens.map(|tokens| (tokens.input, tokens.output));
            assert_eq!(found, expected, "{usage}");
        }
    }

    #[test]
    fn token_estimate_rounds_up() {
        assert_eq!([0, 1, 4, 5].map(estimate), [0, 1, 1, 2]);
    }
}
