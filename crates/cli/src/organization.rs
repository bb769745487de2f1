//! `orrery org`: creates, lists, limits, renames and deletes organizations.

use anyhow::bail;
use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::admin::segment;
use super::key::understood;
use super::output::{self, Column, Output};
use super::{Shape, values};
use orrery_config::Config;
use orrery_wire::limits::{Budget, Limits};
use orrery_wire::operator::{Contents, Organization, Organizations};

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
    /// Change the limits of an organization; omitted limits stay unchanged, `none` removes a limit
    Limit {
        /// The name of the organization
        #[arg(value_name = "ORGANIZATION")]
        name: String,
        #[command(flatten)]
        limits: Box<LimitArgs>,
        #[command(flatten)]
        shape: Shape,
    },
    /// Rename an organization; its id, keys and data stay
    Rename {
        /// The current name of the organization
        #[arg(value_name = "ORGANIZATION")]
        name: String,
        /// The new name: 1 to 64 characters of a-z, 0-9 and -
        #[arg(value_name = "NEW_NAME")]
        new_name: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// Delete an organization with all of its data; without --yes, only show what would be deleted
    Delete {
        /// The name of the organization
        #[arg(value_name = "ORGANIZATION")]
        name: String,
        /// Delete it. This cannot be undone
        #[arg(long)]
        yes: bool,
        /// Cancel unfinished executions, instead of refusing the deletion
        #[arg(long, requires = "yes")]
        force: bool,
        #[command(flatten)]
        shape: Shape,
    },
}

/// The limits to change.
#[derive(Debug, clap::Args)]
pub(super) struct LimitArgs {
    /// Requests per second, over all keys of the organization
    #[arg(long, value_name = "NUMBER", value_parser = values::limit)]
    requests_per_second: Option<values::Limit>,
    /// Executions that run at the same time; further ones wait
    #[arg(long, value_name = "NUMBER", value_parser = values::limit)]
    running: Option<values::Limit>,
    /// Unfinished executions that are not running (queued, suspended); further ones are rejected
    #[arg(long, value_name = "NUMBER", value_parser = values::limit)]
    queued: Option<values::Limit>,
    /// Total size of files, in bytes or with a unit, such as 10GB or 512MiB; further files are
    /// rejected
    #[arg(long, value_name = "BYTES", value_parser = values::size_limit)]
    storage: Option<values::Limit>,
    /// Maximum charges in a calendar month (UTC), in US dollars; further paid work is rejected
    #[arg(long, value_name = "USD", value_parser = values::budget_limit)]
    monthly_budget: Option<values::BudgetLimit>,
}

impl LimitArgs {
    /// Returns the given limits as the fields of a request.
    fn change(self) -> Map<String, Value> {
        let given = [
            ("requests_per_second", self.requests_per_second),
            ("running", self.running),
            ("queued", self.queued),
            ("storage_bytes", self.storage),
        ];
        let given = given
            .into_iter()
            .filter_map(|(field, limit)| limit.map(|limit| (field.to_owned(), json!(limit.0))));
        let budget = self.monthly_budget;
        let budget = budget.map(|budget| ("monthly_budget_usd".to_owned(), json!(budget.0)));
        given.chain(budget).collect()
    }
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
        Command::Limit { name, limits, shape } => {
            let change = limits.change();
            if change.is_empty() {
                bail!("name a limit, such as --running 4 or --queued none");
            }
            let path = format!("{}/limits", path_of(&name));
            let changed: Organization = understood(admin.put(&path, &change.into()).await?)?;
            show_limits(&changed, shape)
        }
        Command::Rename { name, new_name, shape } => {
            let path = format!("{}/rename", path_of(&name));
            let answer = admin.post(&path, &json!({"name": new_name})).await?;
            let renamed: Organization = understood(answer)?;
            Output::new(shape.json).show(&renamed, &COLUMNS, [row(&renamed)])
        }
        Command::Delete { name, yes: false, shape, .. } => {
            let path = format!("{}/contents", path_of(&name));
            show_contents(&understood(admin.get(&path).await?)?, shape)?;
            output::note(&format!(
                "Nothing was deleted. To delete the organization: orrery org delete {name} --yes"
            ));
            Ok(())
        }
        Command::Delete { name, force, shape, .. } => {
            let path = format!("{}?force={force}", path_of(&name));
            show_contents(&understood(admin.delete_with_answer(&path).await?)?, shape)?;
            output::note(&format!(
                "Organization {name} is deleted: its keys and members have lost access. The service \
                 erases its data in the background, and continues after a restart."
            ));
            Ok(())
        }
    }
}

fn show_contents(contents: &Contents, shape: Shape) -> anyhow::Result<()> {
    let rows = [
        ("API keys", contents.keys.to_string()),
        ("members", contents.members.to_string()),
        ("workflows", contents.workflows.to_string()),
        ("schedules", contents.schedules.to_string()),
        ("fallback chains", contents.chains.to_string()),
        ("secrets", contents.secrets.to_string()),
        ("webhook endpoints", contents.webhook_endpoints.to_string()),
        ("unfinished executions", contents.unfinished_executions.to_string()),
        ("files", contents.files.to_string()),
        ("bytes of files", contents.file_bytes.to_string()),
        ("balance in USD", format!("{:.6}", contents.balance_usd)),
        ("executions, deliveries, ledger, agent sessions, responses", "all".to_owned()),
    ];
    let rows = rows.map(|(what, count)| vec![what.to_owned(), count]);
    let columns = [Column::Text("DATA"), Column::Number("COUNT")];
    Output::new(shape.json).show(contents, &columns, rows)
}

fn path_of(name: &str) -> String {
    format!("/admin/organizations/{}", segment(name))
}

fn show_limits(organization: &Organization, shape: Shape) -> anyhow::Result<()> {
    let Limits { requests_per_second, running, queued, storage_bytes, monthly_budget_usd } =
        organization.limits;
    let rows = [
        ("requests per second", requests_per_second),
        ("running executions", running),
        ("queued executions", queued),
        ("bytes of files", storage_bytes),
    ];
    let or = |number: Option<u64>, none: &str| number.map_or(none.to_owned(), |n| n.to_string());
    let rows = rows
        .map(|(name, limit)| vec![name.to_owned(), or(limit.limit, "none"), or(limit.used, "-")]);
    let Budget { limit, used } = monthly_budget_usd;
    let limit = limit.map_or("none".to_owned(), |limit| format!("{limit:.6}"));
    let budget = vec!["USD this month".to_owned(), limit, format!("{used:.6}")];
    let rows = rows.into_iter().chain([budget]);
    Output::new(shape.json).show(organization, &LIMIT_COLUMNS, rows)
}

fn row(organization: &Organization) -> Vec<String> {
    vec![
        organization.name.clone(),
        organization.id.to_string(),
        organization.created_at.to_string(),
    ]
}
