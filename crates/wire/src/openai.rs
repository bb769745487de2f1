//! The error body in OpenAI's format.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

/// An error in OpenAI's format.
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
    /// The details of the error.
    pub error: Body<'a>,
}

/// The details of an error.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenAiErrorBody")]
pub struct Body<'a> {
    /// A message for people.
    pub message: &'a str,
    /// The kind of error, which depends on the status.
    #[serde(rename = "type")]
    pub kind: &'a str,
    /// The request field that is invalid.
    pub param: Option<&'a str>,
    /// A specific error code for programs.
    pub code: Option<&'a str>,
}

/// Returns the kind of error for a status (`docs/spec/chat.md`, "Errors").
#[must_use]
pub const fn kind_of(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "insufficient_quota",
        403 => "permission_error",
        408 | 504 => "timeout",
        409 => "conflict",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        502 | 503 => "upstream_error",
        _ => "server_error",
    }
}

/// Returns the default error code for a status.
#[must_use]
pub const fn code_of(status: u16) -> Option<&'static str> {
    match status {
        400 => Some("invalid_value"),
        401 => Some("invalid_api_key"),
        402 => Some("insufficient_quota"),
        _ => None,
    }
}
