//! Webhooks in the format of Replicate's API: their body, which is the whole prediction, and the
//! updates, which are sent while a prediction runs.
//!
//! An update is stored like any delivery, but never retried, and a prediction has at most one
//! pending update, so a slow receiver gets fewer updates. The delivery at
//! the end of the prediction is stored in the commit that ends the prediction.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::active::ActiveExecution;
use crate::query::events::EventLog;
use crate::{Error, Inner};
use orrery_domain::delivery::{Delivery, Status};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{DeliveryId, ExecutionId, Id as _};
use orrery_domain::logs::append_logs;
use orrery_domain::model::OutputType;
use orrery_domain::payload::Payload;
use orrery_domain::replicate::Event;
use orrery_records::signed_urls::Link;
use orrery_runtime::{monotonic_now, new_id};
use orrery_storage::{self as storage, Commit};
use orrery_webhooks as webhooks;
use orrery_wire::Text;
use orrery_wire::replicate::{self as wire, Shown, Urls};

/// Minimum time between two updates of a prediction.
const INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of updates of one attempt.
const UPDATES_MAX: usize = 1000;
/// Maximum total size of the updates of one attempt, in bytes.
const BYTES_MAX: u64 = 16 << 20;
/// Maximum size of an incomplete output in an update, in bytes. Once the output is larger, updates do
/// not contain it.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// How long the link to the event stream is valid.
const STREAM_LINK: Duration = Duration::from_secs(24 * 3600);

/// The output of a running attempt so far.
#[derive(Debug, Default)]
struct Parts {
    parts: Vec<Value>,
    bytes: usize,
    /// Whether a part was lost, or the output has become too large.
    is_incomplete: bool,
}

impl Parts {
    /// Adds the data of an output event.
    fn add(&mut self, data: &str) {
        self.bytes = self.bytes.saturating_add(data.len());
        if self.bytes > OUTPUT_BYTES_MAX {
            self.lose();
        }
        if self.is_incomplete {
            return;
        }
        let part = serde_json::from_str::<Value>(data).ok();
        self.parts.extend(part.and_then(|mut data| Some(data.get_mut("part")?.take())));
    }

    fn lose(&mut self) {
        self.is_incomplete = true;
        self.parts = Vec::new();
    }

    /// Returns the output so far: one string if the model streams text, otherwise a list of the
    /// parts.
    fn output(&self, output_type: Option<OutputType>) -> Option<Value> {
        if self.parts.is_empty() {
            return None;
        }
        let texts: Option<Vec<&str>> = self.parts.iter().map(Value::as_str).collect();
        match texts.filter(|_| output_type == Some(OutputType::String)) {
            Some(texts) => Some(texts.concat().into()),
            None => Some(self.parts.clone().into()),
        }
    }
}

/// The updates of one attempt.
struct Updates<'a> {
    inner: &'a Inner,
    active: &'a ActiveExecution,
    execution: &'a Execution,
    events: &'a [Event],
    log: Arc<EventLog>,
    output_type: Option<OutputType>,
    /// The number of the last event that was read from the event log.
    seen: u64,
    parts: Parts,
    /// The newest update.
    newest: Option<DeliveryId>,
    sent: usize,
    bytes: u64,
}

impl Inner {
    /// Sends the update for the start of a prediction if its `webhook_events_filter` contains
    /// `start`.
    pub(crate) async fn announce_start(&self, execution: &Execution) {
        if !wanted(execution).contains(&Event::Start) {
            return;
        }
        let body = self.replicate_body(execution, None, None).await;
        if let Err(error) = self.send_update(execution, body).await {
            tracing::debug!(execution = %execution.id, %error, "no webhook for the start of a run");
        }
    }

    /// Sends updates about the output and the logs of a run, until the future is dropped. Call this
    /// before the run starts, so that no event is missed.
    pub(crate) fn announce_progress<'a>(
        &'a self,
        active: &'a ActiveExecution,
        execution: &'a Execution,
        output_type: Option<OutputType>,
    ) -> impl Future<Output = Infallible> + Send + 'a {
        let mut updates = self.updates(active, execution, output_type);
        async move {
            if let Some(updates) = &mut updates
                && let Err(error) = updates.run().await
            {
                tracing::debug!(execution = %execution.id, %error, "no more webhooks for a run");
            }
            std::future::pending().await
        }
    }

    fn updates<'a>(
        &'a self,
        active: &'a ActiveExecution,
        execution: &'a Execution,
        output_type: Option<OutputType>,
    ) -> Option<Updates<'a>> {
        let events = wanted(execution);
        if !events.contains(&Event::Output) && !events.contains(&Event::Logs) {
            return None;
        }
        let logs = self.news.event_logs();
        let log = active.run_progress.open_event_log(|| logs.create(execution));
        let seen = log.events_since(0).events.last().map_or(0, |event| event.number);
        Some(Updates {
            inner: self,
            active,
            execution,
            events,
            log,
            output_type,
            seen,
            parts: Parts::default(),
            newest: None,
            sent: 0,
            bytes: 0,
        })
    }

    /// Returns the prediction in the form of Replicate's API. `output` and `logs` come from
    /// the running attempt.
    pub(crate) async fn replicate_body(
        &self,
        execution: &Execution,
        output: Option<Value>,
        logs: Option<String>,
    ) -> Result<Box<RawValue>, Error> {
        let prediction = execution.prediction().ok_or(Error::NotFound)?;
        let output = match (&execution.output, output) {
            (Some(stored), _) => self.text_of(stored).await.text,
            (None, Some(part)) => to_raw_value(&part).ok(),
            (None, None) => None,
        };
        let output = output.map(|text| self.files.render_links(execution.organization, text));
        let mut all_logs = prediction.logs.clone();
        append_logs(&mut all_logs, logs);
        let links = self.files.signed_urls();
        let link = Link {
            organization: execution.organization,
            key: execution.key,
            expires_at: self.clock.now().plus(STREAM_LINK),
        };
        let stream = links.url(link, &wire::stream_path(execution.id));
        let view = wire::Prediction::of(
            execution,
            prediction,
            Shown {
                input: self.text_of(&execution.input).await,
                output,
                logs: all_logs,
                urls: Urls::of(links.base(), execution.id, stream),
            },
        );
        to_raw_value(&view).map_err(|error| storage::Error::malformed("webhook body", error).into())
    }

    /// Reads a payload. An unreadable payload must not keep the prediction from ending.
    async fn text_of(&self, payload: &Payload) -> Text {
        match self.store.read_payload(payload).await {
            Ok(text) => Text::of(text),
            Err(error) => Text::missing(error.to_string()),
        }
    }

    /// Stores and sends an update. Returns its ID and its size.
    async fn send_update(
        &self,
        execution: &Execution,
        body: Result<Box<RawValue>, Error>,
    ) -> Result<Option<(DeliveryId, u64)>, Error> {
        let Some(webhook) = execution.webhook.clone() else { return Ok(None) };
        let organization = execution.organization;
        let body = body?;
        let bytes = body.get().len() as u64;
        self.check_quota(organization, bytes).await?;
        let id: DeliveryId = new_id();
        let body = self.store.write_payload(id, body).await?;
        let mut commit = Commit::of_new_work();
        self.store.claim(&mut commit, &body);
        self.store.record_usage(&mut commit, organization, id, body.len());
        let now = self.clock.now();
        let delivery = Delivery::new(id, organization, execution.id, webhook, body, now)
            .traced(execution.origin.clone())
            .update();
        webhooks::enqueue(&mut commit, &delivery)?;
        let on_delivery = Arc::clone(&self.on_delivery);
        commit.after_durable(move || on_delivery(delivery));
        self.store.commit(commit).await?;
        Ok(Some((id, bytes)))
    }
}

impl Updates<'_> {
    async fn run(&mut self) -> Result<(), Error> {
        let mut has_news = false;
        let mut next = monotonic_now();
        while self.sent < UPDATES_MAX && self.bytes < BYTES_MAX {
            // Every event is read at once, because the log keeps only the newest ones.
            let changed = self.log.changed(self.seen);
            let is_due = match has_news {
                true => tokio::time::timeout_at(next, changed).await.is_err(),
                false => {
                    changed.await;
                    false
                }
            };
            has_news |= self.read();
            if is_due {
                if !self.is_pending().await? {
                    self.send().await?;
                    has_news = false;
                }
                next = monotonic_now() + INTERVAL;
            }
        }
        Ok(())
    }

    /// Reads the new events from the event log. Returns whether the webhook must be notified of any
    /// of these events.
    fn read(&mut self) -> bool {
        let news = self.log.events_since(self.seen);
        if news.has_gap {
            self.parts.lose();
        }
        let mut is_wanted = false;
        for event in &news.events {
            self.seen = event.number;
            match event.name {
                "output" => {
                    self.parts.add(&event.data);
                    is_wanted |= self.events.contains(&Event::Output) && !self.parts.is_incomplete;
                }
                "log" => is_wanted |= self.events.contains(&Event::Logs),
                _ => {}
            }
        }
        is_wanted
    }

    /// Returns whether the newest update is still pending.
    async fn is_pending(&self) -> Result<bool, Error> {
        let Some(newest) = self.newest else { return Ok(false) };
        let (store, row) = (&self.inner.store, ExecutionId::from(newest.bytes()));
        let found = webhooks::load(store, self.execution.organization, row).await;
        let found = found.map_err(|webhooks::Error::Store(error)| error)?;
        Ok(found.is_some_and(|delivery| delivery.progress.status == Status::Pending))
    }

    async fn send(&mut self) -> Result<(), Error> {
        let output = self.parts.output(self.output_type);
        let logs = self.active.run_progress.logs();
        let body = self.inner.replicate_body(self.execution, output, logs).await;
        if let Some((id, bytes)) = self.inner.send_update(self.execution, body).await? {
            self.newest = Some(id);
            self.sent += 1;
            self.bytes = self.bytes.saturating_add(bytes);
        }
        Ok(())
    }
}

/// Returns the events that the prediction's webhook announces in the format of
/// Replicate's API.
fn wanted(execution: &Execution) -> &[Event] {
    let webhook = execution.webhook.as_ref();
    webhook.and_then(|webhook| webhook.replicate.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_of_texts_become_a_text() {
        let mut parts = Parts::default();
        assert_eq!(parts.output(Some(OutputType::String)), None);
        parts.add(r#"{"part":"a","attempt":1}"#);
        parts.add(r#"{"part":"b","attempt":1}"#);
        assert_eq!(parts.output(Some(OutputType::String)), Some(json!("ab")));
        assert_eq!(parts.output(Some(OutputType::Array)), Some(json!(["a", "b"])));
        parts.add(r#"{"part":1}"#);
        assert_eq!(parts.output(Some(OutputType::String)), Some(json!(["a", "b", 1])));
    }

    #[test]
    fn large_output_is_omitted() {
        let mut parts = Parts::default();
        parts.add(&json!({"part": "x".repeat(OUTPUT_BYTES_MAX)}).to_string());
        assert_eq!((parts.output(None), parts.is_incomplete), (None, true));
        parts.add(r#"{"part":"a"}"#);
        assert_eq!(parts.output(None), None);
    }
}
