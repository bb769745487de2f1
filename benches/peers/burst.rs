//! A burst: many requests at once over 64 connections, until the stub has received the resulting
//! calls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::support::client::Load;
use super::{stub, support};

pub const CONNECTIONS: u64 = 64;
/// The pause after a burst: the results of its last calls are durable by then.
pub const REST: Duration = Duration::from_millis(300);
/// The time limit for the answers to the requests.
const PATIENCE: Duration = Duration::from_secs(180);

/// The number of requests in a burst.
pub fn size() -> u64 {
    support::knob("ORRERY_BENCH_BURST", 5_000)
}

/// The result of a burst.
pub struct Burst {
    /// Accepted requests: at least as many as requested, the same number on each connection.
    pub made: u64,
    /// From the first request to the last call.
    pub seconds: f64,
}

impl Burst {
    /// Sends `count` requests that cause `calls` calls of the stub each.
    pub async fn send(
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

    pub fn rate(&self) -> f64 {
        self.made as f64 / self.seconds
    }
}
