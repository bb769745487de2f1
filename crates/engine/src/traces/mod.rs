//! Traces: exports spans of ended work to the operator's collector over OTLP/HTTP.
//!
//! Nothing is recorded while work runs: spans are derived from the stored execution once it has
//! ended. So tracing does not slow down the work, and a restart loses no spans of unfinished work.
//! Ended executions and delivery attempts wait in a bounded queue. If the queue is full or the
//! collector does not accept spans in time, spans are dropped, and the dropped spans are counted.
//! No work ever waits for an export.
//!
//! A span never contains headers, keys, or error texts of models or servers. It contains the
//! messages of chat calls only if the configuration enables them (`telemetry.content`).

pub(crate) mod derive;
mod export;
pub mod otlp;
mod said;
pub mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use hyper::header::{HeaderName, HeaderValue};
use tokio::sync::{Mutex, mpsc};

use self::export::{Exporter, Pace};
use crate::Engine;
use crate::calls::Facts;
use orrery_domain::delivery::Delivery;
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_http::client::Client;
use orrery_runtime::{Clock, Tasks};

/// Maximum number of ended executions and delivery attempts waiting for their spans to be derived.
pub const QUEUE_MAX: usize = 4096;

/// Maximum total size, in bytes, of the requests and answers of chat calls that wait for their
/// spans. The spans of further calls lack request parameters, finish reasons and messages.
const FACTS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The destination of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The full URL.
    pub url: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether spans contain the messages of chat calls.
    pub has_content: bool,
}

impl Target {
    /// Creates a target for an endpoint. Appends `/v1/traces` unless the URL already ends with it.
    #[must_use]
    pub fn new(endpoint: &str, headers: Vec<(HeaderName, HeaderValue)>, has_content: bool) -> Self {
        let base = endpoint.trim_end_matches('/');
        let url = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
        Self { url, headers, has_content }
    }
}

/// The OTLP/HTTP path for spans.
const PATH: &str = "/v1/traces";

/// Ended work.
#[derive(Debug)]
enum Ended {
    Execution(OrganizationId, ExecutionId, Option<Box<Waiting>>),
    Attempt(Box<span::Span>),
}

/// The facts of a call that waits for its spans, and their size in bytes.
#[derive(Debug)]
struct Waiting {
    facts: Facts,
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Waiting {
    /// Returns `None` if all waiting facts together would exceed [`FACTS_BYTES_MAX`].
    fn new(facts: Facts, all: &Arc<AtomicUsize>) -> Option<Box<Self>> {
        let answer = facts.answer.as_ref().map_or(0, |answer| answer.get().len());
        let bytes = facts.request.len().saturating_add(answer);
        let before = all.fetch_add(bytes, Ordering::Relaxed);
        let waiting = Box::new(Self { facts, bytes, all: Arc::clone(all) });
        (before.saturating_add(bytes) <= FACTS_BYTES_MAX).then_some(waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Exports spans; clones share the queue.
#[derive(Debug, Clone)]
pub struct Traces {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    queue: mpsc::Sender<Ended>,
    /// The receiving end of the queue, until the exporter takes it.
    waiting: Mutex<Option<mpsc::Receiver<Ended>>>,
    /// The current target; `None` while nothing is exported.
    target: ArcSwapOption<Target>,
    /// The total size, in bytes, of the requests and answers in all [`Waiting`] values.
    facts_bytes: Arc<AtomicUsize>,
}

impl Traces {
    /// Creates an exporter for this target. With `None`, nothing is exported until a target is set.
    #[must_use]
    pub fn new(target: Option<Target>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let waiting = Mutex::new(Some(waiting));
        let target = ArcSwapOption::from_pointee(target);
        let facts_bytes = Arc::default();
        Self { inner: Arc::new(Inner { queue, waiting, target, facts_bytes }) }
    }

    /// Changes the export target.
    pub fn set_target(&self, target: Option<Target>) {
        self.inner.target.store(target.map(Arc::new));
    }

    /// Queues the spans of an execution that has ended. Only a chat call has `facts`.
    pub fn ended(&self, execution: &Execution, facts: Option<Facts>) {
        if self.inner.target.load().is_some() && execution.trace().is_sampled() {
            let facts = facts.and_then(|facts| Waiting::new(facts, &self.inner.facts_bytes));
            self.queue(Ended::Execution(execution.organization, execution.id, facts));
        }
    }

    /// Queues the span of the last attempt at a delivery.
    pub fn attempted(&self, delivery: &Delivery) {
        if self.inner.target.load().is_some()
            && delivery.trace().is_sampled()
            && let Some(span) = derive::of_attempt(delivery)
        {
            self.queue(Ended::Attempt(Box::new(span)));
        }
    }

    fn queue(&self, ended: Ended) {
        if self.inner.queue.try_send(ended).is_err() {
            count_dropped(1);
        }
    }

    /// Exports the queue until shutdown. A second call does nothing.
    pub async fn run(self, tasks: Tasks, engine: Engine, client: Client, clock: Clock) {
        let Some(waiting) = self.inner.waiting.lock().await.take() else { return };
        let source = Box::new(engine);
        let exporter = Exporter::new(self, source, client, clock, tasks.token(), Pace::default());
        exporter.run(waiting).await;
    }
}

/// Counts dropped spans. An execution whose spans were never derived counts as one span.
fn count_dropped(count: usize) {
    metrics::counter!("orrery_spans_dropped_total").increment(count as u64);
}

#[cfg(test)]
mod tests;
