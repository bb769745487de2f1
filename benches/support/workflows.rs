//! Creates and triggers workflows of the service to measure, and waits for their executions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::client::{self, Connection};

/// Creates a workflow of these steps; returns the path that triggers it.
pub(crate) async fn make(address: SocketAddr, key: &str, name: &str, steps: Value) -> String {
    let body = json!({"name": name, "description": "bench", "definition": {"steps": steps}});
    let request = client::post(address, "/api/v1/workflows", key, &body.to_string());
    let made = Connection::open(address).await.ask(&request).await;
    let made: Value = serde_json::from_str(&made).unwrap();
    format!("/api/v1/{}/trigger", made["workflow_id"].as_str().unwrap())
}

/// Triggers an execution and waits for its end; returns its duration in seconds.
pub(crate) async fn run(
    connection: &mut Connection,
    address: SocketAddr,
    trigger: &[u8],
    key: &str,
) -> f64 {
    let started = Instant::now();
    let taken: Value = serde_json::from_str(&connection.ask(trigger).await).unwrap();
    let id = taken["execution_id"].as_str().unwrap();
    let path = format!("/api/v1/executions/{id}?timeout=30");
    let detail = connection.ask(&client::get_with_key(address, &path, key)).await;
    let seconds = started.elapsed().as_secs_f64();
    assert!(detail.contains("\"status\":\"completed\""), "{detail}");
    seconds
}

/// Calls `once` `count` times, `flight` at a time, each on its own connection; returns the duration
/// of each call in seconds.
pub(crate) async fn latencies<F>(
    address: SocketAddr,
    (count, flight): (u64, u64),
    once: impl Fn(Connection) -> F + Send + Sync + 'static,
) -> Vec<f64>
where
    F: Future<Output = (Connection, f64)> + Send + 'static,
{
    let once = Arc::new(once);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..flight {
        let once = Arc::clone(&once);
        tasks.spawn(async move {
            let mut connection = Connection::open(address).await;
            let mut latencies = Vec::new();
            for _ in 0..count.div_ceil(flight) {
                let (back, seconds) = once(connection).await;
                connection = back;
                latencies.push(seconds);
            }
            latencies
        });
    }
    tasks.join_all().await.concat()
}
