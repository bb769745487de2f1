//! The errors of decisions.

use crate::{self as chat, Failure};
use orrery_domain::ids::ExecutionId;
use orrery_domain::invalid_request::InvalidRequest;

/// An error that rejects or ends a decision request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid. No model was called.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The model does not exist, or the request is not admitted. No model was called.
    #[error(transparent)]
    Chat(#[from] chat::Error),
    /// A question could not be answered. The request is recorded under this execution id and is
    /// free.
    #[error("{}", failure.message)]
    Failed { execution: ExecutionId, question: Option<String>, failure: Failure },
}
