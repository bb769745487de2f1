//! The responses of the control socket. The service serializes these types, and the command line of
//! the same binary parses them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Time;
use super::key_policy::KeyPolicy;
use super::limits::Limits;
use super::model::{ModelLoadState, ModelWorkers};
use orrery_domain::account::{ApiKey, EntryKind, LedgerEntry, Organization as Owner};
use orrery_domain::chain;
use orrery_domain::classify::ErrorClass;
use orrery_domain::ids::{EntryId, ExecutionId, KeyId, MemberId, OrganizationId};
use orrery_domain::member;
use orrery_domain::money::Usd;
use orrery_domain::secret;
use orrery_domain::time::Timestamp;

/// An API key, without the full key.
#[derive(Debug, Serialize, Deserialize)]
pub struct Key {
    pub id: KeyId,
    /// The first characters of the key.
    pub prefix: String,
    pub name: String,
    /// The organization's name, as in the other types. Empty for an admin key.
    pub organization: String,
    #[serde(default, skip_serializing_if = "is_false")]
    pub admin: bool,
    pub created_by: String,
    pub created_at: Time,
    /// When the key expires. Null if the key never expires.
    pub expires_at: Option<Time>,
}

/// A new API key. This is the only response that contains the full key.
#[derive(Debug, Serialize, Deserialize)]
pub struct NewKey {
    #[serde(flatten)]
    pub described: Key,
    pub key: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ListedKey {
    #[serde(flatten)]
    pub described: Key,
    /// When the key was last used, to the minute. Null if no use has been recorded.
    pub last_used_at: Option<Time>,
    #[serde(flatten)]
    pub policy: KeyPolicy,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Keys {
    pub keys: Vec<ListedKey>,
}

/// A member of an organization.
#[derive(Debug, Serialize, Deserialize)]
pub struct Member {
    pub id: MemberId,
    pub organization: String,
    pub name: String,
    pub email: String,
    /// `owner`, `editor`, `operator` or `viewer`.
    pub role: String,
    /// Whether the member can manage API keys.
    pub api_key_access: bool,
    pub created_at: Time,
    pub last_seen_at: Option<Time>,
}

/// The data that is deleted with an organization.
#[derive(Debug, Serialize, Deserialize)]
pub struct Contents {
    pub organization: String,
    pub keys: u64,
    pub members: u64,
    pub workflows: u64,
    pub schedules: u64,
    pub chains: u64,
    pub secrets: u64,
    pub webhook_endpoints: u64,
    pub unfinished_executions: u64,
    pub files: u64,
    pub file_bytes: u64,
    pub balance_usd: f64,
    /// Whether the organization is deleted.
    pub deleted: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Members {
    pub members: Vec<Member>,
}

impl Member {
    #[must_use]
    pub fn of(member: &member::Member, organization: &Owner) -> Self {
        Self {
            id: member.id,
            organization: organization.name.clone(),
            name: member.name.clone(),
            email: member.email.clone(),
            role: member.role.as_str().to_owned(),
            api_key_access: member.may_manage_keys(),
            created_at: member.created_at.into(),
            last_seen_at: member.last_seen_at.map(Time::from),
        }
    }
}

/// Whether a named secret already has the given value.
#[derive(Debug, Serialize, Deserialize)]
pub struct SecretComparison {
    pub is_same: bool,
}

/// A named secret of an organization, without its value.
#[derive(Debug, Serialize, Deserialize)]
pub struct Secret {
    pub name: String,
    pub organization: String,
    pub created_at: Time,
    pub updated_at: Time,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Secrets {
    pub secrets: Vec<Secret>,
}

impl Secret {
    #[must_use]
    pub fn of(secret: &secret::Secret, organization: &Owner) -> Self {
        Self {
            name: secret.name.clone(),
            organization: organization.name.clone(),
            created_at: secret.created_at.into(),
            updated_at: secret.updated_at.into(),
        }
    }
}

/// An organization with its limits.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Organization {
    /// The ID of the organization.
    pub id: OrganizationId,
    /// The name of the organization.
    pub name: String,
    /// When the organization was created.
    pub created_at: Time,
    /// The limits and their usage.
    #[serde(default)]
    pub limits: Limits,
}

/// The organizations, oldest first.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Organizations {
    /// The organizations.
    pub organizations: Vec<Organization>,
}

/// A model and its load.
#[derive(Debug, Serialize, Deserialize)]
pub struct Model {
    pub slug: String,
    pub title: String,
    pub output_type: String,
    pub runner: String,
    pub health: String,
    /// Why the model is failing.
    pub reason: Option<String>,
    pub running: usize,
    pub queued: usize,
    pub concurrency: usize,
    /// Details of a model that runs on this machine from a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalModel>,
    /// The model's servers, if it has several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// The state of the server that this service starts for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ModelLoadState>,
    /// The numbers of jobs and workers. Absent unless the model's runner is `pull`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<ModelWorkers>,
}

/// A server of a model.
#[derive(Debug, Serialize, Deserialize)]
pub struct Endpoint {
    /// The URL, without user and query.
    pub name: String,
    /// `used`, `starting`, `tried` (one request probes whether it works again) or `left out`.
    pub state: String,
    /// Why the server is out of rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub in_flight: usize,
    pub weight: u32,
    /// The server's own limit on concurrent requests. Absent if the model's limit applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
}

/// A model that runs on this machine from a file.
#[derive(Debug, Serialize, Deserialize)]
pub struct LocalModel {
    pub file_bytes: u64,
    pub quantization: Option<String>,
    /// Context length in tokens, shared by all concurrent answers. Absent unless it is a language
    /// model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// Memory use in bytes. Null if the model is not loaded.
    pub resident_bytes: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Models {
    pub models: Vec<Model>,
    /// The upstreams of the chat router.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub upstreams: Vec<Upstream>,
}

/// An upstream of the chat router.
#[derive(Debug, Serialize, Deserialize)]
pub struct Upstream {
    /// The name, or `default` for that of `router.upstream_url`.
    pub name: String,
    /// `openai`, `anthropic` or `azure`.
    pub kind: String,
    /// The URL, without user and query.
    pub url: String,
    /// `used`, `tried` (one request probes whether it works again) or `left out`.
    pub state: String,
    /// Why the upstream is out of rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why its list of models cannot be fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_error: Option<String>,
    pub priority: u32,
    pub weight: u32,
    pub in_flight: usize,
    pub keys: usize,
    /// Keys that rest, because the upstream limits or rejects them.
    pub resting_keys: usize,
    /// Answers and failed attempts since the start of the service.
    pub answered: u64,
    pub failed: u64,
    /// What callers have paid for the answers since the start of the service, in US dollars.
    pub spend: f64,
}

/// The result of a test run, which is not stored.
#[derive(Debug, Serialize, Deserialize)]
pub struct ModelTest {
    /// Either `success` or `error`.
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_classification: Option<ErrorClass>,
    pub logs: Option<String>,
    /// The last part of what the model's processes wrote to standard error.
    pub stderr: Option<String>,
    pub seconds: f64,
}

/// The progress of a test run, and its result.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelTestEvent {
    /// Log output of the model.
    Log(String),
    /// Partial output.
    Output(Value),
    End(ModelTest),
}

/// The result of reloading the configuration, the manifests and the certificates.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reloaded {
    /// The number of models in use.
    pub loaded: usize,
    /// An error message for each invalid file. The last valid version of the file stays in use.
    pub kept: Vec<String>,
    /// The slugs of models that were removed.
    pub removed: Vec<String>,
    /// Configuration sections whose changes are in effect.
    pub applied: Vec<String>,
    /// Configuration sections whose changes need a restart.
    pub needs_restart: Vec<String>,
}

/// The result of testing alerts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AlertTest {
    /// The receiver: scheme, host and port of its URL.
    pub to: String,
    /// The status of the receiver's answer, if there is one.
    pub status: Option<u16>,
    /// The first line of the receiver's answer.
    pub answer: Option<String>,
    /// Why the message was not delivered. Null if the message was delivered.
    pub error: Option<String>,
}

/// A fallback chain.
#[derive(Debug, Serialize, Deserialize)]
pub struct Chain {
    pub organization: String,
    pub model: String,
    pub name: String,
    pub enabled: bool,
    pub entries: Vec<chain::Entry>,
    pub created_at: Time,
    pub updated_at: Time,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Chains {
    pub chains: Vec<Chain>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Balance {
    pub organization: String,
    pub balance_usd: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Ledger {
    pub organization: String,
    pub entries: Vec<LedgerLine>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct LedgerLine {
    pub id: EntryId,
    pub kind: EntryKind,
    /// The amount. Negative for a charge.
    pub amount_usd: f64,
    pub execution_id: Option<ExecutionId>,
    pub created_at: Time,
}

/// An execution, as lists over all organizations show it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Execution {
    pub id: ExecutionId,
    pub organization: String,
    /// `prediction`, `workflow` or `chat`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The model's slug or ID, or the workflow's ID.
    pub subject: String,
    pub status: String,
    /// How often the process has died while this execution ran, counted since the execution last
    /// made progress.
    pub crashes: u32,
    /// What the execution waits for.
    pub waiting_for: Option<String>,
    pub created_at: Time,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Executions {
    pub executions: Vec<Execution>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Cancelled {
    pub execution_id: ExecutionId,
    pub status: String,
}

/// The number of restored executions and deliveries that were resumed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Resumed {
    pub executions: usize,
    pub deliveries: usize,
}

/// An entry of the audit log.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Act {
    /// The entry's sequence number. Only in the file for log shippers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
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
    /// The organization that the entry concerns. Null if the entry concerns no organization.
    pub organization_id: Option<OrganizationId>,
    /// `ok`, or the reason why the action was refused.
    pub result: String,
    /// How often the action happened in a row.
    pub count: u64,
}

/// Entries of the audit log.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Acts {
    /// The entries, newest first.
    pub entries: Vec<Act>,
}

impl Key {
    #[must_use]
    pub fn of(key: &ApiKey, organization: &Owner) -> Self {
        Self {
            id: key.id,
            prefix: key.prefix.clone(),
            name: key.name.clone(),
            organization: organization.name.clone(),
            admin: false,
            created_by: key.created_by.clone(),
            created_at: key.created_at.into(),
            expires_at: key.expires_at.map(Time::from),
        }
    }

    /// Returns the view of an admin key.
    #[must_use]
    pub fn of_admin(key: &ApiKey) -> Self {
        Self {
            id: key.id,
            prefix: key.prefix.clone(),
            name: key.name.clone(),
            organization: String::new(),
            admin: true,
            created_by: key.created_by.clone(),
            created_at: key.created_at.into(),
            expires_at: key.expires_at.map(Time::from),
        }
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl ListedKey {
    /// Returns the view of an admin key.
    #[must_use]
    pub fn of_admin(key: &ApiKey, last_use: Option<Timestamp>) -> Self {
        let described = Key::of_admin(key);
        let last_used_at = last_use.map(Time::from);
        Self { described, last_used_at, policy: KeyPolicy::default() }
    }

    #[must_use]
    pub fn of(
        key: &ApiKey,
        organization: &Owner,
        last_use: Option<Timestamp>,
        policy: KeyPolicy,
    ) -> Self {
        let described = Key::of(key, organization);
        Self { described, last_used_at: last_use.map(Time::from), policy }
    }
}

impl Organization {
    #[must_use]
    pub fn of(owner: &Owner, limits: Limits) -> Self {
        let Owner { id, name, created_at, limits: _, deleted_at: _ } = owner;
        Self { id: *id, name: name.clone(), created_at: (*created_at).into(), limits }
    }
}

impl Chain {
    #[must_use]
    pub fn of(chain: &chain::Chain, organization: &Owner) -> Self {
        Self {
            organization: organization.name.clone(),
            model: chain.model.clone(),
            name: chain.name.clone(),
            enabled: chain.enabled,
            entries: chain.entries.clone(),
            created_at: chain.created_at.into(),
            updated_at: chain.updated_at.into(),
        }
    }
}

impl Balance {
    #[must_use]
    pub fn of(organization: &Owner, balance: Usd) -> Self {
        Self { organization: organization.name.clone(), balance_usd: balance.dollars() }
    }
}

impl From<&LedgerEntry> for LedgerLine {
    fn from(entry: &LedgerEntry) -> Self {
        Self {
            id: entry.id,
            kind: entry.kind,
            amount_usd: entry.amount.dollars(),
            execution_id: entry.execution,
            created_at: entry.created_at.into(),
        }
    }
}
