//! Runs a decision request from admission until the request is recorded.
//!
//! Each request runs in its own task. A local model gets all questions at once (`local`). A remote
//! server gets the first question alone: its response shows whether the model returns
//! probabilities, fails early if the state is too long, and leaves the state in the server's cache.
//! The other questions are then sent concurrently, within the limits. The first failure ends the
//! request. The maximum cost is reserved at admission, and the actual cost is charged in the commit
//! that records the request, once all answers have arrived. If the client disconnects, only the
//! answers that have already arrived are charged.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::value::to_raw_value;
use tokio::sync::oneshot;

use super::error::Error;
use super::local;
use super::probabilities::{answer, of_both_orders, of_votes};
use super::prompt::{Form, Order, SYSTEM, suffix};
use super::request::{Question, Request};
use super::scorer::Scorer;
use super::server::{Server, Used, VOTE_TOKENS_MAX};
use crate::{self as chat, Admission, BoundModel, Caller, Chat, Failure};
use orrery_domain::chat::{estimate, most_of};
use orrery_domain::classify::ErrorClass;
use orrery_domain::decision::{Decision, Method};
use orrery_domain::execution::{Execution, Fault, Status, Work};
use orrery_domain::ids::ExecutionId;
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_domain::time::Timestamp;
use orrery_domain::trace::{self, Trace};
use orrery_engine as engine;
use orrery_http::budget::Lease;
use orrery_runtime::{Clock, Tasks, new_id};
use orrery_wire::decision::Answer;

/// Maximum concurrent model calls of one request.
const ASKED_AT_ONCE_MAX: usize = 16;
/// Maximum bytes of prompts that one request sends concurrently: a large state reduces the number
/// of concurrent questions.
const PROMPT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Number of copies of a prompt in memory while the prompt is sent: its text, its JSON, and the
/// HTTP request.
const PROMPT_COPIES: usize = 3;
/// Time limit of a request.
const TIME_MAX: Duration = Duration::from_secs(600);

/// The settings of decisions.
#[derive(Debug, Clone)]
pub struct Options {
    /// Aliases of chat models.
    pub aliases: HashMap<String, String>,
    /// Number of votes on a question if the model returns no probabilities.
    pub samples: u32,
}

/// The dependencies of decisions.
#[derive(Debug)]
pub struct Dependencies {
    pub clock: Clock,
    pub tasks: Tasks,
    pub chat: Chat,
}

#[derive(Debug)]
struct Inner {
    clock: Clock,
    tasks: Tasks,
    chat: Chat,
    options: Options,
}

/// Answers decision requests; clones share the same state.
#[derive(Debug, Clone)]
pub struct Decisions {
    inner: Arc<Inner>,
}

/// The answers to all questions of a request.
#[derive(Debug)]
pub struct Decided {
    pub execution: ExecutionId,
    pub method: Method,
    /// The answers by question name, in the order of the questions.
    pub answers: Vec<(String, Answer)>,
    pub used: Used,
}

/// An admitted request.
struct Session {
    inner: Arc<Inner>,
    id: ExecutionId,
    trace: Trace,
    caller: Caller,
    request: Request,
    model: BoundModel,
    admission: Admission,
    lease: Lease,
    used: Arc<Mutex<Used>>,
    method: Method,
    /// The number of questions.
    questions: u32,
    created_at: Timestamp,
    /// The request's body, which counts toward the budget while it is in memory.
    _body: Bytes,
}

/// The failure of a request, with the name of the question that failed, if any.
pub(super) type Failed = (Option<String>, Failure);

impl Decisions {
    /// Creates a decision service with these settings.
    #[must_use]
    pub fn new(dependencies: Dependencies, options: Options) -> Self {
        let Dependencies { clock, tasks, chat } = dependencies;
        Self { inner: Arc::new(Inner { clock, tasks, chat, options }) }
    }

    /// Answers the questions of a request. `lease` reserves memory in addition to the request body;
    /// `asked` is the execution metadata that the request sets.
    ///
    /// # Errors
    /// [`Error`]; only [`Error::Failed`] is recorded.
    pub async fn decide(
        &self,
        caller: Caller,
        body: Bytes,
        lease: Lease,
        asked: impl FnOnce(ExecutionId) -> Option<Arc<trace::Origin>>,
    ) -> Result<Decided, Error> {
        let inner = Arc::clone(&self.inner);
        let request = Request::read(&body)?;
        let named = inner.options.aliases.get(&request.model).unwrap_or(&request.model);
        inner.chat.check_model(caller.key, &request.model, named)?;
        let model = inner.chat.bind(named)?;
        let (prompt_tokens, answers) = expected(&model, &request);
        let prompt_tokens = most_of(prompt_tokens);
        let price = model.most(answers, prompt_tokens, 1);
        let admission =
            inner.chat.admit(caller, prompt_tokens.saturating_add(answers), price).await?;
        let id = new_id();
        let work = Session {
            id,
            trace: Trace::new(id, asked(id)),
            created_at: inner.clock.now(),
            caller,
            model,
            admission,
            lease,
            used: Arc::default(),
            method: Method::Logprobs,
            questions: u32::try_from(request.questions.len()).unwrap_or(u32::MAX),
            request,
            inner,
            _body: body,
        };
        let (reply, answer) = oneshot::channel();
        // The request is recorded even if the client disconnects.
        let deciding = self.inner.tasks.complete(work.run(reply));
        let stopping = || Error::Chat(chat::Error::Engine(engine::Error::Stopping));
        deciding.until(answer).await.unwrap_or_else(|_gone| Err(stopping()))
    }
}

/// Returns an estimate of the tokens of all prompts, and the number of model calls.
fn expected(model: &BoundModel, request: &Request) -> (u64, u64) {
    if model.can_score() {
        return (local::prompt_tokens(&request.state, &request.questions), 1);
    }
    let questions: Vec<&Question> = request.questions.iter().collect();
    (prompt_tokens(&request.state, &questions, 2), questions.len() as u64 * 2)
}

/// Estimates the tokens of all prompts: each question is sent `times` times with the state.
fn prompt_tokens(state: &str, questions: &[&Question], times: u64) -> u64 {
    let shared = (SYSTEM.len() + state.len()) as u64;
    let of_one = |question: &&Question| {
        let own = suffix(question, Order::Given, Form::Json).len() as u64;
        estimate(shared.saturating_add(own)).saturating_mul(times)
    };
    questions.iter().map(of_one).fold(0, u64::saturating_add)
}

impl Session {
    async fn run(mut self, mut reply: oneshot::Sender<Result<Decided, Error>>) {
        let answered = tokio::select! {
            biased;
            () = reply.closed() => None,
            answered = tokio::time::timeout(TIME_MAX, self.answer_all()) => Some(answered),
        };
        let execution = self.id;
        let method = self.method;
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, status, answers) = match answered {
            None => (None, Status::Cancelled, None),
            Some(Ok(Ok(answers))) => (None, Status::Success, Some(answers)),
            Some(Ok(Err(failed))) => (Some(failed), Status::Error, None),
            Some(Err(_elapsed)) => {
                let message = format!("the questions were not answered within {TIME_MAX:?}");
                let failure = Failure::new(504, ErrorClass::ExecutionTimeout, message);
                (Some((None, failure)), Status::Error, None)
            }
        };
        let failure = ended.as_ref().map(|(_, failure)| failure);
        let recorded = self.record(status, failure, used, answers.as_deref()).await;
        if let Err(error) = &recorded {
            tracing::error!(%error, "failed to record decision request");
        }
        let result = match (recorded, ended, answers) {
            (Ok(()), None, Some(answers)) => Ok(Decided { execution, method, answers, used }),
            (Err(error), None, _) => Err(Error::Chat(error.into())),
            (_, Some((question, failure)), _) => {
                Err(Error::Failed { execution, question, failure })
            }
            // The client has disconnected.
            (Ok(()), None, None) => return,
        };
        // The send fails if the client has disconnected and needs no answer.
        let _unsent = reply.send(result);
    }

    /// Answers all questions, in order.
    async fn answer_all(&mut self) -> Result<Vec<(String, Answer)>, Failed> {
        let at_once = self.asked_at_once()?;
        let state = &self.request.state;
        let lease = self.lease.sibling();
        let call = self.trace.call(&Execution::call_key(self.id));
        let used = Arc::clone(&self.used);
        let server = Server::new(self.model.clone(), state, lease, call, used);
        let questions = std::mem::take(&mut self.request.questions);
        let mut found = if self.model.can_score() {
            local::score_all(&server, &questions).await?
        } else {
            score_all(&server, &questions, at_once).await?
        };
        let open: Vec<usize> = (0..questions.len()).filter(|at| !found.contains_key(at)).collect();
        if !open.is_empty() {
            self.method = Method::Votes;
            let asked: Vec<&Question> = open.iter().filter_map(|at| questions.get(*at)).collect();
            self.reserve_votes(&asked).await?;
            let samples = self.inner.options.samples;
            let votes = vote_all(&server, &asked, samples, at_once).await?;
            found.extend(open.into_iter().zip(votes));
        }
        let answers = questions.iter().enumerate().filter_map(|(at, question)| {
            Some((question.name.clone(), answer(question, found.get(&at)?)))
        });
        Ok(answers.collect())
    }

    /// Returns the number of prompts that may be in memory at once.
    fn asked_at_once(&mut self) -> Result<usize, Failed> {
        let own: Vec<usize> = self
            .request
            .questions
            .iter()
            .map(|question| suffix(question, Order::Given, Form::Json).len())
            .collect();
        let shared = SYSTEM.len() + self.request.state.len();
        let largest = shared + own.iter().copied().max().unwrap_or_default();
        // A model that can score gets all questions at once, each with its options in both orders.
        let together = if self.model.can_score() {
            own.iter().fold(shared, |sum, one| sum.saturating_add(one.saturating_mul(2)))
        } else {
            0
        };
        let at_once = (PROMPT_BYTES_MAX / largest).clamp(1, ASKED_AT_ONCE_MAX);
        let at_once = at_once.min(self.request.questions.len().saturating_mul(2)).max(1);
        let bytes = largest.saturating_mul(at_once).max(together);
        let bytes = bytes.saturating_mul(PROMPT_COPIES);
        match self.lease.grow_to(bytes) {
            Ok(()) => Ok(at_once),
            // If the memory budget allows no more prompts, the questions are sent one at a time.
            Err(_full) => {
                match self.lease.grow_to(largest.max(together).saturating_mul(PROMPT_COPIES)) {
                    Ok(()) => Ok(1),
                    Err(_full) => {
                        let message = "too many bodies are in flight; try again in a moment";
                        Err((None, Failure::new(503, ErrorClass::InternalError, message)))
                    }
                }
            }
        }
    }

    /// Reserves the maximum cost of votes, in addition to the usage so far.
    async fn reserve_votes(&mut self, questions: &[&Question]) -> Result<(), Failed> {
        let samples = u64::from(self.inner.options.samples);
        let input = prompt_tokens(&self.request.state, questions, samples);
        let answers = samples.saturating_mul(questions.len() as u64);
        let price = self.model.most(answers, most_of(input), VOTE_TOKENS_MAX);
        let chat = &self.inner.chat;
        chat.reserve(self.caller, &mut self.admission, price).await.map_err(|error| {
            let is_unpaid = matches!(
                &error,
                chat::Error::Engine(engine::Error::Unpaid { .. } | engine::Error::OverBudget(_))
            );
            let status = if is_unpaid { 402 } else { 503 };
            (None, Failure::new(status, ErrorClass::InternalError, error.to_string()))
        })
    }

    async fn record(
        self,
        status: Status,
        failure: Option<&Failure>,
        used: Used,
        answers: Option<&[(String, Answer)]>,
    ) -> Result<(), engine::Error> {
        let created_at = self.created_at;
        let now = self.inner.clock.now();
        let decision = Decision {
            model: self.model.name().to_owned(),
            requested_model: self.request.model,
            is_upstream: self.model.is_upstream(),
            questions: self.questions,
            calls: used.calls,
            method: self.method,
            tokens: used.tokens,
            is_priced: self.model.is_priced(),
        };
        let execution = Execution {
            id: self.id,
            organization: self.caller.organization,
            key: self.caller.key,
            source: self.caller.source,
            status,
            input: Payload::nothing(),
            work: Work::Decision(decision),
            output: None,
            fault: failure.map(|failure| Fault::of(&failure.recorded())),
            // A request whose questions cannot all be answered is free, unless its client cancelled
            // it.
            cost: if status == Status::Error { Usd::ZERO } else { used.cost },
            reserved: Usd::ZERO,
            webhook: None,
            created_at,
            started_at: Some(created_at),
            completed_at: Some(now.max(created_at)),
            origin: self.trace.origin(),
        };
        let kept = answers.filter(|_| self.inner.chat.keeps_content());
        let output = kept.and_then(|answers| {
            let answers: serde_json::Map<_, _> = answers
                .iter()
                .filter_map(|(name, answer)| {
                    Some((name.clone(), serde_json::to_value(answer).ok()?))
                })
                .collect();
            to_raw_value(&answers).ok()
        });
        self.inner.chat.settle(self.admission, execution, used.tokens, output).await
    }
}

/// Returns the probabilities of each question's options by the index of the question. The map is
/// empty if the model returns no probabilities.
async fn score_all(
    scorer: &dyn Scorer,
    questions: &[Question],
    at_once: usize,
) -> Result<HashMap<usize, Vec<f64>>, Failed> {
    let score = async |at: usize| {
        let Some(question) = questions.get(at) else { return Ok((at, None)) };
        let failed = |failure| failed(question, failure);
        let Some(given) = scorer.score(question, Order::Given).await.map_err(failed)? else {
            return Ok((at, None));
        };
        let reversed = scorer.score(question, Order::Reversed).await.map_err(failed)?;
        Ok::<_, Failed>((at, reversed.map(|reversed| of_both_orders(&given, &reversed))))
    };
    let mut found = HashMap::with_capacity(questions.len());
    match score(0).await {
        Ok((at, Some(probabilities))) => {
            found.insert(at, probabilities);
        }
        // The model returns no probabilities, so the other questions do not request them.
        Ok((_, None)) => return Ok(found),
        // A server may reject a request for log-probabilities as invalid.
        Err((_, failure)) if failure.class == ErrorClass::InvalidUserInput => return Ok(found),
        Err(failed) => return Err(failed),
    }
    let rest = stream::iter((1..questions.len()).map(score));
    let rest: Vec<(usize, Option<Vec<f64>>)> = rest.buffer_unordered(at_once).try_collect().await?;
    found.extend(rest.into_iter().filter_map(|(at, found)| Some((at, found?))));
    Ok(found)
}

/// Returns the share of the votes for each option of each question.
async fn vote_all(
    scorer: &dyn Scorer,
    questions: &[&Question],
    samples: u32,
    at_once: usize,
) -> Result<Vec<Vec<f64>>, Failed> {
    let mut votes: Vec<Vec<u32>> =
        questions.iter().map(|question| vec![0; question.options.len()]).collect();
    let vote = async |at: usize, sample: u32| {
        let Some(question) = questions.get(at) else { return Ok((at, None)) };
        let voted = scorer.vote(question, sample).await;
        Ok::<_, Failed>((at, voted.map_err(|failure| failed(question, failure))?))
    };
    let all = (0..questions.len()).flat_map(|at| (0..samples).map(move |sample| (at, sample)));
    let mut all = std::pin::pin!(
        stream::iter(all.map(|(at, sample)| vote(at, sample))).buffer_unordered(at_once)
    );
    while let Some((at, voted)) = all.try_next().await? {
        let count = voted.and_then(|option| votes.get_mut(at)?.get_mut(option));
        if let Some(count) = count {
            *count = count.saturating_add(1);
        }
    }
    for (question, votes) in questions.iter().zip(&votes) {
        let valid: u32 = votes.iter().sum();
        if valid.saturating_mul(2) <= samples {
            let message =
                format!("the model named one of the options in {valid} of {samples} answers");
            return Err(failed(question, Failure::new(502, ErrorClass::ProviderError, message)));
        }
    }
    Ok(votes.iter().map(|votes| of_votes(votes)).collect())
}

/// Returns the failure of one question, with a message that names the question.
pub(super) fn failed(question: &Question, failure: Failure) -> Failed {
    let name = &question.name;
    let message = format!("the question '{name}' could not be answered: {}", failure.message);
    (Some(name.clone()), Failure { message, ..failure })
}
