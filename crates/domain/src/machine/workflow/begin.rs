//! Dispatches events, and begins the steps that are ready and their attempts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Container, Effect, Event, Frame, OpenFrame, StepProgress, has_ended, model_of};
use crate::attempt::{Attempt, Outcome};
use crate::classify::ErrorClass;
use crate::definition::{Block, Kind, Role, StepIndex};
use crate::execution::{Execution, Fault, Status, Work};
use crate::machine::Effect as ExecutionEffect;
use crate::step::{self, Instance, Step};
use crate::time::{Now, Timestamp};

/// A change in progress, caused by one event.
pub(super) struct Change<'c> {
    pub(super) progress: &'c mut StepProgress,
    pub(super) execution: &'c mut Execution,
    /// The current time, for the timestamps of the change and for comparison with due times.
    pub(super) now: Now,
    pub(super) effects: &'c mut Vec<Effect>,
}

impl Change<'_> {
    pub(super) fn apply(&mut self, event: Event) {
        match event {
            Event::Dispatched => self.dispatched(),
            Event::Resolved { instance, input, prediction } => {
                if self.is_unfinished(&instance)
                    && let Some(step) = self.progress.steps.get_mut(&instance)
                {
                    step.input = Some(input);
                    step.prediction = step.prediction.or(prediction);
                }
            }
            Event::Started { instance, attempt } => self.start(&instance, attempt),
            Event::Succeeded { instance, attempt, success } => {
                self.succeed(&instance, attempt, success);
            }
            Event::Failed { instance, attempt, fault, cost, logs } => {
                self.fail_attempt(&instance, attempt, fault, cost, logs);
            }
            Event::Decided { instance, met } => self.decide(&instance, met),
            Event::MapOpened { instance, items } => self.open_map(&instance, items),
            Event::WaitUntil { instance, until } => self.wait(&instance, until),
            Event::Answered { instance, output, source } => {
                self.answer(&instance, output, source);
            }
            Event::ChildStarted { instance, attempt, child } => {
                self.start_child(&instance, attempt, child);
            }
            Event::ResultReady { instance, output } => self.complete(&instance, output),
            Event::Joined { instance, item: Some(item), output } => {
                self.join_item(&instance, item, output);
            }
            Event::Joined { instance, item: None, output } => self.complete(&instance, output),
            Event::StepInvalid { instance, fault } => {
                if self.is_unfinished(&instance) {
                    self.fail(&instance, fault);
                }
            }
            Event::Due { instance } => self.due(&instance),
            Event::OutputResolved { output } => match output {
                Ok(output) => {
                    self.execution.output = Some(output);
                    self.finish(Status::Success);
                }
                Err(fault) => self.fail_execution(fault),
            },
            Event::TimedOut { cause } => {
                let class = ErrorClass::ExecutionTimeout;
                self.fail_execution(Fault::new("ExecutionTimeout", class, cause));
            }
            Event::Cancelled => {
                self.cancel_within(None);
                self.finish(Status::Cancelled);
            }
            Event::Suspended { until, ran_ms } => self.suspend(until, ran_ms),
            Event::Paused { by } => self.pause(by),
            Event::Resumed => self.resume(),
            Event::Continued => self.continue_after_pause(),
            Event::Held { instance } => {
                if self.is_unfinished(&instance) {
                    self.hold(&instance);
                }
            }
        }
    }

    pub(super) fn dispatched(&mut self) {
        self.execution.status = Status::Processing;
        if self.execution.started_at.is_none() {
            // If steps are stored, the process has died since the execution started. Steps copied
            // by a redrive do not count, because they began before this execution.
            let is_redrive =
                self.execution.workflow().is_some_and(|run| run.redriven_from.is_some());
            let begun = self.progress.steps.values().map(|step| step.started_at);
            let first = begun.min().filter(|_| !is_redrive);
            self.execution.started_at = Some(first.unwrap_or(self.now.wall));
        }
        if self.progress.frames.is_empty() {
            self.execution.cost = self.progress.steps.values().map(|step| step.cost).sum();
            self.open(Frame { owner: None, number: 0 });
        }
    }

    pub(super) fn suspend(&mut self, until: Timestamp, ran_ms: u64) {
        let lane = self.execution.lane();
        let plan = &self.progress.plan;
        let awaits_event = self.progress.unfinished().any(|(instance, step)| {
            let planned = plan.at(instance.step);
            step.due.is_some() && planned.is_some_and(|planned| planned.kind.event().is_some())
        });
        if let Work::Workflow(run) = &mut self.execution.work {
            run.ran_ms = ran_ms;
            run.aside_until = Some(until);
            run.awaits_event = awaits_event;
            self.progress.is_pressing = true;
            self.effects.push(Effect::Execution(ExecutionEffect::Dequeue { lane }));
            self.effects.push(Effect::Execution(ExecutionEffect::SetTimer { due: until }));
        }
    }

    // --- frames and instances ---

    pub(super) fn is_unfinished(&self, instance: &Instance) -> bool {
        self.progress.unfinished.contains(instance)
    }

    /// Returns the frame that contains a step.
    pub(super) fn frame_of(&self, instance: &Instance) -> Frame {
        let plan = &self.progress.plan;
        let Some(parent) = plan.at(instance.step).and_then(|step| step.parent) else {
            return Frame { owner: None, number: 0 };
        };
        let is_map = plan.at(parent.step).is_some_and(|step| matches!(step.kind, Kind::Map(_)));
        let mut items = instance.items.clone();
        let number = if is_map {
            items.pop().unwrap_or_default()
        } else {
            u32::try_from(parent.block).unwrap_or_default()
        };
        Frame { owner: Some(Instance { step: parent.step, items }), number }
    }

    /// Returns the steps of a frame, as instances.
    pub(super) fn instances(&self, frame: &Frame) -> Vec<Instance> {
        let plan = &self.progress.plan;
        let Some(owner) = &frame.owner else {
            return plan.root().positions().iter().copied().map(Instance::of).collect();
        };
        let Some(step) = plan.at(owner.step) else { return Vec::new() };
        let mut items = owner.items.clone();
        let mut number = usize::try_from(frame.number).unwrap_or(usize::MAX);
        if matches!(step.kind, Kind::Map(_)) {
            items.push(frame.number);
            number = 0;
        }
        let positions = step.kind.block(number).map_or(&[][..], Block::positions);
        let instance = |step: &StepIndex| Instance { step: *step, items: items.clone() };
        positions.iter().map(instance).collect()
    }

    // --- beginning ---

    /// Opens a frame: begins each of its steps that is ready, given the steps that have already
    /// ended.
    pub(super) fn open(&mut self, frame: Frame) {
        let plan = Arc::clone(&self.progress.plan);
        let instances = self.instances(&frame);
        let mut unmet = BTreeMap::new();
        for instance in &instances {
            let waits_for = plan.at(instance.step).map_or(0, |step| step.waits_for.len());
            unmet.insert(instance.step, u32::try_from(waits_for).unwrap_or(u32::MAX));
        }
        let mut left = instances.len();
        for ended in instances.iter().filter(|one| has_ended(self.progress, one)) {
            left = left.saturating_sub(1);
            for dependent in plan.dependents(ended.step) {
                if let Some(unmet) = unmet.get_mut(dependent) {
                    *unmet = unmet.saturating_sub(1);
                }
            }
        }
        if left == 0 {
            return self.close(&frame);
        }
        let is_free = |instance: &&Instance| unmet.get(&instance.step) == Some(&0);
        let ready: Vec<_> = instances.iter().filter(is_free).cloned().collect();
        self.progress
            .frames
            .insert(frame, OpenFrame { unmet_dependencies: unmet, unfinished: left });
        for instance in ready {
            if !has_ended(self.progress, &instance) {
                self.begin(&instance);
            }
        }
    }

    /// Begins a step that is ready, or continues it from its stored state.
    pub(super) fn begin(&mut self, instance: &Instance) {
        let plan = Arc::clone(&self.progress.plan);
        let Some(planned) = plan.at(instance.step) else { return };
        if self.is_paused() {
            return self.hold(instance);
        }
        let now = self.now;
        let first = if matches!(planned.kind, Kind::Model(_)) {
            step::Status::Queued
        } else {
            step::Status::Running
        };
        self.progress.unfinished.insert(instance.clone());
        let is_new = !self.progress.steps.contains_key(instance);
        let step = self
            .progress
            .steps
            .entry(instance.clone())
            .or_insert_with(|| Step::new(first, now.wall));
        let is_container = planned.kind.role() == Role::Contains;
        if is_new && is_container {
            step.due = planned.timeout.map(|timeout| now.steady.plus(timeout));
            // The deadline must be stored in case the execution is suspended.
            if step.due.is_some() {
                self.progress.changed.insert(instance.clone());
            }
        }
        if let Some(due) = step.due {
            self.effects.push(Effect::SetTimer { instance: instance.clone(), until: due });
            // The timer drives the end of the wait or the next attempt; a running child is not
            // started again.
            if !is_container && step.running().is_none() {
                return;
            }
        }
        match &planned.kind {
            Kind::Model(_) | Kind::Http(_) | Kind::Workflow(_) => self.begin_attempt(instance),
            Kind::Parallel(parallel) => {
                let branches = parallel.branches.len();
                let container = Container::Branches(branches);
                self.progress.containers.insert(instance.clone(), container);
                for number in 0..u32::try_from(branches).unwrap_or(u32::MAX) {
                    self.open(Frame { owner: Some(instance.clone()), number });
                }
            }
            Kind::Choice(_) | Kind::Map(_) | Kind::Wait(_) | Kind::Pass(_) => {
                self.effects.push(Effect::Begin { instance: instance.clone(), attempt: 1 });
            }
        }
    }

    /// Begins the next attempt, or resumes the attempt that was in flight when the process died,
    /// with its old number.
    pub(super) fn begin_attempt(&mut self, instance: &Instance) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now.wall;
        if self.is_paused() {
            return self.hold(instance);
        }
        let Some(step) = self.progress.steps.get_mut(instance) else { return };
        let attempt = match step.running() {
            Some(running) => running.number,
            None => {
                let number = step.attempts.last().map_or(1, |last| last.number.saturating_add(1));
                let model = model_of(&plan, instance, step.primary_error.is_some());
                step.attempts.push(Attempt::begin(number, model.to_owned(), now));
                step.child = None;
                number
            }
        };
        self.effects.push(Effect::Begin { instance: instance.clone(), attempt });
    }

    pub(super) fn start(&mut self, instance: &Instance, attempt: u32) {
        let now = self.now.wall;
        let Some(step) = self.progress.steps.get_mut(instance) else { return };
        let Some(last) = step.attempts.last_mut() else { return };
        if last.number != attempt || last.outcome != Outcome::Running {
            return;
        }
        last.started_at = now;
        if step.status == step::Status::Queued {
            step.status = step::Status::Running;
            step.started_at = now;
        }
    }
}
