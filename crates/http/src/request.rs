//! A routed request, with size- and time-limited ways to read its body.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame};
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use memchr::memchr2;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::access_log::Note;
use super::body::BoxError;
use super::budget::Lease;
use super::content;
use super::fields::FieldCheck;
use super::query::Query;
use super::router::Params;
use super::{Body, Error};
use orrery_domain::json_fault;
use orrery_runtime as runtime;
use orrery_wire::error::Position;

/// The client's end of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Tcp(SocketAddr),
    /// The control socket, which only its owner can open.
    Unix,
    /// This process: the command line without a running service.
    InProcess,
}

impl Peer {
    /// Returns the peer's address, if it is connected over a network.
    #[must_use]
    pub const fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Unix | Self::InProcess => None,
        }
    }

    /// Returns whether the peer can only be the owner of the data folder.
    #[must_use]
    pub const fn is_local_owner(&self) -> bool {
        matches!(self, Self::Unix | Self::InProcess)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix => f.write_str("unix"),
            Self::InProcess => f.write_str("in-process"),
        }
    }
}

/// Maximum number of JSON values in one body: the parsed tree of a body with more values would be
/// several times the body's size.
pub const JSON_VALUES_MAX: usize = 1_000_000;
/// Maximum expansion ratio of gzip or deflate: output bytes per input byte.
const INFLATED: usize = 1032;
/// Bytes that one JSON value takes in the parsed tree.
const VALUE_BYTES: usize = size_of::<Value>();

/// Limits on the size and pace of a body. Only the time spent waiting for the client counts.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub body_bytes: usize,
    /// Maximum time without a byte; also the grace period before `body_rate` applies.
    pub body_idle: Duration,
    /// Maximum time for the complete body; `None` for a body that is streamed to disk.
    pub body_total: Option<Duration>,
    /// Minimum average rate, in bytes per second.
    pub body_rate: usize,
}

/// A request that was matched to a route.
pub struct Request {
    pub method: Method,
    pub path: String,
    pub query: Query,
    pub headers: HeaderMap,
    pub peer: Peer,
    pub request_id: String,
    /// Collects facts for the access log line.
    pub note: Note,
    params: Params,
    body: Option<Body>,
    /// Bytes of the body read so far.
    read: usize,
    /// Time spent waiting for the client.
    waited: Duration,
    /// The part of the body that has been read but not yet returned to the handler.
    held: BytesMut,
    /// The lease for the part of the body that is in memory.
    lease: Lease,
    limits: Limits,
    /// The check for unknown fields in the body.
    pub fields: Option<FieldCheck>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({} {} {})", self.method, self.path, self.request_id)
    }
}

impl Request {
    /// Adds a warning about a probable mistake to a successful response. The sentence is also sent
    /// as a header value, so any names in it must be valid in a header.
    pub fn warn(&self, sentence: impl Into<String>) {
        if let Some(fields) = &self.fields {
            fields.add(sentence.into());
        }
    }

    /// Creates a request whose body is read under `limits`; the part in memory is charged to the
    /// budget of `lease`.
    #[must_use]
    pub fn new(
        request: hyper::Request<Body>,
        peer: Peer,
        request_id: String,
        params: Params,
        limits: Limits,
        lease: Lease,
    ) -> Self {
        let (parts, body) = request.into_parts();
        Self {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            query: Query::parse(parts.uri.query()),
            headers: parts.headers,
            peer,
            request_id,
            note: Note::default(),
            params,
            body: Some(body),
            read: 0,
            waited: Duration::ZERO,
            held: BytesMut::new(),
            lease,
            limits,
            fields: None,
        }
    }

    /// Returns the path parameter `name`; empty if there is none.
    #[must_use]
    pub fn param(&self, name: &str) -> &str {
        self.params.get(name)
    }

    /// Returns whether the request has an unread body.
    #[must_use]
    pub fn has_body(&self) -> bool {
        self.body.as_ref().is_some_and(|body| !body.is_end_stream()) || !self.held.is_empty()
    }

    /// Reads the entire body; a second call returns an empty body. The body and the tree of its
    /// parsed JSON values count toward the budget until the last clone of the bytes is dropped.
    ///
    /// # Errors
    /// 413 if the body exceeds the limit (before any byte is read, if `Content-Length` exceeds it)
    /// or has too many JSON values; 408 if the body is too slow; 400 if the body ends prematurely;
    /// 503 if the budget is exhausted.
    pub async fn body(&mut self) -> Result<Bytes, Error> {
        self.buffer(self.limits.body_bytes).await?;
        // A body of exactly the maximum size is allowed: this loop reads the end of the body, or
        // refuses further bytes.
        while let Some(chunk) = self.next_chunk().await? {
            self.keep(&chunk)?;
        }
        let whole = std::mem::take(&mut self.held).freeze();
        let whole = self.decoded(whole)?;
        let whole = self.in_utf8(whole)?;
        reserve_values(&mut self.lease, &whole)?;
        if let Some(fields) = &self.fields {
            fields.look(&whole)?;
        }
        Ok(self.lease.split().bind(whole))
    }

    /// Decodes the content codings in `Content-Encoding`.
    fn decoded(&mut self, body: Bytes) -> Result<Bytes, Error> {
        if !self.headers.contains_key(CONTENT_ENCODING) {
            return Ok(body);
        }
        let limit = self.limits.body_bytes;
        self.lease.grow(limit.min(body.len().saturating_mul(INFLATED))).map_err(|_full| busy())?;
        content::decode(&mut self.headers, body, limit).map_err(|error| {
            let message = error.to_string();
            match error {
                content::Error::TooLarge(limit) => Error::too_large(limit),
                content::Error::Coding(_) => {
                    Error::status(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
                        .with_header(ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate"))
                }
                content::Error::Damaged(_)
                | content::Error::Charset(_)
                | content::Error::Text(_)
                | content::Error::Json(_)
                | content::Error::TooManyValues(_)
                | content::Error::Number(_) => Error::bad_request(message),
            }
        })
    }

    /// Converts the body to UTF-8 if the body's byte-order mark or `Content-Type` specifies another
    /// character set.
    fn in_utf8(&mut self, body: Bytes) -> Result<Bytes, Error> {
        if content::is_utf8(&self.headers, &body) {
            return Ok(body);
        }
        // Each byte of another character set becomes at most three bytes.
        self.lease.grow(body.len().saturating_mul(3)).map_err(|_full| busy())?;
        let text = content::text(&self.headers, &body);
        let text = text.map_err(|error| Error::bad_request(error.to_string()))?;
        Ok(Bytes::from(text.into_owned()))
    }

    /// Returns the first `most` bytes of the body (or the entire body, if it is shorter) in UTF-8,
    /// with invalid bytes replaced. [`Request::body`] still returns these bytes.
    ///
    /// # Errors
    /// As [`Request::body`].
    pub async fn peek(&mut self, most: usize) -> Result<Cow<'_, [u8]>, Error> {
        self.buffer(most).await?;
        let bytes = self.held.get(..most).unwrap_or(&self.held);
        if !content::is_utf8(&self.headers, bytes) {
            self.lease.grow(bytes.len().saturating_mul(3)).map_err(|_full| busy())?;
        }
        Ok(content::start(&self.headers, bytes))
    }

    /// Reads until `most` bytes are buffered or the body ends.
    async fn buffer(&mut self, most: usize) -> Result<(), Error> {
        if let Some(body) = &self.body {
            let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
            let wanted = announced.saturating_add(self.held.len());
            if wanted > self.limits.body_bytes {
                return Err(Error::too_large(self.limits.body_bytes));
            }
            let wanted = wanted.min(most);
            self.lease.grow_to(wanted).map_err(|_full| busy())?;
            self.held.reserve(wanted.saturating_sub(self.held.len()));
        }
        while self.held.len() < most {
            let Some(chunk) = self.next_chunk().await? else { return Ok(()) };
            self.keep(&chunk)?;
        }
        Ok(())
    }

    /// Buffers a chunk, charging it to the budget.
    fn keep(&mut self, chunk: &Bytes) -> Result<(), Error> {
        let length = self.held.len().saturating_add(chunk.len());
        if length > self.held.capacity() {
            // The buffer's capacity doubles when it grows.
            self.lease.grow_to(length.saturating_mul(2)).map_err(|_full| busy())?;
        }
        self.held.extend_from_slice(chunk);
        Ok(())
    }

    /// Returns the next chunk of the body as it arrives; `None` at the end. Chunks do not count
    /// toward the budget: a handler that reads chunks one at a time has only one chunk in memory.
    ///
    /// # Errors
    /// As [`Request::body`].
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let Limits { body_bytes, .. } = self.limits;
        let Some(body) = &self.body else { return Ok(None) };
        if body.size_hint().lower() > body_bytes.saturating_sub(self.read) as u64 {
            return Err(Error::too_large(body_bytes));
        }
        loop {
            let frame = match self.next_frame().await? {
                None => {
                    self.body = None;
                    return Ok(None);
                }
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    return Err(
                        Error::bad_request("the request body ended early").with_source(error)
                    );
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            if data.is_empty() {
                continue;
            }
            self.read = self.read.saturating_add(data.len());
            if self.read > body_bytes {
                return Err(Error::too_large(body_bytes));
            }
            return Ok(Some(data));
        }
    }

    /// Reads the next frame of the body, within the time limits.
    async fn next_frame(&mut self) -> Result<Option<Result<Frame<Bytes>, BoxError>>, Error> {
        let (patience, too_slow) = self.patience();
        let Some(body) = &mut self.body else { return Ok(None) };
        // Data that has already arrived needs no timer.
        if let Some(frame) = body.frame().now_or_never() {
            return Ok(frame);
        }
        let asked = runtime::monotonic_now();
        let frame = tokio::time::timeout(patience, body.frame()).await;
        self.waited = self.waited.saturating_add(asked.elapsed());
        frame.map_err(|_elapsed| {
            Error::status(StatusCode::REQUEST_TIMEOUT, too_slow.message(&self.limits))
        })
    }

    /// Returns the time limit for the next byte, and the kind of the limit.
    fn patience(&self) -> (Duration, TooSlow) {
        let Limits { body_idle, body_total, body_rate, .. } = self.limits;
        let mut least = (body_idle, TooSlow::Idle);
        let earned = Duration::from_secs_f64(self.read as f64 / body_rate.max(1) as f64);
        let by_rate = body_idle.saturating_add(earned).saturating_sub(self.waited);
        if by_rate < least.0 {
            least = (by_rate, TooSlow::Rate);
        }
        if let Some(total) = body_total {
            let left = total.saturating_sub(self.waited);
            if left < least.0 {
                least = (left, TooSlow::Total);
            }
        }
        least
    }

    /// Parses the body as a T; an empty body is an empty object.
    ///
    /// # Errors
    /// As [`Request::body`] and [`parse`].
    pub async fn json<T: DeserializeOwned + JsonSchema + 'static>(&mut self) -> Result<T, Error> {
        parse(&self.body().await?)
    }
}

/// The kind of time limit that a body exceeded.
#[derive(Debug, Clone, Copy)]
enum TooSlow {
    Idle,
    Rate,
    Total,
}

impl TooSlow {
    fn message(self, limits: &Limits) -> String {
        let Limits { body_idle, body_total, body_rate, .. } = limits;
        match self {
            Self::Idle => format!("no byte of the body arrived for {body_idle:?}"),
            Self::Rate => format!("the body arrived slower than {body_rate} bytes per second"),
            Self::Total => {
                let total = body_total.unwrap_or_default();
                format!("the body took longer than {total:?}")
            }
        }
    }
}

/// Returns the error for a request that is refused because the bodies of requests and responses
/// have reached `limits.bodies_in_flight`.
#[must_use]
pub fn busy() -> Error {
    Error::busy("too many bodies are in flight; try again in a moment")
}

/// Reserves memory for the parsed JSON values of a body.
///
/// # Errors
/// 413 if the body has too many JSON values; 503 if the budget is exhausted.
pub fn reserve_values(lease: &mut Lease, body: &[u8]) -> Result<(), Error> {
    let values = count_values(body);
    if values > JSON_VALUES_MAX {
        let message = format!("the request body holds more than {JSON_VALUES_MAX} JSON values");
        return Err(Error::status(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    lease.grow(values.saturating_mul(VALUE_BYTES)).map_err(|_full| busy())
}

/// Returns an upper bound of the number of JSON values in `text`, field names included, without
/// parsing it.
#[must_use]
pub fn count_values(text: &[u8]) -> usize {
    let mut values = 1_usize;
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'"' => rest = after_string(after),
            b',' | b':' | b'[' | b'{' => values = values.saturating_add(1),
            _ => {}
        }
    }
    values
}

/// Returns the text after the closing quote of a JSON string. `text` begins after the opening
/// quote.
fn after_string(text: &[u8]) -> &[u8] {
    let mut rest = text;
    loop {
        let Some(at) = memchr2(b'"', b'\\', rest) else { return &[] };
        let is_end = rest.get(at) == Some(&b'"');
        // A backslash escapes the byte that follows it.
        let length = if is_end { 1 } else { 2 };
        rest = rest.get(at.saturating_add(length)..).unwrap_or_default();
        if is_end {
            return rest;
        }
    }
}

/// Parses the JSON of a request's body as a T, and checks it against the schema of T. An empty body
/// is an empty object; `Content-Type` is ignored.
///
/// # Errors
/// As [`parse_value`]; 400 if the JSON does not match the schema, with the location of the
/// mismatch.
pub fn parse<T: DeserializeOwned + JsonSchema + 'static>(bytes: &[u8]) -> Result<T, Error> {
    Ok(orrery_wire::request::read(parse_value(bytes)?)?)
}

/// Parses the JSON of a request's body, of any shape. An empty body is an empty object.
///
/// # Errors
/// 400 `invalid JSON body` with line and column for invalid JSON, and 400 for an integer beyond 64
/// bits.
pub fn parse_value(bytes: &[u8]) -> Result<Value, Error> {
    let bytes = content::without_mark(bytes);
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(json!({}));
    }
    let value = serde_json::from_slice(bytes).map_err(|error| invalid_json(bytes, &error))?;
    match content::check_numbers(bytes) {
        Ok(()) => Ok(value),
        Err(error) => Err(Error::bad_request(format!("invalid JSON body: {error}"))),
    }
}

fn invalid_json(bytes: &[u8], error: &serde_json::Error) -> Error {
    let line = error.line();
    let column = error.column();
    let message = json_fault::sentence(bytes, error);
    let message = message.as_str();
    let placed = json_fault::with_position(bytes, error);
    Error::bad_request("invalid JSON body")
        .with_details(Position { line, column, message })
        .with_explanation(format!("invalid JSON body: {placed}"))
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
