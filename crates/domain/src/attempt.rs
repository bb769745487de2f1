//! Attempts: the record shared by models, HTTP steps and their retries.

use serde::{Deserialize, Serialize};

use super::classify::ErrorClass;
use super::time::Timestamp;

/// The state of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Running,
    Success,
    Error,
    Cancelled,
}

impl Outcome {
    /// Returns the value that is used in a prediction's `attempts` (`docs/spec/predictions.md`,
    /// "Record").
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "processing",
            Self::Success => "success",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Why an attempt failed: a message for people and a class for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub class: ErrorClass,
    /// A sentence that names the model or step and the reason. Contains no secrets.
    pub message: String,
}

impl Failure {
    /// Creates a failure of `class` with a message.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into() }
    }
}

/// An attempt, numbered from 1 within its execution. The number is a fencing token: a report with
/// an older number is ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub number: u32,
    /// The model's slug; empty for an HTTP request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
}

impl Attempt {
    /// Returns the latest timestamp of the attempt.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        self.completed_at.map_or(self.started_at, |completed| completed.max(self.started_at))
    }

    /// Creates an attempt that begins at `now`.
    #[must_use]
    pub const fn begin(number: u32, model: String, now: Timestamp) -> Self {
        let outcome = Outcome::Running;
        Self { number, model, outcome, failure: None, started_at: now, completed_at: None }
    }

    /// Records the end of the attempt. Returns false for a stale report, whose `number` is not the
    /// number of the running attempt.
    pub fn close(
        &mut self,
        number: u32,
        outcome: Outcome,
        failure: Option<Failure>,
        now: Timestamp,
    ) -> bool {
        if self.number != number || self.outcome != Outcome::Running {
            return false;
        }
        self.outcome = outcome;
        self.failure = failure;
        self.completed_at = Some(now);
        true
    }
}
