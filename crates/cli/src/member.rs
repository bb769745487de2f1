//! `orrery owner` and `orrery member`: people with access to the dashboard.

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;

use super::admin::Admin;
use super::chain::query;
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
    /// Print a link that a person can use to join the dashboard as a member
    Invite {
        /// The email address of the person [default: anybody who has the link]
        #[arg(value_name = "EMAIL")]
        email: Option<String>,
        /// The organization to join
        #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
        org: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// Remove a member; keys that the member created remain
    Remove {
        /// The email address of the member
        #[arg(value_name = "EMAIL")]
        email: String,
        /// The organization of the member
        #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
        org: String,
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
    show_link(&understood(answer)?, &org, shape)
}

/// Prints the link. The link is the only text on standard output, so that a script can capture it.
fn show_link(link: &NewLink, org: &str, shape: Shape) -> anyhow::Result<()> {
    if shape.json {
        return output::json(link);
    }
    let (purpose, replaces) = match link.kind {
        LinkKind::Setup => ("sets up the dashboard", true),
        LinkKind::Invitation => ("creates a member for the dashboard", false),
        LinkKind::Reset => ("sets a new password for the Owner", true),
    };
    let replaces = if replaces { ", and replaces every earlier one" } else { "" };
    output::note(&format!(
        "Open this link in a browser: it {purpose} of organization {org}. It works once, until \
         {}{replaces}:",
        link.expires_at
    ));
    output::raw(format!("{}\n", link.url).as_bytes())
}

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let admin = service::admin(config).await?;
    match command {
        Command::List { org, shape } => {
            let answer = list(&admin, org.as_deref()).await?;
            Output::new(shape.json).show(&answer, &COLUMNS, answer.members.iter().map(row))
        }
        Command::Invite { email, org, shape } => {
            let body = json!({"organization": org, "email": email});
            let link = understood(admin.post("/admin/invitations", &body).await?)?;
            show_link(&link, &org, shape)
        }
        Command::Remove { email, org } => {
            let members = list(&admin, Some(&org)).await?.members;
            let found = members.iter().find(|member| member.email.eq_ignore_ascii_case(&email));
            let member = found.with_context(|| {
                format!(
                    "organization {org} has no member {email}; `orrery member list` lists all \
                     members"
                )
            })?;
            let query = query(&[("organization", &org)]);
            admin.delete(&format!("/admin/members/{}?{query}", member.id)).await?;
            output::note(&format!("{} is no longer a member of {org}.", member.email));
            Ok(())
        }
    }
}

async fn list(admin: &Admin, org: Option<&str>) -> anyhow::Result<Members> {
    let query = org.map_or_else(String::new, |org| format!("?{}", query(&[("organization", org)])));
    understood(admin.get(&format!("/admin/members{query}")).await?)
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
