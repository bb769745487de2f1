//! A stored execution: one accepted piece of work, from its creation to its end.
//!
//! Predictions, workflow runs, chat calls, decision requests and agent exchanges are all executions
//! and share one history. Only the state machine in `machine` changes executions; this module makes
//! no decisions.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agent;
use super::attempt::{Attempt, Outcome};
pub use super::chain::Candidate;
use super::chat;
use super::decision;
use super::delivery::Webhook;
pub use super::fault::Fault;
use super::ids::{BulkId, ExecutionId, KeyId, OrganizationId, RevisionId, ScheduleId, WorkflowId};
pub use super::lane::{lane_of_model, lane_of_workflow};
use super::logs::append_logs;
use super::money::Usd;
use super::payload::Payload;
use super::time::Timestamp;
use super::trace::{self, Trace};

/// Maximum number of executions that one request can trigger.
pub const TOGETHER_MAX: usize = 100;

/// The status of an execution. The status only advances in the order of this list; the last three
/// are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Accepted and durable; queued in its lane.
    Created,
    /// The first attempt has begun.
    Processing,
    Success,
    Error,
    Cancelled,
}

impl Status {
    /// Returns whether the status is final.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Success | Self::Error | Self::Cancelled)
    }

    /// All statuses.
    pub const ALL: [Self; 5] =
        [Self::Created, Self::Processing, Self::Success, Self::Error, Self::Cancelled];

    /// Returns the name of the status for this kind of work.
    #[must_use]
    pub const fn word(self, kind: Kind) -> &'static str {
        match kind {
            Kind::Prediction | Kind::Chat | Kind::Decision | Kind::Agent => self.prediction_word(),
            Kind::Workflow => self.execution_word(),
        }
    }

    /// Returns the name for a prediction (`docs/spec/predictions.md`, "Statuses").
    #[must_use]
    pub const fn prediction_word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Processing => "processing",
            Self::Success => "success",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the name for a workflow execution, also used in webhooks (`docs/spec/workflows.md`,
    /// "Statuses").
    #[must_use]
    pub const fn execution_word(self) -> &'static str {
        match self {
            Self::Created => "queued",
            Self::Processing => "running",
            Self::Success => "completed",
            Self::Error => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The interface through which the work was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Api,
    Dashboard,
    Agent,
    Schedule,
    /// A step of a workflow.
    Workflow,
}

impl Source {
    /// Returns the name that is used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Dashboard => "dashboard",
            Self::Agent => "agent",
            Self::Schedule => "schedule",
            Self::Workflow => "workflow",
        }
    }
}

/// One accepted piece of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    pub id: ExecutionId,
    pub organization: OrganizationId,
    /// The API key of the request.
    pub key: KeyId,
    pub source: Source,
    pub status: Status,
    /// The input of a prediction, or the inputs of a workflow.
    pub input: Payload,
    pub work: Work,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// The total cost of all attempts.
    pub cost: Usd,
    /// The amount reserved in the organization's balance until the execution ends.
    #[serde(default, skip_serializing_if = "Usd::is_zero")]
    pub reserved: Usd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// The trace context of the request, if it sent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Arc<trace::Origin>>,
}

/// The kind of work, with its data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    Prediction(Prediction),
    Workflow(WorkflowRun),
    /// Stored only after the call has ended, unless it runs in the background.
    Chat(chat::Call),
    /// A decision request, which is stored only after it has ended.
    Decision(decision::Decision),
    /// An agent exchange, whose steps are stored in separate rows, see `domain::agent`.
    Agent(agent::Exchange),
}

/// The kinds of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Prediction,
    Workflow,
    /// A chat router call.
    Chat,
    /// A decision request.
    Decision,
    /// An agent exchange.
    Agent,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Prediction, Self::Workflow, Self::Chat, Self::Decision, Self::Agent];

    /// Returns the name that is used in the history and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prediction => "prediction",
            Self::Workflow => "workflow",
            Self::Chat => "chat",
            Self::Decision => "decision",
            Self::Agent => "agent",
        }
    }
}

/// A prediction with its chain of models. The first model that succeeds completes the execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// The version in the request; stored but otherwise unused.
    pub version: String,
    /// The models to try, in order; fixed when the work was accepted, never empty.
    pub chain: Vec<Candidate>,
    /// The current model's index in the chain.
    pub position: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// The number of the last attempt that a previous model made; 0 for the first model.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts_before: u32,
    /// When the next attempt starts, if the prediction is suspended. Until then, the prediction has
    /// a timer and is in no lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside_until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
    /// The workflow step that ran the prediction. Such a prediction is written after its step has
    /// ended; it never waits in a lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepOf>,
    /// The schedule that started the prediction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleId>,
    /// Whether the request wants a new result, not one from the result cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skips_cache: bool,
    /// Whether the output comes from the result cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cached: bool,
}

/// A step of another execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepOf {
    pub execution: ExecutionId,
    pub step_id: String,
    pub workflow: WorkflowId,
    /// The workflow's version.
    pub version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulk: Option<BulkId>,
}

/// The step that started a workflow run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentStep {
    pub execution: ExecutionId,
    pub step_id: String,
    /// Nesting depth, from 1 to [`DEPTH_MAX`].
    pub depth: u32,
    /// Whether the step waits for the run; otherwise the run is detached.
    pub is_waiting: bool,
}

/// The pause of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// The person or step that paused the execution, as shown to people.
    pub by: String,
    /// When the pause began, on the steady clock.
    pub since: Timestamp,
}

/// Maximum nesting depth of workflow runs.
pub const DEPTH_MAX: u32 = 16;

/// A workflow run. The run's steps are stored in separate rows, see `domain::step`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkflowRun {
    pub workflow: WorkflowId,
    /// The version's id, such as `v1`.
    pub version: String,
    /// The definition of that version at the time the request was accepted.
    pub revision: RevisionId,
    /// The owner of the workflow; absent in executions that were stored before this field existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OrganizationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulk: Option<BulkId>,
    /// The IP address of the request, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ip: Option<IpAddr>,
    /// The execution whose completed steps this run reuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redriven_from: Option<ExecutionId>,
    /// The schedule that started the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleId>,
    /// The step that started the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentStep>,
    /// The root of the execution tree; absent in the root itself and in records of earlier
    /// releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<ExecutionId>,
    /// Running time in milliseconds up to the last suspension, excluding waits.
    #[serde(default)]
    pub ran_ms: u64,
    /// When the suspension ends, if any. Until then, the run has a timer and is in no lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside_until: Option<Timestamp>,
    /// Whether a step was waiting for an event at the last suspension.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_event: bool,
    /// The pause, while the run is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
}

impl WorkflowRun {
    /// Creates a run that has not started.
    #[must_use]
    pub const fn new(
        workflow: WorkflowId,
        version: String,
        revision: RevisionId,
        bulk: Option<BulkId>,
    ) -> Self {
        Self {
            workflow,
            version,
            revision,
            owner: None,
            bulk,
            source_ip: None,
            redriven_from: None,
            schedule: None,
            parent: None,
            root: None,
            ran_ms: 0,
            aside_until: None,
            awaits_event: false,
            paused: None,
        }
    }

    /// Returns the root of the execution tree; `None` if the run is itself the root.
    #[must_use]
    pub fn root(&self) -> Option<ExecutionId> {
        self.root.or_else(|| self.parent.as_ref().map(|parent| parent.execution))
    }
}

impl Prediction {
    /// Creates a prediction without attempts.
    #[must_use]
    pub const fn new(version: String, chain: Vec<Candidate>) -> Self {
        Self {
            version,
            chain,
            position: 0,
            attempts: Vec::new(),
            attempts_before: 0,
            aside_until: None,
            logs: None,
            step: None,
            schedule: None,
            skips_cache: false,
            is_cached: false,
        }
    }

    /// Returns the slug of the current model.
    #[must_use]
    pub fn model(&self) -> &str {
        let position = usize::try_from(self.position).unwrap_or(usize::MAX);
        self.chain.get(position).or_else(|| self.chain.last()).map_or("", |c| c.model.as_str())
    }

    /// Returns the chain entry of the current model.
    #[must_use]
    pub fn candidate(&self) -> Option<&Candidate> {
        self.chain.get(usize::try_from(self.position).ok()?)
    }

    /// Returns whether the chain has a model after the current one.
    #[must_use]
    pub fn has_next(&self) -> bool {
        let next = usize::try_from(self.position).map_or(usize::MAX, |at| at.saturating_add(1));
        next < self.chain.len()
    }

    /// Returns the requested model.
    #[must_use]
    pub fn requested_model(&self) -> &str {
        self.chain.first().map_or("", |candidate| candidate.model.as_str())
    }

    /// Returns the number of attempts of the current model.
    #[must_use]
    pub fn tries(&self) -> u32 {
        let last = self.attempts.last().map_or(0, |attempt| attempt.number);
        last.saturating_sub(self.attempts_before)
    }

    /// Returns the running attempt, if any.
    #[must_use]
    pub fn running(&self) -> Option<&Attempt> {
        self.attempts.last().filter(|attempt| attempt.outcome == Outcome::Running)
    }

    /// Appends the logs of a run.
    pub fn add_logs(&mut self, logs: Option<String>) {
        append_logs(&mut self.logs, logs);
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Execution {
    /// Returns the kind of work.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match &self.work {
            Work::Prediction(_) => Kind::Prediction,
            Work::Workflow(_) => Kind::Workflow,
            Work::Chat(_) => Kind::Chat,
            Work::Decision(_) => Kind::Decision,
            Work::Agent(_) => Kind::Agent,
        }
    }

    /// Returns the schedule that started the execution, if any.
    #[must_use]
    pub const fn schedule(&self) -> Option<ScheduleId> {
        match &self.work {
            Work::Prediction(prediction) => prediction.schedule,
            Work::Workflow(run) => run.schedule,
            Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => None,
        }
    }

    /// Returns the prediction, if the work is a prediction.
    #[must_use]
    pub const fn prediction(&self) -> Option<&Prediction> {
        match &self.work {
            Work::Prediction(prediction) => Some(prediction),
            Work::Workflow(_) | Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => None,
        }
    }

    /// Returns the workflow run, if the work is a workflow run.
    #[must_use]
    pub const fn workflow(&self) -> Option<&WorkflowRun> {
        match &self.work {
            Work::Prediction(_) | Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => None,
            Work::Workflow(run) => Some(run),
        }
    }

    /// Returns when the suspension ends; `None` if the work is not suspended. Suspended work has a
    /// timer and is in no lane.
    #[must_use]
    pub fn aside_until(&self) -> Option<Timestamp> {
        match &self.work {
            Work::Prediction(prediction) => prediction.aside_until,
            Work::Workflow(run) => run.aside_until,
            Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => None,
        }
    }

    /// Clears the suspension and returns when it would have ended.
    pub fn take_suspension(&mut self) -> Option<Timestamp> {
        match &mut self.work {
            Work::Prediction(prediction) => prediction.aside_until.take(),
            Work::Workflow(run) => run.aside_until.take(),
            Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => None,
        }
    }

    /// Returns the pause, if the work is paused.
    #[must_use]
    pub fn paused(&self) -> Option<&Pause> {
        self.workflow()?.paused.as_ref()
    }

    /// Returns the chat router call, if the work is a chat router call.
    #[must_use]
    pub const fn call(&self) -> Option<&chat::Call> {
        match &self.work {
            Work::Chat(call) => Some(call),
            Work::Prediction(_) | Work::Workflow(_) | Work::Decision(_) | Work::Agent(_) => None,
        }
    }

    /// Returns the decision request, if the work is a decision request.
    #[must_use]
    pub const fn decision(&self) -> Option<&decision::Decision> {
        match &self.work {
            Work::Decision(decision) => Some(decision),
            Work::Prediction(_) | Work::Workflow(_) | Work::Chat(_) | Work::Agent(_) => None,
        }
    }

    /// Returns the agent exchange, if the work is an agent exchange.
    #[must_use]
    pub const fn agent(&self) -> Option<&agent::Exchange> {
        match &self.work {
            Work::Agent(exchange) => Some(exchange),
            Work::Prediction(_) | Work::Workflow(_) | Work::Chat(_) | Work::Decision(_) => None,
        }
    }

    /// Returns whether the steps are stored in separate rows.
    #[must_use]
    pub const fn has_steps(&self) -> bool {
        matches!(&self.work, Work::Workflow(_) | Work::Agent(_))
    }

    /// Returns the model that answered last, and the requested model; `None` for a workflow.
    #[must_use]
    pub fn models(&self) -> Option<(&str, &str)> {
        match &self.work {
            Work::Prediction(prediction) => {
                Some((prediction.model(), prediction.requested_model()))
            }
            Work::Chat(call) => Some((&call.model, &call.requested_model)),
            Work::Decision(decision) => Some((&decision.model, &decision.requested_model)),
            Work::Agent(exchange) => Some((&exchange.model, &exchange.model)),
            Work::Workflow(_) => None,
        }
    }

    /// Returns the lane in which the execution is queued or runs: one for each model, workflow and
    /// agent session. Chat calls and decisions are not queued in a lane; the name returned for them
    /// is used only in the history indexes.
    #[must_use]
    pub fn lane(&self) -> String {
        match &self.work {
            Work::Prediction(prediction) => lane_of_model(prediction.model()),
            Work::Workflow(run) => lane_of_workflow(run.workflow),
            Work::Chat(_) => chat::LANE.to_owned(),
            Work::Decision(_) => decision::LANE.to_owned(),
            Work::Agent(exchange) => agent::lane_of_session(exchange.session),
        }
    }

    /// Returns the execution's trace.
    #[must_use]
    pub fn trace(&self) -> Trace {
        Trace::new(self.id, self.origin.clone())
    }

    /// Returns the id of a prediction's attempt. The id is stable across restarts, so that a
    /// receiver recognizes a repeated attempt.
    #[must_use]
    pub fn attempt_key(&self, attempt: u32) -> String {
        format!("{}:prediction:{attempt}", self.id)
    }

    /// Returns the timestamp of a change at wall-clock time `now`. The timestamp is never earlier
    /// than the execution's other timestamps, so that the timestamps stay in order if the clock is
    /// set back.
    #[must_use]
    pub fn stamp(&self, now: Timestamp) -> Timestamp {
        let last = self.prediction().and_then(|prediction| prediction.attempts.last());
        let of_last = last.map(Attempt::latest);
        [self.started_at, self.completed_at, of_last]
            .into_iter()
            .flatten()
            .fold(now.max(self.created_at), Timestamp::max)
    }

    /// Returns the id of the model call made for a chat call or a decision request.
    #[must_use]
    pub fn call_key(id: ExecutionId) -> String {
        format!("{id}:call")
    }

    /// Returns the id of step `place` (from 0) of an agent exchange; stable across restarts.
    #[must_use]
    pub fn exchange_step_key(&self, place: usize) -> String {
        format!("{}:exchange:{place}", self.id)
    }

    /// Returns the time from creation to the first attempt; `None` before the first attempt.
    #[must_use]
    pub fn queue_time(&self) -> Option<Duration> {
        self.started_at.map(|started| started.since(self.created_at))
    }

    /// Returns the time from the first attempt to the end; `None` before the end.
    #[must_use]
    pub fn run_time(&self) -> Option<Duration> {
        Some(self.completed_at?.since(self.started_at?))
    }
}
