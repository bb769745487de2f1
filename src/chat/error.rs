//! Why a call is refused, or got no answer.

use std::time::Duration;

use hyper::header::HeaderValue;

use crate::domain::attempt;
use crate::domain::classify::ErrorClass;
use crate::domain::ids::ExecutionId;
use crate::domain::invalid_request::InvalidRequest;
use crate::{chains, engine};

/// Why a call is refused, or got no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is wrong. Nothing was called.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// No model has this id, and there is no upstream. Nothing was called.
    #[error(
        "the model '{model}' does not exist: no upstream is configured (router.upstream_url); local \
         models that can answer: {local}"
    )]
    NoModel { model: String, local: String },
    /// The key has used its tokens of the day. Nothing was called.
    #[error("the API key has used its {limit} tokens of today")]
    TokensUsedUp { limit: u64, retry_after: Duration },
    /// Calls of the key that are in flight may use the rest of its tokens of the day. Nothing was called.
    #[error(
        "the calls in flight of the API key reserve the rest of its {limit} tokens of today; try again when \
         they have ended, or set max_tokens"
    )]
    TokensReserved { limit: u64, retry_after: Duration },
    /// The model did not answer. The call is recorded under this id.
    #[error("{}", failure.message)]
    Failed { execution: ExecutionId, failure: Failure },
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Chains(#[from] chains::Error),
}

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
    pub retry_after: Option<HeaderValue>,
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
