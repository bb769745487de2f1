//! The dashboard's members, sessions, links and API keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Time, pattern};
use orrery_domain::account::{
    ApiKey, KEY_DAYS_MAX, KEY_NAME_MAX, LedgerEntry, Organization as Owner,
};
use orrery_domain::ids::{ExecutionId, KeyId, LinkId, MemberId, OrganizationId};
use orrery_domain::member::{self, EMAIL_MAX, LinkKind, MemberRole, NAME_MAX, PASSWORD_MAX};
use orrery_domain::time::Timestamp;

/// The current login session.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Session")]
pub struct Session {
    /// Whether any organization has an Owner. Until then, nobody can log in.
    pub set_up: bool,
    /// The logged-in member. Null if nobody is logged in.
    pub member: Option<Member>,
    pub organization: Option<Organization>,
    /// The URL of each host. Absent if nobody is logged in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<HostUrl>>,
    /// Whether the agent has a model. Absent if nobody is logged in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<bool>,
    pub version: Option<&'static str>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct HostUrl {
    pub role: &'static str,
    pub url: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MemberOrganization")]
pub struct Organization {
    pub id: OrganizationId,
    pub name: String,
}

impl From<Owner> for Organization {
    fn from(organization: Owner) -> Self {
        Self { id: organization.id, name: organization.name }
    }
}

/// A member of the organization.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Member {
    pub id: MemberId,
    pub name: String,
    pub email: String,
    pub role: MemberRole,
    /// Whether the member can manage API keys.
    pub api_key_access: bool,
    pub created_at: Time,
    pub last_seen_at: Option<Time>,
}

impl From<&member::Member> for Member {
    fn from(member: &member::Member) -> Self {
        Self {
            id: member.id,
            name: member.name.clone(),
            email: member.email.clone(),
            role: member.role,
            api_key_access: member.may_manage_keys(),
            created_at: member.created_at.into(),
            last_seen_at: member.last_seen_at.map(Time::from),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Members {
    pub members: Vec<Member>,
}

/// A change to a member's permissions.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberChange {
    /// Whether the member can manage API keys.
    pub api_key_access: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogIn {
    pub email: String,
    pub password: String,
}

/// A person who joins through an invitation link.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The token: the part of the link after `#`.
    pub token: String,
    #[schemars(length(max = NAME_MAX), transform = pattern::name)]
    pub name: String,
    #[schemars(length(max = EMAIL_MAX), transform = pattern::email)]
    pub email: String,
    /// The password, 12 to 256 bytes.
    #[schemars(length(max = PASSWORD_MAX))]
    pub password: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordReset {
    /// The token: the part of the link after `#`.
    pub token: String,
    /// The password, 12 to 256 bytes.
    #[schemars(length(max = PASSWORD_MAX))]
    pub password: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordChange {
    pub current: String,
    /// The password, 12 to 256 bytes.
    #[schemars(length(max = PASSWORD_MAX))]
    pub password: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkToken {
    /// The token: the part of the link after `#`.
    pub token: String,
}

macro_rules! without_secrets {
    ($($name:ident),+) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )+};
}
without_secrets!(LogIn, Join, PasswordReset, PasswordChange, LinkToken, NewLink, NewKey);

/// A valid link.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenLink")]
pub struct OpenLink {
    pub kind: LinkKind,
    pub organization: String,
    /// The email address of the person whose password is set, or of the invited person if the Owner
    /// entered it.
    pub email: Option<String>,
    pub expires_at: Time,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InvitationRequest {
    /// The email address of the invited person. It only prefills the form that the person sees.
    #[schemars(length(max = EMAIL_MAX), transform = pattern::optional_email)]
    pub email: Option<String>,
}

/// A new link. This is the only response that contains its URL.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct NewLink {
    pub id: LinkId,
    pub kind: LinkKind,
    /// The link's URL. It is for one person and works once.
    pub url: String,
    pub expires_at: Time,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Invitation {
    pub id: LinkId,
    pub email: Option<String>,
    pub created_at: Time,
    pub expires_at: Time,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Invitations {
    pub invitations: Vec<Invitation>,
}

impl From<&member::Link> for Invitation {
    fn from(link: &member::Link) -> Self {
        Self {
            id: link.id,
            email: link.email.clone(),
            created_at: link.created_at.into(),
            expires_at: link.expires_at.into(),
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    /// A name for the key.
    #[schemars(length(max = KEY_NAME_MAX), transform = pattern::name)]
    pub name: String,
    /// The number of days until the key expires. Omit or set to null for a key that never expires.
    #[schemars(range(min = 1, max = KEY_DAYS_MAX))]
    pub expires_in_days: Option<u32>,
}

/// An API key, without the full key.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKey")]
pub struct Key {
    pub id: KeyId,
    /// The first characters of the key.
    pub prefix: String,
    pub name: String,
    pub created_by: String,
    pub created_at: Time,
    /// When the key expires. Null if it never expires.
    pub expires_at: Option<Time>,
    /// When the key was last used, to the minute. Null if it never was.
    pub last_used_at: Option<Time>,
}

impl Key {
    #[must_use]
    pub fn of(key: &ApiKey, last_use: Option<Timestamp>) -> Self {
        Self {
            id: key.id,
            prefix: key.prefix.clone(),
            name: key.name.clone(),
            created_by: key.created_by.clone(),
            created_at: key.created_at.into(),
            expires_at: key.expires_at.map(Time::from),
            last_used_at: last_use.map(Time::from),
        }
    }
}

/// A new API key. This is the only response that contains the full key.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "NewApiKey")]
pub struct NewKey {
    #[serde(flatten)]
    pub described: Key,
    /// The full key. It is shown only once.
    pub key: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKeys")]
pub struct Keys {
    pub keys: Vec<Key>,
}

/// An entry of the organization's audit log.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditEvent")]
pub struct AuditEvent {
    pub at: Time,
    pub actor: String,
    pub from: String,
    pub action: String,
    pub subject: String,
    /// `ok`, or the reason why the action was refused.
    pub result: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditEvents")]
pub struct AuditEvents {
    pub events: Vec<AuditEvent>,
}

/// A credit to the balance or a charge.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LedgerLine")]
pub struct LedgerLine {
    /// `top_up`, `charge` or `refund`.
    pub kind: &'static str,
    /// The amount in US dollars. Negative for a charge.
    pub amount_usd: f64,
    pub execution_id: Option<ExecutionId>,
    pub created_at: Time,
}

impl From<&LedgerEntry> for LedgerLine {
    fn from(entry: &LedgerEntry) -> Self {
        Self {
            kind: entry.kind.as_str(),
            amount_usd: entry.amount.dollars(),
            execution_id: entry.execution,
            created_at: entry.created_at.into(),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Ledger")]
pub struct Ledger {
    pub entries: Vec<LedgerLine>,
}

/// The cost of one model on one day.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DailyCost")]
pub struct Cost {
    /// The day in UTC, such as `2026-11-21`.
    pub day: String,
    /// The model's slug, or `deleted runs` if the executions are no longer stored.
    pub model: String,
    pub cost_usd: f64,
    /// The number of charges.
    pub charges: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DailyCosts")]
pub struct Costs {
    /// The costs by day, then by model.
    pub costs: Vec<Cost>,
    /// Whether all charges of these days are included. If not, only the latest ones are.
    pub complete: bool,
}

/// A model and its load.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelLoad")]
pub struct ModelLoad {
    pub slug: String,
    pub title: String,
    pub runner: String,
    pub health: String,
    /// Why the model is failing.
    pub reason: Option<String>,
    pub running: usize,
    pub queued: usize,
    pub concurrency: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelLoads")]
pub struct ModelLoads {
    pub models: Vec<ModelLoad>,
}
