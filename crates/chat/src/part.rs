//! Model calls that are parts of larger work: the questions of a decision, the turns of an agent.
//!
//! Such work binds a model once, calls it any number of times, and is recorded as a whole, in one
//! commit with the cost of all its calls. Answers are never streamed and never come from a fallback
//! chain, so all parts come from the same model, if not from the same upstream. This module does not
//! record.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::call::{Caller, End, place_at};
use super::error::{Error, Failure};
use super::meter::Meter;
use super::request::Form;
use super::route::{Candidate, Named, Target};
use super::service::{Chat, Inner};
use super::tokens::InFlight;
use super::upstream::{Asked, JSON, Limits, note};
use super::upstreams::Attempts;
use super::whole::read_whole;
use orrery_domain::chat::{Operation, Tokens};
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::Execution;
use orrery_domain::money::Usd;
use orrery_domain::raw_object::RawObject;
use orrery_domain::token_bound::TokenBound;
use orrery_domain::trace;
use orrery_engine::{self as engine, EndedCall};
use orrery_http::answers;
use orrery_http::budget::Lease;
use orrery_records::billing::{Payer, Price, Reservation};
use orrery_runners::llm::SCORE;
use orrery_runners::openai::answer;
use orrery_runners::openai::failure::{broken, misunderstood};
use orrery_storage::{self as storage, Commit};

/// Maximum size of the answer of one part, in bytes.
const ANSWER_MAX: usize = 4 * 1024 * 1024;

/// A chat model to which larger work is bound.
#[derive(Debug, Clone)]
pub struct BoundModel {
    inner: Arc<Inner>,
    /// The ways to call the model; at least one.
    candidates: Arc<Vec<Candidate>>,
    name: String,
}

/// One request for an answer.
#[derive(Clone, Copy)]
struct Question<'q> {
    path: &'static str,
    prompt_tokens: u64,
    call: &'q trace::Call,
}

/// One answer.
#[derive(Debug)]
pub struct Completion {
    /// The response of the model's server.
    pub answer: RawObject,
    pub tokens: Tokens,
    pub cost: Usd,
}

/// The reservation of admitted work. Dropping it releases the reservation.
#[derive(Debug, Default)]
pub struct Admission {
    in_flight: InFlight,
    reservations: Vec<Reservation>,
}

impl Admission {
    /// Settles the tokens that the work has used, and releases its reservations.
    pub fn settle(self, tokens: Tokens) {
        let Self { in_flight, reservations } = self;
        in_flight.settle(tokens.total());
        drop(reservations);
    }
}

impl Chat {
    /// Returns the chat model with this id: the catalog model with this slug, or else the
    /// upstream's model.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the model is not a chat model; [`Error::NoModel`].
    pub fn bind(&self, id: &str) -> Result<BoundModel, Error> {
        let inner = Arc::clone(&self.inner);
        let candidates = inner.find(&Named::plain(id), Operation::Chat, Form::Chat)?;
        Ok(BoundModel { inner, candidates: Arc::new(candidates), name: id.to_owned() })
    }

    /// Admits work that uses at most about `tokens` tokens, and reserves the maximum cost of that
    /// work.
    ///
    /// # Errors
    /// [`Error::TokensUsedUp`]; [`Error::Engine`] if the balance is too low.
    pub async fn admit(
        &self,
        caller: Caller,
        tokens: u64,
        price: Price,
    ) -> Result<Admission, Error> {
        let Caller { organization, key, .. } = caller;
        let in_flight = self.inner.tokens.admit(organization, key, tokens).await?;
        let mut admission = Admission { in_flight, reservations: Vec::new() };
        self.reserve(caller, &mut admission, price).await?;
        Ok(admission)
    }

    /// Reserves an additional amount for admitted work.
    ///
    /// # Errors
    /// [`Error::Engine`] if the balance is too low.
    pub async fn reserve(
        &self,
        caller: Caller,
        admission: &mut Admission,
        price: Price,
    ) -> Result<(), Error> {
        let keeps = self.keeps_content();
        let Caller { organization, key, .. } = caller;
        let payer = Payer { organization, key };
        let held = self.inner.engine.admit_call(payer, price, keeps).await?;
        admission.reservations.extend(held);
        Ok(())
    }

    /// Returns whether the history stores the answers of models.
    #[must_use]
    pub fn keeps_content(&self) -> bool {
        self.inner.options.keep_content
    }

    /// Adds the tokens of finished work to its commit. The caller must call [`Admission::settle`]
    /// after the commit is durable.
    ///
    /// # Errors
    /// [`storage::Error`]
    pub fn count_tokens(
        &self,
        commit: &mut Commit,
        caller: Caller,
        tokens: Tokens,
        admission: &Admission,
    ) -> Result<(), storage::Error> {
        let Caller { organization, key, .. } = caller;
        let used = tokens.total();
        self.inner.tokens.count(commit, organization, key, used, &admission.in_flight)
    }

    /// Records finished work: its row, charge and token count are written in one commit.
    ///
    /// # Errors
    /// [`engine::Error`]: nothing is recorded.
    pub async fn settle(
        &self,
        admission: Admission,
        execution: Execution,
        tokens: Tokens,
        output: Option<Box<RawValue>>,
    ) -> Result<(), engine::Error> {
        let mut beside = Commit::new();
        let organization = execution.organization;
        let key = execution.key;
        let used = tokens.total();
        self.inner.tokens.count(&mut beside, organization, key, used, &admission.in_flight)?;
        beside.after_durable(move || admission.settle(tokens));
        let ended = EndedCall { execution, output, beside, reservation: None, facts: None };
        self.inner.engine.record_call(ended).await
    }
}

impl BoundModel {
    /// Returns the slug, or the upstream's id of the model.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the model is an upstream model rather than a catalog model.
    #[must_use]
    pub fn is_upstream(&self) -> bool {
        self.candidates.iter().any(|one| one.local.is_none())
    }

    /// Returns whether the model has a price.
    #[must_use]
    pub fn is_priced(&self) -> bool {
        self.candidates.iter().any(|one| one.price.is_known())
    }

    /// Returns the maximum tokens and cost of an answer to a request.
    #[must_use]
    pub fn most_of(&self, request: TokenBound) -> (Tokens, Price) {
        let context = self.candidates.first().and_then(Candidate::context);
        let tokens = request.tokens(context);
        (tokens, self.dearest(1, tokens))
    }

    /// Returns the maximum cost of `answers` answers of at most `output` tokens each, to prompts of
    /// at most `input` tokens in total.
    #[must_use]
    pub fn most(&self, answers: u64, input: u64, output: u64) -> Price {
        let output = output.saturating_mul(answers);
        self.dearest(answers, Tokens::estimated(input, output))
    }

    fn dearest(&self, answers: u64, tokens: Tokens) -> Price {
        let most = self.candidates.iter().map(|one| one.most(answers, tokens));
        most.fold(Price::default(), Price::dearer)
    }

    /// Requests an answer. `fields` are the request's fields without the model; `lease` reserves
    /// memory for the answer while it is read; `call` is the trace span.
    ///
    /// # Errors
    /// [`Failure`]
    pub async fn complete(
        &self,
        fields: RawObject,
        lease: &mut Lease,
        call: &trace::Call,
    ) -> Result<Completion, Failure> {
        let prompt_tokens = TokenBound::of(&fields).prompt_estimate();
        let write = |candidate: &Candidate| {
            let name = candidate.name.as_str();
            let mut fields = fields.clone();
            let written = fields.set("model", candidate.target.model().unwrap_or(name));
            let written = written.and_then(|()| fields.text());
            Ok(written.map_err(|error| unwritable(name, &error))?.into())
        };
        self.ask(Question { path: Operation::Chat.path(), prompt_tokens, call }, write, lease).await
    }

    /// Returns whether the model is a local process, which can score the labels of many questions
    /// about one state at once.
    #[must_use]
    pub fn can_score(&self) -> bool {
        self.candidates.iter().any(|one| matches!(one.target, Target::Process(_)))
    }

    /// Requests the scores of all questions from a model that supports scoring.
    ///
    /// # Errors
    /// [`Failure`]
    pub async fn score(
        &self,
        body: Bytes,
        prompt_tokens: u64,
        lease: &mut Lease,
        call: &trace::Call,
    ) -> Result<Completion, Failure> {
        let write = |_: &Candidate| Ok(body.clone());
        self.ask(Question { path: SCORE, prompt_tokens, call }, write, lease).await
    }

    /// Requests an answer from the catalog model, or from the upstreams of the model in turn.
    /// `write` returns the body for each.
    async fn ask(
        &self,
        question: Question<'_>,
        write: impl Fn(&Candidate) -> Result<Bytes, Failure> + Send + Sync,
        lease: &mut Lease,
    ) -> Result<Completion, Failure> {
        if let Some(local) = self.candidates.first().filter(|first| first.local.is_some()) {
            return self.ask_one(local, question, write(local)?, false, lease).await;
        }
        let named = Named::plain(&self.name);
        let found = self.inner.find(&named, Operation::Chat, Form::Chat).map_err(|error| {
            Failure::new(503, ErrorClass::ProviderUnavailable, error.to_string())
        })?;
        let mut attempts = Attempts::new(found);
        let mut next = attempts.first();
        loop {
            let Some(candidate) = next else {
                let message = "no upstream is left";
                return Err(Failure::new(500, ErrorClass::InternalError, message));
            };
            let has_more = attempts.has_more();
            let body = write(&candidate)?;
            let answered = self.ask_one(&candidate, question, body, has_more, lease).await;
            let now = self.inner.clock.now();
            match answered {
                Ok(completion) => {
                    candidate.count(&End::Done, completion.cost, now);
                    return Ok(completion);
                }
                Err(failure) => match attempts.after(&candidate, &failure, now) {
                    None => return Err(failure),
                    after => next = after,
                },
            }
        }
    }

    /// Waits for a slot at the model, and sends the request.
    async fn ask_one(
        &self,
        candidate: &Candidate,
        question: Question<'_>,
        body: Bytes,
        may_fall_back: bool,
        lease: &mut Lease,
    ) -> Result<Completion, Failure> {
        let permit = match &candidate.local {
            Some(_) => Some(place_at(&self.inner, &candidate.name).await?),
            None => None,
        };
        let limits = candidate.limits(&self.inner, true);
        let Question { path, prompt_tokens, call } = question;
        let asked = Asked { path, content: &body, accept: JSON, may_fall_back, call };
        let completed = self.exchange(candidate, asked, prompt_tokens, limits, lease).await;
        drop(permit);
        completed
    }

    async fn exchange(
        &self,
        candidate: &Candidate,
        asked: Asked<'_>,
        prompt_tokens: u64,
        limits: Limits,
        lease: &mut Lease,
    ) -> Result<Completion, Failure> {
        let inner = &self.inner;
        let name = candidate.name.as_str();
        let mut opened = inner.open(name, &candidate.target, asked, false, limits).await?;
        if opened.is_stream {
            return Err(misunderstood(name, "its answer is a stream that was not requested"));
        }
        let read = read_whole(name, &mut opened, lease, ANSWER_MAX).await;
        let operation = (asked.path != SCORE).then_some(Operation::Chat);
        let parsed = match read {
            Ok(text) => understood(operation, name.to_owned(), text).await,
            Err(failure) => Err(failure),
        };
        let parsed = parsed.map_err(|failure| candidate.target.masked(failure));
        note(opened.lease.as_mut(), parsed.as_ref().err());
        let (answer, text) = parsed?;
        let mut meter = Meter::new(prompt_tokens, false);
        meter.whole(Operation::Chat, &answer, &text);
        let tokens = meter.tokens();
        let cost = candidate.price.of(tokens, limits.begun.elapsed());
        Ok(Completion { answer, tokens, cost })
    }
}

/// Parses a non-streamed answer into an object, and returns the object with the raw text.
async fn understood(
    operation: Option<Operation>,
    name: String,
    text: Bytes,
) -> Result<(RawObject, Bytes), Failure> {
    let unread = broken(&name, "its answer cannot be read");
    let bytes = text.len();
    let parse = move || Ok((answer::parse(operation, &name, &text)?, text));
    answers::parse_aside(bytes, parse).await.unwrap_or(Err(unread))
}

fn unwritable(name: &str, error: &serde_json::Error) -> Failure {
    let message = format!("cannot build the request to the model '{name}': {error}");
    Failure::new(500, ErrorClass::InternalError, message)
}
