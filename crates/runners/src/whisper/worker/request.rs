//! Validates the fields of a request. Unknown fields are ignored.

use orrery_whisper::whisper_rs;

use crate::llm::worker::request::Refusal;
use crate::whisper::ask::{Head, TRANSLATE};

/// Maximum length of the prompt, in bytes; whisper.cpp reads at most the last 223 tokens.
pub(super) const PROMPT_MAX: usize = 4096;

/// A transcript to make.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ask {
    pub format: Format,
    /// The code of the language; `None` means to detect it.
    pub language: Option<String>,
    /// The end of the text that precedes the audio.
    pub prompt: String,
    pub temperature: f32,
    /// Whether to measure the time of each word.
    pub wants_words: bool,
    pub is_translation: bool,
}

/// The form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Text,
    Srt,
    Vtt,
    Verbose,
    /// Events with parts of the text.
    Stream,
    /// Events with the log and the output of a prediction.
    Progress,
}

impl Ask {
    /// Reads the line of JSON at the beginning of a request.
    ///
    /// # Errors
    /// [`Refusal`], which names the field.
    pub(super) fn read(head: &[u8], is_progress: bool) -> Result<Self, Refusal> {
        let head: Head<Vec<(String, String)>> = serde_json::from_slice(head)
            .map_err(|_invalid| Refusal::because(400, "the request has no fields"))?;
        let last = |name: &str| {
            let mut values = head.fields.iter().rev().filter(|(field, _)| field == name);
            values.next().map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
        };
        let is_set = |name: &str| last(name).is_some_and(|value| matches!(value, "true" | "1"));
        let format = match last("response_format") {
            _ if is_progress => Format::Progress,
            None | Some("json" | "text") if is_set("stream") => Format::Stream,
            None | Some("json") => Format::Json,
            Some("text") => Format::Text,
            Some("srt") => Format::Srt,
            Some("vtt") => Format::Vtt,
            Some("verbose_json") => Format::Verbose,
            Some(other) => {
                let message = format!(
                    "this model does not support the response_format {other:?}: use json, text, \
                     srt, vtt or verbose_json"
                );
                return Err(Refusal::of("response_format", message));
            }
        };
        let temperature = last("temperature").map_or(Ok(0.0), str::parse::<f32>);
        let temperature = temperature.ok().filter(|number| (0.0..=1.0).contains(number));
        let temperature = temperature.ok_or_else(|| {
            Refusal::of("temperature", "temperature must be a number from 0 to 1")
        })?;
        let granularities = "timestamp_granularities[]";
        let wants_words =
            head.fields.iter().any(|(name, value)| name == granularities && value == "word");
        Ok(Self {
            format,
            language: last("language").map(language).transpose()?,
            prompt: end_of(last("prompt").unwrap_or_default(), PROMPT_MAX).to_owned(),
            temperature,
            wants_words,
            is_translation: is_set(TRANSLATE),
        })
    }
}

/// Returns the code of a language. The request states a code, a code with a region (`pt-BR`), or a
/// name; `auto` is not a language.
pub(super) fn language(text: &str) -> Result<String, Refusal> {
    let lower = text.to_ascii_lowercase();
    let code = lower.split(['-', '_']).next().unwrap_or_default();
    let is_word = code.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b' ');
    if code == "auto" {
        return Ok(lower);
    }
    let id = if is_word { whisper_rs::get_lang_id(code) } else { None };
    let known = id.and_then(whisper_rs::get_lang_str);
    known.map(str::to_owned).ok_or_else(|| {
        let message = format!("the language {text:?} is unknown: use a code such as \"en\"");
        Refusal::of("language", message)
    })
}

/// Returns the end of a text, of at most `most` bytes.
pub(super) fn end_of(text: &str, most: usize) -> &str {
    let start = text.len().saturating_sub(most);
    text.get(text.ceil_char_boundary(start)..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whisper::ask::encode;

    fn read(fields: &[(&str, &str)]) -> Result<Ask, Refusal> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let fields: Vec<(String, String)> = fields.iter().map(owned).collect();
        Ask::read(encode(&fields).trim_ascii_end(), false)
    }

    #[test]
    fn request_has_defaults() {
        let ask = read(&[("model", "m"), ("language", ""), ("unknown", "1")]).unwrap();
        assert_eq!(ask.format, Format::Json);
        assert_eq!((ask.language, ask.temperature, ask.wants_words), (None, 0.0, false));
        let stream = read(&[("stream", "true")]).unwrap();
        assert_eq!(stream.format, Format::Stream);
        let words = read(&[
            ("response_format", "verbose_json"),
            ("timestamp_granularities[]", "segment"),
            ("timestamp_granularities[]", "word"),
        ]);
        let words = words.unwrap();
        assert_eq!((words.format, words.wants_words), (Format::Verbose, true));
    }

    #[test]
    fn request_language_is_a_code_a_region_or_a_name() {
        for (text, code) in [("de", "de"), ("pt-BR", "pt"), ("ENGLISH", "en"), ("auto", "auto")] {
            assert_eq!(language(text).unwrap(), code);
        }
        for text in ["xx", "en\0", "日本", "-"] {
            let refusal = language(text).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some("language"), "{text}");
        }
    }

    #[test]
    fn request_with_an_invalid_field_is_rejected_by_name() {
        for (name, value) in [
            ("response_format", "diarized_json"),
            ("temperature", "1.5"),
            ("temperature", "NaN"),
            ("language", "klingon"),
        ] {
            let refusal = read(&[(name, value)]).unwrap_err();
            assert_eq!((refusal.status, refusal.param.as_deref()), (400, Some(name)));
        }
        assert_eq!(Ask::read(b"no json", false).unwrap_err().status, 400);
    }

    #[test]
    fn request_keeps_the_end_of_a_long_prompt() {
        let prompt = "é".repeat(PROMPT_MAX);
        let ask = read(&[("prompt", &prompt)]).unwrap();
        assert_eq!(ask.prompt.len(), PROMPT_MAX);
        assert_eq!(end_of("aé", 1), "");
    }
}
