//! The outbox's interface to the network. The interface is a trait, so that tests can script
//! receivers that refuse, hang or send any response.
//!
//! A transport never retries and never follows a redirect: only the outbox retries.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::{HeaderMap, Request};

use orrery_http::client::{self, Client};
use orrery_http::connector;

/// Maximum number of bytes read from a response's body.
const RESPONSE_BODY_MAX: usize = 64 * 1024;

/// The response of a receiver.
#[derive(Debug, Clone, Default)]
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    /// The beginning of the body, up to the read limit.
    pub body: Bytes,
}

/// The reason why there is no response, as a message for the webhook's owner. The message does not
/// reveal why a connection failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The receiver sent no complete response.
    #[error("{0}")]
    Receiver(String),
    /// This machine lacks a resource needed for sending. The error does not depend on the receiver,
    /// and the attempt does not count.
    #[error("{0}")]
    Local(String),
}

/// Sends one request and waits for the response.
pub trait Transport: Send + Sync + 'static {
    /// Sends `request` once. If the attempt times out, the future is dropped.
    ///
    /// Returns [`SendError`] if there is no complete response.
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response, SendError>>;
}

/// The network transport, which uses the guarded client.
#[derive(Debug)]
pub(super) struct Network {
    client: Client,
    limits: client::Limits,
}

impl Network {
    /// Creates a transport that sends with `client`, with a time limit of `timeout` per attempt.
    pub(super) const fn new(client: Client, timeout: Duration) -> Self {
        let limits = client::Limits {
            total: timeout,
            answer_bytes: RESPONSE_BODY_MAX,
            overflow: client::Overflow::Truncate,
        };
        Self { client, limits }
    }
}

impl Transport for Network {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response, SendError>> {
        Box::pin(async {
            let answer = self.client.send(request, &self.limits).await;
            let answer = answer.map_err(|error| send_error(&error))?;
            let status = answer.status.as_u16();
            Ok(Response { status, headers: answer.headers, body: answer.body })
        })
    }
}

fn send_error(error: &client::Error) -> SendError {
    if let client::Error::Connection(connector::Error::Local { .. }) = error {
        return SendError::Local(error.to_string());
    }
    SendError::Receiver(error.to_string())
}
