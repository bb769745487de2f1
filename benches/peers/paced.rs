//! Sends requests at a fixed rate, independent of the responses. Latency counts from the time when
//! a request was due, so that a stall counts for every request that it delayed. A separate thread
//! announces due requests, since tokio's timer has a resolution of a millisecond, which would
//! distort every latency.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, mpsc};

use super::support::client::Connection;

/// Delay from the call to the first request; the connections are open by then.
const PREPARATION: Duration = Duration::from_millis(50);

/// The rate, the duration and the number of connections.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub rate: u64,
    pub seconds: u64,
    pub connections: u64,
}

impl Pace {
    /// Sends the requests that `request` returns for each number; returns their latencies in
    /// seconds.
    pub(crate) async fn latencies(
        self,
        address: SocketAddr,
        request: impl Fn(u64) -> Arc<[u8]> + Send + Sync + 'static,
    ) -> Vec<f64> {
        let request = Arc::new(request);
        let (sender, due) = mpsc::unbounded_channel::<(u64, Instant)>();
        let due = Arc::new(Mutex::new(due));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..self.connections {
            let (request, due) = (Arc::clone(&request), Arc::clone(&due));
            tasks.spawn(async move {
                let mut connection = Connection::open(address).await;
                let mut latencies = Vec::new();
                loop {
                    let next = due.lock().await.recv().await;
                    let Some((number, due)) = next else { return latencies };
                    connection.ask(&request(number)).await;
                    latencies.push(due.elapsed().as_secs_f64());
                }
            });
        }
        std::thread::spawn(move || self.announce(&sender));
        tasks.join_all().await.concat()
    }

    /// Sends each request's number and due time when it is due.
    fn announce(self, due: &mpsc::UnboundedSender<(u64, Instant)>) {
        let started = Instant::now() + PREPARATION;
        for number in 0..self.rate * self.seconds {
            let moment = started + Duration::from_secs(number) / u32::try_from(self.rate).unwrap();
            std::thread::sleep(moment.saturating_duration_since(Instant::now()));
            due.send((number, moment)).unwrap();
        }
    }
}
