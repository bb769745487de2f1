//! The durable outbox: sends every completion that asked for a webhook, at least once, until the
//! receiver acknowledges it or the schedule ends.
//!
//! - [`enqueue`] adds a delivery to the commit of the completion that it announces, so that neither
//!   is ever there without the other. After the commit, [`Outbox::wake`] hands the delivery over in
//!   memory; the disk is read only for what memory had no room for.
//! - The [`Outbox`] attempts what is due: a bounded number at once, in all and for each receiver.
//!   The outcome is committed before anything follows from it, so that a crash can repeat an attempt
//!   but never lose one, and a delivery is never repeated after its success.
//! - A receiver in trouble gets few slots, then none (its circuit opens); its deliveries are parked
//!   on disk under its name and block nothing else.
//!
//! `rows` holds keys and records, `dispatcher` decides who is sent to next (pure), `attempt` makes one
//! attempt, `endpoints` keeps what organizations want to be notified of, `disk_jobs` reads and moves rows, `send_loop` runs both, `outbox` is what the other
//! modules call, `transport` the door to the network, `history` lists deliveries and sends them again,
//! `retention` removes old ones, `test_delivery` sends test deliveries under the same limits.
//!
//! Never: a redirect followed, a secret or a body logged, memory that grows with the backlog.

mod attempt;
mod disk_jobs;
mod dispatcher;
mod endpoint;
mod endpoints;
mod gauges;
mod history;
mod outbox;
mod receivers;
mod retention;
mod rows;
mod send_loop;
mod test_delivery;
mod transport;
mod waiting;

use std::time::Duration;

pub use endpoints::{Endpoints, Error as EndpointError};
pub use gauges::Metrics;
pub use history::{DeliveryState, Filter, Recorded, Refusal, TestDelivery};
pub use outbox::Outbox;
pub use receivers::{OpenCircuit, Receiver};
pub use rows::{delivery as delivery_key, enqueue, load, progress as progress_key, reseal};
pub use transport::{Response, SendError, Transport};
pub use waiting::Waiting;

use crate::domain::delivery::Delivery;
use crate::storage;

/// Called with a delivery of which an attempt was made, the last of those that it has. It must not block.
pub type OnAttempt = Box<dyn Fn(&Delivery) + Send + Sync>;

/// How deliveries are sent: section `[webhooks]` of the configuration.
#[derive(Debug, Clone)]
pub struct Options {
    /// The delays before attempts 2, 3, …; there is one attempt more than entries.
    pub schedule: Vec<Duration>,
    /// For one attempt, from resolving the name to the answer's last byte.
    pub timeout: Duration,
    /// Attempts in flight at once, in all; at least 1.
    pub in_flight: usize,
    /// Attempts in flight at once at one receiver (scheme, host, port); at least 1.
    pub in_flight_per_receiver: usize,
    /// How long after a redelivery none is taken.
    pub redelivery_cooldown: Duration,
    /// Whether `X-Webhook-Secret` carries the secret itself beside the signature.
    pub send_plain_secret: bool,
    /// Failures in a row that open a receiver's circuit; at least 1.
    pub circuit_failures: u32,
    /// How long a circuit stays open before a probe goes out.
    pub circuit_open: Duration,
    /// An endpoint at which no attempt has succeeded for so long is disabled.
    pub disable_endpoint_after: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schedule: [5, 30, 120, 600, 1_800, 7_200, 21_600].map(Duration::from_secs).to_vec(),
            timeout: Duration::from_secs(15),
            redelivery_cooldown: Duration::from_secs(60),
            in_flight: 256,
            in_flight_per_receiver: 16,
            send_plain_secret: true,
            circuit_failures: 10,
            circuit_open: Duration::from_secs(60),
            disable_endpoint_after: Duration::from_secs(5 * 24 * 3600),
        }
    }
}

/// Why the outbox could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] storage::Error),
}

#[cfg(test)]
mod endpoint_tests;
#[cfg(test)]
mod network_tests;
#[cfg(test)]
mod redelivery_tests;
#[cfg(test)]
mod simulation_tests;
