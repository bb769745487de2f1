//! The machine: what an event does to an execution, and what has to be done about it.
//!
//! Pure: state, event and time in; new state and effects out. It reads no store and starts nothing;
//! `engine::executor` commits the durable effects together with the new state and only then
//! performs the others. An event that no longer fits (a late report, a second cancel) changes
//! nothing and has no effects.

use super::attempt::{Attempt, Failure, Outcome};
use super::classify::ErrorClass;
use super::execution::{Execution, Fault, Status};
use super::money::Usd;
use super::payload::Payload;
use super::time::Timestamp;

/// What happened to an execution.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Its lane gave it a place. After a crash this comes again for work that was in flight.
    Taken,
    /// The runner gave an output. `attempt` is the fence.
    Succeeded { attempt: u32, output: Payload, cost: Usd, logs: Option<String> },
    /// The runner failed, timed out or panicked. `cost` is what it reported all the same.
    Failed { attempt: u32, failure: Failure, cost: Usd, logs: Option<String> },
    /// The client wants it stopped.
    Cancelled,
}

/// What has to be done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Durable: it no longer stands in this lane.
    Dequeue { lane: String },
    /// Durable: it waits in this lane. Once committed, the lane is told.
    Enqueue { lane: String },
    /// Durable: the organization pays. At most once for an execution.
    Charge { amount: Usd },
    /// Durable: its webhook goes out. At most once for an execution.
    Announce,
    /// Volatile: start the runner for this attempt.
    Start { attempt: u32 },
    /// Volatile: stop the runner, if it still works.
    Stop,
    /// Volatile: whoever waits for the end may look.
    Wake,
}

/// Changes `execution` as `event` demands at the moment `now`, and says what has to be done.
#[must_use]
pub fn apply(execution: &mut Execution, event: Event, now: Timestamp) -> Vec<Effect> {
    if execution.status.is_final() {
        return Vec::new();
    }
    match event {
        Event::Taken => start(execution, now),
        Event::Succeeded { attempt, output, cost, logs } => {
            if !close_attempt(execution, attempt, Outcome::Success, None, now) {
                return Vec::new();
            }
            execution.cost = execution.cost.plus(cost);
            add_logs(execution, logs);
            execution.output = Some(output);
            finish(execution, Status::Success, now)
        }
        Event::Failed { attempt, failure, cost, logs } => {
            if !close_attempt(execution, attempt, Outcome::Error, Some(failure.clone()), now) {
                return Vec::new();
            }
            execution.cost = execution.cost.plus(cost);
            add_logs(execution, logs);
            fall_back(execution, &failure).unwrap_or_else(|| {
                execution.fault = Some(Fault::of(&failure));
                finish(execution, Status::Error, now)
            })
        }
        Event::Cancelled => {
            if let Some(number) = execution.running().map(|attempt| attempt.number) {
                close_attempt(execution, number, Outcome::Cancelled, None, now);
            }
            let mut effects = finish(execution, Status::Cancelled, now);
            effects.push(Effect::Stop);
            effects
        }
    }
}

/// Begins the next attempt, or the one that was running when the process died, under its number.
fn start(execution: &mut Execution, now: Timestamp) -> Vec<Effect> {
    execution.status = Status::Processing;
    execution.started_at.get_or_insert(now);
    if let Some(running) = execution.running() {
        return vec![Effect::Start { attempt: running.number }];
    }
    let number = execution.attempts.last().map_or(1, |attempt| attempt.number.saturating_add(1));
    let model = execution.model().to_owned();
    execution.attempts.push(Attempt {
        number,
        model,
        outcome: Outcome::Running,
        failure: None,
        started_at: now,
        completed_at: None,
    });
    vec![Effect::Start { attempt: number }]
}

/// Writes how the running attempt ended. False when `number` is not the running attempt's: the
/// report is late.
fn close_attempt(
    execution: &mut Execution,
    number: u32,
    outcome: Outcome,
    failure: Option<Failure>,
    now: Timestamp,
) -> bool {
    let Some(attempt) = execution.attempts.last_mut() else { return false };
    if attempt.number != number || attempt.outcome != Outcome::Running {
        return false;
    }
    attempt.outcome = outcome;
    attempt.failure = failure;
    attempt.completed_at = Some(now);
    true
}

/// Moves on to the next model of the chain, if there is one and the request itself is not at fault.
fn fall_back(execution: &mut Execution, failure: &Failure) -> Option<Vec<Effect>> {
    let next = execution.position.checked_add(1)?;
    if usize::try_from(next).ok()? >= execution.chain.len()
        || failure.class == ErrorClass::InvalidUserInput
    {
        return None;
    }
    let left = execution.lane();
    execution.position = next;
    Some(vec![Effect::Dequeue { lane: left }, Effect::Enqueue { lane: execution.lane() }])
}

/// The one way to an end: the outcome, the lane, the charge and the webhook in one list.
fn finish(execution: &mut Execution, status: Status, now: Timestamp) -> Vec<Effect> {
    execution.status = status;
    execution.completed_at = Some(now);
    let mut effects = vec![Effect::Dequeue { lane: execution.lane() }];
    if execution.cost > Usd::ZERO {
        effects.push(Effect::Charge { amount: execution.cost });
    }
    if execution.webhook.is_some() && status != Status::Cancelled {
        effects.push(Effect::Announce);
    }
    effects.push(Effect::Wake);
    effects
}

fn add_logs(execution: &mut Execution, logs: Option<String>) {
    let Some(logs) = logs.filter(|logs| !logs.is_empty()) else { return };
    match &mut execution.logs {
        Some(earlier) => {
            earlier.push('\n');
            earlier.push_str(&logs);
        }
        none => *none = Some(logs),
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
