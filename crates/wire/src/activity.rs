//! Activity of the running service, as `orrery top` reads it from the control socket. The activity
//! consists of gauges, and of counters that start at zero when the service starts; the differences
//! between two readings yield rates.

use serde::{Deserialize, Serialize};

use orrery_domain::histogram::Histogram;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    pub version: String,
    pub pid: u32,
    /// Seconds since the start, with microseconds. A rate is the difference between two counter
    /// readings, divided by the difference between the readings of this value.
    pub uptime: f64,
    /// Conditions that need the operator's attention.
    pub warnings: Vec<String>,
    pub executions: Executions,
    /// The busiest lanes, busiest first.
    pub lanes: Vec<Lane>,
    /// Total number of lanes, listed or not.
    pub lanes_total: usize,
    /// The hosts that have served requests, except the control socket.
    pub hosts: Vec<Host>,
    pub requests_in_flight: u64,
    pub deliveries: Deliveries,
    pub store: Store,
    pub disk: Disk,
    pub process: Process,
    pub machine: Machine,
}

/// All executions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Executions {
    pub running: usize,
    pub queued: usize,
    /// Retrying after an internal error of the service.
    pub retrying: usize,
    pub ended: u64,
    /// Executions that ended without success.
    pub failed: u64,
}

/// The lane of a model, a workflow, the agent, or chat calls in the background.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    /// `model`, `workflow`, `agent` or `chat`.
    pub kind: String,
    pub name: String,
    pub running: usize,
    pub queued: usize,
    /// Maximum number of running executions.
    pub cap: usize,
    /// Why the model is failing; absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// The state of the server that the service starts for the model: `unloaded`, `loading`, `ready`,
    /// `draining` or `failed`; absent if there is no such server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Number of failed executions.
    pub failed: u64,
    /// Durations of completed executions, including the time in the queue.
    pub times: Histogram,
}

/// The requests that one host has served.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    pub host: String,
    pub answers: u64,
    /// Responses with a 4xx or 5xx status.
    pub refused: u64,
    pub failed: u64,
    pub times: Histogram,
}

/// Webhook deliveries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Deliveries {
    pub in_flight: usize,
    /// Due, but not in flight.
    pub queued: usize,
    /// Waiting for their next attempt, or held back because the receiver's circuit is open.
    pub retrying: usize,
    /// Whether counting stopped at a limit. If so, there are more deliveries than counted.
    pub is_capped: bool,
    pub open_circuits: usize,
    /// How long the oldest due delivery has waited, in seconds.
    pub lag: f64,
    pub delivered: u64,
    pub failed: u64,
    /// Failed attempts that are retried.
    pub retries: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Store {
    /// Size on disk, including the log.
    pub bytes: u64,
    pub log_bytes: u64,
    pub commits: u64,
    /// Group commits written to disk.
    pub flushes: u64,
    /// Commits waiting for the writer.
    pub waiting: usize,
    /// Durations of the group commits.
    pub times: Histogram,
}

/// The disk of the data folder; sizes are in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    pub free: u64,
    pub total: u64,
    /// Free space below which new work is refused.
    pub reserve: u64,
    pub is_low: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub resident_bytes: u64,
    pub open_files: u64,
    pub open_files_max: u64,
    pub threads: u64,
    /// CPU time, in seconds.
    pub cpu: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub cores: usize,
    /// Load average over one minute.
    pub load: f64,
    pub memory_bytes: u64,
    pub memory_available_bytes: u64,
}
