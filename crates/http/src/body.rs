//! Bodies of requests and responses: one boxed type, so that handlers need no type parameter.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, SizeHint};

use super::budget::Lease;

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that is read or written in pieces.
pub type Body = BoxBody<Bytes, BoxError>;

/// Creates a body that is complete in memory.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// Creates an empty body.
#[must_use]
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// Creates a body from a stream. Each piece is produced after the previous piece was consumed.
/// Dropping the body drops the stream and everything that the stream owns.
#[must_use]
pub fn stream(pieces: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static) -> Body {
    // `Body` must be `Sync`; the mutex provides that and is never locked.
    let mut pieces = Mutex::new(Box::pin(pieces));
    let frames = stream::poll_fn(move |context| {
        let pieces = pieces.get_mut().unwrap_or_else(PoisonError::into_inner);
        pieces.poll_next_unpin(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    });
    BodyExt::boxed(StreamBody::new(frames))
}

/// A body that keeps a value until it has been sent or dropped.
#[derive(Debug)]
pub struct Held<T> {
    inner: Body,
    _value: T,
}

impl<T> Held<T> {
    /// Wraps `inner`.
    #[must_use]
    pub const fn new(inner: Body, value: T) -> Self {
        Self { inner, _value: value }
    }
}

impl<T: Unpin> hyper::body::Body for Held<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A body that counts toward budgets while it exists: as one request in `requests`, and by its size
/// in `bytes`.
#[derive(Debug)]
pub struct Counted {
    inner: Body,
    bytes: Lease,
    _request: Option<Lease>,
}

impl Counted {
    /// Wraps `inner`. `bytes` already covers the part that `inner` holds in memory; later pieces
    /// are added as they arrive.
    #[must_use]
    pub fn new(inner: Body, bytes: Lease, request: Option<Lease>) -> Self {
        Self { inner, bytes, _request: request }
    }
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.bytes.force_to(data.len());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
