//! Events sent to steps: before the steps wait, while they wait, and after they have ended.

use std::sync::Arc;

use super::{Machine, payload};
use crate::definition::Step as PlannedStep;
use crate::machine::workflow::Event;
use crate::step::{self, EventSource, Instance};

/// Returns the answer to an event. The answer is the same each time, so that outputs can be
/// compared.
pub(super) fn answer(instance: Instance) -> Event {
    let output = payload(&format!("answer of {instance:?}"));
    Event::Answered { instance, output, source: EventSource::Api }
}

impl Machine {
    /// Sends the event of a step, whether or not the step is waiting. Only the first event counts.
    pub(super) fn send(&mut self, which: usize) {
        let plan = Arc::clone(&self.plan);
        let of = |step: &PlannedStep| Instance::of(step.position);
        let events: Vec<Instance> = plan.events().map(|(step, _)| of(step)).collect();
        let Some(instance) = events.get(which % events.len().max(1)).cloned() else { return };
        if self.has_ended(&instance) {
            let before = (self.execution.clone(), self.finals(), self.runs.clone());
            self.happen(answer(instance));
            assert_eq!(before, (self.execution.clone(), self.finals(), self.runs.clone()));
        } else if self.sent.insert(instance.clone()) && self.waits(&instance) {
            self.happen(answer(instance));
        }
    }

    /// Sends an event that a step waits for. Returns false if no step waits.
    pub(super) fn send_awaited(&mut self) -> bool {
        let plan = Arc::clone(&self.plan);
        let awaited = plan.events().position(|(step, _)| self.waits(&Instance::of(step.position)));
        awaited.is_some_and(|which| {
            self.send(which);
            true
        })
    }

    /// Delivers the answers that arrived just before the process died.
    pub(super) fn take_answers(&mut self) {
        for instance in self.sent.clone() {
            if self.waits(&instance) {
                self.happen(answer(instance));
            }
        }
    }

    pub(super) fn waits(&self, instance: &Instance) -> bool {
        let step = self.progress.step(instance);
        step.is_some_and(|step| !step.status.is_final() && step.due.is_some())
    }

    /// Each event is used once, by the step that waits for it.
    pub(super) fn invariant_answers_are_of_steps_that_ask(&self) {
        for (instance, step) in self.progress.steps() {
            let planned = self.plan.at(instance.step).unwrap();
            let completed = step.status == step::Status::Completed;
            let asks = planned.kind.event().is_some();
            assert_eq!(step.event.is_some(), asks && completed, "{instance:?} {step:?}");
            if step.event == Some(EventSource::Api) && !self.is_redrive() {
                assert!(self.sent.contains(instance), "{instance:?}: nobody sent it");
            }
        }
    }
}
