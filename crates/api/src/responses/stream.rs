//! Streams of responses: each event of the model's stream becomes events of the response, which is
//! stored before its last event is sent.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use orrery_dialects::responses::{Head, StreamWriter};
use tokio::time::Instant;

use super::Keep;
use crate::Services;
use crate::completion::{self, Came, Fault, Incoming, Keeps};
use orrery_http::budget::Lease;
use orrery_http::{Response, sse};
use orrery_runtime as runtime;
use orrery_wire::responses::answer::Response as Answer;
use orrery_wire::responses::event::Event;

pub(super) const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Translates the stream of a completion. With `keep`, the response is stored before its last
/// event.
pub(super) fn stream_of(
    services: Arc<Services>,
    answer: Response,
    head: Head,
    keep: Option<Keep>,
    lease: Lease,
) -> Response {
    let (parts, body) = answer.into_parts();
    let stream = Stream {
        services,
        incoming: Incoming::new(body, Keeps::Everything, lease.sibling()),
        writer: StreamWriter::new(head),
        keep,
        _input: lease,
        is_begun: false,
        is_over: false,
        last_sent: runtime::monotonic_now(),
    };
    let pieces = stream::unfold(stream, |mut stream| async move {
        let piece = stream.next().await?;
        Some((piece, stream))
    });
    completion::with_headers(sse::stream(pieces), &parts.headers)
}

/// A stream that is being translated.
struct Stream {
    services: Arc<Services>,
    incoming: Incoming,
    writer: StreamWriter,
    keep: Option<Keep>,
    /// Reserves memory for the items of the input, until the response is stored.
    _input: Lease,
    is_begun: bool,
    is_over: bool,
    last_sent: Instant,
}

impl Stream {
    /// Returns the next events as text, or a comment after a silence.
    async fn next(&mut self) -> Option<Bytes> {
        let mut sent = Vec::new();
        if !self.is_begun {
            self.is_begun = true;
            self.writer.start(&mut sent);
            return Some(text_of(&sent));
        }
        while !self.is_over {
            let mut came = Some(self.incoming.next(self.last_sent).await);
            let mut is_silent = false;
            while let Some(part) = came {
                is_silent |= matches!(part, Came::Silence);
                self.translate(part, &mut sent).await;
                came = if self.is_over { None } else { self.incoming.ready() };
            }
            if !sent.is_empty() || is_silent {
                self.last_sent = runtime::monotonic_now();
                let is_only_silent = sent.is_empty();
                let text = text_of(&sent);
                return Some(if is_only_silent { Bytes::from_static(KEEP_ALIVE) } else { text });
            }
        }
        None
    }

    async fn translate(&mut self, came: Came, sent: &mut Vec<Event>) {
        match came {
            Came::Silence => {}
            Came::Events(events) => {
                for event in events {
                    if let Some(failed) = self.writer.event(event, sent) {
                        self.is_over = true;
                        return self.keep_failed(&failed).await;
                    }
                }
            }
            Came::Done => {
                self.is_over = true;
                let response = self.writer.finish(sent, self.services.clock.now().unix_seconds());
                match self.store(&response).await {
                    Ok(()) => self.writer.last(response, sent),
                    Err(error) => {
                        self.writer.fail("server_error", error.message.clone(), sent);
                    }
                }
            }
            Came::Broken(Fault { kind, message }) => self.fail(kind, message, sent).await,
        }
    }

    async fn fail(&mut self, kind: &str, message: String, sent: &mut Vec<Event>) {
        self.is_over = true;
        let failed = self.writer.fail(kind, message, sent);
        self.keep_failed(&failed).await;
    }

    async fn store(&mut self, response: &Answer) -> Result<(), crate::Error> {
        match self.keep.take() {
            Some(keep) => keep.store(&self.services, response).await,
            None => Ok(()),
        }
    }

    /// Stores a response that failed. Its client learns of the failure in any case.
    async fn keep_failed(&mut self, failed: &Answer) {
        if let Err(error) = self.store(failed).await {
            tracing::error!(message = error.message, "failed to store a failed response");
        }
    }
}

/// Returns events as text.
fn text_of(events: &[Event]) -> Bytes {
    let mut text = String::new();
    for event in events {
        // The types have only string keys, so serialization cannot fail.
        let data = serde_json::to_string(event).unwrap_or_default();
        for part in ["event: ", event.kind.name(), "\ndata: ", &data, "\n\n"] {
            text.push_str(part);
        }
    }
    text.into()
}
