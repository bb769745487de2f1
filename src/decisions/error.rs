//! Why a request for decisions is refused, or failed.

use crate::chat::{self, Failure};
use crate::domain::ids::ExecutionId;
use crate::domain::invalid_request::InvalidRequest;

/// Why a request for decisions is refused, or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is wrong. No model was asked.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// There is no such model, or the request is not admitted. No model was asked.
    #[error(transparent)]
    Chat(#[from] chat::Error),
    /// A question could not be answered. The request is recorded under this id, and costs nothing.
    #[error("{}", failure.message)]
    Failed { execution: ExecutionId, question: Option<String>, failure: Failure },
}
