//! Pauses: while an execution is paused, steps that become ready are held, and nothing times out.

use std::sync::Arc;

use super::Effect;
use super::begin::Change;
use super::shift_due;
use crate::execution::{Pause, Work};
use crate::step::Instance;

impl Change<'_> {
    pub(super) fn is_paused(&self) -> bool {
        self.execution.paused().is_some()
    }

    pub(super) fn pause(&mut self, by: String) {
        let since = self.now.steady;
        if let Work::Workflow(run) = &mut self.execution.work
            && run.paused.is_none()
        {
            run.paused = Some(Pause { by, since });
            self.progress.is_pressing = true;
        }
    }

    /// Extends the deadlines by the duration of the pause.
    pub(super) fn resume(&mut self) {
        let plan = Arc::clone(&self.progress.plan);
        let Work::Workflow(run) = &mut self.execution.work else { return };
        let Some(pause) = run.paused.take() else { return };
        let paused_for = self.now.steady.since(pause.since);
        for instance in &self.progress.unfinished {
            let (Some(planned), Some(step)) =
                (plan.at(instance.step), self.progress.steps.get_mut(instance))
            else {
                continue;
            };
            if shift_due(&planned.kind, step, paused_for) {
                self.progress.changed.insert(instance.clone());
            }
        }
        self.progress.is_pressing = true;
        self.progress.is_resumed = true;
    }

    /// Begins the held steps, and restarts the timers of all others.
    pub(super) fn continue_after_pause(&mut self) {
        if self.is_paused() {
            return;
        }
        self.progress.is_resumed = false;
        let held = std::mem::take(&mut self.progress.held);
        for instance in self.progress.unfinished.difference(&held) {
            let due = self.progress.steps.get(instance).and_then(|step| step.due);
            if let Some(until) = due {
                self.effects.push(Effect::SetTimer { instance: instance.clone(), until });
            }
        }
        for instance in held {
            if !super::has_ended(self.progress, &instance) {
                self.begin(&instance);
            }
        }
    }

    /// Holds a step until the execution is resumed.
    pub(super) fn hold(&mut self, instance: &Instance) {
        self.progress.held.insert(instance.clone());
    }
}
