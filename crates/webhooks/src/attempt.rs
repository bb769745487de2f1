//! One attempt at one delivery: reads and signs the delivery, sends it, and commits the outcome.
//!
//! An attempt counts only once its outcome is committed: if the outcome cannot be written, the
//! attempt is repeated. Only the receiver's slot is released earlier, as soon as the receiver has
//! responded. This module never logs a secret, a body, or any part of a URL except its receiver.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use tokio::time::Instant;

use super::dispatcher::{Health, Item};
use super::endpoints::Endpoints;
use super::rows::{self, Due};
use super::transport::{Response, SendError, Transport};
use super::{Error, OnAttempt, Options};
use orrery_domain::delivery::{self, Attempt, Delivery, JITTER, Verdict};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::signature;
use orrery_domain::time::Timestamp;
use orrery_domain::webhook_endpoint::Event;
use orrery_http::trace_context;
use orrery_runtime::{self as runtime, Clock, turns};
use orrery_storage::commit::Expect;
use orrery_storage::{self as storage, Commit, Sealer, Store};

/// Maximum size of the part of a response's body that is stored, in bytes of UTF-8.
const RESPONSE_BYTES_MAX: usize = 4096;
/// Grace period after the time-out before the attempt is aborted, for a transport that does not
/// enforce the time-out itself.
const CUT_OFF_GRACE: Duration = Duration::from_secs(1);
/// Maximum number of attempts to commit an outcome while its endpoint keeps changing.
const JUDGED_AGAIN_MAX: usize = 5;
const AGENT: &str = concat!("orrery/", env!("CARGO_PKG_VERSION"));

/// The dependencies of every attempt.
pub(super) struct Context {
    pub(super) store: Store,
    pub(super) sealer: Sealer,
    pub(super) endpoints: Endpoints,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) clock: Clock,
    pub(super) options: Options,
    /// Callback after the commit of each attempt at a stored delivery.
    pub(super) on_attempt: OnceLock<OnAttempt>,
    /// Deliveries that have an attempt in flight.
    pub(super) in_flight: Mutex<HashSet<(OrganizationId, ExecutionId)>>,
    /// Locked while a finished delivery is made due again.
    pub(super) taking_up: Arc<tokio::sync::Mutex<()>>,
}

/// Marks a delivery as in flight until the guard is dropped.
struct InFlightGuard<'a> {
    context: &'a Context,
    id: (OrganizationId, ExecutionId),
}

impl Context {
    pub(super) fn in_flight(&self) -> MutexGuard<'_, HashSet<(OrganizationId, ExecutionId)>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark_in_flight(&self, item: &Item) -> InFlightGuard<'_> {
        let id = (item.organization, item.execution);
        self.in_flight().insert(id);
        InFlightGuard { context: self, id }
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.context.in_flight().remove(&self.id);
    }
}

/// The result of an attempt whose outcome has been written to the disk.
#[derive(Debug)]
pub(super) enum Report {
    /// The attempt was made. `next` is the time at which the next attempt is due.
    Made { health: Health, next: Option<Timestamp> },
    /// The row no longer exists: the row was left over from another delivery, or the delivery was
    /// redelivered or deleted in the meantime. The outcome does not count.
    StaleRow,
}

/// The reason why an attempt does not count. The delivery's row is unchanged, and the attempt is
/// repeated.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    #[error(transparent)]
    Outbox(#[from] Error),
    /// This machine lacks a resource for sending.
    #[error("{0}")]
    Local(String),
}

impl From<storage::Error> for AttemptError {
    fn from(error: storage::Error) -> Self {
        Self::Outbox(error.into())
    }
}

/// The outcome of sending, before it is committed.
struct Outcome {
    status: Option<u16>,
    response: Option<String>,
    /// The error message; `None` on success.
    error: Option<String>,
    health: Health,
    retry: Retry,
}

enum Retry {
    /// The attempt is retried according to the schedule, but not before this delay has passed.
    NotBefore(Duration),
    Never,
}

/// Makes one attempt at the delivery of `item`. `carried` is the delivery if it was handed over in
/// memory. Calls `answered` before the outcome is written.
///
/// # Errors
/// [`AttemptError`] if the store cannot be read or written, or this machine cannot send.
pub(super) async fn make(
    context: &Context,
    item: &Item,
    carried: Option<Box<Delivery>>,
    answered: impl FnOnce(Health),
) -> Result<Report, AttemptError> {
    let Some(mut delivery) = find(context, item, carried).await? else {
        let mut commit = Commit::new();
        commit.delete(item.key());
        context.store.commit(commit).await?;
        return Ok(Report::StaleRow);
    };
    let _flight = context.mark_in_flight(item);
    let started = context.clock.now();
    let clock = runtime::monotonic_now();
    let is_obsolete = is_obsolete(context, &delivery).await?;
    let outcome = match context.store.read_payload(&delivery.body).await {
        _ if is_obsolete => Outcome::never("the prediction has ended"),
        Ok(body) => {
            let body: Box<str> = body.into();
            let body = Bytes::from(body.into_string());
            deliver(context, &delivery, body, started).await.map_err(AttemptError::Local)?
        }
        Err(error) if error.is_final() => {
            let reason = match error.kind() {
                storage::Kind::Damaged => "the stored payload is damaged",
                storage::Kind::Gone | storage::Kind::TryAgain => "the payload is no longer stored",
            };
            Outcome::never(reason)
        }
        Err(error) => return Err(error.into()),
    };
    let health = outcome.health;
    let next = next_attempt(context, &delivery, &outcome);
    let attempt = outcome.noted(&delivery, started, clock);
    tracing::debug!(
        delivery = %delivery.id, execution = %delivery.execution, receiver = %item.receiver,
        attempt = attempt.number, status = attempt.status_code, error = attempt.error,
        "webhook attempt"
    );
    delivery.progress.note(attempt, next);
    answered(health);
    if !commit_outcome(context, item, &delivery, health).await? {
        return Ok(Report::StaleRow);
    }
    count(&delivery);
    if let Some(on_attempt) = context.on_attempt.get() {
        on_attempt(&delivery);
    }
    Ok(Report::Made { health, next: delivery.progress.next_attempt_at })
}

/// Returns whether the delivery is an update that was not sent before its prediction ended: the
/// receiver would get it after the last delivery. A redelivered update is sent anyway.
async fn is_obsolete(context: &Context, delivery: &Delivery) -> Result<bool, Error> {
    if !delivery.is_update || delivery.progress.redelivered_at.is_some() {
        return Ok(false);
    }
    let end = rows::load(&context.store, delivery.organization, delivery.execution).await;
    Ok(end?.is_some())
}

/// Returns the delivery of `item`. Returns `None` if the row is left over: the row's delivery is
/// deleted, finished, or due at another time.
///
/// The row is checked even if the delivery was handed over in memory, because a scan may have found
/// and sent the delivery first.
async fn find(
    context: &Context,
    item: &Item,
    carried: Option<Box<Delivery>>,
) -> Result<Option<Delivery>, Error> {
    if let Some(delivery) = carried {
        let exists = context.store.get(&item.key()).await?.is_some();
        return Ok(exists.then_some(*delivery));
    }
    let delivery = match rows::load(&context.store, item.organization, item.execution).await {
        // An unreadable record can never be sent.
        Err(Error::Store(storage::Error::Malformed(error))) => {
            tracing::error!(execution = %item.execution, %error, "webhook delivery abandoned");
            return Ok(None);
        }
        found => found?,
    };
    Ok(delivery.filter(|delivery| delivery.progress.next_attempt_at == Some(item.due)))
}

/// Commits the outcome: the delivery's progress, its row (with the next due time, or deleted), and
/// the effect on the endpoint. If the endpoint changes concurrently, the effect is determined
/// again. Returns `false` and writes nothing if the row no longer exists.
async fn commit_outcome(
    context: &Context,
    item: &Item,
    delivery: &Delivery,
    health: Health,
) -> Result<bool, Error> {
    for round in 0..=JUDGED_AGAIN_MAX {
        let mut commit = outcome_of(item, delivery)?;
        // An attempt that did not reach the receiver has no effect on the endpoint.
        let patience = context.options.disable_endpoint_after;
        let is_judged = round < JUDGED_AGAIN_MAX
            && health != Health::Unknown
            && context.endpoints.judge(&mut commit, delivery, patience).await?;
        match context.store.commit(commit).await {
            Err(storage::Error::Conflict { key }) if key == item.key() => return Ok(false),
            Err(storage::Error::Conflict { .. }) if is_judged => {}
            written => return Ok(written.map(|()| true)?),
        }
    }
    Ok(false)
}

fn outcome_of(item: &Item, delivery: &Delivery) -> Result<Commit, Error> {
    let organization = delivery.organization;
    let execution = delivery.row();
    let mut commit = Commit::new();
    commit.expect(Expect::Present(item.key())).delete(item.key());
    let progress = rows::progress(organization, execution);
    commit.put(progress, &delivery.progress)?;
    // Only pending deliveries are attempted.
    rows::move_status_row(&mut commit, delivery, Some(delivery::Status::Pending));
    if let Some(next) = delivery.progress.next_attempt_at {
        let row = Due { receiver: item.receiver.to_string() };
        let key = rows::due(next, organization, execution);
        commit.put(key, &row)?;
    }
    Ok(commit)
}

/// Returns the due time of the next attempt: after the schedule's delay, or after the receiver's
/// `Retry-After` if that is longer. Updates are not retried.
fn next_attempt(context: &Context, delivery: &Delivery, outcome: &Outcome) -> Option<Timestamp> {
    let Retry::NotBefore(wait) = outcome.retry else { return None };
    if delivery.is_update {
        return None;
    }
    let attempt = delivery.progress.round.saturating_add(1);
    let delay = delivery::next_delay(&context.options.schedule, attempt, jitter())?;
    Some(context.clock.steady().plus(delay.max(wait)))
}

/// Returns a fraction between -[`JITTER`] and [`JITTER`]; 0 if the system provides no randomness.
fn jitter() -> f64 {
    let random = runtime::random_bytes::<4>().map_or(u32::MAX / 2, u32::from_ne_bytes);
    (f64::from(random) / f64::from(u32::MAX)).mul_add(2.0, -1.0) * JITTER
}

/// Sends a delivery once. `Err` contains the resource that this machine lacks; in that case,
/// nothing was sent.
async fn deliver(
    context: &Context,
    delivery: &Delivery,
    body: Bytes,
    now: Timestamp,
) -> Result<Outcome, String> {
    if let Some(reason) = without_endpoint(context, delivery) {
        return Ok(Outcome::never(reason));
    }
    let request = match request(context, delivery, body, now) {
        Ok(request) => request,
        Err(reason) => {
            let mut outcome = Outcome::unsent(reason);
            outcome.health = Health::Unknown;
            return Ok(outcome);
        }
    };
    let limit = context.options.timeout.saturating_add(CUT_OFF_GRACE);
    // A panic in the transport fails only this attempt.
    let sending = AssertUnwindSafe(context.transport.send(request)).catch_unwind();
    let sending = turns::timeout(limit, sending);
    Ok(match turns::on_behalf_of(delivery.organization, sending).await {
        Ok(Ok(Ok(answer))) => Outcome::answered(&answer, context.clock.now()),
        Ok(Ok(Err(SendError::Receiver(reason)))) => Outcome::unsent(reason),
        Ok(Ok(Err(SendError::Local(reason)))) => return Err(reason),
        Ok(Err(_panic)) => {
            let mut outcome = Outcome::unsent("the service failed while sending".to_owned());
            outcome.health = Health::Unknown;
            outcome
        }
        Err(_elapsed) => {
            let timeout = humantime::format_duration(context.options.timeout);
            Outcome::unsent(format!("no complete answer within {timeout}"))
        }
    })
}

/// Returns the reason why the delivery's endpoint cannot receive the delivery; `None` if the
/// endpoint can.
pub(super) fn without_endpoint(context: &Context, delivery: &Delivery) -> Option<&'static str> {
    let target = delivery.endpoint?;
    match context.endpoints.known(delivery.organization, target.id) {
        None => Some("the webhook endpoint is deleted"),
        Some(endpoint) if endpoint.disabled.is_some() && target.event != Event::EndpointTest => {
            Some("the webhook endpoint is disabled")
        }
        Some(_) => None,
    }
}

/// Returns the request, with `now` as its signing time if the delivery has a secret
/// (`docs/spec/webhooks.md`, "Headers").
fn request(
    context: &Context,
    delivery: &Delivery,
    body: Bytes,
    now: Timestamp,
) -> Result<Request<Bytes>, String> {
    let mut url = url::Url::parse(&delivery.webhook.url)
        .map_err(|error| format!("the webhook_url is not an absolute URL: {error}"))?;
    url.set_fragment(None);
    let mut request = Request::new(Bytes::new());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url
        .as_str()
        .parse()
        .map_err(|error: hyper::http::uri::InvalidUri| format!("the webhook_url: {error}"))?;
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let id = delivery.id.to_string();
    set_header(headers, "x-webhook-delivery-id", &id)?;
    if delivery.progress.redelivery {
        headers.insert("x-webhook-redelivery", HeaderValue::from_static("true"));
    }
    if let Some(target) = delivery.endpoint {
        let endpoint = context.endpoints.known(delivery.organization, target.id);
        let endpoint = endpoint.ok_or("the webhook endpoint is deleted")?;
        let signatures = context.endpoints.signatures(&endpoint, &id, now, &body)?;
        set_header(headers, "webhook-id", &id)?;
        set_header(headers, "webhook-timestamp", &now.unix_seconds().to_string())?;
        set_header(headers, "webhook-signature", &signatures)?;
        if let Some(secret) = context.endpoints.plain_secret(&endpoint)? {
            set_header(headers, "x-webhook-secret", &secret)?;
        }
    }
    if let Some(sealed) = &delivery.webhook.secret {
        let secret = context.sealer.unseal(sealed).map_err(|error| error.to_string())?;
        let seconds = now.unix_seconds();
        set_header(headers, "x-webhook-timestamp", &seconds.to_string())?;
        set_header(headers, "x-webhook-signature", &signature::sign(&secret, seconds, &body))?;
        set_header(headers, "webhook-id", &id)?;
        set_header(headers, "webhook-timestamp", &seconds.to_string())?;
        let standard = signature::sign_standard(&secret, &id, seconds, &body);
        set_header(headers, "webhook-signature", &standard)?;
        if delivery.webhook.send_plain_secret.unwrap_or(context.options.send_plain_secret) {
            set_header(headers, "x-webhook-secret", &secret)?;
        }
    }
    let key = delivery.attempt_key(delivery.progress.next_number());
    trace_context::pass_on(headers, &delivery.trace().call(&key));
    *request.body_mut() = body;
    Ok(request)
}

/// Sets a header whose value may be a secret, marked as sensitive so that it is neither printed nor
/// compressed.
fn set_header(headers: &mut HeaderMap, name: &'static str, value: &str) -> Result<(), String> {
    let mut value = HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_not_a_value| format!("the header {name} has an invalid value"))?;
    value.set_sensitive(true);
    headers.insert(HeaderName::from_static(name), value);
    Ok(())
}

/// Makes one attempt at a delivery that is not stored. Returns the outcome and the receiver's
/// health.
pub(super) async fn dry_run(
    context: &Context,
    delivery: &Delivery,
    body: Bytes,
) -> (Attempt, Health) {
    let started = context.clock.now();
    let clock = runtime::monotonic_now();
    let outcome = deliver(context, delivery, body, started).await.unwrap_or_else(|reason| {
        let mut outcome = Outcome::unsent(reason);
        outcome.health = Health::Unknown;
        outcome
    });
    let health = outcome.health;
    (outcome.noted(delivery, started, clock), health)
}

impl Outcome {
    /// Converts the outcome to the form in which an attempt is stored.
    fn noted(self, delivery: &Delivery, started: Timestamp, clock: Instant) -> Attempt {
        Attempt {
            number: delivery.progress.next_number(),
            status_code: self.status,
            response: self.response,
            error: self.error,
            duration_ms: u64::try_from(clock.elapsed().as_millis()).unwrap_or(u64::MAX),
            redelivery: delivery.progress.redelivery,
            created_at: started,
        }
    }

    /// Creates the outcome of an attempt that got no response, with the given reason; the attempt
    /// is retried according to the schedule.
    const fn unsent(reason: String) -> Self {
        Self {
            status: None,
            response: None,
            error: Some(reason),
            health: Health::Failing,
            retry: Retry::NotBefore(Duration::ZERO),
        }
    }

    /// Creates the outcome of a delivery that can never be sent, with the given reason.
    fn never(reason: &str) -> Self {
        let unsent = Self::unsent(reason.to_owned());
        Self { health: Health::Unknown, retry: Retry::Never, ..unsent }
    }

    fn answered(answer: &Response, now: Timestamp) -> Self {
        let verdict = delivery::judge(answer.status);
        let asked = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let wait = asked.and_then(|text| delivery::retry_after(text, now)).unwrap_or_default();
        let trouble = delivery::tells_of_trouble(answer.status);
        Self {
            status: Some(answer.status),
            response: Some(excerpt(&answer.body)),
            error: (verdict != Verdict::Success).then(|| describe_status(answer.status)),
            health: if trouble { Health::Failing } else { Health::Healthy },
            retry: match verdict {
                Verdict::Success | Verdict::Gone => Retry::Never,
                Verdict::Retry => Retry::NotBefore(Duration::ZERO),
                Verdict::RetryAfter => Retry::NotBefore(wait),
            },
        }
    }
}

/// Returns the first 4 KiB of a response as text, with invalid UTF-8 replaced.
fn excerpt(body: &[u8]) -> String {
    let beginning = body.get(..RESPONSE_BYTES_MAX).unwrap_or(body);
    let mut text = String::from_utf8_lossy(beginning).into_owned();
    text.truncate(text.floor_char_boundary(RESPONSE_BYTES_MAX));
    text
}

fn describe_status(status: u16) -> String {
    let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    let remark = match status {
        300..=399 => "; redirects are not followed",
        410 => "; nothing more is sent",
        _ => "",
    };
    match reason {
        Some(reason) => format!("the receiver answered {status} {reason}{remark}"),
        None => format!("the receiver answered {status}{remark}"),
    }
}

fn count(delivery: &Delivery) {
    let outcome = match delivery.progress.status {
        delivery::Status::Pending => {
            metrics::counter!("orrery_webhook_retries_total").increment(1);
            return;
        }
        delivery::Status::Delivered => "delivered",
        delivery::Status::Failed => "failed",
    };
    metrics::counter!("orrery_webhook_deliveries_total", "outcome" => outcome).increment(1);
}
