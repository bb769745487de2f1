//! `orrery secret`: sets, lists and deletes named secrets. A value is read from standard input and
//! never printed.

use std::io::{IsTerminal as _, Read as _};

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;

use super::chain::query;
use super::key::understood;
use super::output::{self, Column, Output};
use super::{Shape, service};
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::secret::VALUE_BYTES_MAX;
use orrery_wire::operator::{Secret, Secrets};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Set the value of a secret, read from standard input; one trailing line break is dropped
    Set {
        /// The name: 1 to 64 characters of a-z A-Z 0-9 _ -
        #[arg(value_name = "NAME")]
        name: String,
        /// The organization of the secret
        #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
        org: String,
    },
    /// List the names of secrets, of one organization or of all; values are never shown
    List {
        #[arg(long, value_name = "ORGANIZATION")]
        org: Option<String>,
        #[command(flatten)]
        shape: Shape,
    },
    /// Delete a secret; steps that refer to it fail from then on
    Delete {
        #[arg(value_name = "NAME")]
        name: String,
        /// The organization of the secret
        #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
        org: String,
    },
}

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    match command {
        Command::Set { name, org } => {
            let value = read_value()?;
            let admin = service::admin(config).await?;
            let body = json!({"organization": org, "name": name, "value": value});
            let secret: Secret = understood(admin.put("/admin/secrets", &body).await?)?;
            output::note(&format!(
                "Secret {} of organization {} is set: steps refer to it as {{{{secrets.{}}}}}.",
                secret.name, secret.organization, secret.name
            ));
        }
        Command::List { org, shape } => {
            let path = match &org {
                Some(org) => format!("/admin/secrets?{}", query(&[("organization", org)])),
                None => "/admin/secrets".to_owned(),
            };
            let admin = service::admin(config).await?;
            let answer: Secrets = understood(admin.get(&path).await?)?;
            let columns = [
                Column::Text("NAME"),
                Column::Text("ORGANIZATION"),
                Column::Text("CREATED"),
                Column::Text("SET"),
            ];
            let rows = answer.secrets.iter().map(|secret| {
                vec![
                    secret.name.clone(),
                    secret.organization.clone(),
                    secret.created_at.to_string(),
                    secret.updated_at.to_string(),
                ]
            });
            Output::new(shape.json).show(&answer, &columns, rows)?;
        }
        Command::Delete { name, org } => {
            let admin = service::admin(config).await?;
            let query = query(&[("organization", &org), ("name", &name)]);
            admin.delete(&format!("/admin/secrets?{query}")).await?;
            output::note(&format!("Secret {name} of organization {org} is deleted."));
        }
    }
    Ok(())
}

/// Reads the value from standard input. A value that is too long is truncated just above the limit,
/// so that the service still rejects it.
fn read_value() -> anyhow::Result<String> {
    let input = std::io::stdin();
    if input.is_terminal() {
        output::note("Enter the value, then press Ctrl-D.");
    }
    let most = u64::try_from(VALUE_BYTES_MAX)?.saturating_add(3);
    let mut value = String::new();
    input.lock().take(most).read_to_string(&mut value).context("standard input is not text")?;
    if value.ends_with('\n') {
        value.pop();
        if value.ends_with('\r') {
            value.pop();
        }
    }
    Ok(value)
}
