//! Webhook endpoints: their records, what changes them, and what they are sent.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::Time;
use crate::domain::execution::{Execution, Source};
use crate::domain::ids::{EndpointId, ExecutionId, WorkflowId};
use crate::domain::webhook_endpoint::{self, Event, Reason, Scheme};

/// An endpoint, without its secret.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookEndpoint")]
pub struct Endpoint {
    pub id: EndpointId,
    pub name: Option<String>,
    pub url: String,
    /// What it is notified of; empty: everything.
    pub events: Vec<Event>,
    /// The models whose predictions it is notified of; empty: all.
    pub models: Vec<String>,
    /// The workflows whose executions it is notified of; empty: all.
    pub workflow_ids: Vec<WorkflowId>,
    pub signature: Scheme,
    /// What verifies signatures `v1a`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    pub disabled: bool,
    pub disabled_at: Option<Time>,
    pub disabled_reason: Option<Reason>,
    /// When an attempt failed after which none has succeeded.
    pub failing_since: Option<Time>,
    /// Until when the secret signs that was replaced last.
    pub previous_secret_until: Option<Time>,
    pub created_at: Time,
    pub updated_at: Time,
}

impl Endpoint {
    /// The view of an endpoint.
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

/// An endpoint with a new secret: the only answers that show it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "WebhookEndpointWithSecret")]
pub struct WithSecret {
    #[serde(flatten)]
    pub endpoint: Endpoint,
    /// What signs, `whsec_` and base64; absent with signatures `v1a`, whose secret never leaves the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

impl std::fmt::Debug for WithSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WithSecret").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookEndpointList")]
pub struct Endpoints {
    /// Oldest first.
    pub webhook_endpoints: Vec<Endpoint>,
}

/// An endpoint to be made; in a change, absent fields stay.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "NewWebhookEndpoint", example = json!({
    "url": "https://hooks.example.com/orrery", "events": ["prediction.completed", "prediction.failed"]
}))]
pub struct NewEndpoint {
    /// Required to make one.
    #[schemars(length(min = 1, max = 2000))]
    pub url: Option<String>,
    /// Unique within the organization; empty: none.
    #[schemars(length(max = 64))]
    pub name: Option<String>,
    /// Absent or empty: all.
    pub events: Option<Vec<Event>>,
    #[schemars(length(max = 100))]
    pub models: Option<Vec<String>>,
    #[schemars(length(max = 100))]
    pub workflow_ids: Option<Vec<WorkflowId>>,
    /// `v1` by default; it cannot be changed.
    pub signature: Option<Scheme>,
    pub disabled: Option<bool>,
}

/// How a secret is replaced.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "RotateWebhookEndpoint", example = json!({"grace_seconds": 86400}))]
pub struct Rotate {
    /// How long the secret before signs too; 86400 by default.
    #[schemars(range(max = 604_800))]
    pub grace_seconds: Option<u64>,
}

/// What an endpoint is sent, in the form of Standard Webhooks.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookEventBody")]
pub struct EventBody<'a> {
    #[serde(rename = "type")]
    pub kind: Event,
    pub timestamp: Time,
    /// Of an end: the body of the request's own webhook.
    pub data: &'a RawValue,
}

/// What is notified of an execution that was accepted.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WebhookStarted")]
pub struct Started<'a> {
    pub execution_id: ExecutionId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<WorkflowId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_id: Option<&'a str>,
    pub status: &'static str,
    pub source: Source,
    pub created_at: Time,
}

impl<'a> Started<'a> {
    /// Of an execution.
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
