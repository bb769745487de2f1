//! What the running service does at this moment, as `orrery top` reads it from the control socket: levels, and
//! counters since the start, whose differences are rates.

use serde::{Deserialize, Serialize};

use crate::domain::histogram::Histogram;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    pub version: String,
    pub pid: u32,
    /// Seconds since the start, to the microsecond: the differences of counters are divided by its differences.
    pub uptime: f64,
    /// What an operator should do something about.
    pub warnings: Vec<String>,
    pub executions: Executions,
    /// The busiest ones first.
    pub lanes: Vec<Lane>,
    /// How many lanes there are, beside those that are listed too.
    pub lanes_total: usize,
    /// Those that have answered, without the control socket.
    pub hosts: Vec<Host>,
    pub requests_in_flight: u64,
    pub deliveries: Deliveries,
    pub store: Store,
    pub disk: Disk,
    pub process: Process,
    pub machine: Machine,
}

/// All executions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Executions {
    pub running: usize,
    pub queued: usize,
    /// Tried again after an error of the service itself.
    pub retrying: usize,
    pub ended: u64,
    /// Of these, without success.
    pub failed: u64,
}

/// A model, a workflow, or the agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    /// `model`, `workflow` or `agent`.
    pub kind: String,
    pub name: String,
    pub running: usize,
    pub queued: usize,
    /// How many may run at once.
    pub cap: usize,
    /// Why it is failing, where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// Executions that have failed.
    pub failed: u64,
    /// How long everything took that has ended, the wait for its turn included.
    pub times: Histogram,
}

/// The answers of one host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    pub host: String,
    pub answers: u64,
    /// Of these, 4xx and 5xx.
    pub refused: u64,
    pub failed: u64,
    pub times: Histogram,
}

/// Webhook deliveries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Deliveries {
    pub in_flight: usize,
    /// Due, and not in flight.
    pub queued: usize,
    /// Waiting for the time of their next attempt, or held back for a receiver that fails.
    pub retrying: usize,
    /// Whether there are more than were counted.
    pub is_capped: bool,
    pub open_circuits: usize,
    /// How long the oldest due one has waited, in seconds.
    pub lag: f64,
    pub delivered: u64,
    pub failed: u64,
    /// Attempts that failed and are repeated.
    pub retries: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Store {
    /// On the disk, the log included.
    pub bytes: u64,
    pub log_bytes: u64,
    pub commits: u64,
    /// Groups of commits that went to the disk together.
    pub flushes: u64,
    /// Commits that wait for the writer.
    pub waiting: usize,
    /// How long the groups took.
    pub times: Histogram,
}

/// The disk of the data folder, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    pub free: u64,
    pub total: u64,
    /// Below so much, new work is refused.
    pub reserve: u64,
    pub is_low: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub resident_bytes: u64,
    pub open_files: u64,
    pub open_files_max: u64,
    pub threads: u64,
    /// Processor time, in seconds.
    pub cpu: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub cores: usize,
    /// Over one minute.
    pub load: f64,
    pub memory_bytes: u64,
    pub memory_available_bytes: u64,
}
