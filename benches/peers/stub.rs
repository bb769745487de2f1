//! The model server of all sides: it answers immediately and counts its calls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};

use super::support::client::{self, Connection};
use super::support::process::{self, Killed};
use super::support::requests::Requests;

/// The time limit of a burst.
const PATIENCE: Duration = Duration::from_secs(180);
/// The prefix of the request for the number of calls.
const COUNT: &[u8] = b"GET /count";
/// A model's answer: about 60 bytes, like a short sentence.
const BODY: &str = r#"{"output":{"text":"A quiet harbour in the evening light.","n":7}}"#;

/// Serves forever.
pub(crate) async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    let calls = Arc::new(AtomicU64::new(0));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(answer_all(stream, Arc::clone(&calls)));
    }
}

async fn answer_all(stream: TcpStream, calls: Arc<AtomicU64>) -> Option<()> {
    let answer = answer_of(BODY);
    let mut requests = Requests::new(stream);
    loop {
        if requests.next().await?.starts_with(COUNT) {
            let count = calls.load(Ordering::Relaxed).to_string();
            requests.answer(answer_of(&count).as_bytes()).await?;
        } else {
            calls.fetch_add(1, Ordering::Relaxed);
            requests.answer(answer.as_bytes()).await?;
        }
    }
}

fn answer_of(body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Starts the stub server, which ends when the returned value is dropped.
pub(crate) fn start() -> (Killed, SocketAddr) {
    process::listening("stub")
}

/// Returns the number of calls received.
pub(crate) async fn calls(stub: SocketAddr) -> u64 {
    let request = client::get(stub, "/count");
    Connection::open(stub).await.ask(&request).await.parse().unwrap()
}

/// Waits until the stub has received `count` calls.
pub(crate) async fn until(stub: SocketAddr, count: u64) {
    let deadline = Instant::now() + PATIENCE;
    let mut connection = Connection::open(stub).await;
    let request = client::get(stub, "/count");
    loop {
        let calls: u64 = connection.ask(&request).await.parse().unwrap();
        if calls >= count {
            return;
        }
        assert!(Instant::now() < deadline, "only {calls} of {count} calls have come");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}
