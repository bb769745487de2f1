//! `orrery balance`: shows and tops up the balance of an organization, and lists its ledger.

use clap::Subcommand;
use serde_json::json;

use super::Shape;
use super::chain::query;
use super::key::understood;
use super::output::{self, Column, Output};
use super::{service, values};
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_wire::operator::{Balance, Ledger};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show the balance of an organization, in US dollars
    Show {
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        shape: Shape,
    },
    /// Add credit to the balance
    TopUp {
        /// The amount in US dollars, with up to six decimal places
        #[arg(long, value_name = "USD", value_parser = values::dollars, allow_negative_numbers = true)]
        amount: f64,
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        shape: Shape,
    },
    /// List the ledger entries, newest first; they add up to the balance
    Ledger {
        /// The maximum number of entries
        #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = values::count)]
        limit: u32,
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        shape: Shape,
    },
}

/// The organization that owns the balance.
#[derive(Debug, clap::Args)]
pub(super) struct Owner {
    /// The organization of the balance
    #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
    org: String,
}

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let admin = service::admin(config).await?;
    match command {
        Command::Show { owner, shape } => {
            let query = query(&[("organization", &owner.org)]);
            show(&understood(admin.get(&format!("/admin/balance?{query}")).await?)?, shape)
        }
        Command::TopUp { amount, owner, shape } => {
            let body = json!({"organization": owner.org, "amount_usd": amount});
            show(&understood(admin.post("/admin/balance/top-up", &body).await?)?, shape)
        }
        Command::Ledger { limit, owner, shape } => {
            let limit = limit.to_string();
            let query = query(&[("organization", &owner.org), ("limit", &limit)]);
            let answer = admin.get(&format!("/admin/balance/ledger?{query}")).await?;
            let ledger: Ledger = understood(answer)?;
            let columns = [
                Column::Text("WHEN"),
                Column::Text("KIND"),
                Column::Number("USD"),
                Column::Text("EXECUTION"),
            ];
            let rows = ledger.entries.iter().map(|entry| {
                vec![
                    entry.created_at.to_string(),
                    entry.kind.as_str().to_owned(),
                    format!("{:.6}", entry.amount_usd),
                    entry.execution_id.map(|id| id.to_string()).unwrap_or_default(),
                ]
            });
            Output::new(shape.json).show(&ledger, &columns, rows)
        }
    }
}

fn show(balance: &Balance, shape: Shape) -> anyhow::Result<()> {
    if shape.json {
        return output::json(balance);
    }
    output::line(&format!("{}: {:.6} USD", balance.organization, balance.balance_usd))
}
