//! Submission: checks the limits, then commits the work; the commit's hook adds it to its lane.

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::query::indexes;
use crate::run::commit::{count_start, not_serializable};
use crate::scheduler::admission::{Admission, LaneReservation};
use crate::{Engine, Error, Inner, rows};
use orrery_domain::definition::Kind;
use orrery_domain::delivery::Webhook;
use orrery_domain::execution::{Execution, Prediction, Source, Status, Work};
use orrery_domain::ids::{ExecutionId, KeyId, OrganizationId};
use orrery_domain::model::Usage;
use orrery_domain::money::Usd;
use orrery_domain::token_bound::TokenBound;
use orrery_domain::trace;
use orrery_records::billing::{self, Price, Reservation};
use orrery_runners::Health;
use orrery_storage::Commit;

/// A validated submission, with defaults filled in.
#[derive(Debug)]
pub struct Submission {
    /// Created by the caller, so that `beside` can refer to it.
    pub id: ExecutionId,
    pub organization: OrganizationId,
    pub key: KeyId,
    pub source: Source,
    pub work: Work,
    /// JSON that is valid for the first model's request schema, or the workflow's input schema.
    pub input: Box<RawValue>,
    pub webhook: Option<Webhook>,
    /// Where the request came from.
    pub origin: Option<Arc<trace::Origin>>,
}

impl Engine {
    /// Accepts all of the submissions or none. On `Ok`, they are durable, and each will end exactly
    /// once. `beside` becomes durable in the same commit, for example the response for an
    /// `Idempotency-Key`.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::TooManyQueued`], [`Error::Failing`], [`Error::Unpaid`],
    /// [`Error::Storage`], [`Error::Stopping`]: nothing was created.
    pub async fn submit(
        &self,
        submissions: Vec<Submission>,
        beside: Commit,
    ) -> Result<Vec<Execution>, Error> {
        let inner = Arc::clone(&self.inner);
        // Completes even while the service stops; the next start runs the work. A submission whose
        // client hangs up is either committed or has no effect.
        let submitting = async move { inner.submit(submissions, beside).await };
        self.inner.tasks.complete(submitting).await.unwrap_or(Err(Error::Stopping))
    }
}

impl Inner {
    pub(crate) async fn submit(
        self: &Arc<Self>,
        submissions: Vec<Submission>,
        beside: Commit,
    ) -> Result<Vec<Execution>, Error> {
        let (commit, executions) = self.commit_of_submissions(submissions, beside).await?;
        self.store.commit(commit).await?;
        Ok(Arc::unwrap_or_clone(executions))
    }

    /// Builds the commit that accepts the work. Dropping it releases its reservations.
    pub(crate) async fn commit_of_submissions(
        self: &Arc<Self>,
        submissions: Vec<Submission>,
        beside: Commit,
    ) -> Result<(Commit, Arc<Vec<Execution>>), Error> {
        // Checked before large inputs are written; the commit checks again.
        self.store.admit()?;
        let now = self.clock.now();
        let admitted = self.admit_all(&submissions)?;
        let mut executions = Vec::with_capacity(submissions.len());
        let mut uses = Vec::with_capacity(submissions.len());
        for submission in submissions {
            let is_enforced = self.options.enforce_balance;
            uses.push(is_enforced.then(|| most_used(&submission.input)));
            let bytes = submission.input.get().len() as u64;
            self.check_quota(submission.organization, bytes).await?;
            let input = self.store.write_payload(submission.id, submission.input).await?;
            executions.push(Execution {
                id: submission.id,
                organization: submission.organization,
                key: submission.key,
                source: submission.source,
                status: Status::Created,
                input,
                work: submission.work,
                output: None,
                fault: None,
                cost: Usd::ZERO,
                reserved: Usd::ZERO,
                webhook: submission.webhook,
                created_at: now,
                started_at: None,
                completed_at: None,
                origin: submission.origin,
            });
        }
        let reservations = self.reserve_cost(&mut executions, &uses).await?;
        let reserved_slots = self.reserve_all(&executions)?;
        let mut commit = self.commit_of(&executions, beside)?;
        let mut deliveries = Vec::new();
        for execution in &executions {
            deliveries.extend(self.tell_of_start(&mut commit, execution).await?);
        }
        let executions = Arc::new(executions);
        let (taken, on_delivery) = (Arc::clone(&executions), Arc::clone(&self.on_delivery));
        commit.after_durable(move || {
            for (slot, execution) in reserved_slots.into_iter().zip(taken.iter()) {
                slot.enqueue_new(execution);
            }
            // The store has counted them.
            drop(reservations);
            admitted.into_iter().for_each(Admission::keep);
            deliveries.into_iter().for_each(|delivery| on_delivery(delivery));
        });
        Ok((commit, executions))
    }

    /// Counts each submission for its organization, within the organization's queue limit: all of
    /// them or none.
    fn admit_all(&self, submissions: &[Submission]) -> Result<Vec<Admission>, Error> {
        let admit = |submission: &Submission| {
            let limit = self.limits.of(submission.organization).queued;
            let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
            self.scheduler.admit(submission.organization, limit).map_err(|full| {
                Error::TooManyQueued { limit: limit.unwrap_or_default(), queued: full.queued }
            })
        };
        submissions.iter().map(admit).collect()
    }

    /// Reserves the maximum cost of each execution if balances are enforced: all of them or none.
    async fn reserve_cost(
        &self,
        executions: &mut [Execution],
        uses: &[Option<TokenBound>],
    ) -> Result<Vec<Reservation>, Error> {
        let mut reservations = Vec::new();
        if !self.options.enforce_balance {
            return Ok(reservations);
        }
        for (execution, used) in executions.iter_mut().zip(uses) {
            let Some(used) = *used else { continue };
            let price = self.price_of(execution, used).await?;
            if price != Price::default() {
                reservations.push(self.billing.hold(execution.organization, price).await?);
                execution.reserved = price.known;
            }
        }
        Ok(reservations)
    }

    /// The maximum cost of an execution; for a chain, that of the most expensive model. `used`
    /// bounds the tokens of its input. Each model call of a workflow reserves separately, so at its
    /// start the balance only has to be positive.
    async fn price_of(&self, execution: &Execution, used: TokenBound) -> Result<Price, Error> {
        let mut price = Price::default();
        match &execution.work {
            Work::Prediction(prediction) => {
                for candidate in &prediction.chain {
                    price = price.dearer(self.price_of_model(&candidate.model, used));
                }
            }
            Work::Workflow(run) => {
                let plan = self.plans.plan(run.revision).await?;
                let mut steps = plan.iter().flat_map(|plan| plan.steps());
                price.open = steps.any(|step| {
                    matches!(&step.kind, Kind::Model(model)
                    if self.is_priced(&model.slug)
                        || model.fallback.as_ref().is_some_and(|other| self.is_priced(&other.slug)))
                });
            }
            // Their price is reserved before the execution is created.
            Work::Chat(_) | Work::Decision(_) => {}
            // Each answer and each tool call reserves separately.
            Work::Agent(_) => {}
        }
        Ok(price)
    }

    fn is_priced(&self, slug: &str) -> bool {
        self.models.model(slug).is_some_and(|work| work.pricing.is_some())
    }

    /// Reserves the maximum cost of a workflow's model call if balances are enforced, plus the cost
    /// of its step that is not charged yet.
    pub(crate) async fn reserve_call(
        &self,
        organization: OrganizationId,
        slug: &str,
        input: &Value,
        spent: Usd,
    ) -> Result<Option<Reservation>, Error> {
        if !self.options.enforce_balance || !self.is_priced(slug) {
            return Ok(None);
        }
        let text = to_raw_value(input).map_err(|error| not_serializable("input", &error))?;
        let price = self.price_of_model(slug, most_used(&text));
        let price = Price { known: price.known.plus(spent), ..price };
        Ok(Some(self.billing.hold(organization, price).await?))
    }

    /// The maximum cost of a run that uses at most `used`. The price is open if the model reports
    /// its own cost.
    fn price_of_model(&self, slug: &str, used: TokenBound) -> Price {
        let Some(work) = self.models.model(slug) else { return Price::default() };
        let Some(pricing) = work.pricing else { return Price::default() };
        let used = used.tokens(work.runner.local().map(|local| local.context));
        let usage = Usage { run_time: work.timeout, ..used.into() };
        Price { known: pricing.most(&usage), open: pricing.is_reported() }
    }

    /// Announces each execution to its lane: all of them or none.
    fn reserve_all(&self, executions: &[Execution]) -> Result<Vec<LaneReservation>, Error> {
        let reserve = |execution: &Execution| {
            let lane = execution.lane();
            self.open_lane(&lane);
            let limits = self.limits_of(&lane);
            let reserved = self.scheduler.reserve(lane, limits, execution.id);
            reserved.map_err(|full| self.refuse(execution, full.queued))
        };
        executions.iter().map(reserve).collect()
    }

    /// The error of a full queue: the model does not respond, or there is too much work.
    fn refuse(&self, execution: &Execution, queued: usize) -> Error {
        let model = execution.prediction().map_or("", Prediction::model);
        match self.models.model(model).map(|work| work.runner.health()) {
            Some(Health::Failing(reason)) => Error::Failing { model: model.to_owned(), reason },
            Some(Health::Starting | Health::Good | Health::Impaired(_)) | None => {
                Error::QueueFull { queued }
            }
        }
    }

    /// Builds one commit of the executions, their queue rows and `beside`.
    fn commit_of(&self, executions: &[Execution], beside: Commit) -> Result<Commit, Error> {
        let mut commit = Commit::of_new_work();
        commit.extend(beside);
        for execution in executions {
            let organization = execution.organization;
            let id = execution.id;
            commit.put(rows::execution(organization, id), execution)?;
            let lane = execution.lane();
            commit.put_bytes(rows::queued(&lane, organization, id), Vec::new());
            count_start(&mut commit, execution);
            indexes::add(&mut commit, execution);
            billing::reserve(&mut commit, organization, execution.reserved);
            self.store.claim(&mut commit, &execution.input);
            self.store.record_usage(&mut commit, organization, id, execution.input.len());
            self.count_input(&mut commit, execution);
        }
        Ok(commit)
    }
}

/// The maximum usage of an input: all of it as a prompt, plus the requested answer.
fn most_used(input: &RawValue) -> TokenBound {
    TokenBound::of_input(input)
}
