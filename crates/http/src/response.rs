//! Constructors for the few kinds of responses that handlers return.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;

use super::body::{self, Body};

/// A response to a client.
pub type Response = hyper::Response<Body>;

/// Creates a JSON response.
#[must_use]
pub fn json<T: Serialize + ?Sized>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => json_text(status, bytes.into()),
        Err(error) => {
            tracing::error!(%error, "cannot serialize response");
            empty(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

/// Creates a response whose JSON is already serialized.
#[must_use]
pub fn json_text(status: StatusCode, text: Bytes) -> Response {
    with_type(status, HeaderValue::from_static("application/json"), text)
}

/// Creates a response of plain UTF-8 text.
#[must_use]
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Response {
    with_type(status, HeaderValue::from_static("text/plain; charset=utf-8"), text.into())
}

/// Creates a response with `bytes` of the given type.
#[must_use]
pub fn with_type(status: StatusCode, content_type: HeaderValue, bytes: Bytes) -> Response {
    let mut response = hyper::Response::new(body::full(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Creates a response without a body.
#[must_use]
pub fn empty(status: StatusCode) -> Response {
    let mut response = hyper::Response::new(body::empty());
    *response.status_mut() = status;
    response
}
