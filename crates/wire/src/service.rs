//! The index, health and readiness of a host, service and organization status, the balance, and the
//! doctor's report.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Information about the host.
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

/// The process is running.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Health<'a> {
    /// `healthy`
    pub status: &'a str,
    pub version: &'a str,
}

/// The service accepts work.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Ready<'a> {
    /// `ready`
    pub status: &'a str,
    pub version: &'a str,
    /// Set while the work of a restored backup waits for `orrery resume`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Conditions that need the operator's attention, such as a nearly full disk.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The status of the service: only totals, with no data of any organization.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ServiceStatus")]
pub struct Status<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub ready: bool,
    pub uptime_seconds: u64,
    pub hosts: Vec<Host<'a>>,
    /// The number of models in the catalog.
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

/// The status of the organization.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationStatus")]
pub struct OwnStatus {
    pub running: usize,
    /// Executions waiting for a slot.
    pub queued: usize,
    /// Workflow executions in which a step waits for an event.
    pub waiting_for_person: usize,
    /// Executions waiting for a timer or a retry.
    pub waiting_for_time: usize,
    /// True if there are more unfinished executions than were examined. The waiting counts may then
    /// be too low, and `queued` too high.
    pub waiting_is_capped: bool,
    /// Pending webhook deliveries.
    pub webhooks_pending: u64,
}

/// The organization's balance.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Balance {
    /// The balance in US dollars.
    pub balance_usd: f64,
}

/// The severity of a finding.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Good,
    /// It works, but may cause surprises.
    Warning,
    Fault,
}

/// A finding about the service or its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    pub subject: String,
    pub verdict: Verdict,
    /// Whether somebody should act on the finding: true unless the verdict is `good`.
    pub concern: bool,
    pub detail: String,
    /// The command or setting that fixes the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Finding {
    /// Returns a finding with this verdict.
    #[must_use]
    pub fn new(subject: &str, verdict: Verdict, detail: impl Into<String>) -> Self {
        let concern = verdict != Verdict::Good;
        Self { subject: subject.to_owned(), verdict, concern, detail: detail.into(), mend: None }
    }

    /// Returns a finding that needs no action.
    #[must_use]
    pub fn good(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Good, detail)
    }

    /// Returns a finding about something that works, but may cause surprises.
    #[must_use]
    pub fn warning(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Warning, detail)
    }

    /// Returns a finding about something that does not work, or will stop working.
    #[must_use]
    pub fn fault(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Fault, detail)
    }

    /// Adds the command or setting that fixes the problem.
    #[must_use]
    pub fn mended_by(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }
}

/// The report of `orrery doctor`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// The findings, concerns first.
    pub findings: Vec<Finding>,
    /// Absent if the report is about the store of a stopped service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<RunningService>,
}

/// The startup options of the running service.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RunningService {
    pub pid: u32,
    /// The configuration file. Absent if the defaults apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    pub listening: Vec<Listening>,
}

/// A host of the running service, with its address.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Listening {
    pub host: String,
    pub url: String,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Findings {
    /// The findings, concerns first.
    pub findings: Vec<Finding>,
}
