//! The errors of the agent.

use orrery_domain::invalid_request::InvalidRequest;
use orrery_engine as engine;
use orrery_storage as storage;

/// The error of a request that started no exchange.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// No model is configured for the agent.
    #[error("the agent has no model: set agent.model in the configuration")]
    NoModel,
    /// The session's queue of exchanges is full.
    #[error(
        "this session already has one exchange running and {waiting} waiting; try again when one \
         has ended"
    )]
    SessionBusy { waiting: usize },
    /// The organization has no exchange with this id.
    #[error("task not found")]
    NotFound,
    #[error(transparent)]
    Engine(engine::Error),
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
