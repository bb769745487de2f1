//! One try at one piece of work: the record that models, HTTP steps and their retries share.

use serde::{Deserialize, Serialize};

use super::classify::ErrorClass;
use super::time::Timestamp;

/// The state of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Running,
    Success,
    Error,
    Cancelled,
}

impl Outcome {
    /// As a prediction's `attempts` spell it (`docs/spec/predictions.md`, "Record").
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

/// Why an attempt failed: a sentence for the person, a class for the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub class: ErrorClass,
    /// A sentence that names the model or step and what was said by whom. Holds no secret.
    pub message: String,
}

impl Failure {
    /// A failure of `class` with a sentence for the person.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into() }
    }
}

/// A try, numbered from 1 within its execution. The number is the fence: a report that carries an
/// older one changes nothing.
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
    /// The latest of its stamps.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        self.completed_at.map_or(self.started_at, |completed| completed.max(self.started_at))
    }

    /// An attempt that begins at `now`.
    #[must_use]
    pub const fn begin(number: u32, model: String, now: Timestamp) -> Self {
        let outcome = Outcome::Running;
        Self { number, model, outcome, failure: None, started_at: now, completed_at: None }
    }

    /// Writes how it ended. False when it is not the running attempt `number`: the report is late.
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
