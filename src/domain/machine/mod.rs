//! The machine: what an event does to an execution, and what has to be done about it.
//!
//! Pure: state, event and time in; new state and effects out. It reads no store and starts nothing;
//! `engine` commits the durable effects together with the new state and only then performs the
//! others. An event that no longer fits (a late report, a second cancel) changes nothing and has no
//! effects.
//!
//! Stamps are the machine's time, made to go up within an execution; what is due is counted by the
//! steady time, which the machine's clock cannot set back (`runtime::clock`).
//!
//! [`prediction`] tries a chain of models, [`workflow`] takes the steps of a plan in their order,
//! [`exchange`] begins and ends exchanges of the agent; all come to an end in the same way.

pub mod exchange;
pub mod prediction;
pub mod workflow;

use std::time::Duration;

use super::execution::{Execution, Fault, Pause, Status, Work};
use super::ids::ExecutionId;
use super::money::Usd;
use super::step::Step;
use super::time::Timestamp;

/// What has to be done about an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Durable: it is no longer in this lane.
    Dequeue { lane: String },
    /// Durable: it waits in this lane. Once committed, the lane is notified.
    Enqueue { lane: String },
    /// Durable: it waits for this moment, in no lane. Once committed, the timers are notified.
    SetTimer { due: Timestamp },
    /// Durable: it no longer waits for this moment.
    ClearTimer { due: Timestamp },
    /// Durable: the organization pays for this prediction. At most once for each.
    Charge { execution: ExecutionId, amount: Usd },
    /// Durable: no step waits any more for this execution, which one of its steps has started: it is
    /// cancelled, unless it has ended.
    Abandon { child: ExecutionId },
    /// Durable: its webhook goes out. At most once for an execution.
    EnqueueWebhook,
    /// Volatile: start the runner for this attempt.
    Start { attempt: u32 },
    /// Volatile: the execution has ended; wakes the requests that wait for it. The last of all effects.
    Ended,
}

/// Whether `effects` bring the execution to its end.
#[must_use]
pub fn is_final(effects: &[Effect]) -> bool {
    effects.contains(&Effect::Ended)
}

/// Ends an execution of which no step is in flight in this process. `now` is the machine's time.
#[must_use]
pub fn cancel(execution: &mut Execution, now: Timestamp) -> Vec<Effect> {
    if execution.status.is_final() {
        return Vec::new();
    }
    match &execution.work {
        Work::Prediction(_) => prediction::apply(execution, prediction::Event::Cancelled, now),
        Work::Workflow(_) | Work::Agent(_) => finish(execution, Status::Cancelled, now),
        // They have ended before they are stored.
        Work::Chat(_) | Work::Decision(_) => Vec::new(),
    }
}

/// Fails an execution that cannot even be loaded. `now` is the machine's time.
#[must_use]
pub fn fail(execution: &mut Execution, fault: Fault, now: Timestamp) -> Vec<Effect> {
    if execution.status.is_final() {
        return Vec::new();
    }
    execution.fault = Some(fault);
    finish(execution, Status::Error, now)
}

/// Fails an execution that is not to be run again, neither by this model nor by the next of its
/// chain. A prediction's attempt ends with it. `now` is the machine's time.
#[must_use]
pub fn fail_permanently(execution: &mut Execution, fault: Fault, now: Timestamp) -> Vec<Effect> {
    if !execution.status.is_final() {
        prediction::fail_running_attempt(execution, &fault, now);
    }
    fail(execution, fault, now)
}

/// The moment has come that an execution waited for: it goes back to its lane. None when it waits
/// for no moment, or for one that is later than `now`, by the steady time.
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

/// What becomes of the executions that unfinished steps wait for when theirs ends without being loaded.
#[must_use]
pub fn abandon<'s>(steps: impl IntoIterator<Item = &'s Step>) -> Vec<Effect> {
    let open = steps.into_iter().filter(|step| step.running().is_some());
    open.filter_map(|step| step.child).map(|child| Effect::Abandon { child }).collect()
}

/// Until when a paused execution is put aside: the end of the year 9999.
pub const PAUSED_UNTIL: Timestamp = Timestamp::from_micros(253_402_300_799_000_000);

/// Pauses an execution of a workflow of which nothing is in flight in this process: it leaves its lane, or
/// does not come back to it. `now` is the steady time.
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

/// Puts a paused execution of which nothing is in flight back into its lane, and says for how long it
/// was paused. `now` is the steady time.
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

/// The one way to an end: the outcome, the lane, the charge and the webhook in one list. `now` is
/// the machine's time.
fn finish(execution: &mut Execution, status: Status, now: Timestamp) -> Vec<Effect> {
    execution.status = status;
    execution.completed_at = Some(execution.stamp(now));
    let mut effects = vec![remove_from_queue(execution)];
    // The steps of a workflow and of an exchange have been charged one by one.
    if execution.cost > Usd::ZERO && execution.prediction().is_some() {
        effects.push(Effect::Charge { execution: execution.id, amount: execution.cost });
    }
    if execution.webhook.is_some() && status != Status::Cancelled {
        effects.push(Effect::EnqueueWebhook);
    }
    effects.push(Effect::Ended);
    effects
}

/// Takes it from where it is: its lane, or the timers.
fn remove_from_queue(execution: &mut Execution) -> Effect {
    match execution.take_aside() {
        Some(due) => Effect::ClearTimer { due },
        None => Effect::Dequeue { lane: execution.lane() },
    }
}
