//! The access log: one line per request, written when the last byte of the response has been sent
//! or the client disconnects.
//!
//! Each line shows who made the request, what was requested, and the result. The line contains only
//! the request's method, path and ids, never a query string, a header, a body or a key.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, SizeHint};
use hyper::{Method, StatusCode};
use tokio::time::Instant;

use super::body::{Body, BoxError};
use super::{Peer, Response};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::trace::{Origin, Trace};

/// Maximum length of the path in a line, in characters.
const PATH_MAX: usize = 512;
/// Log target for access lines; the log filter always passes it.
const TARGET: &str = "orrery::access";
/// Log target for request lines while the access log is off, at debug level.
pub const DETAIL: &str = "orrery_api::dispatch";

/// Facts about a request, collected while it is handled and shared by all clones. Collects nothing
/// if no line will be written.
#[derive(Debug, Clone, Default)]
pub struct Note(Option<Arc<Known>>);

#[derive(Debug, Default)]
struct Known {
    organization: OnceLock<OrganizationId>,
    execution: OnceLock<ExecutionId>,
    origin: OnceLock<Option<Arc<Origin>>>,
}

impl Note {
    /// Creates a note that collects facts for a line.
    #[must_use]
    pub fn kept() -> Self {
        Self(Some(Arc::default()))
    }

    /// Returns whether a line will be written from this note.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Sets the organization of the request.
    pub fn of(&self, organization: OrganizationId) {
        if let Some(known) = &self.0 {
            let _first = known.organization.set(organization);
        }
    }

    /// Records the execution that the request started; later calls are ignored.
    pub fn started(&self, execution: ExecutionId) {
        if let Some(known) = &self.0 {
            let _first = known.execution.set(execution);
        }
    }

    /// Sets the request's origin.
    pub fn from(&self, origin: Option<Arc<Origin>>) {
        if let Some(known) = &self.0 {
            let _first = known.origin.set(origin);
        }
    }
}

/// The access line of a request.
#[derive(Debug)]
pub struct Line {
    pub request_id: String,
    pub host: &'static str,
    pub method: Method,
    pub path: String,
    /// The route pattern that the path matches; empty if no route matches.
    pub route: &'static str,
    pub peer: Peer,
    pub started: Instant,
    /// Whether the line belongs to the access log; otherwise it is a debug line.
    pub is_access: bool,
    pub note: Note,
}

impl Line {
    /// Wraps the response so that the line is written when the response ends.
    #[must_use]
    pub fn end_with(self, answer: Response) -> Response {
        let status = answer.status();
        let has_no_body = self.method == Method::HEAD || answer.body().is_end_stream();
        answer.map(|inner| Logged { inner, line: self, status, bytes: 0, has_no_body }.boxed())
    }

    fn write(&self, status: StatusCode, bytes: u64, is_whole: bool) {
        let known = self.note.0.as_deref();
        let organization = known.and_then(|known| known.organization.get());
        let execution = known.and_then(|known| known.execution.get());
        let origin = known.and_then(|known| known.origin.get()?.clone());
        let trace = match execution {
            Some(execution) => Some(Trace::new(*execution, origin).id()),
            None => origin.and_then(|origin| Some(origin.parent?.trace)),
        };
        let organization = organization.map(tracing::field::display);
        let execution = execution.map(tracing::field::display);
        let trace_id = trace.as_ref().map(tracing::field::display);
        let path: &str = match self.path.char_indices().nth(PATH_MAX) {
            Some((end, _)) => self.path.get(..end).unwrap_or_default(),
            None => &self.path,
        };
        let aborted = (!is_whole).then_some(true);
        let duration_ms = self.started.elapsed().as_secs_f64() * 1000.0;
        let Self { request_id, host, method, route, peer, .. } = self;
        let status = status.as_u16();
        if self.is_access {
            tracing::info!(
                target: TARGET,
                %request_id, trace_id, organization, execution, host, %method, route, path, %peer,
                status, bytes, duration_ms, aborted, "request"
            );
        } else {
            tracing::debug!(
                target: DETAIL,
                %request_id, trace_id, organization, execution, host, %method, route, path, %peer,
                status, bytes, duration_ms, aborted, "request"
            );
        }
    }
}

/// A body that writes its access line when it is dropped.
struct Logged {
    inner: Body,
    line: Line,
    status: StatusCode,
    bytes: u64,
    /// The body is empty or has been sent completely.
    has_no_body: bool,
}

impl hyper::body::Body for Logged {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.inner).poll_frame(context);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                this.bytes = this.bytes.saturating_add(length as u64);
            }
            Poll::Ready(None) => this.has_no_body = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
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

impl Drop for Logged {
    fn drop(&mut self) {
        let is_whole = self.has_no_body || self.inner.is_end_stream();
        self.line.write(self.status, self.bytes, is_whole);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::body;
    use super::*;
    use orrery_runtime::{CapturedLog, monotonic_now};

    /// Returns the lines written for a response after `reads` frames of its body have been read.
    async fn lines(line: Line, answer: Response, reads: usize) -> Vec<Value> {
        let written = CapturedLog::default();
        let sink = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(move || sink.clone())
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let mut body = line.end_with(answer).into_body();
        for _ in 0..reads {
            body.frame().await;
        }
        assert_eq!(written.text(), "", "a line before the end");
        drop(body);
        let text = written.text();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn line(is_access: bool, note: Note) -> Line {
        Line {
            request_id: "r-1".to_owned(),
            host: "base",
            method: Method::POST,
            path: "/v1/prediction".to_owned(),
            route: "/v1/prediction",
            peer: Peer::Unix,
            started: monotonic_now(),
            is_access,
            note,
        }
    }

    fn answer(text: &'static str) -> Response {
        hyper::Response::new(body::full(text))
    }

    #[tokio::test]
    async fn access_line_has_caller_and_result() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let note = Note::kept();
        note.from(Origin::read(Some(parent), None, None));
        note.of([1; 16].into());
        note.started([7; 16].into());
        note.started([8; 16].into());
        let written = lines(line(true, note), answer("hello"), 2).await;
        let [written] = written.as_slice() else { panic!("{written:?}") };
        for (name, value) in [
            ("target", "orrery::access"),
            ("level", "INFO"),
            ("message", "request"),
            ("request_id", "r-1"),
            ("trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"),
            ("organization", "01010101-0101-0101-0101-010101010101"),
            ("execution", "07070707-0707-0707-0707-070707070707"),
            ("host", "base"),
            ("method", "POST"),
            ("route", "/v1/prediction"),
            ("path", "/v1/prediction"),
            ("peer", "unix"),
        ] {
            assert_eq!(written[name], value, "{written}");
        }
        assert_eq!((&written["status"], &written["bytes"]), (&200.into(), &5.into()), "{written}");
        assert!(written["duration_ms"].as_f64().unwrap() >= 0.0);
        assert!(written.get("aborted").is_none(), "{written}");
    }

    #[tokio::test]
    async fn access_line_of_execution_without_caller_has_its_own_trace() {
        let note = Note::kept();
        note.started([7; 16].into());
        let written = lines(line(true, note), answer(""), 0).await;
        assert_eq!(written[0]["trace_id"], "07".repeat(16));
        assert!(written[0].get("aborted").is_none(), "an empty body was sent: {written:?}");
    }

    #[tokio::test]
    async fn access_line_marks_aborted_answer() {
        let mut line = line(false, Note::kept());
        line.path = "/é".repeat(PATH_MAX);
        let pieces = [Ok(Bytes::from_static(b"ab")), Ok(Bytes::from_static(b"cd"))];
        let pieces = futures_util::stream::iter(pieces);
        let written = lines(line, hyper::Response::new(body::stream(pieces)), 1).await;
        let written = &written[0];
        assert_eq!((&written["bytes"], &written["aborted"]), (&2.into(), &true.into()));
        assert_eq!((&written["level"], &written["target"]), (&"DEBUG".into(), &DETAIL.into()));
        assert_eq!(written["path"].as_str().unwrap().chars().count(), PATH_MAX);
        assert!(written.get("organization").is_none() && written.get("trace_id").is_none());
    }
}
