//! `orrery org`: creates, lists and limits organizations.

use anyhow::bail;
use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::admin::segment;
use super::key::understood;
use super::output::{Column, Output};
use super::{Shape, values};
use orrery_config::Config;
use orrery_wire::limits::Limits;
use orrery_wire::operator::{Organization, Organizations};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create an organization
    Create {
        /// The name: 1 to 64 characters of a-z, 0-9 and -
        #[arg(long, value_name = "NAME")]
        name: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// List the organizations
    List(Shape),
    /// Show an organization: its limits and their current usage
    Show {
        /// The name of the organization
        #[arg(value_name = "ORGANIZATION")]
        name: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// Change the limits of an organization; limits that are not named stay, `none` removes one
    Limit {
        /// The name of the organization
        #[arg(value_name = "ORGANIZATION")]
        name: String,
        /// Requests per second, over all keys of the organization
        #[arg(long, value_name = "NUMBER", value_parser = values::limit)]
        requests_per_second: Option<values::Limit>,
        /// Executions that run at the same time; further ones wait
        #[arg(long, value_name = "NUMBER", value_parser = values::limit)]
        running: Option<values::Limit>,
        /// Unfinished executions that are not running (queued, suspended); further ones are rejected
        #[arg(long, value_name = "NUMBER", value_parser = values::limit)]
        queued: Option<values::Limit>,
        /// Total size of files, in bytes or such as 10GB or 512MiB; further files are rejected
        #[arg(long, value_name = "BYTES", value_parser = values::size_limit)]
        storage: Option<values::Limit>,
        #[command(flatten)]
        shape: Shape,
    },
}

const COLUMNS: [Column; 3] = [Column::Text("NAME"), Column::Text("ID"), Column::Text("CREATED")];
const LIMIT_COLUMNS: [Column; 3] =
    [Column::Text("LIMIT"), Column::Number("MOST"), Column::Number("USED")];

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let admin = super::service::admin(config).await?;
    match command {
        Command::Create { name, shape } => {
            let answer = admin.post("/admin/organizations", &json!({"name": name})).await?;
            let made: Organization = understood(answer)?;
            Output::new(shape.json).show(&made, &COLUMNS, [row(&made)])
        }
        Command::List(shape) => {
            let answer: Organizations = understood(admin.get("/admin/organizations").await?)?;
            let rows = answer.organizations.iter().map(row);
            Output::new(shape.json).show(&answer, &COLUMNS, rows)
        }
        Command::Show { name, shape } => {
            let shown: Organization = understood(admin.get(&path_of(&name)).await?)?;
            show_limits(&shown, shape)
        }
        Command::Limit { name, requests_per_second, running, queued, storage, shape } => {
            let given = [
                ("requests_per_second", requests_per_second),
                ("running", running),
                ("queued", queued),
                ("storage_bytes", storage),
            ];
            let given = given
                .into_iter()
                .filter_map(|(field, limit)| limit.map(|limit| (field.to_owned(), json!(limit.0))));
            let change: Map<String, Value> = given.collect();
            if change.is_empty() {
                bail!("name a limit, such as --running 4 or --queued none");
            }
            let path = format!("{}/limits", path_of(&name));
            let changed: Organization = understood(admin.put(&path, &change.into()).await?)?;
            show_limits(&changed, shape)
        }
    }
}

fn path_of(name: &str) -> String {
    format!("/admin/organizations/{}", segment(name))
}

fn show_limits(organization: &Organization, shape: Shape) -> anyhow::Result<()> {
    let Limits { requests_per_second, running, queued, storage_bytes } = organization.limits;
    let rows = [
        ("requests per second", requests_per_second),
        ("running executions", running),
        ("queued executions", queued),
        ("bytes of files", storage_bytes),
    ];
    let or = |number: Option<u64>, none: &str| number.map_or(none.to_owned(), |n| n.to_string());
    let rows = rows
        .map(|(name, limit)| vec![name.to_owned(), or(limit.limit, "none"), or(limit.used, "-")]);
    Output::new(shape.json).show(organization, &LIMIT_COLUMNS, rows)
}

fn row(organization: &Organization) -> Vec<String> {
    vec![
        organization.name.clone(),
        organization.id.to_string(),
        organization.created_at.to_string(),
    ]
}
