//! Handles the unread part of a request's body. If little is left, the rest is read and discarded
//! before the response, so that an HTTP/1.1 connection can be reused. If more is left, an HTTP/1.1
//! response announces that the connection closes, and the rest is discarded after the response.
//!
//! Some clients read the response only once they have sent their entire body. If the server closes
//! an HTTP/1.1 connection before the client has sent everything, the client loses the response,
//! because closing a socket with unread bytes resets the connection (RFC 9112, section 9.6). The
//! same happens if the server resets an HTTP/2 stream too early, which RFC 9113, section 8.1,
//! permits.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::EXPECT;
use tokio::time::{Instant, Sleep, sleep_until};

use super::body::{Body, BoxError};
use orrery_runtime as runtime;

/// The maximum number of bytes discarded to keep a connection, and the time limit for discarding
/// them.
const DISCARDED_MAX: usize = 256 * 1024;
const PATIENCE: Duration = Duration::from_millis(250);
/// Limits on how long a connection (HTTP/1.1) or a stream (HTTP/2) stays open after the response to
/// an unread body: time without data from the client, total time, and number of bytes.
const LINGER_IDLE: Duration = Duration::from_secs(5);
const LINGER_TOTAL: Duration = Duration::from_secs(60);
const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// Receives a body back from its handler if the handler did not read it completely.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unread {
    rest: Arc<Mutex<Option<Incoming>>>,
    /// Whether the client waits for `100 Continue`, which reading the body would send.
    is_expected: bool,
}

/// The body as the handler reads it; dropping it hands the body back.
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

/// Discards what a client still sends after the response, until it has finished or a limit is
/// reached.
#[derive(Debug)]
pub(crate) struct Linger {
    discarded: usize,
    end: Instant,
    /// The time at which to stop. Reset whenever the client has sent something.
    deadline: Pin<Box<Sleep>>,
}

impl Linger {
    /// Starts to discard the rest of a request. The time limits begin with this call.
    pub(crate) fn new() -> Self {
        let now = runtime::monotonic_now();
        let deadline = Box::pin(sleep_until(now + LINGER_IDLE));
        Self { discarded: 0, end: now + LINGER_TOTAL, deadline }
    }

    /// Discards what `read` returns: the number of bytes that the client sent, or `None` at the end
    /// of its data. Ready when there is nothing left to wait for.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        mut read: impl FnMut(&mut Context<'_>) -> Poll<Option<usize>>,
    ) -> Poll<()> {
        while let Poll::Ready(bytes) = read(context) {
            let Some(bytes) = bytes else { return Poll::Ready(()) };
            self.discarded += bytes;
            let now = runtime::monotonic_now();
            if self.discarded > LINGER_BYTES || now >= self.end {
                return Poll::Ready(());
            }
            self.deadline.as_mut().reset(self.end.min(now + LINGER_IDLE));
        }
        self.deadline.as_mut().poll(context)
    }
}

/// A response whose stream stays open after its last byte.
struct Lingering {
    /// The response's body, dropped after its last byte together with its budget leases.
    answer: Option<Body>,
    rest: Option<Incoming>,
    linger: Option<Linger>,
}

/// Returns the response to an HTTP/2 request whose body was not read completely.
pub(crate) fn linger(answer: Body, rest: Incoming) -> Body {
    Lingering { answer: Some(answer), rest: Some(rest), linger: None }.boxed()
}

impl Lingering {
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        use hyper::body::Body as _;
        let Some(rest) = &mut self.rest else { return Poll::Ready(()) };
        let linger = self.linger.get_or_insert_with(Linger::new);
        linger.poll(context, |context| {
            let frame = ready!(Pin::new(&mut *rest).poll_frame(context));
            let frame = frame.and_then(Result::ok);
            Poll::Ready(frame.map(|frame| frame.data_ref().map_or(0, Bytes::len)))
        })
    }
}

impl hyper::body::Body for Lingering {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Some(answer) = &mut this.answer {
            let is_ended = answer.is_end_stream();
            let frame = if is_ended { None } else { ready!(Pin::new(answer).poll_frame(context)) };
            if frame.is_some() {
                return Poll::Ready(frame);
            }
            this.answer = None;
        }
        ready!(this.poll_rest(context));
        this.rest = None;
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none() && self.answer.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
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
