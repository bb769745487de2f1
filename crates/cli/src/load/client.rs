//! The load client: keep-alive connections that each have one request in flight.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{end_of_head, whole_length};
use orrery_domain::histogram::{Histogram, Meter};
use orrery_runtime as runtime;

/// Number of bytes of a response to retain; the rest is read and discarded.
const KEPT: usize = 64 * 1024;

/// Requests to send repeatedly.
#[derive(Debug, Clone)]
pub struct Load {
    pub address: SocketAddr,
    pub connections: u64,
    pub request: Arc<[u8]>,
}

/// The results of one round.
#[derive(Debug, Default, Clone)]
pub struct Round {
    /// Responses with status 2xx.
    pub good: u64,
    /// All other responses.
    pub other: u64,
    pub seconds: f64,
    /// The latency of every response.
    pub times: Histogram,
}

impl Round {
    /// Returns the responses with status 2xx per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.good as f64 / self.seconds
    }
}

impl Load {
    /// Sends requests for `time` over all connections.
    ///
    /// # Errors
    /// Returns an error if a connection is refused or breaks.
    pub async fn run(&self, time: Duration) -> io::Result<Round> {
        self.run_until(time, u64::MAX).await
    }

    /// Sends requests for `time`, or until each connection has received `most` responses.
    ///
    /// # Errors
    /// Returns an error if a connection is refused or breaks.
    pub async fn run_until(&self, time: Duration, most: u64) -> io::Result<Round> {
        let started = runtime::monotonic_now();
        let end = started + time;
        let meter = Arc::<Meter>::default();
        let mut tasks = JoinSet::new();
        for _ in 0..self.connections {
            tasks.spawn(send(self.clone(), end, most, Arc::clone(&meter)));
        }
        let mut round = Round::default();
        while let Some(counted) = tasks.join_next().await {
            let (good, other) = counted.map_err(io::Error::other)??;
            round.good += good;
            round.other += other;
        }
        round.seconds = started.elapsed().as_secs_f64();
        round.times = meter.read();
        Ok(round)
    }
}

async fn send(load: Load, end: Instant, most: u64, meter: Arc<Meter>) -> io::Result<(u64, u64)> {
    let mut connection = Connection::open(load.address).await?;
    let (mut good, mut other) = (0, 0);
    let mut now = runtime::monotonic_now();
    // Each connection sends at least one request, so that the shortest round has a result.
    while good + other == 0 || (good + other < most && now < end) {
        let read = connection.exchange(&load.request).await?;
        match read.status {
            200..300 => good += 1,
            _ => other += 1,
        }
        let answered = runtime::monotonic_now();
        meter.record(answered.duration_since(now));
        now = answered;
    }
    Ok((good, other))
}

/// A keep-alive connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// A response, with the retained part of its body.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    /// The first 64 KiB of the body.
    pub body: Vec<u8>,
    /// The length of the whole body.
    pub length: usize,
}

impl Answer {
    /// Returns the retained part of the body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A response. The retained part of its body is in the buffer.
struct Read {
    status: u16,
    /// The length of the head.
    head: usize,
    /// The total length of head and body, and the retained number of these bytes.
    whole: usize,
    kept: usize,
}

impl Connection {
    /// Opens a connection.
    ///
    /// # Errors
    /// Returns an error if the connection is refused.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; KEPT] })
    }

    /// Sends a request and returns its response.
    ///
    /// # Errors
    /// Returns an error if the connection breaks.
    pub async fn ask(&mut self, request: &[u8]) -> io::Result<Answer> {
        let Read { status, head, whole, kept } = self.exchange(request).await?;
        let body = self.buffer.get(head..kept).unwrap_or_default().to_vec();
        Ok(Answer { status, body, length: whole.saturating_sub(head) })
    }

    async fn exchange(&mut self, request: &[u8]) -> io::Result<Read> {
        let Self { stream, buffer } = self;
        stream.write_all(request).await?;
        let mut length = 0;
        let whole = loop {
            let count = stream.read(buffer.get_mut(length..).unwrap_or_default()).await?;
            length += count;
            let read = buffer.get(..length).unwrap_or_default();
            match whole_length(read) {
                Some(whole) => break whole,
                None if count == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                None => {}
            }
        };
        let read = buffer.get(..length).unwrap_or_default();
        let head = end_of_head(read).unwrap_or(length);
        let status = read.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
        let status = status.and_then(|digits| digits.parse().ok()).unwrap_or(0);
        let mut come = length;
        let mut kept = length;
        while come < whole {
            // Bytes after the retained part are all read to the same offset, where they overwrite
            // each other.
            let from = if kept < KEPT { kept } else { head };
            let room = buffer.get_mut(from..).unwrap_or_default();
            let most = room.len().min(whole - come);
            let count = stream.read(room.get_mut(..most).unwrap_or_default()).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            come += count;
            kept = (kept + count).min(KEPT);
        }
        Ok(Read { status, head, whole, kept })
    }
}

/// Builds a POST of JSON with an API key.
#[must_use]
pub fn post(address: SocketAddr, path: &str, key: &str, body: &str) -> Arc<[u8]> {
    let length = body.len();
    let text = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    text.into_bytes().into()
}

/// Builds a POST of a form with one file, with an API key.
#[must_use]
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

/// Builds a GET with an API key.
#[must_use]
pub fn get_with_key(address: SocketAddr, path: &str, key: &str) -> Arc<[u8]> {
    let text =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\r\n");
    text.into_bytes().into()
}

/// Builds a GET.
#[must_use]
pub fn get(address: SocketAddr, path: &str) -> Arc<[u8]> {
    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").into_bytes().into()
}
