//! One job of a worker: runs the model, reports its progress, and reports its end.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::server::{Error, Server};
use orrery_app::WorkerModels;
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::logs::{LOGS_MAX, append_logs};
use orrery_domain::trace::Trace;
use orrery_runners::{self as runners, Progress, Success};
use orrery_runtime::{monotonic_now, new_id};
use orrery_wire::worker::{self as wire, Completion, Heartbeat, Log, Part};

/// How many times a worker reports within a lease, and the maximum time between two reports, so that
/// a cancelled job stops soon.
const BEATS: u32 = 3;
const BEAT_MAX: Duration = Duration::from_secs(5);
/// Maximum size of the parts of an output that have not been sent, in bytes. Further parts are
/// dropped: clients that follow the run get the whole output at the end.
const PARTS_BYTES_MAX: usize = 1024 * 1024;
/// Delays between attempts to report the end of a job.
const DELAY_MIN: Duration = Duration::from_millis(200);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// How long a worker tries to report the end of a job, as a multiple of the lease time.
const LEASES: u32 = 2;

/// Runs a job. Cancels the run if the service says that the worker no longer has the job.
pub(super) async fn job(server: &Server, models: &WorkerModels, slug: &str, job: wire::Job) {
    let reports = Arc::<Reports>::default();
    let attempt_key = format!("{}:{}", job.job_id, job.attempt);
    let asked = runners::Job {
        trace: Trace::new(new_id(), None).call(&attempt_key),
        attempt_key,
        input: Arc::clone(&job.input),
        progress: Arc::<Reports>::clone(&reports),
        may_fall_back: false,
    };
    let report = Reporter { server, job: &job, slug };
    // A report that is being sent is never dropped, because the progress in it would be lost.
    let mut progress = Box::pin(report.progress(&reports));
    let ended = tokio::select! {
        biased;
        outcome = Box::pin(models.run(slug, asked)) => Ok(outcome),
        lost = progress.as_mut() => Err(lost),
    };
    let (outcome, lost) = match ended {
        Ok(outcome) => {
            // Send the remaining progress before the result.
            reports.end();
            (Some(outcome), progress.await)
        }
        Err(lost) => (None, lost),
    };
    match (outcome, lost) {
        (Some(outcome), None) => report.end(outcome).await,
        (_, lost) => {
            let reason = lost.unwrap_or_default();
            tracing::warn!(model = slug, job = %job.job_id, reason, "job cancelled");
        }
    }
}

/// The progress that has not been sent.
#[derive(Debug, Default)]
struct Reports {
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    logs: Option<String>,
    parts: Vec<Value>,
    bytes: usize,
    /// Whether a part was lost, so that no further part may be sent.
    is_broken: bool,
    /// Whether the run has ended, so that no more progress follows.
    is_ended: bool,
}

impl Reports {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().is_ended = true;
        self.changed.notify_one();
    }

    /// Returns whether the run has ended and all its progress has been taken.
    fn is_done(&self) -> bool {
        let pending = self.lock();
        pending.is_ended && pending.logs.is_none() && pending.parts.is_empty()
    }

    fn take(&self) -> (Option<String>, Vec<Value>) {
        let mut pending = self.lock();
        pending.bytes = 0;
        (pending.logs.take(), mem::take(&mut pending.parts))
    }
}

impl Progress for Reports {
    fn log(&self, text: &str) {
        append_logs(&mut self.lock().logs, Some(text.to_owned()));
        self.changed.notify_one();
    }

    fn output(&self, part: &Value) {
        let mut pending = self.lock();
        pending.bytes = pending.bytes.saturating_add(part.to_string().len());
        pending.is_broken |= pending.bytes > PARTS_BYTES_MAX;
        if pending.is_broken {
            return;
        }
        // Texts that have not been sent yet are joined and sent in one report.
        match (pending.parts.last_mut(), part) {
            (Some(Value::String(text)), Value::String(more)) => text.push_str(more),
            _ => pending.parts.push(part.clone()),
        }
        drop(pending);
        self.changed.notify_one();
    }
}

/// Sends the reports about one job to the service.
struct Reporter<'j> {
    server: &'j Server,
    job: &'j wire::Job,
    slug: &'j str,
}

impl Reporter<'_> {
    fn note(&self, error: &Error) {
        tracing::warn!(model = self.slug, job = %self.job.job_id, %error, "report failed");
    }

    /// Reports progress immediately, and sends heartbeats while the run makes no progress. Returns
    /// the reason once the worker no longer has the job, or `None` once the run has ended.
    async fn progress(&self, reports: &Reports) -> Option<String> {
        let beat = (Duration::from_secs(self.job.lease_seconds) / BEATS).min(BEAT_MAX);
        let mut due = monotonic_now() + beat;
        loop {
            let is_due = tokio::select! {
                () = reports.changed.notified() => false,
                () = sleep_until(due) => true,
            };
            let sent = if is_due { self.beat().await } else { self.pending(reports).await };
            let now = monotonic_now();
            due = match sent {
                Ok(()) => now + beat,
                Err(Error::Lost(reason)) => return Some(reason),
                Err(error) => {
                    self.note(&error);
                    now + beat / BEATS
                }
            };
            if reports.is_done() {
                return None;
            }
        }
    }

    async fn beat(&self) -> Result<(), Error> {
        let attempt = self.job.attempt;
        self.server.report(self.job, "heartbeat", &Heartbeat { attempt }).await
    }

    /// Sends the progress that has not been sent. After an error, no further parts are sent, because
    /// it is unknown whether the service has the last one.
    async fn pending(&self, reports: &Reports) -> Result<(), Error> {
        let attempt = self.job.attempt;
        let (logs, parts) = reports.take();
        if let Some(mut log) = logs {
            // The service's limit is in characters, and a text never has more characters than
            // bytes.
            log.truncate(log.floor_char_boundary(LOGS_MAX));
            self.server.report(self.job, "log", &Log { attempt, log }).await?;
        }
        for output in parts {
            let sent = self.server.report(self.job, "part", &Part { attempt, output }).await;
            if sent.is_err() {
                reports.lock().is_broken = true;
                return sent;
            }
        }
        Ok(())
    }

    /// Reports the end of the job; retries until the service has accepted the report or another
    /// worker may have the job.
    async fn end(&self, outcome: Result<Success, runners::Error>) {
        let attempt = self.job.attempt;
        match outcome {
            Ok(success) => {
                let metrics = Some(metrics(&success));
                let completion = Completion { attempt, output: success.output, metrics };
                let refused = self.insist("complete", &completion).await;
                let Some(message) = refused else { return };
                let message = format!("the service refuses the output: {message}");
                self.fail(&Failure::new(ErrorClass::ProviderError, message)).await;
            }
            Err(runners::Error { failure, .. }) => self.fail(&failure).await,
        }
    }

    async fn fail(&self, failure: &Failure) {
        let failure = wire::Failure::new(self.job.attempt, &failure.message, failure.class);
        if let Some(message) = self.insist("fail", &failure).await {
            self.note(&Error::Refused { message });
        }
    }

    /// Reports the end of the job until the service responds. Returns the reason if it refuses the
    /// report.
    async fn insist(&self, what: &str, body: &(impl serde::Serialize + Sync)) -> Option<String> {
        let until: Instant = monotonic_now() + Duration::from_secs(self.job.lease_seconds) * LEASES;
        let mut delay = DELAY_MIN;
        loop {
            match self.server.report(self.job, what, body).await {
                Ok(()) => {
                    tracing::debug!(model = self.slug, job = %self.job.job_id, what, "job ended");
                    return None;
                }
                Err(Error::Refused { message }) => return Some(message),
                Err(error @ Error::Unavailable(_)) if monotonic_now() < until => {
                    self.note(&error);
                    sleep(delay).await;
                    delay = (delay * 2).min(DELAY_MAX);
                }
                // If the connection broke during an earlier try, the service may already have the
                // report.
                Err(error) => {
                    self.note(&error);
                    return None;
                }
            }
        }
    }
}

/// Returns the cost and the token counts of a run.
fn metrics(success: &Success) -> Map<String, Value> {
    let usage = &success.usage;
    let cost = usage.cost.map(|cost| Value::from(cost.dollars()));
    let fields = [
        ("cost", cost),
        ("input_tokens", usage.input_tokens.map(Value::from)),
        ("output_tokens", usage.output_tokens.map(Value::from)),
    ];
    let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    known.collect()
}
