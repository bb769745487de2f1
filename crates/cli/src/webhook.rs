//! `orrery webhooks`: lists deliveries, shows their attempts, and redelivers them.

use anyhow::Context as _;
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Shape;
use super::chain::query;
use super::key::understood;
use super::output::{self, Column, Output};
use super::service;
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::ids::ExecutionId;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List deliveries, newest first
    List {
        /// Only deliveries with this status: pending, delivering, delivered or failed
        #[arg(long, value_name = "STATUS")]
        status: Option<String>,
        /// Only deliveries to this host, with or without its port
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
        /// The maximum number of deliveries, up to 100
        #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = super::values::count)]
        limit: u32,
        /// The organization of the deliveries
        #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
        org: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// Show one delivery with every attempt, as JSON
    Show {
        #[command(flatten)]
        delivery: Named,
    },
    /// Redeliver a completed delivery: the same bytes with a new signature
    Redeliver {
        #[command(flatten)]
        delivery: Named,
    },
}

/// The delivery to show or redeliver.
#[derive(Debug, clap::Args)]
pub(super) struct Named {
    /// The id of the prediction or execution that the delivery announces
    #[arg(value_name = "ID", value_parser = super::values::id::<ExecutionId>)]
    execution: ExecutionId,
    /// The organization of the delivery
    #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
    org: String,
}

impl Named {
    fn path(&self, more: &str) -> String {
        let query = query(&[("organization", &self.org)]);
        format!("/admin/webhooks/{}{more}?{query}", self.execution)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Deliveries {
    webhooks: Vec<Delivery>,
    total_count: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Delivery {
    delivery_id: String,
    execution_id: String,
    url: String,
    status: String,
    created_at: String,
    next_attempt_at: Option<String>,
    redeliverable: bool,
}

const COLUMNS: [Column; 6] = [
    Column::Text("EXECUTION"),
    Column::Text("STATUS"),
    Column::Text("CREATED"),
    Column::Text("NEXT ATTEMPT"),
    Column::Text("AGAIN"),
    Column::Text("URL"),
];

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let admin = service::admin(config).await?;
    match command {
        Command::List { status, host, limit, org, shape } => {
            let limit = limit.to_string();
            let mut asked = vec![("organization", org.as_str()), ("limit", &limit)];
            asked.extend(status.as_deref().map(|status| ("status", status)));
            asked.extend(host.as_deref().map(|host| ("host", host)));
            let path = format!("/admin/webhooks?{}", query(&asked));
            let answer: Deliveries = understood(admin.get(&path).await?)?;
            let shown = answer.webhooks.len();
            let output = Output::new(shape.json);
            output.show(&answer, &COLUMNS, answer.webhooks.iter().map(row))?;
            if !output.is_json() && answer.total_count > shown as u64 {
                output::note(&format!("{shown} of {} are shown", answer.total_count));
            }
            Ok(())
        }
        Command::Show { delivery } => output::json(&admin.get(&delivery.path("")).await?),
        Command::Redeliver { delivery } => {
            let answer = admin.post(&delivery.path("/redeliver"), &json!({})).await?;
            let id = answer.get("delivery_id").and_then(Value::as_str);
            let id = id.context("the service answered without a delivery_id")?;
            output::note(&format!("redelivering as {id}"));
            Ok(())
        }
    }
}

fn row(delivery: &Delivery) -> Vec<String> {
    vec![
        delivery.execution_id.clone(),
        delivery.status.clone(),
        delivery.created_at.clone(),
        delivery.next_attempt_at.clone().unwrap_or_default(),
        if delivery.redeliverable { "yes" } else { "" }.to_owned(),
        delivery.url.clone(),
    ]
}
