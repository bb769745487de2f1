//! A server that answers at once, in a process of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::client;
use super::process::{self, Killed};

/// The role of the process that is the server.
pub const ROLE: &str = "server";

/// Serves forever: `{"value":"x"}` at once, or after a second under `/second`.
pub async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(answer_all(stream));
    }
}

async fn answer_all(mut stream: TcpStream) {
    const ANSWER: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"value\":\"x\"}";
    stream.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 16 * 1024];
    let mut length = 0;
    loop {
        match stream.read(&mut buffer[length..]).await {
            Ok(0) | Err(_) => return,
            Ok(count) => length += count,
        }
        let Some(whole) = client::whole_length(&buffer[..length]) else { continue };
        if length < whole {
            continue;
        }
        if buffer[..whole].windows(8).take(40).any(|eight| eight == b" /second") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if stream.write_all(ANSWER).await.is_err() {
            return;
        }
        buffer.copy_within(whole..length, 0);
        length -= whole;
    }
}

/// Starts the server; it ends with what this gives.
pub fn start() -> (Killed, SocketAddr) {
    let mut child = process::again(ROLE).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Killed(child), line.trim().parse().unwrap())
}
