//! Bulk jobs: one action on every execution that a history filter selects, newest first.

use serde::{Deserialize, Serialize};

use super::classify::ErrorClass;
use super::execution::{Kind, Source, Status as ExecutionStatus};
use super::ids::{ExecutionId, JobId, KeyId, OrganizationId, WorkflowId};
use super::time::Timestamp;

/// Maximum number of executions per job.
pub const LIMIT_MAX: u64 = 100_000;

/// The action of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Cancel,
    Redrive,
    Pause,
    Resume,
    /// Deletes ended executions.
    Delete,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 5] =
        [Self::Cancel, Self::Redrive, Self::Pause, Self::Resume, Self::Delete];

    /// Returns the name that is used in requests and responses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Redrive => "redrive",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Delete => "delete",
        }
    }
}

/// The status of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Running,
    Completed,
    Cancelled,
}

impl Status {
    /// All statuses.
    pub const ALL: [Self; 3] = [Self::Running, Self::Completed, Self::Cancelled];

    /// Returns the name that is used in responses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The selected executions, as a history filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Matches any of these statuses; `None` matches all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standings: Option<Vec<(Kind, ExecutionStatus)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ErrorClass>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<WorkflowId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ExecutionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
}

/// A stored job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub organization: OrganizationId,
    /// The API key of the request.
    pub key: KeyId,
    pub source: Source,
    /// The requester, as shown to people.
    pub by: String,
    pub action: Action,
    pub selection: Selection,
    /// Maximum number of executions that the job acts on.
    pub limit: u64,
    pub status: Status,
    /// Number of selected executions; `None` until they have been counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    pub done: u64,
    pub failed: u64,
    /// The execution that the job acted on last; the job continues with older executions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<ExecutionId>,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
}

impl Job {
    /// Returns the number of executions that the job may still act on.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.done.saturating_add(self.failed))
    }

    /// Records the result of acting on one execution.
    pub fn note(&mut self, execution: ExecutionId, has_succeeded: bool) {
        self.cursor = Some(execution);
        if has_succeeded {
            self.done = self.done.saturating_add(1);
        } else {
            self.failed = self.failed.saturating_add(1);
        }
    }
}
