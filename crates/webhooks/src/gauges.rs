//! The metrics of the outbox.

/// The counts of the deliveries and receivers that the outbox has in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Deliveries in memory: waiting, in flight, or being parked.
    pub held: usize,
    /// The maximum of `held` so far.
    pub most_held: usize,
    pub in_flight: usize,
    pub open_circuits: usize,
}

impl Metrics {
    /// Sets the gauges.
    pub(super) fn publish(&self) {
        metrics::gauge!("orrery_webhook_in_flight").set(as_gauge(self.in_flight));
        metrics::gauge!("orrery_webhook_open_circuits").set(as_gauge(self.open_circuits));
    }
}

/// Converts a count to a gauge value; all counts here are far below 2^32.
fn as_gauge(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}
