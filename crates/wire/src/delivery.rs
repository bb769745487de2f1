//! Webhook deliveries: records, redelivery, replay and test deliveries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::history::RowType;
use super::{Time, pattern};
use orrery_domain::delivery::{self, URL_BYTES_MAX};
use orrery_domain::execution::Source;
use orrery_domain::ids::{DeliveryId, EndpointId, ExecutionId};
use orrery_domain::signature::SECRET_BYTES_MAX;
use orrery_domain::webhook_endpoint::Event;

/// A webhook delivery with its attempts.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Delivery {
    /// The ID of the delivery, which is the same for all attempts.
    pub delivery_id: DeliveryId,
    /// The execution that the delivery is about.
    pub execution_id: ExecutionId,
    /// The type of the execution. Null if the execution is no longer stored.
    pub execution_type: Option<RowType>,
    /// The webhook endpoint that receives this delivery. Absent if the request named its own
    /// webhook URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_id: Option<EndpointId>,
    /// The event that the endpoint is notified of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
    /// The URL that the delivery is sent to.
    pub url: String,
    /// Whether the delivery is waiting, in flight, or has ended.
    pub status: DeliveryStatus,
    /// The payload as it is sent. Null if the payload is no longer stored, or is too large for a
    /// list.
    pub request: Option<String>,
    /// The headers by name. Secrets, and values that are computed for each attempt, are masked.
    pub headers: Map<String, Value>,
    /// What started the execution.
    pub source: Source,
    /// When the delivery was created.
    pub created_at: Time,
    /// When the next attempt is made. While the receiver's circuit is open, this is not before the
    /// circuit's next probe.
    pub next_attempt_at: Option<Time>,
    /// Whether a redelivery would be accepted now.
    pub redeliverable: bool,
    /// The attempts, oldest first. Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<Vec<Attempt>>,
}

/// The status of a delivery: waiting for its first or next attempt, in flight, or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatus {
    Pending,
    Delivering,
    Delivered,
    Failed,
}

/// A delivery attempt.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeliveryAttempt")]
pub struct Attempt {
    /// The number of the attempt, starting at 1.
    pub number: u32,
    /// The outcome of the attempt.
    pub status: AttemptStatus,
    /// The HTTP status that the receiver returned.
    pub status_code: Option<u16>,
    /// The first 4 KiB of the receiver's response.
    pub response: Option<String>,
    /// Why the attempt failed.
    pub error_message: Option<String>,
    /// How long the attempt took, in milliseconds. Null while the attempt is in flight.
    pub duration_ms: Option<u64>,
    /// Whether a redelivery triggered this attempt.
    pub redelivery: bool,
    /// When the attempt was made. Null while the attempt is in flight.
    pub created_at: Option<Time>,
}

/// The outcome of a delivery attempt.
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
    /// Returns an attempt that is in flight.
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

/// A receiver, with statistics about the latest deliveries to it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookReceiver")]
pub struct Receiver {
    /// The scheme, host and port of the receiver.
    pub receiver: String,
    /// The number of deliveries that are waiting or in flight.
    pub pending: usize,
    /// The number of successful deliveries.
    pub delivered: usize,
    /// The number of failed deliveries.
    pub failed: usize,
    /// When the newest delivery was created.
    pub newest_at: Time,
    /// Whether deliveries are held back after too many consecutive failures.
    pub circuit_open: bool,
    /// The number of consecutive failures. 0 while the circuit is closed.
    pub failures: u32,
    /// When the next attempt is sent as a probe.
    pub next_probe_at: Option<Time>,
}

/// The receivers of the newest deliveries.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookReceivers")]
pub struct Receivers {
    /// The receivers, most recent delivery first.
    pub receivers: Vec<Receiver>,
    /// Whether counting stopped at a limit. If so, there are more deliveries than counted.
    pub capped: bool,
}

/// The parts of a delivery's view that the delivery record does not contain.
#[derive(Debug)]
pub struct Shown {
    pub status: DeliveryStatus,
    pub request: Option<String>,
    pub headers: Map<String, Value>,
    pub execution_type: Option<RowType>,
    pub source: Source,
    pub redeliverable: bool,
    pub next_attempt_at: Option<Time>,
}

impl Delivery {
    /// Returns the view of `delivery`, including its attempts.
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
            execution_type: shown.execution_type,
            endpoint_id: delivery.endpoint.map(|target| target.id),
            event: delivery.endpoint.map(|target| target.event),
            url: delivery.webhook.url.clone(),
            status: shown.status,
            request: shown.request,
            headers: shown.headers,
            source: shown.source,
            created_at: delivery.created_at.into(),
            next_attempt_at: shown.next_attempt_at,
            redeliverable: shown.redeliverable,
            attempts: Some(attempts),
        }
    }
}

/// A page of deliveries, newest first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeliveryList")]
pub struct List {
    /// The deliveries, newest first.
    pub webhooks: Vec<Delivery>,
    /// The requested page size.
    pub limit: u64,
    /// The requested offset.
    pub offset: u64,
    /// The number of matching deliveries.
    pub total_count: u64,
}

/// An accepted redelivery.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Redelivered {
    /// The ID of the delivery, which does not change.
    pub delivery_id: DeliveryId,
    /// The status of the delivery.
    pub status: DeliveryStatus,
}

/// A time range whose failed deliveries are sent again.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({"from": "2026-11-20T00:00:00Z", "to": "2026-11-21T00:00:00Z"}))]
pub struct Replay {
    /// Only deliveries created at or after this time.
    pub from: Time,
    /// Only deliveries created before this time.
    pub to: Time,
    /// Always `failed`: only failed deliveries can be replayed.
    pub status: Option<ReplayStatus>,
}

/// The status of deliveries that can be replayed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayStatus {
    Failed,
}

/// An accepted replay.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Replayed {
    /// The number of deliveries that are sent again.
    pub count: usize,
}

/// A webhook URL to test.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({"url": "https://hooks.example.com/orrery"}))]
pub struct NewTestDelivery {
    /// The URL to send the sample delivery to.
    #[schemars(length(max = URL_BYTES_MAX), transform = pattern::web_url)]
    pub url: String,
    /// The secret that signs the delivery.
    #[schemars(length(max = SECRET_BYTES_MAX), transform = pattern::line)]
    pub webhook_secret: Option<String>,
    /// Whether the delivery also carries the secret itself, in `X-Webhook-Secret`. Defaults to the
    /// service's `webhooks.send_plain_secret`. Null means the default.
    pub webhook_send_plain_secret: Option<bool>,
}

/// The receiver's response to a sample delivery.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TestDelivery {
    /// The URL that the sample was sent to.
    pub url: String,
    /// Whether the receiver accepted the sample.
    pub status: AttemptStatus,
    /// The HTTP status that the receiver returned.
    pub status_code: Option<u16>,
    /// The first 4 KiB of the receiver's response.
    pub response: Option<String>,
    /// Why the delivery failed.
    pub error_message: Option<String>,
    /// How long the attempt took, in milliseconds.
    pub duration_ms: Option<u64>,
    /// The payload as it was sent.
    pub request: String,
    /// The headers by name. Secrets are masked.
    pub headers: Map<String, Value>,
}

impl TestDelivery {
    /// Builds the result from an attempt that sent the payload `request` to `url`.
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
