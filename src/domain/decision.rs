//! A request for decisions, as it is stored: which model answered how many questions, by which method,
//! and what that used.
//!
//! It is written once, when it has ended, in the commit of its charge. It never waits in a lane, and
//! the questions and the state are not kept.

use serde::{Deserialize, Serialize};

use super::chat::Tokens;

/// The lane of decisions in the history's indexes.
pub const LANE: &str = "decision";

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The chat model that answered.
    pub model: String,
    /// The model of the request, which can be an alias.
    pub requested_model: String,
    /// Whether the upstream was asked, and not a model of the catalog.
    pub is_upstream: bool,
    /// How many questions the request has.
    pub questions: u32,
    /// How many answers the model gave.
    pub calls: u32,
    pub method: Method,
    pub tokens: Tokens,
    /// Whether the model has a price. One without costs nothing.
    pub is_priced: bool,
}

/// How a model is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// By the probabilities of the options' labels as the next token.
    #[default]
    Logprobs,
    /// By repeated answers, at least for one question.
    Votes,
}

impl Method {
    /// As the API spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Logprobs => "logprobs",
            Self::Votes => "votes",
        }
    }
}
