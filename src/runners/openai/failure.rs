//! How a server that speaks OpenAI's API failed: by its status, by its words, or by an answer that is not
//! one. The chat router and predictions share it.

use hyper::header::{HeaderMap, HeaderName};

use crate::domain::attempt;
use crate::domain::classify::ErrorClass;

/// The longest sentence of a server that is passed on, in characters.
const SAID_MAX: usize = 1000;
/// Headers of a refusal that are passed on: when it may be asked again. Its `x-ratelimit-…` speak of the account of
/// this service, which all organizations share.
const PASSED_ON: [&str; 2] = ["retry-after", "retry-after-ms"];

/// How one model failed, in the words of OpenAI's error body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The status that the client gets.
    pub status: u16,
    pub class: ErrorClass,
    /// A sentence. Holds no secret.
    pub message: String,
    /// Boxed, so that a failure stays small beside the answers that it takes the place of.
    pub said: Box<Said>,
}

/// What a model's server says of its error beyond a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said {
    /// The type.
    pub kind: Option<String>,
    pub param: Option<String>,
    pub code: Option<String>,
    /// When it may be asked again.
    pub headers: HeaderMap,
}

impl Said {
    /// Keeps those headers of a refusal that a client needs to know when to ask again.
    pub fn keep_limits(&mut self, headers: &HeaderMap) {
        for name in PASSED_ON.map(HeaderName::from_static) {
            if let Some(value) = headers.get(&name) {
                self.headers.insert(name, value.clone());
            }
        }
    }
}

impl Failure {
    /// A failure with nothing more to say than its sentence.
    pub fn new(status: u16, class: ErrorClass, message: impl Into<String>) -> Self {
        Self { status, class, message: message.into(), said: Box::default() }
    }

    /// Whether another model may do better: not where the request itself is wrong. A model that the
    /// server does not have, or whose context is too short, says nothing of the others.
    pub fn may_fall_back(&self) -> bool {
        let code = self.said.code.as_deref();
        let is_of_model = self.status == 404
            || matches!(code, Some("context_length_exceeded" | "model_not_found"));
        self.class != ErrorClass::InvalidUserInput || is_of_model
    }

    /// Whether the server refuses `stream_options`, which it does not know.
    pub fn names_stream_options(&self) -> bool {
        let param = self.said.param.as_deref().unwrap_or_default();
        let is_named =
            |text: &str| text.contains("stream_options") || text.contains("include_usage");
        matches!(self.status, 400 | 422) && (is_named(&self.message) || is_named(param))
    }

    /// As the history has it.
    pub fn recorded(&self) -> attempt::Failure {
        attempt::Failure::new(self.class, self.message.clone())
    }
}

/// What the `error` of OpenAI's error body says; a text is its message.
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
    let message = text("message").or_else(|| value.as_str().map(cut));
    let message = message.unwrap_or_else(|| format!("the model answered {status}"));
    let class = if is_moderated { ErrorClass::ContentModeration } else { class };
    let kind = text("type");
    let param = text("param");
    let said = Said { kind, param, code, headers: HeaderMap::new() };
    Failure { said: Box::new(said), ..Failure::new(status, class, message) }
}

/// The text up to the most that is passed on.
#[must_use]
pub fn cut(text: &str) -> String {
    text.chars().take(SAID_MAX).collect()
}

/// The failure of an answer that is not what was asked for.
pub fn misunderstood(name: &str, what: &str) -> Failure {
    Failure::new(502, ErrorClass::ProviderError, format!("the model '{name}': {what}"))
}

/// The failure of an answer that broke off, with what was seen of it.
pub fn broken(name: &str, what: &str) -> Failure {
    let message = format!("the model '{name}': {what}");
    Failure::new(502, ErrorClass::ProviderUnavailable, message)
}

/// The failure of an answer that takes too long.
pub fn too_late(name: &str) -> Failure {
    let message = format!("the model '{name}' did not answer in time");
    Failure::new(504, ErrorClass::ExecutionTimeout, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_passes_on_when_to_ask_again_and_no_limits_of_the_account() {
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
    fn failure_says_what_the_server_said() {
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
