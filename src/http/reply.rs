//! Replies: the few shapes that handlers answer with.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::body::{self, Body};

/// What goes back to the client.
pub type Reply = Response<Body>;

/// A reply of JSON.
#[must_use]
pub fn json<T: Serialize + ?Sized>(status: StatusCode, value: &T) -> Reply {
    match serde_json::to_vec(value) {
        Ok(bytes) => json_text(status, bytes.into()),
        Err(error) => {
            tracing::error!(%error, "a reply has no JSON form");
            empty(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

/// A reply of JSON that is text already.
#[must_use]
pub fn json_text(status: StatusCode, text: Bytes) -> Reply {
    with_type(status, HeaderValue::from_static("application/json"), text)
}

/// A reply of plain text in UTF-8.
#[must_use]
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Reply {
    with_type(status, HeaderValue::from_static("text/plain; charset=utf-8"), text.into())
}

/// A reply of bytes of the given type.
#[must_use]
pub fn with_type(status: StatusCode, content_type: HeaderValue, bytes: Bytes) -> Reply {
    let mut reply = Response::new(body::full(bytes));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, content_type);
    reply
}

/// A reply without a body.
#[must_use]
pub fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(body::empty());
    *reply.status_mut() = status;
    reply
}
