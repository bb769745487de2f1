//! Decisions: typed questions about one state, and their answers as probabilities.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

/// Typed questions about one state.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(
    rename = "DecisionsRequest",
    example = json!({
        "model": "llama",
        "state": "The printer in room 4 is on fire.",
        "questions": {
            "urgent": {"type": "oul", "instructions": "Is it urgent?"},
            "team": {
                "type": "choice",
                "instructions": "Who has to act?",
                "criteria": {"facilities": "the building and its safety", "it": null},
            },
            "mood": {
                "type": "score",
                "instructions": "How calm is the writer?",
                "criteria": ["in panic", "worried", "calm"],
            },
        },
    })
)]
pub struct Request {
    /// An alias of the configuration, the slug of a local chat model, or an id of the upstream.
    #[schemars(length(min = 1, max = 256))]
    pub model: String,
    /// What the questions are about.
    pub state: State,
    /// The questions by name, at most 256. A name has at most 256 characters.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 256))]
    pub questions: BTreeMap<String, Question>,
}

/// What questions are about: a text, or JSON.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "DecisionsState")]
pub enum State {
    Text(String),
    Object(Map<String, Value>),
    List(Vec<Value>),
}

/// One question.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "DecisionsQuestion")]
pub enum Question {
    /// Is it so? The answer is the probability that it is.
    Oul {
        #[schemars(length(min = 1))]
        instructions: String,
        criteria: Option<Sides>,
    },
    /// The same as `oul`.
    Noul {
        #[schemars(length(min = 1))]
        instructions: String,
        criteria: Option<Sides>,
    },
    /// Which of these options is it? At least 2, at most 26, each with guidance or null.
    Choice {
        #[schemars(length(min = 1))]
        instructions: String,
        #[schemars(extend("minProperties" = 2, "maxProperties" = 26))]
        criteria: BTreeMap<String, Option<String>>,
    },
    /// Where is it on this scale? What each level means, the lowest first.
    Score {
        #[schemars(length(min = 1))]
        instructions: String,
        #[schemars(length(min = 2, max = 26))]
        criteria: Vec<String>,
    },
}

/// What makes it so, and what does not.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DecisionsSides")]
pub struct Sides {
    pub r#true: Option<String>,
    pub r#false: Option<String>,
}

/// The answers to all questions.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Decisions")]
pub struct Decisions {
    /// By the names of the questions, in their order.
    #[serde(serialize_with = "in_order")]
    #[schemars(with = "BTreeMap<String, Answer>")]
    pub answers: Vec<(String, Answer)>,
    pub usage: Usage,
}

/// One answer, of the type of its question.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "DecisionsAnswer")]
pub enum Answer {
    Oul {
        /// The probability that it is so.
        oul: f64,
    },
    Noul {
        /// The probability that it is so.
        noul: f64,
    },
    Choice {
        /// The most probable option.
        choice: String,
        /// Its probability.
        confidence: f64,
        /// Of each option; they add up to 1.
        #[serde(serialize_with = "in_order")]
        #[schemars(with = "BTreeMap<String, f64>")]
        probabilities: Vec<(String, f64)>,
    },
    Score {
        /// The expected level, counted from 0.
        score: f64,
        /// The probability of the most probable level.
        confidence: f64,
        /// Of each level; they add up to 1.
        #[serde(serialize_with = "in_order")]
        #[schemars(with = "BTreeMap<String, f64>")]
        probabilities: Vec<(String, f64)>,
        /// What each level means.
        #[serde(serialize_with = "in_order")]
        #[schemars(with = "BTreeMap<String, String>")]
        legend: Vec<(String, String)>,
    },
}

/// Writes pairs as an object that keeps their order.
fn in_order<S: Serializer, T: Serialize>(
    pairs: &[(String, T)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// What the answers used.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "DecisionsUsage")]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// US dollars; 0 for a model without a price.
    pub cost: f64,
}
