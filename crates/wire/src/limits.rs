//! An organization's limits and their usage.

use std::num::{NonZeroU32, NonZeroU64};

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use orrery_domain::account;
use orrery_domain::key_policy::BUDGET_DOLLARS_MAX;
use orrery_domain::money::Usd;

/// A limit and its usage.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
pub struct Limit {
    /// The limit. Null if there is none.
    pub limit: Option<u64>,
    /// The current usage. Null if the usage is not counted.
    pub used: Option<u64>,
}

/// A budget and the amount spent.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
pub struct Budget {
    /// The budget in US dollars. Null if no budget is set.
    pub limit: Option<f64>,
    /// The charges of the current period in US dollars.
    pub used: f64,
}

/// An organization's limits and their usage.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
pub struct Limits {
    /// Requests per second, over all keys of the organization.
    pub requests_per_second: Limit,
    /// Running executions.
    pub running: Limit,
    /// Unfinished executions that are not running.
    pub queued: Limit,
    /// Total size of files in bytes.
    pub storage_bytes: Limit,
    /// The budget of the current calendar month (UTC) and the charges in it.
    #[serde(default)]
    pub monthly_budget_usd: Budget,
}

impl Limits {
    /// Returns the limits with their usage.
    #[must_use]
    pub fn of(
        limits: account::Limits,
        load: Option<(usize, usize)>,
        bytes: u64,
        spent: Usd,
    ) -> Self {
        let of = |limit: Option<u32>, used: Option<usize>| Limit {
            limit: limit.map(u64::from),
            used: used.map(|used| used as u64),
        };
        Self {
            requests_per_second: of(limits.requests_per_second, None),
            running: of(limits.running, load.map(|(running, _)| running)),
            queued: of(limits.queued, load.map(|(_, queued)| queued)),
            storage_bytes: Limit { limit: limits.storage_bytes, used: Some(bytes) },
            monthly_budget_usd: Budget {
                limit: limits.monthly_budget.map(Usd::dollars),
                used: spent.dollars(),
            },
        }
    }
}

/// Changes to limits. Omitted fields keep their value; null removes the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsChange {
    /// Requests per second, over all keys of the organization.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<NonZeroU32>")]
    pub requests_per_second: Option<Option<NonZeroU32>>,
    /// Running executions.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<NonZeroU32>")]
    pub running: Option<Option<NonZeroU32>>,
    /// Unfinished executions that are not running.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<NonZeroU32>")]
    pub queued: Option<Option<NonZeroU32>>,
    /// Total size of files in bytes.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<NonZeroU64>")]
    pub storage_bytes: Option<Option<NonZeroU64>>,
    /// Maximum charges in a calendar month (UTC), in US dollars.
    #[serde(default, deserialize_with = "given_amount")]
    #[schemars(with = "Option<f64>", range(min = 0, max = BUDGET_DOLLARS_MAX))]
    pub monthly_budget_usd: Option<Option<Usd>>,
}

/// Reads an amount in US dollars, and distinguishes a null field from an omitted one.
fn given_amount<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<Usd>>, D::Error> {
    let Some(dollars) = Option::<f64>::deserialize(deserializer)? else { return Ok(Some(None)) };
    let amount = Usd::from_dollars(dollars).filter(|amount| {
        (Usd::ZERO..=Usd::from_micros(BUDGET_DOLLARS_MAX * 1_000_000)).contains(amount)
    });
    let sentence = format!("expected an amount of 0 to {BUDGET_DOLLARS_MAX} US dollars");
    amount.map(|amount| Some(Some(amount))).ok_or_else(|| D::Error::custom(sentence))
}

impl LimitsChange {
    /// Returns the limits with these changes applied.
    #[must_use]
    pub fn apply(self, held: account::Limits) -> account::Limits {
        let of = |given: Option<Option<NonZeroU32>>, held: Option<u32>| {
            given.map_or(held, |given| given.map(NonZeroU32::get))
        };
        account::Limits {
            requests_per_second: of(self.requests_per_second, held.requests_per_second),
            running: of(self.running, held.running),
            queued: of(self.queued, held.queued),
            storage_bytes: self
                .storage_bytes
                .map_or(held.storage_bytes, |given| given.map(NonZeroU64::get)),
            monthly_budget: self.monthly_budget_usd.unwrap_or(held.monthly_budget),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_change_keeps_omitted_fields_and_removes_null_fields() {
        let held = account::Limits { running: Some(1), queued: Some(2), ..Default::default() };
        let change = |value| serde_json::from_value::<LimitsChange>(value);
        assert_eq!(change(json!({})).unwrap().apply(held), held);
        let changed = change(json!({"running": null, "storage_bytes": 7})).unwrap().apply(held);
        let wanted =
            account::Limits { queued: Some(2), storage_bytes: Some(7), ..Default::default() };
        assert_eq!(changed, wanted);
        let budget = change(json!({"monthly_budget_usd": 12.5})).unwrap().apply(held);
        assert_eq!(budget.monthly_budget, Some(Usd::from_micros(12_500_000)));
        let none = change(json!({"monthly_budget_usd": null})).unwrap().apply(budget);
        assert_eq!(none, held);
        for wrong in [
            json!({"running": 0}),
            json!({"running": "2"}),
            json!({"runing": 2}),
            json!({"monthly_budget_usd": -1}),
            json!({"monthly_budget_usd": 1e12}),
        ] {
            assert!(change(wrong).is_err());
        }
    }
}
