//! Publishes the events of a workflow execution to its followers: when steps begin, wait and end,
//! and when the execution is paused or resumed. The events that a commit causes are published once
//! the commit is durable.

use std::sync::Arc;

use crate::active::ActiveExecutions;
use crate::query::events::{EventLog, EventLogs};
use crate::query::follow::Follower;
use crate::{Engine, Error};
use orrery_domain::definition::{Kind, Plan};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::payload::Payload;
use orrery_domain::step::{Instance, Step};
use orrery_records::files::Files;
use orrery_runtime::Clock;
use orrery_storage::Commit;
use orrery_wire::event::{Event, StepEvent};

/// Maximum size of an output in an event, in bytes. Larger outputs are available only in the
/// detail.
const OUTPUT_BYTES_MAX: u64 = 8 * 1024;

impl Engine {
    /// Follows a workflow execution.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such execution, it is not a workflow execution, or it
    /// belongs to another organization; [`Error::Storage`].
    pub async fn follow_execution(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Follower, Error> {
        let inner = &self.inner;
        let news = &inner.news;
        let active = inner.active.get_or_insert(id);
        // Read the state while it is locked, because state changes add their events under the same
        // lock.
        let mut state = active.state.lock().await;
        let loaded = inner.loaded(&mut state, organization, id).await?;
        let run = loaded.execution.workflow().ok_or(Error::NotFound)?;
        let is_final = loaded.execution.status.is_final();
        let known =
            if is_final { news.event_logs.recent(id) } else { active.run_progress.event_log() };
        let log = match known {
            Some(log) => log,
            None => {
                let plan = inner.plans.plan(run.revision).await?;
                let mut steps = match &loaded.progress {
                    Some(progress) => {
                        let steps = progress.steps();
                        steps.map(|(at, step)| (at.clone(), step.clone())).collect()
                    }
                    None => inner.views.read_outer_steps(id).await?,
                };
                steps.sort_by_key(|(_, step)| step.started_at);
                let made = news.event_logs.create(&loaded.execution);
                news.replay_steps(&made, &loaded.execution, plan.as_deref(), &steps);
                if is_final {
                    made.close();
                    made
                } else {
                    active.run_progress.open_event_log(|| made)
                }
            }
        };
        drop(state);
        Ok(Follower::new(log, (!is_final).then_some(active)))
    }
}

/// Publishes changes to executions to the clients that follow them.
pub(crate) struct News {
    clock: Clock,
    files: Files,
    active: ActiveExecutions,
    event_logs: Arc<EventLogs>,
}

impl News {
    pub(crate) fn new(clock: Clock, files: Files, active: ActiveExecutions) -> Self {
        Self { clock, files, active, event_logs: Arc::default() }
    }

    /// The event logs of followed executions.
    pub(crate) const fn event_logs(&self) -> &Arc<EventLogs> {
        &self.event_logs
    }

    fn replay_steps(
        &self,
        log: &EventLog,
        execution: &Execution,
        plan: Option<&Plan>,
        steps: &[(Instance, Step)],
    ) {
        if let Some(at) = execution.started_at {
            log.push(&Event::Status { status: "running", at: at.into() });
        }
        for (instance, step) in steps {
            self.with_event(execution, plan, instance, step, |event| log.push(event));
        }
        if let Some(pause) = execution.paused() {
            let at = self.clock.reading().shown(pause.since).into();
            log.push(&Event::Pause { by: &pause.by, at });
        }
    }

    /// Builds the event for the current state of a step and passes it to `see`.
    fn with_event(
        &self,
        execution: &Execution,
        plan: Option<&Plan>,
        instance: &Instance,
        step: &Step,
        see: impl FnOnce(&Event<'_>),
    ) {
        let Some(planned) = plan.and_then(|plan| plan.at(instance.step)) else { return };
        let due = step.due.filter(|_| !step.status.is_final());
        let until = due.map(|due| self.clock.reading().shown(due).into());
        if let (Kind::Wait(_), Some(until)) = (&planned.kind, until) {
            return see(&Event::Wait { step_id: &planned.id, items: &instance.items, until });
        }
        let output = match &step.output {
            Some(Payload::Inline(text)) if step.output.as_ref().is_some_and(is_small) => {
                Some(self.files.render_links(execution.organization, text.clone()))
            }
            _ => None,
        };
        let omitted = (output.is_none() && step.output.is_some()).then_some(true);
        let fault = step.fault.as_ref();
        see(&Event::Step(StepEvent {
            step_id: &planned.id,
            items: &instance.items,
            status: step.status,
            attempt: step.attempts.last().map(|last| last.number),
            execution_id: step.child,
            at: step.latest().into(),
            until,
            output: output.as_deref(),
            omitted,
            error: fault.map(|fault| fault.name.as_str()),
            error_cause: fault.map(|fault| fault.cause.as_str()),
        }));
    }

    /// Publishes the new states of these steps once the commit is durable.
    pub(crate) fn tell_steps(
        &self,
        commit: &mut Commit,
        execution: &Execution,
        plan: &Plan,
        changed: &[(&Instance, &Step)],
    ) {
        let Some(log) = self.followed(execution.id) else { return };
        let mut news = Vec::new();
        for (instance, step) in changed.iter().copied() {
            let keep = |event: &Event<'_>| news.push((event.name(), event.data()));
            self.with_event(execution, Some(plan), instance, step, keep);
        }
        commit.after_durable(move || {
            for (name, data) in news {
                log.push_data(name, data);
            }
        });
    }

    /// Publishes that a step has begun to run or has begun to wait for a model permit.
    pub(crate) fn tell_begun(
        &self,
        execution: &Execution,
        plan: &Plan,
        instance: &Instance,
        step: &Step,
    ) {
        let Some(log) = self.followed(execution.id) else { return };
        self.with_event(execution, Some(plan), instance, step, |event| log.push(event));
    }

    /// Publishes that the execution is running.
    pub(crate) fn tell_status(&self, execution: &Execution) {
        let Some(log) = self.followed(execution.id) else { return };
        let at = execution.started_at.unwrap_or(execution.created_at).into();
        log.push(&Event::Status { status: execution.status.execution_word(), at });
    }

    /// Publishes that the execution was paused or resumed.
    pub(crate) fn tell_pause(&self, execution: &Execution) {
        let Some(log) = self.followed(execution.id) else { return };
        let at = self.clock.now().into();
        match execution.paused() {
            Some(pause) => log.push(&Event::Pause { by: &pause.by, at }),
            None => log.push(&Event::Resume { at }),
        }
    }

    /// Returns the execution's event log if a client is following it.
    fn followed(&self, id: ExecutionId) -> Option<Arc<EventLog>> {
        if self.event_logs.is_empty() {
            return None;
        }
        self.active.find(id)?.run_progress.event_log()
    }
}

fn is_small(output: &Payload) -> bool {
    output.len() <= OUTPUT_BYTES_MAX
}
