//! Predictions: each has a chain of models. The first model that succeeds completes the execution.

use super::{Effect, finish};
use crate::attempt::{Attempt, Failure, Outcome};
use crate::classify::ErrorClass;
use crate::execution::{Execution, Fault, Prediction, Status, Work};
use crate::money::Usd;
use crate::payload::Payload;
use crate::retry::Policy;
use crate::time::Timestamp;

/// An event of a prediction.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The lane granted the prediction a permit. Repeated after a crash for predictions that were
    /// in flight.
    Dispatched,
    /// The runner, or with `is_cached` the result cache, returned an output. `attempt` is the
    /// fencing token.
    Succeeded { attempt: u32, output: Payload, cost: Usd, logs: Option<String>, is_cached: bool },
    /// The runner failed, timed out or panicked. `cost` is the cost that the runner reported
    /// despite the failure.
    Failed {
        attempt: u32,
        failure: Failure,
        cost: Usd,
        logs: Option<String>,
        /// The retry rule of the same model; `None` means no retry.
        retry: Option<Retry>,
    },
    /// Cancellation was requested.
    Cancelled,
}

/// The retry rule of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    pub policy: Policy,
    /// The time on the steady clock.
    pub now: Timestamp,
}

/// Applies `event` to `execution` at wall-clock time `now`, and returns the effects. Executions
/// other than predictions are left unchanged.
#[must_use]
pub fn apply(execution: &mut Execution, event: Event, now: Timestamp) -> Vec<Effect> {
    if execution.status.is_final() {
        return Vec::new();
    }
    let now = execution.stamp(now);
    let Work::Prediction(prediction) = &mut execution.work else { return Vec::new() };
    match event {
        // The prediction is suspended until its due time.
        Event::Dispatched if prediction.aside_until.is_some() => Vec::new(),
        Event::Dispatched => {
            let attempt = start(prediction, now);
            execution.status = Status::Processing;
            execution.started_at.get_or_insert(now);
            vec![Effect::Start { attempt }]
        }
        Event::Succeeded { attempt, output, cost, logs, is_cached } => {
            if !close_attempt(prediction, attempt, Outcome::Success, None, now) {
                return Vec::new();
            }
            prediction.add_logs(logs);
            prediction.is_cached = is_cached;
            execution.cost = execution.cost.plus(cost);
            execution.output = Some(output);
            finish(execution, Status::Success, now)
        }
        Event::Failed { attempt, failure, cost, logs, retry } => {
            if !close_attempt(prediction, attempt, Outcome::Error, Some(failure.clone()), now) {
                return Vec::new();
            }
            prediction.add_logs(logs);
            execution.cost = execution.cost.plus(cost);
            let again = suspend_for_retry(execution, &failure, retry.as_ref());
            again.or_else(|| fall_back(execution, &failure)).unwrap_or_else(|| {
                execution.fault = Some(Fault::of(&failure));
                finish(execution, Status::Error, now)
            })
        }
        Event::Cancelled => {
            if let Some(number) = prediction.running().map(|attempt| attempt.number) {
                close_attempt(prediction, number, Outcome::Cancelled, None, now);
            }
            finish(execution, Status::Cancelled, now)
        }
    }
}

/// Fails the attempt that was running when the process died. An attempt that was never written
/// counts as begun now.
pub(super) fn fail_running_attempt(execution: &mut Execution, fault: &Fault, now: Timestamp) {
    let now = execution.stamp(now);
    let Work::Prediction(prediction) = &mut execution.work else { return };
    let number = start(prediction, now);
    let failure = Failure::new(fault.class, fault.cause.clone());
    close_attempt(prediction, number, Outcome::Error, Some(failure), now);
    execution.started_at.get_or_insert(now);
}

/// Begins the next attempt, or resumes the attempt that was running when the process died, with its
/// old number.
fn start(prediction: &mut Prediction, now: Timestamp) -> u32 {
    if let Some(running) = prediction.running() {
        return running.number;
    }
    let number = prediction.attempts.last().map_or(1, |attempt| attempt.number.saturating_add(1));
    let model = prediction.model().to_owned();
    prediction.attempts.push(Attempt::begin(number, model, now));
    number
}

/// Records the end of the running attempt. Returns false for a stale report, whose `number` is not
/// the number of the running attempt.
fn close_attempt(
    prediction: &mut Prediction,
    number: u32,
    outcome: Outcome,
    failure: Option<Failure>,
    now: Timestamp,
) -> bool {
    prediction
        .attempts
        .last_mut()
        .is_some_and(|attempt| attempt.close(number, outcome, failure, now))
}

/// Suspends the execution until the next attempt of the same model, if the retry rule allows
/// another attempt.
fn suspend_for_retry(
    execution: &mut Execution,
    failure: &Failure,
    retry: Option<&Retry>,
) -> Option<Vec<Effect>> {
    let lane = execution.lane();
    let Work::Prediction(prediction) = &mut execution.work else { return None };
    let retry = retry?;
    let delay = retry.policy.delay_after(prediction.tries(), failure.class)?;
    let due = retry.now.plus(delay);
    prediction.aside_until = Some(due);
    Some(vec![Effect::Dequeue { lane }, Effect::SetTimer { due }])
}

/// Moves on to the next model of the chain, if there is one and the request itself is not invalid.
fn fall_back(execution: &mut Execution, failure: &Failure) -> Option<Vec<Effect>> {
    let left = execution.lane();
    let Work::Prediction(prediction) = &mut execution.work else { return None };
    let next = prediction.position.checked_add(1)?;
    if usize::try_from(next).ok()? >= prediction.chain.len()
        || failure.class == ErrorClass::InvalidUserInput
    {
        return None;
    }
    prediction.position = next;
    prediction.attempts_before = prediction.attempts.last().map_or(0, |attempt| attempt.number);
    Some(vec![Effect::Dequeue { lane: left }, Effect::Enqueue { lane: execution.lane() }])
}

#[cfg(test)]
#[path = "prediction_tests.rs"]
mod tests;
