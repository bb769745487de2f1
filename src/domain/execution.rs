//! An execution: one accepted piece of work from its creation to its end, as it is stored.
//!
//! A prediction, a run of a workflow, a call of the chat router, a request for decisions and an exchange of
//! the agent are executions, in one history. Only the `machine` changes one; nothing here decides anything.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::agent;
use super::attempt::{Attempt, Outcome};
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

/// The most executions that can be triggered together.
pub const TOGETHER_MAX: usize = 100;

/// The status of an execution. It moves down this list and never back; the last three are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Accepted and durable; waits in its lane.
    Created,
    /// Some attempt has begun.
    Processing,
    Success,
    Error,
    Cancelled,
}

impl Status {
    /// Whether nothing can change any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Success | Self::Error | Self::Cancelled)
    }

    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Created, Self::Processing, Self::Success, Self::Error, Self::Cancelled];

    /// The word for work of that kind.
    #[must_use]
    pub const fn word(self, kind: Kind) -> &'static str {
        match kind {
            Kind::Prediction | Kind::Chat | Kind::Decision | Kind::Agent => self.prediction_word(),
            Kind::Workflow => self.execution_word(),
        }
    }

    /// The word for a prediction (`docs/spec/predictions.md`, "Statuses").
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

    /// The word for an execution of a workflow, which webhooks use too (`docs/spec/workflows.md`,
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

/// Which face of the service took the work.
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
    /// As the API spells it.
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

/// One model of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The model's slug.
    pub model: String,
    /// What it is given, in which `{{input.NAME}}` refers to the execution's input; absent: the
    /// same input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_map: Option<Map<String, Value>>,
}

impl Candidate {
    /// A model that is given the input as it is.
    #[must_use]
    pub fn new(model: impl Into<String>) -> Self {
        Self { model: model.into(), input_map: None }
    }
}

/// One accepted piece of work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    pub id: ExecutionId,
    pub organization: OrganizationId,
    /// The API key that asked for it.
    pub key: KeyId,
    pub source: Source,
    pub status: Status,
    /// What it works on: a prediction's input, a workflow's inputs.
    pub input: Payload,
    pub work: Work,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// The sum over the attempts that cost.
    pub cost: Usd,
    /// What its organization's balance keeps for it until it ends.
    #[serde(default, skip_serializing_if = "Usd::is_zero")]
    pub reserved: Usd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    /// What the request said about itself that asked for it, where it said anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Arc<trace::Origin>>,
}

/// What an execution does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    Prediction(Prediction),
    Workflow(WorkflowRun),
    /// Stored once it has ended.
    Chat(chat::Call),
    /// Stored once it has ended.
    Decision(decision::Decision),
    /// Its steps are in rows of their own, see `domain::agent`.
    Agent(agent::Exchange),
}

/// The kinds of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Prediction,
    Workflow,
    /// A call of the chat router.
    Chat,
    /// A request for decisions.
    Decision,
    /// An exchange of the agent.
    Agent,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Prediction, Self::Workflow, Self::Chat, Self::Decision, Self::Agent];

    /// As the history and the metrics spell it.
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

/// A chain of models, of which the first that succeeds completes the execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// The version that the client named; kept, not used.
    pub version: String,
    /// The models to try, in order; frozen when the work was accepted, never empty.
    pub chain: Vec<Candidate>,
    /// Which of the chain is tried or waited for.
    pub position: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// The number of the last attempt of the models before the one of `position`; 0 of the first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts_before: u32,
    /// Until when it waits for its next attempt: it is in the timers then, in no lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside_until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
    /// The step that it was made by. Such a prediction is written when its step has ended; it never
    /// waits in a lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepOf>,
    /// The schedule that it was started by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleId>,
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

/// The step that started the run of a workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentStep {
    pub execution: ExecutionId,
    pub step_id: String,
    /// How many executions are above the run, from 1 to [`DEPTH_MAX`].
    pub depth: u32,
    /// Whether the step waits for the run; else the run goes on by itself.
    pub is_waiting: bool,
}

/// Why an execution starts no step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Who or what has paused it, as people read it.
    pub by: String,
    /// Since when, by the steady time.
    pub since: Timestamp,
}

/// How deep runs of workflows may be within others.
pub const DEPTH_MAX: u32 = 16;

/// One run of a workflow. Its steps are in rows of their own, see `domain::step`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkflowRun {
    pub workflow: WorkflowId,
    /// The version's id, such as `v1`.
    pub version: String,
    /// The definition as that version had it when the work was accepted.
    pub revision: RevisionId,
    /// Whose workflow it is; absent in executions of before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OrganizationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulk: Option<BulkId>,
    /// The address that asked for it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ip: Option<IpAddr>,
    /// The execution whose finished steps it took over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redriven_from: Option<ExecutionId>,
    /// The schedule that it was started by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleId>,
    /// The step that it was started by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentStep>,
    /// The root of its tree; absent in the root itself and in records of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<ExecutionId>,
    /// How long it has been running, in milliseconds, up to when it was last put aside; waits are
    /// not counted.
    #[serde(default)]
    pub ran_ms: u64,
    /// Until when it is suspended: it is in the timers then, in no lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside_until: Option<Timestamp>,
    /// Whether a step waited for an event when it was suspended last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_event: bool,
    /// While it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
}

impl WorkflowRun {
    /// A run that has not begun.
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

    /// The root of the tree that it is in; `None` when it is the root itself.
    #[must_use]
    pub fn root(&self) -> Option<ExecutionId> {
        self.root.or_else(|| self.parent.as_ref().map(|parent| parent.execution))
    }
}

impl Prediction {
    /// A prediction that no model has tried yet.
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
        }
    }

    /// The model that is tried or waited for.
    #[must_use]
    pub fn model(&self) -> &str {
        let position = usize::try_from(self.position).unwrap_or(usize::MAX);
        self.chain.get(position).or_else(|| self.chain.last()).map_or("", |c| c.model.as_str())
    }

    /// The one of the chain that is tried or waited for.
    #[must_use]
    pub fn candidate(&self) -> Option<&Candidate> {
        self.chain.get(usize::try_from(self.position).ok()?)
    }

    /// Whether another of the chain can be tried when this one fails.
    #[must_use]
    pub fn has_next(&self) -> bool {
        let next = usize::try_from(self.position).map_or(usize::MAX, |at| at.saturating_add(1));
        next < self.chain.len()
    }

    /// The model that the client asked for.
    #[must_use]
    pub fn requested_model(&self) -> &str {
        self.chain.first().map_or("", |candidate| candidate.model.as_str())
    }

    /// How often the model of the chain that is tried or waited for was tried.
    #[must_use]
    pub fn tries(&self) -> u32 {
        let last = self.attempts.last().map_or(0, |attempt| attempt.number);
        last.saturating_sub(self.attempts_before)
    }

    /// The attempt that is running, if one is.
    #[must_use]
    pub fn running(&self) -> Option<&Attempt> {
        self.attempts.last().filter(|attempt| attempt.outcome == Outcome::Running)
    }

    /// Adds what a run wrote beside its output.
    pub fn add_logs(&mut self, logs: Option<String>) {
        append_logs(&mut self.logs, logs);
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Execution {
    /// Which of them it is.
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

    /// The schedule that it was started by.
    #[must_use]
    pub const fn schedule(&self) -> Option<ScheduleId> {
        match &self.work {
            Work::Prediction(prediction) => prediction.schedule,
            Work::Workflow(run) => run.schedule,
            Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => None,
        }
    }

    /// The prediction that it is, if it is one.
    #[must_use]
    pub const fn prediction(&self) -> Option<&Prediction> {
        match &self.work {
            Work::Prediction(prediction) => Some(prediction),
            Work::Workflow(_) | Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => None,
        }
    }

    /// The run of a workflow that it is, if it is one.
    #[must_use]
    pub const fn workflow(&self) -> Option<&WorkflowRun> {
        match &self.work {
            Work::Prediction(_) | Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => None,
            Work::Workflow(run) => Some(run),
        }
    }

    /// Until when it is put aside: it is in the timers then, in no lane.
    #[must_use]
    pub fn aside_until(&self) -> Option<Timestamp> {
        match &self.work {
            Work::Prediction(prediction) => prediction.aside_until,
            Work::Workflow(run) => run.aside_until,
            Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => None,
        }
    }

    /// Ends the time for which it is put aside; until when that was.
    pub fn take_aside(&mut self) -> Option<Timestamp> {
        match &mut self.work {
            Work::Prediction(prediction) => prediction.aside_until.take(),
            Work::Workflow(run) => run.aside_until.take(),
            Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => None,
        }
    }

    /// Who has paused it, while it is.
    #[must_use]
    pub fn paused(&self) -> Option<&Pause> {
        self.workflow()?.paused.as_ref()
    }

    /// The call of the chat router that it is, if it is one.
    #[must_use]
    pub const fn call(&self) -> Option<&chat::Call> {
        match &self.work {
            Work::Chat(call) => Some(call),
            Work::Prediction(_) | Work::Workflow(_) | Work::Decision(_) | Work::Agent(_) => None,
        }
    }

    /// The request for decisions that it is, if it is one.
    #[must_use]
    pub const fn decision(&self) -> Option<&decision::Decision> {
        match &self.work {
            Work::Decision(decision) => Some(decision),
            Work::Prediction(_) | Work::Workflow(_) | Work::Chat(_) | Work::Agent(_) => None,
        }
    }

    /// The exchange of the agent that it is, if it is one.
    #[must_use]
    pub const fn agent(&self) -> Option<&agent::Exchange> {
        match &self.work {
            Work::Agent(exchange) => Some(exchange),
            Work::Prediction(_) | Work::Workflow(_) | Work::Chat(_) | Work::Decision(_) => None,
        }
    }

    /// Whether it has steps in rows of their own.
    #[must_use]
    pub const fn has_steps(&self) -> bool {
        matches!(&self.work, Work::Workflow(_) | Work::Agent(_))
    }

    /// The model that answered last and the one that was asked for; none of a workflow.
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

    /// The lane that it waits in or runs from: one for each model and each workflow. A call is in none;
    /// its lane is a name in the history's indexes.
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

    /// The trace that it belongs to.
    #[must_use]
    pub fn trace(&self) -> Trace {
        Trace::new(self.id, self.origin.clone())
    }

    /// Identifies an attempt at a prediction permanently, so that a receiver recognizes a repetition.
    #[must_use]
    pub fn attempt_key(&self, attempt: u32) -> String {
        format!("{}:prediction:{attempt}", self.id)
    }

    /// The stamp for a change at `now`, as the machine says: not before any that the execution has,
    /// so that its times are in order although the machine's clock may be set back.
    #[must_use]
    pub fn stamp(&self, now: Timestamp) -> Timestamp {
        let last = self.prediction().and_then(|prediction| prediction.attempts.last());
        let of_last = last.map(Attempt::latest);
        [self.started_at, self.completed_at, of_last]
            .into_iter()
            .flatten()
            .fold(now.max(self.created_at), Timestamp::max)
    }

    /// Names the call to a model that a call of the chat router is, or a request for decisions.
    #[must_use]
    pub fn call_key(id: ExecutionId) -> String {
        format!("{id}:call")
    }

    /// Names a step of an exchange of the agent permanently, by its place from 0.
    #[must_use]
    pub fn exchange_step_key(&self, place: usize) -> String {
        format!("{}:exchange:{place}", self.id)
    }

    /// Time from creation to the first attempt; `None` while none has begun.
    #[must_use]
    pub fn queue_time(&self) -> Option<Duration> {
        self.started_at.map(|started| started.since(self.created_at))
    }

    /// Time from the first attempt to the end; `None` before that.
    #[must_use]
    pub fn run_time(&self) -> Option<Duration> {
        Some(self.completed_at?.since(self.started_at?))
    }
}
