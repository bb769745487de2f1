//! The exporter: takes ended executions and delivery attempts from the queue, derives their spans,
//! and sends the spans in batches.
//!
//! At most one request is in flight. If the collector is down, busy or unresponsive, a batch is
//! retried a few times with increasing delays and then dropped. Meanwhile the queue fills up, and
//! while it is full, new spans are dropped. At shutdown, the rest of the queue is sent once, within
//! two seconds.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::derive::Said;
use super::span::Span;
use super::{Ended, Target, Traces, count_dropped, derive, otlp};
use crate::{Engine, Error};
use orrery_domain::delivery::retry_after;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_http::client::{Client, Limits, Overflow, Response};
use orrery_http::tls::machine_name;
use orrery_runtime::{self as runtime, Clock, Recurring};

/// Target number of spans per request. The spans of a single execution may exceed it.
const BATCH_MAX: usize = 512;
/// Maximum number of attempts to send a batch.
const TRIES_MAX: u32 = 5;
/// Maximum retry delay, including delays that the collector requests.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Maximum number of bytes that are read from a response.
const ANSWER_MAX: usize = 16 * 1024;
const AGENT: &str = concat!("orrery/", env!("CARGO_PKG_VERSION"));
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");

/// The result of an attempt to send a batch.
#[derive(Debug)]
enum Tried {
    /// The collector accepted all spans except for this number of rejected spans.
    Taken { rejected: usize },
    /// Retry later, after `wait` if the collector requested a delay.
    Later { reason: String, wait: Option<Duration> },
    /// The collector rejected the spans.
    Refused { reason: String },
}

/// The timing of the exporter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Maximum time that a span waits for the batch to fill.
    pub batch_after: Duration,
    /// The delay after the first attempt; it doubles after each further attempt.
    pub pause_first: Duration,
    /// The timeout of one request.
    pub time_max: Duration,
    /// The timeout of the export at shutdown.
    pub flush_max: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            batch_after: Duration::from_secs(1),
            pause_first: Duration::from_secs(1),
            time_max: Duration::from_secs(10),
            flush_max: Duration::from_secs(2),
        }
    }
}

/// A future that resolves to the spans of an execution.
pub(super) type SpansFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Span>, Error>> + Send + 'a>>;

/// Provides the spans of stored executions.
pub(super) trait Source: Send + Sync {
    /// Returns the spans of an ended execution. `said` has the details of a chat call.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the execution is no longer stored; [`Error::Storage`].
    fn spans_of<'a>(
        &'a self,
        organization: OrganizationId,
        id: ExecutionId,
        said: Option<Said<'a>>,
    ) -> SpansFuture<'a>;
}

impl Source for Engine {
    fn spans_of<'a>(
        &'a self,
        organization: OrganizationId,
        id: ExecutionId,
        said: Option<Said<'a>>,
    ) -> SpansFuture<'a> {
        Box::pin(async move {
            let outline = self.outline(organization, id, derive::STEPS_MAX).await?;
            Ok(derive::of_execution(&outline, said))
        })
    }
}

/// Sends spans.
pub(super) struct Exporter {
    traces: Traces,
    source: Box<dyn Source>,
    client: Client,
    clock: Clock,
    stopping: CancellationToken,
    pace: Pace,
    machine: String,
    trouble: Recurring,
    batch: Vec<Span>,
}

impl Exporter {
    pub(super) fn new(
        traces: Traces,
        source: Box<dyn Source>,
        client: Client,
        clock: Clock,
        stopping: CancellationToken,
        pace: Pace,
    ) -> Self {
        let machine = machine_name();
        let trouble = Recurring::default();
        let batch = Vec::new();
        Self { traces, source, client, clock, stopping, pace, machine, trouble, batch }
    }

    /// Exports spans until shutdown, then sends the remaining spans within the time that [`Pace`]
    /// allows.
    pub(super) async fn run(mut self, mut waiting: mpsc::Receiver<Ended>) {
        let (stopping, flush_max) = (self.stopping.clone(), self.pace.flush_max);
        let too_late = async {
            stopping.cancelled().await;
            tokio::time::sleep(flush_max).await;
        };
        tokio::select! {
            () = self.serve(&mut waiting) => {}
            () = too_late => {}
        }
        waiting.close();
        while waiting.try_recv().is_ok() {
            count_dropped(1);
        }
        count_dropped(self.batch.len());
    }

    async fn serve(&mut self, waiting: &mut mpsc::Receiver<Ended>) {
        let stopping = self.stopping.clone();
        let mut due = runtime::monotonic_now();
        loop {
            let has_spans = !self.batch.is_empty();
            let ended = tokio::select! {
                biased;
                () = stopping.cancelled() => break,
                () = sleep_until(due), if has_spans => None,
                ended = waiting.recv() => match ended {
                    Some(ended) => Some(ended),
                    None => break,
                },
            };
            match ended {
                Some(ended) => {
                    if !has_spans {
                        due = after(self.pace.batch_after);
                    }
                    self.add(ended).await;
                    if self.batch.len() >= BATCH_MAX {
                        self.send().await;
                    }
                }
                None => self.send().await,
            }
        }
        // Each remaining batch is sent once.
        while let Ok(ended) = waiting.try_recv() {
            self.add(ended).await;
            if self.batch.len() >= BATCH_MAX {
                self.send().await;
            }
        }
        self.send().await;
    }

    /// Adds the spans of an ended execution or attempt to the batch.
    async fn add(&mut self, ended: Ended) {
        let (organization, id, waiting) = match ended {
            Ended::Attempt(span) => return self.batch.push(*span),
            Ended::Execution(organization, id, waiting) => (organization, id, waiting),
        };
        let has_content =
            self.traces.inner.target.load().as_ref().is_some_and(|target| target.has_content);
        let said = waiting.as_ref().map(|waiting| Said { facts: &waiting.facts, has_content });
        match self.source.spans_of(organization, id, said).await {
            Ok(spans) => self.batch.extend(spans),
            // The execution has been deleted in the meantime.
            Err(Error::NotFound) => count_dropped(1),
            Err(error) => {
                tracing::warn!(execution = %id, %error, "failed to export the spans of an execution");
                count_dropped(1);
            }
        }
    }

    /// Sends the batch until the collector has accepted it or it is dropped.
    async fn send(&mut self) {
        let spans = std::mem::take(&mut self.batch);
        let Some(target) = self.traces.inner.target.load_full() else {
            return count_dropped(spans.len());
        };
        if spans.is_empty() {
            return;
        }
        // Put the spans back into the batch, so that they are counted as dropped if the shutdown
        // leaves no time to send them.
        self.batch = spans;
        let body = Bytes::from(otlp::encode(&self.batch, &self.machine));
        let mut pause = self.pace.pause_first;
        for attempt in 1..=TRIES_MAX {
            let (reason, wait) = match self.try_once(&target, body.clone()).await {
                Tried::Taken { rejected } => return self.taken(rejected),
                Tried::Refused { reason } => (reason, None),
                Tried::Later { reason, wait } => (reason, Some(wait.unwrap_or(pause))),
            };
            self.log(&reason);
            let Some(wait) = wait.filter(|_| attempt < TRIES_MAX && !self.stopping.is_cancelled())
            else {
                break;
            };
            let until = after(wait.min(PAUSE_MAX));
            // A shutdown ends the pause early, so that the batch is retried once more.
            let _stopped = self.stopping.run_until_cancelled(sleep_until(until)).await;
            pause = pause.saturating_mul(2);
        }
        count_dropped(self.batch.len());
        self.batch.clear();
    }

    fn taken(&mut self, rejected: usize) {
        let count = self.batch.len();
        self.batch.clear();
        let rejected = rejected.min(count);
        metrics::counter!("orrery_spans_exported_total").increment((count - rejected) as u64);
        if rejected > 0 {
            count_dropped(rejected);
            self.log("the collector rejects some of the spans");
        } else if self.trouble.end() {
            tracing::info!("span export resumed");
        }
    }

    fn log(&mut self, reason: &str) {
        if self.trouble.is_news(reason) {
            tracing::warn!(
                reason,
                "span export failed; check telemetry.otlp_endpoint and the collector behind it"
            );
        }
    }

    async fn try_once(&self, target: &Target, body: Bytes) -> Tried {
        let mut request = Request::new(body);
        *request.method_mut() = hyper::Method::POST;
        match target.url.parse() {
            Ok(uri) => *request.uri_mut() = uri,
            Err(_no_uri) => {
                return Tried::Refused { reason: "the endpoint is not a URL".to_owned() };
            }
        }
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, PROTOBUF);
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        for (name, value) in &target.headers {
            headers.insert(name, value.clone());
        }
        let total = self.pace.time_max;
        let limits = Limits { total, answer_bytes: ANSWER_MAX, overflow: Overflow::Truncate };
        match self.client.send(request, &limits).await {
            Ok(answer) => self.judge(&answer),
            Err(error) => Tried::Later { reason: error.detail(), wait: None },
        }
    }

    /// Interprets a response (OTLP specification, "OTLP/HTTP Response").
    fn judge(&self, answer: &Response) -> Tried {
        let status = answer.status;
        if status.is_success() {
            return Tried::Taken { rejected: otlp::rejected(&answer.body) };
        }
        let reason = format!("the collector answered {status}");
        let may_retry = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        if !may_retry {
            return Tried::Refused { reason };
        }
        let asked = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let wait = asked.and_then(|text| retry_after(text, self.clock.now()));
        Tried::Later { reason, wait }
    }
}

/// Returns the instant after this duration.
fn after(time: Duration) -> Instant {
    let now = runtime::monotonic_now();
    now.checked_add(time).unwrap_or(now)
}
