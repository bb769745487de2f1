//! `orrery execution`: lists, watches, shows, cancels, pauses, resumes and redrives executions; and
//! `orrery resume`.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use super::Shape;
use super::admin::Admin;
use super::chain::query;
use super::key::understood;
use super::output::{self, Column, Output};
use super::service;
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::ids::ExecutionId;
use orrery_wire::operator::{Cancelled, Execution, Executions, Resumed};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List executions, newest first
    List {
        /// Only unfinished executions, with the number of service crashes while they ran
        #[arg(long, conflicts_with_all = ["model", "status", "kind", "workflow", "from", "to"])]
        unfinished: bool,
        #[command(flatten)]
        filter: Filter,
        /// The maximum number of executions, up to 1000
        #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = super::values::count)]
        limit: u32,
        /// The organization of the executions [default: all]
        #[arg(long, value_name = "ORGANIZATION")]
        org: Option<String>,
        /// Keep watching: redraw the table on a terminal, otherwise print a line for each change
        #[arg(long)]
        watch: bool,
        #[command(flatten)]
        shape: Shape,
    },
    /// Show one execution, as JSON
    Show {
        /// The id of the prediction or execution
        #[arg(value_name = "ID", value_parser = super::values::id::<ExecutionId>)]
        execution: ExecutionId,
    },
    /// Cancel an execution at once; no webhook is sent
    Cancel {
        /// The id of the prediction or execution
        #[arg(value_name = "ID", value_parser = super::values::id::<ExecutionId>)]
        execution: ExecutionId,
    },
    /// Run a failed or cancelled workflow execution again, keeping its completed steps
    Redrive(OfWorkflow),
    /// Pause a workflow execution: no new steps start until it is resumed
    Pause(OfWorkflow),
    /// Resume a paused workflow execution
    Resume(OfWorkflow),
}

/// Filters of the list.
#[derive(Debug, clap::Args)]
pub(super) struct Filter {
    /// Only executions of this model
    #[arg(long, value_name = "SLUG")]
    model: Option<String>,
    /// Only executions with one of these statuses, comma-separated, such as error,failed
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only this type: prediction, workflow, chat, decision or agent
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only executions of this workflow and its steps, by id or slug
    #[arg(long, value_name = "WORKFLOW")]
    workflow: Option<String>,
    /// Only executions created at or after this time, such as 2026-11-20T09:30:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only executions created before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

/// A workflow execution.
#[derive(Debug, clap::Args)]
pub(super) struct OfWorkflow {
    /// The id of the execution
    #[arg(value_name = "ID", value_parser = super::values::id::<ExecutionId>)]
    execution: ExecutionId,
    /// The organization of the execution
    #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
    org: String,
}

/// Polling interval of `--watch`.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Moves the cursor to the top left and clears the terminal.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

const COLUMNS: [Column; 7] = [
    Column::Text("ID"),
    Column::Text("ORGANIZATION"),
    Column::Text("TYPE"),
    Column::Text("SUBJECT"),
    Column::Text("STATUS"),
    Column::Number("CRASHES"),
    Column::Text("CREATED"),
];

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let admin = service::admin(config).await?;
    match command {
        Command::List { unfinished, filter, limit, org, watch, shape } => {
            let limit = limit.to_string();
            let unfinished = unfinished.to_string();
            let mut asked = vec![("limit", limit.as_str()), ("unfinished", &unfinished)];
            let Filter { model, status, kind, workflow, from, to } = &filter;
            for (name, value) in [
                ("organization", &org),
                ("model", model),
                ("status", status),
                ("type", kind),
                ("workflow", workflow),
                ("from", from),
                ("to", to),
            ] {
                asked.extend(value.as_deref().map(|value| (name, value)));
            }
            let path = format!("/admin/executions?{}", query(&asked));
            let output = Output::new(shape.json);
            if watch {
                return watch_list(&admin, &path, &output).await;
            }
            let listed: Executions = understood(admin.get(&path).await?)?;
            let rows = listed.executions.iter().map(row);
            output.show(&listed, &COLUMNS, rows)
        }
        Command::Show { execution } => {
            output::json(&admin.get(&format!("/admin/executions/{execution}")).await?)
        }
        Command::Cancel { execution } => {
            let path = format!("/admin/executions/{execution}/cancel");
            let ended: Cancelled = understood(admin.post(&path, &json!({})).await?)?;
            output::note(&format!("execution {execution} is {}", ended.status));
            Ok(())
        }
        Command::Redrive(asked) => {
            let answer = change(admin, &asked, "redrive").await?;
            let id = answer.get("execution_id").and_then(Value::as_str).unwrap_or_default();
            output::note(&format!("execution {} was redriven as {id}", asked.execution));
            output::text(&format!("{id}\n")).map_err(Into::into)
        }
        Command::Pause(asked) => {
            change(admin, &asked, "pause").await?;
            output::note(&format!("execution {} is paused", asked.execution));
            Ok(())
        }
        Command::Resume(asked) => {
            change(admin, &asked, "resume").await?;
            output::note(&format!("execution {} is resumed", asked.execution));
            Ok(())
        }
    }
}

/// Sends a request to change an execution to the workflows host, on behalf of the execution's
/// organization.
async fn change(mut admin: Admin, asked: &OfWorkflow, verb: &str) -> anyhow::Result<Value> {
    admin.act_for(&asked.org);
    let path = format!("/api/workflows/api/v1/executions/{}/{verb}", asked.execution);
    admin.post(&path, &json!({})).await
}

/// Polls and prints the list until interrupted.
async fn watch_list(admin: &Admin, path: &str, output: &Output) -> anyhow::Result<()> {
    let is_drawn = io::stdout().is_terminal() && !output.is_json();
    // The last line printed for each execution that is still in the list.
    let mut said: HashMap<ExecutionId, String> = HashMap::new();
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        looks.tick().await;
        let listed: Executions = understood(admin.get(path).await?)?;
        if is_drawn {
            output::text(CLEAR)?;
            output.show(&listed, &COLUMNS, listed.executions.iter().map(row))?;
            continue;
        }
        for execution in listed.executions.iter().rev() {
            if said.get(&execution.id) != Some(&execution.status) {
                output::text(&line(execution, output)?)?;
            }
        }
        let status = |one: Execution| (one.id, one.status);
        said = listed.executions.into_iter().map(status).collect();
    }
}

/// Formats an execution as one line.
fn line(execution: &Execution, output: &Output) -> anyhow::Result<String> {
    if output.is_json() {
        return Ok(serde_json::to_string(execution)? + "\n");
    }
    let fields: Vec<String> = row(execution).iter().map(|field| output::plain(field)).collect();
    Ok(fields.join("  ") + "\n")
}

/// `orrery resume`
pub(super) async fn resume(shape: Shape, config: &Config) -> anyhow::Result<()> {
    let admin = service::admin(config).await?;
    let resumed: Resumed = understood(admin.post("/admin/resume", &json!({})).await?)?;
    let rows = [("executions", resumed.executions), ("webhook deliveries", resumed.deliveries)];
    let rows = rows.map(|(what, count)| vec![what.to_owned(), count.to_string()]);
    let columns = [Column::Text("RESUMED"), Column::Number("COUNT")];
    Output::new(shape.json).show(&resumed, &columns, rows)
}

fn row(execution: &Execution) -> Vec<String> {
    vec![
        execution.id.to_string(),
        execution.organization.clone(),
        execution.kind.clone(),
        execution.subject.clone(),
        execution.status.clone(),
        execution.crashes.to_string(),
        execution.created_at.to_string(),
    ]
}
