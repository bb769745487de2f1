//! A client: a request built in one line, and a response with the accessors that tests need.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use orrery_api::Role;
use serde_json::Value;

use super::conformance::{self, Exchange};
use super::within;

pub(super) type Connections = Client<HttpConnector, Full<Bytes>>;

/// A request being built.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    connections: Connections,
    role: Role,
    method: Method,
    host: String,
    /// The path prefix below which the host is served; usually empty.
    place: String,
    path: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Bytes,
    /// Whether the request, if accepted, must conform to the document.
    is_documented: bool,
}

impl Ask {
    /// Creates a request to the host of `role` at this address.
    pub(crate) fn new(
        connections: &Connections,
        role: Role,
        host: SocketAddr,
        method: Method,
        path: &str,
    ) -> Self {
        Self {
            connections: connections.clone(),
            role,
            method,
            host: host.to_string(),
            place: String::new(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
            is_documented: true,
        }
    }

    /// Sends the request to the host below its name, as on the port shared by all hosts.
    pub(super) fn below_name(self) -> Self {
        let name = self.role.as_str();
        let place = if self.role == Role::Base { String::new() } else { format!("/{name}") };
        Self { place, ..self }
    }

    /// Adds an API key in the `X-API-Key` header.
    pub(crate) fn key(self, key: &str) -> Self {
        self.header("x-api-key", key)
    }

    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        let text = body.to_string();
        self.header("content-type", "application/json").body(text)
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Exempts the request body from the OpenAPI conformance check.
    pub(crate) fn undocumented(mut self) -> Self {
        self.is_documented = false;
        self
    }

    /// Sends the request; returns the response with its body unread.
    pub(crate) async fn open(self) -> Response<Incoming> {
        let url = format!("http://{}{}{}", self.host, self.place, self.path);
        let mut request = Request::builder().method(self.method).uri(url);
        for (name, value) in &self.headers {
            request = request.header(name, value.as_slice());
        }
        let request = request.body(Full::new(self.body)).unwrap();
        within("answer", self.connections.request(request)).await.unwrap()
    }

    /// Sends the request, reads the whole response, and checks both against the host's document.
    pub(crate) async fn send(self) -> Answer {
        let sent = self.clone();
        let answer = self.open().await;
        let (parts, body) = answer.into_parts();
        let bytes = within("body", body.collect()).await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let answer = Answer { status: parts.status.as_u16(), headers: parts.headers, text };
        if sent.is_documented {
            assert!(
                !answer.header("warning").contains("unknown field"),
                "a documented field is not known"
            );
        }
        conformance::check(&Exchange {
            role: sent.role,
            method: &sent.method,
            path: sent.path.split('?').next().unwrap_or_default(),
            sent: if sent.is_documented { &sent.body } else { &[] },
            status: answer.status,
            headers: &answer.headers,
            text: &answer.text,
        });
        answer
    }
}

/// A response, read completely.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not valid JSON: {}", self.text))
    }

    /// Returns a header's value, or an empty string.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Checks the status; returns the body.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json()
    }

    /// Checks the status and the whole body, byte for byte.
    #[track_caller]
    pub(crate) fn expect_text(&self, status: u16, text: &str) {
        assert_eq!((self.status, self.text.as_str()), (status, text));
    }

    /// Checks an error in the format shared by all routes: the status and the message, nothing
    /// else.
    #[track_caller]
    pub(crate) fn expect_error(&self, status: u16, message: &str) {
        let message = Value::from(message);
        self.expect_text(status, &format!(r#"{{"error":{message},"status":{status}}}"#));
    }
}
