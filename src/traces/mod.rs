//! Spans of what has ended, exported over OTLP/HTTP to a collector of the operator's.
//!
//! Nothing is recorded while work runs: the spans of an execution are derived from what is stored of it
//! when it has ended, so that they cost the work nothing and survive restarts. Ended executions and attempts
//! at deliveries wait in a bounded queue; what finds it full, and what the collector does not take in time, is
//! dropped and counted. Nobody ever waits for an export.
//!
//! A span never holds an input, an output, a header, a key, or what a model or a server said.

mod derive;
mod export;
pub mod otlp;
pub mod span;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use hyper::header::{HeaderName, HeaderValue};
use tokio::sync::{Mutex, mpsc};

use self::export::{Exporter, Pace};
use crate::domain::delivery::Delivery;
use crate::domain::execution::Execution;
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::engine::Engine;
use crate::http::client::Client;
use crate::runtime::{Clock, Tasks};

/// Ended executions and attempts that wait for their spans to be made.
pub const QUEUE_MAX: usize = 4096;

/// Where spans go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The whole URL.
    pub url: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Target {
    /// The target behind an endpoint, to which `/v1/traces` is added unless it ends so.
    #[must_use]
    pub fn new(endpoint: &str, headers: Vec<(HeaderName, HeaderValue)>) -> Self {
        let base = endpoint.trim_end_matches('/');
        let url = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
        Self { url, headers }
    }
}

/// Where OTLP/HTTP takes spans.
const PATH: &str = "/v1/traces";

/// What has ended.
#[derive(Debug)]
enum Ended {
    Execution(OrganizationId, ExecutionId),
    Attempt(Box<span::Span>),
}

/// Exports spans; clones share the queue.
#[derive(Debug, Clone)]
pub struct Traces {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    queue: mpsc::Sender<Ended>,
    /// Taken by the exporter.
    waiting: Mutex<Option<mpsc::Receiver<Ended>>>,
    /// None: nothing is exported.
    target: ArcSwapOption<Target>,
}

impl Traces {
    /// Exports to this target; `None`: nothing, until another is set.
    #[must_use]
    pub fn new(target: Option<Target>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let waiting = Mutex::new(Some(waiting));
        let target = ArcSwapOption::from_pointee(target);
        Self { inner: Arc::new(Inner { queue, waiting, target }) }
    }

    /// Exports to another target from now on.
    pub fn set_target(&self, target: Option<Target>) {
        self.inner.target.store(target.map(Arc::new));
    }

    /// Queues the spans of an execution that has ended.
    pub fn ended(&self, execution: &Execution) {
        if self.inner.target.load().is_some() && execution.trace().is_sampled() {
            self.queue(Ended::Execution(execution.organization, execution.id));
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

    /// Exports what is queued until the shutdown. A second call does nothing.
    pub async fn run(self, tasks: Tasks, engine: Engine, client: Client, clock: Clock) {
        let Some(waiting) = self.inner.waiting.lock().await.take() else { return };
        let source = Box::new(engine);
        let exporter = Exporter::new((self, source), client, clock, tasks.token(), Pace::default());
        exporter.run(waiting).await;
    }
}

/// Counts spans that are not exported. An execution whose spans were never made counts as one.
fn count_dropped(count: usize) {
    metrics::counter!("orrery_spans_dropped_total").increment(count as u64);
}

#[cfg(test)]
mod tests;
