//! Relays a streamed answer: each event is forwarded as it arrives, byte for byte.
//!
//! The relay buffers only the incomplete event and a few pieces between the model and the client,
//! so a slow client also slows down the model, until the server's write timeout closes the
//! connection. The usage and `[DONE]` are held back until the call is recorded. If the client
//! disconnects, the connection to the model is closed at once. If the model's stream breaks off,
//! the client's stream ends with an error event.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::allowance::Allowance;
use super::call::{Answer, Call, Came, End, Reply, keeps_content};
use super::error::Failure;
use super::messages;
use super::meter::{MessagePart, Meter, Seen};
use super::request::Form;
use super::route::Candidate;
use super::upstream::{Limits, Opened, note, unopened};
use super::whole::{too_many_bodies, with_cost, with_cost_of_response};
use orrery_domain::chat::{Operation, Tokens};
use orrery_domain::classify::ErrorClass;
use orrery_domain::money::Usd;
use orrery_domain::raw_object::RawObject;
use orrery_http::budget::Lease;
use orrery_http::event_stream::{Event, EventReader};
use orrery_http::sse::HEARTBEAT;
use orrery_runners::llm::OpenError;
use orrery_runners::openai::answer::{Body, EVENT_MAX};
use orrery_runners::openai::failure::{broken, misunderstood, too_late};
use orrery_runners::openai::shape;
use orrery_runtime as runtime;
use orrery_wire::openai;

/// Bytes of an event that do not count toward the budget of bodies in flight.
const EVENT_FREE: usize = 1024 * 1024;
/// Maximum number of pieces queued for the client. A piece consists of at most one event that was
/// buffered while incomplete, and the bytes that arrived together with the end of that event.
const PIECES_MAX: usize = 4;
/// Maximum size of a stream, in bytes.
const STREAM_MAX: usize = 256 * 1024 * 1024;
/// Maximum wait after `[DONE]` for the model to end its response, so that the connection can be
/// reused.
const DRAIN: Duration = Duration::from_millis(100);

const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";
const DONE: &[u8] = b"[DONE]";
/// The fields that are the same in all events of a stream.
const FRAME: [&str; 7] =
    ["id", "object", "created", "model", "system_fingerprint", "service_tier", "provider"];

/// A stream in progress.
struct Relay {
    name: String,
    reader: EventReader,
    meter: Meter,
    allowance: Allowance,
    /// Whether output tokens are reserved for the answer.
    is_reserved: bool,
    /// Whether the answer was cut off because it exceeded its allowance.
    is_cut: bool,
    pieces: mpsc::Sender<Bytes>,
    wants_usage: bool,
    form: Form,
    /// The ID of the request, for errors in Anthropic's format.
    request_id: String,
    /// The `model` of the events, if the server's own name must be replaced.
    shown: Option<String>,
    /// The event with the usage, held back until the call is recorded.
    usage: Option<Bytes>,
    /// The `object` of a chunk.
    object: &'static str,
    /// The common fields of the first event with output, used to build a usage event if the stream
    /// has none.
    frame: Option<RawObject>,
    /// Whether the model has sent `[DONE]`.
    is_done: bool,
    /// Reserves memory for unusually large events.
    lease: Lease,
    bytes: usize,
    started: Instant,
    first_byte: Option<Duration>,
    last_sent: Instant,
}

impl Call {
    /// Replies to the client with the stream, and relays the answer until it ends.
    pub(super) async fn relay(self, candidate: Candidate, opened: Opened, reply: Reply) {
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        // If the client has disconnected, the receiver is dropped, and the stream ends at once.
        let _unsent =
            reply.send(Ok(Answer::Stream { execution: self.id, cache: self.cache_miss(), pieces }));
        let keeps = keeps_content(&self.inner, self.request.operation);
        let mut relay = Relay {
            name: candidate.name.clone(),
            reader: EventReader::new(EVENT_MAX),
            meter: Meter::new(self.prompt_tokens(&candidate), keeps),
            allowance: candidate.allowance(&self.request),
            is_reserved: self.reserves_output(&candidate),
            is_cut: false,
            pieces: sender,
            wants_usage: self.request.wants_usage,
            form: self.request.form,
            request_id: self.request.beside.request_id.clone(),
            shown: candidate.shown.clone(),
            usage: None,
            object: if self.request.operation == Operation::Completions {
                "text_completion"
            } else {
                "chat.completion.chunk"
            },
            frame: None,
            is_done: false,
            lease: self.lease.sibling(),
            bytes: 0,
            started: self.started,
            first_byte: None,
            last_sent: runtime::monotonic_now(),
        };
        let Opened { first, mut body, limits, in_use, mut lease, .. } = opened;
        let mut end = relay.run(&self, first, &mut body, limits, in_use.is_some()).await;
        if let (End::Failed(failure), Some(in_use)) = (&mut end, &in_use)
            && failure.class == ErrorClass::ProviderUnavailable
            && let Some(reason) = in_use.ended().await
        {
            *failure = unopened(&candidate.name, &OpenError::Ended(reason));
        }
        if let End::Failed(failure) = end {
            end = End::Failed(candidate.target.masked(failure));
        }
        let came = relay.came(&self, &candidate, &end, limits.begun);
        let tokens = came.tokens;
        let cost = came.cost;
        let ended_at = self.inner.clock.now();
        let failure = if let End::Failed(failure) = &end { Some(failure) } else { None };
        note(lease.as_mut(), failure);
        drop(lease);
        let recorded = if matches!(end, End::Done) {
            let drained = timeout(DRAIN, async { while let Ok(Some(_)) = body.next().await {} });
            tokio::join!(self.record(&candidate, &end, came), drained).0
        } else {
            // The connection is closed before the call is recorded, so that the model stops.
            drop(body);
            self.record(&candidate, &end, came).await
        };
        candidate.count(&end, cost, ended_at);
        let end = match recorded {
            Ok(()) => end,
            Err(error) => {
                tracing::error!(%error, "failed to record chat call");
                let message = "the call could not be recorded";
                End::Failed(Failure::new(500, ErrorClass::InternalError, message))
            }
        };
        relay.finish(end, tokens, cost).await;
    }
}

impl Relay {
    /// Relays events until the stream ends, regardless of the cause.
    async fn run(
        &mut self,
        call: &Call,
        first: Option<Bytes>,
        body: &mut Body,
        limits: Limits,
        is_local: bool,
    ) -> End {
        let options = &call.inner.options;
        let deadline = limits.whole;
        let stopped = async {
            call.inner.tasks.stopping().await;
            tokio::time::sleep(options.stop_grace).await;
        };
        tokio::pin!(stopped);
        let mut pending = first;
        let mut silent_until = limits.first_byte;
        loop {
            if let Some(piece) = pending.take() {
                // A local model sends nothing while it generates a tool call, so local models have
                // no idle timeout. The process of a local model is monitored instead.
                let idle = later(runtime::monotonic_now(), limits.idle);
                silent_until = if is_local { deadline } else { idle };
                match self.pass_on(&piece, deadline).await {
                    Ok(()) if self.is_done => return self.done(),
                    Ok(()) => {}
                    Err(end) => return end,
                }
            }
            let beat = later(self.last_sent, HEARTBEAT);
            let pieces = self.pieces.clone();
            tokio::select! {
                biased;
                () = pieces.closed() => return End::Cancelled,
                came = body.next() => match came {
                    Ok(Some(piece)) => pending = Some(piece),
                    Ok(None) => return self.ended(deadline).await,
                    Err(error) => {
                        return End::Failed(broken(&self.name, &format!("its stream broke: {error}")));
                    }
                },
                () = sleep_until(silent_until.min(deadline)) => {
                    return End::Failed(too_late(&self.name));
                }
                () = &mut stopped => return End::Failed(stopping()),
                () = sleep_until(beat) => {
                    if let Err(end) = self.send(Bytes::from_static(KEEP_ALIVE), deadline).await {
                        return end;
                    }
                }
            }
        }
    }

    /// Forwards the complete events of a received piece.
    async fn pass_on(&mut self, piece: &[u8], deadline: Instant) -> Result<(), End> {
        self.first_byte.get_or_insert_with(|| self.started.elapsed());
        self.bytes = self.bytes.saturating_add(piece.len());
        if self.bytes > STREAM_MAX {
            let what = format!("its stream has more than {STREAM_MAX} bytes");
            return Err(End::Failed(broken(&self.name, &what)));
        }
        self.reader.push(piece);
        let held = self.reader.pending();
        if held > EVENT_FREE {
            // Each slot of the queue may contain a piece of this size.
            let most = held.saturating_mul(PIECES_MAX + 1);
            self.lease.grow_to(most).map_err(|_full| End::Failed(too_many_bodies()))?;
        }
        let mut passed: Vec<Bytes> = Vec::new();
        let mut end = None;
        while end.is_none() && !self.is_done {
            match self.reader.next_event() {
                Ok(None) => break,
                Ok(Some(event)) => end = self.take(event, &mut passed).err(),
                Err(too_long) => {
                    end =
                        Some(End::Failed(broken(&self.name, &format!("in its stream {too_long}"))));
                }
            }
        }
        if let Some(joined) = joined(passed) {
            self.send(joined, deadline).await?;
        }
        end.map_or(Ok(()), Err)
    }

    /// Processes an event and appends the bytes that can be forwarded now to `passed`.
    fn take(&mut self, event: Event, passed: &mut Vec<Bytes>) -> Result<(), End> {
        let Some(data) = &event.data else {
            passed.push(event.raw);
            return Ok(());
        };
        if data.trim_ascii() == DONE {
            self.is_done = true;
            return Ok(());
        }
        if event.is_named("error") {
            return Err(End::Failed(shape::failure_in_error_event(data)));
        }
        if self.form == Form::Messages {
            self.take_message(event.raw, data, passed)?;
            return self.check_allowance();
        }
        if self.form == Form::Responses {
            if self.meter.response_event(data).map_err(End::Failed)? {
                self.usage = Some(data.clone());
                self.is_done = true;
            } else {
                passed.push(event_of(data));
            }
            return self.check_allowance();
        }
        let mut raw = event.raw;
        let renamed = self.shown.as_deref().and_then(|shown| renamed(data, shown));
        if let Some(renamed) = &renamed {
            raw = event_of(renamed);
        }
        let data = renamed.as_ref().unwrap_or(data);
        let seen = self.meter.event(data).or_else(|failure| {
            let repaired = shape::repaired(data).ok_or(failure)?;
            raw = [b"data: ", &*repaired, b"\n\n"].concat().into();
            self.meter.event(&repaired)
        });
        match seen.map_err(End::Failed)? {
            seen @ (Seen::Part | Seen::Message) => {
                if self.wants_usage && self.frame.is_none() {
                    self.frame = frame_of(data);
                }
                let converted = (seen == Seen::Message).then(|| shape::event_of(data)).flatten();
                passed.push(converted.unwrap_or(raw));
            }
            Seen::Usage => self.usage = Some(data.clone()),
            Seen::Failed(failure) => return Err(End::Failed(*failure)),
        }
        self.check_allowance()
    }

    /// Processes an event of Anthropic's Messages API.
    fn take_message(
        &mut self,
        raw: Bytes,
        data: &Bytes,
        passed: &mut Vec<Bytes>,
    ) -> Result<(), End> {
        match self.meter.message_event(data).map_err(End::Failed)? {
            MessagePart::Other => passed.push(raw),
            MessagePart::Start => {
                let shown = self.shown.as_deref();
                let renamed = shown.and_then(|shown| messages::renamed(data, shown));
                passed.push(renamed.unwrap_or(raw));
            }
            MessagePart::Usage => self.usage = Some(data.clone()),
            MessagePart::Stop => self.is_done = true,
        }
        Ok(())
    }

    fn check_allowance(&mut self) -> Result<(), End> {
        let exceeded = self.allowance.exceeded(&self.name, self.meter.bytes(), self.is_reserved);
        self.is_cut |= exceeded.is_some();
        exceeded.map_or(Ok(()), |failure| Err(End::Failed(failure)))
    }

    /// Handles the end of the model's response. Without `[DONE]`, the answer counts as complete if
    /// the model has sent a finish reason.
    async fn ended(&mut self, deadline: Instant) -> End {
        if let Some(event) = self.reader.rest() {
            let mut passed = Vec::new();
            if let Err(end) = self.take(event, &mut passed) {
                return end;
            }
            if let Some(last) = joined(passed) {
                // The last event may lack its terminating blank line.
                let last = [&last[..], b"\n\n"].concat();
                if let Err(end) = self.send(last.into(), deadline).await {
                    return end;
                }
            }
        }
        if self.is_done || self.meter.is_finished() {
            return self.done();
        }
        End::Failed(broken(&self.name, "its stream ended before the answer was complete"))
    }

    /// Returns the result of a stream that the model reports as complete.
    fn done(&self) -> End {
        if self.meter.has_answer() {
            return End::Done;
        }
        End::Failed(misunderstood(&self.name, "its stream has no answer"))
    }

    /// Waits until the queue to the client has room, and sends a piece.
    async fn send(&mut self, piece: Bytes, deadline: Instant) -> Result<(), End> {
        let sent = tokio::time::timeout_at(deadline, self.pieces.send(piece)).await;
        self.last_sent = runtime::monotonic_now();
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_closed)) => Err(End::Cancelled),
            Err(_elapsed) => Err(End::Failed(too_late(&self.name))),
        }
    }

    /// Returns the usage and the cost. A fixed price is not charged for an answer that the model
    /// did not complete.
    fn came(&mut self, call: &Call, candidate: &Candidate, end: &End, begun: Instant) -> Came {
        let mut came = call.came(candidate, &self.meter, begun);
        if let Some(most) = call.most_of_cut().filter(|_| self.is_cut) {
            came.cost = came.cost.min(most);
        }
        if matches!(end, End::Failed(_)) {
            if !self.meter.has_answer() {
                came = Came::default();
            }
            if candidate.price.is_fixed() {
                came.cost = Usd::ZERO;
            }
        }
        Came {
            first_byte: self.first_byte,
            is_stream: true,
            content: self.meter.take_content(),
            finish_reasons: self.meter.take_finish_reasons(),
            ..came
        }
    }

    /// Sends the held-back end of the stream: the usage with its cost and `[DONE]`, or the error.
    async fn finish(mut self, end: End, tokens: Tokens, cost: Usd) {
        let last = match end {
            End::Cancelled => return,
            End::Failed(failure) if self.form == Form::Messages => {
                messages::error_event(&failure, &self.request_id)
            }
            End::Failed(failure) => error_event(&failure),
            End::Done if self.form == Form::Messages => {
                messages::end(&self.usage.take().unwrap_or_default(), tokens, cost)
            }
            End::Done if self.form == Form::Responses => {
                let last = self.usage.take().unwrap_or_default();
                last_of_response(&last, tokens, cost).unwrap_or_else(|| event_of(&last))
            }
            End::Done => {
                let usage = self.wants_usage.then(|| match self.usage.take() {
                    Some(usage) => usage_event(&usage, tokens, cost),
                    None => missing_usage_event(self.frame.take(), self.object, tokens, cost),
                });
                [&usage.unwrap_or_default()[..], b"data: [DONE]\n\n"].concat().into()
            }
        };
        // The send fails if the client has disconnected and needs no final event.
        let _sent = self.pieces.send(last).await;
    }
}

fn later(time: Instant, by: Duration) -> Instant {
    time.checked_add(by).unwrap_or(time)
}

fn stopping() -> Failure {
    Failure::new(503, ErrorClass::InternalError, "the service is stopping; try again in a moment")
}

/// Joins several events into one piece; `None` if there are no events.
fn joined(mut events: Vec<Bytes>) -> Option<Bytes> {
    if events.len() < 2 {
        return events.pop();
    }
    let mut all = BytesMut::with_capacity(events.iter().map(Bytes::len).sum());
    events.iter().for_each(|event| all.extend_from_slice(event));
    Some(all.freeze())
}

/// Returns an event whose `model` is `shown`; `None` if the event has no model, or this one.
fn renamed(data: &[u8], shown: &str) -> Option<Bytes> {
    let mut event: RawObject = serde_json::from_slice(data).ok()?;
    if event.get("model")? == serde_json::to_string(shown).ok()? {
        return None;
    }
    event.set("model", shown).ok()?;
    Some(event.text().ok()?.into())
}

/// Builds the usage event with the cost. An event that cannot be parsed is returned unchanged.
fn usage_event(data: &[u8], tokens: Tokens, cost: Usd) -> Bytes {
    let object: Option<RawObject> = serde_json::from_slice(data).ok();
    let text = object.and_then(|mut object| with_cost(&mut object, tokens, cost).ok());
    event_of(&text.unwrap_or_else(|| data.to_vec()))
}

/// Builds the last event of a stream in the format of OpenAI's Responses API, with the cost. Returns
/// `None` if the event cannot be parsed.
fn last_of_response(data: &[u8], tokens: Tokens, cost: Usd) -> Option<Bytes> {
    let mut event: RawObject = serde_json::from_slice(data).ok()?;
    let mut response: RawObject = event.value("response")?;
    with_cost_of_response(&mut response, tokens, cost).ok()?;
    event.set("response", &response).ok()?;
    Some(event_of(&event.text().ok()?))
}

/// Returns the common fields of a stream's events, taken from an event with output; `None` for
/// other events. Azure's first event has neither output nor an id.
fn frame_of(event: &[u8]) -> Option<RawObject> {
    let mut event: RawObject = serde_json::from_slice(event).ok()?;
    let choices = event.get("choices")?;
    if choices == "[]" {
        return None;
    }
    event.retain(|name| FRAME.contains(&name));
    Some(event)
}

/// Builds the usage event for a model that sent none, or sent its usage with the last piece of
/// text. `frame` comes from another event of the stream.
fn missing_usage_event(frame: Option<RawObject>, object: &str, tokens: Tokens, cost: Usd) -> Bytes {
    let mut chunk = frame.unwrap_or_default();
    // The object has only strings and numbers, so serialization cannot fail.
    let text = chunk
        .set("object", object)
        .and_then(|()| chunk.set::<[(); 0]>("choices", &[]))
        .and_then(|()| with_cost(&mut chunk, tokens, cost));
    event_of(&text.unwrap_or_default())
}

pub(crate) fn error_event(failure: &Failure) -> Bytes {
    let said = &failure.said;
    let kind = said.kind.as_deref().unwrap_or_else(|| openai::kind_of(failure.status));
    let body = openai::Error {
        error: openai::Body {
            message: &failure.message,
            kind,
            param: said.param.as_deref(),
            code: said.code.as_deref().or(openai::code_of(failure.status)),
        },
    };
    // The object has only strings, so serialization cannot fail.
    event_of(&serde_json::to_vec(&body).unwrap_or_default())
}

pub(crate) fn event_of(data: &[u8]) -> Bytes {
    [b"data: ", data, b"\n\n"].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: &str = "chat.completion.chunk";

    #[test]
    fn relay_generates_missing_usage_event() {
        let tokens = Tokens::estimated(3, 4);
        let begins = br#"{"id":"","model":"","choices":[],"prompt_filter_results":[{"x":1}]}"#;
        assert!(frame_of(begins).is_none() && frame_of(b"[]").is_none());
        let part = br#"{"id":"x","created":5,"choices":[{"delta":{}}],"model":"m","usage":null,"obfuscation":"aaa"}"#;
        let event = missing_usage_event(frame_of(part), CHUNK, tokens, Usd::from_micros(7));
        let text = str::from_utf8(&event).unwrap();
        let expected = "data: {\"id\":\"x\",\"created\":5,\"model\":\"m\",\"object\":\"chat.completion.chunk\",\
                        \"choices\":[],\"usage\":";
        assert!(text.starts_with(expected), "{text}");
        let event = missing_usage_event(None, CHUNK, tokens, Usd::from_micros(7));
        let text = str::from_utf8(&event).unwrap();
        assert_eq!(
            text,
            "data: {\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\
             \"completion_tokens\":4,\"total_tokens\":7,\"cost\":7e-6,\"estimated\":true}}\n\n"
        );
        let counted =
            missing_usage_event(None, CHUNK, Tokens { is_estimated: false, ..tokens }, Usd::ZERO);
        assert!(!str::from_utf8(&counted).unwrap().contains("estimated"));
    }

    #[test]
    fn relay_usage_event_gets_the_cost() {
        let data = br#"{"id":"x","choices":[],"usage":{"prompt_tokens":1}}"#;
        let event = usage_event(data, Tokens::default(), Usd::from_micros(7));
        let expected =
            "data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"cost\":7e-6}}\n\n";
        assert_eq!(String::from_utf8(event.to_vec()).unwrap(), expected);
    }

    #[test]
    fn relay_error_event_has_the_error_body() {
        let event = error_event(&broken("m", "its stream ended before the answer was complete"));
        let expected = "data: {\"error\":{\"message\":\"the model 'm': its stream ended before the \
                        answer was complete\",\
                        \"type\":\"upstream_error\",\"param\":null,\"code\":null}}\n\n";
        assert_eq!(String::from_utf8(event.to_vec()).unwrap(), expected);
    }

    #[test]
    fn relay_joins_events_that_arrive_together() {
        let events = |texts: &[&'static str]| -> Vec<Bytes> {
            texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect()
        };
        assert_eq!(joined(events(&[])), None);
        assert_eq!(joined(events(&["a"])).unwrap(), "a");
        assert_eq!(joined(events(&["a", "bc"])).unwrap(), "abc");
    }
}
