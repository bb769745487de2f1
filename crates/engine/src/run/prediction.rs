//! Predictions: loads the state, applies the state machine, commits, then performs the effects.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::active::ActiveExecution;
use crate::query::events::RunProgressSink;
use crate::query::indexes;
use crate::run::attempt::{NewResult, Ran, StoredOutput, model_removed};
use crate::run::budget::Budget;
use crate::run::outcome::webhook_body;
use crate::{Error, Inner, ModelSpec, Models, rows};
use orrery_domain::attempt::Failure;
use orrery_domain::chat::Tokens;
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::{Execution, Prediction};
use orrery_domain::input_template::fill_object;
use orrery_domain::machine::Effect;
use orrery_domain::machine::prediction::{Event, Retry, apply};
use orrery_domain::money::Usd;
use orrery_records::billing::Payer;
use orrery_records::files::Origin;
use orrery_records::usage::Calls;
use orrery_runners::{self as runners, Job, Progress};
use orrery_storage::{self as storage, Commit};

/// Runs that take longer than this duration are marked as started on disk. A shorter run needs no
/// such write: if the process dies, the attempt runs again with the same number.
const MARK_AFTER: Duration = Duration::from_millis(25);

impl Inner {
    /// Runs one attempt. The commit that ends the attempt moves the execution to the lane of its
    /// next model, if there is one.
    pub(crate) async fn run_prediction(
        self: &Arc<Self>,
        active: &ActiveExecution,
    ) -> Result<(), Error> {
        let Some((execution, attempt)) = self.begin(active).await else { return Ok(()) };
        let execution = Arc::new(execution);
        let model = execution.prediction().map_or("", Prediction::model);
        let work = self.models.model(model);
        if attempt == 1 {
            self.announce_start(&execution).await;
        }
        let report = match self.store.read_payload(&execution.input).await {
            Ok(input) => tokio::select! {
                biased;
                () = active.stop.cancelled() => return Ok(()),
                report = self.attempt(active, &execution, attempt, work.as_ref(), &input) => report,
            },
            // If the input is permanently unreadable, the execution fails. After any other error,
            // the execution is retried.
            Err(error) if error.is_final() => Err(lost_input(&error).into()),
            Err(error) => return Err(error.into()),
        };
        let logs = active.run_progress.take_logs();
        let no_steps: Option<std::iter::Empty<_>> = None;
        let budget = self.budget(&execution, no_steps, None).await?;
        let digested = self.digest(&execution, attempt, report, logs, work.as_ref(), &budget);
        let Digested { event, output, tokens, result } = digested.await?;
        let mut state = active.state.lock().await;
        let Some(loaded) = state.as_mut() else { return Ok(()) };
        let mut next = loaded.execution.clone();
        let effects = apply(&mut next, event, self.clock.now());
        if effects.is_empty() {
            return Ok(());
        }
        let body = if self.announces(&next, &effects) {
            let body = webhook_body(&next, output.as_deref());
            Some(body.map_err(|error| storage::Error::malformed("webhook body", error))?)
        } else {
            None
        };
        let mut commit = Commit::new();
        self.record_produced(&mut commit, next.organization, next.id, &budget);
        self.add_result(&mut commit, result)?;
        let calls = Calls::part(model, tokens, Usd::ZERO);
        self.billing.count(&mut commit, Payer::of(&next), &calls);
        self.write(commit, &next, &effects, body).await?;
        loaded.execution = next;
        Ok(())
    }

    /// Begins the attempt in memory. Returns `None` if the prediction has ended in the meantime.
    async fn begin(&self, active: &ActiveExecution) -> Option<(Execution, u32)> {
        let mut state = active.state.lock().await;
        let loaded = state.as_mut()?;
        let effects = apply(&mut loaded.execution, Event::Dispatched, self.clock.now());
        let attempt = effects.iter().find_map(|effect| {
            if let Effect::Start { attempt } = effect { Some(*attempt) } else { None }
        })?;
        if let Some(log) = active.run_progress.event_log()
            && let Some(running) = loaded.execution.prediction().and_then(Prediction::running)
        {
            log.attempt_started(running);
        }
        Some((loaded.execution.clone(), attempt))
    }

    /// Runs the model, and marks a long run as started on disk.
    async fn attempt(
        &self,
        active: &ActiveExecution,
        execution: &Arc<Execution>,
        attempt: u32,
        work: Option<&ModelSpec>,
        input: &RawValue,
    ) -> Result<Ran, runners::Error> {
        let logs = Some((Arc::clone(self.news.event_logs()), Arc::clone(execution)));
        let progress = Arc::new(RunProgressSink {
            run_progress: Arc::clone(&active.run_progress),
            event_logs: logs,
        });
        let output_type = work.map(|work| work.output_type);
        let updates = Box::pin(self.announce_progress(active, execution, output_type));
        let run = async {
            tokio::select! {
                biased;
                report = self.run_model(execution, attempt, progress, work, input) => report,
                never = updates => match never {},
            }
        };
        tokio::pin!(run);
        tokio::select! {
            biased;
            report = &mut run => return report,
            () = tokio::time::sleep(MARK_AFTER) => {}
        }
        let (report, ()) = tokio::join!(run, self.mark(active, attempt));
        report
    }

    /// Commits the start of the attempt, unless the attempt has ended in the meantime.
    async fn mark(&self, active: &ActiveExecution, attempt: u32) {
        let state = active.state.lock().await;
        let Some(execution) = state.as_ref().map(|loaded| &loaded.execution) else { return };
        let running = execution.prediction().and_then(Prediction::running);
        if running.is_none_or(|running| running.number != attempt) {
            return;
        }
        let mut commit = Commit::new();
        indexes::update(&mut commit, execution);
        let key = rows::execution(execution.organization, execution.id);
        let written = match commit.put(key, execution) {
            Ok(_) => self.commit_change(execution.id, commit).await,
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::error!(
                execution = %execution.id, %error,
                "failed to record the start of a run"
            );
        }
    }

    /// Stores a runner's output and turns its report into an event.
    async fn digest(
        &self,
        execution: &Execution,
        attempt: u32,
        report: Result<Ran, runners::Error>,
        logs: Option<String>,
        work: Option<&ModelSpec>,
        budget: &Budget,
    ) -> Result<Digested, Error> {
        let attempt_key = &execution.attempt_key(attempt);
        let organization = execution.organization;
        let key = execution.key;
        let execution = execution.id;
        let origin = Origin { organization, key, execution, attempt_key };
        let kept = match report {
            Ok(ran) => self.store_output(ran, origin, work, budget).await?.map_err(Into::into),
            Err(error) => Err(error),
        };
        match kept {
            Ok(StoredOutput { output, text, tokens, cost, is_cached, result }) => {
                let event = Event::Succeeded { attempt, output, cost, logs, is_cached };
                Ok(Digested { event, output: Some(text), tokens, result })
            }
            Err(runners::Error { failure, cost }) => {
                let cost = cost.unwrap_or(Usd::ZERO);
                let policy = work.map(|work| work.retry.clone());
                let retry = policy.map(|policy| Retry { policy, now: self.clock.steady() });
                let event = Event::Failed { attempt, failure, cost, logs, retry };
                Ok(Digested { event, output: None, tokens: Tokens::default(), result: None })
            }
        }
    }

    async fn run_model(
        &self,
        execution: &Execution,
        attempt: u32,
        progress: Arc<dyn Progress>,
        work: Option<&ModelSpec>,
        input: &RawValue,
    ) -> Result<Ran, runners::Error> {
        let prediction = execution.prediction();
        let model = prediction.map_or("", Prediction::model);
        let Some(work) = work else { return Err(model_removed(model).into()) };
        let input: Value = serde_json::from_str(input.get()).map_err(|error| damaged(&error))?;
        let input = input_of(&*self.models, execution, input).await?;
        let attempt_key = execution.attempt_key(attempt);
        let job = Job {
            trace: execution.trace().call(&attempt_key),
            attempt_key,
            input: Arc::new(input),
            progress,
            may_fall_back: prediction.is_some_and(Prediction::has_next),
        };
        let skips_cache = prediction.is_some_and(|prediction| prediction.skips_cache);
        let payer = Payer::of(execution);
        self.call_or_find(work, model, job, payer, work.timeout, skips_cache).await
    }
}

/// The end of an attempt.
struct Digested {
    event: Event,
    /// The JSON text of the output, for the webhook.
    output: Option<Box<RawValue>>,
    tokens: Tokens,
    /// The output for the result cache.
    result: Option<NewResult>,
}

/// Returns the failure of work whose stored input is lost or damaged.
fn lost_input(error: &storage::Error) -> Failure {
    Failure::new(ErrorClass::InternalError, format!("the stored input cannot be read: {error}"))
}

/// Returns the failure of work whose stored input is not valid JSON.
fn damaged(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(ErrorClass::InternalError, format!("the stored input is damaged: {error}"))
}

/// Returns the model's input. The first model of a chain receives the input that was validated at
/// creation; a fallback model receives the mapped input, which must be valid.
async fn input_of(
    models: &dyn Models,
    execution: &Execution,
    input: Value,
) -> Result<Value, Failure> {
    let prediction = execution.prediction();
    let Some(prediction) = prediction.filter(|prediction| prediction.position > 0) else {
        return Ok(input);
    };
    let misfit = |what: String| {
        let model = prediction.model();
        let sentence = format!("the mapped input for the model '{model}' {what}");
        Failure::new(ErrorClass::InvalidModelConfig, sentence)
    };
    let mapped = match prediction.candidate().and_then(|candidate| candidate.input_map.as_ref()) {
        None => input,
        Some(map) => fill_object(map, &input)
            .map(Value::Object)
            .map_err(|error| misfit(format!("cannot be built: {error}")))?,
    };
    let checked = models.check_input(prediction.model(), mapped).await;
    checked.map_err(|violation| misfit(format!("is invalid: {violation}")))
}
