//! Handles the unread part of a request's body. If little is left, the rest is read and discarded
//! before the response, so that an HTTP/1.1 connection can be reused. If more is left, an HTTP/1.1
//! response announces that the connection closes.
//!
//! Over HTTP/2, the rest of the body is discarded after the response: some clients read the
//! response only once they have sent their entire body, and lose the response if the stream is
//! reset earlier (which RFC 9113, section 8.1, permits).

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
/// Limits on how long an HTTP/2 stream stays open after the response to an unread body: time
/// without data from the client, total time, and number of bytes.
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

/// A response whose stream stays open after its last byte until the client ends its body or a limit
/// is reached.
struct Lingering {
    /// The response's body, dropped after its last byte together with its budget leases.
    answer: Option<Body>,
    rest: Option<Incoming>,
    discarded: usize,
    end: Instant,
    /// The time at which the stream ends. Set when the response has ended, and reset whenever the
    /// client has sent something.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Returns the response to an HTTP/2 request whose body was not read completely.
pub(crate) fn linger(answer: Body, rest: Incoming) -> Body {
    let end = runtime::monotonic_now() + LINGER_TOTAL;
    let (answer, rest) = (Some(answer), Some(rest));
    Lingering { answer, rest, discarded: 0, end, deadline: None }.boxed()
}

impl Lingering {
    /// Discards what the client sends; ready when the client has finished or a limit is reached.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        use hyper::body::Body as _;
        let Some(rest) = &mut self.rest else { return Poll::Ready(()) };
        loop {
            match Pin::new(&mut *rest).poll_frame(context) {
                Poll::Ready(None | Some(Err(_))) => return Poll::Ready(()),
                Poll::Ready(Some(Ok(frame))) => {
                    self.discarded += frame.data_ref().map_or(0, Bytes::len);
                    self.deadline = None;
                }
                Poll::Pending => break,
            }
            if self.discarded > LINGER_BYTES || runtime::monotonic_now() >= self.end {
                return Poll::Ready(());
            }
        }
        let next = || Box::pin(sleep_until(self.end.min(runtime::monotonic_now() + LINGER_IDLE)));
        self.deadline.get_or_insert_with(next).as_mut().poll(context)
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
