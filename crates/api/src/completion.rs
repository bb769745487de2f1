//! Chat completions that requests in other formats become, and the translation of their answers. A
//! completion passes through `chat`, so routing, prices, fallback chains and the history are the
//! same for all formats.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::{HeaderMap, StatusCode};
use orrery_dialects::{Answer, Event, Request, Unreadable, chat as dialect};
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::Services;
use super::chat::X_EXECUTION_ID;
use orrery_http::budget::Lease;
use orrery_http::event_stream::EventReader;
use orrery_http::request::busy;
use orrery_http::sse::HEARTBEAT;
use orrery_http::{Body, Response, answers, response};

/// Maximum size of an event of the model's stream, in bytes: the router's own limit, and room for
/// what it adds.
const EVENT_MAX: usize = 17 * 1024 * 1024;
/// Bytes of a stream in memory that do not count toward the budget of bodies in flight.
const STREAM_FREE: usize = 64 * 1024;
/// Memory that a byte of a stream takes if its translation keeps it: the byte is in an item, and in
/// the last events.
const KEPT_COPIES: usize = 3;

/// Writes the request as a chat completion.
///
/// # Errors
/// An internal error; the request can always be written.
pub(crate) async fn write(services: &Services, request: &Request) -> Result<Bytes, crate::Error> {
    let server = server_of(services, &request.model).await;
    let body = serde_json::to_vec(&dialect::write(request, server));
    Ok(body.map_err(crate::Error::internal)?.into())
}

/// Returns the kind of server that a model has.
pub(crate) async fn server_of(services: &Services, model: &str) -> dialect::ModelServer {
    match services.chat.is_own(model).await {
        true => dialect::ModelServer::Own,
        false => dialect::ModelServer::Other,
    }
}

/// Returns the ID of the call, in the history, that produced an answer.
pub(crate) fn execution_of(answer: &Response) -> Option<&str> {
    answer.headers().get(X_EXECUTION_ID)?.to_str().ok()
}

pub(crate) fn is_stream(answer: &Response) -> bool {
    let kind = answer.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Returns the error for an answer that cannot be translated.
fn unreadable(error: Unreadable) -> crate::Error {
    crate::Error::status(StatusCode::BAD_GATEWAY, error.to_string())
}

/// Translates a complete answer with `translate`. Returns also the headers of the answer.
///
/// # Errors
/// 502 if the answer cannot be translated.
pub(crate) async fn translate<T: Send + 'static>(
    answer: Response,
    translate: impl FnOnce(Answer) -> Result<T, Unreadable> + Send + 'static,
) -> Result<(HeaderMap, T), crate::Error> {
    let headers = answer.headers().clone();
    let text = text_of(answer).await?;
    Ok((headers, translated(text, translate).await?))
}

/// Returns the text of a complete answer.
///
/// # Errors
/// An internal error if the body cannot be read.
pub(crate) async fn text_of(answer: Response) -> Result<Bytes, crate::Error> {
    Ok(answer.into_body().collect().await.map_err(crate::Error::internal)?.to_bytes())
}

/// Translates the text of a complete answer.
///
/// # Errors
/// As [`translate`].
pub(crate) async fn translated<T: Send + 'static>(
    text: Bytes,
    translate: impl FnOnce(Answer) -> Result<T, Unreadable> + Send + 'static,
) -> Result<T, crate::Error> {
    let length = text.len();
    let translated =
        answers::parse_aside(length, move || translate(dialect::read_answer(&text)?)).await;
    let translated = translated.ok_or_else(|| crate::Error::internal("no translation"))?;
    translated.map_err(unreadable)
}

/// Returns a translated answer with the headers of the completion.
pub(crate) fn respond(headers: &HeaderMap, body: &impl Serialize) -> Response {
    let mut answer = response::json(StatusCode::OK, body);
    for (name, value) in headers {
        if name != CONTENT_TYPE && name != CONTENT_LENGTH {
            answer.headers_mut().append(name, value.clone());
        }
    }
    answer
}

/// Adds the headers of a completion to a translated stream.
pub(crate) fn with_headers(mut answer: Response, headers: &HeaderMap) -> Response {
    for (name, value) in headers {
        if !answer.headers().contains_key(name) {
            answer.headers_mut().append(name, value.clone());
        }
    }
    answer
}

/// The next part of a completion's stream.
#[derive(Debug)]
pub(crate) enum Came {
    Events(Vec<Event>),
    /// Nothing for a while, or a comment that keeps the connection alive.
    Silence,
    /// The answer is complete.
    Done,
    /// The stream broke.
    Broken(Fault),
}

/// Why a stream broke.
#[derive(Debug)]
pub(crate) struct Fault {
    /// The type of the error in OpenAI's format.
    pub kind: &'static str,
    pub message: String,
}

impl Fault {
    fn of_upstream(message: impl std::fmt::Display) -> Self {
        Self { kind: "upstream_error", message: message.to_string() }
    }
}

/// What a translation keeps of a stream until its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    Nothing,
    /// The arguments of tool calls.
    Calls,
    Everything,
}

/// A completion's stream. Dropping it ends the call.
#[derive(Debug)]
pub(crate) struct Incoming {
    body: Body,
    events: EventReader,
    reader: dialect::StreamReader,
    keeps: Keeps,
    /// The bytes that the translation keeps.
    kept: usize,
    /// Reserves memory for the incomplete event, and for what the translation keeps.
    lease: Lease,
}

impl Incoming {
    pub(crate) fn new(body: Body, keeps: Keeps, lease: Lease) -> Self {
        Self {
            body,
            events: EventReader::new(EVENT_MAX),
            reader: dialect::StreamReader::default(),
            keeps,
            kept: 0,
            lease,
        }
    }

    /// Reads a piece of the stream.
    fn push(&mut self, piece: &[u8]) -> Result<(), Fault> {
        self.events.push(piece);
        if self.keeps == Keeps::Everything {
            self.kept = self.kept.saturating_add(piece.len());
        }
        self.reserve()
    }

    fn reserve(&mut self) -> Result<(), Fault> {
        let kept = self.kept.saturating_mul(KEPT_COPIES);
        let held = self.events.pending().saturating_add(kept);
        if held <= STREAM_FREE {
            return Ok(());
        }
        let full = |_| Fault { kind: "rate_limit_error", message: busy().message };
        self.lease.grow_to(held).map_err(full)
    }

    /// Waits for the next part, or for the heartbeat after `last_sent`. After [`Came::Done`] and
    /// [`Came::Broken`] there is none.
    pub(crate) async fn next(&mut self, last_sent: Instant) -> Came {
        let beat = last_sent.checked_add(HEARTBEAT).unwrap_or(last_sent);
        loop {
            if let Some(came) = self.ready() {
                return came;
            }
            match timeout_at(beat, self.body.frame()).await {
                Err(_elapsed) => return Came::Silence,
                Ok(Some(Ok(frame))) => {
                    if let Ok(piece) = frame.into_data()
                        && let Err(fault) = self.push(&piece)
                    {
                        return Came::Broken(fault);
                    }
                }
                Ok(Some(Err(_)) | None) => {
                    let reason = "the stream ended before the answer was complete";
                    return Came::Broken(Fault::of_upstream(reason));
                }
            }
        }
    }

    /// Returns the next part if it has arrived.
    pub(crate) fn ready(&mut self) -> Option<Came> {
        loop {
            let event = match self.events.next_event() {
                Ok(event) => event?,
                Err(too_long) => return Some(Came::Broken(Fault::of_upstream(too_long))),
            };
            match event.data.as_deref().map(<[u8]>::trim_ascii) {
                None => return Some(Came::Silence),
                Some(b"") => {}
                Some(b"[DONE]") => return Some(Came::Done),
                Some(data) => match self.reader.event(data) {
                    Ok(events) if events.is_empty() => {}
                    Ok(events) => return Some(self.came(events)),
                    Err(error) => return Some(Came::Broken(Fault::of_upstream(error))),
                },
            }
        }
    }

    fn came(&mut self, events: Vec<Event>) -> Came {
        if self.keeps == Keeps::Calls {
            for event in &events {
                if let Event::ToolArguments { text, .. } = event {
                    self.kept = self.kept.saturating_add(text.len());
                }
            }
            if let Err(fault) = self.reserve() {
                return Came::Broken(fault);
            }
        }
        Came::Events(events)
    }
}
