//! Webhook endpoints: requests, views, and the bodies that they receive.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Time, pattern};
use orrery_domain::execution::{Execution, Source};
use orrery_domain::ids::{EndpointId, ExecutionId, WorkflowId};
use orrery_domain::webhook_endpoint::{self, Event, FILTER_MAX, Reason, Scheme};

/// A webhook endpoint, without its secret.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookEndpoint")]
pub struct Endpoint {
    /// The ID of the endpoint.
    pub id: EndpointId,
    /// The name of the endpoint. Null if the endpoint has no name.
    pub name: Option<String>,
    /// The URL that receives the events.
    pub url: String,
    /// The events that the endpoint receives. An empty list means all events.
    pub events: Vec<Event>,
    /// The models whose predictions the endpoint receives events for. An empty list means all
    /// models.
    pub models: Vec<String>,
    /// The workflows whose executions the endpoint receives events for. An empty list means all
    /// workflows.
    pub workflow_ids: Vec<WorkflowId>,
    /// The signature scheme.
    pub signature: Scheme,
    /// The public key that verifies `v1a` signatures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// Whether deliveries also carry the secret itself, in `X-Webhook-Secret`.
    pub send_plain_secret: bool,
    /// Whether the endpoint is disabled: it receives no events.
    pub disabled: bool,
    /// When the endpoint was disabled. Null if the endpoint is enabled.
    pub disabled_at: Option<Time>,
    /// Why the endpoint was disabled. Null if the endpoint is enabled.
    pub disabled_reason: Option<Reason>,
    /// When the first attempt failed since the last success. Null if the latest attempt succeeded.
    pub failing_since: Option<Time>,
    /// The time until which the previous secret also signs deliveries.
    pub previous_secret_until: Option<Time>,
    /// When the endpoint was created.
    pub created_at: Time,
    /// When the endpoint was last changed.
    pub updated_at: Time,
}

impl Endpoint {
    /// Returns the view of an endpoint.
    #[must_use]
    pub fn of(endpoint: &webhook_endpoint::Endpoint) -> Self {
        Self {
            id: endpoint.id,
            name: endpoint.name.clone(),
            url: endpoint.url.clone(),
            events: endpoint.events.clone(),
            models: endpoint.models.clone(),
            workflow_ids: endpoint.workflows.clone(),
            signature: endpoint.scheme,
            public_key: endpoint.public_key.clone(),
            send_plain_secret: endpoint.send_plain_secret,
            disabled: endpoint.disabled.is_some(),
            disabled_at: endpoint.disabled.map(|disabled| disabled.at.into()),
            disabled_reason: endpoint.disabled.map(|disabled| disabled.reason),
            failing_since: endpoint.failing_since.map(Time::from),
            previous_secret_until: endpoint.replaced.as_ref().map(|one| one.until.into()),
            created_at: endpoint.created_at.into(),
            updated_at: endpoint.updated_at.into(),
        }
    }
}

/// A webhook endpoint with a new secret. No other responses contain the secret.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "WebhookEndpointWithSecret")]
pub struct WithSecret {
    #[serde(flatten)]
    pub endpoint: Endpoint,
    /// The signing secret: `whsec_` and base64. Absent for `v1a` signatures, whose private key
    /// never leaves the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

impl std::fmt::Debug for WithSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WithSecret").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// The webhook endpoints of an organization.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookEndpointList")]
pub struct Endpoints {
    /// The endpoints, oldest first.
    pub webhook_endpoints: Vec<Endpoint>,
}

/// A webhook endpoint to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "NewWebhookEndpoint", deny_unknown_fields, example = example())]
pub struct NewEndpoint {
    /// The URL that receives the events.
    #[schemars(length(max = URL_MAX), transform = pattern::web_url)]
    pub url: String,
    #[serde(flatten)]
    pub fields: EndpointFields,
}

/// Changes to a webhook endpoint. Omitted fields keep their value. The URL is required for a new
/// endpoint.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "WebhookEndpointChange", deny_unknown_fields, example = example())]
pub struct EndpointChange {
    /// The URL that receives the events.
    #[schemars(length(max = URL_MAX), transform = pattern::web_url)]
    pub url: Option<String>,
    #[serde(flatten)]
    pub fields: EndpointFields,
}

/// The optional fields of a webhook endpoint.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct EndpointFields {
    /// A name, unique within the organization. An empty string means no name.
    #[schemars(transform = pattern::endpoint_name)]
    pub name: Option<String>,
    /// The events to receive. Omit or leave empty to receive all events.
    #[schemars(with = "Option<Vec<Subscription>>", length(max = Event::ALL.len()))]
    pub events: Option<Vec<Event>>,
    /// Only events for predictions of these models. Omit or leave empty for all models.
    #[schemars(length(max = FILTER_MAX), inner(length(max = MODEL_MAX)), transform = pattern::each_filled)]
    pub models: Option<Vec<String>>,
    /// Only events for executions of these workflows. Omit or leave empty for all workflows.
    #[schemars(length(max = FILTER_MAX))]
    pub workflow_ids: Option<Vec<WorkflowId>>,
    /// The signature scheme, which cannot be changed later. Defaults to `v1`.
    pub signature: Option<Scheme>,
    /// Whether deliveries also carry the secret itself, in `X-Webhook-Secret`, for receivers that
    /// compare it. Defaults to false. Only with the signature `v1`.
    pub send_plain_secret: Option<bool>,
    /// Whether the endpoint is disabled: it receives no events.
    pub disabled: Option<bool>,
}

/// Maximum length of an endpoint's URL, in characters.
const URL_MAX: usize = 2_000;
/// Maximum length of a model slug in a filter, in characters.
const MODEL_MAX: usize = 200;

fn example() -> Value {
    json!({
        "url": "https://hooks.example.com/orrery",
        "events": ["prediction.completed", "prediction.failed"],
    })
}

/// The schema of an event that an endpoint can subscribe to.
struct Subscription;

impl JsonSchema for Subscription {
    fn schema_name() -> Cow<'static, str> {
        "WebhookSubscription".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "enum": Event::ALL,
            "description": "An event that a webhook endpoint can subscribe to.",
        })
    }
}

/// How long a replaced secret still signs deliveries, in seconds.
pub const GRACE_DEFAULT: u64 = 24 * 3600;
pub const GRACE_MAX: u64 = 7 * 24 * 3600;

/// A rotation of the secret.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RotateWebhookEndpoint", example = json!({"grace_seconds": GRACE_DEFAULT}))]
pub struct Rotate {
    /// How long the previous secret also signs deliveries, in seconds. Defaults to 86400.
    #[schemars(range(max = GRACE_MAX))]
    pub grace_seconds: Option<u64>,
}

/// The body of a webhook to an endpoint, in the Standard Webhooks format.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookEventBody")]
pub struct EventBody<'a> {
    /// The event.
    #[serde(rename = "type")]
    pub kind: Event,
    /// When the event happened.
    pub timestamp: Time,
    /// For an execution that has ended, the same data as the body of a request's own webhook.
    pub data: &'a RawValue,
}

/// The data of a test event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookTest")]
pub struct Test<'a> {
    /// A message for people.
    pub message: &'a str,
}

/// The data of an event for an accepted execution.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookStarted")]
pub struct Started<'a> {
    /// The ID of the prediction or execution.
    pub execution_id: ExecutionId,
    /// The model. Absent for workflows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<&'a str>,
    /// The workflow. Absent for predictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<WorkflowId>,
    /// The version of the workflow. Absent for predictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_id: Option<&'a str>,
    /// The first status of a prediction (`created`) or an execution (`queued`).
    #[schemars(extend("enum" = ["created", "queued"]))]
    pub status: &'static str,
    /// What started the execution.
    pub source: Source,
    /// When the execution was created.
    pub created_at: Time,
}

impl<'a> Started<'a> {
    /// Returns the data for an execution.
    #[must_use]
    pub fn of(execution: &'a Execution) -> Self {
        let run = execution.workflow();
        Self {
            execution_id: execution.id,
            model: execution.prediction().map(|prediction| prediction.model()),
            workflow_id: run.map(|run| run.workflow),
            version_id: run.map(|run| run.version.as_str()),
            status: execution.status.word(execution.kind()),
            source: execution.source,
            created_at: execution.created_at.into(),
        }
    }
}
