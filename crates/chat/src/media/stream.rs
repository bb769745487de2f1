//! Relays audio and events as they arrive.
//!
//! Every piece is forwarded at once, but the answer ends only after the call is recorded. If the
//! client disconnects, the connection to the model is closed. If the model's answer breaks off, an
//! event stream ends with an error event, and audio ends without its proper end.

use std::io;

use bytes::Bytes;
use hyper::header::HeaderValue;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::answer::Measured;
use super::{Call, Failure, MediaAnswer, Reply, Streaming};
use crate::call::{Came, End};
use crate::relay::error_event;
use crate::upstream::{EVENTS, Opened, note};
use crate::whole::too_many_bodies;
use orrery_domain::chat::Operation;
use orrery_domain::classify::ErrorClass;
use orrery_http::body::BoxError;
use orrery_http::budget::Lease;
use orrery_http::event_stream::{Event, EventReader};
use orrery_http::sse::HEARTBEAT;
use orrery_runners::openai::answer::{EVENT_MAX, audio_type};
use orrery_runners::openai::failure::{broken, misunderstood, too_late};
use orrery_runners::openai::{said, shape};
use orrery_runtime as runtime;

/// Maximum number of pieces queued for the client.
const PIECES_MAX: usize = 4;
/// Bytes of an event that do not count toward the budget of bodies in flight.
const EVENT_FREE: usize = 1024 * 1024;
/// Maximum size of a piece for the client, in bytes.
const PIECE: usize = 256 * 1024;
/// Maximum size of a streamed answer, in bytes.
const STREAM_MAX: usize = 256 * 1024 * 1024;
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Waits for the start of an answer that may be relayed, and returns its media type; `None` if it
/// must be read as a whole, because the server ignores the request for events.
///
/// # Errors
/// [`Failure`], also for an answer that is neither events nor audio.
pub(super) async fn begin(
    name: &str,
    wants_events: bool,
    opened: &mut Opened,
) -> Result<Option<HeaderValue>, Failure> {
    let first = loop {
        let piece = timeout_at(opened.limits.first_byte, opened.body.next()).await;
        let piece = piece.map_err(|_elapsed| too_late(name))?;
        let piece = piece.map_err(|error| broken(name, &format!("its answer broke: {error}")))?;
        match piece {
            None => return Err(misunderstood(name, "its answer is empty")),
            Some(piece) if wants_events && piece.trim_ascii().is_empty() => {}
            Some(piece) => break piece,
        }
    };
    let start = first.trim_ascii_start().first().copied();
    opened.first = Some(first.clone());
    if wants_events {
        return match start {
            Some(b'{' | b'[') => Ok(None),
            Some(b'<') => Err(misunderstood(name, "its answer is an HTML or XML page")),
            Some(_) | None => Ok(Some(HeaderValue::from_static(EVENTS))),
        };
    }
    let kind = audio_type(name, &opened.headers, &first)?;
    let kind = HeaderValue::from_str(&kind);
    Ok(Some(kind.map_err(|_invalid| misunderstood(name, "its media type is invalid"))?))
}

/// A stream in progress.
struct Relay {
    name: String,
    /// Splits events; `None` for audio.
    reader: Option<EventReader>,
    pieces: mpsc::Sender<Result<Bytes, BoxError>>,
    measured: Measured,
    /// Whether a part of the answer has been forwarded.
    has_begun: bool,
    is_transcript: bool,
    bytes: usize,
    /// Reserves memory for unusually large events.
    lease: Lease,
    last_sent: Instant,
}

impl Call {
    /// Replies with the stream, and relays the answer until it ends.
    pub(super) async fn relay(self, streaming: Streaming, reply: Reply) {
        let Streaming { mut opened, content_type, is_events } = streaming;
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        let execution = self.id;
        // If the client has disconnected, the receiver is dropped, and the stream ends at once.
        let _unsent = reply.send(Ok(MediaAnswer::Stream { execution, content_type, pieces }));
        let mut relay = Relay {
            name: self.candidate.name.clone(),
            reader: is_events.then(|| EventReader::new(EVENT_MAX)),
            pieces: sender,
            measured: Measured::default(),
            has_begun: false,
            is_transcript: self.request.operation == Operation::Transcriptions,
            bytes: 0,
            lease: self.lease.sibling(),
            last_sent: runtime::monotonic_now(),
        };
        let first_byte = self.started.elapsed();
        let mut end = relay.run(&self, &mut opened).await;
        if let End::Failed(failure) = end {
            end = End::Failed(self.candidate.target.masked(failure));
        }
        let failure = if let End::Failed(failure) = &end { Some(failure) } else { None };
        note(opened.lease.as_mut(), failure);
        let is_charged = match &end {
            End::Done => true,
            End::Cancelled => relay.has_begun,
            End::Failed(_) => false,
        };
        let came = if is_charged {
            self.came(relay.measured, opened.limits.begun)
        } else {
            Came::default()
        };
        let came = Came { first_byte: Some(first_byte), is_stream: true, ..came };
        // The connection is closed before the call is recorded, so that the model stops.
        drop(opened);
        self.candidate.count(&end, came.cost, self.inner.clock.now());
        let end = match self.record(&end, came).await {
            Ok(()) => end,
            Err(error) => {
                tracing::error!(%error, "failed to record a call for audio or images");
                let message = "the call could not be recorded";
                End::Failed(Failure::new(500, ErrorClass::InternalError, message))
            }
        };
        if let End::Failed(failure) = end {
            let last = match is_events {
                true => Ok(error_event(&failure)),
                false => Err(io::Error::other(failure.message).into()),
            };
            // A disconnected client needs no error.
            let _unsent = relay.pieces.send(last).await;
        }
    }
}

impl Relay {
    async fn run(&mut self, call: &Call, opened: &mut Opened) -> End {
        let options = &call.inner.options;
        let deadline = opened.limits.whole;
        let stopped = async {
            call.inner.tasks.stopping().await;
            tokio::time::sleep(options.stop_grace).await;
        };
        tokio::pin!(stopped);
        let mut pending = opened.first.take();
        let mut silent_until = opened.limits.first_byte;
        loop {
            if let Some(piece) = pending.take() {
                silent_until = later(runtime::monotonic_now(), opened.limits.idle);
                if let Err(end) = self.pass_on(piece, deadline).await {
                    return end;
                }
            }
            let beat = later(self.last_sent, HEARTBEAT);
            let pieces = self.pieces.clone();
            tokio::select! {
                biased;
                () = pieces.closed() => return End::Cancelled,
                came = opened.body.next() => match came {
                    Ok(Some(piece)) => pending = Some(piece),
                    Ok(None) => return self.ended(deadline).await,
                    Err(error) => {
                        return End::Failed(broken(&self.name, &format!("its answer broke: {error}")));
                    }
                },
                () = sleep_until(silent_until.min(deadline)) => {
                    return End::Failed(too_late(&self.name));
                }
                () = &mut stopped => {
                    let message = "the service is stopping";
                    return End::Failed(Failure::new(503, ErrorClass::InternalError, message));
                }
                () = sleep_until(beat), if self.reader.is_some() => {
                    if let Err(end) = self.send(Bytes::from_static(KEEP_ALIVE), deadline).await {
                        return end;
                    }
                }
            }
        }
    }

    /// Forwards a received piece.
    async fn pass_on(&mut self, mut piece: Bytes, deadline: Instant) -> Result<(), End> {
        self.bytes = self.bytes.saturating_add(piece.len());
        if self.bytes > STREAM_MAX {
            let what = format!("its answer has more than {STREAM_MAX} bytes");
            return Err(End::Failed(broken(&self.name, &what)));
        }
        let Some(reader) = &mut self.reader else {
            while !piece.is_empty() {
                let part = piece.split_to(piece.len().min(PIECE));
                self.has_begun = true;
                self.send(part, deadline).await?;
            }
            return Ok(());
        };
        reader.push(&piece);
        let held = reader.pending();
        if held > EVENT_FREE {
            // Each slot of the queue may contain a piece of this size.
            let most = held.saturating_mul(PIECES_MAX + 1);
            self.lease.grow_to(most).map_err(|_full| End::Failed(too_many_bodies()))?;
        }
        loop {
            let Some(reader) = &mut self.reader else { return Ok(()) };
            let next = reader.next_event().map_err(|too_long| {
                End::Failed(broken(&self.name, &format!("in its stream {too_long}")))
            })?;
            let Some(event) = next else { return Ok(()) };
            self.take(event, deadline).await?;
        }
    }

    /// Measures an event and forwards it.
    async fn take(&mut self, event: Event, deadline: Instant) -> Result<(), End> {
        let data = event.data.as_ref().map(|data| data.trim_ascii()).unwrap_or_default();
        if !data.is_empty() && data != b"[DONE]" {
            if event.is_named("error") {
                return Err(End::Failed(shape::failure_in_error_event(data)));
            }
            let parsed: Value = serde_json::from_slice(data).map_err(|_no_json| {
                let what = "its stream contains an event that is not valid JSON";
                End::Failed(misunderstood(&self.name, what))
            })?;
            if let Some(failure) = shape::failure_in(&parsed) {
                return Err(End::Failed(failure));
            }
            self.measure(&parsed, data);
            self.has_begun = true;
        }
        self.send(event.raw, deadline).await
    }

    fn measure(&mut self, event: &Value, data: &[u8]) {
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind.ends_with(".completed") {
            self.measured.images += 1;
        }
        if self.is_transcript && !kind.ends_with(".done") {
            let bytes = said::text_bytes(data).unwrap_or_default();
            self.measured.bytes = self.measured.bytes.saturating_add(bytes);
        }
        if let Some(object) = event.as_object() {
            self.measured.add(object);
        }
    }

    /// Handles the end of the model's answer.
    async fn ended(&mut self, deadline: Instant) -> End {
        let rest = self.reader.as_mut().and_then(EventReader::rest);
        if let Some(mut event) = rest {
            // The last event may lack its terminating blank line.
            event.raw = [&event.raw[..], b"\n\n"].concat().into();
            if let Err(end) = self.take(event, deadline).await {
                return end;
            }
        }
        if self.has_begun {
            return End::Done;
        }
        End::Failed(misunderstood(&self.name, "its stream has no answer"))
    }

    /// Waits until the queue to the client has room, and sends a piece.
    async fn send(&mut self, piece: Bytes, deadline: Instant) -> Result<(), End> {
        let sent = timeout_at(deadline, self.pieces.send(Ok(piece))).await;
        self.last_sent = runtime::monotonic_now();
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_closed)) => Err(End::Cancelled),
            Err(_elapsed) => Err(End::Failed(too_late(&self.name))),
        }
    }
}

fn later(time: Instant, by: std::time::Duration) -> Instant {
    time.checked_add(by).unwrap_or(time)
}
