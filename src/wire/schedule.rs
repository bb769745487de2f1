//! Schedules: what clients write and read of them.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Time;
use crate::domain::ids::{ExecutionId, ScheduleId, WorkflowId};
use crate::domain::schedule::{LastRun as Decided, Overlap, RunResult, Schedule as Stored, Target};
use crate::domain::time::Timestamp;

/// How many firings are shown.
pub const NEXT_RUNS: usize = 10;

/// When a workflow is to run. In a change, absent fields stay as they are.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "WorkflowSchedule")]
#[schemars(example = json!({"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"}))]
pub struct OfWorkflow {
    /// 5 or 6 fields (the first of 6 is the second), or a nickname such as `@daily`. A new schedule needs
    /// one.
    #[schemars(length(max = 256))]
    pub cron: Option<String>,
    /// The IANA name of a time zone; UTC where it is absent.
    pub timezone: Option<String>,
    /// Fits the version's `input_schema`; at most 48 KiB.
    pub inputs: Option<Map<String, Value>>,
    /// The version to run; where it is absent or empty, the latest when it fires.
    pub version_id: Option<String>,
    #[schemars(flatten)]
    pub common: Common,
}

/// When a model is to run. In a change, absent fields stay as they are.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "ModelSchedule")]
#[schemars(example = json!({"model": "text-template", "version": "0.0.1",
    "input": {"template": "tick"}, "cron": "@hourly"}))]
pub struct OfModel {
    /// 5 or 6 fields (the first of 6 is the second), or a nickname such as `@daily`. A new schedule needs
    /// one.
    #[schemars(length(max = 256))]
    pub cron: Option<String>,
    /// The IANA name of a time zone; UTC where it is absent.
    pub timezone: Option<String>,
    /// The model's slug. A new schedule needs one.
    pub model: Option<String>,
    /// As in a prediction. A new schedule needs one.
    pub version: Option<String>,
    /// Fits the model's request schema; at most 48 KiB.
    pub input: Option<Map<String, Value>>,
    /// A fallback chain; empty for none.
    pub fallback_selector: Option<String>,
    #[schemars(flatten)]
    pub common: Common,
}

#[derive(Debug, JsonSchema)]
pub struct Common {
    /// What people call it; empty for none. It need not be unique.
    #[schemars(length(max = 200))]
    pub name: Option<String>,
    /// What a firing does that finds the run before it unfinished; `skip` where it is absent.
    pub overlap: Option<Overlap>,
    /// How late a firing may be, after a time in which the service was not running; then only the last one
    /// runs. 3600 where it is absent.
    #[schemars(range(min = 0, max = 31_622_400))]
    pub catch_up_seconds: Option<u64>,
    /// Each firing is delayed by up to so many seconds.
    #[schemars(range(min = 0, max = 86400))]
    pub jitter_seconds: Option<u32>,
    /// While it is paused, nothing fires, and nothing is made up for.
    pub paused: Option<bool>,
    /// Nothing fires before; empty for no limit.
    pub starts_at: Option<String>,
    /// Nothing fires after; empty for no limit.
    pub ends_at: Option<String>,
    /// Where the end of each run is announced; empty for nowhere. A change keeps the secret.
    pub webhook_url: Option<String>,
    /// Signs the webhooks; empty for no signature.
    #[schemars(length(max = 256))]
    pub webhook_secret: Option<String>,
}

/// A schedule.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Schedule {
    pub schedule_id: ScheduleId,
    pub name: Option<String>,
    /// Of a schedule of a workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<WorkflowId>,
    /// Of a schedule of a workflow: the version that runs; null: the latest.
    pub version_id: Option<String>,
    /// Of a schedule of a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_selector: Option<String>,
    pub cron: String,
    pub timezone: String,
    pub inputs: Value,
    pub overlap: Overlap,
    pub catch_up_seconds: u64,
    pub jitter_seconds: u32,
    pub paused: bool,
    pub starts_at: Option<Time>,
    pub ends_at: Option<Time>,
    pub webhook_url: Option<String>,
    /// The next ten firings, without their jitter; none while it is paused.
    pub next_runs: Vec<Time>,
    /// Firings that wait for the run before to end.
    pub waiting: usize,
    pub last_run: Option<LastRun>,
    pub created_at: Time,
    pub updated_at: Time,
}

/// What became of the last firing that was decided.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ScheduleRun")]
pub struct LastRun {
    /// The firing, without its jitter.
    pub scheduled_for: Time,
    pub at: Time,
    pub execution_id: Option<ExecutionId>,
    /// The status of the execution; `skipped` by the overlap rule, `missed` because it was too late,
    /// `refused` because it could not be started.
    pub status: String,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A page of schedules.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Schedules {
    /// Oldest first.
    pub schedules: Vec<Schedule>,
    pub total_count: usize,
    pub offset: u64,
    pub limit: u64,
}

impl Schedule {
    /// A schedule with its next firings. `status` is that of the last run's execution, if it has one that is
    /// still known.
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
