//! A step of a workflow's execution, as it is stored: in a row of its own, written when something
//! about it has to outlive the process.
//!
//! Only `machine::workflow` changes one; nothing here decides anything.

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

/// Characters of most keys of steps and of their attempts.
const KEY_CHARS: usize = 64;

/// Which step of an execution: one of the plan, and within maps, for which of their items.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    pub step: StepIndex,
    /// The item's number in each `map` around it, outermost first.
    pub items: Vec<u32>,
}

/// The status of a step (`docs/spec/workflows.md`, "Step outputs"). The last four are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its turn has come; it waits for a place at its model.
    Queued,
    Running,
    Completed,
    Failed,
    Cancelled,
    /// In a branch that was not taken.
    Skipped,
}

/// What an HTTP step got, beside the body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpResponse {
    pub status_code: u16,
    /// Names in lower case.
    pub headers: Map<String, Value>,
}

/// Where an event came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventSource {
    /// A request with a key, or of a member.
    Api,
    /// The step's link.
    Link,
    /// Nobody sent it in time: the step has a default.
    Default,
}

impl EventSource {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Api, Self::Link, Self::Default];

    /// As answers and references spell it.
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
    /// What was given to it, with everything that it refers to put in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Tries of the step itself, then of what stands in for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Why the step itself failed, once something stands in for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_error: Option<String>,
    /// What it waits for: the end of a wait or of its time, the moment of the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    /// Whether a wait lasts longer than its `timeout_seconds`: it then fails when it is due.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut_short: bool,
    pub cost: Usd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Arc<HttpResponse>>,
    /// Where the event came from that a step waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventSource>,
    /// The prediction that a model step was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<ExecutionId>,
    /// The execution that the last attempt of a step of type workflow started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<ExecutionId>,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
}

impl Status {
    /// Whether nothing can change any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }

    /// As answers and references spell it.
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
    /// A step that is in no map.
    #[must_use]
    pub const fn of(step: StepIndex) -> Self {
        Self { step, items: Vec::new() }
    }

    /// Names a step of an execution permanently: `<execution>:<step>`, with the items of the maps around it.
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

    /// Names an attempt at a step permanently, so that a receiver recognizes a repetition.
    #[must_use]
    pub fn attempt_key(&self, execution: ExecutionId, step_id: &str, attempt: u32) -> String {
        let mut key = self.key(execution, step_id);
        key.push(':');
        key.push_str(&attempt.to_string());
        key
    }
}

impl Step {
    /// A step whose turn has come at `now`.
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
            child: None,
            started_at: now,
            completed_at: None,
        }
    }

    /// The latest of its stamps.
    #[must_use]
    pub fn latest(&self) -> Timestamp {
        let last = self.attempts.last().map(Attempt::latest);
        [self.completed_at, last].into_iter().flatten().fold(self.started_at, Timestamp::max)
    }

    /// The attempt that is running, if one is.
    #[must_use]
    pub fn running(&self) -> Option<&Attempt> {
        self.attempts.last().filter(|attempt| attempt.outcome == Outcome::Running)
    }

    /// Fails a step that has begun and is not to be run again; false when it has ended already.
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
        // It is written as no prediction of its own.
        (self.due, self.prediction) = (None, None);
        self.completed_at = Some(now);
        true
    }
}
