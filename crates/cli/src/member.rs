//! `orrery owner` and `orrery member`: people with access to the dashboard.

use clap::Subcommand;
use serde_json::json;

use super::key::understood;
use super::output::{self, Column, Output};
use super::{Shape, service};
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::member::LinkKind;
use orrery_wire::member::NewLink;
use orrery_wire::operator::{Member, Members};

#[derive(Debug, Subcommand)]
pub(super) enum OwnerCommand {
    /// Print a link that sets up the dashboard or, if it has an Owner already, resets the Owner's
    /// password
    Link {
        /// The organization of the dashboard
        #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
        org: String,
        #[command(flatten)]
        shape: Shape,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the members, of one organization or of all
    List {
        #[arg(long, value_name = "ORGANIZATION")]
        org: Option<String>,
        #[command(flatten)]
        shape: Shape,
    },
}

const COLUMNS: [Column; 7] = [
    Column::Text("EMAIL"),
    Column::Text("NAME"),
    Column::Text("ORGANIZATION"),
    Column::Text("ROLE"),
    Column::Text("API KEY ACCESS"),
    Column::Text("CREATED"),
    Column::Text("LAST SEEN"),
];

pub(super) async fn owner(command: OwnerCommand, config: &Config) -> anyhow::Result<()> {
    let OwnerCommand::Link { org, shape } = command;
    let admin = service::admin(config).await?;
    let answer = admin.post("/admin/owner-link", &json!({"organization": org})).await?;
    let link: NewLink = understood(answer)?;
    let output = Output::new(shape.json);
    if output.is_json() {
        return output::json(&link);
    }
    let purpose = match link.kind {
        LinkKind::Setup | LinkKind::Invitation => "sets up the dashboard",
        LinkKind::Reset => "sets a new password for the Owner",
    };
    output::note(&format!(
        "Open this link in a browser: it {purpose} of organization {org}. It works once, until {}, \
         and replaces every earlier one:",
        link.expires_at
    ));
    output::raw(format!("{}\n", link.url).as_bytes())
}

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let Command::List { org, shape } = command;
    let path = org.map_or_else(
        || "/admin/members".to_owned(),
        |name| {
            let mut query = form_urlencoded::Serializer::new(String::new());
            format!("/admin/members?{}", query.append_pair("organization", &name).finish())
        },
    );
    let admin = service::admin(config).await?;
    let answer: Members = understood(admin.get(&path).await?)?;
    Output::new(shape.json).show(&answer, &COLUMNS, answer.members.iter().map(row))
}

fn row(member: &Member) -> Vec<String> {
    vec![
        member.email.clone(),
        member.name.clone(),
        member.organization.clone(),
        member.role.clone(),
        if member.api_key_access { "yes" } else { "no" }.to_owned(),
        member.created_at.to_string(),
        member.last_seen_at.map_or_else(|| "never".to_owned(), |time| time.to_string()),
    ]
}
