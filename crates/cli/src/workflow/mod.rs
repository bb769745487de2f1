//! `orrery workflow`: lists, shows, runs and deletes workflows, and synchronizes them with files.

mod sync;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

pub(super) use self::sync::{Step, Wanted, existing, plan};
use super::admin::{Admin, segment};
use super::listing::{Kind, Owner, body_of, json_argument};
use super::output::{self, Column};
use super::{Shape, service};
use orrery_config::Config;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the workflows of an organization, newest first
    List {
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        shape: Shape,
    },
    /// Show a workflow and the definition of its latest version, as JSON
    Show(Known),
    /// Run a workflow, wait for its end and print its output; exits with 1 if the run fails
    Run {
        #[command(flatten)]
        workflow: Known,
        /// The inputs, as JSON or @FILE
        #[arg(long, value_name = "JSON", default_value = "{}")]
        input: String,
        /// The version to run [default: the latest]
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
        /// Do not wait: print the id of the execution
        #[arg(long)]
        detach: bool,
        #[command(flatten)]
        shape: Shape,
    },
    /// Delete a workflow, and cancel its unfinished executions
    Delete {
        #[command(flatten)]
        workflow: Known,
        /// Let unfinished executions continue
        #[arg(long)]
        keep_running: bool,
    },
    /// Create workflows or add versions so that the service matches the files of a folder
    Push {
        /// The folder: one .yaml, .yml or .json file per workflow, named by its slug; includes
        /// subfolders
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Only print the plan
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        owner: Owner,
    },
    /// Write the workflows of an organization into the files of a folder
    Pull {
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        #[command(flatten)]
        owner: Owner,
    },
    /// Show what a push would change, as a diff
    Diff {
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        #[command(flatten)]
        owner: Owner,
    },
}

/// An existing workflow.
#[derive(Debug, clap::Args)]
pub(super) struct Known {
    /// The slug or the id of the workflow
    #[arg(value_name = "WORKFLOW")]
    workflow: String,
    #[command(flatten)]
    owner: Owner,
}

const API: &str = "/api/workflows/api/v1";
const WORKFLOWS: Kind = Kind {
    path: "/api/workflows/api/v1/workflows",
    list: "workflows",
    id: "workflow_id",
    name: "slug",
    noun: "workflow",
    command: "orrery workflow list",
    page: 100,
    fields: &[
        (Column::Text("SLUG"), &["/slug"]),
        (Column::Text("NAME"), &["/name"]),
        (Column::Text("STATUS"), &["/status"]),
        (Column::Text("LATEST"), &["/latest_version_id"]),
        (Column::Text("LOCKED"), &["/locked"]),
        (Column::Number("RUNS"), &["/trigger_count"]),
        (Column::Text("CHANGED"), &["/updated_at"]),
        (Column::Text("ID"), &["/workflow_id"]),
    ],
};

/// Maximum time that one request waits for an execution to end, in seconds.
const WAIT_SECONDS: u32 = 30;

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<ExitCode> {
    let admin = service::admin(config).await?;
    match command {
        Command::List { owner, shape } => {
            WORKFLOWS.show(WORKFLOWS.all(&owner.of(admin), usize::MAX).await?, shape)?;
        }
        Command::Show(Known { workflow, owner }) => show(&owner.of(admin), &workflow).await?,
        Command::Run { workflow: Known { workflow, owner }, input, version, detach, shape } => {
            let admin = owner.of(admin);
            let inputs = json_argument("--input", &input)?;
            let version = version.map(Value::String);
            let body = body_of([("inputs", Some(inputs)), ("version_id", version)]);
            let path = format!("{API}/{}/trigger", segment(&workflow));
            let started = admin.post(&path, &body).await?;
            let id = started.get("execution_id").and_then(Value::as_str).unwrap_or_default();
            if detach && shape.json {
                output::json(&started)?;
            } else if detach {
                output::line(id)?;
            } else {
                return ended(&admin, id, shape).await;
            }
        }
        Command::Delete { workflow: Known { workflow, owner }, keep_running } => {
            let path = path_of(&workflow);
            owner.of(admin).delete(&format!("{path}?keep_running={keep_running}")).await?;
            output::note(&format!("Workflow {workflow} is deleted."));
        }
        Command::Push { folder, dry_run, owner } => {
            sync::push(&owner.of(admin), &folder, dry_run).await?;
        }
        Command::Pull { folder, owner } => sync::pull(&owner.of(admin), &folder).await?,
        Command::Diff { folder, owner } => sync::show_diff(&owner.of(admin), &folder).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn path_of(workflow: &str) -> String {
    format!("{}/{}", WORKFLOWS.path, segment(workflow))
}

async fn show(admin: &Admin, workflow: &str) -> anyhow::Result<()> {
    let path = path_of(workflow);
    let mut found = admin.get(&path).await?;
    let latest = found.get("latest_version_id").and_then(Value::as_str).unwrap_or_default();
    let version = admin.get(&format!("{path}/versions/{}", segment(latest))).await?;
    if let Some(fields) = found.as_object_mut() {
        let definition = version.get("definition").cloned().unwrap_or_default();
        fields.insert("definition".to_owned(), definition);
    }
    output::json(&found)
}

/// Waits until an execution ends. Prints its output or, with `--json`, the complete execution.
async fn ended(admin: &Admin, id: &str, shape: Shape) -> anyhow::Result<ExitCode> {
    output::note(&format!("Execution {id} has started; Ctrl+C stops waiting, not the execution."));
    let path = format!("{API}/executions/{id}?timeout={WAIT_SECONDS}");
    let field = |execution: &Value, name: &str| {
        execution.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let execution = loop {
        let execution = admin.get(&path).await?;
        if ["completed", "failed", "cancelled"].contains(&field(&execution, "status").as_str()) {
            break execution;
        }
    };
    let status = field(&execution, "status");
    if shape.json {
        output::json(&execution)?;
    } else if status == "completed" {
        output::json(&execution.get("output").unwrap_or(&json!(null)))?;
    }
    if status == "completed" {
        return Ok(ExitCode::SUCCESS);
    }
    let cause = field(&execution, "error_cause");
    output::note(&match cause.as_str() {
        "" => format!("The execution is {status}."),
        cause => format!("The execution is {status}: {cause}"),
    });
    Ok(ExitCode::FAILURE)
}
