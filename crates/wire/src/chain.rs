//! Fallback chains, as the dashboard reads and writes them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Time, pattern};
use orrery_domain::chain::{self, ENTRIES_MAX};

/// A fallback chain: models that run in order if the primary model fails.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FallbackChain")]
pub struct Chain {
    /// The primary model.
    pub model: String,
    /// The name of the chain, unique for its primary model.
    pub name: String,
    /// Whether the chain is used.
    pub enabled: bool,
    /// The fallback models, in the order in which they are tried.
    pub entries: Vec<Entry>,
    /// When the chain was created.
    pub created_at: Time,
    /// When the chain was last changed.
    pub updated_at: Time,
}

/// A fallback model in a chain.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FallbackChainEntry")]
pub struct Entry {
    /// The slug of the fallback model.
    pub model: String,
    /// The input of the fallback model, in which `{{input.NAME}}` refers to the primary model's
    /// input. Omit to use the same input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_map: Option<Map<String, Value>>,
}

/// Fallback chains, sorted by model and name.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FallbackChains")]
pub struct Chains {
    /// The chains.
    pub chains: Vec<Chain>,
}

/// A fallback chain to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewChain {
    /// The slug of the primary model.
    pub model: String,
    /// The name of the chain: 1 to 50 characters of `a-z0-9-`.
    #[schemars(transform = pattern::chain_name)]
    pub name: String,
    /// The fallback models, in the order in which they are tried.
    #[schemars(length(min = 1, max = ENTRIES_MAX))]
    pub entries: Vec<Entry>,
}

/// Changes to the chain with this model and name. Omitted fields keep their value.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainChange {
    /// The slug of the primary model, which identifies the chain together with the name.
    pub model: String,
    /// The name of the chain.
    pub name: String,
    /// The fallback models, in the order in which they are tried.
    #[schemars(length(min = 1, max = ENTRIES_MAX))]
    pub entries: Option<Vec<Entry>>,
    /// Whether the chain is used.
    pub enabled: Option<bool>,
}

impl From<&chain::Chain> for Chain {
    fn from(chain: &chain::Chain) -> Self {
        let entry = |one: &chain::Entry| Entry {
            model: one.model.clone(),
            input_map: one.input_map.clone(),
        };
        Self {
            model: chain.model.clone(),
            name: chain.name.clone(),
            enabled: chain.enabled,
            entries: chain.entries.iter().map(entry).collect(),
            created_at: chain.created_at.into(),
            updated_at: chain.updated_at.into(),
        }
    }
}

impl From<Entry> for chain::Entry {
    fn from(Entry { model, input_map }: Entry) -> Self {
        Self { model, input_map }
    }
}
