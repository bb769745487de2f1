//! Why an exchange is refused.

use crate::domain::json_object::Mismatch;
use crate::{engine, storage};

/// Why an exchange is refused. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is wrong.
    #[error("{message}")]
    Invalid { message: String, param: Option<&'static str>, code: &'static str },
    /// The configuration names no model for the agent.
    #[error("the agent has no model: set agent.model in the configuration")]
    NoModel,
    /// As many exchanges of the session wait as may.
    #[error(
        "an exchange of this session is running and {waiting} wait; try again when one has ended"
    )]
    SessionBusy { waiting: usize },
    /// There is no such exchange in this organization.
    #[error("task not found")]
    NotFound,
    #[error(transparent)]
    Engine(engine::Error),
}

impl Error {
    /// A field that is not what it must be.
    pub fn invalid(param: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), param: Some(param), code: "invalid_value" }
    }

    /// A field that must be there.
    pub fn missing(param: &'static str) -> Self {
        let message = format!("{param} is required");
        Self::Invalid { message, param: Some(param), code: "missing_required_parameter" }
    }
}

impl From<Mismatch> for Error {
    fn from(mismatch: Mismatch) -> Self {
        Self::invalid(mismatch.field, mismatch.to_string())
    }
}

impl From<engine::Error> for Error {
    fn from(error: engine::Error) -> Self {
        if let engine::Error::QueueFull { queued } = error {
            return Self::SessionBusy { waiting: queued };
        }
        if matches!(error, engine::Error::NotFound) { Self::NotFound } else { Self::Engine(error) }
    }
}

impl From<storage::Error> for Error {
    fn from(error: storage::Error) -> Self {
        Self::Engine(error.into())
    }
}
