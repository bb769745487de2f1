//! Bodies, of requests and replies alike: one boxed type, so that handlers need no type parameter.

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};

/// Whatever a body can fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that is read or written in pieces.
pub type Body = BoxBody<Bytes, BoxError>;

/// A body that is there whole.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// A body of no bytes.
#[must_use]
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}
