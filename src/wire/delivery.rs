//! Deliveries of webhooks: their records, and what sends them again.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Time;
use crate::domain::delivery;
use crate::domain::execution::Source;
use crate::domain::ids::{DeliveryId, EndpointId, ExecutionId};
use crate::domain::webhook_endpoint::Event;

/// A delivery: what is sent to whom, and every attempt.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Delivery {
    pub delivery_id: DeliveryId,
    pub execution_id: ExecutionId,
    /// The endpoint that it is for; absent when the execution asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_id: Option<EndpointId>,
    /// What the endpoint is notified of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
    pub url: String,
    pub status: DeliveryStatus,
    /// The payload as it is sent; null when it is no longer stored, or does not fit into a list.
    pub request: Option<String>,
    /// The headers by name; secrets and what is made at each sending are masked.
    pub headers: Map<String, Value>,
    /// What asked for the execution.
    pub source: Source,
    pub created_at: Time,
    pub next_attempt_at: Option<Time>,
    /// Whether a redelivery would be accepted now.
    pub redeliverable: bool,
    /// Oldest first; absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<Vec<Attempt>>,
}

/// The status of a delivery: it waits for its first or next attempt, an attempt is being made, or it has
/// ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatus {
    Pending,
    Delivering,
    Delivered,
    Failed,
}

/// An attempt to deliver.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeliveryAttempt")]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    pub status: AttemptStatus,
    /// The HTTP status of the receiver.
    pub status_code: Option<u16>,
    /// The first 4 KiB of what the receiver answered.
    pub response: Option<String>,
    /// Why it failed.
    pub error_message: Option<String>,
    pub duration_ms: Option<u64>,
    /// Whether it was asked for again.
    pub redelivery: bool,
    /// Null while it is being made.
    pub created_at: Option<Time>,
}

/// What came of an attempt to deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(rename = "DeliveryAttemptStatus")]
pub enum AttemptStatus {
    Success,
    Failed,
    Pending,
}

impl From<&delivery::Attempt> for Attempt {
    fn from(attempt: &delivery::Attempt) -> Self {
        let has_failed = attempt.error.is_some();
        Self {
            number: attempt.number,
            status: if has_failed { AttemptStatus::Failed } else { AttemptStatus::Success },
            status_code: attempt.status_code,
            response: attempt.response.clone(),
            error_message: attempt.error.clone(),
            duration_ms: Some(attempt.duration_ms),
            redelivery: attempt.redelivery,
            created_at: Some(attempt.created_at.into()),
        }
    }
}

impl Attempt {
    /// The attempt that is being made.
    #[must_use]
    pub const fn pending(number: u32, redelivery: bool) -> Self {
        Self {
            number,
            status: AttemptStatus::Pending,
            status_code: None,
            response: None,
            error_message: None,
            duration_ms: None,
            redelivery,
            created_at: None,
        }
    }
}

/// A receiver, and what became of the newest deliveries to it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookReceiver")]
pub struct Receiver {
    /// Scheme, host and port.
    pub receiver: String,
    pub pending: usize,
    pub delivered: usize,
    pub failed: usize,
    pub newest_at: Time,
    /// Whether deliveries wait because the receiver has failed too often in a row.
    pub circuit_open: bool,
    /// Failures in a row; 0 while the circuit is closed.
    pub failures: u32,
    /// When the next attempt goes out, as a probe.
    pub next_probe_at: Option<Time>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookReceivers")]
pub struct Receivers {
    /// Those with the newest deliveries first.
    pub receivers: Vec<Receiver>,
    /// Whether there are more deliveries than were counted.
    pub capped: bool,
}

/// What is shown of a delivery beside its record.
#[derive(Debug)]
pub struct Shown {
    pub status: DeliveryStatus,
    pub request: Option<String>,
    pub headers: Map<String, Value>,
    pub source: Source,
    pub redeliverable: bool,
}

impl Delivery {
    /// The view of `delivery`, with its attempts.
    #[must_use]
    pub fn of(delivery: &delivery::Delivery, shown: Shown) -> Self {
        let progress = &delivery.progress;
        let mut attempts: Vec<Attempt> = progress.attempts.iter().map(Attempt::from).collect();
        if shown.status == DeliveryStatus::Delivering {
            attempts.push(Attempt::pending(progress.next_number(), progress.redelivery));
        }
        Self {
            delivery_id: delivery.id,
            execution_id: delivery.execution,
            endpoint_id: delivery.endpoint.map(|target| target.id),
            event: delivery.endpoint.map(|target| target.event),
            url: delivery.webhook.url.clone(),
            status: shown.status,
            request: shown.request,
            headers: shown.headers,
            source: shown.source,
            created_at: delivery.created_at.into(),
            next_attempt_at: progress.next_attempt_at.map(Time::from),
            redeliverable: shown.redeliverable,
            attempts: Some(attempts),
        }
    }
}

/// A page of deliveries, newest first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeliveryList")]
pub struct List {
    pub webhooks: Vec<Delivery>,
    pub limit: u64,
    pub offset: u64,
    pub total_count: u64,
}

/// A delivery is sent again.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Redelivered {
    pub delivery_id: DeliveryId,
    pub status: DeliveryStatus,
}

/// Which failed deliveries are sent again.
#[derive(Debug, JsonSchema)]
#[schemars(example = json!({"from": "2026-11-20T00:00:00Z", "to": "2026-11-21T00:00:00Z"}))]
pub struct Replay {
    /// Those that were created then or later,
    #[schemars(extend("format" = "date-time"))]
    pub from: String,
    /// and before this.
    #[schemars(extend("format" = "date-time"))]
    pub to: String,
    /// `failed`: nothing else is sent again.
    pub status: Option<ReplayStatus>,
}

/// Which deliveries can be sent again.
#[derive(Debug, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayStatus {
    Failed,
}

/// Deliveries are sent again.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Replayed {
    pub count: usize,
}

/// A receiver to be tried.
#[derive(Debug, JsonSchema)]
#[schemars(example = json!({"url": "https://hooks.example.com/orrery"}))]
pub struct NewTestDelivery {
    #[schemars(length(min = 1))]
    pub url: String,
    /// Signs the delivery.
    #[schemars(length(max = 256))]
    pub webhook_secret: Option<String>,
}

/// What a receiver answered to a sample delivery.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TestDelivery {
    pub url: String,
    pub status: AttemptStatus,
    /// The HTTP status of the receiver.
    pub status_code: Option<u16>,
    /// The first 4 KiB of what the receiver answered.
    pub response: Option<String>,
    /// Why it failed.
    pub error_message: Option<String>,
    pub duration_ms: Option<u64>,
    /// The payload as it was sent.
    pub request: String,
    /// The headers by name; secrets are masked.
    pub headers: Map<String, Value>,
}

impl TestDelivery {
    /// The answer of the receiver at `url` to the payload `request`.
    #[must_use]
    pub fn new(
        url: String,
        attempt: &delivery::Attempt,
        request: String,
        headers: Map<String, Value>,
    ) -> Self {
        let Attempt { status, status_code, response, error_message, duration_ms, .. } =
            attempt.into();
        Self { url, status, status_code, response, error_message, duration_ms, request, headers }
    }
}
