//! Ends steps, the steps that contain them, and the execution; and starts the steps that wait for
//! an ended step.

use std::sync::Arc;

use super::begin::Change;
use super::{Container, Effect, Frame, has_ended, is_part_of};
use crate::attempt::Outcome;
use crate::definition::Kind;
use crate::execution::{Fault, Status};
use crate::machine::{Effect as ExecutionEffect, finish};
use crate::money::Usd;
use crate::payload::Payload;
use crate::step::{self, Instance};

impl Change<'_> {
    pub(super) fn complete(&mut self, instance: &Instance, output: Payload) {
        if !self.is_unfinished(instance) {
            return;
        }
        if let Some(step) = self.progress.steps.get_mut(instance) {
            step.output = Some(output);
        }
        self.end(instance, step::Status::Completed);
        self.start_dependents(instance);
    }

    /// Fails a step permanently, and also the step that contains it.
    pub(super) fn fail(&mut self, instance: &Instance, mut fault: Fault) {
        let plan = Arc::clone(&self.progress.plan);
        let Some(planned) = plan.at(instance.step) else { return };
        // The message names the innermost step.
        let is_named = fault.cause.starts_with("step '");
        if !is_named {
            fault.cause = format!("step '{}': {}", planned.id, fault.cause);
        }
        self.cancel_within(Some(instance));
        if let Some(step) = self.progress.steps.get_mut(instance) {
            step.fault = Some(fault.clone());
        }
        self.end(instance, step::Status::Failed);
        if planned.continue_on_error {
            return self.start_dependents(instance);
        }
        match self.frame_of(instance).owner {
            Some(owner) => self.fail(&owner, fault),
            None => self.fail_execution(fault),
        }
    }

    pub(super) fn fail_execution(&mut self, fault: Fault) {
        self.cancel_within(None);
        self.execution.fault = Some(fault);
        self.finish(Status::Error);
    }

    pub(super) fn finish(&mut self, status: Status) {
        self.progress.is_pressing = true;
        let whole = finish(self.execution, status, self.now.wall);
        self.effects.extend(whole.into_iter().map(Effect::Execution));
    }

    /// Records the end of a step.
    pub(super) fn end(&mut self, instance: &Instance, status: step::Status) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now.wall;
        self.progress.unfinished.remove(instance);
        self.progress.held.remove(instance);
        self.progress.containers.remove(instance);
        self.progress.changed.insert(instance.clone());
        let Some(step) = self.progress.steps.get_mut(instance) else { return };
        step.status = status;
        step.due = None;
        step.completed_at = Some(now);
        let Some(Kind::Model(model)) = plan.at(instance.step).map(|step| &step.kind) else {
            return;
        };
        if let Some(prediction) = step.prediction {
            self.effects.push(Effect::Publish { instance: instance.clone() });
            if step.cost > Usd::ZERO {
                let fallback = model.fallback.as_ref().filter(|_| step.primary_error.is_some());
                let model = fallback.map_or(&model.slug, |fallback| &fallback.slug).clone();
                let (execution, amount) = (prediction, step.cost);
                let charge = ExecutionEffect::Charge { execution, model, amount };
                self.effects.push(Effect::Execution(charge));
            }
        }
    }

    /// Cancels everything in flight inside a step, or in the entire execution.
    pub(super) fn cancel_within(&mut self, around: Option<&Instance>) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now.wall;
        let is_within = |instance: &Instance| match around {
            None => true,
            Some(around) => {
                instance != around
                    && instance.items.starts_with(&around.items)
                    && is_part_of(&plan, instance.step, around.step)
            }
        };
        let within: Vec<_> =
            self.progress.unfinished.iter().filter(|one| is_within(one)).cloned().collect();
        for instance in within {
            if let Some(step) = self.progress.steps.get_mut(&instance) {
                let child = step.child.filter(|_| step.running().is_some());
                if let Some(last) = step.attempts.last_mut() {
                    last.close(last.number, Outcome::Cancelled, None, now);
                }
                let abandon = |child| Effect::Execution(ExecutionEffect::Abandon { child });
                self.effects.extend(child.map(abandon));
            }
            self.end(&instance, step::Status::Cancelled);
            self.effects.push(Effect::Stop { instance });
        }
        self.progress.held.retain(|instance| !is_within(instance));
        self.progress.frames.retain(|frame, _| match (&frame.owner, around) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(owner), Some(around)) => owner != around && !is_within(owner),
        });
    }

    /// Starts the steps that waited for an ended step.
    pub(super) fn start_dependents(&mut self, instance: &Instance) {
        let plan = Arc::clone(&self.progress.plan);
        let frame = self.frame_of(instance);
        let Some(open) = self.progress.frames.get_mut(&frame) else { return };
        open.unfinished = open.unfinished.saturating_sub(1);
        let is_done = open.unfinished == 0;
        let mut ready = Vec::new();
        for dependent in plan.dependents(instance.step) {
            if let Some(unmet) = open.unmet_dependencies.get_mut(dependent) {
                *unmet = unmet.saturating_sub(1);
                if *unmet == 0 {
                    ready.push(Instance { step: *dependent, items: instance.items.clone() });
                }
            }
        }
        if is_done {
            self.progress.frames.remove(&frame);
            return self.close(&frame);
        }
        for instance in ready {
            if !has_ended(self.progress, &instance) {
                self.begin(&instance);
            }
        }
    }

    /// Closes a frame whose steps have all ended.
    pub(super) fn close(&mut self, frame: &Frame) {
        let Some(owner) = &frame.owner else { return self.effects.push(Effect::ResolveOutput) };
        let item = match self.progress.containers.get_mut(owner) {
            None => return,
            Some(Container::Items(_)) => Some(frame.number),
            Some(Container::Branches(left)) => {
                *left = left.saturating_sub(1);
                if *left > 0 {
                    return;
                }
                None
            }
        };
        self.effects.push(Effect::JoinOutputs { instance: owner.clone(), item });
    }
}
