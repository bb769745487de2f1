//! The error body of the routes that OpenAI's clients call.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

/// Why a request was refused, or not answered.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(
    rename = "OpenAiError",
    example = json!({"error": {
        "message": "messages must not be empty",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "invalid_value",
    }})
)]
pub struct Error<'a> {
    pub error: Body<'a>,
}

/// What went wrong.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiErrorBody")]
pub struct Body<'a> {
    /// A sentence for people.
    pub message: &'a str,
    /// The kind of error, which follows from the status.
    #[serde(rename = "type")]
    pub kind: &'a str,
    /// The field of the request that is wrong.
    pub param: Option<&'a str>,
    /// What exactly is wrong, for programs.
    pub code: Option<&'a str>,
}

/// The kind of error that a status means (`docs/spec/chat.md`, "Errors").
#[must_use]
pub const fn kind_of(status: u16) -> &'static str {
    match status {
        402 => "insufficient_quota",
        408 | 504 => "timeout",
        409 => "conflict",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        502 | 503 => "upstream_error",
        _ => "server_error",
    }
}

/// The code that goes with a status where nothing more exact is known.
#[must_use]
pub const fn code_of(status: u16) -> Option<&'static str> {
    match status {
        400 => Some("invalid_value"),
        402 => Some("insufficient_quota"),
        _ => None,
    }
}
