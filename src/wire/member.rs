//! What the dashboard reads and writes of members, sessions, links and API keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Time;
use crate::domain::account::{ApiKey, LedgerEntry, Organization as Owner};
use crate::domain::ids::{ExecutionId, KeyId, LinkId, MemberId, OrganizationId};
use crate::domain::member::{self, LinkKind, MemberRole};
use crate::domain::time::Timestamp;

/// Who is logged in.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Session")]
pub struct Session {
    /// Whether anybody could log in: false until an organization has an Owner.
    pub set_up: bool,
    /// Null where nobody is logged in.
    pub member: Option<Member>,
    pub organization: Option<Organization>,
    /// Where clients reach each host; absent where nobody is logged in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<HostUrl>>,
    /// Whether the agent has a model; absent where nobody is logged in.
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
    /// The permission 'Can manage API keys'.
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

/// The permissions of a member.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberChange {
    /// The permission 'Can manage API keys'.
    pub api_key_access: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogIn {
    pub email: String,
    pub password: String,
}

/// A person who joins, by a link.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// What follows `#` in the link.
    pub token: String,
    pub name: String,
    pub email: String,
    /// 12 to 256 bytes.
    pub password: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordReset {
    /// What follows `#` in the link.
    pub token: String,
    /// 12 to 256 bytes.
    pub password: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordChange {
    pub current: String,
    /// 12 to 256 bytes.
    pub password: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkToken {
    /// What follows `#` in the link.
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

/// A link that can be used.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenLink")]
pub struct OpenLink {
    pub kind: LinkKind,
    pub organization: String,
    /// Whose password is set, or who is invited where the Owner said so.
    pub email: Option<String>,
    pub expires_at: Time,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InvitationRequest {
    /// Who is invited; a note, which fills in the form of the person who opens the link.
    pub email: Option<String>,
}

/// A link that was just made: the only answer with its URL.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct NewLink {
    pub id: LinkId,
    pub kind: LinkKind,
    /// For one person, to be opened once.
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
    /// What the key is for.
    pub name: String,
    /// Days until the key expires; absent or null: never.
    #[schemars(range(min = 1, max = 3650))]
    pub expires_in_days: Option<u32>,
}

/// An API key, without its secret.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKey")]
pub struct Key {
    pub id: KeyId,
    /// The first characters of the key.
    pub prefix: String,
    pub name: String,
    pub created_by: String,
    pub created_at: Time,
    /// Null: it does not expire.
    pub expires_at: Option<Time>,
    /// To the minute; null when it was never used.
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

/// A new API key: the only answer with a full key.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "NewApiKey")]
pub struct NewKey {
    #[serde(flatten)]
    pub described: Key,
    /// Shown this once.
    pub key: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKeys")]
pub struct Keys {
    pub keys: Vec<Key>,
}

/// An act in the audit log of the organization.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditEvent")]
pub struct AuditEvent {
    pub at: Time,
    pub actor: String,
    pub from: String,
    pub action: String,
    pub subject: String,
    /// `ok`, or why it was refused.
    pub result: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditEvents")]
pub struct AuditEvents {
    pub events: Vec<AuditEvent>,
}

/// What was added to the balance or taken from it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LedgerLine")]
pub struct LedgerLine {
    /// `top_up`, `charge` or `refund`.
    pub kind: &'static str,
    /// US dollars; negative for a charge.
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

/// What one model cost on one day.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DailyCost")]
pub struct Cost {
    /// The day in UTC, such as `2026-11-21`.
    pub day: String,
    /// The model's slug; `deleted runs` where the run is no longer stored.
    pub model: String,
    pub cost_usd: f64,
    /// How many charges that is.
    pub charges: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DailyCosts")]
pub struct Costs {
    /// By day, then by model.
    pub costs: Vec<Cost>,
    /// Whether every charge of these days is in it; otherwise the newest ones are.
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
    /// Why it is failing.
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
