//! Gets scores from a local model process. All questions of a request are sent at once, so that the
//! process reads the state only once, and so that concurrent requests do not affect the results.

use std::collections::HashMap;

use serde::Serialize;

use super::decide::{Failed, failed};
use super::probabilities::of_both_orders;
use super::prompt::{Form, Order, SYSTEM, asked, options, prefix};
use super::request::Question;
use super::server::Server;
use crate::{Completion, Failure};
use orrery_domain::chat::estimate;
use orrery_domain::classify::ErrorClass;

/// The body of the request to the process.
#[derive(Serialize)]
struct Body {
    system: &'static str,
    state: String,
    questions: Vec<Asked>,
}

#[derive(Serialize)]
struct Asked {
    question: String,
    orders: [String; 2],
    labels: usize,
}

/// The log-probabilities of a question's labels: first for the given order, then for the reversed
/// order.
type Scores = [Vec<f64>; 2];

/// Estimates the tokens of all prompts together.
#[must_use]
pub(super) fn prompt_tokens(state: &str, questions: &[Question]) -> u64 {
    let shared = estimate((SYSTEM.len() + prefix(state).len()) as u64);
    let of_one = |question: &Question| {
        let orders = [Order::Given, Order::Reversed];
        let own = orders.map(|order| options(question, order, Form::Label).len());
        estimate((asked(question).len() + own.iter().sum::<usize>()) as u64)
    };
    questions.iter().map(of_one).fold(shared, u64::saturating_add)
}

/// Returns the probabilities of each question's options by the index of the question. The map is
/// empty if the model's vocabulary has no single tokens for the labels.
pub(super) async fn score_all(
    server: &Server,
    questions: &[Question],
) -> Result<HashMap<usize, Vec<f64>>, Failed> {
    let request = |question: &Question| Asked {
        question: asked(question),
        orders: [Order::Given, Order::Reversed].map(|order| options(question, order, Form::Label)),
        labels: question.options.len(),
    };
    let state = prefix(&server.state);
    let body = Body { system: SYSTEM, state, questions: questions.iter().map(request).collect() };
    let body = serde_json::to_vec(&body).map_err(|error| (None, broken(&error.to_string())))?;
    let estimated = prompt_tokens(&server.state, questions);
    let mut lease = server.lease.sibling();
    let completed = server.model.score(body.into(), estimated, &mut lease, &server.call).await;
    let Completion { answer, tokens, cost } =
        completed.map_err(|failure| named(questions, failure))?;
    server.count(tokens, cost);
    let Some(scores) = answer.value::<Option<Vec<Scores>>>("scores").flatten() else {
        return Ok(HashMap::new());
    };
    let is_whole = |(question, scores): (&Question, &Scores)| {
        scores.iter().all(|order| order.len() == question.options.len())
    };
    if scores.len() != questions.len() || !questions.iter().zip(&scores).all(is_whole) {
        return Err((None, broken("it did not score all options")));
    }
    let found = scores.iter().map(|[given, reversed]| of_both_orders(given, reversed));
    Ok(found.enumerate().collect())
}

/// Adds the name of the failed question to a failure, if the process reports that question.
fn named(questions: &[Question], failure: Failure) -> Failed {
    let place = failure.said.param.as_deref().and_then(|param| {
        let place = param.strip_prefix("questions[")?.strip_suffix(']')?;
        place.parse::<usize>().ok()
    });
    match place.and_then(|place| questions.get(place)) {
        Some(question) => failed(question, failure),
        None => (None, failure),
    }
}

fn broken(what: &str) -> Failure {
    let message = format!("the model's process returned an unexpected answer: {what}");
    Failure::new(502, ErrorClass::ProviderError, message)
}
