//! The sender: receives findings, stores the ledger, and sends due messages one at a time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use url::Url;

use super::budgets::Budget;
use super::file;
use super::ledger::{Failures, Ledger, Outcome};
use super::message::Message;
use super::{Format, Options, SUBJECT, Target};
use orrery_http::client::{Client, Error, Limits, Overflow, Response};
use orrery_http::places::Share;
use orrery_runtime::{Clock, Tasks, new_id};
use orrery_wire::operator::AlertTest;
use orrery_wire::service::Finding;

/// Time limit for one request, from resolving the name to the last byte of the response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes read from a response.
const RESPONSE_BYTES_MAX: usize = 4096;
/// The delay before the first retry. The delay doubles with each failure, up to the interval
/// between checks.
const RETRY_FIRST: Duration = Duration::from_secs(10);
/// Maximum number of doublings.
const DOUBLINGS_MAX: u32 = 16;

/// Sends alerts; clones share the ledger.
#[derive(Debug, Clone)]
pub struct Alerts {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: PathBuf,
    /// The base URL of the service, which identifies it to the receiver.
    service: String,
    clock: Clock,
    client: Client,
    options: watch::Sender<Options>,
    ledger: Mutex<Ledger>,
    /// The text of the file after the first write; locked while the file is replaced.
    stored: tokio::sync::Mutex<Option<Vec<u8>>>,
    /// Signals that findings have arrived.
    observed: Notify,
    /// Signals that a retry may succeed before its delay has passed.
    encouraged: Notify,
}

impl Alerts {
    /// Creates a sender with the open alerts stored in the data folder. `service` is the base URL
    /// of the service.
    #[must_use]
    pub fn open(data_dir: &Path, service: String, clock: Clock, options: Options) -> Self {
        let file = data_dir.join(file::NAME);
        let ledger = Mutex::new(file::read(&file));
        // The operator configures the URL, so it is trusted.
        let client = Client::trusted().with_share(Share::Deliveries);
        let (options, _) = watch::channel(options);
        let stored = tokio::sync::Mutex::default();
        let (observed, encouraged) = (Notify::new(), Notify::new());
        let inner =
            Inner { file, service, clock, client, options, ledger, stored, observed, encouraged };
        Self { inner: Arc::new(inner) }
    }

    /// Returns a receiver with the current options and any later changes.
    #[must_use]
    pub fn options(&self) -> watch::Receiver<Options> {
        self.inner.options.subscribe()
    }

    /// Replaces the options.
    pub fn set_options(&self, options: Options) {
        self.inner.options.send_replace(options);
        self.inner.encouraged.notify_one();
    }

    /// Adds the findings of a check to the ledger, and stores which messages are due. A finding
    /// that is missing counts as gone only after a complete check.
    pub async fn observe(&self, findings: &[Finding], is_complete: bool) {
        let now = self.inner.clock.now();
        let left_out = self.ledger().observe(findings, is_complete, now);
        if left_out > 0 {
            tracing::warn!(left_out, "too many open alerts; see `orrery doctor` for all findings");
        }
        self.store().await;
        self.inner.observed.notify_one();
    }

    /// Queues a notice for each budget that has reached a further threshold.
    pub async fn observe_budgets(&self, budgets: &[Budget]) {
        self.ledger().observe_budgets(budgets, self.inner.clock.now());
        self.store().await;
        self.inner.observed.notify_one();
    }

    /// Sends due messages until shutdown.
    pub async fn run(self, tasks: Tasks) {
        self.inner.observed.notify_one();
        let mut failures = 0;
        loop {
            tokio::select! {
                () = tasks.stopping() => return,
                () = self.inner.encouraged.notified() => {}
                () = self.wait(failures) => {}
            }
            tokio::select! {
                () = tasks.stopping() => return,
                is_done = self.send_all() => failures = if is_done { 0 } else { failures + 1 },
            }
        }
    }

    /// Waits for findings or, after failures, for the next attempt.
    async fn wait(&self, failures: u32) {
        let Some(doublings) = failures.checked_sub(1) else {
            return self.inner.observed.notified().await;
        };
        let delay = RETRY_FIRST.saturating_mul(1 << doublings.min(DOUBLINGS_MAX));
        let every = self.inner.options.borrow().every;
        tokio::time::sleep(delay.min(every)).await;
    }

    /// Sends all due messages, but stops at the first failure. Returns whether all were sent.
    async fn send_all(&self) -> bool {
        loop {
            let Some(target) = self.inner.options.borrow().target.clone() else { return true };
            let Some(next) = self.ledger().begin() else { return true };
            let message = Message::of(&next.0, next.1, &self.inner.service);
            let outcome = outcome(self.send(&message, &target).await);
            let first = self.ledger().failures.is_none();
            self.ledger().end(&next, &outcome, self.inner.clock.now());
            self.store().await;
            match outcome {
                Outcome::Acknowledged => {
                    metrics::counter!("orrery_alerts_sent_total").increment(1);
                }
                Outcome::Refused(reason) | Outcome::Unknown(reason) => {
                    metrics::counter!("orrery_alert_failures_total").increment(1);
                    if first {
                        tracing::warn!(reason, "failed to send an alert; it is sent again later");
                    }
                    return false;
                }
            }
        }
    }

    /// Sends a test message, and returns the receiver's answer; `None` without a receiver.
    pub async fn test(&self) -> Option<AlertTest> {
        let target = self.inner.options.borrow().target.clone()?;
        let message = Message::test(new_id(), &self.inner.service, self.inner.clock.now());
        let sent = self.send(&message, &target).await;
        let status = sent.as_ref().ok().map(|answer| answer.status.as_u16());
        let answer = sent.as_ref().ok().map(|answer| excerpt(&answer.body));
        let error = match outcome(sent) {
            Outcome::Acknowledged => {
                self.inner.encouraged.notify_one();
                None
            }
            Outcome::Refused(reason) | Outcome::Unknown(reason) => Some(reason),
        };
        Some(AlertTest { to: shown(&target), status, answer, error })
    }

    async fn send(&self, message: &Message, target: &Target) -> Result<Response, SendError> {
        let request =
            message.request(target, self.inner.clock.now()).map_err(SendError::Request)?;
        let limits = Limits {
            total: TIMEOUT,
            answer_bytes: RESPONSE_BYTES_MAX,
            overflow: Overflow::Truncate,
        };
        self.inner.client.send(request, &limits).await.map_err(SendError::Client)
    }

    /// Returns the finding about the alerts themselves: the receiver, and whether messages reach
    /// it.
    #[must_use]
    pub fn finding(&self) -> Finding {
        let Options { target, every } = self.inner.options.borrow().clone();
        let Some(target) = target else {
            return Finding::good(SUBJECT, "not sent: alerts.url is not set");
        };
        let to = shown(&target);
        if let Some(Failures { since, count, reason }) = self.ledger().failures.clone() {
            let detail =
                format!("{to} has not received alerts since {since} ({count} attempts): {reason}");
            return Finding::warning(SUBJECT, detail).mended_by("orrery alerts test");
        }
        let format = match target.format {
            Format::Webhook => "webhooks",
            Format::Ntfy => "ntfy messages",
        };
        let every = orrery_domain::time::span_text(every);
        Finding::good(SUBJECT, format!("sent to {to} as {format}; checks run every {every}"))
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.inner.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the ledger if it has changed. If the ledger cannot be stored, messages are still
    /// sent, because they may report the failing disk; after a restart, the messages may then be
    /// sent again.
    async fn store(&self) {
        let mut stored = self.inner.stored.lock().await;
        let text = match serde_json::to_vec(&*self.ledger()) {
            Ok(text) if stored.as_ref() != Some(&text) => text,
            Ok(_) | Err(_) => return,
        };
        let (path, copy) = (self.inner.file.clone(), text.clone());
        let written = tokio::task::spawn_blocking(move || file::write(&path, &copy)).await;
        match written {
            Ok(Ok(())) => *stored = Some(text),
            Ok(Err(error)) => tracing::warn!(%error, "failed to store the open alerts"),
            Err(error) => tracing::warn!(%error, "failed to store the open alerts"),
        }
    }
}

/// A message that the receiver did not acknowledge.
#[derive(Debug)]
enum SendError {
    Request(String),
    Client(Error),
}

fn outcome(sent: Result<Response, SendError>) -> Outcome {
    match sent {
        Ok(answer) if answer.status.is_success() => Outcome::Acknowledged,
        Ok(answer) => {
            let remark = if answer.status.is_redirection() {
                "; redirects are not followed".to_owned()
            } else {
                let said = excerpt(&answer.body);
                if said.is_empty() { String::new() } else { format!(": {said}") }
            };
            Outcome::Refused(format!("the receiver answered {}{remark}", answer.status))
        }
        Err(SendError::Request(reason)) => Outcome::Refused(reason),
        Err(SendError::Client(error)) => match error {
            Error::Connection(_) => Outcome::Refused(error.detail()),
            Error::Timeout { .. }
            | Error::TooLarge { .. }
            | Error::Protocol { .. }
            | Error::Content(_) => Outcome::Unknown(error.detail()),
        },
    }
}

/// Returns the first line of a response in readable form.
fn excerpt(body: &[u8]) -> String {
    const EXCERPT_CHARS_MAX: usize = 200;
    let text = String::from_utf8_lossy(body);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim().chars().filter(|one| !one.is_control()).take(EXCERPT_CHARS_MAX).collect()
}

/// Returns the part of a target's URL that is not secret: scheme, host and port.
fn shown(target: &Target) -> String {
    Url::parse(target.url.expose())
        .map(|url| url.origin().ascii_serialization())
        .unwrap_or_default()
}
