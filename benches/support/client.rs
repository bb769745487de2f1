//! The load client: connections that are kept alive, each with one request at a time, as cheap as
//! it can be, since it shares the processor with what it measures.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The largest answer that is read, in bytes.
const ANSWER_MAX: usize = 64 * 1024;

/// Requests to send over and over.
#[derive(Clone)]
pub struct Load {
    pub address: SocketAddr,
    pub connections: u64,
    pub request: Arc<[u8]>,
}

/// What one round came to.
#[derive(Debug, Default, Clone, Copy)]
pub struct Round {
    /// Answers with a status of 2xx.
    pub good: u64,
    /// All other answers.
    pub other: u64,
    pub seconds: f64,
}

impl Round {
    /// Good answers per second.
    pub fn rate(&self) -> f64 {
        self.good as f64 / self.seconds
    }
}

impl Load {
    /// Sends for `time` over all connections.
    pub async fn run(&self, time: Duration) -> Round {
        self.run_until(time, u64::MAX).await
    }

    /// Sends for `time`, or until each connection has had `most` answers.
    pub async fn run_until(&self, time: Duration, most: u64) -> Round {
        let started = Instant::now();
        let end = started + time;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..self.connections {
            tasks.spawn(connection(self.clone(), end, most));
        }
        let mut round = Round::default();
        while let Some(counted) = tasks.join_next().await {
            let (good, other) = counted.unwrap();
            round.good += good;
            round.other += other;
        }
        round.seconds = started.elapsed().as_secs_f64();
        round
    }
}

/// A connection that is kept alive.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: vec![0; ANSWER_MAX] }
    }

    /// Sends a request and gives the answer's body; its status must be 2xx.
    pub async fn ask(&mut self, request: &[u8]) -> String {
        self.stream.write_all(request).await.unwrap();
        let length = answer(&mut self.stream, &mut self.buffer).await;
        let whole = String::from_utf8_lossy(&self.buffer[..length]);
        let (head, body) = whole.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 2"), "{whole}");
        body.to_owned()
    }
}

async fn connection(load: Load, end: Instant, most: u64) -> (u64, u64) {
    let mut stream = TcpStream::connect(load.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut buffer = vec![0; ANSWER_MAX];
    let mut good = 0;
    let mut other = 0;
    while good + other < most && Instant::now() < end {
        stream.write_all(&load.request).await.unwrap();
        answer(&mut stream, &mut buffer).await;
        if buffer[9] == b'2' {
            good += 1;
        } else {
            other += 1;
        }
    }
    (good, other)
}

/// Reads one answer; gives its length, head and body.
async fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> usize {
    let mut length = 0;
    let mut whole = None;
    while whole.is_none_or(|whole| length < whole) {
        let count = stream.read(&mut buffer[length..]).await.unwrap();
        assert!(count > 0, "the connection was closed in the middle of an answer");
        length += count;
        if whole.is_none() {
            whole = whole_length(&buffer[..length]);
        }
    }
    length
}

/// Length of head and body together, once the head is there.
pub fn whole_length(read: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length: ";
    let head = read.windows(4).position(|four| four == b"\r\n\r\n")?;
    let mut lines = read[..head].split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| {
        let name = line.get(..NAME.len())?;
        name.eq_ignore_ascii_case(NAME).then(|| line[NAME.len()..].trim_ascii())
    });
    let body: usize = std::str::from_utf8(value.unwrap_or(b"0")).ok()?.parse().ok()?;
    Some(head + 4 + body)
}

/// A POST of JSON with a key.
pub fn post(address: SocketAddr, path: &str, key: &str, body: &str) -> Arc<[u8]> {
    let length = body.len();
    let text = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    text.into_bytes().into()
}

/// A POST of a form with one file and a key.
pub fn form(address: SocketAddr, path: &str, key: &str, file: &[u8]) -> Vec<u8> {
    let before = "--b0\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n";
    let after = "\r\n--b0--\r\n";
    let length = before.len() + file.len() + after.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: multipart/form-data; boundary=b0\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), before.as_bytes(), file, after.as_bytes()].concat()
}

/// A GET with a key.
pub fn get_with_key(address: SocketAddr, path: &str, key: &str) -> Arc<[u8]> {
    let text =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\r\n");
    text.into_bytes().into()
}

/// A GET.
pub fn get(address: SocketAddr, path: &str) -> Arc<[u8]> {
    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").into_bytes().into()
}
