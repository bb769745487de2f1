//! Schedules: requests and views.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Time, pattern};
use orrery_domain::calendar::CRON_BYTES_MAX;
use orrery_domain::delivery::URL_BYTES_MAX;
use orrery_domain::ids::{ExecutionId, ScheduleId, WorkflowId};
use orrery_domain::schedule::{
    CATCH_UP_MAX, JITTER_MAX, LastRun as Decided, NAME_MAX, Overlap, RunResult, Schedule as Stored,
    Target,
};
use orrery_domain::signature::SECRET_BYTES_MAX;
use orrery_domain::time::Timestamp;

/// The number of upcoming firings in a schedule's view.
pub const NEXT_RUNS: usize = 10;

/// A workflow's schedule to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "NewWorkflowSchedule", deny_unknown_fields)]
#[schemars(example = json!({"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"}))]
pub struct NewOfWorkflow {
    /// A cron expression with 5 fields, or 6 with seconds first, or a nickname such as `@daily`.
    #[schemars(length(max = CRON_BYTES_MAX), transform = pattern::filled)]
    pub cron: String,
    #[serde(flatten)]
    pub run: WorkflowRun,
    #[serde(flatten)]
    pub common: Common,
    #[serde(flatten)]
    pub secret: Secret,
}

/// Changes to a workflow's schedule. Omitted fields keep their value.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "WorkflowSchedule", deny_unknown_fields)]
#[schemars(example = json!({"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"}))]
pub struct OfWorkflow {
    /// A cron expression with 5 fields, or 6 with seconds first, or a nickname such as `@daily`.
    #[schemars(length(max = CRON_BYTES_MAX), transform = pattern::filled)]
    pub cron: Option<String>,
    #[serde(flatten)]
    pub run: WorkflowRun,
    #[serde(flatten)]
    pub common: Common,
    #[serde(flatten)]
    pub secret: Secret,
}

/// A model's schedule to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "NewModelSchedule", deny_unknown_fields)]
#[schemars(example = json!({"model": "text-template", "version": "0.0.1",
    "input": {"template": "tick"}, "cron": "@hourly"}))]
pub struct NewOfModel {
    /// A cron expression with 5 fields, or 6 with seconds first, or a nickname such as `@daily`.
    #[schemars(length(max = CRON_BYTES_MAX), transform = pattern::filled)]
    pub cron: String,
    /// The model's slug.
    #[schemars(length(max = NAME_MAX), transform = pattern::filled)]
    pub model: String,
    /// The model's version, as in a prediction.
    #[schemars(length(max = NAME_MAX), transform = pattern::filled)]
    pub version: String,
    #[serde(flatten)]
    pub run: ModelRun,
    #[serde(flatten)]
    pub common: Common,
    #[serde(flatten)]
    pub secret: Secret,
}

/// Changes to a schedule of a workflow or a model. Omitted fields keep their value. Fields that
/// apply only to the other kind of schedule are refused.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ScheduleChange", deny_unknown_fields)]
#[schemars(example = json!({"cron": "@hourly", "paused": false}))]
pub struct OfAny {
    #[serde(flatten)]
    pub target: AnyTarget,
    #[serde(flatten)]
    pub common: Common,
    #[serde(flatten)]
    pub secret: Secret,
}

/// What a schedule runs, and when. Either the fields for workflows or the fields for models apply
/// to a schedule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct AnyTarget {
    /// A cron expression with 5 fields, or 6 with seconds first, or a nickname such as `@daily`.
    /// Required for a new schedule.
    #[schemars(length(max = CRON_BYTES_MAX), transform = pattern::filled)]
    pub cron: Option<String>,
    /// The model's slug. Only for the schedule of a model.
    #[schemars(length(max = NAME_MAX), transform = pattern::filled)]
    pub model: Option<String>,
    /// The model's version, as in a prediction. Only for the schedule of a model.
    #[schemars(length(max = NAME_MAX), transform = pattern::filled)]
    pub version: Option<String>,
    #[serde(flatten)]
    pub model_run: ModelRun,
    #[serde(flatten)]
    pub workflow_run: WorkflowRun,
}

/// How a schedule runs a workflow.
#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
pub struct WorkflowRun {
    /// The workflow's inputs, which must match the version's `input_schema`. At most 48 KiB.
    pub inputs: Option<Map<String, Value>>,
    /// The workflow version to run. Omit or leave empty to run the version that is latest when the
    /// schedule fires.
    #[schemars(length(max = NAME_MAX))]
    pub version_id: Option<String>,
}

/// How a schedule runs a model.
#[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
pub struct ModelRun {
    /// The model's input, which must match its request schema. At most 48 KiB.
    pub input: Option<Map<String, Value>>,
    /// The fallback chain to use. An empty string means that no chain is selected.
    #[schemars(length(max = NAME_MAX))]
    pub fallback_selector: Option<String>,
}

/// The fields that all schedules have.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Common {
    /// An IANA time zone name. Defaults to UTC.
    #[schemars(length(max = NAME_MAX), transform = pattern::filled)]
    pub timezone: Option<String>,
    /// A display name, which does not have to be unique. An empty string means no name.
    #[schemars(length(max = NAME_MAX), transform = pattern::line)]
    pub name: Option<String>,
    /// What to do if the previous run has not ended when the schedule fires. Defaults to `skip`.
    pub overlap: Option<Overlap>,
    /// How late a firing may run, in seconds, for example after the service was down. Of several
    /// missed firings, only the last one runs. Defaults to 3600.
    #[schemars(range(max = CATCH_UP_MAX))]
    pub catch_up_seconds: Option<u64>,
    /// The maximum random delay of each firing, in seconds.
    #[schemars(range(max = JITTER_MAX))]
    pub jitter_seconds: Option<u32>,
    /// Whether the schedule is paused. A paused schedule does not fire, and the firings that it
    /// skips are not made up for later.
    pub paused: Option<bool>,
    /// The time before which the schedule does not fire. An empty string means no limit.
    #[schemars(transform = pattern::optional_time)]
    pub starts_at: Option<String>,
    /// The time after which the schedule does not fire. An empty string means no limit.
    #[schemars(transform = pattern::optional_time)]
    pub ends_at: Option<String>,
    /// The URL to notify when each run ends. Null or an empty string means no webhook. An update
    /// that changes the URL keeps the secret.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<String>", length(max = URL_BYTES_MAX))]
    #[schemars(transform = pattern::optional_web_url)]
    pub webhook_url: Option<Option<String>>,
}

/// The secret of a schedule's webhooks.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct Secret {
    /// The secret that signs the webhooks. An empty string means no signature.
    #[schemars(length(max = SECRET_BYTES_MAX), transform = pattern::line)]
    pub webhook_secret: Option<String>,
    /// Whether the webhooks also carry the secret itself, in `X-Webhook-Secret`. Null means the
    /// service's `webhooks.send_plain_secret`. An update that changes the URL keeps this setting.
    #[serde(default, deserialize_with = "super::given")]
    #[schemars(with = "Option<bool>")]
    pub webhook_send_plain_secret: Option<Option<bool>>,
}

/// A schedule.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Schedule {
    /// The ID of the schedule.
    pub schedule_id: ScheduleId,
    /// The display name. Null if there is none.
    pub name: Option<String>,
    /// The workflow. Only for workflow schedules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<WorkflowId>,
    /// The workflow version that runs. Null means the latest version. Only for workflow schedules.
    pub version_id: Option<String>,
    /// The model's slug. Only for model schedules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model's version, as in a prediction. Only for model schedules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The fallback chain that is used. Only for model schedules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_selector: Option<String>,
    /// The cron expression.
    pub cron: String,
    /// The IANA time zone in which the cron expression applies.
    pub timezone: String,
    /// The inputs of the workflow, or the input of the model.
    pub inputs: Value,
    /// What happens if the previous run has not ended when the schedule fires.
    pub overlap: Overlap,
    /// How late a firing may run, in seconds.
    pub catch_up_seconds: u64,
    /// The maximum random delay of each firing, in seconds.
    pub jitter_seconds: u32,
    /// Whether the schedule is paused. A paused schedule does not fire.
    pub paused: bool,
    /// The time before which the schedule does not fire. Null means no limit.
    pub starts_at: Option<Time>,
    /// The time after which the schedule does not fire. Null means no limit.
    pub ends_at: Option<Time>,
    /// The URL that is notified when each run ends. Null if there is no webhook.
    pub webhook_url: Option<String>,
    /// Whether the webhooks also carry their secret. Null means the service's default.
    pub webhook_send_plain_secret: Option<bool>,
    /// The next ten firings, without jitter. Empty while the schedule is paused.
    pub next_runs: Vec<Time>,
    /// The number of firings that wait for the previous run to end.
    pub waiting: usize,
    /// The outcome of the last firing. Null if the schedule has not fired.
    pub last_run: Option<LastRun>,
    /// When the schedule was created.
    pub created_at: Time,
    /// When the schedule was last changed.
    pub updated_at: Time,
}

/// The statuses of predictions and of workflow executions, and the outcomes of other firings.
const RUN_STATUSES: [&str; 13] = [
    "created",
    "processing",
    "success",
    "error",
    "cancelled",
    "queued",
    "running",
    "completed",
    "failed",
    "deleted",
    "skipped",
    "missed",
    "refused",
];

/// The outcome of the last firing.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ScheduleRun")]
pub struct LastRun {
    /// The scheduled time, without jitter.
    pub scheduled_for: Time,
    /// When the firing was processed.
    pub at: Time,
    /// The execution that the firing started. Null if the firing started no execution.
    pub execution_id: Option<ExecutionId>,
    /// The status of the execution, or `deleted` if the execution is no longer stored. A firing
    /// that started no execution is `skipped` because of the overlap rule, `missed` because it was
    /// too late, or `refused` because it could not start.
    #[schemars(extend("enum" = RUN_STATUSES))]
    pub status: String,
    /// Why the firing was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A page of schedules.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Schedules {
    /// The schedules, oldest first.
    pub schedules: Vec<Schedule>,
    /// The number of schedules.
    pub total_count: usize,
    /// The requested offset.
    pub offset: u64,
    /// The requested page size.
    pub limit: u64,
}

impl Schedule {
    /// Returns the view of a schedule with its next firings. `status` is the status of the last
    /// run's execution, if it is still stored.
    #[must_use]
    pub fn of(schedule: &Stored, next_runs: Vec<Timestamp>, status: Option<&'static str>) -> Self {
        let (mut workflow_id, mut version_id, mut model, mut version, mut selector) =
            (None, None, None, None, None);
        match &schedule.target {
            Target::Workflow { workflow, version } => {
                workflow_id = Some(*workflow);
                version_id.clone_from(version);
            }
            Target::Model { model: slug, version: named, fallback_selector } => {
                model = Some(slug.clone());
                version = Some(named.clone());
                selector.clone_from(fallback_selector);
            }
        }
        Self {
            schedule_id: schedule.id,
            name: schedule.name.clone(),
            workflow_id,
            version_id,
            model,
            version,
            fallback_selector: selector,
            cron: schedule.cron.clone(),
            timezone: schedule.timezone.clone(),
            inputs: schedule.input.clone(),
            overlap: schedule.overlap,
            catch_up_seconds: schedule.catch_up_seconds,
            jitter_seconds: schedule.jitter_seconds,
            paused: schedule.paused,
            starts_at: schedule.starts_at.map(Time::from),
            ends_at: schedule.ends_at.map(Time::from),
            webhook_url: schedule.webhook.as_ref().map(|webhook| webhook.url.clone()),
            webhook_send_plain_secret: schedule
                .webhook
                .as_ref()
                .and_then(|webhook| webhook.send_plain_secret),
            next_runs: next_runs.into_iter().map(Time::from).collect(),
            waiting: schedule.waiting.len(),
            last_run: schedule.last.as_ref().map(|last| LastRun::of(last, status)),
            created_at: schedule.created_at.into(),
            updated_at: schedule.updated_at.into(),
        }
    }
}

impl LastRun {
    fn of(last: &Decided, known: Option<&'static str>) -> Self {
        let (execution_id, status, error) = match &last.result {
            RunResult::Started(execution) => (Some(*execution), known.unwrap_or("deleted"), None),
            RunResult::Skipped => (None, "skipped", None),
            RunResult::Missed => (None, "missed", None),
            RunResult::Refused(reason) => (None, "refused", Some(reason.clone())),
        };
        Self {
            scheduled_for: last.scheduled_for.into(),
            at: last.at.into(),
            execution_id,
            status: status.to_owned(),
            error,
        }
    }
}
