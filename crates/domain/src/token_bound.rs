//! Bounds on the tokens of a request before a model has counted them: an estimate for the prompt,
//! and upper bounds for the prompt and its answers. Chat calls, embeddings and predictions are
//! treated alike.
//!
//! No tokenizer produces more tokens than a text has bytes, so the upper bound of a prompt is the
//! length of the entire request, including unknown fields. Each image or other medium counts as a
//! fixed number of tokens.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::chat::{Media, OUTPUT_TOKENS_RESERVED, Tokens, estimate};
use super::raw_object::RawObject;

/// Estimated number of tokens for an image or other non-text part, if the server does not count
/// them.
const MEDIA_TOKENS: u64 = 1000;
/// Maximum number of tokens for an image or other non-text part: an image of the highest
/// resolution, or ten minutes of speech.
const MEDIA_TOKENS_MAX: u64 = 16_384;
/// Maximum bytes of text of a token that a client sends, on average.
const TOKEN_BYTES_MAX: u64 = 16;
/// Top-level fields whose text the model reads.
const TEXTS: [&str; 10] = [
    "prompt",
    "instructions",
    "suffix",
    "query",
    "documents",
    "system",
    "input",
    "tools",
    "functions",
    "response_format",
];
/// Bytes at the start of a `data:` URI that are searched for `;base64`.
const URI_HEAD: usize = 256;

/// The parts of a request that a model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Prompt {
    /// Bytes of text.
    text: u64,
    /// Bytes of the request that are neither media nor tokens.
    sent: u64,
    /// Number of tokens sent as token ids.
    tokens: u64,
    /// Number of images, recordings and files.
    media: u64,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow)]
    function_call: Option<&'a RawValue>,
}

/// A part of a message. A part without text is an image, a recording or a file.
#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, alias = "refusal", alias = "thinking", alias = "content")]
    text: Option<&'a RawValue>,
}

impl Prompt {
    /// Reads a request whose conversation is in the field `messages`.
    fn of(request: &RawObject, messages: &str) -> Self {
        let mut prompt = Self::default();
        for (name, value) in request.fields() {
            prompt.sent = prompt.sent.saturating_add(length(name));
            match name {
                _ if name == messages => prompt.add_messages(value),
                _ if TEXTS.contains(&name) => prompt.add_text(value),
                _ if is_media(value) || is_url(value) => {
                    prompt.media = prompt.media.saturating_add(1);
                }
                _ => prompt.sent = prompt.sent.saturating_add(length(value)),
            }
        }
        prompt
    }

    /// Returns the estimated number of tokens.
    const fn estimate(self) -> u64 {
        let media = self.media.saturating_mul(MEDIA_TOKENS);
        estimate(self.text).saturating_add(self.tokens).saturating_add(media)
    }

    /// Returns the maximum number of tokens.
    const fn most(self) -> u64 {
        let media = self.media.saturating_mul(MEDIA_TOKENS_MAX);
        self.sent.saturating_add(self.tokens).saturating_add(media)
    }

    fn add_messages(&mut self, messages: &str) {
        let Ok(all) = serde_json::from_str::<Vec<&RawValue>>(messages) else {
            self.add(messages, length(messages));
            return;
        };
        all.iter().for_each(|message| self.add_message(message.get()));
    }

    fn add_message(&mut self, message: &str) {
        let Ok(fields) = serde_json::from_str::<Message<'_>>(message) else {
            self.add(message, length(message));
            return;
        };
        let calls = [fields.tool_calls, fields.function_call].into_iter().flatten();
        let calls = calls.map(|calls| length(calls.get())).fold(0, u64::saturating_add);
        let content = fields.content.map_or("null", RawValue::get);
        let parts: Option<Vec<&RawValue>> = serde_json::from_str(content).ok();
        let Some(parts) = parts else {
            self.add(message, calls.saturating_add(text_bytes(content)));
            return;
        };
        let mut media_bytes = 0_u64;
        let mut text = calls;
        for part in parts.iter().map(|part| part.get()) {
            match serde_json::from_str::<Part<'_>>(part) {
                Ok(Part { text: None }) => {
                    self.media = self.media.saturating_add(1);
                    media_bytes = media_bytes.saturating_add(length(part));
                }
                Ok(Part { text: Some(said) }) => text = text.saturating_add(text_bytes(said.get())),
                Err(_unknown) => text = text.saturating_add(length(part)),
            }
        }
        self.add(message, text);
        self.sent = self.sent.saturating_sub(media_bytes);
    }

    /// Adds one or several strings, or tokens.
    fn add_text(&mut self, value: &str) {
        if is_media(value) {
            self.media = self.media.saturating_add(1);
            return;
        }
        let items: Vec<&RawValue> = serde_json::from_str(value).unwrap_or_default();
        if items.is_empty() {
            self.add(value, text_bytes(value));
            return;
        }
        for item in items.iter().map(|item| item.get()) {
            if serde_json::from_str::<u64>(item).is_ok() {
                self.tokens = self.tokens.saturating_add(1);
            } else if let Ok(tokens) = serde_json::from_str::<Vec<u64>>(item) {
                self.tokens = self.tokens.saturating_add(tokens.len() as u64);
            } else {
                self.add(item, text_bytes(item));
            }
        }
    }

    fn add(&mut self, sent: &str, text: u64) {
        self.sent = self.sent.saturating_add(length(sent));
        self.text = self.text.saturating_add(text);
    }
}

/// The maximum token usage of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBound {
    prompt: Prompt,
    /// Tokens per answer, if the request limits them.
    answer: Option<u64>,
    answers: u64,
    /// The number of prompts, each within the context of the model.
    prompts: u64,
}

impl TokenBound {
    /// Returns the maximum usage of a request whose answers are text. If several fields limit the
    /// answer, the largest is used, because servers support different fields.
    #[must_use]
    pub fn of(request: &RawObject) -> Self {
        let limits = ["max_tokens", "max_completion_tokens"];
        let answers = ["n", "best_of"];
        let largest =
            |names: [&str; 2]| names.into_iter().filter_map(|name| number(request, name)).max();
        Self {
            prompt: Prompt::of(request, "messages"),
            answer: largest(limits),
            answers: largest(answers).unwrap_or(1),
            prompts: 1,
        }
    }

    /// Returns the maximum usage of a request in the format of OpenAI's Responses API.
    #[must_use]
    pub fn of_response(request: &RawObject) -> Self {
        Self {
            prompt: Prompt::of(request, "input"),
            answer: number(request, "max_output_tokens"),
            answers: 1,
            prompts: 1,
        }
    }

    /// Returns the maximum usage as [`Self::of`] does, for an input that can be any JSON value.
    #[must_use]
    pub fn of_input(input: &RawValue) -> Self {
        match serde_json::from_str(input.get()) {
            Ok(request) => Self::of(&request),
            Err(_other) => {
                let mut prompt = Prompt::default();
                prompt.add(input.get(), length(input.get()));
                Self { prompt, answer: None, answers: 1, prompts: 1 }
            }
        }
    }

    /// Removes the answer tokens, for embeddings.
    #[must_use]
    pub const fn without_answer(self) -> Self {
        Self { answer: Some(0), ..self }
    }

    /// Counts the answers to each of this many prompts.
    #[must_use]
    pub const fn for_prompts(self, prompts: u64) -> Self {
        Self { answers: self.answers.saturating_mul(prompts), prompts, ..self }
    }

    /// Counts the text of a field this many times more, because the model reads it again.
    #[must_use]
    pub const fn repeating(self, bytes: u64, times: u64) -> Self {
        let bytes = bytes.saturating_mul(times);
        let prompt = Prompt {
            text: self.prompt.text.saturating_add(bytes),
            sent: self.prompt.sent.saturating_add(bytes),
            ..self.prompt
        };
        Self { prompt, ..self }
    }

    /// The maximum bytes of text of the prompts if each answer begins with its own.
    #[must_use]
    pub const fn echoed_bytes(self) -> u64 {
        let tokens = self.prompt.tokens.saturating_mul(TOKEN_BYTES_MAX);
        self.prompt.text.saturating_add(tokens).saturating_mul(self.answers)
    }

    /// The estimated tokens of the prompt, for a server that does not report them.
    #[must_use]
    pub const fn prompt_estimate(self) -> u64 {
        self.prompt.estimate()
    }

    /// Returns the maximum usage of a prediction other than tokens.
    #[must_use]
    pub const fn media(self) -> Media {
        let characters = Some(self.echoed_bytes());
        Media { audio_ms: None, characters, images: Some(self.answers) }
    }

    /// Returns whether the request limits its answers.
    #[must_use]
    pub const fn is_limited(self) -> bool {
        self.answer.is_some()
    }

    /// Returns the maximum number of tokens. `context` is the model's context length, if known.
    #[must_use]
    pub fn tokens(self, context: Option<u32>) -> Tokens {
        let context = context.map_or(u64::MAX, u64::from);
        let of_one = self.answer.unwrap_or(OUTPUT_TOKENS_RESERVED).min(context);
        let input = context.max(1).saturating_mul(self.prompts.max(1));
        let input = self.prompt.most().clamp(1, input);
        Tokens::estimated(input, of_one.saturating_mul(self.answers))
    }
}

/// Parses a numeric field as servers do: strings are accepted, and fractions are rounded up. A
/// value below one sets no limit.
fn number(request: &RawObject, name: &str) -> Option<u64> {
    let number = match request.value(name)? {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and is not below one"
    )]
    (number >= 1.0).then(|| number.ceil() as u64)
}

/// Returns whether a JSON string contains the data of a file.
fn is_media(value: &str) -> bool {
    let head = value.as_bytes().get(..value.len().min(URI_HEAD)).unwrap_or_default();
    head.starts_with(b"\"data:") && head.windows(8).any(|part| part == b";base64,")
}

/// Returns whether a JSON string is the URL of a file.
fn is_url(value: &str) -> bool {
    (value.starts_with("\"http://") || value.starts_with("\"https://")) && !value.contains(' ')
}

fn length(text: &str) -> u64 {
    text.len() as u64
}

/// Returns the length of a JSON string, unescaped and without quotes, in bytes. Other JSON counts
/// with its full length, and null as zero.
fn text_bytes(json: &str) -> u64 {
    let quoted = json.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let Some(text) = quoted else { return if json == "null" { 0 } else { length(json) } };
    let mut bytes = length(text);
    let mut rest = text;
    while let Some((_, escape)) = rest.split_once('\\') {
        let (escaped, becomes) = match escape.strip_prefix('u').and_then(|hex| hex.get(..4)) {
            Some(hex) => (6, utf8_bytes(hex)),
            None => (2, 1),
        };
        bytes = bytes.saturating_sub(escaped).saturating_add(becomes);
        rest = escape.get(1..).unwrap_or_default();
    }
    bytes
}

/// Returns the number of UTF-8 bytes of a UTF-16 code unit; a surrogate counts as half of the four
/// bytes of its pair.
fn utf8_bytes(hex: &str) -> u64 {
    match u16::from_str_radix(hex, 16).unwrap_or_default() {
        0..0x80 => 1,
        0x80..0x800 | 0xd800..0xe000 => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(request: &Value) -> RawObject {
        serde_json::from_str(&request.to_string()).unwrap()
    }

    #[test]
    fn prompt_estimate_counts_texts_and_bound_counts_everything() {
        let says = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
        let around = 36;
        let image = json!({"type": "image_url", "image_url": {"url": "x".repeat(50_000)}});
        let data = format!("data:image/png;base64,{}", "A".repeat(50_000));
        for (request, estimate, most) in [
            (says(json!("12345678")), 2, around + 8),
            (says(json!("\u{4e2d}\u{6587}")), 2, around + 6),
            (says(json!("\"\"\"\"")), 1, around + 8),
            (says(Value::Null), 0, around + 2),
            (says(json!([{"type": "text", "text": "1234"}])), 1, around + 29),
            (says(json!([image])), MEDIA_TOKENS, around + MEDIA_TOKENS_MAX),
            (json!({"messages": [{"x": "1234", "tool_calls": [12]}]}), 1, 38),
            (json!({"tools": [{"a": 1}]}), 2, 12),
            (json!({"response_format": {"a": 1}}), 2, 22),
            (json!({"unknown": "12345678"}), 0, 17),
            (json!({"prompt": "12345678", "image": data}), 2 + MEDIA_TOKENS, 21 + MEDIA_TOKENS_MAX),
            (json!({"image": "https://h/a.png"}), MEDIA_TOKENS, 5 + MEDIA_TOKENS_MAX),
            (json!({"input": "12345"}), 2, 12),
            (json!({"input": ["1234", "1234"]}), 2, 17),
            (json!({"input": [1, 2, 3]}), 3, 8),
            (json!({"input": [[1, 2], [3]]}), 3, 8),
        ] {
            let prompt = Prompt::of(&object(&request), "messages");
            let shown: String = request.to_string().chars().take(100).collect();
            assert_eq!((prompt.estimate(), prompt.most()), (estimate, most), "{shown}");
        }
    }

    #[test]
    fn text_that_is_read_again_and_echoed_prompts_are_counted() {
        let request = object(&json!({"query": "12345678", "documents": ["1234", {"text": "12"}]}));
        let bound = TokenBound::of(&request).for_prompts(2).without_answer();
        let again = bound.repeating(8, 1);
        assert_eq!(again.prompt_estimate() - bound.prompt_estimate(), 2);
        assert_eq!(again.tokens(None).input - bound.tokens(None).input, 8);
        let texts = object(&json!({"prompt": ["12345", "678"], "n": 3}));
        assert_eq!(TokenBound::of(&texts).for_prompts(2).echoed_bytes(), 8 * 6);
        let tokens = object(&json!({"prompt": [1, 2, 3]}));
        assert_eq!(TokenBound::of(&tokens).echoed_bytes(), 3 * TOKEN_BYTES_MAX);
    }

    #[test]
    fn prompt_counts_escapes_unescaped() {
        for (json, bytes) in [
            (r#""\u4e2d\u00e9\ud83d\ude00\u0041""#, 10),
            (r#""\\u4e2d""#, 6),
            (r#""a\nb\"\\""#, 5),
            ("\"\"", 0),
            ("null", 0),
            ("[1]", 3),
        ] {
            assert_eq!(text_bytes(json), bytes, "{json}");
        }
    }

    #[test]
    fn bound_takes_the_larger_limit_and_at_least_one_answer() {
        for (request, output) in [
            (json!({}), OUTPUT_TOKENS_RESERVED),
            (json!({"max_tokens": 7}), 7),
            (json!({"max_tokens": 7, "max_completion_tokens": 5}), 7),
            (json!({"max_tokens": 5, "max_completion_tokens": 7, "n": 2}), 14),
            (json!({"max_tokens": 7, "n": 2, "best_of": 3}), 21),
            (json!({"max_tokens": 7, "n": 0}), 7),
            (json!({"max_tokens": 7, "n": 3.0}), 21),
            (json!({"max_tokens": "7"}), 7),
            (json!({"max_tokens": 6.5}), 7),
            (json!({"max_tokens": 0}), OUTPUT_TOKENS_RESERVED),
            (json!({"max_tokens": -1}), OUTPUT_TOKENS_RESERVED),
            (json!({"max_tokens": true, "n": []}), OUTPUT_TOKENS_RESERVED),
            (json!({"max_tokens": u64::MAX, "n": 128}), u64::MAX),
        ] {
            assert_eq!(TokenBound::of(&object(&request)).tokens(None).output, output, "{request}");
        }
        let long = object(&json!({"prompt": "x".repeat(5000), "n": 3}));
        let Tokens { input, output, .. } = TokenBound::of(&long).tokens(Some(2048));
        assert_eq!((input, output), (2048, 3 * 2048));
        assert_eq!(TokenBound::of(&long).without_answer().tokens(None).output, 0);
        let list = RawValue::from_string("[\"1234\"]".to_owned()).unwrap();
        let many = TokenBound::of(&long).for_prompts(2).tokens(Some(2048));
        assert_eq!((many.input, many.output), (2 * 2048, 6 * 2048), "each within the context");
        assert_eq!(TokenBound::of_input(&list).tokens(None).input, 8);
    }
}
