//! The error of a handler. This error wraps the error type of `http`, so that errors of the lower
//! layers convert to it with `?`. `error_mapping` contains the conversions.

use std::fmt;
use std::num::TryFromIntError;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use orrery_http as http;
use orrery_http::body::BoxError;
use orrery_http::error::OpenAi;
use orrery_wire::request::Mismatch;

/// A rejected or failed request.
#[derive(Debug)]
pub struct Error(http::Error);

impl Error {
    /// Creates an error with any status and a message for the client.
    #[must_use]
    pub fn status(status: StatusCode, message: impl Into<String>) -> Self {
        Self(http::Error::status(status, message))
    }

    /// Creates a 400.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self(http::Error::bad_request(message))
    }

    /// Creates a 401 with the exact body that `docs/spec/hosts.md`, "Authentication", specifies.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self(http::Error::unauthorized())
    }

    /// Creates a 404.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self(http::Error::not_found(message))
    }

    /// Creates a 409.
    #[must_use]
    pub fn conflict(message: impl Into<String>) -> Self {
        Self(http::Error::conflict(message))
    }

    /// Creates a 413.
    #[must_use]
    pub fn too_large(limit_bytes: usize) -> Self {
        Self(http::Error::too_large(limit_bytes))
    }

    /// Creates a 422.
    #[must_use]
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self(http::Error::unprocessable(message))
    }

    /// Creates a 429 with `Retry-After`.
    #[must_use]
    pub fn too_many(message: impl Into<String>, retry_after: Duration) -> Self {
        Self(http::Error::too_many(message, retry_after))
    }

    /// Creates a 503 with `Retry-After`, caused by load.
    #[must_use]
    pub fn busy(message: impl Into<String>) -> Self {
        Self(http::Error::busy(message))
    }

    /// Creates a 500. The client gets the message `internal error`, and the log gets `source`.
    #[must_use]
    pub fn internal(source: impl Into<BoxError>) -> Self {
        Self(http::Error::internal(source))
    }

    /// Creates a 503.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self(http::Error::unavailable(message))
    }

    /// Omits `status` from the body.
    #[must_use]
    pub fn bare(self) -> Self {
        Self(self.0.bare())
    }

    /// Adds `details` to the body.
    #[must_use]
    pub fn with_details(self, details: impl serde::Serialize) -> Self {
        Self(self.0.with_details(details))
    }

    /// Adds a suggestion, unless the error already has details.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self(self.0.with_hint(hint))
    }

    /// Suggests `near`, the existing name or path that is most similar to an unknown one, if any.
    #[must_use]
    pub fn with_near(self, near: Option<String>) -> Self {
        match near {
            Some(near) => self.with_hint(format!("did you mean {near}?")),
            None => self,
        }
    }

    /// Adds the error fields that OpenAI clients read.
    #[must_use]
    pub fn with_open_ai(self, open_ai: OpenAi) -> Self {
        Self(self.0.with_open_ai(open_ai))
    }

    /// Adds a header to the response.
    #[must_use]
    pub fn with_header(self, name: HeaderName, value: HeaderValue) -> Self {
        Self(self.0.with_header(name, value))
    }

    /// Adds a cause that is logged but not sent to the client.
    #[must_use]
    pub fn with_source(self, source: impl Into<BoxError>) -> Self {
        Self(self.0.with_source(source))
    }

    /// Converts the error to a response.
    #[must_use]
    pub fn into_response(self) -> http::Response {
        self.0.into_response()
    }

    /// Converts the error to a response for clients of OpenAI's API.
    #[must_use]
    pub fn into_open_ai_response(self) -> http::Response {
        self.0.into_open_ai_response()
    }

    /// Converts the error to a response for clients of OpenAI's API, also if it is a 401.
    #[must_use]
    pub fn into_open_ai_envelope(self) -> http::Response {
        self.0.into_open_ai_envelope()
    }

    /// Converts the error to a response for clients of Replicate's API.
    #[must_use]
    pub fn into_problem(self) -> http::Response {
        self.0.into_problem()
    }

    /// Converts the error to a response for clients of Anthropic's API.
    #[must_use]
    pub fn into_anthropic_response(self, request_id: &str) -> http::Response {
        self.0.into_anthropic_response(request_id)
    }
}

impl Deref for Error {
    type Target = http::Error;

    fn deref(&self) -> &http::Error {
        &self.0
    }
}

impl DerefMut for Error {
    fn deref_mut(&mut self) -> &mut http::Error {
        &mut self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {}

impl From<http::Error> for Error {
    fn from(error: http::Error) -> Self {
        Self(error)
    }
}

impl From<Mismatch> for Error {
    fn from(mismatch: Mismatch) -> Self {
        Self(mismatch.into())
    }
}

impl From<TryFromIntError> for Error {
    fn from(error: TryFromIntError) -> Self {
        Self(error.into())
    }
}
