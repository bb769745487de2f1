//! An instant server in its own process.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use super::process::{self, Killed};
use super::requests::Requests;

/// The role of the server's process.
pub(crate) const ROLE: &str = "server";

/// Serves forever: returns `{"value":"x"}` immediately, or after a second under `/second`.
pub(crate) async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(answer_all(stream));
    }
}

async fn answer_all(stream: TcpStream) -> Option<()> {
    const ANSWER: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"value\":\"x\"}";
    let mut requests = Requests::new(stream);
    loop {
        let request = requests.next().await?;
        if request.windows(8).take(40).any(|eight| eight == b" /second") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        requests.answer(ANSWER).await?;
    }
}

/// Starts the server, which ends when the returned value is dropped.
pub(crate) fn start() -> (Killed, SocketAddr) {
    process::listening(ROLE)
}
