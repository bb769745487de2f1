//! `orrery audit`: lists the audit log.

use clap::Subcommand;

use super::key::understood;
use super::output::{Column, Output};
use super::{Shape, service};
use orrery_config::Config;
use orrery_wire::operator::{Act, Acts};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List audit records, newest first
    List {
        /// Only actions with this prefix, such as key or key.create
        #[arg(long)]
        action: Option<String>,
        /// Only actions on this organization
        #[arg(long)]
        org: Option<String>,
        /// Only actions at or after this time, such as 2026-11-20T09:30:00Z
        #[arg(long)]
        from: Option<String>,
        /// Only actions before this time
        #[arg(long)]
        to: Option<String>,
        /// The maximum number of records
        #[arg(long, default_value_t = 50, value_parser = super::values::count)]
        limit: u32,
        #[command(flatten)]
        shape: Shape,
    },
}

const COLUMNS: [Column; 7] = [
    Column::Text("AT"),
    Column::Text("WHO"),
    Column::Text("FROM"),
    Column::Text("ACT"),
    Column::Text("ON"),
    Column::Text("RESULT"),
    Column::Text("TIMES"),
];

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let Command::List { action, org, from, to, limit, shape } = command;
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("limit", &limit.to_string());
    for (name, value) in [("action", action), ("organization", org), ("from", from), ("to", to)] {
        if let Some(value) = value {
            query.append_pair(name, &value);
        }
    }
    let admin = service::admin(config).await?;
    let answer = admin.get(&format!("/admin/audit?{}", query.finish())).await?;
    let answer: Acts = understood(answer)?;
    Output::new(shape.json).show(&answer, &COLUMNS, answer.entries.iter().map(row))
}

fn row(act: &Act) -> Vec<String> {
    vec![
        act.at.to_string(),
        act.actor.clone(),
        act.from.clone(),
        act.action.clone(),
        act.subject.clone(),
        act.result.clone(),
        act.count.to_string(),
    ]
}
