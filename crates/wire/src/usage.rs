//! Usage reports.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use orrery_domain::ids::KeyId;

/// The usage of an organization, by group.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "UsageReport")]
pub struct Report {
    /// The groups, sorted by their fields.
    pub data: Vec<Group>,
}

/// The usage of one group. A field such as `day` or `model` is present only if the report is
/// grouped by it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "UsageGroup")]
pub struct Group {
    /// The day in UTC, such as `2026-11-30`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The calendar month in UTC, such as `2026-11`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub month: Option<String>,
    /// The ID of the key, which may have been deleted. Null for work that was started in the
    /// dashboard.
    #[serde(default, deserialize_with = "super::given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<KeyId>")]
    pub key_id: Option<Option<KeyId>>,
    /// The name of the key, or `dashboard` for work that was started in the dashboard. Null if the
    /// name is unknown.
    #[serde(default, deserialize_with = "super::given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub key: Option<Option<String>>,
    /// The creator of the key: the email address of a member, or the name of the operator. Null if
    /// the creator is unknown.
    #[serde(default, deserialize_with = "super::given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub member: Option<Option<String>>,
    /// A tag of the key. Null for keys without tags. A key with several tags counts in several
    /// groups.
    #[serde(default, deserialize_with = "super::given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub tag: Option<Option<String>>,
    /// The model that answered. If a month has too many models, those beyond the limit are combined
    /// as `(other models)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Ended model calls, successful or not: predictions, chat calls, decisions, exchanges with the
    /// agent, lines of batches, and model steps of workflows.
    pub requests: u64,
    /// Tokens of prompts.
    pub input_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// The charges in US dollars.
    pub cost_usd: f64,
}
