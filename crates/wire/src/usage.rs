//! Reports of usage.

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

/// What was used in one group. Only the fields by which the report is grouped are present.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "UsageGroup")]
pub struct Group {
    /// The day in UTC, such as `2026-11-30`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The calendar month in UTC, such as `2026-11`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub month: Option<String>,
    /// The ID of the key, which may be deleted. Null for the dashboard, which uses no key.
    #[serde(default, deserialize_with = "super::given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<KeyId>")]
    pub key_id: Option<Option<KeyId>>,
    /// The name of the key, or `dashboard`. Null if the name is no longer known.
    #[serde(default, deserialize_with = "super::given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub key: Option<Option<String>>,
    /// Who created the key: the email address of a member, or the name of the operator. Null if
    /// this is not known.
    #[serde(default, deserialize_with = "super::given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub member: Option<Option<String>>,
    /// A tag of the key. Null for keys without tags. A key with several tags is part of several
    /// groups.
    #[serde(default, deserialize_with = "super::given", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub tag: Option<Option<String>>,
    /// The model that answered. Further models of a month with very many of them are
    /// `(other models)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Ended calls of models, successful or not: predictions, chat calls, decisions, exchanges with
    /// the agent, lines of batches, and model steps of workflows.
    pub requests: u64,
    /// Tokens of prompts.
    pub input_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// The charges in US dollars.
    pub cost_usd: f64,
}
