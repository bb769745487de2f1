//! The index, health and readiness of a host, service and organization status, the balance, and the
//! doctor's report.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The roles of the hosts.
pub(crate) const ROLES: [&str; 5] = ["base", "workflows", "flows", "agent", "dashboard"];

/// Information about the host.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Index<'a> {
    /// Always `orrery`.
    #[schemars(extend("const" = "orrery"))]
    pub name: &'a str,
    /// The version of the program.
    pub version: &'a str,
    /// The role of the host.
    #[schemars(extend("enum" = ROLES))]
    pub role: &'a str,
    /// The URLs of the host's general routes.
    pub links: Links,
}

/// The URLs of a host's general routes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "IndexLinks")]
pub struct Links {
    /// The URL of `GET /health`.
    pub health: String,
    /// The URL of `GET /ready`.
    pub ready: String,
    /// The URL of `GET /openapi.json`.
    pub openapi: String,
}

/// The process is running.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Health<'a> {
    /// Always `healthy`.
    #[schemars(extend("const" = "healthy"))]
    pub status: &'a str,
    /// The version of the program.
    pub version: &'a str,
}

/// The service accepts work.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Ready<'a> {
    /// Always `ready`.
    #[schemars(extend("const" = "ready"))]
    pub status: &'a str,
    /// The version of the program.
    pub version: &'a str,
    /// Set while the work of a restored backup waits for `orrery resume`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Conditions that need the operator's attention, such as a nearly full disk.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The status of the service: only totals, with no data about any single organization.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ServiceStatus")]
pub struct Status<'a> {
    /// Always `orrery`.
    #[schemars(extend("const" = "orrery"))]
    pub name: &'a str,
    /// The version of the program.
    pub version: &'a str,
    /// Whether the service accepts work.
    pub ready: bool,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// The hosts of the service.
    pub hosts: Vec<Host<'a>>,
    /// The number of models in the catalog.
    pub models: usize,
    /// The executions of all organizations.
    pub executions: Executions,
    /// The webhook deliveries of all organizations.
    pub webhooks: Webhooks,
}

/// A host of the service.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StatusOfHost")]
pub struct Host<'a> {
    /// The role of the host.
    #[schemars(extend("enum" = ROLES))]
    pub role: &'a str,
    /// The public URL of the host.
    pub url: &'a str,
    /// Always true: a host that does not listen is not listed.
    pub healthy: bool,
}

/// The number of unfinished executions.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StatusOfExecutions")]
pub struct Executions {
    /// Running executions.
    pub running: usize,
    /// Executions waiting for a slot.
    pub queued: usize,
}

/// The number of unfinished webhook deliveries.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StatusOfWebhooks")]
pub struct Webhooks {
    /// Pending deliveries.
    pub pending: usize,
}

/// The status of the organization.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationStatus")]
pub struct OwnStatus {
    /// Running executions.
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

/// The severity of a finding. A `warning` is about something that works, but may cause problems.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Good,
    Warning,
    Fault,
}

/// A finding about the service or its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What the finding is about, such as `disk`.
    pub subject: String,
    /// The severity of the finding.
    pub verdict: Verdict,
    /// Whether the operator should act on the finding: true unless the verdict is `good`.
    pub concern: bool,
    /// The finding in a sentence.
    pub detail: String,
    /// The command or setting that fixes the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
    /// The item that the finding is about, such as a file, if several items have the same subject.
    /// This field is not sent to clients; alerts use the field to recognize a finding after the
    /// numbers in `detail` have changed.
    #[serde(skip)]
    pub about: Option<String>,
}

impl Finding {
    /// Returns a finding with this verdict.
    #[must_use]
    pub fn new(subject: &str, verdict: Verdict, detail: impl Into<String>) -> Self {
        let concern = verdict != Verdict::Good;
        let (subject, detail) = (subject.to_owned(), detail.into());
        Self { subject, verdict, concern, detail, mend: None, about: None }
    }

    /// Returns a finding that needs no action.
    #[must_use]
    pub fn good(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Good, detail)
    }

    /// Returns a finding about something that works, but may cause problems.
    #[must_use]
    pub fn warning(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Warning, detail)
    }

    /// Returns a finding about something that does not work, or will stop working.
    #[must_use]
    pub fn fault(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Verdict::Fault, detail)
    }

    /// Adds the item that the finding is about, if there can be several findings with the same
    /// subject.
    #[must_use]
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = Some(about.into());
        self
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
    /// The process ID.
    pub pid: u32,
    /// The configuration file. Absent if the defaults apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The hosts with their addresses.
    pub listening: Vec<Listening>,
}

/// A host of the running service, with its address.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Listening {
    /// The role of the host.
    pub host: String,
    /// The address of the host.
    pub url: String,
}

/// Findings about the service and its machine.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Findings {
    /// The findings, concerns first.
    pub findings: Vec<Finding>,
}

/// The data of an event in an organization's change stream.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ChangeEvent")]
pub enum Change<'a> {
    /// `changed`: something in the organization has changed.
    #[schemars(title = "ChangedEvent")]
    Changed {
        /// The topics to read again.
        topics: &'a [&'a str],
    },
    /// `replaced`: a newer stream of the same member has replaced this stream. This is the last
    /// event.
    #[schemars(title = "ReplacedEvent")]
    Replaced {
        /// The number of seconds to wait before the stream is opened again.
        retry_after: u64,
    },
}

impl Change<'_> {
    /// Returns the event's data: one line of JSON.
    #[must_use]
    pub fn data(&self) -> String {
        // Strings and numbers always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }
}
