//! What an API key may do: the fields of requests and of answers.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::request::Mismatch;
use super::{Time, pattern};
use orrery_domain::account::ApiKey;
use orrery_domain::ids::KeyId;
use orrery_domain::key_policy::{
    self, BUDGET_DOLLARS_MAX, BudgetPeriod, MODEL_PATTERN_MAX, MODELS_MAX, RATE_MAX, Scope,
    TAG_MAX, TAGS_MAX, TOKENS_MAX,
};
use orrery_domain::money::Usd;
use orrery_domain::time::Timestamp;

/// Restrictions of an API key. Omitted fields keep their value, or restrict nothing if the key is
/// new; null removes a restriction.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct KeyPolicyChange {
    /// The slugs and IDs of the models that the key may use; `*` stands for any text.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(
        with = "Option<Vec<String>>",
        length(min = 1, max = MODELS_MAX),
        inner(length(max = MODEL_PATTERN_MAX)),
        transform = pattern::each_name
    )]
    pub models: Option<Option<Vec<String>>>,
    /// What the key may do. Without scopes, a key may do everything except work as a worker.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<BTreeSet<Scope>>", length(min = 1))]
    pub scopes: Option<Option<BTreeSet<Scope>>>,
    /// The maximum charges in a period, in US dollars.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<f64>", range(min = 0, max = BUDGET_DOLLARS_MAX))]
    pub max_budget: Option<Option<f64>>,
    /// The period of the budget, such as `30d` or `1mo`, counted from the creation of the key.
    /// Without a period, the budget is for the lifetime of the key.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<String>", transform = pattern::budget_period)]
    pub budget_duration: Option<Option<String>>,
    /// The maximum number of requests per minute that start work.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<NonZeroU32>", range(max = RATE_MAX))]
    pub rpm_limit: Option<Option<NonZeroU32>>,
    /// The maximum number of tokens of prompts and answers per minute.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<NonZeroU64>", range(max = TOKENS_MAX))]
    pub tpm_limit: Option<Option<NonZeroU64>>,
    /// The maximum number of requests in flight that start work.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<NonZeroU32>", range(max = RATE_MAX))]
    pub max_parallel_requests: Option<Option<NonZeroU32>>,
    /// Data of the operator about the key, of at most 4096 bytes.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<Map<String, Value>>")]
    pub metadata: Option<Option<Map<String, Value>>>,
    /// Tags for grouping keys.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(
        with = "Option<Vec<String>>",
        length(max = TAGS_MAX),
        inner(length(max = TAG_MAX)),
        transform = pattern::each_name
    )]
    pub tags: Option<Option<Vec<String>>>,
    /// Whether all requests with the key are refused.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<bool>")]
    pub blocked: Option<Option<bool>>,
}

impl KeyPolicyChange {
    /// Returns the policy with these changes applied.
    ///
    /// # Errors
    /// [`Mismatch`] for an amount or a period that cannot be read.
    pub fn apply(self, mut held: key_policy::KeyPolicy) -> Result<key_policy::KeyPolicy, Mismatch> {
        if let Some(models) = self.models {
            held.models = models;
        }
        if let Some(scopes) = self.scopes {
            held.scopes = scopes;
        }
        if let Some(budget) = self.max_budget {
            let amount = |dollars| {
                let sentence = "must be an amount in US dollars with at most six decimal places";
                Usd::from_dollars(dollars).ok_or_else(|| Mismatch::field("max_budget", sentence))
            };
            held.max_budget = budget.map(amount).transpose()?;
        }
        if let Some(period) = self.budget_duration {
            let parse = |text: String| {
                let sentence = pattern::BUDGET_PERIOD.sentence;
                BudgetPeriod::parse(&text)
                    .ok_or_else(|| Mismatch::field("budget_duration", sentence))
            };
            held.budget_duration = period.map(parse).transpose()?;
        }
        if let Some(limit) = self.rpm_limit {
            held.rpm_limit = limit.map(NonZeroU32::get);
        }
        if let Some(limit) = self.tpm_limit {
            held.tpm_limit = limit.map(NonZeroU64::get);
        }
        if let Some(limit) = self.max_parallel_requests {
            held.max_parallel_requests = limit.map(NonZeroU32::get);
        }
        if let Some(metadata) = self.metadata {
            held.metadata = metadata;
        }
        if let Some(tags) = self.tags {
            held.tags = tags.unwrap_or_default();
        }
        if let Some(blocked) = self.blocked {
            held.blocked = blocked.unwrap_or_default();
        }
        Ok(held)
    }
}

/// What an API key may do, and what it has spent.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct KeyPolicy {
    /// The slugs and IDs of the models that the key may use. Null for all models.
    pub models: Option<Vec<String>>,
    /// What the key may do. Null for everything except work as a worker.
    pub scopes: Option<BTreeSet<Scope>>,
    /// The charges in the current period of the budget, in US dollars; without a period, all
    /// charges of the key.
    pub spend: f64,
    /// The maximum charges in a period, in US dollars. Null for no maximum.
    pub max_budget: Option<f64>,
    /// The period of the budget. Null for the lifetime of the key.
    pub budget_duration: Option<String>,
    /// When the next period of the budget begins. Null without a period.
    pub budget_reset_at: Option<Time>,
    /// The maximum number of requests per minute. Null for no maximum.
    pub rpm_limit: Option<u32>,
    /// The maximum number of tokens per minute. Null for no maximum.
    pub tpm_limit: Option<u64>,
    /// The maximum number of requests in flight. Null for no maximum.
    pub max_parallel_requests: Option<u32>,
    /// Tags for grouping keys.
    pub tags: Vec<String>,
    /// Data of the operator about the key. Null if there is none.
    pub metadata: Option<Map<String, Value>>,
    /// Whether all requests with the key are refused.
    pub blocked: bool,
}

impl KeyPolicy {
    /// Returns the policy of a key that has spent `spend` in the current period.
    #[must_use]
    pub fn of(key: &ApiKey, spend: Usd, now: Timestamp) -> Self {
        let policy = key.policy.clone();
        let (_, end) = policy.period(key.created_at, now);
        Self {
            models: policy.models,
            scopes: policy.scopes,
            spend: spend.dollars(),
            max_budget: policy.max_budget.map(Usd::dollars),
            budget_duration: policy.budget_duration.map(BudgetPeriod::text),
            budget_reset_at: end.map(Time::from),
            rpm_limit: policy.rpm_limit,
            tpm_limit: policy.tpm_limit,
            max_parallel_requests: policy.max_parallel_requests,
            tags: policy.tags,
            metadata: policy.metadata,
            blocked: policy.blocked,
        }
    }
}

/// The API key of a request.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeyInfo {
    /// The ID of the key.
    pub key_id: KeyId,
    /// The name of the key.
    pub name: String,
    /// When the key expires. Null if the key never expires.
    pub expires_at: Option<Time>,
    #[serde(flatten)]
    pub policy: KeyPolicy,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn key_policy_change_keeps_omitted_fields_and_removes_null_fields() {
        let change = |value| serde_json::from_value::<KeyPolicyChange>(value).unwrap();
        let new = change(json!({
            "models": ["llama", "gpt-*"], "scopes": ["chat", "read"], "max_budget": 10.5,
            "budget_duration": "30d", "rpm_limit": 60, "tags": ["team=a"], "blocked": true,
        }));
        let held = new.apply(key_policy::KeyPolicy::default()).unwrap();
        assert_eq!(held.max_budget, Some(Usd::from_micros(10_500_000)));
        let kept = change(json!({})).apply(held.clone()).unwrap();
        assert_eq!(kept, held);
        let nulls = json!({"models": null, "rpm_limit": null, "tags": null, "blocked": null});
        let left = change(nulls).apply(held).unwrap();
        assert_eq!(
            (left.models, left.rpm_limit, left.tags.len(), left.blocked),
            (None, None, 0, false)
        );
        assert!(left.scopes.is_some() && left.budget_duration.is_some());
        let soon = change(json!({"budget_duration": "soon"}));
        assert!(soon.apply(key_policy::KeyPolicy::default()).is_err());
        assert!(
            serde_json::from_value::<KeyPolicyChange>(json!({"scopes": ["everything"]})).is_err()
        );
    }
}
