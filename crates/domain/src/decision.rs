//! A stored decision request: the model, the number of questions, the method and the token usage.
//!
//! A decision request is written once, after it has ended, in the commit that charges for it. The
//! request never waits in a lane, and its questions and state are not stored.

use serde::{Deserialize, Serialize};

use super::chat::Tokens;

/// The lane of decisions in the history's indexes.
pub const LANE: &str = "decision";

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The chat model that answered.
    pub model: String,
    /// The model of the request, which may be an alias.
    pub requested_model: String,
    /// Whether the upstream handled the request instead of a model in the catalog.
    pub is_upstream: bool,
    /// Number of questions in the request.
    pub questions: u32,
    /// Number of answers from the model.
    pub calls: u32,
    pub method: Method,
    pub tokens: Tokens,
    /// Whether the model has a price; otherwise the request is free.
    pub is_priced: bool,
}

/// The method that determines the probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// From the next-token probabilities of the options' labels.
    #[default]
    Logprobs,
    /// From repeated answers, for at least one question.
    Votes,
}

impl Method {
    /// Returns the name that is used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Logprobs => "logprobs",
            Self::Votes => "votes",
        }
    }
}
