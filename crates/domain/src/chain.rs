//! Stored fallback chains: named lists of models that run in order when the primary model fails
//! (`docs/spec/predictions.md`, "Fallback chains").
//!
//! A prediction copies its chain when it is created; later changes affect only new predictions.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::OrganizationId;
use super::time::Timestamp;

/// Maximum length of a name, in characters.
pub const NAME_MAX: usize = 50;
/// Maximum number of models in a chain.
pub const ENTRIES_MAX: usize = 10;

/// A fallback chain of one organization for one primary model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    pub organization: OrganizationId,
    /// The primary model.
    pub model: String,
    pub name: String,
    /// Disabled chains are not used.
    pub enabled: bool,
    /// The fallback models, at least one, in the order in which they are tried.
    pub entries: Vec<Entry>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A model of a prediction's copy of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The model's slug.
    pub model: String,
    /// The template of the model's input, in which `{{input.NAME}}` refers to the execution's
    /// input. `None` means that the input is passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_map: Option<Map<String, Value>>,
}

impl Candidate {
    /// Creates the chain entry of a model that receives the input unchanged.
    #[must_use]
    pub fn new(model: impl Into<String>) -> Self {
        Self { model: model.into(), input_map: None }
    }
}

/// A fallback model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub model: String,
    /// The template of the fallback model's input, in which `{{input.NAME}}` refers to the
    /// prediction's input. `None` means that the input is passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_map: Option<Map<String, Value>>,
}

/// Returns whether `name` is a valid chain name: 1 to 50 characters of `a-z0-9-`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}
