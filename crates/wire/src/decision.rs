//! Decisions: typed questions about one state, and their answers as probabilities.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

/// Typed questions about a state.
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
    /// A configured alias, the slug of a local chat model, or a model ID of the upstream.
    #[schemars(length(min = 1, max = 256))]
    pub model: String,
    /// The state that the questions are about.
    pub state: State,
    /// The questions by name, up to 256. A name has up to 256 characters.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 256))]
    pub questions: BTreeMap<String, Question>,
}

/// The state that questions are about: text or JSON.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "DecisionsState")]
pub enum State {
    Text(String),
    Object(Map<String, Value>),
    List(Vec<Value>),
}

/// A question.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "DecisionsQuestion")]
pub enum Question {
    /// A yes-or-no question. The answer is the probability of yes.
    Oul {
        #[schemars(length(min = 1))]
        instructions: String,
        criteria: Option<Sides>,
    },
    /// An alias of `oul`.
    Noul {
        #[schemars(length(min = 1))]
        instructions: String,
        criteria: Option<Sides>,
    },
    /// A choice between 2 to 26 options, each with a description or null.
    Choice {
        #[schemars(length(min = 1))]
        instructions: String,
        #[schemars(extend("minProperties" = 2, "maxProperties" = 26))]
        criteria: BTreeMap<String, Option<String>>,
    },
    /// A rating on a scale. Each level has a description, lowest level first.
    Score {
        #[schemars(length(min = 1))]
        instructions: String,
        #[schemars(length(min = 2, max = 26))]
        criteria: Vec<String>,
    },
}

/// Descriptions of what makes the answer yes and what makes it no.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DecisionsSides")]
pub struct Sides {
    pub r#true: Option<String>,
    pub r#false: Option<String>,
}

/// The answers to the questions.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Decisions")]
pub struct Decisions {
    /// The answers by question name, in the order of the questions.
    #[serde(serialize_with = "in_order")]
    #[schemars(with = "BTreeMap<String, Answer>")]
    pub answers: Vec<(String, Answer)>,
    pub usage: Usage,
}

/// An answer, with the same type as its question.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "DecisionsAnswer")]
pub enum Answer {
    Oul {
        /// The probability of yes.
        oul: f64,
    },
    Noul {
        /// The probability of yes.
        noul: f64,
    },
    Choice {
        /// The most likely option.
        choice: String,
        /// The probability of the most likely option.
        confidence: f64,
        /// The probability of each option. They add up to 1.
        #[serde(serialize_with = "in_order")]
        #[schemars(with = "BTreeMap<String, f64>")]
        probabilities: Vec<(String, f64)>,
    },
    Score {
        /// The expected level, counted from 0.
        score: f64,
        /// The probability of the most likely level.
        confidence: f64,
        /// The probability of each level. They add up to 1.
        #[serde(serialize_with = "in_order")]
        #[schemars(with = "BTreeMap<String, f64>")]
        probabilities: Vec<(String, f64)>,
        /// The description of each level.
        #[serde(serialize_with = "in_order")]
        #[schemars(with = "BTreeMap<String, String>")]
        legend: Vec<(String, String)>,
    },
}

/// Serializes pairs as an object that keeps their order.
fn in_order<S: Serializer, T: Serialize>(
    pairs: &[(String, T)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// Tokens used by the answers, and their cost.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "DecisionsUsage")]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// The cost in US dollars. 0 if the model has no price.
    pub cost: f64,
}
