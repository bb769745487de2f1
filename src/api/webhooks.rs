//! Deliveries of webhooks (`spec/decisions.md` part 11): what was sent, what was said, and sending
//! it again. One set of answers for clients and for the operator.

use hyper::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::fields::Fields;
use super::{Context, Services};
use crate::accounts::DEFAULT_ORGANIZATION;
use crate::domain::delivery::{Attempt, Delivery, Webhook};
use crate::domain::execution::Source;
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::time::Timestamp;
use crate::http::{self, Reply, reply};
use crate::runtime::fresh;
use crate::webhooks::{Filter, Recorded, Refusal, Standing};

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 100;
/// Bytes of payloads that one list shows; further ones are null there.
const SHOWN_MAX: usize = 4 * 1024 * 1024;
/// Stands for what is not shown.
const MASK: &str = "********";

/// `GET /v1/webhooks?status=&execution=&host=&from=&to=&limit=&offset=`
pub async fn list(context: Context) -> Result<Reply, http::Error> {
    let organization = context.caller()?.organization;
    list_for(&context, organization).await
}

/// `GET /admin/webhooks?organization=`, and the same.
pub async fn list_of(context: Context) -> Result<Reply, http::Error> {
    let organization = organization(&context).await?;
    list_for(&context, organization).await
}

/// `GET /v1/webhooks/{execution_id}`
pub async fn get(context: Context) -> Result<Reply, http::Error> {
    let organization = context.caller()?.organization;
    get_for(&context, organization).await
}

/// `GET /admin/webhooks/{execution_id}?organization=`
pub async fn get_of(context: Context) -> Result<Reply, http::Error> {
    let organization = organization(&context).await?;
    get_for(&context, organization).await
}

/// `POST /v1/webhooks/{execution_id}/redeliver`
pub async fn redeliver(context: Context) -> Result<Reply, http::Error> {
    let organization = context.caller()?.organization;
    redeliver_for(&context, organization).await
}

/// `POST /admin/webhooks/{execution_id}/redeliver?organization=`
pub async fn redeliver_of(context: Context) -> Result<Reply, http::Error> {
    let organization = organization(&context).await?;
    let id = id_of(&context)?;
    let services = &context.services;
    let entry = services.audit.entry(&context.actor(), "webhook.redeliver", id.to_string());
    let outbox = services.outbox.clone();
    let redeliver = async move { outbox.redeliver(organization, id).await };
    let delivery = services.audit.record(entry.of(organization), redeliver).await?;
    Ok(redelivered(&delivery))
}

/// `POST /v1/webhooks/replay`: everything that failed in a window.
pub async fn replay(mut context: Context) -> Result<Reply, http::Error> {
    let organization = context.caller()?.organization;
    let fields = Fields::parse(&context.call.body().await?)?;
    let moment = |name: &str| {
        let text = fields.text(name)?;
        let text = text.ok_or_else(|| http::Error::bad_request(format!("{name} is required")))?;
        parse_time(name, text)
    };
    let (from, to) = (moment("from")?, moment("to")?);
    if to <= from {
        return Err(http::Error::bad_request("to must be later than from"));
    }
    if fields.text("status")?.is_some_and(|status| status != "failed") {
        return Err(http::Error::bad_request("status must be failed: nothing else is sent again"));
    }
    let count = context.services.outbox.replay(organization, from, to).await?;
    Ok(reply::json(StatusCode::ACCEPTED, &json!({"count": count})))
}

/// `POST /v1/webhooks/test`: one sample delivery, and what the receiver said.
pub async fn test(mut context: Context) -> Result<Reply, http::Error> {
    let organization = context.caller()?.organization;
    let fields = Fields::parse(&context.call.body().await?)?;
    let services = &context.services;
    let webhook = fields.webhook_at("url", services)?;
    let webhook = webhook.ok_or_else(|| http::Error::bad_request("url is required"))?;
    let id: ExecutionId = fresh();
    let now = services.clock.now().to_string();
    let sample = json!({
        "execution_id": id.to_string(),
        "exec_id": id.to_string(),
        "flow_id": null,
        "status": "completed",
        "output": "This is a test delivery: nothing was run.",
        "error": "",
        "error_cause": null,
        "started_at": now,
        "metrics": {"predict_time": 0.0, "queue_time": 0.0, "cost": 0.0},
        "test": true,
    });
    let headers = headers(&webhook, MASK, services);
    let url = webhook.url.clone();
    let trial = services.outbox.try_out(organization, webhook, sample.to_string()).await;
    let trial = trial?;
    let tried = Tried::of(&trial.attempt);
    let body = json!({
        "url": url,
        "status": tried.status,
        "status_code": tried.status_code,
        "response": tried.response,
        "error_message": tried.error_message,
        "duration_ms": tried.duration_ms,
        "request": trial.body,
        "headers": headers,
    });
    Ok(reply::json(StatusCode::OK, &body))
}

async fn list_for(context: &Context, organization: OrganizationId) -> Result<Reply, http::Error> {
    let query = &context.call.query;
    let limit = query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?;
    let offset = query.number("offset", 0..=u64::from(u32::MAX), 0)?;
    let filter = filter(context)?;
    let services = &context.services;
    let found = services.outbox.list(organization, &filter, offset, usize::try_from(limit)?);
    let (found, total) = found.await.map_err(Refusal::from)?;
    let (mut shown, mut bytes) = (Vec::with_capacity(found.len()), 0);
    for recorded in &found {
        let size = usize::try_from(recorded.delivery.body.len()).unwrap_or(usize::MAX);
        let fits = size <= SHOWN_MAX.saturating_sub(bytes);
        let mut record = record(services, recorded, fits).await?;
        bytes += if fits { size } else { 0 };
        record.attempts = None;
        shown.push(record);
    }
    let body = json!({
        "webhooks": serde_json::to_value(&shown).map_err(http::Error::internal)?,
        "limit": limit,
        "offset": offset,
        "total_count": total,
    });
    Ok(reply::json(StatusCode::OK, &body))
}

async fn get_for(context: &Context, organization: OrganizationId) -> Result<Reply, http::Error> {
    let id = id_of(context)?;
    let services = &context.services;
    let found = services.outbox.find(organization, id).await.map_err(Refusal::from)?;
    let found = found.ok_or_else(missing)?;
    Ok(reply::json(StatusCode::OK, &record(services, &found, true).await?))
}

async fn redeliver_for(
    context: &Context,
    organization: OrganizationId,
) -> Result<Reply, http::Error> {
    let id = id_of(context)?;
    let delivery = context.services.outbox.redeliver(organization, id).await?;
    Ok(redelivered(&delivery))
}

fn redelivered(delivery: &Delivery) -> Reply {
    let body = json!({"delivery_id": delivery.id.to_string(), "status": "pending"});
    reply::json(StatusCode::ACCEPTED, &body)
}

fn id_of(context: &Context) -> Result<ExecutionId, http::Error> {
    context.call.param("execution").parse().map_err(|_no_id| missing())
}

fn missing() -> http::Error {
    http::Error::not_found("webhook not found")
}

/// The organization that the query names, or the default one.
async fn organization(context: &Context) -> Result<OrganizationId, http::Error> {
    let name = context.call.query.get("organization").unwrap_or(DEFAULT_ORGANIZATION);
    Ok(context.services.accounts.organization(name).await?.id)
}

fn filter(context: &Context) -> Result<Filter, http::Error> {
    let query = &context.call.query;
    let given = |name: &str| query.get(name).filter(|text| !text.is_empty());
    let standing = given("status").map(|status| {
        let found = Standing::ALL.into_iter().find(|standing| standing.as_str() == status);
        found.ok_or_else(|| {
            let known = Standing::ALL.map(Standing::as_str).join(", ");
            http::Error::bad_request(format!("status must be one of {known}"))
        })
    });
    let execution = given("execution").map(|id| {
        id.parse().map_err(|_no_id| http::Error::bad_request("execution must be a UUID"))
    });
    let moment = |name: &str| given(name).map(|text| parse_time(name, text)).transpose();
    Ok(Filter {
        standing: standing.transpose()?,
        execution: execution.transpose()?,
        host: given("host").map(str::to_owned),
        from: moment("from")?,
        to: moment("to")?,
    })
}

pub fn parse_time(name: &str, text: &str) -> Result<Timestamp, http::Error> {
    let message = || format!("{name} must be a time such as 2026-11-20T09:30:00Z");
    text.parse().map_err(|_no_time| http::Error::bad_request(message()))
}

impl From<Refusal> for http::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotFound => missing(),
            Refusal::InFlight => Self::conflict("delivery in flight"),
            Refusal::Cooling { wait } => Self::too_many(
                "redelivered a moment ago: come back after Retry-After seconds",
                wait,
            ),
            Refusal::Busy { wait } => Self::too_many(
                "other deliveries wait for this receiver: come back after Retry-After seconds",
                wait,
            ),
            Refusal::Gone => Self::status(StatusCode::GONE, "payload no longer stored"),
            Refusal::Failed(crate::webhooks::Error::Store(error)) => error.into(),
        }
    }
}

/// A delivery as clients read it.
#[derive(Serialize)]
struct Record {
    delivery_id: String,
    execution_id: String,
    url: String,
    status: &'static str,
    /// The payload, as it is sent; null when it is no longer stored, or does not fit into a list.
    request: Option<String>,
    headers: Value,
    source: &'static str,
    created_at: String,
    next_attempt_at: Option<String>,
    redeliverable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<Vec<Tried>>,
}

#[derive(Serialize)]
struct Tried {
    number: u32,
    status: &'static str,
    status_code: Option<u16>,
    response: Option<String>,
    error_message: Option<String>,
    duration_ms: Option<u64>,
    redelivery: bool,
    created_at: Option<String>,
}

impl Tried {
    fn of(attempt: &Attempt) -> Self {
        Self {
            number: attempt.number,
            status: if attempt.error.is_none() { "SUCCESS" } else { "FAILED" },
            status_code: attempt.status_code,
            response: attempt.response.clone(),
            error_message: attempt.error.clone(),
            duration_ms: Some(attempt.duration_ms),
            redelivery: attempt.redelivery,
            created_at: Some(attempt.created_at.to_string()),
        }
    }

    /// The attempt that is being made.
    const fn pending(number: u32, redelivery: bool) -> Self {
        Self {
            number,
            status: "PENDING",
            status_code: None,
            response: None,
            error_message: None,
            duration_ms: None,
            redelivery,
            created_at: None,
        }
    }
}

async fn record(
    services: &Services,
    recorded: &Recorded,
    with_body: bool,
) -> Result<Record, http::Error> {
    let Recorded { delivery, standing, redeliverable } = recorded;
    let progress = &delivery.progress;
    let request = match with_body {
        false => None,
        true => match services.outbox.body(delivery).await {
            Ok(body) => Some(body),
            Err(Refusal::Gone) => None,
            Err(refusal) => return Err(refusal.into()),
        },
    };
    let mut attempts: Vec<Tried> = progress.attempts.iter().map(Tried::of).collect();
    if *standing == Standing::Delivering {
        attempts.push(Tried::pending(progress.next_number(), progress.redelivery));
    }
    let execution = services.engine.get(delivery.organization, delivery.execution).await;
    Ok(Record {
        delivery_id: delivery.id.to_string(),
        execution_id: delivery.execution.to_string(),
        url: delivery.webhook.url.clone(),
        status: standing.as_str(),
        headers: headers(&delivery.webhook, &delivery.id.to_string(), services),
        source: match execution.map_or(Source::Api, |execution| execution.source) {
            Source::Api => "api",
            Source::Dashboard => "dashboard",
            Source::Agent => "agent",
        },
        created_at: delivery.created_at.to_string(),
        next_attempt_at: progress.next_attempt_at.map(|time| time.to_string()),
        redeliverable: *redeliverable && (request.is_some() || !with_body),
        request,
        attempts: Some(attempts),
    })
}

/// The headers of a delivery by name; what is secret or made at each sending is masked.
fn headers(webhook: &Webhook, id: &str, services: &Services) -> Value {
    let mut headers = json!({
        "Content-Type": "application/json",
        "X-Webhook-Delivery-Id": id,
    });
    let signed = [
        "X-Webhook-Timestamp",
        "X-Webhook-Signature",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    ];
    if let Value::Object(fields) = &mut headers
        && webhook.secret.is_some()
    {
        fields.extend(signed.map(|name| (name.to_owned(), MASK.into())));
        if services.outbox.sends_plain_secret() {
            fields.insert("X-Webhook-Secret".to_owned(), MASK.into());
        }
    }
    headers
}
