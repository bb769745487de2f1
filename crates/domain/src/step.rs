//! A stored step of a workflow execution. Each step has its own row, which is written whenever a
//! change must survive the process.
//!
//! Only `machine::workflow` changes steps; this module makes no decisions.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::attempt::{Attempt, Failure, Outcome};
use super::definition::StepIndex;
use super::execution::Fault;
use super::ids::ExecutionId;
use super::money::Usd;
use super::payload::Payload;
use super::time::Timestamp;

/// Initial capacity that suffices for most keys of steps and attempts.
const KEY_CHARS: usize = 64;

/// A step instance: a step of the plan, and the items of the enclosing maps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    pub step: StepIndex,
    /// The item's index in each enclosing `map`, outermost first.
    pub items: Vec<u32>,
}

/// The status of a step (`docs/spec/workflows.md`, "Step outputs"). The last four are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Ready to run; waiting for a model permit.
    Queued,
    Running,
    Completed,
    Failed,
    Cancelled,
    /// In a branch that was not chosen.
    Skipped,
}

/// The response of an HTTP step, without the body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpResponse {
    pub status_code: u16,
    /// The headers, with names in lower case.
    pub headers: Map<String, Value>,
}

/// The source of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventSource {
    /// An API request by a key or a member.
    Api,
    /// The step's link.
    Link,
    /// The wait timed out, and the step's default was used.
    Default,
}

impl EventSource {
    /// All sources.
    pub const ALL: [Self; 3] = [Self::Api, Self::Link, Self::Default];

    /// Returns the name that is used in responses and references.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Link => "link",
            Self::Default => "default",
        }
    }
}

/// A step that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub status: Status,
    /// The resolved input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// The attempts of the step itself, followed by the attempts of its fallback.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Why the step itself failed. Set once the fallback runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_error: Option<String>,
    /// The step's due time: the end of a wait, the deadline, or the start of the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    /// Whether a wait is longer than the step's `timeout_seconds`; if so, the step fails at its due
    /// time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut_short: bool,
    pub cost: Usd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Arc<HttpResponse>>,
    /// Whether the output comes from the result cache of a model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cached: bool,
    /// The source of the event that the step waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventSource>,
    /// The prediction of a model step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<ExecutionId>,
    /// The child that the last attempt of a workflow step started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<ExecutionId>,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
}

impl Status {
    /// Returns whether the status is final.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }

    /// Returns the name that is used in responses and references.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
        }
    }
}

impl Instance {
    /// Creates the instance of a step outside of maps.
    #[must_use]
    pub const fn of(step: StepIndex) -> Self {
        Self { step, items: Vec::new() }
    }

    /// Returns the id of a step of an execution: `<execution>:<step>`, followed by the items of the
    /// enclosing maps. Stable across restarts.
    #[must_use]
    pub fn key(&self, execution: ExecutionId, step_id: &str) -> String {
        let mut key = String::with_capacity(KEY_CHARS);
        key.push_str(&execution.to_string());
        key.push(':');
        key.push_str(step_id);
        for item in &self.items {
            key.push('.');
            key.push_str(&item.to_string());
        }
        key
    }

    /// Returns the id of an attempt of a step. The id is stable across restarts, so that a receiver
    /// recognizes a repeated attempt.
    #[must_use]
    pub fn attempt_key(&self, execution: ExecutionId, step_id: &str, attempt: u32) -> String {
        let mut key = self.key(execution, step_id);
        key.push(':');
        key.push_str(&attempt.to_string());
        key
    }
}

impl Step {
    /// Creates a step that begins at `now`.
    #[must_use]
    pub const fn new(status: Status, now: Timestamp) -> Self {
        Self {
            status,
            input: None,
            output: None,
            fault: None,
            attempts: Vec::new(),
            primary_error: None,
            due: None,
            is_cut_short: false,
            cost: Usd::ZERO,
            logs: None,
            answer: None,
            event: None,
            prediction: None,
            is_cached: false,
            child: None,
            started_at: now,
            completed_at: None,
        }
    }

    /// Returns the latest timestamp of the step.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        let last = self.attempts.last().map(Attempt::latest);
        [self.completed_at, last].into_iter().flatten().fold(self.started_at, Timestamp::max)
    }

    /// Returns the running attempt, if any.
    #[must_use]
    pub fn running(&self) -> Option<&Attempt> {
        self.attempts.last().filter(|attempt| attempt.outcome == Outcome::Running)
    }

    /// Fails a step that has begun and must never run again. Returns false if the step has already
    /// ended.
    pub fn abandon(&mut self, fault: &Fault, now: Timestamp) -> bool {
        if self.status.is_final() {
            return false;
        }
        if let Some(last) = self.attempts.last_mut() {
            let failure = Failure::new(fault.class, fault.cause.clone());
            last.close(last.number, Outcome::Error, Some(failure), now);
        }
        self.status = Status::Failed;
        self.fault = Some(fault.clone());
        // No separate prediction is written for the step.
        (self.due, self.prediction) = (None, None);
        self.completed_at = Some(now);
        true
    }
}
