//! What a handler leaves unread of a request's body: a little is read and thrown away, so that the
//! connection can go on; with more the answer says that the connection closes.
//!
//! It never waits long for a client, and never asks one to send a body that nobody wants.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Version;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::EXPECT;

use super::body::{Body, BoxError};

/// The most bytes that are thrown away for the sake of the connection, and how long they may take.
const DISCARDED_MAX: usize = 256 * 1024;
const PATIENCE: Duration = Duration::from_millis(50);

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

/// The request for the handler, and what knows of its body; none where the connection does not depend
/// on the body: HTTP/2, and requests without one.
pub fn watch(request: hyper::Request<Incoming>) -> (hyper::Request<Body>, Option<Unread>) {
    use hyper::body::Body as _;
    if request.version() >= Version::HTTP_2 || request.body().is_end_stream() {
        return (request.map(|body| body.map_err(Into::into).boxed()), None);
    }
    let is_expected = request.headers().contains_key(EXPECT);
    let unread = Unread { is_expected, ..Unread::default() };
    let lender = unread.clone();
    let lend = |body| Lent { inner: Some(body), unread: lender }.boxed();
    (request.map(lend), Some(unread))
}

impl Unread {
    /// Whether the whole body has been read once this returns; otherwise the connection ends.
    pub async fn discard(self) -> bool {
        let rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut rest) = rest else { return true };
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
        !self.is_expected && tokio::time::timeout(PATIENCE, discarding).await.unwrap_or(false)
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
