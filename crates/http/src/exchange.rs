//! A connection for `http://` requests, and single exchanges over it.
//!
//! The calling task polls the connection itself, so a request and its response need no other task,
//! and dropping the call closes the connection. `pool` keeps the connections between calls.

use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::{Authority, Scheme};
use hyper::{Method, Request, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::client::{Error, Limits, Response, collect, words};
use super::places::Socket;
use super::relay::Relay;

/// The default port, which a `Host` header omits.
const HTTP_PORT: u16 = 80;

type Driver = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// A request that is ready to be sent: its URI is a path, and its `Host` header is set.
pub(super) type Outgoing = Request<Full<Bytes>>;

/// An exchange that got no response.
pub(super) enum Failure {
    /// No part of the request was sent.
    Unsent { request: Box<Outgoing>, reason: String },
    /// Part of the request may have been sent.
    Ended(Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unsent { reason, .. } => Self::Protocol { reason },
            Failure::Ended(error) => error,
        }
    }
}

/// Returns whether a request can be sent over a [`Connection`].
pub(super) fn is_plain<B>(request: &Request<B>) -> bool {
    let uri = request.uri();
    uri.scheme() == Some(&Scheme::HTTP)
        && uri.authority().is_some()
        && request.version() == Version::HTTP_11
        && request.method() != Method::CONNECT
}

/// Splits a request into its destination and the message to send. Returns `None` if the URI has no
/// host.
pub(super) fn prepare(request: Request<Bytes>) -> Option<(Authority, Outgoing)> {
    let mut request = request.map(Full::new);
    let parts = mem::take(request.uri_mut()).into_parts();
    let authority = parts.authority?;
    if let Some(path) = parts.path_and_query {
        *request.uri_mut() = Uri::from(path);
    }
    if !request.headers().contains_key(HOST) {
        request.headers_mut().insert(HOST, host_header(&authority)?);
    }
    Some((authority, request))
}

/// Returns the value of the `Host` header: the host, and the port unless it is the scheme's
/// default, without user name and password.
fn host_header(authority: &Authority) -> Option<HeaderValue> {
    let host = authority.host();
    match authority.port_u16() {
        Some(port) if port != HTTP_PORT => {
            let text = authority.as_str();
            let credentials = text.rfind('@').map_or(0, |at| at.saturating_add(1));
            HeaderValue::from_str(text.get(credentials..)?).ok()
        }
        _ => HeaderValue::from_str(host).ok(),
    }
}

/// Returns the port of an authority.
pub(super) fn port_of(authority: &Authority) -> u16 {
    authority.port_u16().unwrap_or(HTTP_PORT)
}

/// A connection that is not polled while it is idle.
pub(super) struct Connection {
    authority: Authority,
    sender: http1::SendRequest<Full<Bytes>>,
    /// The task that drives the connection; `None` once the connection has ended.
    driver: Option<Driver>,
    relay: Relay,
    socket: Option<Socket>,
}

impl Connection {
    /// Starts HTTP/1.1 over `stream`, which is connected to `authority`.
    pub(super) async fn new(stream: TcpStream, authority: Authority) -> Result<Box<Self>, Error> {
        let mut builder = http1::Builder::new();
        // Head and body are sent in one write.
        builder.writev(false);
        builder.allow_obsolete_multiline_headers_in_responses(true);
        let (sender, driver) =
            builder.handshake(TokioIo::new(stream)).await.map_err(|error| protocol(&error))?;
        Ok(Box::new(Self {
            authority,
            sender,
            driver: Some(driver),
            relay: Relay::new(),
            socket: None,
        }))
    }

    /// Attaches the counted descriptor, which is released when the connection closes.
    pub(super) fn count(&mut self, socket: Socket) {
        self.socket = Some(socket);
    }

    /// Returns the host and port that the connection was opened to.
    pub(super) const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Sends `request` and reads the response, up to its size limit. If the peer has closed the
    /// connection, the request is returned unsent: hyper checks for the end of the stream before it
    /// writes.
    pub(super) async fn exchange(
        &mut self,
        request: Outgoing,
        limits: &Limits,
    ) -> Result<Response, Failure> {
        let Self { sender, driver, relay, .. } = self;
        let answer = sender.try_send_request(request);
        let mut exchange = pin!(async {
            let answer = answer.await.map_err(failure)?;
            collect(answer, limits).await.map_err(Failure::Ended)
        });
        poll_fn(|cx| {
            relay.poll(cx, |own| {
                if let Some(driving) = driver
                    && Pin::new(driving).poll(own).is_ready()
                {
                    // Without the driver, the pending part of the exchange fails with an error.
                    *driver = None;
                }
                exchange.as_mut().poll(own)
            })
        })
        .await
    }

    /// Returns whether the connection can take a request, judging only by the bytes that have
    /// already arrived.
    pub(super) fn is_open(&mut self) -> bool {
        if let Some(driving) = &mut self.driver
            && let Poll::Ready(_ended) = Pin::new(driving).poll(&mut self.relay.context())
        {
            self.driver = None;
        }
        self.is_ready()
    }

    /// Returns whether the connection can take another request once the response has been read
    /// completely.
    pub(super) fn is_reusable(&mut self) -> bool {
        self.driver.is_some() && (self.sender.is_ready() || self.is_open())
    }

    fn is_ready(&self) -> bool {
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Drops the waker of the task that ran the last exchange.
    pub(super) fn release(&self) {
        self.relay.release();
    }
}

fn failure(mut error: TrySendError<Outgoing>) -> Failure {
    let unsent = error.take_message();
    let error = error.into_error();
    match unsent {
        Some(request) => Failure::Unsent { request: Box::new(request), reason: words(&error) },
        None => Failure::Ended(protocol(&error)),
    }
}

fn protocol(error: &hyper::Error) -> Error {
    Error::Protocol { reason: words(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_sent_in_origin_form_without_credentials() {
        for (url, host, target) in [
            ("http://example.com", "example.com", "/"),
            ("http://Example.com:80/", "Example.com", "/"),
            ("http://example.com:8080/a/b?c=d", "example.com:8080", "/a/b?c=d"),
            ("http://user:secret@example.com:81/x", "example.com:81", "/x"),
            ("http://user:secret@example.com/?q", "example.com", "/?q"),
            ("http://[::1]:3000/x", "[::1]:3000", "/x"),
            ("HTTP://10.0.0.1?q=1", "10.0.0.1", "/?q=1"),
        ] {
            let request = Request::get(url).body(Bytes::new()).unwrap();
            assert!(is_plain(&request), "{url}");
            let (authority, outgoing) = prepare(request).unwrap();
            assert_eq!(outgoing.headers()[HOST], host, "{url}");
            assert_eq!(outgoing.uri().to_string(), target, "{url}");
            assert_eq!(outgoing.uri().authority(), None, "{url}");
            assert_eq!(
                authority.host(),
                host.trim_end_matches(&format!(":{}", port_of(&authority)))
            );
        }
        let own = Request::get("http://a.test/").header(HOST, "b.test").body(Bytes::new()).unwrap();
        assert_eq!(prepare(own).unwrap().1.headers()[HOST], "b.test");
    }

    #[test]
    fn request_of_other_scheme_or_version_is_not_plain() {
        let get = |url: &str| Request::get(url).body(()).unwrap();
        assert!(!is_plain(&get("https://example.com/")));
        assert!(!is_plain(&get("ftp://example.com/")));
        assert!(!is_plain(&get("/path")));
        let mut old = get("http://example.com/");
        *old.version_mut() = Version::HTTP_10;
        assert!(!is_plain(&old));
        let mut tunnel = get("http://example.com/");
        *tunnel.method_mut() = Method::CONNECT;
        assert!(!is_plain(&tunnel));
    }
}
