//! `orrery execution`: what has not ended, one execution, ending one. And `orrery resume`.

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Shape;
use super::chain::query;
use super::key::understood;
use super::output::{self, Column, Output};
use super::service;
use crate::config::Config;
use crate::domain::ids::ExecutionId;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List executions, the newest first, or those that have not ended
    List {
        /// Only what has not ended, with the crashes of the service while it ran
        #[arg(long)]
        unfinished: bool,
        /// How many, 1000 at most
        #[arg(long, value_name = "COUNT", default_value_t = 100)]
        limit: u32,
        /// Whose executions; without it, everyone's
        #[arg(long, value_name = "ORGANIZATION")]
        org: Option<String>,
        #[command(flatten)]
        shape: Shape,
    },
    /// Show one execution, as JSON
    Show {
        /// The id of the prediction or execution
        #[arg(value_name = "ID")]
        execution: ExecutionId,
    },
    /// End one execution now: its run is stopped, and no webhook is sent
    Cancel {
        /// The id of the prediction or execution
        #[arg(value_name = "ID")]
        execution: ExecutionId,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Executions {
    executions: Vec<Execution>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Execution {
    id: String,
    organization: String,
    #[serde(rename = "type")]
    kind: String,
    /// The model or the workflow.
    subject: String,
    status: String,
    crashes: u32,
    waiting_for: Option<String>,
    created_at: String,
}

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
        Command::List { unfinished, limit, org, shape } => {
            let (limit, unfinished) = (limit.to_string(), unfinished.to_string());
            let mut asked = vec![("limit", limit.as_str()), ("unfinished", &unfinished)];
            asked.extend(org.as_deref().map(|org| ("organization", org)));
            let answer = admin.get(&format!("/admin/executions?{}", query(&asked))).await?;
            let listed: Executions = understood(answer)?;
            let rows = listed.executions.iter().map(row);
            Output::new(shape.json).show(&listed, &COLUMNS, rows)
        }
        Command::Show { execution } => {
            output::json(&admin.get(&format!("/admin/executions/{execution}")).await?)
        }
        Command::Cancel { execution } => {
            let path = format!("/admin/executions/{execution}/cancel");
            let answer = admin.post(&path, &json!({})).await?;
            let status = answer.get("status").and_then(Value::as_str).unwrap_or("cancelled");
            output::note(&format!("execution {execution} is {status}"));
            Ok(())
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Resumed {
    executions: u64,
    deliveries: u64,
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
        execution.id.clone(),
        execution.organization.clone(),
        execution.kind.clone(),
        execution.subject.clone(),
        execution.status.clone(),
        execution.crashes.to_string(),
        execution.created_at.clone(),
    ]
}
