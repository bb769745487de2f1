//! Calls for audio and images: transcripts, translations, speech, and images.
//!
//! A call is routed, reserved, recorded and charged like a chat call, but its request may be a form
//! with files, which stay on disk, and its answer may be text, audio, or events. The model is
//! charged by its tokens, by the length of the audio, by character, or by image; what a call can
//! cost at most is reserved before, and is never exceeded.
//!
//! | file | purpose |
//! |---|---|
//! | `form` | multipart forms |
//! | `request` | validating a request, its bound, and the bodies to send |
//! | `length` | the length of an audio file |
//! | `answer` | complete answers |
//! | `stream` | relaying audio and events as they arrive |
//!
//! An answer that is not what was asked for is a failure, which costs nothing. If the client leaves
//! after the answer has begun, the call is charged in full.

mod answer;
mod form;
mod length;
mod request;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderValue;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::answer::{Complete, Measured, Want};
pub use self::form::{FilePart, Form};
use self::request::{Asked as Format, Request, Wanted, milliseconds};
use super::call::{Caller, Came, End, place_at};
use super::ending::Ending;
use super::error::{Error, Failure};
use super::route::{Candidate, Target};
use super::service::{Chat, Inner};
use super::tokens::InFlight;
use super::upstream::{Asked, EVENTS, JSON, Opened, Responded, note};
use super::upstreams::Attempts;
use super::whole::{read_whole, too_many_bodies};
use orrery_domain::chat::{Media, Operation, Tokens};
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::Execution;
use orrery_domain::ids::ExecutionId;
use orrery_domain::model::Usage;
use orrery_domain::money::Usd;
use orrery_domain::time::Timestamp;
use orrery_domain::trace::{self, Trace};
use orrery_engine::{self as engine, EndedCall, ModelPermit};
use orrery_http::body::BoxError;
use orrery_http::{answers, budget};
use orrery_records::billing::{Payer, Price, Reservation};
use orrery_records::files::Origin;
use orrery_runners::openai::answer::Body;
use orrery_runners::openai::failure::broken;
use orrery_runners::openai::shape::Counts;
use orrery_runtime::{self as runtime, new_id, turns};
use orrery_storage::Commit;
use orrery_wire::media::ImageFormat;

/// Maximum size of an answer that is not streamed, in bytes.
const ANSWER_MAX: usize = 64 * 1024 * 1024;
/// Number of copies of an answer in memory while its images are stored, or become events.
const IMAGE_COPIES: usize = 5;

/// The body of a request.
#[derive(Debug)]
pub enum Input {
    Json(Bytes),
    Form(Form),
}

/// The answer to a client.
#[derive(Debug)]
pub enum MediaAnswer {
    /// The complete answer.
    Whole { execution: ExecutionId, content_type: HeaderValue, body: Bytes },
    /// Server-sent events, or audio. Dropping the receiver ends the call. An error breaks the
    /// answer off.
    Stream {
        execution: ExecutionId,
        content_type: HeaderValue,
        pieces: mpsc::Receiver<Result<Bytes, BoxError>>,
    },
}

type Reply = oneshot::Sender<Result<MediaAnswer, Error>>;

/// An admitted call.
#[derive(Debug)]
struct Call {
    inner: Arc<Inner>,
    id: ExecutionId,
    trace: Trace,
    caller: Caller,
    created_at: Timestamp,
    started: Instant,
    request: Request,
    candidate: Candidate,
    /// The models to try if the candidate fails.
    attempts: Attempts,
    /// The highest cost, which is reserved if balances are enforced.
    most: Usd,
    reservation: Option<Reservation>,
    in_flight: InFlight,
    lease: budget::Lease,
}

/// An answer that has begun.
enum Begun {
    Whole(Box<Whole>),
    Stream(Box<Streaming>),
}

/// A complete and valid answer.
struct Whole {
    complete: Complete,
    measured: Measured,
    begun: Instant,
    first_byte: Duration,
}

/// An answer that is relayed as it arrives.
struct Streaming {
    opened: Opened,
    content_type: HeaderValue,
    is_events: bool,
}

impl Chat {
    /// Makes a call for audio or images. `lease` reserves memory for the answer; `asked` is the
    /// execution metadata that the request sets.
    ///
    /// # Errors
    /// [`Error`]; only [`Error::Failed`] is recorded.
    pub async fn media(
        &self,
        caller: Caller,
        operation: Operation,
        input: Input,
        lease: budget::Lease,
        asked: impl FnOnce(ExecutionId) -> Option<Arc<trace::Origin>>,
    ) -> Result<MediaAnswer, Error> {
        let inner = Arc::clone(&self.inner);
        let id = new_id();
        let trace = Trace::new(id, asked(id));
        let created_at = inner.clock.now();
        let request = Request::read(operation, input).await?;
        let Caller { organization, key, .. } = caller;
        let named = inner.named(&request.model).await;
        let candidates = inner.find(&named, operation, super::request::Form::Chat)?;
        inner.check_model(key, &request.model, named.model())?;
        let has_tokens = candidates.iter().any(|one| one.price.rates().has_tokens());
        let tokens = if has_tokens { request.tokens.total() } else { 0 };
        let in_flight = inner.tokens.admit(organization, key, tokens).await?;
        let most = |one: &Candidate| {
            let usage = Usage { run_time: one.time_max(), ..request.most.with(request.tokens) };
            one.price.most_of_usage(&usage)
        };
        let price = candidates.iter().map(most).fold(Price::default(), Price::dearer);
        let mut attempts = Attempts::new(candidates);
        let candidate = attempts.first().ok_or(Error::Engine(engine::Error::Stopping))?;
        let keeps = request.wanted == Wanted::Images(Some(ImageFormat::Url));
        let reservation =
            inner.engine.admit_call(Payer { organization, key }, price, keeps).await?;
        let call = Call {
            id,
            trace,
            caller,
            created_at,
            started: runtime::monotonic_now(),
            request,
            candidate,
            attempts,
            most: price.known,
            reservation,
            in_flight,
            lease,
            inner,
        };
        let (reply, answer) = oneshot::channel();
        // Even if the client disconnects, its usage is recorded.
        let running = call.run(reply);
        let running = self.inner.tasks.complete(turns::on_behalf_of(organization, running));
        running.until(answer).await.unwrap_or(Err(Error::Engine(engine::Error::Stopping)))
    }
}

/// Returns whether a server may reject the format that it is asked for.
fn rejects_format(failure: &Failure) -> bool {
    let is_about_format = failure.message.to_ascii_lowercase().contains("format");
    let param = failure.said.param.as_deref();
    matches!(failure.status, 400 | 422) && (is_about_format || param == Some("response_format"))
}

impl Call {
    async fn run(mut self, mut reply: Reply) {
        let opened = loop {
            let opened = tokio::select! {
                biased;
                () = reply.closed() => {
                    self.record_logged(&End::Cancelled, Came::default()).await;
                    return;
                }
                opened = self.open() => opened,
            };
            let Err(failure) = &opened else { break opened };
            let now = self.inner.clock.now();
            let Some(next) = self.attempts.after(&self.candidate, failure, now) else {
                break opened;
            };
            self.candidate = next;
        };
        match opened {
            Ok((Begun::Stream(streaming), permit)) => {
                self.relay(*streaming, reply).await;
                drop(permit);
            }
            Ok((Begun::Whole(whole), permit)) => {
                let answered = self.whole(*whole).await;
                drop(permit);
                // A disconnected client needs no answer.
                let _unsent = reply.send(answered);
            }
            Err(failure) => {
                let execution = self.id;
                self.record_logged(&End::Failed(failure.clone()), Came::default()).await;
                let _unsent = reply.send(Err(Error::Failed { execution, failure }));
            }
        }
    }

    /// Waits for a slot at the model and for its answer to begin. An answer that is not streamed is
    /// read to its end.
    async fn open(&mut self) -> Result<(Begun, Option<ModelPermit>), Failure> {
        let permit = match &self.candidate.local {
            Some(_) => Some(place_at(&self.inner, &self.candidate.name).await?),
            None => None,
        };
        let by_minute = self.candidate.price.rates().per_audio_minute.is_some();
        let formats = self.request.formats(self.candidate.local.is_some(), by_minute);
        let mut last = formats.len();
        for format in formats {
            last -= 1;
            match self.ask(*format).await {
                Err(failure) if last > 0 && rejects_format(&failure) => {}
                begun => return Ok((begun?, permit)),
            }
        }
        Err(Failure::new(500, ErrorClass::InternalError, "no format to ask for"))
    }

    /// Sends the request, and reads the answer up to the point from which it can be relayed.
    async fn ask(&mut self, format: Format) -> Result<Begun, Failure> {
        let name = self.candidate.name.clone();
        let target = &self.candidate.target;
        let is_process = matches!(target, Target::Process(_));
        let content = self.request.content(self.id, target.model(), format, is_process)?;
        let mut limits = self.candidate.limits(&self.inner, true);
        if let Some(model) = &self.candidate.local {
            limits.idle = model.timeout;
        }
        let accept = match (self.request.is_stream, self.request.wanted) {
            (true, _) => EVENTS,
            (false, Wanted::Speech | Wanted::Transcript(_)) => "*/*",
            (false, Wanted::Images(_)) => JSON,
        };
        let call = self.trace.call(&Execution::call_key(self.id));
        let asked = Asked {
            path: self.request.operation.path(),
            content: &*content,
            accept,
            may_fall_back: self.attempts.has_more(),
            call: &call,
        };
        let responded = self.inner.respond(&name, &self.candidate.target, asked, limits).await?;
        let Responded { headers, arriving, in_use, lease, .. } = responded;
        let body = Body::of(&name, &headers, arriving)?;
        let opened = Opened { is_stream: false, first: None, body, headers, limits, in_use, lease };
        self.begin(&name, opened, format).await
    }

    async fn begin(
        &mut self,
        name: &str,
        mut opened: Opened,
        format: Format,
    ) -> Result<Begun, Failure> {
        let begun = if self.request.is_stream || self.request.wanted == Wanted::Speech {
            stream::begin(name, self.request.is_stream, &mut opened).await
        } else {
            Ok(None)
        };
        match begun {
            Ok(Some(content_type)) => {
                let is_events = self.request.is_stream;
                Ok(Begun::Stream(Box::new(Streaming { opened, content_type, is_events })))
            }
            Ok(None) => self.read(name, opened, format).await,
            Err(failure) => {
                let failure = self.candidate.target.masked(failure);
                note(opened.lease.as_mut(), Some(&failure));
                Err(failure)
            }
        }
    }

    /// Reads an answer that is not streamed.
    async fn read(
        &mut self,
        name: &str,
        mut opened: Opened,
        format: Format,
    ) -> Result<Begun, Failure> {
        let first_byte = self.started.elapsed();
        let begun = opened.limits.begun;
        let checked = self.checked(name, &mut opened, format).await;
        let checked = checked.map_err(|failure| self.candidate.target.masked(failure));
        note(opened.lease.as_mut(), checked.as_ref().err());
        let (complete, measured) = checked?;
        if self.request.is_stream
            && let Complete::Object(answer) = &complete
        {
            // The server ignores `stream`.
            opened.first = Some(answer::events_of(Want::from(&self.request), name, answer)?);
            let content_type = HeaderValue::from_static(EVENTS);
            return Ok(Begun::Stream(Box::new(Streaming {
                opened,
                content_type,
                is_events: true,
            })));
        }
        Ok(Begun::Whole(Box::new(Whole { complete, measured, begun, first_byte })))
    }

    async fn checked(
        &mut self,
        name: &str,
        opened: &mut Opened,
        format: Format,
    ) -> Result<(Complete, Measured), Failure> {
        let text = read_whole(name, opened, &mut self.lease, ANSWER_MAX).await?;
        let want = Want::from(&self.request);
        let bytes = text.len();
        let named = name.to_owned();
        let check = move || answer::check(want, format, &named, &text);
        let checked = answers::parse_aside(bytes, check).await;
        let (mut complete, measured) =
            checked.unwrap_or_else(|| Err(broken(name, "its answer cannot be read")))?;
        if let (Wanted::Images(format), Complete::Object(answer)) = (want.wanted, &mut complete) {
            let copies = bytes.saturating_mul(IMAGE_COPIES);
            self.lease.grow_to(copies).map_err(|_full| too_many_bodies())?;
            if !self.request.is_stream {
                let Caller { organization, key, .. } = self.caller;
                let origin = Origin { organization, key, execution: self.id, attempt_key: "" };
                let files = self.inner.engine.files();
                answer::with_images(name, answer, format, files, origin).await?;
            }
        }
        Ok((complete, measured))
    }

    /// Records a complete answer, and returns it in the form for the client.
    async fn whole(self, whole: Whole) -> Result<MediaAnswer, Error> {
        let Whole { complete, measured, begun, first_byte } = whole;
        let execution = self.id;
        let came = self.came(measured, begun);
        let came = Came { first_byte: Some(first_byte), ..came };
        let want = Want::from(&self.request);
        let name = self.candidate.name.clone();
        let (content_type, body) = match complete {
            Complete::Text(text) => ("text/plain; charset=utf-8", Ok(text)),
            Complete::Object(mut answer) => {
                let audio_ms = came.media.audio_ms;
                if let Some(shown) = &self.candidate.shown
                    && answer.get("model").is_some()
                {
                    // The name is a string, so it can be written.
                    let _written = answer.set("model", shown);
                }
                (JSON, answer::with_cost(&name, want, &mut answer, audio_ms, came.cost))
            }
        };
        match body {
            Ok(body) => {
                self.candidate.count(&End::Done, came.cost, self.inner.clock.now());
                self.record(&End::Done, came).await?;
                let content_type = HeaderValue::from_static(content_type);
                Ok(MediaAnswer::Whole { execution, content_type, body })
            }
            Err(failure) => {
                self.record_logged(&End::Failed(failure.clone()), Came::default()).await;
                Err(Error::Failed { execution, failure })
            }
        }
    }

    /// Returns the usage and the cost of an answer that is complete, or that the client has left.
    fn came(&self, measured: Measured, begun: Instant) -> Came {
        let request = &self.request;
        let Measured { counts, seconds, images, bytes } = measured;
        let is_counted = counts != Counts::default();
        let tokens = if is_counted || self.candidate.price.rates().has_tokens() {
            counts.tokens(request.prompt_tokens(), bytes)
        } else {
            Tokens::default()
        };
        let audio = request.length.map(|length| length.reported(seconds));
        let media = Media {
            audio_ms: audio.map(milliseconds),
            characters: request.most.characters,
            images: request.most.images.map(|most| if images == 0 { most } else { images }),
        };
        let usage = Usage { run_time: begun.elapsed(), ..media.with(tokens) };
        let cost = self.candidate.price.of_usage(&usage).min(self.most);
        Came { tokens, media, cost, ..Came::default() }
    }

    async fn record_logged(self, end: &End, came: Came) {
        if let Err(error) = self.record(end, came).await {
            tracing::error!(%error, "failed to record a call for audio or images");
        }
    }

    /// Records the end of the call.
    ///
    /// # Errors
    /// [`engine::Error`]: nothing is recorded.
    async fn record(self, end: &End, came: Came) -> Result<(), engine::Error> {
        let Caller { organization, key, .. } = self.caller;
        let ending = Ending {
            id: self.id,
            trace: &self.trace,
            caller: self.caller,
            created_at: self.created_at,
            operation: self.request.operation,
            requested_model: &self.request.model,
        };
        let execution = ending.execution(&self.inner, &self.candidate, end, &came);
        let mut beside = Commit::new();
        let in_flight = self.in_flight;
        let used = came.tokens.total();
        self.inner.tokens.count(&mut beside, organization, key, used, &in_flight)?;
        beside.after_durable(move || in_flight.settle(used));
        let ended = EndedCall {
            execution,
            output: None,
            beside,
            reservation: self.reservation,
            facts: None,
        };
        self.inner.engine.record_call(ended).await
    }
}
