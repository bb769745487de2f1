//! A server that responds to every request immediately, and the reader for requests on its
//! connections.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::whole_length;

/// The initial size of the request buffer, in bytes.
const BUFFER: usize = 64 * 1024;
/// The maximum size of a request, in bytes.
const REQUEST_MAX: usize = 64 * 1024 * 1024;
/// The body of every response except the response to `/large`.
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"value\":\"x\"}";
/// The length of the response body of `/large`, in bytes.
pub(super) const LARGE: usize = 1024 * 1024;

/// A connection to a client that waits for each response before it sends the next request.
#[derive(Debug)]
pub struct Requests {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The number of bytes in the buffer, and the number that belong to the current request.
    length: usize,
    taken: usize,
}

impl Requests {
    /// Wraps an accepted connection.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        // With Nagle's algorithm, responses would be delayed.
        stream.set_nodelay(true).ok();
        Self { stream, buffer: vec![0; BUFFER], length: 0, taken: 0 }
    }

    /// Returns the next complete request; `None` if the client has disconnected or the request is
    /// too large.
    pub async fn next(&mut self) -> Option<&[u8]> {
        self.buffer.copy_within(self.taken..self.length, 0);
        self.length -= self.taken;
        self.taken = 0;
        loop {
            let whole = whole_length(self.buffer.get(..self.length)?);
            if let Some(whole) = whole.filter(|whole| *whole <= self.length) {
                self.taken = whole;
                return self.buffer.get(..whole);
            }
            if self.length == self.buffer.len() {
                if self.length >= REQUEST_MAX {
                    return None;
                }
                self.buffer.resize(2 * self.length, 0);
            }
            match self.stream.read(self.buffer.get_mut(self.length..)?).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.length += count,
            }
        }
    }

    /// Sends the response; `None` if the client has disconnected.
    pub async fn answer(&mut self, answer: &[u8]) -> Option<()> {
        self.stream.write_all(answer).await.ok()
    }
}

/// A stand-in for models and webhook receivers on a loopback port. The server responds immediately
/// and counts its responses. Dropping it stops the server.
#[derive(Debug)]
pub struct StandIn {
    address: SocketAddr,
    answered: Arc<AtomicU64>,
    is_held: watch::Sender<bool>,
    _accepting: JoinSet<()>,
}

impl StandIn {
    /// Starts the server.
    ///
    /// # Errors
    /// Returns an error if no loopback port is available.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let answered = Arc::<AtomicU64>::default();
        let (is_held, hold) = watch::channel(false);
        let mut accepting = JoinSet::new();
        let count = Arc::clone(&answered);
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(answer_all(stream, Arc::clone(&count), hold.clone()));
                // Discard finished connections.
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, answered, is_held, _accepting: accepting })
    }

    /// Returns the address of the server.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of responses sent.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Withholds the responses to requests under `/hold` from now on, or releases them.
    pub fn hold(&self, is_held: bool) {
        self.is_held.send_replace(is_held);
    }
}

async fn answer_all(
    stream: TcpStream,
    answered: Arc<AtomicU64>,
    mut hold: watch::Receiver<bool>,
) -> Option<()> {
    let mut requests = Requests::new(stream);
    loop {
        let request = requests.next().await?;
        let target = request.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let is_large = target == b"/large";
        if target.starts_with(b"/hold") {
            hold.wait_for(|is_held| !is_held).await.ok()?;
        }
        answered.fetch_add(1, Ordering::Relaxed);
        if is_large {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n");
            requests.answer(head.as_bytes()).await?;
            requests.answer(&vec![0; LARGE]).await?;
        } else {
            requests.answer(ANSWER).await?;
        }
    }
}
