//! A webhook delivery: what is to be sent, to whom, every attempt so far, and the pure rules of
//! its retries (`docs/spec/webhooks.md`, "Schedule").
//!
//! Nothing here sends, waits, or draws a random number: the outbox in `webhooks` does.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, NaiveDateTime};
use serde::{Deserialize, Serialize};
use url::Url;

use super::ids::{DeliveryId, EndpointId, ExecutionId, Id as _, OrganizationId};
use super::payload::Payload;
use super::time::Timestamp;
use super::trace::{self, Trace};
use super::webhook_endpoint::Event;

/// Where a completion is to be announced, as the client asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// An absolute http(s) URL.
    pub url: String,
    /// The signing secret, sealed by `storage::Sealer`; never the plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// The status of a delivery. `delivering` is not stored: a delivery is in flight in a process,
/// never on the disk.
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

/// The endpoint that a delivery is for, and the event that it is notified of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub id: EndpointId,
    pub event: Event,
}

/// A delivery: one for each execution that asked for a webhook, and one for each endpoint that is notified of
/// an event of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub id: DeliveryId,
    pub organization: OrganizationId,
    pub execution: ExecutionId,
    /// None: the execution asked for it.
    pub endpoint: Option<Target>,
    pub webhook: Webhook,
    /// The body, kept as text so that each attempt sends the same bytes.
    pub body: Payload,
    pub created_at: Timestamp,
    /// That of the execution.
    pub origin: Option<Arc<trace::Origin>>,
    pub progress: DeliveryProgress,
}

/// How far a delivery has come: what changes about it, the rest never does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryProgress {
    pub status: Status,
    /// Oldest first; at most [`ATTEMPTS_KEPT`], of which the newest stay.
    pub attempts: Vec<Attempt>,
    /// Attempts of the current round: back to 0 with each redelivery, which starts the
    /// schedule again.
    pub round: u32,
    /// Whether the current round is a redelivery.
    #[serde(default)]
    pub redelivery: bool,
    /// When the next attempt is due; the key of its row in the due index. `None` when final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Timestamp>,
    /// When it was last asked for again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redelivered_at: Option<Timestamp>,
}

/// The attempts that a delivery keeps; older ones go. More than the schedule of a few redeliveries
/// makes, and small enough for one record.
pub const ATTEMPTS_KEPT: usize = 40;

/// The longest wait that a receiver can ask for by `Retry-After`.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// How much a delay differs from the schedule at most, as a fraction of it.
pub const JITTER: f64 = 0.1;

impl Delivery {
    /// A delivery that is due at once, created at `now`.
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
            webhook,
            body,
            created_at: now,
            origin: None,
            progress,
        }
    }

    /// The same delivery, in the trace of its execution.
    #[must_use]
    pub fn traced(self, origin: Option<Arc<trace::Origin>>) -> Self {
        Self { origin, ..self }
    }

    /// The trace of its execution.
    #[must_use]
    pub fn trace(&self) -> Trace {
        Trace::new(self.execution, self.origin.clone())
    }

    /// Names an attempt permanently.
    #[must_use]
    pub fn attempt_key(&self, attempt: u32) -> String {
        format!("{}:{attempt}", self.id)
    }

    /// The same delivery, to an endpoint.
    #[must_use]
    pub const fn to(mut self, endpoint: EndpointId, event: Event) -> Self {
        self.endpoint = Some(Target { id: endpoint, event });
        self
    }

    /// What its rows are found by: the execution that asked for it, or its own id, since an execution can
    /// have many deliveries to endpoints.
    #[must_use]
    pub fn row(&self) -> ExecutionId {
        match self.endpoint {
            None => self.execution,
            Some(_) => ExecutionId::from(self.id.bytes()),
        }
    }
}

impl DeliveryProgress {
    /// No attempt yet, the first due at once.
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

    /// Starts the schedule again, the first attempt due at once.
    pub fn redeliver(&mut self, now: Timestamp) {
        self.status = Status::Pending;
        self.round = 0;
        self.redelivery = true;
        self.next_attempt_at = Some(now);
        self.redelivered_at = Some(now);
    }

    /// Whether no attempt is being made or due: it has ended, or waits for a time ahead.
    #[must_use]
    pub fn rests(&self, now: Timestamp) -> bool {
        self.status != Status::Pending || self.next_attempt_at.is_some_and(|due| due > now)
    }

    /// How long it may not be asked for again, after it was at `redelivered_at`; zero: it may.
    #[must_use]
    pub fn cools_for(&self, cooldown: Duration, now: Timestamp) -> Duration {
        let passed = self.redelivered_at.map_or(cooldown, |asked| now.since(asked));
        cooldown.saturating_sub(passed)
    }

    /// The number of the next attempt, from 1.
    #[must_use]
    pub fn next_number(&self) -> u32 {
        self.attempts.last().map_or(0, |attempt| attempt.number).saturating_add(1)
    }

    /// Notes an attempt and what follows from it: `next` is when the following one is due, `None`
    /// when there is none.
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

/// What an answer's status means for the delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Acknowledged; nothing more is sent.
    Success,
    /// Failed; tried again by the schedule.
    Retry,
    /// Failed; tried again by the schedule, not before what `Retry-After` says.
    RetryAfter,
    /// The receiver wants no more of this delivery.
    Gone,
}

/// Judges an answer by its status: any 2xx is success, 410 ends the retries, a redirect is a
/// failure like any other.
#[must_use]
pub const fn judge(status: u16) -> Verdict {
    match status {
        200..=299 => Verdict::Success,
        410 => Verdict::Gone,
        429 | 503 => Verdict::RetryAfter,
        _ => Verdict::Retry,
    }
}

/// Whether a status tells of a receiver in trouble, as one that does not answer at all is: those
/// failures open its circuit. Any other answer came from a receiver that works, whatever it thinks
/// of this one delivery.
#[must_use]
pub const fn tells_of_trouble(status: u16) -> bool {
    matches!(status, 429 | 500..=599)
}

/// The delay between the `attempt`th attempt of a round (from 1) and the next, moved by `jitter`
/// (a fraction of it, kept within ±[`JITTER`]); `None` when the schedule ends there.
#[must_use]
pub fn next_delay(schedule: &[Duration], attempt: u32, jitter: f64) -> Option<Duration> {
    let index = usize::try_from(attempt).unwrap_or(usize::MAX).checked_sub(1)?;
    let delay = *schedule.get(index)?;
    let jitter = if jitter.is_finite() { jitter.clamp(-JITTER, JITTER) } else { 0.0 };
    Some(Duration::try_from_secs_f64(delay.as_secs_f64() * (1.0 + jitter)).unwrap_or(delay))
}

/// The wait that a `Retry-After` header asks for (RFC 9110, section 10.2.3): seconds, or a date in
/// one of the three forms of section 5.6.7. At most [`RETRY_AFTER_MAX`]; `None` when it is neither.
#[must_use]
pub fn retry_after(header: &str, now: Timestamp) -> Option<Duration> {
    let header = header.trim();
    if !header.is_empty() && header.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than a u64 holds still ask for "very long".
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

/// The receiver that a URL leads to: scheme, host and port, as in `https://example.com:443`. All
/// URLs that are not absolute http(s) URLs share one receiver, at which every attempt fails.
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
