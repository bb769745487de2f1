//! Workflow executions: the detail, which webhooks carry too, and the lists.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{AttemptStatus, ExecutionStatus, Text, Time};
use orrery_domain::attempt::Attempt;
use orrery_domain::classify::ErrorClass;
use orrery_domain::definition::{Kind, Step as Planned};
use orrery_domain::execution::{self, Source, Status, WorkflowRun};
use orrery_domain::ids::{BulkId, ExecutionId, ScheduleId, WorkflowId};
use orrery_domain::step::{self, HttpResponse};
use orrery_domain::waits_for::WaitsFor;
use orrery_domain::workflow::Workflow;

/// A workflow execution, as the API returns it and as its webhook carries it
/// (`docs/spec/workflows.md`, "Execution detail").
#[derive(Debug, serde::Serialize, JsonSchema)]
#[schemars(example = example())]
pub struct Execution {
    /// The ID of the execution.
    pub execution_id: ExecutionId,
    /// The workflow.
    pub workflow_id: WorkflowId,
    /// The version of the workflow that runs.
    pub version_id: String,
    /// The bulk trigger that started this execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulk_id: Option<BulkId>,
    /// The failed execution whose completed steps this execution reuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redriven_from: Option<ExecutionId>,
    /// The status of the execution.
    pub status: ExecutionStatus,
    /// What started the execution.
    pub source: Source,
    /// The schedule that started this execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<ScheduleId>,
    /// The execution whose step started this execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_execution_id: Option<ExecutionId>,
    /// The step of the parent execution that started this execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_step_id: Option<String>,
    /// When the execution was created.
    pub created_at: Time,
    /// When the execution started. Until then, when the execution was created.
    pub started_at: Time,
    /// When the execution ended. Null until then.
    pub completed_at: Option<Time>,
    /// The inputs, with the defaults of the workflow's schema filled in.
    pub inputs: Option<Box<RawValue>>,
    /// Why the inputs are missing or damaged on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inputs_error: Option<String>,
    /// The steps by ID, in the order of the definition.
    pub step_outputs: Steps,
    /// The output. Null until the execution has completed.
    pub output: Option<Box<RawValue>>,
    /// Why the output is missing or damaged on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// The name of the error.
    pub error: Option<String>,
    /// The cause of the error.
    pub error_cause: Option<String>,
    /// The class of the error.
    pub error_classification: Option<ErrorClass>,
    /// Cost and durations.
    pub metrics: Metrics,
    /// What the execution waits for. Absent after the execution has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<Vec<Waiting>>,
}

fn example() -> Value {
    json!({
        "execution_id": "0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
        "workflow_id": "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f",
        "version_id": "v1",
        "status": "completed",
        "source": "api",
        "created_at": "2026-11-20T09:30:00.123Z",
        "started_at": "2026-11-20T09:30:00.124Z",
        "completed_at": "2026-11-20T09:30:00.131Z",
        "inputs": {"name": "Ada"},
        "step_outputs": {"greet": {
            "step_id": "greet",
            "type": "model",
            "status": "completed",
            "output": "Hello Ada!",
            "primary": "Hello Ada!",
            "input": {"template": "Hello Ada!"},
            "started_at": "2026-11-20T09:30:00.124Z",
            "completed_at": "2026-11-20T09:30:00.130Z",
            "attempts": [{
                "number": 1,
                "model": "text-template",
                "status": "success",
                "error": null,
                "error_classification": null,
                "started_at": "2026-11-20T09:30:00.124Z",
                "completed_at": "2026-11-20T09:30:00.130Z",
            }],
            "metadata": {"model": "text-template", "elapsed_seconds": 0.006},
        }},
        "output": "Hello Ada!",
        "error": null,
        "error_cause": null,
        "error_classification": null,
        "metrics": {"cost": 0.0, "queue_time": 0.001, "run_time": 0.007},
    })
}

/// Cost in US dollars and durations in seconds.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, JsonSchema)]
#[schemars(rename = "ExecutionMetrics")]
pub struct Metrics {
    /// The cost so far, in US dollars.
    pub cost: f64,
    /// Seconds from the creation to the start. Null until the start.
    pub queue_time: Option<f64>,
    /// Seconds from the start to the end. Null until the end.
    pub run_time: Option<f64>,
}

/// Something that an unfinished execution waits for.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, JsonSchema)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[schemars(rename = "WaitingFor")]
pub enum Waiting {
    /// The execution's turn in the workflow's lane.
    Lane {
        /// The position in the lane, starting at 1. Absent beyond the part of the lane that is held
        /// in memory.
        #[serde(skip_serializing_if = "Option::is_none")]
        position: Option<usize>,
        /// The organization's running executions of the workflow.
        running: usize,
    },
    /// A slot of a model, which other organizations may hold.
    Model {
        /// The step that waits.
        step_id: String,
        /// The slug of the model.
        model: String,
        /// The organization's running calls of the model.
        running: usize,
        /// The organization's queued calls of the model, as far as they are held in memory.
        queued: usize,
    },
    /// The end of a `wait` step.
    Timer {
        /// The step that waits.
        step_id: String,
        /// When the wait ends.
        until: Time,
    },
    /// An event, sent with an API key or through `resume_url`.
    Event {
        /// The step that waits.
        step_id: String,
        /// The name of the event.
        event: String,
        /// When the step times out.
        until: Time,
        /// A URL with a form that sends the event. No API key is needed.
        resume_url: String,
    },
    /// The next attempt of a step.
    Retry {
        /// The step that is retried.
        step_id: String,
        /// When the next attempt starts.
        at: Time,
        /// The number of the next attempt, starting at 1.
        attempt: u32,
    },
    /// A running step.
    Step {
        /// The running step.
        step_id: String,
        /// The number of the running attempt, starting at 1.
        attempt: u32,
    },
    /// The execution that a `workflow` step has started.
    Workflow {
        /// The step that waits.
        step_id: String,
        /// The execution that the step has started.
        execution_id: ExecutionId,
    },
    /// A resume request, after a person or a step with `on_exhausted` paused the execution.
    Paused {
        /// The API key, the member or the step that paused the execution.
        by: String,
        /// When the execution was paused.
        since: Time,
    },
    /// The next retry after an internal error of the service.
    Service {
        /// The kind of internal error.
        cause: &'static str,
        /// The number of consecutive internal errors.
        failures: u32,
        /// When the service retries.
        at: Time,
    },
}

/// The steps by ID, in the order of the definition. Steps inside a `map` are not included; the map
/// reports how many of its items have ended.
#[derive(Debug, Default)]
pub struct Steps(pub Vec<Step>);

impl Serialize for Steps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for step in &self.0 {
            map.serialize_entry(&step.step_id, step)?;
        }
        map.end()
    }
}

impl JsonSchema for Steps {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Steps".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<BTreeMap<String, Step>>()
    }
}

/// A step of an execution.
#[derive(Debug, serde::Serialize, JsonSchema)]
#[schemars(rename = "ExecutionStep")]
pub struct Step {
    /// The ID of the step in the definition.
    pub step_id: String,
    /// The name of the step, if the definition has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The type of the step, such as `model` or `http`.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["model", "http", "parallel", "choice", "map", "wait", "pass", "workflow"]))]
    pub kind: &'static str,
    /// The status of the step.
    pub status: step::Status,
    /// The output. Null until the step has completed.
    pub output: Option<Box<RawValue>>,
    /// Why the output is missing or damaged on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// The first element if the output is an array, else the whole output.
    pub primary: Option<Box<RawValue>>,
    /// The step's input with all references resolved. Null if the input is hidden.
    pub input: Option<Box<RawValue>>,
    /// Why the input is missing or damaged on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_error: Option<String>,
    /// When the step started. Null until then.
    pub started_at: Option<Time>,
    /// When the step ended. Null until then.
    pub completed_at: Option<Time>,
    /// The attempts in order. Empty for steps that make no attempts.
    pub attempts: Vec<StepAttempt>,
    /// More information about the step.
    pub metadata: Metadata,
    /// The name of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The cause of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_cause: Option<String>,
}

/// More information about a step.
#[derive(Debug, Default, serde::Serialize, JsonSchema)]
#[schemars(rename = "StepMetadata")]
pub struct Metadata {
    /// The model that ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The prediction that ran this step, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction_id: Option<ExecutionId>,
    /// The execution that a `workflow` step has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// Seconds from the start to the end of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed_seconds: Option<f64>,
    /// The HTTP status of the response to the step's request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    /// Who sent the event that the step waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_source: Option<step::EventSource>,
    /// True if the step's fallback ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_used: Option<bool>,
    /// Why the step itself failed, if a fallback was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_error: Option<String>,
    /// Log output of the step's model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
    /// Set if the input or output is omitted because it is too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<bool>,
}

/// An attempt of a step.
#[derive(Debug, serde::Serialize, JsonSchema)]
pub struct StepAttempt {
    /// The number of the attempt, starting at 1.
    pub number: u32,
    /// The model that ran. Absent for an HTTP request.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// The status of the attempt.
    pub status: AttemptStatus,
    /// Why the attempt failed.
    pub error: Option<String>,
    /// The class of the error.
    pub error_classification: Option<ErrorClass>,
    /// When the attempt started.
    pub started_at: Time,
    /// When the attempt ended. Null until then.
    pub completed_at: Option<Time>,
}

/// The parts of an execution's view that the execution record does not contain.
#[derive(Debug)]
pub struct Shown {
    pub inputs: Text,
    pub output: Text,
    pub steps: Vec<Step>,
    /// Empty if the execution waits for nothing.
    pub waiting: Vec<Waiting>,
}

impl Execution {
    /// Returns the view of `execution`, whose workflow run is `run`.
    #[must_use]
    pub fn of(execution: &execution::Execution, run: &WorkflowRun, shown: Shown) -> Self {
        let fault = execution.fault.as_ref();
        Self {
            execution_id: execution.id,
            workflow_id: run.workflow,
            version_id: run.version.clone(),
            bulk_id: run.bulk,
            redriven_from: run.redriven_from,
            status: execution.status.into(),
            source: execution.source,
            schedule_id: execution.schedule(),
            parent_execution_id: run.parent.as_ref().map(|parent| parent.execution),
            parent_step_id: run.parent.as_ref().map(|parent| parent.step_id.clone()),
            created_at: execution.created_at.into(),
            started_at: execution.started_at.unwrap_or(execution.created_at).into(),
            completed_at: execution.completed_at.map(Time::from),
            inputs: shown.inputs.text,
            inputs_error: shown.inputs.error,
            step_outputs: Steps(shown.steps),
            output: shown.output.text,
            output_error: shown.output.error,
            error: fault.map(|fault| fault.name.clone()),
            error_cause: fault.map(|fault| fault.cause.clone()),
            error_classification: fault.map(|fault| fault.class),
            metrics: Metrics {
                cost: execution.cost.dollars(),
                queue_time: execution.queue_time().map(|span| span.as_secs_f64()),
                run_time: execution.run_time().map(|span| span.as_secs_f64()),
            },
            waiting_for: (!shown.waiting.is_empty()).then_some(shown.waiting),
        }
    }
}

impl Execution {
    /// Returns the total length of the strings, which take nearly all of the view's memory.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let steps = self.step_outputs.0.iter();
        let of_steps = steps.flat_map(|step| [&step.input, &step.output, &step.primary]);
        let texts = of_steps.chain([&self.inputs, &self.output]).flatten();
        texts.map(|text| text.get().len()).sum()
    }
}

impl From<&Attempt> for StepAttempt {
    fn from(attempt: &Attempt) -> Self {
        let failure = attempt.failure.as_ref();
        Self {
            number: attempt.number,
            model: attempt.model.clone(),
            status: attempt.outcome.into(),
            error: failure.map(|failure| failure.message.clone()),
            error_classification: failure.map(|failure| failure.class),
            started_at: attempt.started_at.into(),
            completed_at: attempt.completed_at.map(Time::from),
        }
    }
}

impl Step {
    /// Returns the view of a planned step with the state `step`. The caller adds the input and the
    /// output.
    #[must_use]
    pub fn of(
        execution: &execution::Execution,
        planned: &Planned,
        step: Option<&step::Step>,
    ) -> Self {
        // Steps that had not ended when the execution ended are shown as cancelled.
        let mut status = step.map_or(step::Status::Queued, |step| step.status);
        if execution.status.is_final() && !status.is_final() {
            status = step::Status::Cancelled;
        }
        let planned_model =
            if let Kind::Model(model) = &planned.kind { Some(model.slug.as_str()) } else { None };
        let fault = step.and_then(|step| step.fault.as_ref());
        let has_begun = step.filter(|step| step.status != step::Status::Queued);
        Self {
            step_id: planned.id.clone(),
            name: planned.name.clone(),
            kind: planned.kind.as_str(),
            status,
            output: None,
            output_error: None,
            primary: None,
            input: None,
            input_error: None,
            started_at: has_begun.map(|step| step.started_at.into()),
            completed_at: step.and_then(|step| step.completed_at).map(Time::from),
            attempts: step.map_or_else(Vec::new, |step| {
                step.attempts.iter().map(StepAttempt::from).collect()
            }),
            metadata: Metadata::of(step, planned_model),
            error: fault.map(|fault| fault.name.clone()),
            error_cause: fault.map(|fault| fault.cause.clone()),
        }
    }

    /// Sets the step's input and output.
    #[must_use]
    pub fn with_texts(mut self, input: Text, output: Text) -> Self {
        self.primary = output.text.as_deref().and_then(primary);
        (self.output, self.output_error) = (output.text, output.error);
        (self.input, self.input_error) = (input.text, input.error);
        self
    }
}

impl Metadata {
    fn of(step: Option<&step::Step>, planned_model: Option<&str>) -> Self {
        let planned_model = planned_model.map(str::to_owned);
        let Some(step) = step else { return Self { model: planned_model, ..Self::default() } };
        let model = step.attempts.last().map(|last| last.model.clone());
        Self {
            model: model.filter(|model| !model.is_empty()).or(planned_model),
            prediction_id: step.prediction.filter(|_| step.status.is_final()),
            execution_id: step.child,
            elapsed_seconds: step.completed_at.map(|end| end.since(step.started_at).as_secs_f64()),
            status_code: step.answer.as_deref().map(|answer: &HttpResponse| answer.status_code),
            event_source: step.event,
            fallback_used: step.primary_error.as_ref().map(|_| true),
            primary_error: step.primary_error.clone(),
            logs: step.logs.clone(),
            omitted: None,
        }
    }
}

/// Returns the first element of an array, and any other value unchanged.
fn primary(output: &RawValue) -> Option<Box<RawValue>> {
    if !output.get().starts_with('[') {
        return Some(output.to_owned());
    }
    let items: Vec<&RawValue> = serde_json::from_str(output.get()).ok()?;
    items.into_iter().next().map(ToOwned::to_owned)
}

/// A cancelled execution.
#[derive(Debug, serde::Serialize, JsonSchema)]
#[schemars(rename = "ExecutionCancelled")]
pub struct Cancelled {
    /// The ID of the execution.
    pub execution_id: ExecutionId,
    /// Always `cancelled`.
    pub status: ExecutionStatus,
}

/// A paused or resumed execution.
#[derive(Debug, serde::Serialize, JsonSchema)]
#[schemars(rename = "ExecutionPause")]
pub struct Paused {
    /// The ID of the execution.
    pub execution_id: ExecutionId,
    /// The status of the execution, which a pause does not change.
    pub status: ExecutionStatus,
    /// Whether the execution is paused.
    pub paused: bool,
}

/// An execution, as lists show it.
#[derive(Debug, serde::Serialize, JsonSchema)]
#[schemars(rename = "ExecutionSummary")]
pub struct Summary {
    /// The ID of the execution.
    pub execution_id: ExecutionId,
    /// The workflow's ID.
    pub flow_id: WorkflowId,
    /// The workflow's name.
    pub flow_name: String,
    /// The version of the workflow that runs.
    pub version_id: String,
    /// The status of the execution.
    pub status: SummaryStatus,
    /// What the execution needs to continue: an event (`event`) or a resume request (`paused`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<WaitsFor>")]
    pub waiting_for: Option<&'static str>,
    /// When the execution started. Until then, when the execution was created.
    pub started_at: Time,
    /// When the execution ended. Null until then.
    pub ended_at: Option<Time>,
    /// When the execution was created.
    pub created_at: Time,
    /// When the execution last started or ended.
    pub updated_at: Time,
}

/// The status of an execution in a list. Waiting executions count as running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SummaryStatus {
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl From<Status> for SummaryStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Created | Status::Processing => Self::Running,
            Status::Success => Self::Completed,
            Status::Error => Self::Failed,
            Status::Cancelled => Self::Cancelled,
        }
    }
}

impl Summary {
    /// Returns the summary of an execution of `workflow`.
    #[must_use]
    pub fn of(execution: &execution::Execution, workflow: &Workflow) -> Self {
        let started = execution.started_at.unwrap_or(execution.created_at);
        Self {
            execution_id: execution.id,
            flow_id: workflow.id,
            flow_name: workflow.name.clone(),
            version_id: execution.workflow().map_or_else(String::new, |run| run.version.clone()),
            status: execution.status.into(),
            waiting_for: execution.waits_for().map(WaitsFor::as_str),
            started_at: started.into(),
            ended_at: execution.completed_at.map(Time::from),
            created_at: execution.created_at.into(),
            updated_at: execution.completed_at.unwrap_or(started).into(),
        }
    }
}

/// A page of a workflow's executions.
#[derive(Debug, serde::Serialize, JsonSchema)]
#[schemars(rename = "ExecutionList")]
pub struct List {
    /// The executions, newest first.
    pub executions: Vec<Summary>,
    /// The number of matching executions.
    pub total_count: u64,
    /// Only on the base host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Only on the workflows host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}
