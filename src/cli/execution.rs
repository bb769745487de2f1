//! `orrery execution`: what has not ended, one execution, ending one. And `orrery resume`.

use clap::Subcommand;
use serde_json::json;

use super::Shape;
use super::chain::query;
use super::key::understood;
use super::output::{self, Column, Output};
use super::service;
use crate::config::Config;
use crate::domain::ids::ExecutionId;
use crate::wire::operator::{Cancelled, Execution, Executions, Resumed};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List executions, newest first
    List {
        /// Only unfinished executions, with the crashes of the service while they ran
        #[arg(long)]
        unfinished: bool,
        /// The maximum number of executions, up to 1000
        #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = super::values::count)]
        limit: u32,
        /// The organization of the executions; by default all of them
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
    /// Cancel one execution now: its run stops, and no webhook is sent
    Cancel {
        /// The id of the prediction or execution
        #[arg(value_name = "ID")]
        execution: ExecutionId,
    },
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
            let limit = limit.to_string();
            let unfinished = unfinished.to_string();
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
            let ended: Cancelled = understood(admin.post(&path, &json!({})).await?)?;
            output::note(&format!("execution {execution} is {}", ended.status));
            Ok(())
        }
    }
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
