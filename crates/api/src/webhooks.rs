//! Webhook deliveries (`docs/spec/webhooks.md`, "Delivery records"): records, redelivery, replay
//! and tests. Clients and the operator share the views.

use hyper::StatusCode;
use hyper::header::{HeaderValue, RETRY_AFTER};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value};

use super::body;
use super::doc::{Doc, Kind, OFFSET, Param, RequestDoc, ResponseDoc};
use super::{Context, Services};
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::delivery::{self, Webhook};
use orrery_domain::execution::{self, Source};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::time::Timestamp;
use orrery_http::query::read_time;
use orrery_http::request::parse_value;
use orrery_http::{Response, response};
use orrery_runtime::new_id;
use orrery_webhooks::{DeliveryState, Filter, Recorded, Refusal};
use orrery_wire::Time;
use orrery_wire::delivery::{
    Delivery, DeliveryStatus, List, NewTestDelivery, Receiver, Receivers, Redelivered, Replay,
    Replayed, Shown, TestDelivery,
};
use orrery_wire::prediction::{Announcement, Metrics};
use orrery_wire::request;

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 100;
/// Maximum bytes of payloads in one list. Payloads beyond the limit are null.
const SHOWN_MAX: usize = 4 * 1024 * 1024;
/// The text that replaces masked values.
const MASK: &str = "********";

fn statuses() -> Vec<&'static str> {
    DeliveryState::ALL.map(DeliveryState::as_str).to_vec()
}

const NO_DELIVERY: ResponseDoc = ResponseDoc::error(404, "Delivery not found");

pub(crate) const LIST: Doc = Doc {
    query: &[
        Param::new("status", Kind::OneOf(statuses), "Only deliveries with this status"),
        Param::new("execution", Kind::Uuid, "Only deliveries of this execution"),
        Param::new(
            "host",
            Kind::Text,
            "Only deliveries to this receiver's host, with or without its port",
        ),
        Param::new("from", Kind::Time, "Only deliveries created at or after this time"),
        Param::new("to", Kind::Time, "Only deliveries created before this time"),
        Param::limit(LIMIT_MAX, LIMIT_DEFAULT),
        OFFSET,
    ],
    responses: &[ResponseDoc::json::<List>(200, "The deliveries, newest first")],
    description: "Returns a page of the organization's webhook deliveries, including those to \
                  endpoints, without their attempts. `total_count` is the exact number of matches. \
                  A delivery is kept for `retention.deliveries` after it has ended.",
    ..Doc::new("webhooks", "list_deliveries", "List deliveries")
};

/// `GET /v1/webhooks?status=&execution=&host=&from=&to=&limit=&offset=`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    list_for(&context, organization).await
}

pub(crate) const LIST_OF: Doc =
    Doc::new("admin", "admin_list_deliveries", "List deliveries of an organization");

/// `GET /admin/webhooks?organization=`, with the same parameters.
pub(crate) async fn list_of(context: Context) -> Result<Response, crate::Error> {
    let organization = organization(&context).await?;
    list_for(&context, organization).await
}

pub(crate) const RECEIVERS: Doc = Doc {
    responses: &[ResponseDoc::json::<Receivers>(
        200,
        "The receivers, with the state of their circuits",
    )],
    description: "Returns the receivers of the newest deliveries with their counts and the state \
                  of their circuit breakers. `capped` tells whether there are older deliveries \
                  that are not counted.",
    ..Doc::new("webhooks", "list_receivers", "List webhook receivers")
};

/// `GET /webhooks/receivers` of the dashboard.
pub(crate) async fn receivers(context: Context) -> Result<Response, crate::Error> {
    let found = context.services.outbox.receivers(context.organization()?).await;
    let (found, capped) = found.map_err(Refusal::from)?;
    let shown = |one: orrery_webhooks::Receiver| Receiver {
        receiver: one.name,
        pending: one.pending,
        delivered: one.delivered,
        failed: one.failed,
        newest_at: one.newest.into(),
        circuit_open: one.circuit.is_some(),
        failures: one.circuit.map_or(0, |circuit| circuit.failures),
        next_probe_at: one.circuit.map(|circuit| circuit.until.into()),
    };
    let receivers = found.into_iter().map(shown).collect();
    Ok(response::json(StatusCode::OK, &Receivers { receivers, capped }))
}

pub(crate) const GET: Doc = Doc {
    responses: &[
        ResponseDoc {
            headers: &[(
                "Retry-After",
                "The number of seconds until another redelivery is accepted",
            )],
            ..ResponseDoc::json::<Delivery>(200, "The delivery")
        },
        NO_DELIVERY,
    ],
    description: "Returns the delivery with its body, its headers (secrets masked) and its \
                  attempts. `{execution}` is the ID of an execution or, for a delivery to an \
                  endpoint, the ID of the delivery. `redeliverable` tells whether a redelivery \
                  would be accepted.",
    ..Doc::new("webhooks", "get_delivery", "Get the delivery of an execution with its attempts")
};

/// `GET /v1/webhooks/{execution_id}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    get_for(&context, organization).await
}

pub(crate) const GET_OF: Doc = Doc::new("admin", "admin_get_delivery", "Get a delivery");

/// `GET /admin/webhooks/{execution_id}?organization=`
pub(crate) async fn get_of(context: Context) -> Result<Response, crate::Error> {
    let organization = organization(&context).await?;
    get_for(&context, organization).await
}

pub(crate) const REDELIVER: Doc = Doc {
    responses: &[
        ResponseDoc::json::<Redelivered>(
            202,
            "The redelivery was accepted; the same bytes are sent again",
        ),
        NO_DELIVERY,
        ResponseDoc::error(
            409,
            "An attempt is in flight or due, or the endpoint is deleted or disabled",
        ),
        ResponseDoc::error(410, "The payload is no longer stored"),
    ],
    description: "Sends the same body again with a new signature, without running anything; a \
                  delivery that waits for its next attempt is sent now. An attempt in flight or \
                  due returns 409, a body that is no longer stored 410, and a second redelivery \
                  within `webhooks.redelivery_cooldown` 429 with `Retry-After`.",
    ..Doc::new("webhooks", "redeliver", "Redeliver a webhook, or send a pending delivery now")
};

/// `POST /v1/webhooks/{execution_id}/redeliver`
pub(crate) async fn redeliver(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    redeliver_for(&context, organization).await
}

pub(crate) const REDELIVER_OF: Doc = Doc::new("admin", "admin_redeliver", "Redeliver a webhook");

/// `POST /admin/webhooks/{execution_id}/redeliver?organization=`
pub(crate) async fn redeliver_of(context: Context) -> Result<Response, crate::Error> {
    let organization = organization(&context).await?;
    let id = id_of(&context)?;
    let services = &context.services;
    let entry = services.audit.entry(&context.actor(), "webhook.redeliver", id.to_string());
    let outbox = services.outbox.clone();
    let redeliver = async move { outbox.redeliver(organization, id).await };
    let delivery = services.audit.record(entry.of(organization), redeliver).await?;
    Ok(redelivered(&delivery))
}

pub(crate) const REPLAY: Doc = Doc {
    request: Some(RequestDoc::json::<Replay>()),
    responses: &[ResponseDoc::json::<Replayed>(
        202,
        "The number of deliveries that are sent again",
    )],
    description: "Redelivers the failed deliveries that were created in a time range, at most \
                  100,000, and returns their number. Deliveries that were redelivered recently, or \
                  whose endpoint is deleted or disabled, are skipped. Use this request after an \
                  outage of a receiver.",
    ..Doc::new("webhooks", "replay", "Redeliver all failed deliveries in a time range")
};

/// `POST /v1/webhooks/replay`: redelivers all failed deliveries of a time range.
pub(crate) async fn replay(mut context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let body = parse_value(&context.request.body().await?)?;
    let Replay { from, to, status: _ } = request::read(body).map_err(|mismatch| match mismatch
        .path
        .as_str()
    {
        "status" => crate::Error::bad_request("status must be failed: nothing else is sent again"),
        _ => mismatch.into(),
    })?;
    let (from, to) = (Timestamp::from(from), Timestamp::from(to));
    if to <= from {
        return Err(crate::Error::bad_request("to must be later than from"));
    }
    let count = context.services.outbox.replay(organization, from, to).await?;
    Ok(response::json(StatusCode::ACCEPTED, &Replayed { count }))
}

pub(crate) const TEST: Doc = Doc {
    request: Some(RequestDoc::json::<NewTestDelivery>()),
    responses: &[ResponseDoc::json::<TestDelivery>(200, "The receiver's response")],
    description: "Sends a sample delivery to a URL and returns the receiver's response, whatever \
                  its status. Nothing is stored or retried. If the delivery cannot be sent now, \
                  because other deliveries wait for the receiver or its circuit is open, the \
                  response is 429 with `Retry-After`.",
    ..Doc::new("webhooks", "test_receiver", "Send a sample delivery to a URL")
};

/// `POST /v1/webhooks/test`: sends a sample delivery and returns the receiver's response.
pub(crate) async fn test(mut context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let NewTestDelivery { url, webhook_secret: secret, webhook_send_plain_secret } =
        context.request.json().await?;
    let services = &context.services;
    let url = body::webhook_url("url", Some(url), services)?.unwrap_or_default();
    let secret = secret.filter(|secret| !secret.is_empty());
    let secret = secret.map(|secret| body::sealed_secret(&secret, services)).transpose()?;
    let webhook =
        Webhook { secret, send_plain_secret: webhook_send_plain_secret, ..Webhook::unsigned(url) };
    let id: ExecutionId = new_id();
    let output = "This is a test delivery: nothing was run.";
    let output = to_raw_value(output).map_err(crate::Error::internal)?;
    let sample = Announcement {
        execution_id: id,
        exec_id: id,
        flow_id: None,
        status: execution::Status::Success.into(),
        output: Some(&output),
        error: "",
        error_cause: None,
        started_at: services.clock.now().into(),
        metrics: Metrics {
            predict_time: Some(0.0),
            queue_time: Some(0.0),
            cost: 0.0,
            cached: None,
        },
        test: Some(true),
    };
    let sample = serde_json::to_string(&sample).map_err(crate::Error::internal)?;
    let headers = headers(&webhook, MASK, services);
    let url = webhook.url.clone();
    let trial = services.outbox.send_test(organization, webhook, sample).await?;
    let body = TestDelivery::new(url, &trial.attempt, trial.body, headers);
    Ok(response::json(StatusCode::OK, &body))
}

async fn list_for(
    context: &Context,
    organization: OrganizationId,
) -> Result<Response, crate::Error> {
    let query = &context.request.query;
    let limit = query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?;
    let offset = query.number("offset", 0..=u64::from(u32::MAX), 0)?;
    let filter = filter(context)?;
    let services = &context.services;
    let found = services.outbox.list(organization, &filter, offset, usize::try_from(limit)?);
    let (found, total) = found.await.map_err(Refusal::from)?;
    let mut shown = Vec::with_capacity(found.len());
    let mut bytes = 0;
    // The dashboard's list has no payloads.
    let most = if context.source() == Source::Dashboard { 0 } else { SHOWN_MAX };
    for recorded in &found {
        let size = usize::try_from(recorded.delivery.body.len()).unwrap_or(usize::MAX);
        let fits = size <= most.saturating_sub(bytes);
        let mut record = record(services, recorded, fits).await?;
        bytes += if fits { size } else { 0 };
        record.attempts = None;
        shown.push(record);
    }
    let body = List { webhooks: shown, limit, offset, total_count: total };
    Ok(response::json(StatusCode::OK, &body))
}

async fn get_for(
    context: &Context,
    organization: OrganizationId,
) -> Result<Response, crate::Error> {
    let id = id_of(context)?;
    let services = &context.services;
    let found = services.outbox.find(organization, id).await.map_err(Refusal::from)?;
    let found = found.ok_or_else(missing)?;
    let mut answer = response::json(StatusCode::OK, &record(services, &found, true).await?);
    // If there is another reason against a redelivery, the time at which it becomes possible is
    // unknown.
    if found.is_still && !found.cooldown.is_zero() {
        let seconds = found.cooldown.as_secs().saturating_add(1);
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(answer)
}

async fn redeliver_for(
    context: &Context,
    organization: OrganizationId,
) -> Result<Response, crate::Error> {
    let id = id_of(context)?;
    let delivery = context.services.outbox.redeliver(organization, id).await?;
    Ok(redelivered(&delivery))
}

fn redelivered(delivery: &delivery::Delivery) -> Response {
    let body = Redelivered { delivery_id: delivery.id, status: DeliveryStatus::Pending };
    response::json(StatusCode::ACCEPTED, &body)
}

fn id_of(context: &Context) -> Result<ExecutionId, crate::Error> {
    context.request.param("execution").parse().map_err(|_no_id| missing())
}

fn missing() -> crate::Error {
    crate::Error::not_found("webhook not found")
}

/// Returns the organization in the query, or the default organization.
async fn organization(context: &Context) -> Result<OrganizationId, crate::Error> {
    let name = context.request.query.get("organization").unwrap_or(DEFAULT_ORGANIZATION);
    Ok(context.services.accounts.organization(name).await?.id)
}

fn filter(context: &Context) -> Result<Filter, crate::Error> {
    let query = &context.request.query;
    let standing = query.get("status").map(|status| {
        let found = DeliveryState::ALL.into_iter().find(|standing| standing.as_str() == status);
        found.ok_or_else(|| {
            let known = DeliveryState::ALL.map(DeliveryState::as_str).join(", ");
            crate::Error::bad_request(format!("status must be one of {known}"))
        })
    });
    let execution = query.get("execution").map(|id| {
        id.parse().map_err(|_no_id| crate::Error::bad_request("execution must be a UUID"))
    });
    let moment = |name: &str| query.get(name).map(|text| read_time(name, text)).transpose();
    Ok(Filter {
        state: standing.transpose()?,
        execution: execution.transpose()?,
        host: query.get("host").filter(|host| !host.is_empty()).map(str::to_owned),
        from: moment("from")?,
        to: moment("to")?,
    })
}

impl From<Refusal> for crate::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotFound => missing(),
            Refusal::InFlight => Self::conflict("delivery in flight"),
            Refusal::Cooldown { wait } => {
                Self::too_many("redelivered recently: try again after Retry-After seconds", wait)
            }
            Refusal::Busy { wait } => Self::too_many(
                "other deliveries wait for this receiver: try again after Retry-After seconds",
                wait,
            ),
            Refusal::NoEndpoint(reason) => Self::conflict(reason),
            Refusal::Gone => Self::status(StatusCode::GONE, "payload no longer stored"),
            Refusal::Failed(orrery_webhooks::Error::Store(error)) => error.into(),
        }
    }
}

async fn record(
    services: &Services,
    recorded: &Recorded,
    with_body: bool,
) -> Result<Delivery, crate::Error> {
    let Recorded { delivery, state: standing, redeliverable, next_attempt_at, .. } = recorded;
    let request = match with_body {
        false => None,
        true => match services.outbox.body(delivery).await {
            Ok(body) => Some(body),
            Err(Refusal::Gone) => None,
            Err(refusal) => return Err(refusal.into()),
        },
    };
    let execution = services.engine.get(delivery.organization, delivery.execution).await.ok();
    let redeliverable = *redeliverable && (request.is_some() || !with_body);
    let shown = Shown {
        status: wire_status(*standing),
        request,
        headers: match delivery.endpoint {
            Some(target) => {
                let endpoint = services.outbox.endpoints().known(delivery.organization, target.id);
                let is_plain = endpoint.is_some_and(|endpoint| endpoint.send_plain_secret);
                headers_of_endpoint(&delivery.id.to_string(), is_plain)
            }
            None => headers(&delivery.webhook, &delivery.id.to_string(), services),
        },
        execution_type: execution.as_ref().map(|execution| execution.kind().into()),
        source: execution.map_or(Source::Api, |execution| execution.source),
        redeliverable,
        next_attempt_at: next_attempt_at.map(Time::from),
    };
    Ok(Delivery::of(delivery, shown))
}

fn wire_status(state: DeliveryState) -> DeliveryStatus {
    match state {
        DeliveryState::Pending => DeliveryStatus::Pending,
        DeliveryState::Delivering => DeliveryStatus::Delivering,
        DeliveryState::Delivered => DeliveryStatus::Delivered,
        DeliveryState::Failed => DeliveryStatus::Failed,
    }
}

/// Returns the headers of a delivery to an endpoint. Secrets, and values that are computed for each
/// attempt, are masked.
pub(crate) fn headers_of_endpoint(id: &str, has_plain_secret: bool) -> Map<String, Value> {
    let made = ["webhook-id", "webhook-timestamp", "webhook-signature"];
    let named = [("Content-Type", "application/json"), ("X-Webhook-Delivery-Id", id)];
    let masked = made.map(|name| (name, MASK));
    let plain = has_plain_secret.then_some(("X-Webhook-Secret", MASK));
    named
        .into_iter()
        .chain(masked)
        .chain(plain)
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}

/// Returns the headers of a delivery by name. Secrets, and values that are computed for each
/// attempt, are masked.
fn headers(webhook: &Webhook, id: &str, services: &Services) -> Map<String, Value> {
    let mut headers: Map<String, Value> = Map::new();
    headers.insert("Content-Type".to_owned(), "application/json".into());
    headers.insert("X-Webhook-Delivery-Id".to_owned(), id.into());
    let signed = [
        "X-Webhook-Timestamp",
        "X-Webhook-Signature",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    ];
    if webhook.secret.is_some() {
        headers.extend(signed.map(|name| (name.to_owned(), MASK.into())));
        if services.outbox.sends_plain_secret(webhook) {
            headers.insert("X-Webhook-Secret".to_owned(), MASK.into());
        }
    }
    headers
}
