//! Alerts: notifies the operator when the doctor reports a problem, and when the problem is mended.
//!
//! Also sends a notice when spending reaches one of the [`THRESHOLDS`] of a budget.
//!
//! Two modules are pure: `ledger` decides which messages are due, and `budgets` decides which
//! shares of budgets are announced. `message` writes the messages in the receiver's format, `file`
//! stores the ledger in the data folder, and [`Alerts`] sends the messages. `app` runs the checks
//! and passes their findings to [`Alerts`].
//!
//! Invariants:
//! - The ledger is stored before a message is sent, and again after its outcome is known, so after
//!   a restart, no message that the receiver has acknowledged is sent again.
//! - An alert is raised only once until it is mended. Retries of a message have the same id.
//! - The number of open alerts and the length of their texts are limited, so the file size and
//!   memory use are bounded. There is no queue: the ledger determines the due messages, so a
//!   receiver that was unreachable gets only the newest state.
//!
//! The operator configures the URL, so the egress guard does not apply to it. Redirects are never
//! followed. The URL and the secret are never logged.

mod alerts;
mod budgets;
mod file;
mod ledger;
mod message;

use std::time::Duration;

use orrery_config::Secret;

pub use self::alerts::Alerts;
pub use self::budgets::{Budget, THRESHOLDS};

/// The subject of the finding about alerts themselves, which never becomes an alert.
pub const SUBJECT: &str = "alerts";

/// The settings of alerts: section `[alerts]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The receiver; `None` if no alerts are sent and no checks run.
    pub target: Option<Target>,
    /// The interval between checks.
    pub every: Duration,
}

/// The receiver of alerts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// An absolute http(s) URL. The URL's path may be a secret, such as the name of an ntfy topic.
    pub url: Secret,
    /// The Standard Webhooks secret that signs messages.
    pub secret: Option<Secret>,
    pub format: Format,
}

/// The format of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON, in the form of Standard Webhooks.
    Webhook,
    /// Text, with the headers of ntfy.
    Ntfy,
}
