//! Requests at a fixed rate, whatever the answers do: the latency of each counts from the moment when it was
//! due, so that a stall counts for every request that it held up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::support::client::Connection;

/// How many a second, for how long, over how many connections.
#[derive(Clone, Copy)]
pub struct Pace {
    pub rate: u64,
    pub seconds: u64,
    pub connections: u64,
}

impl Pace {
    /// Sends what `request` gives for each number; gives the latencies in seconds.
    pub async fn latencies(
        self,
        address: SocketAddr,
        request: impl Fn(u64) -> Arc<[u8]> + Send + Sync + 'static,
    ) -> Vec<f64> {
        let request = Arc::new(request);
        let started = Instant::now() + Duration::from_millis(50);
        let mut tasks = tokio::task::JoinSet::new();
        for first in 0..self.connections {
            let request = Arc::clone(&request);
            tasks.spawn(async move {
                let mut connection = Connection::open(address).await;
                let mut latencies = Vec::new();
                let mut number = first;
                while number < self.rate * self.seconds {
                    let due =
                        started + Duration::from_secs(number) / u32::try_from(self.rate).unwrap();
                    tokio::time::sleep_until(due.into()).await;
                    connection.ask(&request(number)).await;
                    latencies.push(due.elapsed().as_secs_f64());
                    number += self.connections;
                }
                latencies
            });
        }
        tasks.join_all().await.concat()
    }
}
