//! Reports: the results of runs, conditions, maps and waits.

use std::sync::Arc;
use std::time::Duration;

use super::begin::Change;
use super::{Container, Effect, Frame, Items, Success, has_fallback, is_part_of};
use crate::attempt::{Failure, Outcome};
use crate::classify::ErrorClass;
use crate::definition::{EventWait, Kind, WAIT_MAX};
use crate::execution::Fault;
use crate::ids::ExecutionId;
use crate::logs::append_logs;
use crate::machine::Effect as ExecutionEffect;
use crate::money::Usd;
use crate::payload::Payload;
use crate::step::{self, EventSource, Instance, Step};
use crate::template::RESOLVED_BYTES_MAX;
use crate::time::Timestamp;

impl Change<'_> {
    pub(super) fn succeed(&mut self, instance: &Instance, attempt: u32, success: Success) {
        let now = self.now.wall;
        if !self.is_unfinished(instance) {
            return;
        }
        let Some(step) = self.progress.steps.get_mut(instance) else { return };
        let Some(last) = step.attempts.last_mut() else { return };
        if !last.close(attempt, Outcome::Success, None, now) {
            return;
        }
        step.cost = step.cost.plus(success.cost);
        step.answer = success.answer;
        step.is_cached = success.is_cached;
        append_logs(&mut step.logs, success.logs);
        self.execution.cost = self.execution.cost.plus(success.cost);
        self.progress.is_pressing = true;
        self.complete(instance, success.output);
    }

    pub(super) fn fail_attempt(
        &mut self,
        instance: &Instance,
        attempt: u32,
        fault: Fault,
        cost: Usd,
        logs: Option<String>,
    ) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now;
        if !self.is_unfinished(instance) {
            return;
        }
        let (Some(planned), Some(step)) =
            (plan.at(instance.step), self.progress.steps.get_mut(instance))
        else {
            return;
        };
        let failure = Failure::new(fault.class, fault.cause.clone());
        let Some(last) = step.attempts.last_mut() else { return };
        if !last.close(attempt, Outcome::Error, Some(failure), now.wall) {
            return;
        }
        // The deadline of a child ends with the child.
        step.due = None;
        step.cost = step.cost.plus(cost);
        append_logs(&mut step.logs, logs);
        self.execution.cost = self.execution.cost.plus(cost);
        self.progress.is_pressing = true;
        self.progress.changed.insert(instance.clone());
        if step.primary_error.is_none() {
            if let Some(delay) = planned.retry.delay_after(attempt, fault.class) {
                let until = now.steady.plus(delay);
                step.due = Some(until);
                self.effects.push(Effect::SetTimer { instance: instance.clone(), until });
                return;
            }
            if has_fallback(&planned.kind) {
                step.primary_error = Some(fault.cause);
                return self.begin_attempt(instance);
            }
        }
        if planned.pauses_when_exhausted {
            // Resuming the execution retries the step.
            step.primary_error = None;
            self.hold(instance);
            return self.pause(format!("step '{}': {}", planned.id, fault.cause));
        }
        self.fail(instance, fault);
    }

    // --- other step types ---

    pub(super) fn decide(&mut self, instance: &Instance, met: bool) {
        if !self.is_unfinished(instance) || self.progress.containers.contains_key(instance) {
            return;
        }
        let (taken, other) = if met { (0, 1) } else { (1, 0) };
        self.skip(&Frame { owner: Some(instance.clone()), number: other });
        self.progress.containers.insert(instance.clone(), Container::Branches(1));
        self.open(Frame { owner: Some(instance.clone()), number: taken });
    }

    /// Marks the steps of a frame, and all steps inside them, as skipped.
    pub(super) fn skip(&mut self, frame: &Frame) {
        let plan = Arc::clone(&self.progress.plan);
        for instance in self.instances(frame) {
            let Some(planned) = plan.at(instance.step) else { continue };
            if !self.progress.steps.contains_key(&instance) {
                let mut step = Step::new(step::Status::Skipped, self.now.wall);
                step.completed_at = Some(self.now.wall);
                self.progress.steps.insert(instance.clone(), step);
                self.progress.changed.insert(instance.clone());
            }
            if !matches!(planned.kind, Kind::Map(_)) {
                for number in 0..u32::try_from(planned.kind.blocks().len()).unwrap_or(u32::MAX) {
                    self.skip(&Frame { owner: Some(instance.clone()), number });
                }
            }
        }
    }

    pub(super) fn open_map(&mut self, instance: &Instance, count: u32) {
        if !self.is_unfinished(instance) || self.progress.containers.contains_key(instance) {
            return;
        }
        let outputs = vec![None; usize::try_from(count).unwrap_or_default()];
        let items = Items { count, next: 0, active: 0, outputs, bytes: 0 };
        self.progress.containers.insert(instance.clone(), Container::Items(items));
        if count == 0 {
            let gather = Effect::JoinOutputs { instance: instance.clone(), item: None };
            return self.effects.push(gather);
        }
        self.open_items(instance);
    }

    /// Begins further items, up to the concurrency limit of the map.
    pub(super) fn open_items(&mut self, instance: &Instance) {
        let plan = Arc::clone(&self.progress.plan);
        let Some(Kind::Map(map)) = plan.at(instance.step).map(|step| &step.kind) else { return };
        loop {
            let Some(Container::Items(items)) = self.progress.containers.get_mut(instance) else {
                return;
            };
            if items.active >= map.max_concurrency || items.next >= items.count {
                return;
            }
            let number = items.next;
            items.next += 1;
            items.active += 1;
            self.open(Frame { owner: Some(instance.clone()), number });
        }
    }

    pub(super) fn join_item(&mut self, instance: &Instance, item: u32, output: Payload) {
        let Some(Container::Items(items)) = self.progress.containers.get_mut(instance) else {
            return;
        };
        let index = usize::try_from(item).unwrap_or(usize::MAX);
        let Some(slot @ None) = items.outputs.get_mut(index) else { return };
        items.bytes = items.bytes.saturating_add(output.len());
        *slot = Some(output);
        items.active = items.active.saturating_sub(1);
        let bytes = items.bytes;
        let all = items.next >= items.count && items.active == 0;
        self.evict_item(instance, item);
        if bytes > RESOLVED_BYTES_MAX as u64 {
            let cause = format!("the outputs of the map's items exceed {RESOLVED_BYTES_MAX} bytes");
            let fault = Fault::new("StepFailed", ErrorClass::InvalidModelConfig, cause);
            return self.fail(instance, fault);
        }
        if all {
            self.effects.push(Effect::JoinOutputs { instance: instance.clone(), item: None });
        } else {
            self.open_items(instance);
        }
    }

    /// Drops the steps of a joined item. These steps are durable or in the next commit, and no
    /// reference can reach them anymore.
    pub(super) fn evict_item(&mut self, map: &Instance, item: u32) {
        let mut items = map.items.clone();
        items.push(item);
        let progress = &mut *self.progress;
        let inside = progress.plan.steps().skip(usize::from(map.step.number()).saturating_add(1));
        let inside = inside.take_while(|step| is_part_of(&progress.plan, step.position, map.step));
        for step in inside.map(|step| step.position).collect::<Vec<_>>() {
            let first = Instance { step, items: items.clone() };
            let of_item = progress.steps.range(first..).map(|(instance, _)| instance);
            let of_item: Vec<_> = of_item
                .take_while(|one| one.step == step && one.items.starts_with(&items))
                .cloned()
                .collect();
            for instance in of_item {
                if progress.changed.contains(&instance) {
                    progress.forgotten.insert(instance);
                } else {
                    progress.steps.remove(&instance);
                }
            }
        }
    }

    /// Ends a wait whose event has not arrived in time.
    fn expire(&mut self, instance: &Instance, event: &EventWait) {
        if let Some(Ok(default)) = event.default.as_ref().map(Payload::of) {
            return self.answer(instance, default, EventSource::Default);
        }
        let cause = format!("event '{}' did not arrive within {:?}", event.name, event.limit());
        self.fail(instance, Fault::new("StepTimeout", ErrorClass::ExecutionTimeout, cause));
    }

    pub(super) fn wait(&mut self, instance: &Instance, until: Timestamp) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now.steady;
        if !self.is_unfinished(instance) {
            return;
        }
        let Some(step) = self.progress.steps.get_mut(instance) else { return };
        let limit = plan.at(instance.step).and_then(|step| step.timeout);
        let limit = limit.map(|limit| now.plus(limit)).filter(|limit| *limit <= until);
        step.is_cut_short = limit.is_some();
        let until = limit.unwrap_or(until);
        if until <= now {
            return self.due(instance);
        }
        step.due = Some(until);
        self.progress.is_pressing = true;
        self.progress.changed.insert(instance.clone());
        self.effects.push(Effect::SetTimer { instance: instance.clone(), until });
    }

    /// Ends a wait with its event, or with the default value.
    pub(super) fn answer(&mut self, instance: &Instance, output: Payload, source: EventSource) {
        if !self.is_unfinished(instance) {
            return;
        }
        if let Some(step) = self.progress.steps.get_mut(instance) {
            step.event = Some(source);
        }
        self.progress.is_pressing = true;
        self.complete(instance, output);
    }

    /// Records the child that an attempt started. The step then either waits for the child's end or
    /// ends at once.
    pub(super) fn start_child(&mut self, instance: &Instance, attempt: u32, child: ExecutionId) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now;
        if !self.is_unfinished(instance) {
            return;
        }
        let (Some(planned), Some(step)) =
            (plan.at(instance.step), self.progress.steps.get_mut(instance))
        else {
            return;
        };
        let Kind::Workflow(kind) = &planned.kind else { return };
        if self.execution.paused().is_some() {
            return self.hold(instance);
        }
        let is_running = step.running().is_some_and(|running| running.number == attempt);
        if !is_running || step.child.is_some() {
            return;
        }
        step.child = Some(child);
        self.progress.is_pressing = true;
        self.progress.changed.insert(instance.clone());
        self.effects.push(Effect::CreateChild { instance: instance.clone() });
        if kind.waits {
            let until = now.steady.plus(planned.timeout.unwrap_or(WAIT_MAX));
            step.due = Some(until);
            self.effects.push(Effect::SetTimer { instance: instance.clone(), until });
            return;
        }
        if let Some(last) = step.attempts.last_mut() {
            last.close(attempt, Outcome::Success, None, now.wall);
        }
        if let Ok(id) = Payload::of(&child) {
            self.complete(instance, id);
        }
    }

    /// Fails an attempt whose child has not ended in time.
    fn give_up_child(&mut self, instance: &Instance, limit: Option<Duration>) {
        let Some(step) = self.progress.steps.get(instance) else { return };
        let Some(attempt) = step.running().map(|running| running.number) else { return };
        if let Some(child) = step.child {
            self.effects.push(Effect::Execution(ExecutionEffect::Abandon { child }));
        }
        self.effects.push(Effect::Stop { instance: instance.clone() });
        let cause = format!("the step took longer than {:?}", limit.unwrap_or(WAIT_MAX));
        let fault = Fault::new("StepTimeout", ErrorClass::ExecutionTimeout, cause);
        self.fail_attempt(instance, attempt, fault, Usd::ZERO, None);
    }

    pub(super) fn due(&mut self, instance: &Instance) {
        let plan = Arc::clone(&self.progress.plan);
        let now = self.now.steady;
        if !self.is_unfinished(instance) || self.is_paused() {
            return;
        }
        let (Some(planned), Some(step)) =
            (plan.at(instance.step), self.progress.steps.get_mut(instance))
        else {
            return;
        };
        if step.due.is_some_and(|due| due > now) {
            return;
        }
        let timed_out = || {
            let cause =
                format!("the step took longer than {:?}", planned.timeout.unwrap_or_default());
            Fault::new("StepTimeout", ErrorClass::ExecutionTimeout, cause)
        };
        match &planned.kind {
            Kind::Model(_) | Kind::Http(_) => {
                if step.due.take().is_some() && step.running().is_none() {
                    self.begin_attempt(instance);
                }
            }
            Kind::Wait(wait) => {
                let due = step.due.take();
                self.progress.is_pressing |= due.is_some();
                if due.is_some() && step.is_cut_short {
                    return self.fail(instance, timed_out());
                }
                match wait.event() {
                    Some(event) => self.expire(instance, event),
                    None => {
                        if let Ok(nothing) = Payload::of(&()) {
                            self.complete(instance, nothing);
                        }
                    }
                }
            }
            Kind::Workflow(_) => {
                if step.due.take().is_some() {
                    if step.running().is_some() {
                        return self.give_up_child(instance, planned.timeout);
                    }
                    self.begin_attempt(instance);
                }
            }
            Kind::Parallel(_) | Kind::Choice(_) | Kind::Map(_) => {
                if step.due.take().is_some() {
                    self.progress.is_pressing = true;
                    self.fail(instance, timed_out());
                }
            }
            Kind::Pass(_) => {}
        }
    }
}
