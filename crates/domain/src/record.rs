//! Records: the types that the store persists, each with its version and its name for messages.
//!
//! `storage::record` encodes records as bytes.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::account::{ApiKey, DeletedKey, LedgerEntry, Organization};
use crate::batch::{Batch, LineAnswer};
use crate::bulk::Job;
use crate::chain::Chain;
use crate::delivery::DeliveryProgress;
use crate::execution::Execution;
use crate::file::{File, Upload};
use crate::member::{Link, Member, Session};
use crate::schedule::Schedule;
use crate::secret::Secret;
use crate::step::Step;
use crate::webhook_endpoint::Endpoint;
use crate::workflow::Workflow;

/// A type that can be stored.
pub trait Record: Serialize + DeserializeOwned {
    /// The current version.
    const VERSION: u8 = 1;
    /// The type's name in messages.
    const NAME: &'static str;

    /// Parses the JSON of an older version. Types that have never changed keep the default.
    ///
    /// # Errors
    /// [`Malformed`] if no release has written this version.
    fn upgrade(version: u8, _json: &[u8]) -> Result<Self, Malformed> {
        Err(Malformed {
            record: Self::NAME,
            reason: format!("version {version} is unknown; this program writes {}", Self::VERSION),
        })
    }
}

/// Stored bytes that are not a record of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stored {record} cannot be read: {reason}")]
pub struct Malformed {
    pub record: &'static str,
    pub reason: String,
}

impl Record for ApiKey {
    const NAME: &'static str = "API key";
}

impl Record for DeletedKey {
    const NAME: &'static str = "deleted API key";
}

impl Record for LedgerEntry {
    const NAME: &'static str = "ledger entry";
}

impl Record for Organization {
    const NAME: &'static str = "organization";
}

impl Record for Job {
    const NAME: &'static str = "bulk job";
}

impl Record for Batch {
    const NAME: &'static str = "batch";
}

impl Record for LineAnswer {
    const NAME: &'static str = "batch answer";
}

impl Record for Chain {
    const NAME: &'static str = "fallback chain";
}

impl Record for DeliveryProgress {
    const NAME: &'static str = "delivery progress";
}

impl Record for Execution {
    const NAME: &'static str = "execution";
}

impl Record for File {
    const NAME: &'static str = "file";
}

impl Record for Upload {
    const NAME: &'static str = "upload";
}

impl Record for Link {
    const NAME: &'static str = "link";
}

impl Record for Member {
    const NAME: &'static str = "member";
}

impl Record for Session {
    const NAME: &'static str = "session";
}

impl Record for Schedule {
    const NAME: &'static str = "schedule";
}

impl Record for Secret {
    const NAME: &'static str = "secret";
}

impl Record for Step {
    const NAME: &'static str = "step";
}

impl Record for Endpoint {
    const NAME: &'static str = "webhook endpoint";
}

impl Record for Workflow {
    const NAME: &'static str = "workflow";
}
