//! The request bodies of the administration API. Resources are identified by name, which makes
//! requests idempotent.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Time;
use super::chain::Entry;
use super::limits::LimitsChange;
use super::schedule::Common;

/// An organization to create or update.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedOrganization {
    /// Omit to keep the current limits.
    pub limits: Option<LimitsChange>,
}

/// A key to create.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedKey {
    /// Omit or set to null for a key that never expires.
    pub expires_at: Option<Time>,
}

/// A fallback chain to create or replace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedChain {
    /// The primary model. A chain's name is unique per primary model.
    pub model: String,
    pub entries: Vec<Entry>,
    /// Whether the chain is used. Defaults to true.
    pub enabled: Option<bool>,
}

/// A schedule of a workflow or a model to create or update. Omitted fields of an existing schedule
/// keep their value.
#[derive(Debug, JsonSchema)]
pub struct NamedSchedule {
    /// The workflow's ID or slug. Either this or `model` is required.
    pub workflow: Option<String>,
    /// The model's slug. Either this or `workflow` is required.
    pub model: Option<String>,
    /// A cron expression with 5 fields, or 6 with seconds first, or a nickname such as `@daily`.
    /// Required for a new schedule.
    #[schemars(length(max = 256))]
    pub cron: Option<String>,
    /// An IANA time zone name. Defaults to UTC.
    pub timezone: Option<String>,
    /// The workflow's inputs, which must match the version's `input_schema`. At most 48 KiB.
    pub inputs: Option<Map<String, Value>>,
    /// The workflow version to run. Omit or leave empty to run the version that is latest when the
    /// schedule fires.
    pub version_id: Option<String>,
    /// The model's version, as in a prediction.
    pub version: Option<String>,
    /// The model's input, which must match its request schema. At most 48 KiB.
    pub input: Option<Map<String, Value>>,
    /// The fallback chain to use for the model; an empty string for none.
    pub fallback_selector: Option<String>,
    #[schemars(flatten)]
    pub common: Common,
}

/// An amount to add to a balance.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopUp {
    /// The amount in US dollars: above 0, with up to six decimal places.
    pub amount_usd: f64,
}
