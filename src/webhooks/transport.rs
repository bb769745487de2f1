//! The doors of the outbox to the network and to the sealed secrets, as traits, so that tests can
//! script receivers that refuse, hang or answer anything.
//!
//! Never retries and never follows a redirect: the outbox is the one owner of retries.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::{HeaderMap, Request};

/// What a receiver said.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// The beginning of the answer's body, as far as it was read.
    pub body: Bytes,
}

/// Why there is no answer, in words that name the cause: name not resolved, connection refused,
/// TLS, time-out, forbidden address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsent(pub String);

/// Sends one request and waits for its answer.
pub trait Transport: Send + Sync + 'static {
    /// Sends `request` once. The future is dropped when the attempt's time is up.
    ///
    /// Errors: [`Unsent`] when no whole answer came.
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Answer, Unsent>>;
}

/// Opens the sealed secrets that deliveries carry.
pub trait Secrets: Send + Sync + 'static {
    /// The plain secret behind `sealed`; `None` when it cannot be opened with this box's key.
    fn unseal(&self, sealed: &str) -> Option<String>;
}
