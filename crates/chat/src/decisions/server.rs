//! A scorer that uses a model's server. If the server returns the probabilities of the next token
//! (`logprobs`), the scorer uses these probabilities. Otherwise, the scorer collects votes, which
//! the model returns as JSON.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::probabilities::{Token, of_labels};
use super::prompt::{Form, Order, SYSTEM, labels, user};
use super::request::Question;
use super::scorer::{Answering, Scorer};
use crate::{BoundModel, Completion, Failure};
use orrery_domain::chat::Tokens;
use orrery_domain::classify::ErrorClass;
use orrery_domain::money::Usd;
use orrery_domain::raw_object::RawObject;
use orrery_domain::trace;
use orrery_http::budget::Lease;

/// Number of tokens for which log-probabilities are requested: the maximum in OpenAI's API.
const TOP_LOGPROBS: u32 = 20;
/// Maximum tokens of a vote: enough for a short JSON object with whitespace.
pub(super) const VOTE_TOKENS_MAX: u64 = 64;

/// The usage of a request so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    pub calls: u32,
    pub tokens: Tokens,
    pub cost: Usd,
}

/// A scorer for the state of one request; clones share the usage.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) model: BoundModel,
    pub(super) state: Arc<str>,
    /// Reserves memory for answers while they are read.
    pub(super) lease: Lease,
    /// The trace span of the request's model calls.
    pub(super) call: trace::Call,
    used: Arc<Mutex<Used>>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: &'a str,
}

/// The fields that are read from an answer.
#[derive(Deserialize)]
struct Answer {
    logprobs: Option<Logprobs>,
    message: Option<Said>,
}

#[derive(Deserialize)]
struct Logprobs {
    content: Option<Vec<Position>>,
}

#[derive(Deserialize)]
struct Position {
    top_logprobs: Option<Vec<Listed>>,
}

#[derive(Deserialize)]
struct Listed {
    token: String,
    logprob: Option<f64>,
}

#[derive(Deserialize)]
struct Said {
    content: Option<String>,
}

/// The JSON object of a vote.
#[derive(Deserialize)]
struct Vote {
    answer: String,
}

impl Server {
    /// Creates a scorer of questions about `state`; `lease` reserves memory for the answers.
    pub(super) fn new(
        model: BoundModel,
        state: &str,
        lease: Lease,
        call: trace::Call,
        used: Arc<Mutex<Used>>,
    ) -> Self {
        Self { model, state: state.into(), lease, call, used }
    }

    async fn ask(
        &self,
        question: &Question,
        order: Order,
        form: Form,
        options: &[(&str, serde_json::Value)],
    ) -> Result<Option<Answer>, Failure> {
        let text = user(&self.state, question, order, form);
        let messages =
            [Message { role: "system", content: SYSTEM }, Message { role: "user", content: &text }];
        let mut fields = RawObject::default();
        let mut set = || {
            fields.set("messages", &messages)?;
            options.iter().try_for_each(|(name, value)| fields.set(name, value))
        };
        set().map_err(|error| Failure::new(500, ErrorClass::InternalError, error.to_string()))?;
        let mut lease = self.lease.sibling();
        let Completion { answer, tokens, cost } =
            self.model.complete(fields, &mut lease, &self.call).await?;
        self.count(tokens, cost);
        let choices: Option<Vec<Answer>> = answer.value("choices");
        Ok(choices.and_then(|choices| choices.into_iter().next()))
    }

    /// Adds the usage of one answer.
    pub(super) fn count(&self, tokens: Tokens, cost: Usd) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.calls = used.calls.saturating_add(1);
        used.tokens = used.tokens.plus(tokens);
        used.cost = used.cost.plus(cost);
    }

    async fn score(&self, question: &Question, order: Order) -> Result<Option<Vec<f64>>, Failure> {
        let options = [
            ("max_tokens", json!(1)),
            ("temperature", json!(0)),
            ("logprobs", json!(true)),
            ("top_logprobs", json!(TOP_LOGPROBS)),
        ];
        let answer = self.ask(question, order, Form::Label, &options).await?;
        let positions = answer.and_then(|answer| answer.logprobs?.content);
        let first = positions.and_then(|positions| positions.into_iter().next()?.top_logprobs);
        let tokens: Vec<Token> = first
            .into_iter()
            .flatten()
            .map(|listed| Token {
                text: listed.token,
                // JSON has no negative infinity, so servers send null.
                logprob: listed.logprob.unwrap_or(f64::NEG_INFINITY),
            })
            .collect();
        Ok(of_labels(&tokens, question.options.len()))
    }

    async fn vote(&self, question: &Question, sample: u32) -> Result<Option<usize>, Failure> {
        let count = question.options.len();
        let order = if sample.is_multiple_of(2) { Order::Given } else { Order::Reversed };
        let names: Vec<String> = labels(count).collect();
        let schema = json!({
            "type": "object",
            "properties": {"answer": {"type": "string", "enum": names}},
            "required": ["answer"],
            "additionalProperties": false,
        });
        let format = json!({
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": true, "schema": schema},
        });
        let options = [
            ("max_tokens", json!(VOTE_TOKENS_MAX)),
            ("temperature", json!(1)),
            // Servers that support `seed` return equal answers to equal requests.
            ("seed", json!(sample)),
            ("response_format", format),
        ];
        let answer = self.ask(question, order, Form::Json, &options).await?;
        let Some(content) = answer.and_then(|answer| answer.message?.content) else {
            return Ok(None);
        };
        let content = content.trim();
        let vote: Option<Vote> = serde_json::from_str(content).ok();
        // A model that ignores the response format may still answer with the bare label.
        let said = vote.as_ref().map_or(content, |vote| vote.answer.trim());
        let place = names.iter().position(|name| name == said);
        Ok(place.map(|place| match order {
            Order::Given => place,
            Order::Reversed => count - 1 - place,
        }))
    }
}

impl Scorer for Server {
    fn score<'a>(
        &'a self,
        question: &'a Question,
        order: Order,
    ) -> Answering<'a, Option<Vec<f64>>> {
        Box::pin(self.score(question, order))
    }

    fn vote<'a>(&'a self, question: &'a Question, sample: u32) -> Answering<'a, Option<usize>> {
        Box::pin(self.vote(question, sample))
    }
}
