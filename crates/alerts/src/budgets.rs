//! Budget notices: tracks the announced thresholds, so that each is announced once per period.
//!
//! This module is pure: its input is the budgets and their spending, and its output is the notices
//! to send. The service resends a notice until the receiver acknowledges it. A notice has no later
//! message.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use orrery_domain::money::Usd;
use orrery_domain::time::Timestamp;
use orrery_wire::service::Finding;

/// The shares of a budget, in percent, at which the service sends a notice.
pub const THRESHOLDS: [u8; 3] = [50, 80, 100];
/// Maximum number of budgets whose thresholds are announced.
const BUDGETS_MAX: usize = 10_000;

/// A budget and the amount spent in its current period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// The ID of the key or the organization.
    pub id: String,
    /// The key or the organization in words, such as `the organization acme`.
    pub about: String,
    pub budget: Usd,
    pub spent: Usd,
    /// Start of the current period.
    pub period: Timestamp,
    /// The command that changes the budget.
    pub fix: String,
}

impl Budget {
    /// Returns the highest threshold that spending has reached, or 0 if it has reached none.
    fn reached(&self) -> u8 {
        let percent = |threshold: u8| {
            i128::from(self.spent.micros()) * 100
                >= i128::from(self.budget.micros()) * i128::from(threshold)
        };
        let is_used = self.spent > Usd::ZERO;
        let mut from_highest = THRESHOLDS.into_iter().rev();
        from_highest.find(|threshold| is_used && percent(*threshold)).unwrap_or(0)
    }

    fn notice(&self, threshold: u8) -> Finding {
        let Self { about, budget, spent, fix, .. } = self;
        let detail =
            format!("{threshold} % of the budget of {about} is spent: {spent} of {budget} USD");
        let finding = match threshold {
            100 => Finding::fault("budget", detail),
            _ => Finding::warning("budget", detail),
        };
        finding.about(about.clone()).mended_by(fix.clone())
    }
}

/// The last announcement about a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Told {
    period: Timestamp,
    budget: Usd,
    threshold: u8,
}

/// The last announcement about each budget, by the ID of the budget.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Announced(BTreeMap<String, Told>);

impl Announced {
    /// Returns at most `most` notices of thresholds that spending has reached since the last call.
    /// If spending has passed several thresholds of a budget, only the highest is announced. If the
    /// amount of a budget changes, its thresholds are announced again.
    pub(super) fn observe(&mut self, budgets: &[Budget], most: usize) -> Vec<Finding> {
        let mut notices = Vec::new();
        let before = std::mem::take(&mut self.0);
        for budget in budgets.iter().take(BUDGETS_MAX) {
            let (period, limit) = (budget.period, budget.budget);
            let told = before.get(&budget.id);
            let told = told.filter(|told| told.period == period && told.budget == limit);
            let mut threshold = told.map_or(0, |told| told.threshold);
            let reached = budget.reached();
            if reached > threshold && notices.len() < most {
                notices.push(budget.notice(reached));
                threshold = reached;
            }
            if threshold > 0 {
                let told = Told { period, budget: limit, threshold };
                self.0.insert(budget.id.clone(), told);
            }
        }
        notices
    }

    /// Returns whether nothing has been announced.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(spent: i64, period: i64) -> Budget {
        Budget {
            id: "k".to_owned(),
            about: "key ci".to_owned(),
            budget: Usd::from_micros(1_000_000),
            spent: Usd::from_micros(spent),
            period: Timestamp::from_micros(period),
            fix: "orrery key update ci --budget USD".to_owned(),
        }
    }

    fn said(announced: &mut Announced, budget: Budget) -> Vec<String> {
        announced.observe(&[budget], 10).into_iter().map(|finding| finding.detail).collect()
    }

    #[test]
    fn each_threshold_is_announced_once_in_each_period() {
        let mut announced = Announced::default();
        assert!(said(&mut announced, budget(499_999, 1)).is_empty());
        assert_eq!(
            said(&mut announced, budget(500_000, 1)),
            ["50 % of the budget of key ci is spent: 0.500000 of 1.000000 USD"]
        );
        // A restart.
        let text = serde_json::to_string(&announced).unwrap();
        announced = serde_json::from_str(&text).unwrap();
        assert!(said(&mut announced, budget(700_000, 1)).is_empty());
        assert_eq!(said(&mut announced, budget(1_200_000, 1)).len(), 1, "80 % is skipped");
        assert!(said(&mut announced, budget(1_300_000, 1)).is_empty());
        assert!(said(&mut announced, budget(0, 2)).is_empty());
        assert_eq!(said(&mut announced, budget(810_000, 2)).len(), 1, "a new period");
        let more = Budget { budget: Usd::from_micros(1_600_000), ..budget(810_000, 2) };
        assert_eq!(said(&mut announced, more).len(), 1, "a new budget");
        assert!(announced.observe(&[], 10).is_empty() && announced.is_empty());
    }

    #[test]
    fn threshold_is_announced_later_if_too_many_notices_wait() {
        let mut announced = Announced::default();
        assert!(announced.observe(&[budget(1_000_000, 1)], 0).is_empty());
        let [finding] = &announced.observe(&[budget(1_000_000, 1)], 1)[..] else { panic!() };
        assert_eq!(finding.about.as_deref(), Some("key ci"));
        let free = Budget { budget: Usd::ZERO, ..budget(0, 1) };
        assert!(said(&mut announced, free).is_empty(), "nothing is spent");
    }
}
