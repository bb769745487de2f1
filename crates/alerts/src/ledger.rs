//! The ledger: the open alerts, what the receiver has been told about each alert, and which message
//! is due.
//!
//! Pure: findings, outcomes and the time go in, the next message comes out.

use serde::{Deserialize, Serialize};

use super::SUBJECT;
use super::budgets::{Announced, Budget};
use orrery_domain::ids::AlertId;
use orrery_domain::time::Timestamp;
use orrery_runtime::new_id;
use orrery_wire::service::{Finding, Verdict};

/// Maximum number of open alerts.
pub(super) const ALERTS_MAX: usize = 100;
/// Maximum number of notices that the receiver has not acknowledged.
const NOTICES_MAX: usize = 1000;
/// Maximum length of each of an alert's texts, in bytes.
const TEXT_MAX: usize = 1000;
/// Number of consecutive checks without the finding after which the alert counts as mended.
const MISSED: u32 = 2;

/// The severity of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    Warning,
    Error,
}

/// What a message reports about an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    Raised,
    /// A warning has become an error.
    Worsened,
    Mended,
    /// A budget has reached a threshold. No other event follows for this alert.
    Noticed,
}

/// A message that the receiver has not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Due {
    pub(super) event: Event,
    /// When the event happened.
    pub(super) at: Timestamp,
}

/// An open alert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Alert {
    pub(super) id: AlertId,
    pub(super) subject: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) about: Option<String>,
    pub(super) severity: Severity,
    pub(super) detail: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
    pub(super) since: Timestamp,
    /// The worst severity that the receiver has acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    told: Option<Severity>,
    /// Whether the receiver may have received a message that it has not acknowledged.
    #[serde(default)]
    is_unsure: bool,
    /// Whether the receiver may already treat the alert as mended. In that case, the `Mended`
    /// message is resent until the receiver acknowledges it, even if the finding comes back.
    #[serde(default)]
    is_mend_unsure: bool,
    /// Number of consecutive checks without the finding.
    #[serde(default)]
    missed: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due: Option<Due>,
    /// Whether a message is being sent.
    #[serde(skip)]
    is_in_flight: bool,
}

/// The consecutive failures since the last acknowledged message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failures {
    pub(super) since: Timestamp,
    pub(super) count: u32,
    /// The reason of the last failure.
    pub(super) reason: String,
}

/// The outcome of sending a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Acknowledged,
    /// The receiver has not processed the message.
    Refused(String),
    /// The receiver may have processed the message.
    Unknown(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ledger {
    pub(super) alerts: Vec<Alert>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failures: Option<Failures>,
    /// Notices that the receiver has not acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notices: Vec<Alert>,
    #[serde(default, skip_serializing_if = "Announced::is_empty")]
    announced: Announced,
}

impl Ledger {
    /// Records the findings of a check. A finding that is missing counts as gone only after a
    /// complete check. Returns the number of findings that raised no alert because too many alerts
    /// are open.
    pub(super) fn observe(
        &mut self,
        findings: &[Finding],
        is_complete: bool,
        now: Timestamp,
    ) -> usize {
        let mut concerns: Vec<&Finding> =
            findings.iter().filter(|one| one.concern && one.subject != SUBJECT).collect();
        concerns.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
        let mut seen: Vec<AlertId> = Vec::new();
        let mut left_out = 0;
        for finding in concerns {
            let is_full = self.alerts.len() >= ALERTS_MAX;
            match self.alerts.iter_mut().find(|alert| alert.is_of(finding)) {
                // If several findings are about the same thing, the worst becomes the alert.
                Some(alert) if seen.contains(&alert.id) => {}
                Some(alert) => {
                    alert.see(finding, now);
                    seen.push(alert.id);
                }
                None if is_full => left_out += 1,
                None => {
                    let alert = Alert::new(finding, now);
                    seen.push(alert.id);
                    self.alerts.push(alert);
                }
            }
        }
        if is_complete {
            let missing = self.alerts.iter_mut().filter(|alert| !seen.contains(&alert.id));
            missing.for_each(|alert| alert.miss(now));
            self.alerts.retain(|alert| !alert.is_over());
        }
        left_out
    }

    /// Adds a notice for each budget that has reached a further threshold.
    pub(super) fn observe_budgets(&mut self, budgets: &[Budget], now: Timestamp) {
        let most = NOTICES_MAX.saturating_sub(self.notices.len());
        let due = Some(Due { event: Event::Noticed, at: now });
        let found = self.announced.observe(budgets, most);
        self.notices.extend(found.iter().map(|found| Alert { due, ..Alert::new(found, now) }));
    }

    /// Returns the message that has been due the longest, and marks it as in flight.
    pub(super) fn begin(&mut self) -> Option<(Alert, Due)> {
        let all = self.alerts.iter_mut().chain(&mut self.notices);
        let due = all.filter_map(|alert| Some((alert.due?, alert)));
        let (due, alert) = due.min_by_key(|(due, _)| due.at)?;
        alert.is_in_flight = true;
        Some((alert.clone(), due))
    }

    /// Records the outcome of a message that [`Ledger::begin`] returned.
    pub(super) fn end(&mut self, sent: &(Alert, Due), outcome: &Outcome, now: Timestamp) {
        let (sent, due) = sent;
        match outcome {
            Outcome::Acknowledged => self.failures = None,
            Outcome::Refused(reason) | Outcome::Unknown(reason) => self.fail(reason, now),
        }
        if due.event == Event::Noticed {
            let is_done = *outcome == Outcome::Acknowledged;
            self.notices.retain(|notice| !(is_done && notice.id == sent.id));
            return;
        }
        let Some(alert) = self.alerts.iter_mut().find(|alert| alert.id == sent.id) else { return };
        alert.is_in_flight = false;
        match outcome {
            Outcome::Acknowledged => alert.acknowledge(due.event, sent.severity, now),
            Outcome::Refused(_) => {}
            Outcome::Unknown(_) if due.event == Event::Mended => {
                alert.is_mend_unsure = true;
                alert.due = Some(*due);
            }
            Outcome::Unknown(_) => alert.is_unsure = true,
        }
        self.alerts.retain(|alert| !alert.is_over());
    }

    fn fail(&mut self, reason: &str, now: Timestamp) {
        let failures =
            self.failures.get_or_insert(Failures { since: now, count: 0, reason: String::new() });
        failures.count = failures.count.saturating_add(1);
        failures.reason = limited(reason);
    }
}

impl Alert {
    fn new(finding: &Finding, now: Timestamp) -> Self {
        Self {
            id: new_id(),
            subject: limited(&finding.subject),
            about: finding.about.as_deref().map(limited),
            severity: severity(finding),
            detail: limited(&finding.detail),
            fix: finding.mend.as_deref().map(limited),
            since: now,
            told: None,
            is_unsure: false,
            is_mend_unsure: false,
            missed: 0,
            due: Some(Due { event: Event::Raised, at: now }),
            is_in_flight: false,
        }
    }

    /// Returns whether a finding is about the same thing, regardless of the numbers in its text.
    fn is_of(&self, finding: &Finding) -> bool {
        self.subject == limited(&finding.subject)
            && self.about == finding.about.as_deref().map(limited)
    }

    fn see(&mut self, finding: &Finding, now: Timestamp) {
        self.missed = 0;
        self.severity = severity(finding);
        self.detail = limited(&finding.detail);
        self.fix = finding.mend.as_deref().map(limited);
        self.due = match (self.told, self.due) {
            (_, Some(due)) if due.event == Event::Mended && self.is_mend_unsure => Some(due),
            (None, Some(due)) if due.event == Event::Raised => Some(due),
            (None, _) => Some(Due { event: Event::Raised, at: now }),
            (Some(told), Some(due)) if due.event == Event::Worsened && self.severity > told => {
                Some(due)
            }
            (Some(told), _) if self.severity > told => {
                Some(Due { event: Event::Worsened, at: now })
            }
            (Some(_), _) => None,
        };
    }

    fn miss(&mut self, now: Timestamp) {
        self.missed = self.missed.saturating_add(1);
        if self.missed < MISSED {
            return;
        }
        let may_know = self.told.is_some() || self.is_unsure || self.is_in_flight;
        self.due = match self.due {
            Some(due) if due.event == Event::Mended => Some(due),
            _ if may_know => Some(Due { event: Event::Mended, at: now }),
            _ => None,
        };
    }

    fn acknowledge(&mut self, event: Event, severity: Severity, now: Timestamp) {
        let is_current = self.due.is_some_and(|due| due.event == event);
        match event {
            Event::Raised | Event::Worsened => {
                self.told = self.told.max(Some(severity));
                if is_current {
                    self.due = None;
                }
            }
            Event::Noticed => {}
            Event::Mended if is_current && self.missed >= MISSED => {
                self.told = None;
                self.due = None;
            }
            // The finding came back while the message was in flight, so it raises a new alert.
            Event::Mended => {
                self.id = new_id();
                self.since = now;
                self.told = None;
                self.due = Some(Due { event: Event::Raised, at: now });
            }
        }
        self.is_unsure = false;
        self.is_mend_unsure = false;
    }

    /// Returns whether the finding is gone, and the receiver either has acknowledged the `Mended`
    /// message or was never notified of the finding.
    const fn is_over(&self) -> bool {
        self.missed >= MISSED && self.due.is_none() && !self.is_in_flight
    }
}

const fn severity(finding: &Finding) -> Severity {
    match finding.verdict {
        Verdict::Good | Verdict::Warning => Severity::Warning,
        Verdict::Fault => Severity::Error,
    }
}

/// Returns the beginning of a text.
fn limited(text: &str) -> String {
    match text.get(..text.floor_char_boundary(TEXT_MAX)) {
        Some(start) if start.len() < text.len() => format!("{start}…"),
        Some(_) | None => text.to_owned(),
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
