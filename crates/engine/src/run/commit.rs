//! Commits: writes the durable effects of a change together with the new state, and performs the
//! volatile effects once the commit is durable.
//!
//! A failed commit has no effects: the row in the lane (or the timer) still exists, and the work is
//! retried.

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::query::indexes;
use crate::rows::{self, Standing};
use crate::scheduler::admission::Entry;
use crate::{Error, Inner};
use orrery_domain::delivery::Delivery;
use orrery_domain::execution::Execution;
use orrery_domain::ids::{DeliveryId, ExecutionId};
use orrery_domain::machine::{Effect, is_final};
use orrery_records::billing::{self, Charge, Payer};
use orrery_records::usage::Calls;
use orrery_runtime::new_id;
use orrery_storage::{self as storage, Commit};
use orrery_webhooks as webhooks;

impl Inner {
    /// Commits the execution with its `effects`. `announcement` is the webhook's body in the
    /// service's own format; the webhook is sent if one of the effects requires it.
    pub(crate) async fn write(
        self: &Arc<Self>,
        mut commit: Commit,
        execution: &Execution,
        effects: &[Effect],
        announcement: Option<Box<RawValue>>,
    ) -> Result<(), Error> {
        let mut deliveries = Vec::new();
        for effect in effects {
            let body = match (effect, &announcement) {
                (Effect::EnqueueWebhook, _) if is_in_replicates_form(execution) => {
                    Some(self.replicate_body(execution, None, None).await?)
                }
                (Effect::EnqueueWebhook, Some(body)) => Some(body.clone()),
                _ => None,
            };
            match body {
                Some(body) => {
                    let own = self.enqueue_webhook(&mut commit, execution, body).await?;
                    deliveries.extend(own);
                }
                None => self.write_effect(&mut commit, execution, effect)?,
            }
        }
        if is_final(effects) {
            if let Some(body) = &announcement {
                deliveries.extend(self.tell_of_end(&mut commit, execution, body).await?);
            }
            count_end(&mut commit, execution);
            if let Some(calls) = Calls::of(execution) {
                self.billing.count(&mut commit, Payer::of(execution), &calls);
            }
            billing::release(&mut commit, Payer::of(execution), execution.reserved);
            self.tell_parent(&mut commit, execution);
            Self::tell_tree(&mut commit, execution);
            let scheduler = Arc::clone(&self.scheduler);
            let organization = execution.organization;
            commit.after_durable(move || scheduler.lanes().ended(organization));
        }
        commit.put(rows::execution(execution.organization, execution.id), execution)?;
        indexes::update(&mut commit, execution);
        if let Some(output) = &execution.output {
            self.store.claim(&mut commit, output);
        }
        self.commit_change(execution.id, commit).await?;
        for delivery in deliveries {
            (self.on_delivery)(delivery);
        }
        self.apply_volatile(execution, effects);
        Ok(())
    }

    /// Commits a change to an execution. If a cancellation is waiting for this change, the commit
    /// is urgent.
    pub(crate) async fn commit_change(
        &self,
        id: ExecutionId,
        mut commit: Commit,
    ) -> Result<(), storage::Error> {
        if let Some(active) = self.active.find(id) {
            commit.urgent_once(active.cancellation_waits());
        }
        self.store.commit(commit).await
    }

    /// Adds one effect to the commit; volatile effects are skipped. If the effect puts work into a
    /// lane, also creates the ticket.
    pub(crate) fn write_effect(
        self: &Arc<Self>,
        commit: &mut Commit,
        execution: &Execution,
        effect: &Effect,
    ) -> Result<(), storage::Error> {
        let id = execution.id;
        let organization = execution.organization;
        match effect {
            Effect::Dequeue { lane } => {
                commit.delete(rows::queued(lane, organization, id));
            }
            Effect::Enqueue { lane } => {
                commit.put_bytes(rows::queued(lane, organization, id), Vec::new());
                self.open_lane(lane);
                let reservation = self.scheduler.reserve_accepted(lane.clone(), id);
                let entry = Entry { organization, active: self.active.find(id) };
                commit.after_durable(move || reservation.enqueue(entry));
            }
            Effect::SetTimer { due } => {
                commit.put_bytes(rows::timer(*due, id), rows::timer_value(organization));
            }
            Effect::ClearTimer { due } => {
                commit.delete(rows::timer(*due, id));
            }
            Effect::Charge { execution: charged, model, amount } => {
                let (payer, entry) = (Payer::of(execution), new_id());
                let charge = Charge { amount: *amount, execution: *charged, entry, model };
                self.billing.charge(commit, payer, charge)?;
            }
            Effect::Abandon { child } => {
                let row = rows::timer(rows::ABANDONED, *child);
                commit.put_bytes(row, rows::timer_value(organization));
                let inner = Arc::clone(self);
                commit.after_durable(move || inner.timers.notify_one());
            }
            Effect::EnqueueWebhook | Effect::Start { .. } | Effect::Ended => {}
        }
        Ok(())
    }

    /// Adds the webhook delivery to the commit that ends the execution.
    async fn enqueue_webhook(
        &self,
        commit: &mut Commit,
        execution: &Execution,
        body: Box<RawValue>,
    ) -> Result<Option<Delivery>, Error> {
        let Some(webhook) = execution.webhook.clone() else { return Ok(None) };
        let organization = execution.organization;
        let id = execution.id;
        let now = self.clock.now();
        let delivery_id: DeliveryId = new_id();
        let body = self.store.write_payload(delivery_id, body).await?;
        self.store.claim(commit, &body);
        self.store.record_usage(commit, organization, delivery_id, body.len());
        let delivery = Delivery::new(delivery_id, organization, id, webhook, body, now)
            .traced(execution.origin.clone());
        webhooks::enqueue(commit, &delivery)?;
        Ok(Some(delivery))
    }

    /// Performs the volatile effects of a committed change.
    fn apply_volatile(&self, execution: &Execution, effects: &[Effect]) {
        if effects.iter().any(|effect| matches!(effect, Effect::SetTimer { .. })) {
            self.timers.notify_one();
        }
        if is_final(effects) {
            self.waiters.wake(execution.id);
            self.step_waiters.wake(execution.id);
            if !self.news.event_logs().is_empty()
                && let Some(active) = self.active.find(execution.id)
                && let Some(log) = active.run_progress.event_log()
            {
                self.news.event_logs().close(execution.id, log);
            }
            self.count_ended(execution);
            let kind = execution.kind();
            let (kind, status) = (kind.as_str(), execution.status.word(kind));
            metrics::counter!("orrery_executions_total", "kind" => kind, "status" => status)
                .increment(1);
            let total = execution.completed_at.map(|end| end.since(execution.created_at));
            metrics::histogram!("orrery_execution_seconds", "kind" => kind)
                .record(total.unwrap_or_default());
            self.tell_of_ended(execution, None);
        }
    }
}

fn is_in_replicates_form(execution: &Execution) -> bool {
    execution.webhook.as_ref().is_some_and(|webhook| webhook.replicate.is_some())
}

/// Adds a new execution to its workflow's lists.
pub(crate) fn count_start(commit: &mut Commit, execution: &Execution) {
    let Some(run) = execution.workflow() else { return };
    let organization = execution.organization;
    let id = execution.id;
    commit.append(rows::of_workflow(organization, run.workflow), rows::id_value(id));
    if let Some(bulk) = run.bulk {
        commit.put_bytes(rows::bulk(bulk).id(id), Vec::new());
    }
}

/// Adds an ended execution to its workflow's lists.
fn count_end(commit: &mut Commit, execution: &Execution) {
    let Some(run) = execution.workflow() else { return };
    let standings = rows::standings(execution.organization, run.workflow);
    let ended = rows::ended(&standings, Standing::from(execution.status));
    commit.append(ended, rows::id_value(execution.id));
}
