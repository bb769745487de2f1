//! Failures of an OpenAI-compatible server: an error status, an error text, or an unusable
//! response. Shared by the chat router and predictions.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use orrery_domain::attempt;
use orrery_domain::classify::ErrorClass;
use orrery_domain::delivery::retry_after;
use orrery_domain::time::Timestamp;

/// Maximum length of a server message that is passed on, in characters.
const SAID_MAX: usize = 1000;
/// Fields of an error that contain its message.
const MESSAGES: [&str; 5] = ["message", "msg", "error_msg", "status_msg", "faultstring"];
/// Headers of an error response that are passed on: when to retry. The `x-ratelimit-…` headers
/// describe this service's account, which all organizations share, so they are not passed on.
const PASSED_ON: [&str; 2] = ["retry-after", "retry-after-ms"];

/// The longest wait that is passed on, in seconds or milliseconds.
const WAIT_MAX: u64 = 86_400_000;

/// The code of a prompt that exceeds the model's context.
const CONTEXT: &str = "context_length_exceeded";
/// Words with which servers report that a prompt exceeds the model's context.
const CONTEXTS: [&str; 6] = [
    "context length",
    "context size",
    "context window",
    "maximum context",
    "prompt is too long",
    "input is too long",
];
/// Words with which servers report, without a code, that their content filter refuses a request.
const FILTERS: [&str; 4] =
    ["content filtering policy", "content management policy", "safety system", "flagged_input"];
/// Words in errors that name the stream options.
const OPTIONS: [&str; 2] = ["stream_options", "include_usage"];
/// Words in errors about an unknown field, which may be one of the stream options.
const UNKNOWN: [&str; 5] =
    ["extra inputs", "extra fields", "additional properties", "unknown field", "unrecognized"];

/// The failure of one model, with the fields of OpenAI's error body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The status returned to the client.
    pub status: u16,
    pub class: ErrorClass,
    /// The error message, a sentence. Never contains a secret.
    pub message: String,
    /// The details of the server's error, boxed so that a failure is small compared to the
    /// responses that it replaces.
    pub said: Box<Said>,
}

/// Details of a server's error beyond its message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said {
    /// The error type.
    pub kind: Option<String>,
    pub param: Option<String>,
    pub code: Option<String>,
    /// Whether the error mentions `stream_options`, or an unknown field without its name.
    pub rejects_options: bool,
    /// Headers that state when to retry.
    pub headers: HeaderMap,
}

impl Said {
    /// Stores the headers of an error response that state when to retry.
    pub fn keep_limits(&mut self, headers: &HeaderMap) {
        for name in PASSED_ON.map(HeaderName::from_static) {
            let value = headers.get(&name).filter(|value| {
                let text = value.to_str().unwrap_or_default().trim();
                match text.parse::<u64>() {
                    Ok(wait) => wait <= WAIT_MAX,
                    Err(_) if !text.contains(' ') => false,
                    Err(_date) => retry_after(text, Timestamp::from_micros(0)).is_some(),
                }
            });
            if let Some(value) = value {
                self.headers.insert(name, value.clone());
            }
        }
    }
}

impl Failure {
    /// Creates a failure that has only a message.
    pub fn new(status: u16, class: ErrorClass, message: impl Into<String>) -> Self {
        Self { status, class, message: message.into(), said: Box::default() }
    }

    /// Returns whether another model may succeed, which is not the case if the request itself is
    /// invalid. A missing model, a context that is too short or a missing feature does not affect
    /// other models.
    pub fn may_fall_back(&self) -> bool {
        let code = self.said.code.as_deref();
        let is_of_model = self.status == 404
            || matches!(code, Some(CONTEXT | "model_not_found"))
            || has_any(&self.message, &["not support", "unsupported"]);
        is_of_model || !self.is_of_request()
    }

    /// Returns whether the request is at fault, not the server.
    pub fn is_of_request(&self) -> bool {
        self.class == ErrorClass::InvalidUserInput || matches!(self.status, 413 | 414 | 415 | 431)
    }

    /// Returns whether the server may reject `stream_options` as unknown.
    pub fn names_stream_options(&self) -> bool {
        matches!(self.status, 400 | 422) && self.said.rejects_options
    }

    /// Adds the details found in the full text of an error response.
    pub fn read_text(&mut self, text: &str) {
        self.said.rejects_options = has_any(text, &OPTIONS) || has_any(text, &UNKNOWN);
        if matches!(self.status, 400 | 413 | 422) && has_any(&self.message, &CONTEXTS) {
            self.said.code = Some(CONTEXT.to_owned());
        }
        if matches!(self.status, 400 | 403 | 422) && has_any(text, &FILTERS) {
            self.class = ErrorClass::ContentModeration;
        }
    }

    /// Replaces a secret that the server has repeated in its error.
    pub fn mask(&mut self, secret: &HeaderValue) {
        let Ok(secret) = secret.to_str() else { return };
        let secret = secret.strip_prefix("Bearer ").unwrap_or(secret);
        if secret.is_empty() {
            return;
        }
        let Said { kind, param, code, .. } = &mut *self.said;
        for text in [kind, param, code].into_iter().flatten().chain([&mut self.message]) {
            if text.contains(secret) {
                *text = text.replace(secret, "…");
            }
        }
    }

    /// Returns the failure as recorded in the history.
    pub fn recorded(&self) -> attempt::Failure {
        attempt::Failure::new(self.class, self.message.clone())
    }
}

/// Parses the `error` field of OpenAI's error body; a string is used as the message.
#[must_use]
pub fn said_of(status: u16, error: &[u8]) -> Failure {
    let class = ErrorClass::of_http_status(status).unwrap_or(ErrorClass::ProviderError);
    let value: serde_json::Value = serde_json::from_slice(error).unwrap_or_default();
    let text = |name: &str| {
        let field = value.get(name)?;
        let number = || field.as_number().map(serde_json::Number::to_string);
        field.as_str().map(cut).or_else(number)
    };
    let code = text("code");
    let is_moderated =
        code.as_deref().is_some_and(|code| code.starts_with("content_") || code == "moderation");
    let named = MESSAGES.iter().find_map(|name| text(name));
    let message = named.or_else(|| value.as_str().map(cut));
    let message = message.unwrap_or_else(|| format!("the model answered {status}"));
    let class = if is_moderated { ErrorClass::ContentModeration } else { class };
    let kind = text("type");
    let param = text("param");
    let said = Said { kind, param, code, ..Said::default() };
    Failure { said: Box::new(said), ..Failure::new(status, class, message) }
}

/// Returns whether a text contains any of these words, in any letter case.
fn has_any(text: &str, words: &[&str]) -> bool {
    let text = text.to_ascii_lowercase();
    words.iter().any(|word| text.contains(word))
}

/// Truncates the text to the maximum length that is passed on.
#[must_use]
pub fn cut(text: &str) -> String {
    text.chars().take(SAID_MAX).collect()
}

/// Returns the failure for a response that is not what was requested.
pub fn misunderstood(name: &str, what: &str) -> Failure {
    Failure::new(502, ErrorClass::ProviderError, format!("the model '{name}': {what}"))
}

/// Returns the failure for an interrupted response.
pub fn broken(name: &str, what: &str) -> Failure {
    let message = format!("the model '{name}': {what}");
    Failure::new(502, ErrorClass::ProviderUnavailable, message)
}

/// Returns the failure for a response that takes too long.
pub fn too_late(name: &str) -> Failure {
    let message = format!("the model '{name}' did not answer in time");
    Failure::new(504, ErrorClass::ExecutionTimeout, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_passes_on_retry_headers_but_not_account_limits() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("retry-after", "7"),
            ("retry-after-ms", "6500"),
            ("x-ratelimit-remaining-tokens", "9"),
            ("set-cookie", "a=b"),
        ] {
            headers.insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        let mut said = Said::default();
        said.keep_limits(&headers);
        let kept: Vec<&str> = said.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(kept, PASSED_ON);
    }

    #[test]
    fn failure_contains_message_of_server() {
        for (error, message) in [
            (r#"{"message":"no"}"#, "no"),
            (r#""no""#, "no"),
            ("{}", "the model answered 400"),
            ("garbage", "the model answered 400"),
        ] {
            assert_eq!(said_of(400, error.as_bytes()).message, message);
        }
        let long = format!("\"{}\"", "x".repeat(5000));
        assert_eq!(said_of(400, long.as_bytes()).message.len(), SAID_MAX);
    }
}
