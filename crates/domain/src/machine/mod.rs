//! The state machine of executions: how an event changes an execution, and which effects follow.
//!
//! Pure: takes the state, an event and the time; returns the new state and the effects. The state
//! machine reads no store and starts nothing: `engine` commits the durable effects together with
//! the new state and only then performs the volatile effects. An event that no longer applies (a
//! stale report, a second cancellation) changes nothing and has no effects.
//!
//! Timestamps are wall-clock times, kept in order within an execution. Due times are on the steady
//! clock, which never goes back when the system clock is set back (`runtime::clock`).
//!
//! [`prediction`] tries a chain of models, [`workflow`] executes the steps of a plan in order,
//! [`exchange`] begins and ends agent exchanges, [`call`] ends chat calls in the background. All of
//! them end in the same way.

pub mod call;
pub mod exchange;
pub mod prediction;
pub mod workflow;

use std::time::Duration;

use super::execution::{Execution, Fault, Pause, Status, Work};
use super::ids::ExecutionId;
use super::money::Usd;
use super::step::Step;
use super::time::Timestamp;

/// An effect of a change to an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Durable: the execution has left this lane.
    Dequeue { lane: String },
    /// Durable: the execution is queued in this lane. The lane is notified after the commit.
    Enqueue { lane: String },
    /// Durable: the execution is suspended until this time and is in no lane. The timers are
    /// notified after the commit.
    SetTimer { due: Timestamp },
    /// Durable: the execution is no longer suspended until this time.
    ClearTimer { due: Timestamp },
    /// Durable: the organization is charged for this prediction, at most once per prediction.
    /// `model` is the model that answered last.
    Charge { execution: ExecutionId, model: String, amount: Usd },
    /// Durable: no step waits for this child anymore, so the child is cancelled unless it has
    /// ended.
    Abandon { child: ExecutionId },
    /// Durable: the execution's webhook is sent, at most once per execution.
    EnqueueWebhook,
    /// Volatile: start the runner for this attempt.
    Start { attempt: u32 },
    /// Volatile: the execution has ended; requests that wait for it are woken. Always the last
    /// effect.
    Ended,
}

/// Returns whether `effects` end the execution.
#[must_use]
pub fn is_final(effects: &[Effect]) -> bool {
    effects.contains(&Effect::Ended)
}

/// Cancels an execution without steps in flight in this process. `now` is the wall-clock time.
#[must_use]
pub fn cancel(execution: &mut Execution, now: Timestamp) -> Vec<Effect> {
    if execution.status.is_final() {
        return Vec::new();
    }
    match &execution.work {
        Work::Prediction(_) => prediction::apply(execution, prediction::Event::Cancelled, now),
        Work::Workflow(_) | Work::Agent(_) | Work::Chat(_) => {
            finish(execution, Status::Cancelled, now)
        }
        // Stored only after they have ended.
        Work::Decision(_) => Vec::new(),
    }
}

/// Fails an execution that cannot be loaded. `now` is the wall-clock time.
#[must_use]
pub fn fail(execution: &mut Execution, fault: Fault, now: Timestamp) -> Vec<Effect> {
    if execution.status.is_final() {
        return Vec::new();
    }
    execution.fault = Some(fault);
    finish(execution, Status::Error, now)
}

/// Fails an execution that must never run again, neither with its current model nor with the next
/// model of its chain. A prediction's running attempt ends with the prediction. `now` is the
/// wall-clock time.
#[must_use]
pub fn fail_permanently(execution: &mut Execution, fault: Fault, now: Timestamp) -> Vec<Effect> {
    if !execution.status.is_final() {
        prediction::fail_running_attempt(execution, &fault, now);
    }
    fail(execution, fault, now)
}

/// Puts a suspended execution back into its lane. Returns no effects if the execution is not
/// suspended, or if its suspension ends later than `now` on the steady clock.
#[must_use]
pub fn wake(execution: &mut Execution, now: Timestamp) -> Vec<Effect> {
    let lane = execution.lane();
    match &mut execution.work {
        Work::Workflow(run) if !execution.status.is_final() => {
            let due = run.aside_until.filter(|due| *due <= now && run.paused.is_none());
            let Some(due) = due else { return Vec::new() };
            run.aside_until = None;
            vec![Effect::ClearTimer { due }, Effect::Enqueue { lane }]
        }
        Work::Prediction(prediction) => {
            let due = prediction.aside_until.filter(|due| *due <= now);
            let Some(due) = due else { return Vec::new() };
            prediction.aside_until = None;
            vec![Effect::ClearTimer { due }, Effect::Enqueue { lane }]
        }
        Work::Workflow(_) | Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => Vec::new(),
    }
}

/// Abandons the children of unfinished steps when their execution ends without being loaded.
#[must_use]
pub fn abandon<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Vec<Effect> {
    let open = steps.into_iter().filter(|step| step.running().is_some());
    open.filter_map(|step| step.child).map(|child| Effect::Abandon { child }).collect()
}

/// The end of a paused execution's suspension: the end of the year 9999.
pub const PAUSED_UNTIL: Timestamp = Timestamp::from_micros(253_402_300_799_000_000);

/// Pauses a workflow execution without steps in flight in this process: it leaves its lane, or does
/// not return to it. `now` is on the steady clock.
#[must_use]
pub fn pause(execution: &mut Execution, by: String, now: Timestamp) -> Vec<Effect> {
    let lane = execution.lane();
    let Work::Workflow(run) = &mut execution.work else { return Vec::new() };
    if execution.status.is_final() || run.paused.is_some() {
        return Vec::new();
    }
    run.paused = Some(Pause { by, since: now });
    let before = run.aside_until.replace(PAUSED_UNTIL);
    let left = before.map_or(Effect::Dequeue { lane }, |due| Effect::ClearTimer { due });
    vec![left, Effect::SetTimer { due: PAUSED_UNTIL }]
}

/// Puts a paused execution without steps in flight back into its lane, and returns the duration of
/// the pause. `now` is on the steady clock.
#[must_use]
pub fn resume(execution: &mut Execution, now: Timestamp) -> (Vec<Effect>, Duration) {
    let lane = execution.lane();
    let Work::Workflow(run) = &mut execution.work else { return (Vec::new(), Duration::ZERO) };
    let Some(pause) = run.paused.take() else { return (Vec::new(), Duration::ZERO) };
    let mut effects = Vec::new();
    if let Some(due) = run.aside_until.take() {
        effects = vec![Effect::ClearTimer { due }, Effect::Enqueue { lane }];
    }
    (effects, now.since(pause.since))
}

/// Ends an execution. All executions end here. Returns the effects for the lane, the charge and the
/// webhook. `now` is the wall-clock time.
fn finish(execution: &mut Execution, status: Status, now: Timestamp) -> Vec<Effect> {
    execution.status = status;
    execution.completed_at = Some(execution.stamp(now));
    let mut effects = vec![remove_from_queue(execution)];
    // The steps of workflows and exchanges have already been charged one by one.
    let is_one_call = matches!(&execution.work, Work::Prediction(_) | Work::Chat(_));
    if execution.cost > Usd::ZERO && is_one_call {
        let model = execution.models().map_or("", |(model, _)| model).to_owned();
        effects.push(Effect::Charge { execution: execution.id, model, amount: execution.cost });
    }
    let is_announced = execution.webhook.as_ref().is_some_and(|webhook| match &webhook.replicate {
        None => status != Status::Cancelled,
        Some(events) => events.iter().any(|event| event.is_announced_at_end(status)),
    });
    if is_announced {
        effects.push(Effect::EnqueueWebhook);
    }
    effects.push(Effect::Ended);
    effects
}

/// Removes the execution from its lane or the timers.
fn remove_from_queue(execution: &mut Execution) -> Effect {
    match execution.take_suspension() {
        Some(due) => Effect::ClearTimer { due },
        None => Effect::Dequeue { lane: execution.lane() },
    }
}
