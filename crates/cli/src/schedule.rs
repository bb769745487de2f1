//! `orrery schedule`: creates, lists, shows, pauses, resumes and deletes schedules.

use anyhow::bail;
use clap::Subcommand;
use serde_json::{Value, json};

use super::admin::segment;
use super::listing::{Kind, Owner, body_of, json_argument};
use super::output::{self, Column};
use super::{Shape, service};
use orrery_config::Config;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the schedules of an organization, oldest first
    List {
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        shape: Shape,
    },
    /// Show one schedule, as JSON
    Show(Known),
    /// Run a workflow or a model at fixed times
    Create(New),
    /// Pause a schedule; runs that it skips are not started later
    Pause(Known),
    /// Resume a paused schedule
    Resume(Known),
    /// Delete a schedule; executions that it started continue
    Delete(Known),
}

/// An existing schedule.
#[derive(Debug, clap::Args)]
pub(super) struct Known {
    /// The id of the schedule, or its name if it is unique
    #[arg(value_name = "ID_OR_NAME")]
    schedule: String,
    #[command(flatten)]
    owner: Owner,
}

/// A new schedule.
#[derive(Debug, clap::Args)]
pub(super) struct New {
    /// When to run: a cron expression with 5 fields, or with 6 (seconds first), or a shorthand such as @daily
    #[arg(long, value_name = "CRON")]
    cron: String,
    #[command(flatten)]
    target: Target,
    /// The version of the workflow or model [default of a workflow: the latest]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// The inputs of the workflow or model, as JSON or @FILE
    #[arg(long, value_name = "JSON", default_value = "{}")]
    input: String,
    /// The time zone of the expression, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// A name for the schedule
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// What to do if the previous run has not ended: skip, queue, cancel_other or allow
    /// [default: skip]
    #[arg(long, value_name = "RULE")]
    overlap: Option<String>,
    /// The URL to notify when a run ends
    #[arg(long, value_name = "URL")]
    webhook_url: Option<String>,
    /// Create the schedule paused
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    owner: Owner,
    #[command(flatten)]
    shape: Shape,
}

/// The workflow or model that a schedule runs.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Target {
    /// The workflow to run, by id or slug
    #[arg(long, value_name = "WORKFLOW")]
    workflow: Option<String>,
    /// The model to run, by slug
    #[arg(long, value_name = "MODEL", requires = "version")]
    model: Option<String>,
}

const SCHEDULES: Kind = Kind {
    path: "/api/base/v1/schedules",
    list: "schedules",
    id: "schedule_id",
    name: "name",
    noun: "schedule",
    command: "orrery schedule list",
    page: 100,
    fields: &[
        (Column::Text("ID"), &["/schedule_id"]),
        (Column::Text("NAME"), &["/name"]),
        (Column::Text("RUNS"), &["/model", "/workflow_id"]),
        (Column::Text("CRON"), &["/cron"]),
        (Column::Text("ZONE"), &["/timezone"]),
        (Column::Text("PAUSED"), &["/paused"]),
        (Column::Text("NEXT"), &["/next_runs/0"]),
        (Column::Text("LAST"), &["/last_run/status"]),
    ],
};

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let admin = service::admin(config).await?;
    match command {
        Command::List { owner, shape } => {
            SCHEDULES.show(SCHEDULES.all(&owner.of(admin), usize::MAX).await?, shape)
        }
        Command::Show(Known { schedule, owner }) => {
            output::json(&SCHEDULES.find(&owner.of(admin), &schedule).await?)
        }
        Command::Create(new) => {
            let (path, body) = new.request()?;
            let made = new.owner.of(admin).post(&path, &body).await?;
            SCHEDULES.show(vec![made], new.shape)
        }
        Command::Pause(Known { schedule, owner }) => {
            let admin = owner.of(admin);
            let path = SCHEDULES.path_of(&admin, &schedule).await?;
            admin.put(&path, &json!({"paused": true})).await?;
            output::note(&format!("Schedule {schedule} is paused."));
            Ok(())
        }
        Command::Resume(Known { schedule, owner }) => {
            let admin = owner.of(admin);
            let path = SCHEDULES.path_of(&admin, &schedule).await?;
            let changed = admin.put(&path, &json!({"paused": false})).await?;
            let next = changed.pointer("/next_runs/0").and_then(Value::as_str).unwrap_or("never");
            output::note(&format!("Schedule {schedule} is resumed; its next run: {next}."));
            Ok(())
        }
        Command::Delete(Known { schedule, owner }) => {
            let admin = owner.of(admin);
            admin.delete(&SCHEDULES.path_of(&admin, &schedule).await?).await?;
            output::note(&format!("Schedule {schedule} is deleted."));
            Ok(())
        }
    }
}

impl New {
    /// Returns the path and the body of the request.
    fn request(&self) -> anyhow::Result<(String, Value)> {
        let text = |text: &Option<String>| text.as_ref().map(|text| json!(text));
        let input = json_argument("--input", &self.input)?;
        if !input.is_object() {
            bail!("--input must be a JSON object");
        }
        let Target { workflow, model } = &self.target;
        let (version, inputs) =
            if model.is_some() { ("version", "input") } else { ("version_id", "inputs") };
        let body = body_of([
            ("cron", Some(json!(self.cron))),
            ("model", text(model)),
            (version, text(&self.version)),
            (inputs, Some(input)),
            ("timezone", text(&self.timezone)),
            ("name", text(&self.name)),
            ("overlap", text(&self.overlap)),
            ("webhook_url", text(&self.webhook_url)),
            ("paused", self.paused.then_some(Value::Bool(true))),
        ]);
        let path = match workflow {
            Some(workflow) => format!("/api/base/v1/workflows/{}/schedules", segment(workflow)),
            None => SCHEDULES.path.to_owned(),
        };
        Ok((path, body))
    }
}
