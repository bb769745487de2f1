//! Bulk jobs: one act on every execution that a filter of the history names, newest first.

use serde::{Deserialize, Serialize};

use super::classify::ErrorClass;
use super::execution::{Kind, Source, Status as ExecutionStatus};
use super::ids::{ExecutionId, JobId, KeyId, OrganizationId, WorkflowId};
use super::time::Timestamp;

/// The most executions that one job acts on.
pub const LIMIT_MAX: u64 = 100_000;

/// What a job does with each execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Cancel,
    Redrive,
    Pause,
    Resume,
    /// Of those that have ended.
    Delete,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Cancel, Self::Redrive, Self::Pause, Self::Resume, Self::Delete];

    /// As requests and answers spell it.
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

/// How far a job has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Running,
    Completed,
    Cancelled,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Running, Self::Completed, Self::Cancelled];

    /// As answers spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Which executions, as a filter of the history says it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// One of these; `None`: any.
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

/// A job, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub organization: OrganizationId,
    /// The API key that asked for it.
    pub key: KeyId,
    pub source: Source,
    /// Who asked for it, as people read it.
    pub by: String,
    pub action: Action,
    pub selection: Selection,
    /// The most executions that it acts on.
    pub limit: u64,
    pub status: Status,
    /// How many it acts on, once they are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    pub done: u64,
    pub failed: u64,
    /// The last execution that it has acted on: those behind it are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<ExecutionId>,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
}

impl Job {
    /// How many more it may act on.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.done.saturating_add(self.failed))
    }

    /// Notes an act.
    pub fn note(&mut self, execution: ExecutionId, has_succeeded: bool) {
        self.cursor = Some(execution);
        if has_succeeded {
            self.done = self.done.saturating_add(1);
        } else {
            self.failed = self.failed.saturating_add(1);
        }
    }
}
