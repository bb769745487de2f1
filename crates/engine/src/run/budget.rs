//! Budgets: the maximum payload bytes that one execution may produce and that one organization may
//! store.
//!
//! Each input and output of an execution's steps counts toward the execution's budget. Identical
//! texts that are stored in files count once, because they are stored once. A budget exists in
//! memory while its execution holds a permit, and is initialized from the usage that commits have
//! recorded. An organization's usage is the store's counter plus the bytes that its running
//! executions have produced since their last commit.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::trees::{TreeExceeded, TreeShare};
use crate::{Error, Inner};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, OrganizationId, PayloadId};
use orrery_domain::payload::Payload;
use orrery_domain::step::Step;
use orrery_runtime as runtime;
use orrery_storage::{Commit, RECORDED_FROM};

/// Maximum age of a usage figure on which a rejection is based.
const USAGE_AGE_MAX: Duration = Duration::from_secs(5);
/// Maximum number of organizations with a cached usage figure; beyond that, unused figures are
/// dropped and reread when needed.
const USAGES_MAX: usize = 10_000;

/// The budget that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BudgetExceeded {
    #[error(
        "the inputs and outputs of this execution have more than {limit} bytes \
         (engine.execution_bytes)"
    )]
    Execution { limit: u64 },
    #[error(
        "the stored inputs and outputs of this organization have more than {quota} bytes \
         (engine.organization_bytes)"
    )]
    Organization { quota: u64 },
    #[error(transparent)]
    Tree(#[from] TreeExceeded),
}

/// The payload usage of one organization.
#[derive(Debug)]
pub(crate) struct Usage {
    quota: u64,
    /// The usage last read from the store.
    recorded: AtomicU64,
    /// Bytes that running executions have produced and no commit has recorded yet.
    in_flight: AtomicU64,
    read_at: Mutex<Option<Instant>>,
}

impl Usage {
    fn reserve(&self, bytes: u64) -> Result<(), BudgetExceeded> {
        let in_flight = self.in_flight.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let used = self.recorded.load(Ordering::Relaxed).saturating_add(in_flight);
        if used > self.quota {
            self.release(bytes);
            return Err(BudgetExceeded::Organization { quota: self.quota });
        }
        Ok(())
    }

    fn release(&self, bytes: u64) {
        self.in_flight.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Recorded bytes plus bytes in flight.
    pub(crate) fn used(&self) -> u64 {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        self.recorded.load(Ordering::Relaxed).saturating_add(in_flight)
    }

    pub(crate) const fn quota(&self) -> u64 {
        self.quota
    }

    fn is_old(&self) -> bool {
        let read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        read_at.is_none_or(|at| at.elapsed() >= USAGE_AGE_MAX)
    }

    fn set(&self, recorded: u64) {
        self.recorded.store(recorded, Ordering::Relaxed);
        *self.read_at.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(runtime::monotonic_now());
    }
}

/// The usage of all organizations.
pub(crate) type UsageByOrganization = Mutex<HashMap<OrganizationId, Arc<Usage>>>;

/// The budget of one execution.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    usage: Arc<Usage>,
    produced: Mutex<Produced>,
    /// The execution's share in its tree, if another execution started it.
    tree: Option<TreeShare>,
}

#[derive(Debug, Default)]
struct Produced {
    bytes: u64,
    /// The bytes that commits have recorded.
    recorded: u64,
    files: HashSet<PayloadId>,
}

impl Budget {
    fn produced(&self) -> std::sync::MutexGuard<'_, Produced> {
        self.produced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves the bytes of a payload before the payload is written. A payload file that already
    /// exists needs no reservation.
    fn reserve(&self, id: Option<PayloadId>, bytes: u64) -> Result<(), BudgetExceeded> {
        let mut produced = self.produced();
        if id.is_some_and(|id| produced.files.contains(&id)) {
            return Ok(());
        }
        let sum = produced.bytes.saturating_add(bytes);
        if sum > self.limit {
            return Err(BudgetExceeded::Execution { limit: self.limit });
        }
        self.usage.reserve(bytes)?;
        if let Some(Err(over)) = self.tree.as_ref().map(|tree| tree.reserve(bytes)) {
            self.usage.release(bytes);
            return Err(over.into());
        }
        produced.bytes = sum;
        produced.files.extend(id);
        Ok(())
    }

    /// Records a payload that already exists.
    fn note_existing(&self, payload: &Payload) {
        self.produced().files.extend(payload.file().map(|file| file.id));
    }

    /// Returns the bytes not yet recorded by a commit, or 0 below [`RECORDED_FROM`].
    pub(crate) fn unrecorded(&self) -> u64 {
        let produced = self.produced();
        let bytes = produced.bytes.saturating_sub(produced.recorded);
        if bytes < RECORDED_FROM { 0 } else { bytes }
    }

    /// Notes that a commit has recorded `bytes`.
    pub(crate) fn recorded(&self, bytes: u64) {
        self.produced().recorded += bytes;
        self.usage.release(bytes);
        self.usage.recorded.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        let left = {
            let produced = self.produced();
            produced.bytes.saturating_sub(produced.recorded)
        };
        self.usage.release(left);
    }
}

impl Inner {
    /// Returns an organization's usage. Near the quota, the figure is at most [`USAGE_AGE_MAX`]
    /// old.
    pub(crate) async fn usage(&self, organization: OrganizationId) -> Result<Arc<Usage>, Error> {
        let usage = {
            let mut all = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= USAGES_MAX {
                all.retain(|_, usage| Arc::strong_count(usage) > 1);
            }
            let new = || Usage {
                quota: self.options.organization_bytes,
                recorded: AtomicU64::new(0),
                in_flight: AtomicU64::new(0),
                read_at: Mutex::new(None),
            };
            Arc::clone(all.entry(organization).or_insert_with(|| Arc::new(new())))
        };
        if usage.quota == u64::MAX {
            // Without a quota, nothing is rejected, so the store need not be queried.
            return Ok(usage);
        }
        let is_unknown = usage.read_at.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        let is_near = usage.used() > usage.quota / 2;
        if is_unknown || (is_near && usage.is_old()) {
            usage.set(self.store.payload_usage(organization).await?);
        }
        Ok(usage)
    }

    /// Creates the budget of an execution that starts to run. `steps` are its stored steps; `None`
    /// if it cannot have any.
    pub(crate) async fn budget<'s>(
        &self,
        execution: &Execution,
        steps: Option<impl Iterator<Item = &'s Step>>,
        tree: Option<TreeShare>,
    ) -> Result<Arc<Budget>, Error> {
        let organization = execution.organization;
        let id = execution.id;
        let usage = self.usage(organization).await?;
        let input = execution.input.len();
        let recorded = match &steps {
            Some(_) => self.store.payload_usage_of(organization, id).await?,
            None if input < RECORDED_FROM => 0,
            None => input,
        };
        let unrecorded = input.saturating_sub(recorded);
        usage.in_flight.fetch_add(unrecorded, Ordering::Relaxed);
        let produced = Produced { bytes: recorded + unrecorded, recorded, files: HashSet::new() };
        let limit = self.options.execution_bytes;
        let budget = Budget { limit, usage, produced: Mutex::new(produced), tree };
        budget.note_existing(&execution.input);
        for step in steps.into_iter().flatten() {
            step.input.iter().chain(&step.output).for_each(|payload| budget.note_existing(payload));
        }
        Ok(Arc::new(budget))
    }

    /// Stores a text of an execution as a payload, within its budget.
    pub(crate) async fn store_text(
        &self,
        budget: &Budget,
        execution: ExecutionId,
        text: Box<RawValue>,
    ) -> Result<Result<Payload, BudgetExceeded>, Error> {
        let prepared = self.store.prepare_payload(execution, text).await?;
        if let Err(over) = budget.reserve(prepared.id(), prepared.bytes()) {
            return Ok(Err(over));
        }
        Ok(Ok(self.store.write_prepared(prepared).await?))
    }

    /// Adds the bytes that were produced since the last commit to this commit. The budget counts
    /// these bytes as recorded once the commit is durable.
    pub(crate) fn record_produced(
        &self,
        commit: &mut Commit,
        organization: OrganizationId,
        execution: ExecutionId,
        budget: &Arc<Budget>,
    ) {
        if let Some(tree) = &budget.tree {
            tree.record(commit);
        }
        let bytes = budget.unrecorded();
        if self.store.record_usage(commit, organization, execution, bytes) > 0 {
            let budget = Arc::clone(budget);
            commit.after_durable(move || budget.recorded(bytes));
        }
    }

    /// Adds an input to its organization's usage once the commit is durable. Call this function
    /// before adding the hooks that enqueue the work, so that the usage is updated first.
    pub(crate) fn count_input(&self, commit: &mut Commit, execution: &Execution) {
        let bytes = execution.input.len();
        let all = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = all.get(&execution.organization).filter(|_| bytes >= RECORDED_FROM);
        if let Some(usage) = usage.map(Arc::clone) {
            commit.after_durable(move || {
                usage.recorded.fetch_add(bytes, Ordering::Relaxed);
            });
        }
    }

    /// Rejects new work of an organization whose payloads exceed its quota.
    pub(crate) async fn check_quota(
        &self,
        organization: OrganizationId,
        bytes: u64,
    ) -> Result<(), Error> {
        let usage = self.usage(organization).await?;
        let used = usage.used();
        if used.saturating_add(bytes) > usage.quota() {
            return Err(Error::OverQuota { quota: usage.quota(), used });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: u64, quota: u64) -> Budget {
        let usage = Usage {
            quota,
            recorded: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            read_at: Mutex::new(None),
        };
        Budget { limit, usage: Arc::new(usage), produced: Mutex::default(), tree: None }
    }

    #[test]
    fn payload_budget_counts_equal_files_once_and_enforces_limit() {
        let budget = budget(100, 1000);
        let id = Some(PayloadId::from([1; 16]));
        for _ in 0..10 {
            budget.reserve(id, 60).unwrap();
        }
        assert_eq!(budget.reserve(None, 41), Err(BudgetExceeded::Execution { limit: 100 }));
        budget.reserve(None, 40).unwrap();
        assert_eq!(budget.usage.used(), 100);
        let usage = Arc::clone(&budget.usage);
        drop(budget);
        assert_eq!(usage.used(), 0, "nothing was recorded");
    }

    #[test]
    fn payload_budget_enforces_organization_quota_across_executions() {
        let one = budget(u64::MAX, 200_000);
        let usage = Arc::clone(&one.usage);
        let other = Budget { limit: u64::MAX, usage, produced: Mutex::default(), tree: None };
        one.reserve(None, 120_000).unwrap();
        assert_eq!(one.unrecorded(), 120_000);
        one.recorded(120_000);
        assert_eq!((one.unrecorded(), one.usage.used()), (0, 120_000));
        assert_eq!(
            other.reserve(None, 90_000),
            Err(BudgetExceeded::Organization { quota: 200_000 })
        );
        other.reserve(None, 60_000).unwrap();
        assert_eq!(other.unrecorded(), 0, "too little to be recorded");
        drop((one, other.reserve(None, 20_001)));
        assert_eq!(other.usage.used(), 180_000);
    }
}
