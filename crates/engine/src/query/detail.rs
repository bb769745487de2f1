//! The detail of a workflow execution: the body of API responses and webhooks, including what the
//! execution waits for.
//!
//! The steps inside a map are not listed; the map reports how many of its items have ended.
//! Payloads are included exactly as stored.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::{RawValue, to_raw_value};

use crate::active::{ActiveExecutions, LoadedExecution};
use crate::scheduler::admission::Scheduler;
use crate::scheduler::lanes::Load;
use crate::scheduler::retries::{Delay, Retries};
use crate::{Engine, Error, Plans, rows};
use orrery_domain::definition::{EventWait, Kind, Plan, Step as Planned, Wait};
use orrery_domain::execution::{Execution, Pause};
use orrery_domain::ids::{ExecutionId, KeyId, OrganizationId};
use orrery_domain::machine::workflow::StepProgress;
use orrery_domain::payload::Payload;
use orrery_domain::step::{Instance, Status, Step};
use orrery_domain::time::Timestamp;
use orrery_records::files::Files;
use orrery_records::signed_urls::Link;
use orrery_runtime::Clock;
use orrery_storage::record::decode;
use orrery_storage::{Page, Store};
use orrery_wire::execution::{Shown, Waiting};
use orrery_wire::{self as wire, Text, Time};

/// Maximum bytes of step inputs and outputs in one detail. Payloads are included in the order of
/// the definition. A payload that exceeds the remaining bytes is omitted, and the step's
/// `metadata.omitted` is set.
const DETAIL_BYTES_MAX: u64 = 16 << 20;

/// How long a step's link remains valid after the latest possible end of the wait.
const LINK_GRACE: Duration = Duration::from_secs(3600);

/// A workflow execution and its detail (`docs/spec/workflows.md`, "Execution detail").
#[derive(Debug)]
pub struct Detail {
    pub execution: Execution,
    pub view: wire::execution::Execution,
}

type Steps = Vec<(Instance, Step)>;

impl Engine {
    /// Returns the detail of a workflow execution.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such execution, it is a prediction, or it belongs to
    /// another organization; [`Error::Storage`].
    pub async fn detail(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Detail, Error> {
        let views = &self.inner.views;
        let (execution, plan, steps) = views.read_workflow(organization, id).await?;
        let view = views.view(&execution, plan.as_deref(), steps).await?;
        Ok(Detail { execution, view })
    }
}

/// Reads executions as clients see them.
pub(crate) struct Views {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) plans: Arc<dyn Plans>,
    pub(crate) files: Files,
    pub(crate) retries: Arc<Retries>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) active: ActiveExecutions,
}

impl Views {
    /// Returns a workflow execution, its plan if the plan is still stored, and its outer steps.
    pub(super) async fn read_workflow(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<(Execution, Option<Arc<Plan>>, Steps), Error> {
        let (execution, live) = self.read_state(organization, id).await?;
        let run = execution.workflow().ok_or(Error::NotFound)?;
        let plan = self.plans.plan(run.revision).await?;
        let steps = match live {
            Some(steps) => steps,
            None => self.read_outer_steps(id).await?,
        };
        Ok((execution, plan, steps))
    }

    /// Returns the execution, and its steps if they are in memory. Waits for a change in progress,
    /// but only for a short time, after which the last committed state is returned.
    pub(super) async fn read_state(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<(Execution, Option<Steps>), Error> {
        let outer = |progress: &StepProgress| {
            let steps = progress.steps().filter(|(instance, _)| instance.items.is_empty());
            steps.map(|(instance, step)| (instance.clone(), step.clone())).collect()
        };
        let view = |loaded: &LoadedExecution| {
            let is_own = loaded.execution.organization == organization;
            is_own.then(|| (loaded.execution.clone(), loaded.progress.as_deref().map(outer)))
        };
        if let Some(current) = self.active.reader().read(id, view).await.flatten() {
            return Ok(current);
        }
        let stored = self.store.read(&rows::execution(organization, id)).await?;
        Ok((stored.ok_or(Error::NotFound)?, None))
    }

    pub(super) async fn read_outer_steps(&self, id: ExecutionId) -> Result<Steps, Error> {
        let page = Page::of(rows::outer_steps(id), orrery_domain::definition::STEPS_MAX);
        let found = self.store.page(page).await?;
        let steps = found.iter().filter_map(|(key, value)| {
            let instance = rows::parse_step(key)?;
            Some(decode(value).map(|step| (instance, step)))
        });
        Ok(steps.collect::<Result<_, _>>()?)
    }

    /// Returns the detail as JSON text, which is also the body of the execution's webhook.
    pub(crate) async fn workflow_body(
        &self,
        execution: &Execution,
        plan: Option<&Plan>,
        steps: Steps,
    ) -> Result<Box<RawValue>, Error> {
        let view = self.view(execution, plan, steps).await?;
        to_raw_value(&view)
            .map_err(|error| orrery_storage::Error::malformed("execution detail", error).into())
    }

    /// Builds the detail.
    async fn view(
        &self,
        execution: &Execution,
        plan: Option<&Plan>,
        steps: Steps,
    ) -> Result<wire::execution::Execution, Error> {
        let Some(run) = execution.workflow() else { return Err(Error::NotFound) };
        let shows_inputs = self.is_own_workflow(execution).await?;
        let mut views = Vec::new();
        let mut budget = DETAIL_BYTES_MAX;
        let planned = plan.into_iter().flat_map(Plan::steps);
        for planned in planned.filter(|step| !is_in_map(plan, step)) {
            let known =
                steps.iter().find(|(instance, _)| *instance == Instance::of(planned.position));
            let step = known.map(|(_, step)| step);
            if step.is_some() || !execution.status.is_final() {
                let mut view = self.view_step(execution, planned, step, &mut budget).await?;
                view.input = view.input.filter(|_| shows_inputs);
                views.push(view);
            }
        }
        let is_final = execution.status.is_final();
        let waiting = if is_final { Vec::new() } else { self.waiting(execution, plan, &steps) };
        let inputs = self.text(execution.organization, &execution.input).await?;
        let output = match &execution.output {
            Some(output) => self.text(execution.organization, output).await?,
            None => Text::default(),
        };
        let shown = Shown { inputs, output, steps: views, waiting };
        Ok(wire::execution::Execution::of(execution, run, shown))
    }

    /// Whether the execution's organization owns the workflow. Other organizations do not see the
    /// inputs of steps, because the workflow's owner wrote these inputs.
    pub(crate) async fn is_own_workflow(&self, execution: &Execution) -> Result<bool, Error> {
        Ok(self.owner_of(execution).await? == Some(execution.organization))
    }

    /// Returns the organization that owns the execution's workflow.
    pub(crate) async fn owner_of(
        &self,
        execution: &Execution,
    ) -> Result<Option<OrganizationId>, Error> {
        let Some(run) = execution.workflow() else { return Ok(None) };
        Ok(match run.owner {
            Some(owner) => Some(owner),
            None => self.plans.owner(run.workflow).await?,
        })
    }

    async fn view_step(
        &self,
        execution: &Execution,
        planned: &Planned,
        step: Option<&Step>,
        budget: &mut u64,
    ) -> Result<wire::execution::Step, Error> {
        let mut omitted = false;
        let mut texts = [Text::default(), Text::default()];
        if let Some(step) = step {
            for (text, payload) in texts.iter_mut().zip([&step.output, &step.input]) {
                let Some(payload) = payload else { continue };
                match budget.checked_sub(payload.len()) {
                    Some(left) => {
                        *budget = left;
                        *text = self.text(execution.organization, payload).await?;
                    }
                    None => omitted = true,
                }
            }
        }
        let [output, input] = texts;
        let mut view =
            wire::execution::Step::of(execution, planned, step).with_texts(input, output);
        view.metadata.omitted = omitted.then_some(true);
        Ok(view)
    }

    /// Returns a payload's text with fresh file URLs. A lost or damaged payload is replaced with an
    /// error text, so that the rest of the detail stays readable.
    async fn text(&self, organization: OrganizationId, payload: &Payload) -> Result<Text, Error> {
        match self.store.read_payload(payload).await {
            Ok(text) => Ok(Text::of(self.files.render_links(organization, text))),
            Err(error) if error.is_final() => {
                tracing::error!(%error, "detail shown without an unreadable payload");
                Ok(Text::missing(error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what an unfinished execution is waiting for.
    fn waiting(
        &self,
        execution: &Execution,
        plan: Option<&Plan>,
        steps: &[(Instance, Step)],
    ) -> Vec<Waiting> {
        if let Some(Delay { cause, failures, at }) = self.retries.find(execution.id) {
            return vec![Waiting::Service { cause, failures, at: at.into() }];
        }
        if let Some(Pause { by, since }) = execution.paused() {
            return vec![Waiting::Paused { by: by.clone(), since: self.shown(*since) }];
        }
        let is_suspended = execution.workflow().is_some_and(|run| run.aside_until.is_some());
        let unfinished = steps.iter().filter(|(_, step)| !step.status.is_final());
        let waiting = unfinished.filter_map(|(instance, step)| {
            let planned = plan?.at(instance.step)?;
            self.step_waits(execution, planned, step)
        });
        let waiting: Vec<_> = waiting.collect();
        if waiting.is_empty() && !is_suspended {
            let (position, running) = self.lane_position(execution);
            return vec![Waiting::Lane { position, running }];
        }
        waiting
    }

    /// Returns the URL that delivers the event for which a step is waiting. The URL expires
    /// [`LINK_GRACE`] after the latest possible end of the wait.
    pub(crate) fn resume_url(
        &self,
        organization: OrganizationId,
        key: KeyId,
        id: ExecutionId,
        event: &EventWait,
    ) -> String {
        let expires_at = self.clock.now().plus(event.limit()).plus(LINK_GRACE);
        let path = format!("/v1/workflows/executions/{id}/events/{}", event.name);
        self.files.signed_urls().url(Link { organization, key, expires_at }, &path)
    }

    /// Converts a due time on the steady clock to wall-clock time.
    fn shown(&self, due: Timestamp) -> Time {
        self.clock.reading().shown(due).into()
    }

    /// Returns the execution's position in its lane, starting at 1 (`None` if the position is
    /// beyond the window), and the number of executions that its organization is running in the
    /// lane.
    pub(super) fn lane_position(&self, execution: &Execution) -> (Option<usize>, usize) {
        let lane = execution.lane();
        let lanes = self.scheduler.lanes();
        let running = lanes.share(&lane, execution.organization, None).running;
        (lanes.position(&lane, execution.id), running)
    }

    fn step_waits(&self, execution: &Execution, planned: &Planned, step: &Step) -> Option<Waiting> {
        let step_id = planned.id.clone();
        let attempt = step.attempts.last().map_or(0, |last| last.number);
        match (&planned.kind, step.due, step.running()) {
            (Kind::Wait(Wait::Event(event)), Some(until), _) => {
                let Execution { organization, key, id, .. } = *execution;
                let resume_url = self.resume_url(organization, key, id, event);
                let until = self.shown(until);
                Some(Waiting::Event { step_id, event: event.name.clone(), until, resume_url })
            }
            (Kind::Wait(_), Some(until), _) => {
                Some(Waiting::Timer { step_id, until: self.shown(until) })
            }
            (Kind::Workflow(_), _, Some(_)) if step.child.is_some() => {
                Some(Waiting::Workflow { step_id, execution_id: step.child? })
            }
            (Kind::Model(_) | Kind::Http(_) | Kind::Workflow(_), Some(at), None) => {
                let attempt = attempt.saturating_add(1);
                Some(Waiting::Retry { step_id, at: self.shown(at), attempt })
            }
            (Kind::Model(_), _, Some(running)) if step.status == Status::Queued => {
                let model = running.model.clone();
                let lane = orrery_domain::execution::lane_of_model(&model);
                let Load { running, queued, .. } =
                    self.scheduler.lanes().share(&lane, execution.organization, None);
                Some(Waiting::Model { step_id, model, running, queued })
            }
            (_, _, Some(_)) => Some(Waiting::Step { step_id, attempt }),
            _ => None,
        }
    }
}

/// Whether a step is inside a map.
pub(super) fn is_in_map(plan: Option<&Plan>, step: &Planned) -> bool {
    plan.is_some_and(|plan| !plan.maps_around(step.position).is_empty())
}
