//! The errors of a call.

use std::time::Duration;

use orrery_domain::ids::ExecutionId;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_engine as engine;
use orrery_records::{chains, files};
pub use orrery_runners::openai::{Failure, Said};

/// An error that rejects or ends a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid. No model was called.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// No model has this id, and no upstream may have it. No model was called.
    #[error(
        "the model '{model}' does not exist{hint}: {}; local models that can answer: {local}",
        no_upstream(*.has_upstreams)
    )]
    NoModel {
        model: String,
        /// Whether there are upstreams, none of which serves the id.
        has_upstreams: bool,
        /// The closest known id, in parentheses.
        hint: String,
        local: String,
    },
    /// The local model cannot be loaded. No model was called.
    #[error(
        "the model '{model}' is not served: its file {file} cannot be loaded; `orrery model list` shows the \
         operator why"
    )]
    Unserved { model: String, file: String },
    /// The key has used up its daily tokens. No model was called.
    #[error("the API key has used its {limit} tokens for today")]
    TokensUsedUp { limit: u64, retry_after: Duration },
    /// The key's calls in flight reserve the rest of its daily tokens. No model was called.
    #[error(
        "calls in flight have reserved the rest of the API key's {limit} tokens for today; try \
         again when they have ended, or set max_tokens"
    )]
    TokensReserved { limit: u64, retry_after: Duration },
    /// The model failed. The call is recorded under this id.
    #[error("{}", failure.message)]
    Failed { execution: ExecutionId, failure: Failure },
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Chains(#[from] chains::Error),
    /// A file of the request cannot be read.
    #[error(transparent)]
    Files(#[from] files::Error),
}

const fn no_upstream(has_upstreams: bool) -> &'static str {
    if has_upstreams {
        "no upstream is configured for this id (`models` and `prefix` of router.upstreams)"
    } else {
        "no upstream is configured (router.upstream_url)"
    }
}
