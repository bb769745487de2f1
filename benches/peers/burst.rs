//! A burst: many requests at once over 64 connections, until the stub has received all resulting
//! calls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::support::client::Load;
use super::{stub, support};

pub(crate) const CONNECTIONS: u64 = 64;
/// The pause after a burst, long enough for the results of its last calls to become durable.
pub(crate) const REST: Duration = Duration::from_millis(300);
/// The time limit for the answers to the requests.
const PATIENCE: Duration = Duration::from_secs(180);

/// Returns the number of requests in a burst.
pub(crate) fn size() -> u64 {
    support::knob("ORRERY_BENCH_BURST", 5_000)
}

/// The measurements of a burst.
pub(crate) struct Burst {
    /// The number of accepted requests: at least the requested number, rounded up so that each
    /// connection sends the same number.
    pub made: u64,
    /// Time from the first request to the last call.
    pub seconds: f64,
}

impl Burst {
    /// Sends `count` requests, each of which makes the service call the stub `calls` times.
    pub(crate) async fn send(
        stub: SocketAddr,
        address: SocketAddr,
        request: &Arc<[u8]>,
        (count, calls): (u64, u64),
    ) -> Self {
        let before = stub::calls(stub).await;
        let started = Instant::now();
        let request = Arc::clone(request);
        let load = Load { address, connections: CONNECTIONS, request };
        let round = load.run_until(PATIENCE, count.div_ceil(CONNECTIONS)).await;
        assert_eq!(round.other, 0, "a request was refused");
        stub::until(stub, before + calls * round.good).await;
        Self { made: round.good, seconds: started.elapsed().as_secs_f64() }
    }

    pub(crate) fn rate(&self) -> f64 {
        self.made as f64 / self.seconds
    }
}
