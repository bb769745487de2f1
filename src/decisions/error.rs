//! Why a request for decisions is refused, or failed.

use crate::chat::{self, Failure};
use crate::domain::ids::ExecutionId;
use crate::domain::json_object::Mismatch;

/// Why a request for decisions is refused, or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is wrong. No model was asked.
    #[error("{message}")]
    Invalid { message: String, param: Option<String>, code: &'static str },
    /// There is no such model, or the request is not admitted. No model was asked.
    #[error(transparent)]
    Chat(#[from] chat::Error),
    /// A question could not be answered. The request is recorded under this id, and costs nothing.
    #[error("{}", failure.message)]
    Failed { execution: ExecutionId, question: Option<String>, failure: Failure },
}

impl Error {
    /// A field that is not what it must be. The message begins with its path.
    pub fn invalid(path: &str, what: &str) -> Self {
        let message = format!("{path} {what}");
        Self::Invalid { message, param: Some(path.to_owned()), code: "invalid_value" }
    }

    /// A field that must be there.
    pub fn missing(path: &str) -> Self {
        let message = format!("{path} is required");
        Self::Invalid { message, param: Some(path.to_owned()), code: "missing_required_parameter" }
    }

    /// A mismatch of a field below `path`; an empty one is the request itself.
    pub fn mismatch(path: &str, mismatch: &Mismatch) -> Self {
        let dot = if path.is_empty() { "" } else { "." };
        Self::invalid(&format!("{path}{dot}{}", mismatch.field), &mismatch.message)
    }
}
