//! A webhook delivery: its body, receiver and attempts, and the pure rules for its retries
//! (`docs/spec/webhooks.md`, "Schedule").
//!
//! Nothing here sends, waits or draws random numbers; the outbox in `webhooks` does that.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, NaiveDateTime};
use serde::{Deserialize, Serialize};
use url::Url;

use super::ids::{DeliveryId, EndpointId, ExecutionId, Id as _, OrganizationId};
use super::payload::Payload;
use super::replicate;
use super::time::Timestamp;
use super::trace::{self, Trace};
use super::webhook_endpoint::Event;

/// Maximum length of a webhook's URL, in bytes.
pub const URL_BYTES_MAX: usize = 8192;

/// The webhook of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// The URL, an absolute http(s) URL.
    pub url: String,
    /// The signing secret, sealed by `storage::Sealer`; never plaintext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Whether deliveries also carry the secret itself; `None` means the service's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_plain_secret: Option<bool>,
    /// The events that the webhook announces in the format of Replicate's API; `None` for a webhook
    /// in the service's own format, which announces only the end of the execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicate: Option<Vec<replicate::Event>>,
}

impl Webhook {
    /// Creates a webhook without a secret, for a receiver that checks no signature or whose
    /// endpoint has its own secret.
    #[must_use]
    pub const fn unsigned(url: String) -> Self {
        Self { url, secret: None, send_plain_secret: None, replicate: None }
    }
}

/// The status of a delivery. `delivering` is not stored: only a running process can have a delivery
/// in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Pending,
    Delivered,
    Failed,
}

/// One POST to the receiver and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The attempt's number, from 1.
    pub number: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    /// The first 4 KiB of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// The reason for the failure; absent on success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub duration_ms: u64,
    pub redelivery: bool,
    pub created_at: Timestamp,
}

/// The endpoint of a delivery and the event that it reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub id: EndpointId,
    pub event: Event,
}

/// A delivery. There is one delivery for each execution with a webhook, one for each update of a
/// running prediction, and one for each endpoint that is notified of an execution's event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub id: DeliveryId,
    pub organization: OrganizationId,
    pub execution: ExecutionId,
    /// The endpoint and its event; `None` if the delivery is for the execution's own webhook.
    pub endpoint: Option<Target>,
    /// Whether the delivery is an update of a running prediction, which is never retried because a
    /// later update or the end replaces it.
    pub is_update: bool,
    pub webhook: Webhook,
    /// The body, stored as text so that each attempt sends the same bytes.
    pub body: Payload,
    pub created_at: Timestamp,
    /// The trace context of the request that created the execution.
    pub origin: Option<Arc<trace::Origin>>,
    pub progress: DeliveryProgress,
}

/// The mutable state of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryProgress {
    pub status: Status,
    /// The attempts, oldest first; only the newest [`ATTEMPTS_KEPT`] attempts are kept.
    pub attempts: Vec<Attempt>,
    /// Attempts of the current round. Each redelivery resets the number to 0 and restarts the
    /// schedule.
    pub round: u32,
    /// Whether the current round is a redelivery.
    #[serde(default)]
    pub redelivery: bool,
    /// When the next attempt is due; this time is also part of the key of the delivery's row in the
    /// due index. `None` if the delivery is final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Timestamp>,
    /// Time of the latest redelivery request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redelivered_at: Option<Timestamp>,
}

/// Maximum number of attempts retained per delivery; older ones are dropped. This number is more
/// than the attempts of a schedule plus a few redeliveries, but that many attempts still fit in one
/// record.
pub const ATTEMPTS_KEPT: usize = 40;

/// Maximum delay that a receiver can request with `Retry-After`.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// Maximum deviation of a delay from the schedule, as a fraction of the delay.
pub const JITTER: f64 = 0.1;

impl Delivery {
    /// Creates a delivery at `now` that is due at once.
    #[must_use]
    pub const fn new(
        id: DeliveryId,
        organization: OrganizationId,
        execution: ExecutionId,
        webhook: Webhook,
        body: Payload,
        now: Timestamp,
    ) -> Self {
        let progress = DeliveryProgress::new(now);
        Self {
            id,
            organization,
            execution,
            endpoint: None,
            is_update: false,
            webhook,
            body,
            created_at: now,
            origin: None,
            progress,
        }
    }

    /// Adds the trace of the delivery's execution.
    #[must_use]
    pub fn traced(self, origin: Option<Arc<trace::Origin>>) -> Self {
        Self { origin, ..self }
    }

    /// Returns the trace of the delivery's execution.
    #[must_use]
    pub fn trace(&self) -> Trace {
        Trace::new(self.execution, self.origin.clone())
    }

    /// Returns the id of an attempt; stable across restarts.
    #[must_use]
    pub fn attempt_key(&self, attempt: u32) -> String {
        format!("{}:{attempt}", self.id)
    }

    /// Addresses the delivery to an endpoint.
    #[must_use]
    pub const fn to(mut self, endpoint: EndpointId, event: Event) -> Self {
        self.endpoint = Some(Target { id: endpoint, event });
        self
    }

    /// Turns the delivery into an update of a running prediction.
    #[must_use]
    pub const fn update(mut self) -> Self {
        self.is_update = true;
        self
    }

    /// Returns whether an execution can have several deliveries of this kind: true for updates, and
    /// for deliveries to endpoints.
    #[must_use]
    pub const fn is_one_of_many(&self) -> bool {
        self.is_update || self.endpoint.is_some()
    }

    /// Returns the key of the delivery's rows: the id of the execution with the webhook, or the
    /// delivery's own id if the execution can have several deliveries of this kind.
    #[must_use]
    pub fn row(&self) -> ExecutionId {
        if self.is_one_of_many() { ExecutionId::from(self.id.bytes()) } else { self.execution }
    }
}

impl DeliveryProgress {
    /// Creates the progress of a new delivery, whose first attempt is due at once.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self {
            status: Status::Pending,
            attempts: Vec::new(),
            round: 0,
            redelivery: false,
            next_attempt_at: Some(now),
            redelivered_at: None,
        }
    }

    /// Restarts the schedule; the first attempt is due at once.
    pub fn redeliver(&mut self, now: Timestamp) {
        self.status = Status::Pending;
        self.round = 0;
        self.redelivery = true;
        self.next_attempt_at = Some(now);
        self.redelivered_at = Some(now);
    }

    /// Returns whether no attempt is in flight or due, because the delivery has ended or its next
    /// attempt is due later.
    #[must_use]
    pub fn rests(&self, now: Timestamp) -> bool {
        self.status != Status::Pending || self.next_attempt_at.is_some_and(|due| due > now)
    }

    /// Returns the remaining cooldown after the last redelivery request; zero if a redelivery is
    /// allowed.
    #[must_use]
    pub fn cools_for(&self, cooldown: Duration, now: Timestamp) -> Duration {
        let passed = self.redelivered_at.map_or(cooldown, |asked| now.since(asked));
        cooldown.saturating_sub(passed)
    }

    /// Returns the number of the next attempt, from 1.
    #[must_use]
    pub fn next_number(&self) -> u32 {
        self.attempts.last().map_or(0, |attempt| attempt.number).saturating_add(1)
    }

    /// Records an attempt. `next` is when the next attempt is due; `None` ends the delivery.
    pub fn note(&mut self, attempt: Attempt, next: Option<Timestamp>) {
        self.status = match (attempt.error.is_none(), next) {
            (true, _) => Status::Delivered,
            (false, Some(_)) => Status::Pending,
            (false, None) => Status::Failed,
        };
        self.next_attempt_at = next.filter(|_due| self.status == Status::Pending);
        self.round = self.round.saturating_add(1);
        self.attempts.push(attempt);
        let surplus = self.attempts.len().saturating_sub(ATTEMPTS_KEPT);
        self.attempts.drain(..surplus);
    }
}

/// The meaning of a response status for the delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Acknowledged: no further attempt is made.
    Success,
    /// Failed: retried according to the schedule.
    Retry,
    /// Failed: retried according to the schedule, but not before the time in `Retry-After`.
    RetryAfter,
    /// The receiver refuses further attempts for this delivery.
    Gone,
}

/// Judges a response by its status: any 2xx is a success, 410 ends the retries, and a redirect is
/// an ordinary failure.
#[must_use]
pub const fn judge(status: u16) -> Verdict {
    match status {
        200..=299 => Verdict::Success,
        410 => Verdict::Gone,
        429 | 503 => Verdict::RetryAfter,
        _ => Verdict::Retry,
    }
}

/// Returns whether a status indicates a failing receiver. Such a status counts toward opening the
/// receiver's circuit breaker, as a missing response does. Any other response comes from a working
/// receiver, even if it rejects this delivery.
#[must_use]
pub const fn tells_of_trouble(status: u16) -> bool {
    matches!(status, 429 | 500..=599)
}

/// Returns the delay between the `attempt`th attempt of a round (from 1) and the next attempt,
/// varied by `jitter` (a fraction of the delay, clamped to ±[`JITTER`]); `None` at the end of the
/// schedule.
#[must_use]
pub fn next_delay(schedule: &[Duration], attempt: u32, jitter: f64) -> Option<Duration> {
    let index = usize::try_from(attempt).unwrap_or(usize::MAX).checked_sub(1)?;
    let delay = *schedule.get(index)?;
    let jitter = if jitter.is_finite() { jitter.clamp(-JITTER, JITTER) } else { 0.0 };
    Some(Duration::try_from_secs_f64(delay.as_secs_f64() * (1.0 + jitter)).unwrap_or(delay))
}

/// Returns the delay requested by a `Retry-After` header (RFC 9110, section 10.2.3): seconds, or a
/// date in one of the three forms of section 5.6.7. At most [`RETRY_AFTER_MAX`]; `None` if the
/// header has another form.
#[must_use]
pub fn retry_after(header: &str, now: Timestamp) -> Option<Duration> {
    let header = header.trim();
    if !header.is_empty() && header.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number too large for a u64 still means a very long delay.
        let seconds = header.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
    }
    Some(http_date(header)?.since(now).min(RETRY_AFTER_MAX))
}

fn http_date(text: &str) -> Option<Timestamp> {
    let micros = match DateTime::parse_from_rfc2822(text) {
        Ok(date) => date.timestamp_micros(),
        Err(_not_the_current_form) => ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"]
            .iter()
            .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())?
            .and_utc()
            .timestamp_micros(),
    };
    Some(Timestamp::from_micros(micros))
}

/// Returns the origin of a URL (scheme, host and port), which identifies a receiver, such as
/// `https://example.com:443`. All URLs that are not absolute http(s) URLs share one receiver, to
/// which every attempt fails.
#[must_use]
pub fn receiver(url: &str) -> String {
    Url::parse(url)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https"))
        .and_then(|url| {
            let port = url.port_or_known_default()?;
            Some(format!("{}://{}:{port}", url.scheme(), url.host_str()?))
        })
        .unwrap_or_else(|| "invalid:".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn delivery_verdict_depends_on_status() {
        for (statuses, verdict, trouble) in [
            (vec![200, 201, 202, 204, 299], Verdict::Success, false),
            (vec![301, 302, 307, 308], Verdict::Retry, false),
            (vec![400, 401, 403, 404, 408, 422], Verdict::Retry, false),
            (vec![410], Verdict::Gone, false),
            (vec![429, 503], Verdict::RetryAfter, true),
            (vec![500, 502, 504, 599], Verdict::Retry, true),
            (vec![0, 100, 199, 600, 999], Verdict::Retry, false),
        ] {
            for status in statuses {
                assert_eq!(judge(status), verdict, "{status}");
                assert_eq!(tells_of_trouble(status), trouble, "{status}");
            }
        }
    }

    #[test]
    fn delivery_retry_schedule_ends() {
        let schedule = [5 * SECOND, 30 * SECOND];
        assert_eq!(next_delay(&schedule, 0, 0.0), None);
        assert_eq!(next_delay(&schedule, 1, 0.0), Some(5 * SECOND));
        assert_eq!(next_delay(&schedule, 2, 0.1), Some(33 * SECOND));
        assert_eq!(next_delay(&schedule, 2, -7.0), Some(27 * SECOND));
        assert_eq!(next_delay(&schedule, 2, f64::NAN), Some(30 * SECOND));
        assert_eq!(next_delay(&schedule, 3, 0.0), None);
        assert_eq!(next_delay(&schedule, u32::MAX, 0.0), None);
    }

    #[test]
    fn retry_after_parses_every_form() {
        let now: Timestamp = "1994-11-06T08:49:00Z".parse().unwrap();
        for (header, expected) in [
            ("0", Some(Duration::ZERO)),
            (" 120 ", Some(120 * SECOND)),
            ("3601", Some(RETRY_AFTER_MAX)),
            ("99999999999999999999999999", Some(RETRY_AFTER_MAX)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(37 * SECOND)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(37 * SECOND)),
            ("Sun Nov  6 08:49:37 1994", Some(37 * SECOND)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(Duration::ZERO)),
            ("Sat, 06 Nov 2094 08:49:37 GMT", Some(RETRY_AFTER_MAX)),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(retry_after(header, now), expected, "{header:?}");
        }
    }

    #[test]
    fn delivery_endpoint_is_scheme_host_and_port() {
        for (url, expected) in [
            ("https://Example.com/a?b#c", "https://example.com:443"),
            ("https://example.com:443/", "https://example.com:443"),
            ("http://user:word@example.com", "http://example.com:80"),
            ("http://[::1]:9/x", "http://[::1]:9"),
            ("http://127.1:8080", "http://127.0.0.1:8080"),
            ("ftp://example.com", "invalid:"),
            ("/relative", "invalid:"),
            ("", "invalid:"),
        ] {
            assert_eq!(receiver(url), expected, "{url:?}");
        }
    }

    #[test]
    fn delivery_keeps_latest_attempts_and_continues_numbering() {
        let mut progress = DeliveryProgress::new(Timestamp::from_micros(1));
        for number in 1..=100 {
            assert_eq!(progress.next_number(), number);
            let attempt = Attempt {
                number,
                status_code: Some(500),
                response: None,
                error: Some("the receiver answered 500".to_owned()),
                duration_ms: 1,
                redelivery: false,
                created_at: Timestamp::from_micros(1),
            };
            progress.note(attempt, Some(Timestamp::from_micros(2)));
        }
        assert_eq!(progress.attempts.len(), ATTEMPTS_KEPT);
        assert_eq!((progress.round, progress.status), (100, Status::Pending));
    }

    proptest! {
        #[test]
        fn delivery_retry_jitter_stays_within_ten_percent(seconds in 0_u64..100_000, jitter: f64) {
            let delay = next_delay(&[Duration::from_secs(seconds)], 1, jitter).unwrap();
            let off = delay.as_secs_f64() - Duration::from_secs(seconds).as_secs_f64();
            prop_assert!(off.abs() <= 0.100_001 * Duration::from_secs(seconds).as_secs_f64());
        }

        #[test]
        fn retry_after_never_panics_and_is_bounded(header in ".{0,40}") {
            let wait = retry_after(&header, Timestamp::from_micros(0));
            prop_assert!(wait.is_none_or(|wait| wait <= RETRY_AFTER_MAX));
        }
    }
}
