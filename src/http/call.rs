//! A call: a request that found its route, with bounded ways to read what it brings.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use hyper::{HeaderMap, Method, Request, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::query::Query;
use super::router::Params;
use super::{Body, Error};

/// Who is at the other end of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Tcp(SocketAddr),
    /// The control socket, which only its owner can open.
    Unix,
    /// This process itself: the command line without a running service.
    InProcess,
}

impl Peer {
    /// Its address, over a network.
    #[must_use]
    pub const fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Unix | Self::InProcess => None,
        }
    }

    /// Whether it can only be the owner of the data folder.
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

/// How much of a body is read, and how patiently.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub body_bytes: usize,
    /// The longest time without a byte.
    pub body_idle: Duration,
}

/// A request that found its route.
pub struct Call {
    pub method: Method,
    pub path: String,
    pub query: Query,
    pub headers: HeaderMap,
    pub peer: Peer,
    pub request_id: String,
    params: Params,
    body: Option<Body>,
    /// Bytes of the body that were read.
    read: usize,
    limits: Limits,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({} {} {})", self.method, self.path, self.request_id)
    }
}

impl Call {
    /// A call of `request`, whose body is read under `limits`.
    #[must_use]
    pub fn new(
        request: Request<Body>,
        peer: Peer,
        request_id: String,
        params: Params,
        limits: Limits,
    ) -> Self {
        let (parts, body) = request.into_parts();
        Self {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            query: Query::parse(parts.uri.query()),
            headers: parts.headers,
            peer,
            request_id,
            params,
            body: Some(body),
            read: 0,
            limits,
        }
    }

    /// The part of the path that the route calls `name`; empty when it has none.
    #[must_use]
    pub fn param(&self, name: &str) -> &str {
        self.params.get(name)
    }

    /// The whole body; empty at a second call.
    ///
    /// # Errors
    /// 413 over the limit, before a byte is read where Content-Length tells; 408 when it stands
    /// still; 400 when it breaks off.
    pub async fn body(&mut self) -> Result<Bytes, Error> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.piece().await? {
            if whole.is_empty() && self.body.as_ref().is_some_and(Body::is_end_stream) {
                return Ok(piece);
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    /// The next piece of the body as it comes; `None` at its end, and from then on.
    ///
    /// # Errors
    /// As [`Call::body`].
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Error> {
        let Limits { body_bytes, body_idle } = self.limits;
        let Some(body) = &mut self.body else { return Ok(None) };
        if body.size_hint().lower() > body_bytes.saturating_sub(self.read) as u64 {
            return Err(Error::too_large(body_bytes));
        }
        loop {
            let frame = match tokio::time::timeout(body_idle, body.frame()).await {
                Ok(None) => {
                    self.body = None;
                    return Ok(None);
                }
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => {
                    return Err(Error::bad_request("the request body broke off").with_source(error));
                }
                Err(_elapsed) => {
                    let message = format!("no byte of the body came for {body_idle:?}");
                    return Err(Error::status(StatusCode::REQUEST_TIMEOUT, message));
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            self.read = self.read.saturating_add(data.len());
            if self.read > body_bytes {
                return Err(Error::too_large(body_bytes));
            }
            return Ok(Some(data));
        }
    }

    /// Gives a body back that was read, for the next reader.
    pub fn give_back(&mut self, bytes: Bytes) {
        self.read = 0;
        self.body = Some(super::body::full(bytes));
    }

    /// The body as a T; an empty one is an empty object.
    ///
    /// # Errors
    /// As [`Call::body`] and [`parse`].
    pub async fn json<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        parse(&self.body().await?)
    }
}

/// JSON of a request's body as a T. An empty body is an empty object; `Content-Type` is not asked
/// for.
///
/// # Errors
/// As [`parse_value`]; 400 with what serde says of the field when it is JSON of another shape.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    // In two steps: only so are "no JSON" and "JSON of another shape" told apart whatever T is.
    T::deserialize(parse_value(bytes)?).map_err(|error| wrong_shape(&error))
}

/// JSON of a request's body, of whatever shape. An empty body is an empty object.
///
/// # Errors
/// 400 `invalid JSON body` with line and column when it is no JSON.
pub fn parse_value(bytes: &[u8]) -> Result<Value, Error> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(json!({}));
    }
    serde_json::from_slice(bytes).map_err(|error| invalid_json(&error))
}

fn invalid_json(error: &serde_json::Error) -> Error {
    let (line, column) = (error.line(), error.column());
    let message = error.to_string();
    let place = format!(" at line {line} column {column}");
    let message = message.strip_suffix(&place).unwrap_or(&message);
    Error::bad_request("invalid JSON body")
        .with_details(json!({"line": line, "column": column, "message": message}))
}

fn wrong_shape(error: &serde_json::Error) -> Error {
    Error::bad_request(format!("invalid request body: {error}"))
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
