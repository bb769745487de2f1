//! The detail of a workflow's execution: what clients read and webhooks carry, and why it waits.
//!
//! Steps of maps are not told of one by one: a map says how many of its items have ended. Texts are
//! put in as they are stored.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::commit::no_json;
use super::{Delay, Engine, Error, Inner, rows};
use crate::domain::attempt::Attempt;
use crate::domain::definition::{Kind, Plan, Step as Planned};
use crate::domain::execution::{Execution, Source, WorkflowRun};
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::machine::workflow::Progress;
use crate::domain::payload::Payload;
use crate::domain::step::{Answer, Instance, Status, Step};
use crate::storage::Page;
use crate::storage::record::decode;

/// The most bytes of inputs and outputs of steps that one detail carries. What is past it is left
/// out, in the order of the definition; `metadata.omitted` says so.
const DETAIL_BYTES_MAX: u64 = 16 << 20;

/// An execution of a workflow, and its detail as JSON (`spec/decisions.md` part 4).
#[derive(Debug)]
pub struct Detail {
    pub execution: Execution,
    pub body: Box<RawValue>,
}

/// What an unfinished execution waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Waiting {
    /// Its turn in its workflow's lane.
    Lane {
        /// From 1; absent behind the part of the lane that is in memory.
        #[serde(skip_serializing_if = "Option::is_none")]
        position: Option<usize>,
        running: usize,
    },
    /// A place at a model.
    Model { step_id: String, model: String, running: usize, queued: usize },
    /// The end of a `wait`.
    Timer { step_id: String, until: String },
    /// The next attempt of a step.
    Retry { step_id: String, at: String, attempt: u32 },
    /// The run of a step.
    Step { step_id: String, attempt: u32 },
    /// Another try, after an error of the service itself.
    Service { cause: &'static str, failures: u32, at: String },
}

type Steps = Vec<(Instance, Step)>;

impl Engine {
    /// The execution of a workflow with everything that is known of its steps.
    ///
    /// # Errors
    /// [`Error::NotFound`] also for a prediction and for another organization's; [`Error::Storage`].
    pub async fn detail(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Detail, Error> {
        let inner = &self.inner;
        let (execution, live) = inner.look(organization, id).await?;
        let run = execution.workflow().ok_or(Error::NotFound)?;
        let plan = inner.plans.plan(run.revision).await?;
        let steps = match live {
            Some(steps) => steps,
            None => inner.read_outer_steps(id).await?,
        };
        let body = inner.workflow_body(&execution, plan.as_deref(), steps).await?;
        Ok(Detail { execution, body })
    }
}

impl Inner {
    /// The execution, and its steps as far as they are in memory. Never waits for a run, only for
    /// a commit under way.
    async fn look(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<(Execution, Option<Steps>), Error> {
        if let Some(cell) = self.cells.find(id) {
            let state = cell.state.lock().await;
            let held = state.as_ref().filter(|held| held.execution.organization == organization);
            if let Some(held) = held {
                let outer = |progress: &Progress| {
                    let steps = progress.steps().filter(|(instance, _)| instance.items.is_empty());
                    steps.map(|(instance, step)| (instance.clone(), step.clone())).collect()
                };
                let steps = held.progress.as_deref().map(outer);
                return Ok((held.execution.clone(), steps));
            }
        }
        let stored = self.store.read(&rows::execution(organization, id)).await?;
        Ok((stored.ok_or(Error::NotFound)?, None))
    }

    async fn read_outer_steps(&self, id: ExecutionId) -> Result<Steps, Error> {
        let limit = crate::domain::definition::STEPS_MAX;
        let page = Page { prefix: rows::outer_steps(id), after: None, before: None, limit };
        let found = self.store.page(page).await?;
        let steps = found.iter().filter_map(|(key, value)| {
            let instance = rows::parse_step(key)?;
            Some(decode(value).map(|step| (instance, step)))
        });
        Ok(steps.collect::<Result<_, _>>()?)
    }

    /// The text of the detail.
    pub(super) async fn workflow_body(
        &self,
        execution: &Execution,
        plan: Option<&Plan>,
        steps: Steps,
    ) -> Result<Box<RawValue>, Error> {
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
        let waiting = (!execution.status.is_final())
            .then(|| self.waiting(execution, plan, &steps))
            .filter(|waiting| !waiting.is_empty());
        let inputs = self.text(execution.organization, &execution.input).await?;
        let output = match &execution.output {
            Some(output) => self.text(execution.organization, output).await?,
            None => Ok(None),
        };
        let (inputs, inputs_error) = apart(inputs);
        let (output, output_error) = apart(output);
        let mut body = Body::of(execution, run, inputs, output, StepOutputs(views), waiting);
        (body.inputs_error, body.output_error) = (inputs_error, output_error);
        to_raw_value(&body).map_err(|error| no_json("execution detail", &error).into())
    }

    /// Whether the execution's organization owns the workflow. To every other, what the owner wrote
    /// into its steps is not shown.
    pub(super) async fn is_own_workflow(&self, execution: &Execution) -> Result<bool, Error> {
        let Some(run) = execution.workflow() else { return Ok(false) };
        let owner = match run.owner {
            Some(owner) => Some(owner),
            None => self.plans.owner(run.workflow).await?,
        };
        Ok(owner == Some(execution.organization))
    }

    async fn view_step<'a>(
        &self,
        execution: &Execution,
        planned: &'a Planned,
        step: Option<&'a Step>,
        budget: &mut u64,
    ) -> Result<StepView<'a>, Error> {
        let mut omitted = false;
        let (mut texts, mut errors) = ([None, None], [None, None]);
        if let Some(step) = step {
            let shown = texts.iter_mut().zip(&mut errors);
            for ((text, error), payload) in shown.zip([&step.output, &step.input]) {
                let Some(payload) = payload else { continue };
                match budget.checked_sub(payload.len()) {
                    Some(left) => {
                        *budget = left;
                        let shown = self.text(execution.organization, payload).await?;
                        (*text, *error) = apart(shown);
                    }
                    None => omitted = true,
                }
            }
        }
        let [output, input] = texts;
        let mut view = StepView::of(execution, planned, step, output, input, omitted);
        [view.output_error, view.input_error] = errors;
        Ok(view)
    }

    /// A payload's text, with current URLs of files, or what is wrong with one that is lost or
    /// damaged, which must not hide the rest.
    async fn text(&self, organization: OrganizationId, payload: &Payload) -> Result<Text, Error> {
        match self.store.read_payload(payload).await {
            Ok(text) => Ok(Ok(Some(self.files.render_links(organization, text)))),
            Err(error) if error.is_final() => {
                tracing::error!(%error, "a record is shown without a payload");
                Ok(Err(error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What an unfinished execution waits for.
    fn waiting(
        &self,
        execution: &Execution,
        plan: Option<&Plan>,
        steps: &[(Instance, Step)],
    ) -> Vec<Waiting> {
        if let Some(Delay { cause, failures, at }) = self.retries.find(execution.id) {
            return vec![Waiting::Service { cause, failures, at: at.to_string() }];
        }
        let is_aside = execution.workflow().is_some_and(|run| run.aside_until.is_some());
        let unfinished = steps.iter().filter(|(_, step)| !step.status.is_final());
        let waiting = unfinished.filter_map(|(instance, step)| {
            let planned = plan?.at(instance.step)?;
            self.step_waits(planned, step)
        });
        let waiting: Vec<_> = waiting.collect();
        if waiting.is_empty() && !is_aside {
            let (position, running) = self.place_in_lane(execution);
            return vec![Waiting::Lane { position, running }];
        }
        waiting
    }

    fn step_waits(&self, planned: &Planned, step: &Step) -> Option<Waiting> {
        let step_id = planned.id.clone();
        let attempt = step.attempts.last().map_or(0, |last| last.number);
        match (&planned.kind, step.due, step.running()) {
            (Kind::Wait(_), Some(until), _) => {
                Some(Waiting::Timer { step_id, until: until.to_string() })
            }
            (Kind::Model(_) | Kind::Http(_), Some(at), None) => {
                let attempt = attempt.saturating_add(1);
                Some(Waiting::Retry { step_id, at: at.to_string(), attempt })
            }
            (Kind::Model(_), _, Some(running)) if step.status == Status::Queued => {
                let model = running.model.clone();
                let load = self.lanes().load(&crate::domain::execution::lane_of_model(&model));
                let (running, queued) = (load.running, load.queued);
                Some(Waiting::Model { step_id, model, running, queued })
            }
            (_, _, Some(_)) => Some(Waiting::Step { step_id, attempt }),
            _ => None,
        }
    }
}

/// A payload's text, or the sentence that says why it is missing.
type Text = Result<Option<Box<RawValue>>, String>;

fn apart(text: Text) -> (Option<Box<RawValue>>, Option<String>) {
    match text {
        Ok(text) => (text, None),
        Err(error) => (None, Some(error)),
    }
}

fn is_in_map(plan: Option<&Plan>, step: &Planned) -> bool {
    plan.is_some_and(|plan| !plan.maps_around(step.position).is_empty())
}

// --- the wire shapes ---

#[derive(Serialize)]
struct Body<'a> {
    execution_id: String,
    workflow_id: String,
    version_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bulk_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redriven_from: Option<String>,
    status: &'static str,
    source: Source,
    created_at: String,
    started_at: String,
    completed_at: Option<String>,
    inputs: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inputs_error: Option<String>,
    step_outputs: StepOutputs<'a>,
    output: Option<Box<RawValue>>,
    /// Why the output is missing: its payload is lost or damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_error: Option<String>,
    error: Option<&'a str>,
    error_cause: Option<&'a str>,
    error_classification: Option<&'static str>,
    metrics: Metrics,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<Vec<Waiting>>,
}

/// Dollars and seconds.
#[derive(Serialize)]
struct Metrics {
    cost: f64,
    queue_time: Option<f64>,
    run_time: Option<f64>,
}

impl<'a> Body<'a> {
    fn of(
        execution: &'a Execution,
        run: &'a WorkflowRun,
        inputs: Option<Box<RawValue>>,
        output: Option<Box<RawValue>>,
        step_outputs: StepOutputs<'a>,
        waiting_for: Option<Vec<Waiting>>,
    ) -> Self {
        let fault = execution.fault.as_ref();
        Self {
            execution_id: execution.id.to_string(),
            workflow_id: run.workflow.to_string(),
            version_id: &run.version,
            bulk_id: run.bulk.map(|bulk| bulk.to_string()),
            redriven_from: run.redriven_from.map(|source| source.to_string()),
            status: execution.status.execution_word(),
            source: execution.source,
            created_at: execution.created_at.to_string(),
            started_at: execution.started_at.unwrap_or(execution.created_at).to_string(),
            completed_at: execution.completed_at.map(|time| time.to_string()),
            inputs,
            inputs_error: None,
            step_outputs,
            output,
            output_error: None,
            error: fault.map(|fault| fault.name.as_str()),
            error_cause: fault.map(|fault| fault.cause.as_str()),
            error_classification: fault.map(|fault| fault.class.as_str()),
            metrics: Metrics {
                cost: execution.cost.dollars(),
                queue_time: execution.queue_time().map(|span| span.as_secs_f64()),
                run_time: execution.run_time().map(|span| span.as_secs_f64()),
            },
            waiting_for,
        }
    }
}

/// The steps by their ids, in the order of the definition.
struct StepOutputs<'a>(Vec<StepView<'a>>);

impl Serialize for StepOutputs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for step in &self.0 {
            map.serialize_entry(step.step_id, step)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct StepView<'a> {
    step_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(rename = "type")]
    kind: &'static str,
    status: &'static str,
    output: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_error: Option<String>,
    primary: Option<Box<RawValue>>,
    input: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_error: Option<String>,
    started_at: Option<String>,
    completed_at: Option<String>,
    attempts: Vec<AttemptView<'a>>,
    metadata: Metadata<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_cause: Option<&'a str>,
}

#[derive(Serialize, Default)]
struct Metadata<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prediction_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback_used: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    primary_error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logs: Option<&'a str>,
    /// Its texts are too large for the detail.
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted: Option<bool>,
}

#[derive(Serialize)]
struct AttemptView<'a> {
    number: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    model: &'a str,
    status: &'static str,
    error: Option<&'a str>,
    error_classification: Option<&'static str>,
    started_at: String,
    completed_at: Option<String>,
}

impl<'a> AttemptView<'a> {
    fn of(attempt: &'a Attempt) -> Self {
        Self {
            number: attempt.number,
            model: &attempt.model,
            status: attempt.outcome.as_str(),
            error: attempt.failure.as_ref().map(|failure| failure.message.as_str()),
            error_classification: attempt.failure.as_ref().map(|failure| failure.class.as_str()),
            started_at: attempt.started_at.to_string(),
            completed_at: attempt.completed_at.map(|time| time.to_string()),
        }
    }
}

impl<'a> StepView<'a> {
    fn of(
        execution: &Execution,
        planned: &'a Planned,
        step: Option<&'a Step>,
        output: Option<Box<RawValue>>,
        input: Option<Box<RawValue>>,
        omitted: bool,
    ) -> Self {
        // What had not ended when the execution did, ended with it.
        let mut status = step.map_or(Status::Queued, |step| step.status);
        if execution.status.is_final() && !status.is_final() {
            status = Status::Cancelled;
        }
        let planned_model =
            if let Kind::Model(model) = &planned.kind { Some(model.slug.as_str()) } else { None };
        let fault = step.and_then(|step| step.fault.as_ref());
        let mut metadata = Metadata { model: planned_model, ..Metadata::default() };
        if let Some(step) = step {
            metadata.describe(step);
        }
        metadata.omitted = omitted.then_some(true);
        let has_begun = step.filter(|step| step.status != Status::Queued);
        Self {
            step_id: &planned.id,
            name: planned.name.as_deref(),
            kind: planned.kind.as_str(),
            status: status.as_str(),
            primary: output.as_deref().and_then(primary),
            output,
            output_error: None,
            input,
            input_error: None,
            started_at: has_begun.map(|step| step.started_at.to_string()),
            completed_at: step.and_then(|step| step.completed_at).map(|time| time.to_string()),
            attempts: step
                .map_or_else(Vec::new, |step| step.attempts.iter().map(AttemptView::of).collect()),
            metadata,
            error: fault.map(|fault| fault.name.as_str()),
            error_cause: fault.map(|fault| fault.cause.as_str()),
        }
    }
}

impl<'a> Metadata<'a> {
    fn describe(&mut self, step: &'a Step) {
        let model = step.attempts.last().map(|last| last.model.as_str());
        self.model = model.filter(|model| !model.is_empty()).or(self.model);
        self.prediction_id = step
            .prediction
            .filter(|_| step.status.is_final())
            .map(|prediction| prediction.to_string());
        self.elapsed_seconds =
            step.completed_at.map(|end| end.since(step.started_at).as_secs_f64());
        self.status_code = step.answer.as_ref().map(|answer: &Answer| answer.status_code);
        self.fallback_used = step.primary_error.as_ref().map(|_| true);
        self.primary_error = step.primary_error.as_deref();
        self.logs = step.logs.as_deref();
    }
}

/// The first element of an array, anything else as it is.
fn primary(output: &RawValue) -> Option<Box<RawValue>> {
    if !output.get().starts_with('[') {
        return Some(output.to_owned());
    }
    let items: Vec<&RawValue> = serde_json::from_str(output.get()).ok()?;
    items.into_iter().next().map(ToOwned::to_owned)
}
