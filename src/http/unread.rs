//! What a handler leaves unread of a request's body: a little is read and discarded before the answer, so
//! that an HTTP/1.1 connection can go on, and so that HTTP/2 clients read the answer: some lose it when the
//! stream is reset right after it (RFC 9113, section 8.1, permits that). With more, an HTTP/1.1 answer says
//! that the connection closes.
//!
//! It never waits long for a client, and never asks one to send a body that nobody wants.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::EXPECT;

use super::body::{Body, BoxError};

/// The most bytes that are thrown away for the sake of the connection, and how long they may take.
const DISCARDED_MAX: usize = 256 * 1024;
const PATIENCE: Duration = Duration::from_millis(250);
/// How long an HTTP/2 stream stays open behind an answer to a body that was not read, so that the client
/// reads the answer before the reset.
const LINGER: Duration = Duration::from_millis(500);

/// Where a handler's body comes back to when it was not read to its end.
#[derive(Debug, Clone, Default)]
pub struct Unread {
    rest: Arc<Mutex<Option<Incoming>>>,
    /// The client waits for a `100 Continue`, which reading would send.
    is_expected: bool,
}

/// The body as the handler reads it.
#[derive(Debug)]
struct Lent {
    inner: Option<Incoming>,
    unread: Unread,
}

/// The request for the handler, and what knows of its body; none for requests without one.
pub fn watch(request: hyper::Request<Incoming>) -> (hyper::Request<Body>, Option<Unread>) {
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
    /// Reads the rest of the body and discards it.
    ///
    /// # Errors
    /// What is left of a body that is too long, or too slow.
    pub async fn discard(self) -> Result<(), Incoming> {
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

/// An answer whose stream stays open behind its last byte until the client ends its body, or [`LINGER`]
/// has passed.
struct Lingering {
    answer: Body,
    rest: Option<Incoming>,
    deadline: Pin<Box<tokio::time::Sleep>>,
}

/// The answer to a request over HTTP/2 whose body is not read to its end.
pub fn linger(answer: Body, rest: Incoming) -> Body {
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
