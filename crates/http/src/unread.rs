//! Handles the unread part of a request's body. A small rest is read and discarded before the
//! response, so that an HTTP/1.1 connection can be reused and HTTP/2 clients read the response:
//! some clients lose it if the stream is reset right after it (RFC 9113, section 8.1, permits
//! that). With a larger rest, an HTTP/1.1 response announces that the connection closes.
//!
//! The server never waits long for a client, and never requests a body that no handler reads.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::EXPECT;

use super::body::{Body, BoxError};

/// The maximum number of bytes discarded to keep a connection, and the time limit for discarding
/// them.
const DISCARDED_MAX: usize = 256 * 1024;
const PATIENCE: Duration = Duration::from_millis(250);
/// How long an HTTP/2 stream stays open after the response to an unread body, so that the client
/// reads the response before the reset.
const LINGER: Duration = Duration::from_millis(500);

/// Receives a body back from its handler if the handler did not read it completely.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unread {
    rest: Arc<Mutex<Option<Incoming>>>,
    /// Whether the client waits for `100 Continue`, which reading the body would send.
    is_expected: bool,
}

/// The body as the handler reads it; it is handed back on drop.
#[derive(Debug)]
struct Lent {
    inner: Option<Incoming>,
    unread: Unread,
}

/// Wraps the body of a request so that its unread part is handed back. Returns `None` for requests
/// without a body.
pub(crate) fn watch(request: hyper::Request<Incoming>) -> (hyper::Request<Body>, Option<Unread>) {
    use hyper::body::Body as _;
    if request.body().is_end_stream() {
        return (request.map(|body| body.map_err(Into::into).boxed()), None);
    }
    let is_expected = request.headers().contains_key(EXPECT);
    let unread = Unread { is_expected, ..Unread::default() };
    let lender = unread.clone();
    let lend = |body| Lent { inner: Some(body), unread: lender }.boxed();
    (request.map(lend), Some(unread))
}

impl Unread {
    /// Reads and discards the rest of the body.
    ///
    /// # Errors
    /// The rest of the body, if it is too long or too slow.
    pub(crate) async fn discard(self) -> Result<(), Incoming> {
        let rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut rest) = rest else { return Ok(()) };
        let discarding = async {
            let mut discarded = 0;
            while let Some(frame) = rest.frame().await {
                let Ok(frame) = frame else { return false };
                discarded += frame.data_ref().map_or(0, Bytes::len);
                if discarded > DISCARDED_MAX {
                    return false;
                }
            }
            true
        };
        if !self.is_expected && tokio::time::timeout(PATIENCE, discarding).await.unwrap_or(false) {
            return Ok(());
        }
        Err(rest)
    }
}

/// A response whose stream stays open after its last byte until the client ends its body or
/// [`LINGER`] has passed.
struct Lingering {
    answer: Body,
    rest: Option<Incoming>,
    deadline: Pin<Box<tokio::time::Sleep>>,
}

/// Returns the response to an HTTP/2 request whose body was not read completely.
pub(crate) fn linger(answer: Body, rest: Incoming) -> Body {
    let deadline = Box::pin(tokio::time::sleep(LINGER));
    Lingering { answer, rest: Some(rest), deadline }.boxed()
}

impl hyper::body::Body for Lingering {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if !this.answer.is_end_stream()
            && let Some(frame) = std::task::ready!(Pin::new(&mut this.answer).poll_frame(context))
        {
            return Poll::Ready(Some(frame));
        }
        while let Some(rest) = &mut this.rest {
            if this.deadline.as_mut().poll(context).is_ready() {
                break;
            }
            match std::task::ready!(Pin::new(rest).poll_frame(context)) {
                Some(Ok(_discarded)) => {}
                None | Some(Err(_)) => break,
            }
        }
        this.rest = None;
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none() && self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}

impl hyper::body::Body for Lent {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        let frame = std::task::ready!(Pin::new(&mut *inner).poll_frame(context));
        if frame.is_none() || inner.is_end_stream() {
            this.inner = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(hyper::body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.unread.rest.lock().unwrap_or_else(PoisonError::into_inner) = self.inner.take();
    }
}
