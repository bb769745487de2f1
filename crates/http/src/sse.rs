//! Server-sent events as a streamed response, in the format of the HTML standard.
//!
//! The stream is pull-based: nothing is produced before the client has taken the previous events,
//! and a client that disconnects drops the stream and everything it owns.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};

use super::body;
use super::response::Response;

/// Interval between comments while there are no events, so that proxies do not close the connection
/// as idle.
pub const HEARTBEAT: Duration = Duration::from_secs(15);
/// Delay before a browser reconnects, in milliseconds.
const RETRY_MS: u32 = 1000;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The event's id, on one line. A reconnecting client sends it as `Last-Event-ID`.
    pub id: String,
    /// The event's name, on one line.
    pub name: &'static str,
    pub data: String,
}

impl Event {
    fn text(&self) -> String {
        let mut text = String::with_capacity(self.data.len() + 64);
        // Writing to a string cannot fail.
        let _always = write!(text, "id: {}\nevent: {}\n", self.id, self.name);
        // A lone CR also ends a line: the text after it would be parsed as another field.
        for line in self.data.replace("\r\n", "\n").split(['\n', '\r']) {
            let _always = writeln!(text, "data: {line}");
        }
        text.push('\n');
        text
    }
}

/// Returns a response that streams `events`, batched as they arrive, with a heartbeat while there
/// are no events.
pub fn response(events: impl Stream<Item = Vec<Event>> + Send + 'static) -> Response {
    let beating = futures_util::stream::unfold(Box::pin(events), |mut events| async move {
        let text = match tokio::time::timeout(HEARTBEAT, events.next()).await {
            Ok(None) => return None,
            Ok(Some(batch)) => batch.iter().map(Event::text).collect(),
            Err(_elapsed) => ": still here\n\n".to_owned(),
        };
        Some((Bytes::from(text), events))
    });
    let first = futures_util::stream::iter([Bytes::from(format!("retry: {RETRY_MS}\n\n"))]);
    stream(first.chain(beating))
}

/// Returns a response that streams events that are already in the wire format.
pub fn stream(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let mut response = hyper::Response::new(body::stream(pieces.map(Ok)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Makes proxies such as nginx forward events without buffering.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn event(data: &str) -> Event {
        Event { id: "a-1".to_owned(), name: "log", data: data.to_owned() }
    }

    #[test]
    fn sse_event_format_matches_standard() {
        assert_eq!(event("one").text(), "id: a-1\nevent: log\ndata: one\n\n");
        assert_eq!(event("a\nb").text(), "id: a-1\nevent: log\ndata: a\ndata: b\n\n");
        for hostile in ["a\rid: 9", "a\r\nid: 9", "a\nid: 9"] {
            let expect = "id: a-1\nevent: log\ndata: a\ndata: id: 9\n\n";
            assert_eq!(event(hostile).text(), expect, "{hostile:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sse_silent_stream_sends_heartbeats_until_events_end() {
        let events = futures_util::stream::unfold(0, |n| async move {
            tokio::time::sleep(HEARTBEAT + Duration::from_secs(1)).await;
            (n < 1).then(|| (vec![event("x")], n + 1))
        });
        let body = response(events).into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let beat = ": still here\n\n";
        assert_eq!(text, format!("retry: 1000\n\n{beat}{}{beat}", event("x").text()));
    }
}
