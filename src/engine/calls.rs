//! Calls: work that runs outside of the engine, such as a call of the chat router or a request for decisions,
//! and that the engine admits and records. A call is in no lane and is never run again: it is on the disk once it has
//! ended, in one commit with its charge. What is reserved for it is in memory only, so that nothing of
//! it survives the process.

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::billing::{self, Price, Reservation};
use crate::domain::execution::{Execution, lane_of_model};
use crate::domain::ids::OrganizationId;
use crate::domain::money::Usd;
use crate::engine::query::indexes;
use crate::engine::scheduler::permit::ModelPermit;
use crate::engine::{Engine, Error, Inner, rows};
use crate::runtime::new_id;
use crate::storage::Commit;

/// A call that has ended.
#[derive(Debug)]
pub struct EndedCall {
    /// With its final status and its cost, and without an output.
    pub execution: Execution,
    /// What is kept of its answer, as JSON.
    pub output: Option<Box<RawValue>>,
    /// What becomes durable with it.
    pub beside: Commit,
    pub reservation: Option<Reservation>,
}

impl Engine {
    /// Admits a call, and reserves what it may cost where balances are enforced. `keeps_output` says
    /// that its answer is going to be stored.
    ///
    /// # Errors
    /// [`Error::Stopping`], [`Error::Storage`], [`Error::Unpaid`], [`Error::OverQuota`].
    pub async fn admit_call(
        &self,
        organization: OrganizationId,
        price: Price,
        keeps_output: bool,
    ) -> Result<Option<Reservation>, Error> {
        let inner = &self.inner;
        if inner.tasks.is_stopping() {
            return Err(Error::Stopping);
        }
        inner.store.admit()?;
        if keeps_output {
            inner.check_quota(organization, 0).await?;
        }
        if !inner.options.enforce_balance || price == Price::default() {
            return Ok(None);
        }
        Ok(Some(inner.billing.hold(organization, price).await?))
    }

    /// A place at a model of the catalog, once one is free.
    ///
    /// # Errors
    /// [`Error::QueueFull`] when as many wait for one as the model's queue may hold.
    pub async fn place_at(&self, model: &str) -> Result<ModelPermit, Error> {
        let lane = lane_of_model(model);
        self.inner.open_lane(&lane);
        if let Err(full) = self.inner.lanes().has_room_for_step(&lane) {
            return Err(Error::QueueFull { queued: full.queued });
        }
        Ok(self.inner.acquire_permit(model, false).granted().await)
    }

    /// Records a call that has ended: its row in the history, its charge and what comes beside are one
    /// commit. Goes on when the caller is dropped.
    ///
    /// # Errors
    /// [`Error::Storage`]: nothing of it is recorded. [`Error::Stopping`].
    pub async fn record_call(&self, call: EndedCall) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        let recording = async move { inner.record_call(call).await };
        self.inner.tasks.complete(recording).await.unwrap_or(Err(Error::Stopping))
    }
}

impl Inner {
    async fn record_call(&self, call: EndedCall) -> Result<(), Error> {
        let EndedCall { mut execution, output, beside, reservation } = call;
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
        if execution.cost > Usd::ZERO {
            let now = self.clock.now();
            billing::charge(&mut commit, organization, execution.cost, id, new_id(), now)?;
        }
        commit.put(rows::execution(organization, id), &execution)?;
        indexes::add(&mut commit, &execution);
        // The balance has the charge from then on.
        commit.after_durable(move || drop(reservation));
        self.store.commit(commit).await?;
        let kind = execution.kind();
        let (kind, status) = (kind.as_str(), execution.status.word(kind));
        metrics::counter!("orrery_executions_total", "kind" => kind, "status" => status)
            .increment(1);
        metrics::histogram!("orrery_execution_seconds", "kind" => kind)
            .record(execution.run_time().unwrap_or_default());
        self.tell_of_ended(&execution);
        Ok(())
    }
}
