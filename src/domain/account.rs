//! Organizations, API keys and ledger entries, as they are stored.
//!
//! A key's full value appears in no type of this file: only its hash is kept, as the key under
//! which the record is stored.

use serde::{Deserialize, Serialize};

use super::ids::{EntryId, ExecutionId, Id as _, KeyId, OrganizationId};
use super::money::Usd;
use super::time::Timestamp;

/// The name of the organization that a first start makes, and that is meant where none is named.
pub const DEFAULT_ORGANIZATION: &str = "default";

/// The owner of keys, executions, files and money.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Organization {
    pub id: OrganizationId,
    /// Unique on the box; 1 to 64 characters of `a-z0-9-`.
    pub name: String,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Limits::are_none")]
    pub limits: Limits,
}

/// What an organization may use of the box; what is absent has no limit of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Requests a second, over all of its keys; as many may come at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    /// Executions that run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// Executions that have not ended and do not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u32>,
    /// Bytes of its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_bytes: Option<u64>,
}

impl Limits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The id that is recorded in the place of a key's where the dashboard made something. It is the
/// organization's own: what members make belongs to the organization and outlives their membership.
#[must_use]
pub fn dashboard_key(organization: OrganizationId) -> KeyId {
    KeyId::from(organization.bytes())
}

/// The owner of admin keys, which belong to the box: no organization has this id.
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
    /// Who made it: the name of the operating-system user, or of the first start.
    pub created_by: String,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
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
    /// As it is stored and shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TopUp => "top_up",
            Self::Charge => "charge",
            Self::Refund => "refund",
        }
    }
}

/// One line of an organization's ledger. The lines add up to the balance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    pub id: EntryId,
    pub kind: EntryKind,
    /// Signed: a charge is negative.
    pub amount: Usd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionId>,
    pub created_at: Timestamp,
}
