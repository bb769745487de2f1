//! The durable outbox: sends every completion that has a webhook, at least once, until the receiver
//! acknowledges it or the retry schedule is exhausted.
//!
//! - [`enqueue`] adds a delivery to the commit of its execution's completion, so that neither
//!   exists without the other. After the commit, [`Outbox::wake`] hands the delivery over in
//!   memory; the disk is read only for deliveries that do not fit in memory.
//! - The [`Outbox`] attempts due deliveries, with limits on the number of concurrent attempts in
//!   total and for each receiver. The outcome is committed before it has any effect. A crash can
//!   therefore repeat an attempt but never lose one, and a delivery is never repeated after its
//!   success.
//! - A failing receiver gets few slots, and then none (its circuit opens). Deliveries to a failing
//!   receiver wait on the disk, indexed by receiver, and do not block other receivers.
//!
//! `rows` defines keys and records, `dispatcher` decides which receiver is next (pure), `attempt`
//! makes one attempt, `endpoints` stores and caches the organizations' endpoints, `disk_jobs` reads
//! and moves rows, `send_loop` runs the dispatcher and the disk jobs, `outbox` is the interface for
//! other crates, `transport` is the interface to the network, `history` lists deliveries and
//! redelivers them, `retention` deletes old ones, `test_delivery` sends test deliveries within the
//! same limits.
//!
//! This crate never follows a redirect and never logs a secret or a body, and its memory does not
//! grow with the backlog.

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

use orrery_domain::delivery::Delivery;
use orrery_storage as storage;

/// Called with a delivery after each attempt, including the last attempt. Must not block.
pub type OnAttempt = Box<dyn Fn(&Delivery) + Send + Sync>;

/// The settings of deliveries: section `[webhooks]` of the configuration.
#[derive(Debug, Clone)]
pub struct Options {
    /// The delays before attempts 2, 3, …; the number of attempts is one more than the number of
    /// entries.
    pub schedule: Vec<Duration>,
    /// Time limit for one attempt, from resolving the name to the last byte of the response.
    pub timeout: Duration,
    /// Maximum number of attempts in flight in total; at least 1.
    pub in_flight: usize,
    /// Maximum number of attempts in flight to one receiver (scheme, host, port); at least 1.
    pub in_flight_per_receiver: usize,
    /// Minimum time between two redeliveries.
    pub redelivery_cooldown: Duration,
    /// Whether `X-Webhook-Secret` contains the secret itself in addition to the signature, unless
    /// the webhook overrides this.
    pub send_plain_secret: bool,
    /// Number of consecutive failures that open a receiver's circuit; at least 1.
    pub circuit_failures: u32,
    /// How long a circuit stays open before a probe is sent.
    pub circuit_open: Duration,
    /// Time without a successful attempt after which an endpoint is disabled.
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

/// An error of the outbox.
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
