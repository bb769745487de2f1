//! Validation errors of chat, embeddings, decision and agent requests, in the form of OpenAI's
//! error body. Rejections by a model or the engine have other types.

use std::borrow::Cow;

use super::json_fault;

/// The first problem of a request. Prints as a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct InvalidRequest {
    pub message: String,
    /// The path of the field; `None` for the request as a whole.
    pub param: Option<Cow<'static, str>>,
    pub code: &'static str,
}

impl InvalidRequest {
    /// Reports a request that is invalid as a whole.
    pub fn whole(message: impl Into<String>) -> Self {
        Self { message: message.into(), param: None, code: "invalid_value" }
    }

    /// Reports an invalid field. The message names the field.
    pub fn field(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::whole(message) }
    }

    /// Reports a missing required field.
    pub fn missing(param: impl Into<Cow<'static, str>>) -> Self {
        let param = param.into();
        let message = format!("{param} is required");
        Self { code: "missing_required_parameter", ..Self::field(param, message) }
    }

    /// Reports a body that is not a valid JSON object.
    pub fn body(text: &[u8], error: &serde_json::Error) -> Self {
        Self::whole(match error.is_data() {
            true => format!("invalid request body: {error}"),
            false => format!("invalid JSON body: {}", json_fault::with_position(text, error)),
        })
    }
}
