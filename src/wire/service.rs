//! What every host says of itself; the figures of the service; the balance.

use schemars::JsonSchema;
use serde::Serialize;

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

/// What the organization has.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Balance {
    /// US dollars.
    pub balance_usd: f64,
}

/// One thing that was found about the state of the service.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Finding {
    pub subject: &'static str,
    /// Whether somebody should do something about it.
    pub concern: bool,
    pub detail: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Findings {
    /// Concerns first.
    pub findings: Vec<Finding>,
}
