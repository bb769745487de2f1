//! The restrictions of an API key: what it may do, with which models, how often and for how much.
//!
//! A key without restrictions has the default policy, which allows everything except the scope
//! `worker`.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Months};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::money::Usd;
use super::time::{self, SPAN_MAX, Timestamp};

/// Maximum number of model patterns of a key.
pub const MODELS_MAX: usize = 100;
/// Maximum length of a model pattern, in characters.
pub const MODEL_PATTERN_MAX: usize = 256;
/// Maximum number of tags of a key.
pub const TAGS_MAX: usize = 20;
/// Maximum length of a tag, in characters.
pub const TAG_MAX: usize = 64;
/// Maximum size of a key's metadata as JSON, in bytes.
pub const METADATA_MAX: usize = 4096;
/// Maximum requests per minute and maximum parallel requests.
pub const RATE_MAX: u32 = 1_000_000;
/// Maximum tokens per minute.
pub const TOKENS_MAX: u64 = 1_000_000_000_000;
/// Maximum budget: a billion dollars.
pub const BUDGET_DOLLARS_MAX: i64 = 1_000_000_000;
/// The text of a budget period of one calendar month.
const MONTH: &str = "1mo";

/// A group of operations that a key may be restricted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scope {
    /// Predictions.
    #[serde(rename = "predict")]
    Predict,
    /// Chat, responses, messages, embeddings, batches, decisions and the agent.
    #[serde(rename = "chat")]
    Chat,
    /// Starting, cancelling and resuming workflows, and their deliveries.
    #[serde(rename = "workflow.run")]
    WorkflowRun,
    /// Workflow definitions, schedules and webhook endpoints.
    #[serde(rename = "workflow.write")]
    WorkflowWrite,
    /// Uploading and deleting files.
    #[serde(rename = "files")]
    Files,
    /// Reading everything that the organization has, except secrets.
    #[serde(rename = "read")]
    Read,
    /// Names of secrets, and storing and deleting them.
    #[serde(rename = "secrets")]
    Secrets,
    /// Fetching and answering work of a model, and nothing else. Never implied.
    #[serde(rename = "worker")]
    Worker,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 8] = [
        Self::Predict,
        Self::Chat,
        Self::WorkflowRun,
        Self::WorkflowWrite,
        Self::Files,
        Self::Read,
        Self::Secrets,
        Self::Worker,
    ];

    /// Returns the scope's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Predict => "predict",
            Self::Chat => "chat",
            Self::WorkflowRun => "workflow.run",
            Self::WorkflowWrite => "workflow.write",
            Self::Files => "files",
            Self::Read => "read",
            Self::Secrets => "secrets",
            Self::Worker => "worker",
        }
    }

    /// Returns the scope with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }

    /// Returns whether requests with this scope count toward the key's rates.
    #[must_use]
    pub const fn is_metered(self) -> bool {
        matches!(self, Self::Predict | Self::Chat | Self::WorkflowRun)
    }
}

/// How often a key's budget starts again. Periods count from the key's creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetPeriod {
    Span(Duration),
    /// A calendar month: from the key's day and time in one month to the same in the next, or to
    /// the last day of a shorter month.
    Month,
}

impl BudgetPeriod {
    /// Parses a period: a duration such as `30d`, of at least a minute, or `1mo`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == MONTH {
            return Some(Self::Month);
        }
        let span = time::span(text)?;
        let range = Duration::from_secs(60)..=SPAN_MAX;
        range.contains(&span).then_some(Self::Span(span))
    }

    /// Returns the text that [`BudgetPeriod::parse`] reads.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Span(span) => time::span_text(span),
            Self::Month => MONTH.to_owned(),
        }
    }

    /// Returns the start and the end of the period that contains `now`, for a key that was created
    /// at `created`. A time before the creation belongs to the first period.
    #[must_use]
    pub fn around(self, created: Timestamp, now: Timestamp) -> (Timestamp, Timestamp) {
        match self {
            Self::Span(span) => {
                let length = i64::try_from(span.as_micros()).unwrap_or(i64::MAX).max(1);
                let passed = now.micros().saturating_sub(created.micros()).max(0) / length;
                let start = created.micros().saturating_add(passed.saturating_mul(length));
                (
                    Timestamp::from_micros(start),
                    Timestamp::from_micros(start.saturating_add(length)),
                )
            }
            Self::Month => months_around(created, now),
        }
    }
}

/// Returns the month from `created` that contains `now`.
fn months_around(created: Timestamp, now: Timestamp) -> (Timestamp, Timestamp) {
    let passed = now.micros().saturating_sub(created.micros()).max(0) / SHORTEST_MONTH;
    // No month is shorter than 28 days, so the right one is at or before this one.
    let mut month = u32::try_from(passed).unwrap_or(u32::MAX);
    while month > 0 && after_months(created, month) > now {
        month -= 1;
    }
    (after_months(created, month), after_months(created, month.saturating_add(1)))
}

/// The length of the shortest month, in microseconds.
const SHORTEST_MONTH: i64 = 28 * 86_400 * 1_000_000;

/// Returns the same day and time some months later, or the last day of a shorter month.
fn after_months(from: Timestamp, months: u32) -> Timestamp {
    let moment = DateTime::from_timestamp_micros(from.micros());
    let later = moment.and_then(|moment| moment.checked_add_months(Months::new(months)));
    Timestamp::from_micros(later.map_or(i64::MAX, |later| later.timestamp_micros()))
}

impl Serialize for BudgetPeriod {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for BudgetPeriod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            let sentence = "expected a duration of at least a minute such as \"30d\", or \"1mo\"";
            serde::de::Error::custom(format!("{sentence}, not {text:?}"))
        })
    }
}

/// What a key may do. Absent fields restrict nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyPolicy {
    /// Model slugs and IDs, with `*` for any text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scopes: Option<BTreeSet<Scope>>,
    /// Maximum charges in a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_budget: Option<Usd>,
    /// The period of the budget; without one, the budget is for the key's lifetime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_duration: Option<BudgetPeriod>,
    /// Maximum metered requests per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpm_limit: Option<u32>,
    /// Maximum tokens of prompts and answers per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm_limit: Option<u64>,
    /// Maximum metered requests in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel_requests: Option<u32>,
    /// The operator's own data about the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Whether all requests with the key are refused.
    #[serde(skip_serializing_if = "is_false")]
    pub blocked: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl KeyPolicy {
    /// Returns whether the key has no policy.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the key may do what needs this scope.
    #[must_use]
    pub fn may(&self, scope: Scope) -> bool {
        match &self.scopes {
            None => scope != Scope::Worker,
            Some(scopes) if scopes.contains(&Scope::Worker) => scope == Scope::Worker,
            Some(scopes) => scopes.contains(&scope),
        }
    }

    /// Returns whether the key may use the model with this slug or ID.
    #[must_use]
    pub fn may_use(&self, model: &str) -> bool {
        let patterns = self.models.as_deref();
        patterns.is_none_or(|patterns| patterns.iter().any(|pattern| fits(pattern, model)))
    }

    /// Returns the start and the end of the budget's current period; no period starts at 0.
    #[must_use]
    pub fn period(&self, created: Timestamp, now: Timestamp) -> (Timestamp, Option<Timestamp>) {
        match self.budget_duration {
            None => (Timestamp::from_micros(0), None),
            Some(period) => {
                let (start, end) = period.around(created, now);
                (start, Some(end))
            }
        }
    }

    /// Checks the sizes and ranges of the fields.
    ///
    /// # Errors
    /// A sentence that names the field.
    pub fn check(&self) -> Result<(), String> {
        if let Some(models) = &self.models {
            let is_good = |model: &String| (1..=MODEL_PATTERN_MAX).contains(&model.chars().count());
            if models.is_empty() || models.len() > MODELS_MAX || !models.iter().all(is_good) {
                return Err(format!(
                    "models must have 1 to {MODELS_MAX} slugs or patterns of 1 to \
                     {MODEL_PATTERN_MAX} characters"
                ));
            }
        }
        if self.scopes.as_ref().is_some_and(BTreeSet::is_empty) {
            let all = Scope::ALL.map(Scope::as_str).join(", ");
            return Err(format!("scopes must not be empty; the scopes are {all}"));
        }
        let most = Usd::from_micros(BUDGET_DOLLARS_MAX * 1_000_000);
        if self.max_budget.is_some_and(|budget| budget < Usd::ZERO || budget > most) {
            return Err(format!("max_budget must be 0 to {BUDGET_DOLLARS_MAX} USD"));
        }
        let is_good = |limit: Option<u32>| limit.is_none_or(|one| (1..=RATE_MAX).contains(&one));
        for (name, limit) in
            [("rpm_limit", self.rpm_limit), ("max_parallel_requests", self.max_parallel_requests)]
        {
            if !is_good(limit) {
                return Err(format!("{name} must be 1 to {RATE_MAX}"));
            }
        }
        if self.tpm_limit.is_some_and(|limit| !(1..=TOKENS_MAX).contains(&limit)) {
            return Err(format!("tpm_limit must be 1 to {TOKENS_MAX}"));
        }
        let is_tag = |tag: &String| {
            (1..=TAG_MAX).contains(&tag.chars().count()) && !tag.chars().any(char::is_control)
        };
        if self.tags.len() > TAGS_MAX || !self.tags.iter().all(is_tag) {
            return Err(format!(
                "tags must be at most {TAGS_MAX} texts of 1 to {TAG_MAX} characters, without controls"
            ));
        }
        let bytes =
            self.metadata.as_ref().map_or(0, |map| Value::from(map.clone()).to_string().len());
        if bytes > METADATA_MAX {
            return Err(format!("metadata must be at most {METADATA_MAX} bytes of JSON"));
        }
        Ok(())
    }
}

/// Returns whether a text has the form of a pattern in which each `*` stands for any text. Takes
/// time linear in the pattern's length times the text's length at most.
#[must_use]
pub fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|start| text.strip_prefix(start)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn key_policy_scopes_imply_all_but_worker() {
        let open = KeyPolicy::default();
        for scope in Scope::ALL {
            assert_eq!(open.may(scope), scope != Scope::Worker, "{scope:?}");
            assert_eq!(Scope::named(scope.as_str()), Some(scope));
            let text = serde_json::to_string(&scope).unwrap();
            assert_eq!(text, format!("\"{}\"", scope.as_str()));
        }
        let worker = KeyPolicy { scopes: Some([Scope::Worker].into()), ..open.clone() };
        assert!(worker.may(Scope::Worker) && !worker.may(Scope::Read));
        let few = KeyPolicy { scopes: Some([Scope::Chat, Scope::Read].into()), ..open };
        assert!(few.may(Scope::Chat) && few.may(Scope::Read) && !few.may(Scope::Predict));
    }

    #[test]
    fn key_policy_patterns_match_whole_names() {
        for (pattern, text, is_match) in [
            ("llama", "llama", true),
            ("llama", "llama3", false),
            ("gpt-*", "gpt-4o", true),
            ("gpt-*", "my-gpt-4o", false),
            ("*", "", true),
            ("*-mini", "gpt-mini", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "abc", true),
            ("a*b*b", "ab", false),
            ("", "", true),
            ("", "x", false),
            ("ab*ba", "aba", false),
            ("org/*/v1", "org/x/y/v1", true),
        ] {
            assert_eq!(fits(pattern, text), is_match, "{pattern} {text}");
        }
    }

    #[test]
    fn budget_periods_count_from_the_creation_of_the_key() {
        let created = at("2026-01-31T12:00:00Z");
        let month = |now| BudgetPeriod::Month.around(created, at(now));
        let expected = |start, end| (at(start), at(end));
        assert_eq!(
            month("2026-02-28T11:59:59Z"),
            expected("2026-01-31T12:00:00Z", "2026-02-28T12:00:00Z")
        );
        assert_eq!(
            month("2026-03-31T11:00:00Z"),
            expected("2026-02-28T12:00:00Z", "2026-03-31T12:00:00Z")
        );
        assert_eq!(
            month("2025-01-01T00:00:00Z"),
            expected("2026-01-31T12:00:00Z", "2026-02-28T12:00:00Z")
        );
        let day = BudgetPeriod::parse("1d").unwrap();
        assert_eq!(
            day.around(created, at("2026-02-02T11:00:00Z")),
            expected("2026-02-01T12:00:00Z", "2026-02-02T12:00:00Z")
        );
        for (text, is_good) in [("1mo", true), ("30d", true), ("59s", false), ("", false)] {
            let period = BudgetPeriod::parse(text);
            assert_eq!(period.is_some(), is_good, "{text}");
            if let Some(period) = period {
                assert_eq!(BudgetPeriod::parse(&period.text()), Some(period), "{text}");
            }
        }
    }

    #[test]
    fn key_policy_without_fields_is_stored_as_nothing() {
        assert_eq!(serde_json::to_string(&KeyPolicy::default()).unwrap(), "{}");
        let policy: KeyPolicy = serde_json::from_str(
            r#"{"models":["a*"],"scopes":["chat"],"max_budget":1000000,"budget_duration":"30d"}"#,
        )
        .unwrap();
        assert!(policy.check().is_ok() && policy.may_use("abc") && !policy.may_use("b"));
        for (wrong, named) in [
            (r#"{"models":[]}"#, "models"),
            (r#"{"scopes":[]}"#, "scopes"),
            (r#"{"max_budget":-1}"#, "max_budget"),
            (r#"{"rpm_limit":0}"#, "rpm_limit"),
            (r#"{"tpm_limit":0}"#, "tpm_limit"),
            (r#"{"max_parallel_requests":0}"#, "max_parallel_requests"),
            (r#"{"tags":[""]}"#, "tags"),
        ] {
            let policy: KeyPolicy = serde_json::from_str(wrong).unwrap();
            assert!(policy.check().unwrap_err().contains(named), "{wrong}");
        }
    }
}
