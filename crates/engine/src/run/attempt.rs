//! Attempts: makes one time-limited call to a model's runner, unless the result cache has its
//! output, and stores the output.
//!
//! This module is used for predictions and for the model steps of workflows. This module never
//! retries or commits.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::mpsc;

use crate::query::events::{RunProgress, RunProgressSink};
use crate::run::budget::Budget;
use crate::run::outcome::shape_output;
use crate::{Error, Inner, ModelSpec};
use orrery_domain::attempt::Failure;
use orrery_domain::chat::Tokens;
use orrery_domain::classify::ErrorClass;
use orrery_domain::ids::OrganizationId;
use orrery_domain::model::Usage;
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_domain::trace::Trace;
use orrery_records::billing::Payer;
use orrery_records::files::{self, Origin};
use orrery_records::result_cache::{Entry, RESULT_BYTES_MAX};
use orrery_runners::{self as runners, Job, Progress};
use orrery_runtime::{new_id, turns};
use orrery_storage::{self as storage, Commit};

/// The stored output of a model.
#[derive(Debug)]
pub(crate) struct StoredOutput {
    pub output: Payload,
    /// The output's text, for the webhook.
    pub text: Box<RawValue>,
    pub tokens: Tokens,
    pub cost: Usd,
    /// Whether the output comes from the result cache.
    pub is_cached: bool,
    /// The output for the result cache.
    pub result: Option<NewResult>,
}

/// A new result for the cache, written in the commit that ends the attempt.
#[derive(Debug)]
pub(crate) struct NewResult {
    entry: Entry,
    output: Box<RawValue>,
}

/// A successful call.
#[derive(Debug)]
pub(crate) struct Ran {
    success: runners::Success,
    is_cached: bool,
    /// The cache entry in which the output will be stored. `None` if the output is not cached, or
    /// if it was read from the cache.
    entry: Option<Entry>,
}

/// Returns the failure of work whose model is no longer in the catalog.
pub(crate) fn model_removed(model: &str) -> Failure {
    let sentence = format!("the model '{model}' is no longer in the catalog");
    Failure::new(ErrorClass::InvalidModelConfig, sentence)
}

/// Returns the failure of an output whose artifacts cannot be stored. A disk error is returned as
/// an error, since it is not the model's fault.
fn output_not_stored(error: files::Error) -> Result<Failure, Error> {
    match error {
        files::Error::Invalid(_) | files::Error::TooLarge { .. } => {
            let message = format!("cannot store the model's output as a file: {error}");
            Ok(Failure::new(ErrorClass::ProviderError, message))
        }
        // Unreachable, because storing an output reads no files.
        files::Error::Damaged(_) | files::Error::Disk(_) => {
            Err(storage::Error::Unavailable { reason: error.to_string() }.into())
        }
        files::Error::Storage(error) => Err(error.into()),
    }
}

/// Calls the runner once on behalf of an organization, with a timeout. A panic fails only this run.
/// Time spent queuing in the runner does not count toward the timeout. The run reports its progress
/// to the job's `progress`.
///
/// # Errors
/// The runner's error, or a failure of class `execution_timeout` or `internal_error`.
pub async fn call_runner(
    work: &ModelSpec,
    model: &str,
    job: Job,
    organization: Option<OrganizationId>,
    limit: Duration,
) -> Result<runners::Success, runners::Error> {
    let run = AssertUnwindSafe(async { work.runner.run(job).await }).catch_unwind();
    match turns::on_behalf_of(organization, turns::timeout(limit, run)).await {
        Ok(Ok(report)) => report,
        Ok(Err(_panic)) => {
            let sentence = format!("the runner of the model '{model}' panicked");
            Err(Failure::new(ErrorClass::InternalError, sentence).into())
        }
        Err(_elapsed) => {
            let sentence = format!("the model '{model}' did not respond within {limit:?}");
            Err(Failure::new(ErrorClass::ExecutionTimeout, sentence).into())
        }
    }
}

/// A live report of a dry run.
#[derive(Debug)]
pub enum Report {
    /// Text that the model logged.
    Log(String),
    /// A part of the output.
    Output(Value),
}

/// Collects the logs of a dry run, and forwards live reports. If the receiver does not keep up,
/// reports are dropped.
#[derive(Debug)]
struct DryRunProgress {
    kept: RunProgressSink,
    reports: mpsc::Sender<Report>,
}

impl Progress for DryRunProgress {
    fn log(&self, text: &str) {
        self.kept.log(text);
        // The text of a dropped report is still included in the result.
        let _late = self.reports.try_send(Report::Log(text.to_owned()));
    }

    fn output(&self, part: &Value) {
        let _late = self.reports.try_send(Report::Output(part.clone()));
    }
}

/// Runs one input through a model, bypassing its queue and creating no prediction. Also returns the
/// logs. Live reports go to `reports`.
pub async fn dry_run(
    work: &ModelSpec,
    model: &str,
    attempt_key: String,
    input: Value,
    reports: mpsc::Sender<Report>,
) -> (Result<runners::Success, runners::Error>, Option<String>) {
    let run_progress = Arc::<RunProgress>::default();
    let kept = RunProgressSink { run_progress: Arc::clone(&run_progress), event_logs: None };
    let progress = Arc::new(DryRunProgress { kept, reports });
    let trace = Trace::new(new_id(), None).call(&attempt_key);
    let job = Job { attempt_key, input: Arc::new(input), progress, may_fall_back: false, trace };
    let result = call_runner(work, model, job, None, work.timeout).await;
    (result, run_progress.take_logs())
}

/// Returns the entry of a call in the result cache; `None` if the model has no cache.
fn entry_of(work: &ModelSpec, model: &str, payer: Payer, input: &Value) -> Option<Entry> {
    let cache = work.cache.as_ref()?;
    let mut input = input.clone();
    input.sort_all_objects();
    Some(Entry::new(payer, model, cache, "prediction", input.to_string().as_bytes()))
}

impl Inner {
    /// Returns the output of an earlier call with the same input, if the model has a cache;
    /// otherwise calls the runner. With `skips_cache`, always calls the runner.
    ///
    /// # Errors
    /// As [`call_runner`].
    pub(crate) async fn call_or_find(
        &self,
        work: &ModelSpec,
        model: &str,
        job: Job,
        payer: Payer,
        limit: Duration,
        skips_cache: bool,
    ) -> Result<Ran, runners::Error> {
        let entry = entry_of(work, model, payer, &job.input);
        if let Some(entry) = entry.as_ref().filter(|_| !skips_cache)
            && let Some(found) = self.results.find(entry, "prediction").await
            && let Ok(output) = serde_json::from_str(found.get())
        {
            let usage = Usage { cost: Some(Usd::ZERO), ..Usage::default() };
            let success = runners::Success { output, usage, folder: None };
            return Ok(Ran { success, is_cached: true, entry: None });
        }
        let success = call_runner(work, model, job, Some(payer.organization), limit).await?;
        Ok(Ran { success, is_cached: false, entry })
    }

    /// Adds a new result to the commit that ends its attempt.
    pub(crate) fn add_result(
        &self,
        commit: &mut Commit,
        result: Option<NewResult>,
    ) -> Result<(), storage::Error> {
        let Some(NewResult { entry, output }) = result else { return Ok(()) };
        self.results.add(commit, &entry, &output)
    }

    /// Shapes an output according to its type, stores artifacts as files and large texts as
    /// payloads, and computes the cost. If an artifact cannot be stored, the attempt counts as
    /// failed.
    pub(crate) async fn store_output(
        &self,
        ran: Ran,
        origin: Origin<'_>,
        work: Option<&ModelSpec>,
        budget: &Budget,
    ) -> Result<Result<StoredOutput, Failure>, Error> {
        let Ran { success, is_cached, entry } = ran;
        let mut output = success.output;
        if let Some(work) = work {
            output = shape_output(output, work.output_type);
            if work.output_type.is_artefact() {
                let folder = success.folder.as_ref().map(runners::Folder::path);
                output = match self.files.keep_artefacts(origin, output, folder).await {
                    Ok(output) => output,
                    Err(error) => return output_not_stored(error).map(Err),
                };
            }
        }
        let pricing = work.and_then(|work| work.pricing.as_ref());
        let charged = pricing.map(|pricing| pricing.charge(&success.usage));
        let cost = success.usage.cost.or(charged).unwrap_or(Usd::ZERO);
        let tokens = Tokens {
            input: success.usage.input_tokens.unwrap_or(0),
            output: success.usage.output_tokens.unwrap_or(0),
            ..Tokens::default()
        };
        let text = to_raw_value(&output)
            .map_err(|error| orrery_storage::Error::malformed("output", error))?;
        Ok(match self.store_text(budget, origin.execution, text.clone()).await? {
            Ok(output) => {
                let entry = entry.filter(|_| text.get().len() <= RESULT_BYTES_MAX);
                let result = entry.map(|entry| NewResult { entry, output: text.clone() });
                let text = self.files.render_links(origin.organization, text);
                Ok(StoredOutput { output, text, tokens, cost, is_cached, result })
            }
            Err(over) => Err(Failure::new(ErrorClass::InvalidModelConfig, over.to_string())),
        })
    }
}
