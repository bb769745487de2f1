//! Runs a call from admission until the call is recorded.
//!
//! Each call runs in its own task. If the client disconnects, the call ends: the router closes the
//! connection to the model, and records the call with the output sent so far. The reservation and
//! the count of tokens in flight are released once the record is on disk.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderValue, RETRY_AFTER};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::beside::Beside;
use super::cached::{CacheOutcome, Slot};
use super::ending::Ending;
use super::error::{Error, Failure};
use super::meter::Meter;
use super::request::{Form, Request};
use super::route::{Candidate, Target};
use super::service::{Chat, Inner};
use super::tokens::InFlight;
use super::upstream::{Asked, Content, EVENTS, JSON, Limits, NativeMessage, Opened};
use super::upstreams::Attempts;
use super::whole::Whole;
use orrery_domain::chat::{Media, Operation, Tokens};
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::{Execution, Source};
use orrery_domain::ids::{ExecutionId, KeyId, OrganizationId};
use orrery_domain::money::Usd;
use orrery_domain::time::Timestamp;
use orrery_domain::trace::{self, Trace};
use orrery_engine::{self as engine, EndedCall, Facts, ModelPermit};
use orrery_http::budget::Lease;
use orrery_records::billing::{Payer, Price, Reservation};
use orrery_runners::openai::stream_options::{Refusal, StreamOptions, ask_with_options};
use orrery_runtime::{self as runtime, new_id, turns};
use orrery_storage::Commit;

/// The `Retry-After` header for a full queue, in seconds.
const QUEUE_RETRY: HeaderValue = HeaderValue::from_static("5");

/// Pause before a call in the background tries a full queue again.
const QUEUE_PAUSE: Duration = Duration::from_secs(1);

/// Maximum wait for a free slot at a model.
const PLACE_TIMEOUT: Duration = Duration::from_secs(60);

/// The organization and key of a caller.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    pub organization: OrganizationId,
    pub key: KeyId,
    pub source: Source,
}

/// The response to a client's call.
#[derive(Debug)]
pub enum Answer {
    /// The complete answer as JSON.
    Whole { execution: ExecutionId, cache: Option<CacheOutcome>, body: Bytes },
    /// Server-sent events, sent as they arrive. Dropping the receiver ends the call.
    Stream { execution: ExecutionId, cache: Option<CacheOutcome>, pieces: mpsc::Receiver<Bytes> },
}

/// What a request adds to a call.
#[derive(Debug, Default)]
pub struct Extras {
    pub beside: Option<Beside>,
    /// Whether the answer must be new, not from the result cache.
    pub skips_cache: bool,
}

/// The channel for the response. The channel is closed if the client has disconnected.
pub(super) type Reply = oneshot::Sender<Result<Answer, Error>>;

/// An admitted call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) inner: Arc<Inner>,
    pub(super) id: ExecutionId,
    trace: Trace,
    pub(super) request: Request,
    /// Reserves memory for a non-streamed answer.
    pub(super) lease: Lease,
    pub(super) started: Instant,
    caller: Caller,
    created_at: Timestamp,
    reservation: Option<Reservation>,
    in_flight: InFlight,
    pub(super) beside: Option<Beside>,
    /// Where the answer is cached; `None` if it is not.
    pub(super) slot: Option<Slot>,
    /// `None` for a call whose client waits for the answer.
    deferred: Option<Deferred>,
    /// The request's body, which counts toward the budget while it is in memory.
    body: Bytes,
}

/// The state of a call in the background, whose caller records it.
#[derive(Debug)]
struct Deferred {
    /// Receives the end of the call.
    ended: oneshot::Sender<EndedCall>,
    /// Whether the call takes only slots of local models that no other call waits for.
    yields: bool,
}

/// A response from a model that has started to arrive.
#[derive(Debug)]
pub(super) enum Begun {
    Stream(Box<Opened>),
    Whole(Whole),
}

/// The `stream_options` to send to a server.
enum OptionsRule<'s> {
    Fixed(StreamOptions),
    /// Those that the server has not rejected.
    AsAccepted(&'s Refusal),
}

/// How a call ended.
#[derive(Debug)]
pub(super) enum End {
    Done,
    /// The client disconnected.
    Cancelled,
    Failed(Failure),
}

/// The usage and output of an answer.
#[derive(Debug, Default)]
pub(super) struct Came {
    pub(super) tokens: Tokens,
    pub(super) media: Media,
    pub(super) cost: Usd,
    pub(super) first_byte: Option<Duration>,
    pub(super) is_stream: bool,
    pub(super) is_cached: bool,
    pub(super) content: Option<Box<RawValue>>,
    pub(super) finish_reasons: Vec<String>,
    /// The caller's part of the commit that records the call.
    pub(super) beside: Commit,
}

impl Chat {
    /// Makes a call. `body` is the request body; `lease` reserves memory for the answer; `asked` is
    /// the execution metadata that the request sets.
    ///
    /// # Errors
    /// [`Error`]; only [`Error::Failed`] is recorded.
    pub async fn call(
        &self,
        caller: Caller,
        operation: Operation,
        body: Bytes,
        lease: Lease,
        extras: Extras,
        asked: impl FnOnce(ExecutionId) -> Option<Arc<trace::Origin>>,
    ) -> Result<Answer, Error> {
        let request = Request::read(operation, &body)?;
        self.answer(caller, request, body, lease, extras, asked).await
    }

    /// Makes the call of a valid request.
    pub(super) async fn answer(
        &self,
        caller: Caller,
        request: Request,
        body: Bytes,
        lease: Lease,
        extras: Extras,
        asked: impl FnOnce(ExecutionId) -> Option<Arc<trace::Origin>>,
    ) -> Result<Answer, Error> {
        let id = new_id();
        let trace = Trace::new(id, asked(id));
        let created_at = self.inner.clock.now();
        let start = Start { caller, request, body, lease, id, trace, created_at };
        let candidates = self.choose(&start).await?;
        let Extras { beside, skips_cache } = extras;
        let slot = Slot::of(caller, &start.request, &candidates);
        if let (Some(slot), Some(first)) = (&slot, candidates.first())
            && !skips_cache
            && let Some(found) = slot.find(&self.inner, &start.request).await
        {
            let mut call = self.admit_start(start, 0, Price::default()).await?;
            call.beside = beside;
            return call.answer_from_cache(first, found).await;
        }
        let mut call = self.admit_for(start, &candidates).await?;
        (call.beside, call.slot) = (beside, slot);
        let (reply, answer) = oneshot::channel();
        // Even if the client disconnects, its usage is recorded.
        let run = Box::pin(call.run(candidates, reply));
        let running = self.inner.tasks.complete(turns::on_behalf_of(caller.organization, run));
        running.until(answer).await.unwrap_or(Err(Error::Engine(engine::Error::Stopping)))
    }

    /// Checks a request that is made later, without making it: whether it is valid, and whether its
    /// caller can pay for it now.
    ///
    /// # Errors
    /// As [`Chat::call`], except for [`Error::Failed`].
    pub async fn check_call(
        &self,
        caller: Caller,
        operation: Operation,
        body: Bytes,
        lease: Lease,
    ) -> Result<(), Error> {
        let id = new_id();
        let created_at = self.inner.clock.now();
        let trace = Trace::new(id, None);
        let request = Request::read(operation, &body)?;
        let start = Start { caller, request, body, lease, id, trace, created_at };
        self.prepare(start).await.map(drop)
    }

    /// Makes the call of an execution that the engine runs and records. `body` is its request.
    /// Dropping the future ends the call.
    ///
    /// # Errors
    /// As [`Chat::call`]. A model's failure is part of the result.
    pub async fn call_for(
        &self,
        execution: &Execution,
        body: Bytes,
        lease: Lease,
    ) -> Result<Finished, Error> {
        let Execution { id, organization, key, source, created_at, .. } = *execution;
        let caller = Caller { organization, key, source };
        let (request, trace) = (Request::read(Operation::Chat, &body)?, execution.trace());
        let start = Start { caller, request, body, lease, id, trace, created_at };
        self.call_deferred(start, false).await
    }

    /// Makes a call that the caller records with [`engine::Engine::record_call`]. Its answer is not
    /// streamed, and it takes only slots of local models that no other call waits for. Dropping the
    /// future ends the call.
    ///
    /// # Errors
    /// As [`Chat::call`]. A model's failure is part of the result.
    pub async fn call_behind_others(
        &self,
        caller: Caller,
        operation: Operation,
        body: Bytes,
        lease: Lease,
    ) -> Result<Finished, Error> {
        let id = new_id();
        let (trace, created_at) = (Trace::new(id, None), self.inner.clock.now());
        let request = Request::read(operation, &body)?;
        let start = Start { caller, request, body, lease, id, trace, created_at };
        self.call_deferred(start, true).await
    }

    async fn call_deferred(&self, start: Start, yields: bool) -> Result<Finished, Error> {
        let (mut call, candidates) = self.prepare(start).await?;
        let (sender, mut ended) = oneshot::channel();
        call.deferred = Some(Deferred { ended: sender, yields });
        let (reply, answer) = oneshot::channel();
        let running = self.inner.tasks.complete(call.run(candidates, reply));
        let answer = match running.until(answer).await {
            Ok(Ok(Answer::Whole { body, .. })) => Ok(body),
            Ok(Err(Error::Failed { failure, .. })) => Err(failure),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(Answer::Stream { .. })) | Err(_) => {
                return Err(Error::Engine(engine::Error::Stopping));
            }
        };
        // It is sent before the answer.
        let ended = ended.try_recv().map_err(|_none| Error::Engine(engine::Error::Stopping))?;
        Ok(Finished { ended, answer })
    }

    /// Admits a call, and chooses the models to try.
    async fn prepare(&self, start: Start) -> Result<(Call, Vec<Candidate>), Error> {
        let candidates = self.choose(&start).await?;
        Ok((self.admit_for(start, &candidates).await?, candidates))
    }

    /// Chooses the models to try, all of which the key may use.
    async fn choose(&self, start: &Start) -> Result<Vec<Candidate>, Error> {
        let Start { caller, request, .. } = start;
        let mut ids = Vec::with_capacity(1 + request.models.len());
        for id in std::iter::once(&request.model).chain(&request.models) {
            ids.push(self.inner.named(id).await);
        }
        let candidates = self.inner.route(caller.organization, request, &ids).await?;
        for named in &ids {
            self.inner.check_model(caller.key, &named.asked, named.model())?;
        }
        Ok(candidates)
    }

    /// Admits a call to one of these models.
    async fn admit_for(&self, start: Start, candidates: &[Candidate]) -> Result<Call, Error> {
        let request = &start.request;
        let tokens = candidates.iter().map(|one| one.allowance(request).tokens().total());
        let tokens = tokens.max().unwrap_or(0);
        let price = dearest(candidates, request);
        self.admit_start(start, tokens, price).await
    }

    /// Admits a call that uses at most this many tokens and costs at most this price.
    async fn admit_start(&self, start: Start, tokens: u64, price: Price) -> Result<Call, Error> {
        let Start { caller, request, body, lease, id, trace, created_at } = start;
        let inner = Arc::clone(&self.inner);
        let Caller { organization, key, .. } = caller;
        let in_flight = inner.tokens.admit(organization, key, tokens).await?;
        let keeps = inner.options.keep_content;
        let reservation =
            inner.engine.admit_call(Payer { organization, key }, price, keeps).await?;
        Ok(Call {
            id,
            trace,
            started: runtime::monotonic_now(),
            created_at,
            request,
            lease,
            caller,
            reservation,
            in_flight,
            beside: None,
            slot: None,
            deferred: None,
            inner,
            body,
        })
    }
}

/// The parts of a call that its caller determines.
struct Start {
    caller: Caller,
    request: Request,
    body: Bytes,
    lease: Lease,
    id: ExecutionId,
    trace: Trace,
    created_at: Timestamp,
}

/// A call that the engine records: its end, and the model's answer.
#[derive(Debug)]
pub struct Finished {
    pub ended: EndedCall,
    pub answer: Result<Bytes, Failure>,
}

/// Returns the maximum cost of the most expensive candidate.
fn dearest(candidates: &[Candidate], request: &Request) -> Price {
    let most = |one: &Candidate| one.most(1, one.allowance(request).tokens());
    candidates.iter().map(most).fold(Price::default(), Price::dearer)
}

impl Call {
    /// Tries the models in order until one begins to answer.
    async fn run(mut self, candidates: Vec<Candidate>, mut reply: Reply) {
        let mut attempts = Attempts::new(candidates);
        let Some(mut candidate) = attempts.first() else { return };
        loop {
            let opened = tokio::select! {
                biased;
                () = reply.closed() => {
                    self.end_unanswered(&candidate, End::Cancelled).await;
                    return;
                }
                opened = self.open(&candidate, attempts.has_more()) => opened,
            };
            match opened {
                Ok((Begun::Stream(opened), permit)) => {
                    self.relay(candidate, *opened, reply).await;
                    drop(permit);
                    return;
                }
                Ok((Begun::Whole(whole), permit)) => {
                    self.whole(candidate, whole, reply).await;
                    drop(permit);
                    return;
                }
                Err(failure) => {
                    let now = self.inner.clock.now();
                    if let Some(next) = attempts.after(&candidate, &failure, now) {
                        candidate = next;
                        continue;
                    }
                    let execution = self.id;
                    self.end_unanswered(&candidate, End::Failed(failure.clone())).await;
                    // The send fails if the client has disconnected and needs no answer.
                    let _unsent = reply.send(Err(Error::Failed { execution, failure }));
                    return;
                }
            }
        }
    }

    /// Waits for a slot at the model and for the model's response to begin. A non-streamed response
    /// is read to its end, so that another model can be tried if the response is invalid.
    async fn open(
        &mut self,
        candidate: &Candidate,
        may_fall_back: bool,
    ) -> Result<(Begun, Option<ModelPermit>), Failure> {
        let name = &candidate.name;
        let permit = match &candidate.local {
            Some(_) => Some(match &self.deferred {
                None => place_at(&self.inner, name).await?,
                Some(Deferred { yields: false, .. }) => place_when_free(&self.inner, name).await,
                Some(Deferred { yields: true, .. }) => self.inner.engine.spare_place_at(name).await,
            }),
            None => None,
        };
        let is_stream = self.request.is_stream;
        // Loading a local model, reading its prompt, or generating a non-streamed answer may take up
        // to the model's own time limit.
        let is_whole = !is_stream || matches!(candidate.target, Target::Process(_));
        let limits = candidate.limits(&self.inner, is_whole);
        let ask = |options| self.ask(candidate, may_fall_back, limits, options);
        let rule = match &candidate.target {
            Target::Process(_) => OptionsRule::Fixed(StreamOptions::AsSent),
            _ if !is_stream || self.request.form != Form::Chat => {
                OptionsRule::Fixed(StreamOptions::AsSent)
            }
            Target::Upstream(used) => match used.upstream.options.stream_options {
                Some(options) => OptionsRule::Fixed(options),
                None => OptionsRule::AsAccepted(&used.upstream.servers.stream_options),
            },
            Target::Pool { servers, .. } => OptionsRule::AsAccepted(&servers.stream_options),
        };
        let opened = match rule {
            OptionsRule::AsAccepted(refusal) => {
                let has_own_options = candidate.request(&self.request).has_own_stream_options();
                ask_with_options(refusal, has_own_options, ask).await?
            }
            OptionsRule::Fixed(options) => ask(options).await?,
        };
        if opened.is_stream {
            return Ok((Begun::Stream(Box::new(opened)), permit));
        }
        Ok((self.read(candidate, opened).await?, permit))
    }

    /// Sends the request to a candidate.
    async fn ask(
        &self,
        candidate: &Candidate,
        may_fall_back: bool,
        limits: Limits,
        options: StreamOptions,
    ) -> Result<Opened, Failure> {
        let name = &candidate.name;
        let target = &candidate.target;
        let body = candidate.request(&self.request).body(target.model(), options);
        let body = body.map_err(|error| {
            let message = format!("cannot build the request to the model '{name}': {error}");
            Failure::new(500, ErrorClass::InternalError, message)
        })?;
        let is_stream = self.request.is_stream;
        let path = self.request.path();
        let native;
        let content: &dyn Content = match self.request.form {
            Form::Chat | Form::Responses => &body,
            Form::Messages => {
                native = NativeMessage { body, beta: self.request.beside.beta.clone() };
                &native
            }
        };
        let call = self.trace.call(&Execution::call_key(self.id));
        let accept = if is_stream { EVENTS } else { JSON };
        let asked = Asked { path, content, accept, may_fall_back, call: &call };
        self.inner.open(name, target, asked, is_stream, limits).await
    }

    /// Returns whether the engine records the call.
    pub(super) const fn is_deferred(&self) -> bool {
        self.deferred.is_some()
    }

    /// Returns the usage and cost so far. `begun` is the time at which the model started.
    pub(super) fn came(&self, candidate: &Candidate, meter: &Meter, begun: Instant) -> Came {
        let tokens = meter.tokens();
        let cost =
            if meter.is_empty() { Usd::ZERO } else { candidate.price.of(tokens, begun.elapsed()) };
        Came { tokens, cost, ..Came::default() }
    }

    /// Returns the maximum charge for an answer that was cut off for exceeding its reservation.
    pub(super) fn most_of_cut(&self) -> Option<Usd> {
        self.reservation.as_ref().map(Reservation::amount)
    }

    /// Estimates the number of tokens in a candidate's prompt.
    pub(super) fn prompt_tokens(&self, candidate: &Candidate) -> u64 {
        candidate.request(&self.request).bound.prompt_estimate()
    }

    /// Returns whether output tokens are reserved for the answer of a candidate.
    pub(super) fn reserves_output(&self, candidate: &Candidate) -> bool {
        self.reservation.is_some() && !candidate.price.is_fixed()
    }

    /// Records a call without any output.
    async fn end_unanswered(self, candidate: &Candidate, end: End) {
        if let Err(error) = self.record(candidate, &end, Came::default()).await {
            tracing::error!(%error, "failed to record chat call");
        }
    }

    /// Records the end of the call. `answer` is the complete answer, if it is not streamed.
    ///
    /// # Errors
    /// [`engine::Error`]: nothing is recorded.
    pub(super) async fn record(
        self,
        candidate: &Candidate,
        end: &End,
        came: Came,
    ) -> Result<(), engine::Error> {
        let ending = Ending {
            id: self.id,
            trace: &self.trace,
            caller: self.caller,
            created_at: self.created_at,
            operation: self.request.operation,
            requested_model: &self.request.model,
        };
        let execution = ending.execution(&self.inner, candidate, end, &came);
        let Caller { organization, key, .. } = self.caller;
        let mut beside = came.beside;
        let in_flight = self.in_flight;
        let reservation = self.reservation;
        let used = came.tokens.total();
        self.inner.tokens.count(&mut beside, organization, key, used, &in_flight)?;
        beside.after_durable(move || in_flight.settle(used));
        let options = &self.inner.options;
        let facts = Facts {
            request: self.body,
            answer: if options.trace_content { came.content.clone() } else { None },
            finish_reasons: came.finish_reasons,
        };
        let output = came.content.filter(|_| options.keep_content);
        let ended = EndedCall { execution, output, beside, reservation, facts: Some(facts) };
        match self.deferred {
            Some(deferred) => {
                // The engine no longer waits for a call that was cancelled.
                let _unsent = deferred.ended.send(ended);
                Ok(())
            }
            None => self.inner.engine.record_call(ended).await,
        }
    }
}

/// Waits for a slot at a catalog model.
///
/// # Errors
/// [`Failure`] if the queue is full or no slot becomes free in time.
pub(super) async fn place_at(inner: &Inner, model: &str) -> Result<ModelPermit, Failure> {
    let patience = inner.options.first_byte_timeout.min(PLACE_TIMEOUT);
    match tokio::time::timeout(patience, inner.engine.place_at(model)).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(error)) => {
            let message = format!("the model '{model}': {error}");
            let mut failure = Failure::new(429, ErrorClass::ProviderRateLimit, message);
            failure.said.headers.insert(RETRY_AFTER, QUEUE_RETRY);
            Err(failure)
        }
        Err(_elapsed) => {
            let message = format!("the model '{model}' had no free slot in time");
            Err(Failure::new(503, ErrorClass::ProviderUnavailable, message))
        }
    }
}

/// Waits for a slot at a catalog model for as long as it takes: nobody waits for the answer.
async fn place_when_free(inner: &Inner, model: &str) -> ModelPermit {
    loop {
        match inner.engine.place_at(model).await {
            Ok(permit) => return permit,
            Err(_queue_is_full) => tokio::time::sleep(QUEUE_PAUSE).await,
        }
    }
}

/// Returns whether the history or traces contain the answers of this operation.
pub(super) fn keeps_content(inner: &Inner, operation: Operation) -> bool {
    let options = &inner.options;
    (options.keep_content || options.trace_content) && operation.writes_text()
}
