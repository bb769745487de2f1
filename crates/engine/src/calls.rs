//! Calls: work that the engine admits and records but does not run, such as a chat router call or a
//! request for decisions. A call is not queued in a lane and is never run again, unless it is made
//! in the background. It is stored when it ends, in one commit with its charge. Its reservation is
//! in memory only and is lost with the process.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::query::indexes;
use crate::scheduler::permit::ModelPermit;
use crate::{Engine, Error, Inner, rows};
use orrery_domain::execution::{Execution, lane_of_model};
use orrery_domain::ids::OrganizationId;
use orrery_domain::money::Usd;
use orrery_records::billing::{Charge, Payer, Price, Reservation};
use orrery_records::files::Files;
use orrery_records::key_policies;
use orrery_records::usage::Calls;
use orrery_runtime::new_id;
use orrery_storage::Commit;

/// Time between two attempts to take a permit that no other work wants.
const SPARE_INTERVAL: Duration = Duration::from_millis(20);

/// An ended call.
#[derive(Debug)]
pub struct EndedCall {
    /// The execution with its final status and cost, but without an output.
    pub execution: Execution,
    /// The part of the call's response that is stored, as JSON.
    pub output: Option<Box<RawValue>>,
    /// Writes to include in the same commit.
    pub beside: Commit,
    pub reservation: Option<Reservation>,
    pub facts: Option<Facts>,
}

/// Details of a chat call that traces need but its record lacks.
#[derive(Debug)]
pub struct Facts {
    /// The body of the request, in OpenAI's format.
    pub request: Bytes,
    /// The messages of the answer, in the format of the history; `None` if traces lack messages.
    pub answer: Option<Box<RawValue>>,
    pub finish_reasons: Vec<String>,
}

impl Engine {
    /// Admits a call and, if the balance or the key's budget limits it, reserves its maximum cost.
    /// `keeps_output` states whether the call's output will be stored.
    ///
    /// # Errors
    /// [`Error::Stopping`], [`Error::Storage`], [`Error::Unpaid`], [`Error::OverBudget`],
    /// [`Error::OverQuota`].
    pub async fn admit_call(
        &self,
        payer: Payer,
        price: Price,
        keeps_output: bool,
    ) -> Result<Option<Reservation>, Error> {
        let inner = &self.inner;
        if inner.tasks.is_stopping() {
            return Err(Error::Stopping);
        }
        inner.store.admit()?;
        if keeps_output {
            inner.check_quota(payer.organization, 0).await?;
        }
        inner.hold(payer, price).await
    }

    /// Returns the policies of all API keys.
    #[must_use]
    pub fn policies(&self) -> &key_policies::Handle {
        self.inner.policies()
    }

    /// Rejects a request whose result an organization has no room to store.
    ///
    /// # Errors
    /// [`Error::OverQuota`], [`Error::Storage`].
    pub async fn check_room(&self, organization: OrganizationId) -> Result<(), Error> {
        self.inner.check_quota(organization, 0).await
    }

    /// Returns the files, for the outputs of calls.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.inner.files
    }

    /// Acquires a permit of a catalog model, waiting until one is free.
    ///
    /// # Errors
    /// [`Error::QueueFull`] if the model's queue is full.
    pub async fn place_at(&self, model: &str) -> Result<ModelPermit, Error> {
        let lane = lane_of_model(model);
        self.inner.open_lane(&lane);
        if let Err(full) = self.inner.lanes().has_room_for_step(&lane) {
            return Err(Error::QueueFull { queued: full.queued });
        }
        Ok(self.inner.acquire_permit(model, false).granted().await)
    }

    /// Acquires a permit of a catalog model that no other work wants, waiting until there is one.
    pub async fn spare_place_at(&self, model: &str) -> ModelPermit {
        loop {
            if let Some(permit) = self.inner.acquire_spare_permit(model) {
                return permit;
            }
            tokio::time::sleep(SPARE_INTERVAL).await;
        }
    }

    /// Records an ended call. The call's history row, the charge and `beside` are one commit, which
    /// completes even if the caller is dropped.
    ///
    /// # Errors
    /// [`Error::Storage`]: nothing is recorded. [`Error::Stopping`].
    pub async fn record_call(&self, call: EndedCall) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        let recording = async move { inner.record_call(call).await };
        self.inner.tasks.complete(recording).await.unwrap_or(Err(Error::Stopping))
    }
}

impl Inner {
    /// Reserves the possible cost of work, if the balance or the key's budget limits it.
    pub(crate) async fn hold(
        &self,
        payer: Payer,
        price: Price,
    ) -> Result<Option<Reservation>, Error> {
        let needs_balance = self.options.enforce_balance;
        let is_limited = needs_balance || self.billing.has_budget(payer);
        if !is_limited || price == Price::default() {
            return Ok(None);
        }
        Ok(Some(self.billing.hold(payer, price, needs_balance).await?))
    }

    /// Returns the policies of all API keys.
    pub(crate) const fn policies(&self) -> &key_policies::Handle {
        self.billing.policies()
    }

    async fn record_call(&self, call: EndedCall) -> Result<(), Error> {
        let EndedCall { mut execution, output, beside, reservation, facts } = call;
        let organization = execution.organization;
        let id = execution.id;
        let mut commit = Commit::new();
        commit.extend(beside);
        if let Some(output) = output {
            let output = self.store.write_payload(id, output).await?;
            self.store.claim(&mut commit, &output);
            self.store.record_usage(&mut commit, organization, id, output.len());
            execution.output = Some(output);
        }
        let payer = Payer::of(&execution);
        if let Some(calls) = Calls::of(&execution) {
            self.billing.count(&mut commit, payer, &calls);
            if execution.cost > Usd::ZERO {
                let (amount, model) = (execution.cost, calls.model);
                let charge = Charge { amount, execution: id, entry: new_id(), model };
                self.billing.charge(&mut commit, payer, charge)?;
            }
        }
        commit.put(rows::execution(organization, id), &execution)?;
        indexes::add(&mut commit, &execution);
        // The balance now includes the charge, so the reservation can be released.
        commit.after_durable(move || drop(reservation));
        self.store.commit(commit).await?;
        let kind = execution.kind();
        let (kind, status) = (kind.as_str(), execution.status.word(kind));
        metrics::counter!("orrery_executions_total", "kind" => kind, "status" => status)
            .increment(1);
        metrics::histogram!("orrery_execution_seconds", "kind" => kind)
            .record(execution.run_time().unwrap_or_default());
        if let Some(call) = execution.call() {
            self.call_metrics.record(call, execution.run_time().unwrap_or_default());
        }
        self.tell_of_ended(&execution, facts);
        Ok(())
    }
}
