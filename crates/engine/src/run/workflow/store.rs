//! The rows of steps: they are read when an execution starts to run, and written with each commit.
//!
//! A commit contains every step that has changed since the last commit, the predictions for ended
//! model steps, and their cost. The commits at the start and at the end of the execution also
//! contain the execution itself.

use std::sync::Arc;

use serde_json::Value;

use super::Actor;
use super::resolve::REFERENCE_ERROR;
use super::runs::Used;
use crate::query::indexes;
use crate::{Error, Inner, rows};
use orrery_domain::classify::ErrorClass;
use orrery_domain::definition::{Kind, Plan};
use orrery_domain::execution::{Candidate, Execution, Fault, Prediction, Status, StepOf, Work};
use orrery_domain::ids::{ExecutionId, Id as _, RevisionId};
use orrery_domain::machine::workflow::{Effect, StepProgress};
use orrery_domain::machine::{self, is_final};
use orrery_domain::model::VERSION;
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_domain::step::{self, Instance, Step};
use orrery_records::billing::Payer;
use orrery_records::usage::Calls;
use orrery_runtime::TimeSlice;
use orrery_storage::Commit;
use orrery_storage::record::decode;

/// What a commit contains in addition to the changed steps.
#[derive(Debug, Default)]
pub(super) struct PendingEffects {
    pub effects: Vec<machine::Effect>,
    /// Model steps that have ended.
    pub published: Vec<Instance>,
    /// The commits that create the children of steps.
    pub children: Vec<Commit>,
}

impl PendingEffects {
    pub(super) const fn is_empty(&self) -> bool {
        self.effects.is_empty() && self.published.is_empty() && self.children.is_empty()
    }

    /// Whether the commit ends the execution.
    pub(super) fn is_final(&self) -> bool {
        is_final(&self.effects)
    }

    /// Selects the effects that must be part of a commit.
    fn of(effects: Vec<Effect>) -> Self {
        let mut written = Self::default();
        for effect in effects {
            match effect {
                Effect::Execution(whole) => written.effects.push(whole),
                Effect::Publish { instance } => written.published.push(instance),
                Effect::Begin { .. }
                | Effect::JoinOutputs { .. }
                | Effect::ResolveOutput
                | Effect::CreateChild { .. }
                | Effect::SetTimer { .. }
                | Effect::Stop { .. } => {}
            }
        }
        written
    }
}

impl Actor {
    /// Counts the tokens that ended calls have used, and adds their outputs to the result cache.
    pub(super) fn count_used(&mut self, commit: &mut Commit) -> Result<(), Error> {
        let payer = Payer { organization: self.organization, key: self.api_key };
        for Used { model, tokens, result } in self.used.drain(..) {
            let calls = Calls::part(&model, tokens, Usd::ZERO);
            self.inner.billing.count(commit, payer, &calls);
            self.inner.add_result(commit, result)?;
        }
        Ok(())
    }

    /// Returns the error as it is stored. If another organization owns the workflow, redacts the
    /// cause, which may quote the owner's step, hosts or responses, but logs the full cause.
    pub(super) fn redact_error(&self, instance: &Instance, fault: Fault) -> Fault {
        if !self.is_foreign || fault.name == REFERENCE_ERROR {
            return fault;
        }
        let step = self.plan.at(instance.step).map_or("", |planned| planned.id.as_str());
        tracing::info!(execution = %self.id, step, cause = fault.cause, "step failed");
        let cause =
            format!("the step failed ({}); only the workflow's owner", fault.class.as_str());
        Fault { cause: format!("{cause} can see the details"), ..fault }
    }
}

impl Inner {
    /// Loads the plan and the inputs, or returns a failure if they are lost.
    pub(super) async fn load_plan(
        &self,
        execution: &Execution,
        revision: RevisionId,
    ) -> Result<Result<(Arc<Plan>, Arc<Value>), Fault>, Error> {
        let lost = |cause: String| Fault::new("InternalError", ErrorClass::InternalError, cause);
        let Some(plan) = self.plans.plan(revision).await? else {
            return Ok(Err(lost("the stored definition cannot be read".to_owned())));
        };
        let text = match self.store.read_payload(&execution.input).await {
            Ok(text) => text,
            Err(error) if error.is_final() => {
                return Ok(Err(lost(format!("the stored inputs cannot be read: {error}"))));
            }
            Err(error) => return Err(error.into()),
        };
        Ok(match serde_json::from_str(text.get()) {
            Ok(inputs) => Ok((plan, Arc::new(inputs))),
            Err(error) => Err(lost(format!("the stored inputs are damaged: {error}"))),
        })
    }

    /// Adds up the cost of a workflow that ends without being loaded: until a workflow ends, its
    /// cost is recorded only in its steps. Returns the steps.
    pub(crate) async fn sum_cost(
        &self,
        execution: &mut Execution,
    ) -> Result<Vec<(Instance, Step)>, Error> {
        let steps = self.read_steps(execution.id).await?;
        execution.cost = steps.iter().map(|(_, step)| step.cost).sum();
        Ok(steps)
    }

    /// Reads all stored steps of an execution.
    pub(crate) async fn read_steps(&self, id: ExecutionId) -> Result<Vec<(Instance, Step)>, Error> {
        let mut steps = Vec::new();
        let mut scan = self.store.scan(rows::steps(id));
        while let Some((key, value)) = scan.next().await? {
            let Some(instance) = rows::parse_step(&key) else { continue };
            steps.push((instance, decode(&value)?));
        }
        Ok(steps)
    }

    /// Commits effects that occur while no actor is running, such as a cancellation.
    pub(crate) async fn write_progress(
        self: &Arc<Self>,
        commit: Commit,
        execution: &mut Execution,
        progress: &mut StepProgress,
        effects: Vec<Effect>,
    ) -> Result<(), Error> {
        let written = PendingEffects::of(effects);
        self.commit_progress(commit, execution, progress, &written, true).await
    }

    /// Commits the changed steps and `written`. `with_execution` forces the execution's own row to
    /// be written. `commit` may already contain other changes.
    pub(super) async fn commit_progress(
        self: &Arc<Self>,
        mut commit: Commit,
        execution: &mut Execution,
        progress: &mut StepProgress,
        written: &PendingEffects,
        with_execution: bool,
    ) -> Result<(), Error> {
        // Publish the predictions before the list of changed steps is cleared.
        for instance in &written.published {
            self.publish(&mut commit, execution, progress, instance)?;
        }
        let announcement = if self.announces(execution, &written.effects) {
            let steps = progress.steps().map(|(instance, step)| (instance.clone(), step.clone()));
            Some(self.views.workflow_body(execution, Some(progress.plan()), steps.collect()).await?)
        } else {
            None
        };
        let changed: Vec<_> = progress.changed().collect();
        self.news.tell_steps(&mut commit, execution, progress.plan(), &changed);
        let mut slice = TimeSlice::default();
        for (instance, step) in changed {
            slice.end().await;
            commit.put(rows::step(execution.id, instance), step)?;
            for payload in step.input.iter().chain(&step.output) {
                self.store.claim(&mut commit, payload);
            }
        }
        progress.forget_changed();
        let is_suspended =
            written.effects.iter().any(|effect| matches!(effect, machine::Effect::SetTimer { .. }));
        if written.is_final() || is_suspended || with_execution {
            return self.write(commit, execution, &written.effects, announcement).await;
        }
        for effect in &written.effects {
            self.write_effect(&mut commit, execution, effect)?;
        }
        self.commit_change(execution.id, commit).await?;
        self.step_waiters.wake(execution.id);
        Ok(())
    }

    /// Writes an ended model step as a separate prediction.
    fn publish(
        &self,
        commit: &mut Commit,
        execution: &Execution,
        progress: &StepProgress,
        instance: &Instance,
    ) -> Result<(), Error> {
        let (Some(planned), Some(step)) =
            (progress.plan().at(instance.step), progress.step(instance))
        else {
            return Ok(());
        };
        let (Kind::Model(model), Some(id)) = (&planned.kind, step.prediction) else {
            return Ok(());
        };
        let fallback = model.fallback.as_ref().filter(|_| step.primary_error.is_some());
        let chain = std::iter::once(&model.slug).chain(fallback.map(|fallback| &fallback.slug));
        let chain: Vec<_> = chain.map(|slug| Candidate::new(slug.clone())).collect();
        let status = match step.status {
            step::Status::Completed => Status::Success,
            step::Status::Failed => Status::Error,
            step::Status::Queued
            | step::Status::Running
            | step::Status::Cancelled
            | step::Status::Skipped => Status::Cancelled,
        };
        let nothing =
            || Payload::of(&()).map_err(|error| orrery_storage::Error::malformed("input", error));
        let input = step.input.clone().map_or_else(nothing, Ok)?;
        let prediction = Execution {
            id,
            organization: execution.organization,
            key: execution.key,
            source: execution.source,
            status,
            input,
            output: step.output.clone(),
            fault: step.fault.clone(),
            cost: step.cost,
            reserved: Usd::ZERO,
            webhook: None,
            // The id was generated when the wait for the model began. Lists search for executions
            // by the time in the id, so `created_at` must agree with it.
            created_at: id.made_at().min(step.started_at),
            started_at: step.attempts.first().map(|first| first.started_at),
            completed_at: step.completed_at,
            origin: None,
            work: Work::Prediction(Prediction {
                schedule: None,
                skips_cache: false,
                is_cached: step.is_cached,
                version: VERSION.to_owned(),
                position: u32::from(fallback.is_some()),
                chain,
                attempts: step.attempts.clone(),
                attempts_before: 0,
                aside_until: None,
                logs: step.logs.clone(),
                step: execution.workflow().map(|run| StepOf {
                    execution: execution.id,
                    step_id: planned.id.clone(),
                    workflow: run.workflow,
                    version: run.version.clone(),
                    bulk: run.bulk,
                }),
            }),
        };
        if let Some(calls) = Calls::of(&prediction) {
            self.billing.count(commit, Payer::of(&prediction), &calls);
        }
        commit.put(rows::execution(execution.organization, id), &prediction)?;
        indexes::add(commit, &prediction);
        Ok(())
    }
}
