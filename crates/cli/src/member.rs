//! `orrery owner` and `orrery member`: people with access to the dashboard.

use anyhow::Context as _;
use clap::{ArgGroup, Subcommand, ValueEnum};
use serde_json::json;

use super::admin::Admin;
use super::chain::query;
use super::key::understood;
use super::output::{self, Column, Output};
use super::{Shape, service};
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::member::LinkKind;
use orrery_wire::member::{GivenRole, MemberChange, NewLink};
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
        /// What the person may do: viewers read, operators also run and repeat, editors also change
        #[arg(long, value_enum, default_value_t = Role::Editor)]
        role: Role,
        /// The organization to join
        #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
        org: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// Change what a member may do
    #[command(group = ArgGroup::new("change").required(true).multiple(true))]
    Update {
        /// The email address of the member
        #[arg(value_name = "EMAIL")]
        email: String,
        /// What the member may do: viewers read, operators also run and repeat, editors also change
        #[arg(long, value_enum, group = "change")]
        role: Option<Role>,
        /// Whether the member can create and delete API keys
        #[arg(long, value_name = "BOOL", group = "change")]
        api_key_access: Option<bool>,
        /// The organization of the member
        #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
        org: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// Remove the second factor of a member who has lost the device and the recovery codes
    ResetSecondFactor {
        /// The email address of the member
        #[arg(value_name = "EMAIL")]
        email: String,
        /// The organization of the member
        #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
        org: String,
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

/// A role that a member other than the Owner can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Role {
    Editor,
    Operator,
    Viewer,
}

impl From<Role> for GivenRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Editor => Self::Editor,
            Role::Operator => Self::Operator,
            Role::Viewer => Self::Viewer,
        }
    }
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
        Command::Invite { email, role, org, shape } => {
            let role = GivenRole::from(role);
            let body = json!({"organization": org, "email": email, "role": role});
            let link = understood(admin.post("/admin/invitations", &body).await?)?;
            show_link(&link, &org, shape)
        }
        Command::Update { email, role, api_key_access, org, shape } => {
            let (_, path) = find(&admin, &email, &org, "").await?;
            let change = MemberChange { role: role.map(GivenRole::from), api_key_access };
            let member: Member = understood(admin.patch(&path, &json!(change)).await?)?;
            Output::new(shape.json).show(&member, &COLUMNS, [row(&member)])
        }
        Command::ResetSecondFactor { email, org } => {
            let (member, path) = find(&admin, &email, &org, "/totp").await?;
            admin.delete(&path).await?;
            output::note(&format!("{} logs in with the password alone.", member.email));
            Ok(())
        }
        Command::Remove { email, org } => {
            let (member, path) = find(&admin, &email, &org, "").await?;
            admin.delete(&path).await?;
            output::note(&format!("{} is no longer a member of {org}.", member.email));
            Ok(())
        }
    }
}

/// Returns a member and the path of the member's route that ends with `end`.
async fn find(
    admin: &Admin,
    email: &str,
    org: &str,
    end: &str,
) -> anyhow::Result<(Member, String)> {
    let members = list(admin, Some(org)).await?.members;
    let found = members.into_iter().find(|member| member.email.eq_ignore_ascii_case(email));
    let member = found.with_context(|| {
        format!("organization {org} has no member {email}; `orrery member list` lists all members")
    })?;
    let path = format!("/admin/members/{}{end}?{}", member.id, query(&[("organization", org)]));
    Ok((member, path))
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
