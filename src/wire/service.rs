//! What every host says of itself; the figures of the service; the balance.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who answers.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Index<'a> {
    pub name: &'a str,
    pub version: &'a str,
    /// The host's role.
    pub role: &'a str,
    pub links: Links,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "IndexLinks")]
pub struct Links {
    pub health: String,
    pub ready: String,
    pub openapi: String,
}

/// The process answers.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Health<'a> {
    /// `healthy`
    pub status: &'a str,
    pub version: &'a str,
}

/// The service takes work.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Ready<'a> {
    /// `ready`
    pub status: &'a str,
    pub version: &'a str,
    /// Present while the work of a restored backup waits for `orrery resume`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// What an operator should do something about: a disk that is nearly full.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The figures of the service: counts only, nothing of any organization.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ServiceStatus")]
pub struct Status<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub ready: bool,
    pub uptime_seconds: u64,
    pub hosts: Vec<Host<'a>>,
    /// Models in the catalog.
    pub models: usize,
    pub executions: Executions,
    pub webhooks: Webhooks,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StatusOfHost")]
pub struct Host<'a> {
    pub role: &'a str,
    pub url: &'a str,
    pub healthy: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StatusOfExecutions")]
pub struct Executions {
    pub running: usize,
    pub queued: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StatusOfWebhooks")]
pub struct Webhooks {
    pub pending: usize,
}

/// The figures of the organization.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationStatus")]
pub struct OwnStatus {
    pub running: usize,
    /// Waiting for a place.
    pub queued: usize,
    /// Workflows in which a step waits for an event.
    pub waiting_for_person: usize,
    /// Waiting for a moment: for a timer, or for the next attempt.
    pub waiting_for_time: usize,
    /// Whether more than were looked at have not ended, so that more may wait and fewer be queued.
    pub waiting_is_capped: bool,
    /// Webhook deliveries that have not ended.
    pub webhooks_pending: u64,
}

/// What the organization has.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Balance {
    /// US dollars.
    pub balance_usd: f64,
}

/// How serious a finding is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Good,
    /// It works, and may surprise.
    Warning,
    Fault,
}

/// One thing that was found about the state of the service and its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    pub subject: String,
    pub verdict: Verdict,
    /// Whether somebody should do something about it: it is not `good`.
    pub concern: bool,
    pub detail: String,
    /// The command or the setting that mends it, for the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Finding {
    /// A finding with this verdict.
    #[must_use]
    pub fn new(subject: &str, verdict: Verdict, detail: impl Into<String>) -> Self {
        let concern = verdict != Verdict::Good;
        Self { subject: subject.to_owned(), verdict, concern, detail: detail.into(), mend: None }
    }

    /// Nothing is to be done.
    #[must_use]
    pub fn good(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Good, detail)
    }

    /// It works, and may surprise.
    #[must_use]
    pub fn warning(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Warning, detail)
    }

    /// Something does not work, or will not.
    #[must_use]
    pub fn fault(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Fault, detail)
    }

    /// With the command or the setting that mends it.
    #[must_use]
    pub fn mended_by(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }
}

/// What the operator's doctor reads.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// Concerns first.
    pub findings: Vec<Finding>,
    /// Absent if the report describes the store of a stopped service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<RunningService>,
}

/// How the service that answers was started.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RunningService {
    pub pid: u32,
    /// The configuration file; absent where the defaults apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    pub listening: Vec<Listening>,
}

/// A host of the running service.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Listening {
    pub host: String,
    pub url: String,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Findings {
    /// Concerns first.
    pub findings: Vec<Finding>,
}
