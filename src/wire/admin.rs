//! What the administration API reads: things by their names, so that the same request twice is one.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Time;
use super::chain::Entry;
use super::limits::LimitsChange;
use super::schedule::Common;

/// An organization that is to be there.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedOrganization {
    /// Absent: the limits stay.
    pub limits: Option<LimitsChange>,
}

/// A key that is to be there.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedKey {
    /// Absent or null: it does not expire.
    pub expires_at: Option<Time>,
}

/// A fallback chain that is to be there.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedChain {
    /// The primary model: with it, the name is unique.
    pub model: String,
    pub entries: Vec<Entry>,
    /// Only an enabled chain runs; true where it is absent.
    pub enabled: Option<bool>,
}

/// A schedule that is to be there, of a workflow or of a model. Absent fields of one that exists stay.
#[derive(Debug, JsonSchema)]
pub struct NamedSchedule {
    /// The id or the slug of a workflow; it or `model` is required.
    pub workflow: Option<String>,
    /// The model's slug.
    pub model: Option<String>,
    /// 5 or 6 fields (the first of 6 is the second), or a nickname such as `@daily`. A new schedule needs
    /// one.
    #[schemars(length(max = 256))]
    pub cron: Option<String>,
    /// The IANA name of a time zone; UTC where it is absent.
    pub timezone: Option<String>,
    /// Of a workflow: fits the version's `input_schema`; at most 48 KiB.
    pub inputs: Option<Map<String, Value>>,
    /// Of a workflow: the version to run; absent or empty, the latest when it fires.
    pub version_id: Option<String>,
    /// Of a model: as in a prediction.
    pub version: Option<String>,
    /// Of a model: fits the model's request schema; at most 48 KiB.
    pub input: Option<Map<String, Value>>,
    /// Of a model: a fallback chain; empty for none.
    pub fallback_selector: Option<String>,
    #[schemars(flatten)]
    pub common: Common,
}

/// An amount that is put into a balance.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopUp {
    /// US dollars, above 0, with up to six decimal places.
    pub amount_usd: f64,
}
