//! Stored organizations, API keys and ledger entries.
//!
//! No type in this file contains the full value of a key. Key records are stored under the key's
//! hash.

use serde::{Deserialize, Serialize};

use super::ids::{EntryId, ExecutionId, Id as _, KeyId, OrganizationId};
use super::key_policy::KeyPolicy;
use super::money::Usd;
use super::time::Timestamp;

/// The organization that the first start creates. This organization is the default when a request
/// names no organization.
pub const DEFAULT_ORGANIZATION: &str = "default";

/// Maximum length of a key's name, in bytes.
pub const KEY_NAME_MAX: usize = 64;
/// Maximum validity of a key that a member creates, in days.
pub const KEY_DAYS_MAX: u32 = 3650;
/// Maximum time for which the previous text of a rotated key works: 30 days.
pub const GRACE_SECONDS_MAX: u32 = 30 * 24 * 3600;
/// Maximum top-up: a billion dollars, far below the point where additions would saturate.
pub const TOP_UP_DOLLARS_MAX: i64 = 1_000_000_000;

/// The owner of keys, executions, files and money.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Organization {
    pub id: OrganizationId,
    /// The name, which is unique in the installation: 1 to 64 characters of `a-z0-9-`.
    pub name: String,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Limits::are_none")]
    pub limits: Limits,
    /// When the organization was deleted. The record stays until all of its data is erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

/// The resource limits of an organization; absent fields have no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Requests per second across all of the organization's keys; also the burst size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    /// Maximum number of running executions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// Maximum number of unfinished executions that are not running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u32>,
    /// Maximum total size of the organization's files, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_bytes: Option<u64>,
    /// Maximum charges in a calendar month (UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monthly_budget: Option<Usd>,
}

impl Limits {
    /// Returns whether no limit is set.
    #[must_use]
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the id that is recorded in place of an API key's id for actions in the dashboard. The
/// recorded id equals the organization's id, because resources that members create belong to the
/// organization and outlive their membership.
#[must_use]
pub fn dashboard_key(organization: OrganizationId) -> KeyId {
    KeyId::from(organization.bytes())
}

/// Returns the owner of admin keys, which belong to the entire installation. No organization has
/// this id.
#[must_use]
pub fn box_owner() -> OrganizationId {
    OrganizationId::from([0; 16])
}

/// An API key without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    pub id: KeyId,
    pub organization: OrganizationId,
    pub name: String,
    /// The first characters of the key (`smk_abcd`), for display.
    pub prefix: String,
    /// The creator: the name of the operating-system user, or a fixed name for the key that the
    /// first start creates.
    pub created_by: String,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "KeyPolicy::is_default")]
    pub policy: KeyPolicy,
    /// After a rotation, the SHA-256 of the previous text, which works until its own record
    /// expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<[u8; 32]>,
}

/// The details of a deleted key that the service keeps, so that usage reports can name the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedKey {
    pub name: String,
    pub created_by: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    pub deleted_at: Timestamp,
}

/// What a ledger entry is for (`docs/spec/billing.md`, "Ledger").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    TopUp,
    Charge,
    Refund,
}

impl EntryKind {
    /// Returns the name that is used in storage and in output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TopUp => "top_up",
            Self::Charge => "charge",
            Self::Refund => "refund",
        }
    }
}

/// One ledger entry of an organization. The entries add up to the balance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    pub id: EntryId,
    pub kind: EntryKind,
    /// The signed amount; a charge is negative.
    pub amount: Usd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionId>,
    pub created_at: Timestamp,
}
