//! The library's load client, for benchmarks that panic on errors.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

#[allow(unused_imports, reason = "each benchmark uses its own part of this")]
pub(crate) use orrery_cli::load::{Round, form, get, get_with_key, post};

/// A request to send repeatedly.
#[derive(Clone)]
pub(crate) struct Load {
    pub address: SocketAddr,
    pub connections: u64,
    pub request: Arc<[u8]>,
}

impl Load {
    /// Sends the request for `time` over all connections.
    pub(crate) async fn run(&self, time: Duration) -> Round {
        self.run_until(time, u64::MAX).await
    }

    /// Sends the request for `time`, or until each connection has received `most` responses.
    pub(crate) async fn run_until(&self, time: Duration, most: u64) -> Round {
        let Self { address, connections, request } = self.clone();
        orrery_cli::load::Load { address, connections, request }
            .run_until(time, most)
            .await
            .unwrap()
    }
}

/// A keep-alive connection.
pub(crate) struct Connection(orrery_cli::load::Connection);

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Self(orrery_cli::load::Connection::open(address).await.unwrap())
    }

    /// Sends a request and returns the response body; panics unless the status is 2xx.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> String {
        let answer = self.0.ask(request).await.unwrap();
        assert!((200..300).contains(&answer.status), "{}: {}", answer.status, answer.text());
        answer.text()
    }
}
