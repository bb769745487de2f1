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
use orrery_http::event_stream::EventReader;
use orrery_http::sse::HEARTBEAT;
use orrery_http::{Body, Response, answers, response};

/// Maximum size of an event of the model's stream, in bytes: the router's own limit, and room for
/// what it adds.
const EVENT_MAX: usize = 17 * 1024 * 1024;

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
    let (parts, body) = answer.into_parts();
    let text = body.collect().await.map_err(crate::Error::internal)?.to_bytes();
    Ok((parts.headers, translated(text, translate).await?))
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
    /// The stream broke: the reason.
    Broken(String),
}

/// A completion's stream. Dropping it ends the call.
#[derive(Debug)]
pub(crate) struct Incoming {
    body: Body,
    events: EventReader,
    reader: dialect::StreamReader,
    /// The bytes of data so far.
    bytes: usize,
}

impl Incoming {
    pub(crate) fn new(body: Body) -> Self {
        Self {
            body,
            events: EventReader::new(EVENT_MAX),
            reader: dialect::StreamReader::default(),
            bytes: 0,
        }
    }

    /// Returns the bytes of data that have arrived.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
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
                    if let Ok(piece) = frame.into_data() {
                        self.bytes = self.bytes.saturating_add(piece.len());
                        self.events.push(&piece);
                    }
                }
                Ok(Some(Err(_)) | None) => {
                    let reason = "the stream ended before the answer was complete";
                    return Came::Broken(reason.to_owned());
                }
            }
        }
    }

    /// Returns the next part if it has arrived.
    pub(crate) fn ready(&mut self) -> Option<Came> {
        loop {
            let event = match self.events.next_event() {
                Ok(event) => event?,
                Err(too_long) => return Some(Came::Broken(too_long.to_string())),
            };
            match event.data.as_deref().map(<[u8]>::trim_ascii) {
                None => return Some(Came::Silence),
                Some(b"") => {}
                Some(b"[DONE]") => return Some(Came::Done),
                Some(data) => match self.reader.event(data) {
                    Ok(events) if events.is_empty() => {}
                    Ok(events) => return Some(Came::Events(events)),
                    Err(error) => return Some(Came::Broken(error.to_string())),
                },
            }
        }
    }
}
