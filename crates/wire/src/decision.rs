//! Decisions: typed questions about one state, and their answers as probabilities.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::pattern;

/// Maximum number of questions in one request.
pub const QUESTIONS_MAX: usize = 256;
/// Maximum number of options per question, each labeled with one letter.
pub const OPTIONS_MAX: usize = 26;
/// Maximum length of the name of a model, a question or an option, in characters.
pub const NAME_CHARS_MAX: usize = 256;

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
    #[schemars(length(max = NAME_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The state that the questions are about.
    pub state: State,
    /// The questions by name, up to 256. A name has up to 256 characters.
    #[serde(deserialize_with = "pairs")]
    #[schemars(with = "BTreeMap<String, Question>", transform = named)]
    #[schemars(extend("minProperties" = 1, "maxProperties" = QUESTIONS_MAX))]
    pub questions: Vec<(String, Question)>,
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
        /// The question, in words that the model understands.
        #[schemars(transform = pattern::filled)]
        instructions: String,
        /// The criteria for the answers yes and no.
        criteria: Option<Sides>,
    },
    /// The same as `oul`, but the answer has the type `noul`.
    Noul {
        /// The question, in words that the model understands.
        #[schemars(transform = pattern::filled)]
        instructions: String,
        /// The criteria for the answers yes and no.
        criteria: Option<Sides>,
    },
    /// A choice among 2 to 26 options, each with a description or null.
    Choice {
        /// The question, in words that the model understands.
        #[schemars(transform = pattern::filled)]
        instructions: String,
        /// The options by name, each with guidance or null.
        #[serde(deserialize_with = "pairs")]
        #[schemars(with = "BTreeMap<String, Option<String>>", transform = named)]
        #[schemars(extend("minProperties" = 2, "maxProperties" = OPTIONS_MAX))]
        criteria: Vec<(String, Option<String>)>,
    },
    /// A rating on a scale. Each level has a description, lowest level first.
    Score {
        /// The question, in words that the model understands.
        #[schemars(transform = pattern::filled)]
        instructions: String,
        /// The levels, lowest first.
        #[schemars(length(min = 2, max = OPTIONS_MAX), transform = pattern::each_filled)]
        criteria: Vec<String>,
    },
}

/// The criteria for the answers yes and no.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DecisionsSides")]
pub struct Sides {
    /// The criteria for the answer yes.
    pub r#true: Option<String>,
    /// The criteria for the answer no.
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
    /// Tokens used by the answers, and their cost.
    pub usage: Usage,
}

/// An answer, with the same type as its question.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "DecisionsAnswer")]
pub enum Answer {
    /// The answer to a yes-or-no question.
    Oul {
        /// The probability of yes.
        oul: f64,
    },
    /// The answer to a question of the type `noul`.
    Noul {
        /// The probability of yes.
        noul: f64,
    },
    /// The answer to a choice.
    Choice {
        /// The most likely option.
        choice: String,
        /// The probability of the most likely option.
        confidence: f64,
        /// The probability of each option. The probabilities add up to 1.
        #[serde(serialize_with = "in_order")]
        #[schemars(with = "BTreeMap<String, f64>")]
        probabilities: Vec<(String, f64)>,
    },
    /// The answer to a rating.
    Score {
        /// The expected level, counted from 0.
        score: f64,
        /// The probability of the most likely level.
        confidence: f64,
        /// The probability of each level. The probabilities add up to 1.
        #[serde(serialize_with = "in_order")]
        #[schemars(with = "BTreeMap<String, f64>")]
        probabilities: Vec<(String, f64)>,
        /// The description of each level.
        #[serde(serialize_with = "in_order")]
        #[schemars(with = "BTreeMap<String, String>")]
        legend: Vec<(String, String)>,
    },
}

/// Restricts the field names of an object.
fn named(schema: &mut Schema) {
    let mut names = json_schema!({"type": "string", "maxLength": NAME_CHARS_MAX});
    pattern::name(&mut names);
    schema.insert("propertyNames".to_owned(), names.to_value());
}

/// Deserializes an object as pairs, in its order.
fn pairs<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Vec<(String, T)>, D::Error> {
    let fields = Map::<String, Value>::deserialize(deserializer)?;
    let pair = |(name, value)| Ok((name, serde_json::from_value(value)?));
    fields
        .into_iter()
        .map(pair)
        .collect::<Result<_, _>>()
        .map_err(|error: serde_json::Error| serde::de::Error::custom(error))
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
    /// Tokens that the model read.
    pub input_tokens: u64,
    /// Tokens that the model wrote.
    pub output_tokens: u64,
    /// The cost in US dollars. 0 if the model has no price.
    pub cost: f64,
}
