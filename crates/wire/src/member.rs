//! The dashboard's members, sessions, links and API keys.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::key_policy::{KeyPolicy, KeyPolicyChange};
use super::model::{ModelLoadState, ModelWorkers};
use super::{Time, pattern};
use orrery_domain::account::{
    ApiKey, GRACE_SECONDS_MAX, KEY_DAYS_MAX, KEY_NAME_MAX, LedgerEntry, Organization as Owner,
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
    /// Whether the member must set up a second factor before anything else.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(default)]
    pub needs_second_factor: bool,
    /// The label of the button for logging in through the identity provider. Absent if none is
    /// configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sign_on: Option<String>,
    /// The member's organization. Null if nobody is logged in.
    pub organization: Option<Organization>,
    /// The URL of each host. Absent if nobody is logged in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<HostUrl>>,
    /// Whether the agent has a model. Absent if nobody is logged in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<bool>,
    /// The version of the program. Null if nobody is logged in.
    pub version: Option<&'static str>,
}

/// The URL of a host.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HostUrl {
    /// The role of the host.
    #[schemars(extend("enum" = super::service::ROLES))]
    pub role: &'static str,
    /// The public URL of the host.
    pub url: String,
}

/// The organization of a member.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MemberOrganization")]
pub struct Organization {
    /// The ID of the organization.
    pub id: OrganizationId,
    /// The name of the organization.
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
    /// The ID of the member.
    pub id: MemberId,
    /// The member's name.
    pub name: String,
    /// The member's email address, which is used to log in.
    pub email: String,
    /// What the member may do.
    pub role: MemberRole,
    /// Whether the member can manage API keys.
    pub api_key_access: bool,
    /// Whether log-ins of the member need a code.
    pub second_factor: bool,
    /// Whether the member logs in through the identity provider, whose groups decide the role.
    pub external: bool,
    /// When the member joined.
    pub created_at: Time,
    /// When the member last used the dashboard. Null if never.
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
            second_factor: member.has_second_factor(),
            external: member.identity.is_some(),
            created_at: member.created_at.into(),
            last_seen_at: member.last_seen_at.map(Time::from),
        }
    }
}

/// The members of an organization.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Members {
    /// The members, oldest first.
    pub members: Vec<Member>,
}

/// A role that a member other than the Owner can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GivenRole {
    Editor,
    Operator,
    Viewer,
}

impl From<GivenRole> for MemberRole {
    fn from(role: GivenRole) -> Self {
        match role {
            GivenRole::Editor => Self::Editor,
            GivenRole::Operator => Self::Operator,
            GivenRole::Viewer => Self::Viewer,
        }
    }
}

/// A change to a member's role or permission. Omitted fields do not change.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberChange {
    /// The new role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<GivenRole>,
    /// Whether the member can manage API keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_access: Option<bool>,
}

/// A login with email address and password.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogIn {
    /// The member's email address.
    pub email: String,
    /// The member's password.
    pub password: String,
    /// The code of the member's authenticator app, or a recovery code. Needed if the member has a
    /// second factor; without it, the response is 401 with the details `{"code": "required"}`.
    pub code: Option<String>,
}

/// A new second factor. This is the only response with its secret and its recovery codes.
#[derive(Serialize, JsonSchema)]
pub struct NewSecondFactor {
    /// The secret in base32, to type into an authenticator app.
    pub secret: String,
    /// The `otpauth:` URL of the secret.
    pub url: String,
    /// The URL as a QR code: a `data:` URL of an SVG image.
    pub qr_code: String,
    /// Codes for the case that the device is lost. Each works once instead of a code of the app.
    pub recovery_codes: Vec<String>,
}

/// A code of an authenticator app.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecondFactorCode {
    /// The present code, six digits.
    pub code: String,
}

/// The member's password, to remove the second factor.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordProof {
    /// The member's password.
    pub password: String,
}

/// One of the member's sessions.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OpenSession {
    /// The ID of the session, which does not open it.
    pub id: String,
    /// The browser, as it names itself. Null if unknown.
    pub device: Option<String>,
    /// The address from which the session was opened. Null if unknown.
    pub address: Option<IpAddr>,
    /// When the session was opened.
    pub created_at: Time,
    /// When the session was last used.
    pub last_seen_at: Time,
    /// Whether this is the session of the request.
    pub current: bool,
}

/// The member's open sessions.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OpenSessions {
    /// The sessions, the last used first.
    pub sessions: Vec<OpenSession>,
}

/// A person who joins through an invitation link.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The token: the part of the link after `#`.
    pub token: String,
    /// The person's name.
    #[schemars(length(max = NAME_MAX), transform = pattern::name)]
    pub name: String,
    /// The person's email address, which is used to log in.
    #[schemars(length(max = EMAIL_MAX), transform = pattern::email)]
    pub email: String,
    /// The password, 12 to 256 bytes.
    #[schemars(length(max = PASSWORD_MAX))]
    pub password: String,
}

/// A new password, set with a link.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordReset {
    /// The token: the part of the link after `#`.
    pub token: String,
    /// The password, 12 to 256 bytes.
    #[schemars(length(max = PASSWORD_MAX))]
    pub password: String,
    /// As for a log-in: needed if the member has a second factor.
    pub code: Option<String>,
}

/// A new password of the logged-in member.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordChange {
    /// The current password.
    pub current: String,
    /// The password, 12 to 256 bytes.
    #[schemars(length(max = PASSWORD_MAX))]
    pub password: String,
}

/// The token of a link.
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
without_secrets!(
    NewSecondFactor,
    SecondFactorCode,
    PasswordProof,
    LogIn,
    Join,
    PasswordReset,
    PasswordChange,
    LinkToken,
    NewLink,
    NewKey
);

/// A valid link.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OpenLink")]
pub struct OpenLink {
    /// What the link is for.
    pub kind: LinkKind,
    /// The name of the organization.
    pub organization: String,
    /// The email address of the person whose password is set, or of the invited person if the Owner
    /// entered it.
    pub email: Option<String>,
    /// When the link expires.
    pub expires_at: Time,
}

/// A person to invite.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InvitationRequest {
    /// The email address of the invited person. The address only prefills the form that the person
    /// sees.
    #[schemars(length(max = EMAIL_MAX), transform = pattern::optional_email)]
    pub email: Option<String>,
    /// The role of the person. Defaults to `editor`.
    pub role: Option<GivenRole>,
}

/// A new link. This is the only response that contains its URL.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct NewLink {
    /// The ID of the link.
    pub id: LinkId,
    /// What the link is for.
    pub kind: LinkKind,
    /// The link's URL, which is for one person and works once.
    pub url: String,
    /// When the link expires.
    pub expires_at: Time,
}

/// An open invitation, without its link.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Invitation {
    /// The ID of the invitation.
    pub id: LinkId,
    /// The email address that the Owner entered.
    pub email: Option<String>,
    /// The role that the person gets.
    pub role: MemberRole,
    /// When the invitation was created.
    pub created_at: Time,
    /// When the invitation expires.
    pub expires_at: Time,
}

/// The open invitations of an organization.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Invitations {
    /// The invitations, oldest first.
    pub invitations: Vec<Invitation>,
}

impl From<&member::Link> for Invitation {
    fn from(link: &member::Link) -> Self {
        Self {
            id: link.id,
            email: link.email.clone(),
            role: link.role.unwrap_or(MemberRole::Editor),
            created_at: link.created_at.into(),
            expires_at: link.expires_at.into(),
        }
    }
}

/// An API key to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct KeyRequest {
    /// A name for the key.
    #[schemars(length(max = KEY_NAME_MAX), transform = pattern::name)]
    pub name: String,
    /// The number of days until the key expires. Omit or set to null for a key that never expires.
    #[schemars(range(min = 1, max = KEY_DAYS_MAX))]
    pub expires_in_days: Option<u32>,
    #[serde(flatten)]
    pub policy: KeyPolicyChange,
}

/// A new text for an API key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRotation {
    /// For how many seconds the previous text still works. Defaults to 0.
    #[schemars(range(max = GRACE_SECONDS_MAX))]
    pub grace_seconds: Option<u32>,
}

/// An API key, without the full key.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKey")]
pub struct Key {
    /// The ID of the key.
    pub id: KeyId,
    /// The first characters of the key.
    pub prefix: String,
    /// The name of the key.
    pub name: String,
    /// The member or the operator who created the key.
    pub created_by: String,
    /// When the key was created.
    pub created_at: Time,
    /// When the key expires. Null if the key never expires.
    pub expires_at: Option<Time>,
    /// When the key was last used, to the minute. Null if the key was never used.
    pub last_used_at: Option<Time>,
    #[serde(flatten)]
    pub policy: KeyPolicy,
}

impl Key {
    #[must_use]
    pub fn of(key: &ApiKey, last_use: Option<Timestamp>, policy: KeyPolicy) -> Self {
        Self {
            id: key.id,
            prefix: key.prefix.clone(),
            name: key.name.clone(),
            created_by: key.created_by.clone(),
            created_at: key.created_at.into(),
            expires_at: key.expires_at.map(Time::from),
            last_used_at: last_use.map(Time::from),
            policy,
        }
    }
}

/// A new API key. This is the only response that contains the full key.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "NewApiKey")]
pub struct NewKey {
    #[serde(flatten)]
    pub described: Key,
    /// The full key, which is shown only once.
    pub key: String,
}

/// The API keys of an organization.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKeys")]
pub struct Keys {
    /// The keys, oldest first.
    pub keys: Vec<Key>,
}

/// An entry of the organization's audit log.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditEvent")]
pub struct AuditEvent {
    /// When the action happened.
    pub at: Time,
    /// Who performed the action.
    pub actor: String,
    /// Where the request came from.
    pub from: String,
    /// What was done, such as `key.create`.
    pub action: String,
    /// The object of the action.
    pub subject: String,
    /// `ok`, or the reason why the action was refused.
    pub result: String,
}

/// Entries of the organization's audit log.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditEvents")]
pub struct AuditEvents {
    /// The entries, newest first.
    pub events: Vec<AuditEvent>,
}

/// A credit to the balance or a charge.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LedgerLine")]
pub struct LedgerLine {
    /// What the entry is: `top_up`, `charge` or `refund`.
    #[schemars(extend("enum" = ["top_up", "charge", "refund"]))]
    pub kind: &'static str,
    /// The amount in US dollars. Negative for a charge.
    pub amount_usd: f64,
    /// The execution that was charged. Null for a top-up.
    pub execution_id: Option<ExecutionId>,
    /// When the entry was written.
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

/// The newest entries of the organization's ledger.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Ledger")]
pub struct Ledger {
    /// The entries, newest first.
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
    /// The sum of the charges in US dollars.
    pub cost_usd: f64,
    /// The number of charges.
    pub charges: u64,
}

/// The costs of the last days.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DailyCosts")]
pub struct Costs {
    /// The costs by day, then by model.
    pub costs: Vec<Cost>,
    /// Whether all charges of these days are included. If not, only the latest charges are
    /// included.
    pub complete: bool,
}

/// A model and its load.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelLoad")]
pub struct ModelLoad {
    /// The slug of the model.
    pub slug: String,
    /// The title of the model.
    pub title: String,
    /// The runner of the model, such as `command`.
    pub runner: String,
    /// Whether the model works.
    #[schemars(extend("enum" = ["starting", "ok", "failing"]))]
    pub health: String,
    /// Why the model is failing.
    pub reason: Option<String>,
    /// The number of running calls.
    pub running: usize,
    /// The number of queued calls.
    pub queued: usize,
    /// The maximum number of running calls.
    pub concurrency: usize,
    /// The state of the server that this service starts for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ModelLoadState>,
    /// The numbers of jobs and workers. Absent unless the model's runner is `pull`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<ModelWorkers>,
}

/// The models with their load.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelLoads")]
pub struct ModelLoads {
    /// The models, sorted by slug.
    pub models: Vec<ModelLoad>,
    /// The upstreams of the chat router, in the order of the configuration.
    pub upstreams: Vec<UpstreamLoad>,
}

/// An upstream of the chat router.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UpstreamLoad")]
pub struct UpstreamLoad {
    /// The name, or `default` for that of `router.upstream_url`.
    pub name: String,
    /// `openai`, `anthropic` or `azure`.
    pub kind: &'static str,
    /// `used`, `tried` (one request probes whether it works again) or `left out`.
    pub state: &'static str,
    /// The number of keys.
    pub keys: usize,
    /// Keys that rest, because the upstream limits or rejects them.
    pub resting_keys: usize,
    /// The total spend of all organizations on this upstream since the service started, in US
    /// dollars. Only for admin keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spend: Option<f64>,
}
