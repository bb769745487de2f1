//! The request bodies of the administration API. Resources are identified by name, which makes
//! requests idempotent.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::chain::Entry;
use super::key_policy::KeyPolicyChange;
use super::limits::LimitsChange;
use super::schedule::{AnyTarget, Common};
use super::{Time, pattern};
use orrery_domain::account::TOP_UP_DOLLARS_MAX;
use orrery_domain::chain::ENTRIES_MAX;
use orrery_domain::schedule::NAME_MAX;

/// An organization to create or update.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedOrganization {
    /// Omit to keep the current limits.
    pub limits: Option<LimitsChange>,
}

/// A key to create or replace. Omitted fields of an existing key become unrestricted.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct NamedKey {
    /// Omit or set to null for a key that never expires.
    pub expires_at: Option<Time>,
    #[serde(flatten)]
    pub policy: KeyPolicyChange,
}

/// A fallback chain to create or replace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedChain {
    /// The primary model. A chain's name is unique per primary model.
    pub model: String,
    /// The fallback models, in the order in which they are tried.
    #[schemars(length(min = 1, max = ENTRIES_MAX))]
    pub entries: Vec<Entry>,
    /// Whether the chain is used. Defaults to true.
    pub enabled: Option<bool>,
}

/// A schedule of a workflow or a model to create or update. Omitted fields of an existing schedule
/// keep their value.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, example = json!({"workflow": "nightly", "cron": "@daily"}))]
pub struct NamedSchedule {
    /// The workflow's ID or slug. Either this or `model` is required.
    #[schemars(length(max = NAME_MAX), transform = pattern::filled)]
    pub workflow: Option<String>,
    #[serde(flatten)]
    pub target: AnyTarget,
    #[serde(flatten)]
    pub common: Common,
}

/// An amount to add to a balance.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopUp {
    /// The amount in US dollars: above 0, with up to six decimal places.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = TOP_UP_DOLLARS_MAX))]
    pub amount_usd: f64,
}
