//! `orrery org`: makes and lists organizations.

use clap::Subcommand;
use serde_json::json;

use super::Shape;
use super::key::understood;
use super::output::{Column, Output};
use crate::config::Config;
use crate::wire::operator::{Organization, Organizations};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create an organization
    Create {
        /// 1 to 64 characters of a-z, 0-9 and -
        #[arg(long, value_name = "NAME")]
        name: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// List the organizations
    List(Shape),
}

const COLUMNS: [Column; 3] = [Column::Text("NAME"), Column::Text("ID"), Column::Text("CREATED")];

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
    }
}

fn row(organization: &Organization) -> Vec<String> {
    vec![
        organization.name.clone(),
        organization.id.to_string(),
        organization.created_at.to_string(),
    ]
}
