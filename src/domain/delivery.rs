//! A webhook delivery as it is stored: what is to be sent, to whom, and every attempt so far.

use serde::{Deserialize, Serialize};

use super::ids::{DeliveryId, ExecutionId, OrganizationId};
use super::payload::Payload;
use super::time::Timestamp;

/// Where a completion is to be announced, as the client asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// An absolute http(s) URL.
    pub url: String,
    /// The signing secret, sealed by `storage::Sealer`; never the plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// How a delivery stands. `delivering` is not stored: a delivery is in flight in a process, never
/// on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Pending,
    Delivered,
    Failed,
}

/// One POST to the receiver and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    /// The first 4 KiB of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// Why it failed, in words; absent on success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub duration_ms: u64,
    pub redelivery: bool,
    pub created_at: Timestamp,
}

/// A delivery: one for each execution that asked for a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub id: DeliveryId,
    pub organization: OrganizationId,
    pub execution: ExecutionId,
    pub webhook: Webhook,
    /// The body, kept as text so that each attempt sends the same bytes.
    pub body: Payload,
    pub status: Status,
    pub attempts: Vec<Attempt>,
    pub created_at: Timestamp,
    /// When the next attempt is due; the key of its row in the due index. `None` when final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Timestamp>,
}
