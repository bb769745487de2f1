//! The requests of one connection, one after the other, for the servers that stand in for models and
//! receivers. It knows lengths and nothing else of HTTP, so that it costs next to nothing.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client;

/// Room for one request at first, in bytes.
const BUFFER: usize = 64 * 1024;

/// A connection of a client that waits for each answer before it asks again.
pub struct Requests {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Bytes in the buffer, and those of them that belong to the request in hand.
    length: usize,
    taken: usize,
}

impl Requests {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: vec![0; BUFFER], length: 0, taken: 0 }
    }

    /// The next request, whole; `None` when the client has left.
    pub async fn next(&mut self) -> Option<&[u8]> {
        self.buffer.copy_within(self.taken..self.length, 0);
        self.length -= self.taken;
        loop {
            let whole = client::whole_length(&self.buffer[..self.length]);
            if let Some(whole) = whole.filter(|whole| *whole <= self.length) {
                self.taken = whole;
                return Some(&self.buffer[..whole]);
            }
            if self.length == self.buffer.len() {
                self.buffer.resize(2 * self.length, 0);
            }
            match self.stream.read(&mut self.buffer[self.length..]).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.length += count,
            }
        }
    }

    /// Sends the answer; `None` when the client has left.
    pub async fn answer(&mut self, answer: &[u8]) -> Option<()> {
        self.stream.write_all(answer).await.ok()
    }
}
