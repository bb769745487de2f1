//! Documents the webhooks that the service sends (`docs/spec/webhooks.md`, "Events"), with the
//! schemas of their bodies.

use schemars::JsonSchema as _;
use serde_json::{Map, Value, json};

use super::schemas::Schemas;
use crate::Role;
use orrery_domain::webhook_endpoint::Event;
use orrery_wire::execution::Execution;
use orrery_wire::prediction::Announcement;
use orrery_wire::replicate;
use orrery_wire::webhook_endpoint::{EventBody, Started, Test};

/// The headers of every delivery.
const DELIVERY: [(&str, &str); 1] =
    [("X-Webhook-Delivery-Id", "The same for all attempts of a delivery")];
/// The headers of a signed delivery, as specified by Standard Webhooks.
const STANDARD: [(&str, &str); 3] = [
    ("webhook-id", "The ID of the delivery. With a secret only"),
    ("webhook-timestamp", "Unix seconds of this attempt. With a secret only"),
    (
        "webhook-signature",
        "`v1,` and the base64 HMAC-SHA256 of `<id>.<timestamp>.<body>` or, for an endpoint with the \
         signature `v1a`, `v1a,` and the base64 Ed25519 signature. With a secret only",
    ),
];
/// Additional headers of a delivery to the `webhook_url` of a request.
const OF_REQUEST: [(&str, &str); 4] = [
    ("X-Webhook-Timestamp", "Unix seconds of this attempt. With a secret only"),
    (
        "X-Webhook-Signature",
        "`sha256=` and the hexadecimal HMAC-SHA256 of `<timestamp>.<body>`. With a secret only",
    ),
    (
        "X-Webhook-Secret",
        "The secret itself, unless `webhook_send_plain_secret` or, without it, \
         `webhooks.send_plain_secret` is false",
    ),
    ("X-Webhook-Redelivery", "`true` for a redelivery, otherwise absent"),
];

/// Returns the webhooks that requests to a host can cause.
pub(super) fn of_host(role: Role, schemas: &mut Schemas) -> Map<String, Value> {
    let mut all = Map::new();
    let is_of_base = role == Role::Base;
    if is_of_base {
        let body = schemas.sent.subschema_for::<Announcement<'_>>().to_value();
        all.insert("prediction_ended".to_owned(), of_request("prediction", &body));
        let body = schemas.sent.subschema_for::<replicate::Prediction<'_>>().to_value();
        all.insert("replicate_prediction".to_owned(), of_replicate(&body));
    }
    if is_of_base || matches!(role, Role::Workflows | Role::Flows) {
        let body = schemas.sent.subschema_for::<Execution>().to_value();
        all.insert("execution_ended".to_owned(), of_request("execution", &body));
    }
    if is_of_base {
        for event in Event::ALL.into_iter().chain([Event::EndpointTest]) {
            let body = body_of(event, schemas);
            all.insert(event.as_str().to_owned(), of_endpoint(event, &body));
        }
    }
    all
}

/// Describes the webhook to the `webhook_url` of a request.
fn of_request(subject: &str, body: &Value) -> Value {
    let headers = DELIVERY.iter().chain(&OF_REQUEST).chain(&STANDARD);
    delivery(
        &format!("on_{subject}_ended"),
        &format!("A {subject} with a `webhook_url` has ended"),
        "Sent once to the `webhook_url` of the request that started it, when it has completed or \
         failed. A cancellation sends nothing.",
        headers,
        body,
    )
}

/// Describes the webhook of a prediction that was created with Replicate's API.
fn of_replicate(body: &Value) -> Value {
    delivery(
        "on_replicate_prediction",
        "A prediction with a `webhook` has started, has new output or logs, or has ended",
        "Sent to the `webhook` of a prediction that was created with Replicate's API, for the \
         events in `webhook_events_filter`. A cancellation also sends `completed`. Updates, in \
         which the status is not final, are sent at most every 500 ms and are never retried. The \
         webhook for the end of the prediction is retried as follows.",
        DELIVERY.iter().chain(&STANDARD),
        body,
    )
}

/// Describes the webhook to endpoints that receive an event.
fn of_endpoint(event: Event, body: &Value) -> Value {
    let (summary, about) = match event {
        Event::PredictionStarted => ("A prediction was accepted", "Sent when it is created."),
        Event::PredictionCompleted => ("A prediction has completed", "Sent when it has succeeded."),
        Event::PredictionFailed => ("A prediction has failed", "A cancellation sends nothing."),
        Event::WorkflowStarted => ("An execution was accepted", "Sent when it is created."),
        Event::WorkflowCompleted => ("An execution has completed", "Sent when it has succeeded."),
        Event::WorkflowFailed => ("An execution has failed", "A cancellation sends nothing."),
        Event::EndpointTest => {
            ("A test of an endpoint", "Sent by `POST /v1/webhook-endpoints/{endpoint}/test`.")
        }
    };
    let id = format!("on_{}", event.as_str().replace('.', "_"));
    delivery(&id, summary, about, DELIVERY.iter().chain(&STANDARD), body)
}

/// Adds the component for the body of an event, and returns a reference to it.
fn body_of(event: Event, schemas: &mut Schemas) -> Value {
    let generator = &mut schemas.sent;
    let mut data = match event {
        Event::PredictionStarted | Event::WorkflowStarted => {
            generator.subschema_for::<Started<'_>>()
        }
        Event::PredictionCompleted | Event::PredictionFailed => {
            generator.subschema_for::<Announcement<'_>>()
        }
        Event::WorkflowCompleted | Event::WorkflowFailed => generator.subschema_for::<Execution>(),
        Event::EndpointTest => generator.subschema_for::<Test<'_>>(),
    };
    let word = event.as_str();
    let about = format!("Always `{word}`.");
    let kind = json!({"type": "string", "const": word, "description": about});
    let subject = "The prediction or execution that the event is about.";
    data.insert("description".to_owned(), subject.into());
    let mut body = EventBody::json_schema(generator);
    body.insert("description".to_owned(), format!("The body of the event `{word}`.").into());
    if let Some(Value::Object(properties)) = body.get_mut("properties") {
        properties.insert("type".to_owned(), kind);
        properties.insert("data".to_owned(), data.to_value());
    }
    schemas.add(&format!("Webhook.{word}"), body.to_value())
}

/// Describes a delivery.
fn delivery<'h>(
    id: &str,
    summary: &str,
    about: &str,
    headers: impl Iterator<Item = &'h (&'h str, &'h str)>,
    body: &Value,
) -> Value {
    let parameter = |(name, description): &(&str, &str)| {
        json!({
            "name": name,
            "in": "header",
            "description": description,
            "schema": {"type": "string"},
        })
    };
    json!({"post": {
        "operationId": id,
        "tags": ["webhooks"],
        "summary": summary,
        "description": format!(
            "{about} Deliveries arrive at least once: deduplicate by the delivery ID. Every \
             attempt sends the same bytes. A failed attempt is repeated with growing delays, by \
             default eight times within ten hours."
        ),
        "parameters": headers.map(parameter).collect::<Vec<Value>>(),
        "requestBody": {
            "required": true,
            "content": {"application/json": {"schema": body}},
        },
        "responses": {
            "2XX": {"description": "The delivery is complete"},
            "410": {"description": "The delivery has failed and is not repeated"},
            "429": {"description": "The next attempt is not made before `Retry-After`"},
            "503": {"description": "The next attempt is not made before `Retry-After`"},
            "default": {"description": "The next attempt is made as scheduled"},
        },
        "security": [],
    }})
}
