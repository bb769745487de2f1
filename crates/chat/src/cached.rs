//! Answers from the result cache of catalog models (`docs/models.md`, "Cache results").
//!
//! A call that is answered from the cache is admitted and recorded like any other call, but it
//! reserves nothing, uses no tokens and costs nothing. Only complete answers are stored: the answer
//! of a stream is not.

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::call::{Answer, Call, Caller, Came, End, keeps_content};
use super::error::Error;
use super::meter::Meter;
use super::request::Request;
use super::route::Candidate;
use super::service::Inner;
use super::whole::with_cost;
use orrery_domain::chat::{Operation, Tokens};
use orrery_domain::money::Usd;
use orrery_domain::raw_object::RawObject;
use orrery_records::billing::Payer;
use orrery_records::result_cache::{Entry, RESULT_BYTES_MAX};
use orrery_runners::openai::shape;
use orrery_storage::Commit;

/// Whether the result cache had the answer of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOutcome {
    Hit,
    Miss,
}

/// Where the answer of a call is cached.
#[derive(Debug)]
pub(super) struct Slot {
    /// The model whose answers are cached; the answers of its fallback chain are not.
    model: String,
    entry: Entry,
}

impl Slot {
    /// Returns the slot of a request; `None` if the model that it names has no cache, or if equal
    /// requests may get different answers.
    pub(super) fn of(caller: Caller, request: &Request, candidates: &[Candidate]) -> Option<Self> {
        let first = candidates.first()?;
        let cache = first.local.as_ref()?.cache()?;
        let input = request.repeatable()?;
        let Caller { organization, key, .. } = caller;
        let payer = Payer { organization, key };
        let entry = Entry::new(payer, &first.name, cache, request.path(), &input);
        Some(Self { model: first.name.clone(), entry })
    }

    /// Returns the cached answer to a request, if there is one.
    pub(super) async fn find(&self, inner: &Inner, request: &Request) -> Option<Found> {
        Found::of(request, &inner.results.find(&self.entry, "chat").await?)
    }

    /// Adds an answer of `candidate` to the commit that records the call.
    pub(super) fn add(
        &self,
        inner: &Inner,
        candidate: &Candidate,
        answer: &Bytes,
        commit: &mut Commit,
    ) {
        let is_named = candidate.mapped.is_none() && candidate.name == self.model;
        if !is_named || candidate.local.is_none() || answer.len() > RESULT_BYTES_MAX {
            return;
        }
        let Ok(answer) = serde_json::from_slice::<&RawValue>(answer) else { return };
        if let Err(error) = inner.results.add(commit, &self.entry, answer) {
            tracing::warn!(model = self.model, %error, "failed to cache an answer");
        }
    }
}

/// An answer from the cache.
#[derive(Debug)]
pub(super) struct Found {
    answer: RawObject,
    /// The complete answer, with a cost of zero.
    text: Bytes,
    /// The answer as a stream, if the request wants one.
    events: Option<Bytes>,
}

impl Found {
    fn of(request: &Request, result: &RawValue) -> Option<Self> {
        let mut answer: RawObject = serde_json::from_str(result.get()).ok()?;
        let text: Bytes = with_cost(&mut answer, Tokens::default(), Usd::ZERO).ok()?.into();
        if !request.is_stream {
            return Some(Self { answer, text, events: None });
        }
        let mut streamed = answer.clone();
        if !request.wants_usage {
            streamed.remove("usage");
        }
        let streamed = streamed.text().ok()?;
        let events = if request.operation == Operation::Completions {
            shape::text_events_of(&streamed)?
        } else {
            shape::events_of(&streamed)?
        };
        Some(Self { answer, text, events: Some(events) })
    }
}

impl Call {
    /// Records the call with an answer from the cache of `candidate`, and returns the answer.
    ///
    /// # Errors
    /// [`Error::Engine`]: nothing is recorded.
    pub(super) async fn answer_from_cache(
        mut self,
        candidate: &Candidate,
        found: Found,
    ) -> Result<Answer, Error> {
        let Found { answer, text, events } = found;
        let (execution, operation) = (self.id, self.request.operation);
        let mut meter = Meter::new(0, keeps_content(&self.inner, operation));
        meter.whole(operation, &answer, &text);
        let beside = match self.beside.take().filter(|_| events.is_none()) {
            Some(beside) => beside.commit(execution, text.clone()).await,
            None => Commit::new(),
        };
        let came = Came {
            first_byte: Some(self.started.elapsed()),
            is_stream: events.is_some(),
            is_cached: true,
            content: meter.take_content(),
            finish_reasons: meter.take_finish_reasons(),
            beside,
            ..Came::default()
        };
        self.record(candidate, &End::Done, came).await?;
        let cache = Some(CacheOutcome::Hit);
        let Some(events) = events else {
            return Ok(Answer::Whole { execution, cache, body: text });
        };
        let (sender, pieces) = mpsc::channel(1);
        // The channel has room for the events, which are its only piece.
        let _sent = sender.try_send(events);
        Ok(Answer::Stream { execution, cache, pieces })
    }

    /// Returns the cache outcome of a call that reached the model: a miss if the model has a cache,
    /// and otherwise `None`.
    pub(super) fn cache_miss(&self) -> Option<CacheOutcome> {
        self.slot.as_ref().map(|_| CacheOutcome::Miss)
    }
}
