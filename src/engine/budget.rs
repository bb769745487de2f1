//! Budgets: how many bytes of payloads one execution may make, and how many one organization may
//! keep.
//!
//! An execution's budget counts each input and output of its steps; equal texts that are files
//! count once, as they are there once. It lives as long as the execution has its place, and begins
//! again from what the commits have recorded. What an organization keeps is in the store's
//! counters; what its running executions have made since the last commit is added here.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Error, Inner};
use crate::domain::execution::Execution;
use crate::domain::ids::{ExecutionId, OrganizationId, PayloadId};
use crate::domain::payload::Payload;
use crate::domain::step::Step;
use crate::runtime;
use crate::storage::{Commit, RECORDED_FROM};

/// How old an organization's figure may be that work is refused by.
const FIGURE_AGE: Duration = Duration::from_secs(5);
/// Organizations whose figures are kept; past it they are read again as they are needed.
const FIGURES_MAX: usize = 10_000;

/// What is over a budget, in a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Over {
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
}

/// The bytes of one organization.
#[derive(Debug)]
pub struct Figures {
    quota: u64,
    /// As it was last read from the store.
    recorded: AtomicU64,
    /// What running executions have made and no commit has recorded.
    in_flight: AtomicU64,
    read_at: Mutex<Option<Instant>>,
}

impl Figures {
    fn take(&self, bytes: u64) -> Result<(), Over> {
        let in_flight = self.in_flight.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let used = self.recorded.load(Ordering::Relaxed).saturating_add(in_flight);
        if used > self.quota {
            self.give_back(bytes);
            return Err(Over::Organization { quota: self.quota });
        }
        Ok(())
    }

    fn give_back(&self, bytes: u64) {
        self.in_flight.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that are kept, with those on their way.
    pub fn used(&self) -> u64 {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        self.recorded.load(Ordering::Relaxed).saturating_add(in_flight)
    }

    pub const fn quota(&self) -> u64 {
        self.quota
    }

    fn is_old(&self) -> bool {
        let read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        read_at.is_none_or(|at| at.elapsed() >= FIGURE_AGE)
    }

    fn set(&self, recorded: u64) {
        self.recorded.store(recorded, Ordering::Relaxed);
        *self.read_at.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(runtime::monotonic_now());
    }
}

/// The figures of all organizations.
pub type All = Mutex<HashMap<OrganizationId, Arc<Figures>>>;

/// What one execution has made.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    figures: Arc<Figures>,
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    bytes: u64,
    /// How much of it commits have recorded.
    recorded: u64,
    files: HashSet<PayloadId>,
}

impl Budget {
    fn made(&self) -> std::sync::MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the bytes of a payload that is to be written; a file that is there takes none.
    fn take(&self, id: Option<PayloadId>, bytes: u64) -> Result<(), Over> {
        let mut made = self.made();
        if id.is_some_and(|id| made.files.contains(&id)) {
            return Ok(());
        }
        let sum = made.bytes.saturating_add(bytes);
        if sum > self.limit {
            return Err(Over::Execution { limit: self.limit });
        }
        self.figures.take(bytes)?;
        made.bytes = sum;
        made.files.extend(id);
        Ok(())
    }

    /// Notes a payload that is there already.
    fn know(&self, payload: &Payload) {
        self.made().files.extend(payload.file().map(|file| file.id));
    }

    /// What no commit has recorded yet, if it is worth it.
    pub fn unrecorded(&self) -> u64 {
        let made = self.made();
        let bytes = made.bytes.saturating_sub(made.recorded);
        if bytes < RECORDED_FROM { 0 } else { bytes }
    }

    /// A commit has recorded so many bytes.
    pub fn recorded(&self, bytes: u64) {
        self.made().recorded += bytes;
        self.figures.give_back(bytes);
        self.figures.recorded.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        let left = {
            let made = self.made();
            made.bytes.saturating_sub(made.recorded)
        };
        self.figures.give_back(left);
    }
}

impl Inner {
    /// An organization's figures, not older than [`FIGURE_AGE`] where it comes near its quota.
    pub(super) async fn figures(
        &self,
        organization: OrganizationId,
    ) -> Result<Arc<Figures>, Error> {
        let figures = {
            let mut all = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= FIGURES_MAX {
                all.retain(|_, figures| Arc::strong_count(figures) > 1);
            }
            let new = || Figures {
                quota: self.options.organization_bytes,
                recorded: AtomicU64::new(0),
                in_flight: AtomicU64::new(0),
                read_at: Mutex::new(None),
            };
            Arc::clone(all.entry(organization).or_insert_with(|| Arc::new(new())))
        };
        if figures.quota == u64::MAX {
            // Nothing is refused by them: a submission need not wait for the store.
            return Ok(figures);
        }
        let is_unknown = figures.read_at.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        let is_near = figures.used() > figures.quota / 2;
        if is_unknown || (is_near && figures.is_old()) {
            figures.set(self.store.payload_usage(organization).await?);
        }
        Ok(figures)
    }

    /// The budget of an execution that gets its place: what it has made is known from its steps, if
    /// it may have any.
    pub(super) async fn budget<'s>(
        &self,
        execution: &Execution,
        steps: Option<impl Iterator<Item = &'s Step>>,
    ) -> Result<Arc<Budget>, Error> {
        let (organization, id) = (execution.organization, execution.id);
        let figures = self.figures(organization).await?;
        let input = execution.input.len();
        let recorded = match &steps {
            Some(_) => self.store.payload_usage_of(organization, id).await?,
            None if input < RECORDED_FROM => 0,
            None => input,
        };
        let unrecorded = input.saturating_sub(recorded);
        figures.in_flight.fetch_add(unrecorded, Ordering::Relaxed);
        let made = Made { bytes: recorded + unrecorded, recorded, files: HashSet::new() };
        let limit = self.options.execution_bytes;
        let budget = Budget { limit, figures, made: Mutex::new(made) };
        budget.know(&execution.input);
        for step in steps.into_iter().flatten() {
            step.input.iter().chain(&step.output).for_each(|payload| budget.know(payload));
        }
        Ok(Arc::new(budget))
    }

    /// Keeps a text of an execution as a payload, within its budget.
    pub(super) async fn keep_text(
        &self,
        budget: &Budget,
        execution: ExecutionId,
        text: Box<RawValue>,
    ) -> Result<Result<Payload, Over>, Error> {
        let prepared = self.store.prepare_payload(execution, text).await?;
        if let Err(over) = budget.take(prepared.id(), prepared.bytes()) {
            return Ok(Err(over));
        }
        Ok(Ok(self.store.write_prepared(prepared).await?))
    }

    /// Adds to a commit what the execution has made since the last one; once that is on the disk,
    /// the budget knows.
    pub(super) fn record(
        &self,
        commit: &mut Commit,
        organization: OrganizationId,
        execution: ExecutionId,
        budget: &Arc<Budget>,
    ) {
        let bytes = budget.unrecorded();
        if self.store.record_usage(commit, organization, execution, bytes) > 0 {
            let budget = Arc::clone(budget);
            commit.after_durable(move || budget.recorded(bytes));
        }
    }

    /// Counts an input in its organization's figures once the commit is durable: before the work that
    /// the commit's later hooks enlist can begin.
    pub(super) fn count_input(&self, commit: &mut Commit, execution: &Execution) {
        let bytes = execution.input.len();
        let all = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        let figures = all.get(&execution.organization).filter(|_| bytes >= RECORDED_FROM);
        if let Some(figures) = figures.map(Arc::clone) {
            commit.after_durable(move || {
                figures.recorded.fetch_add(bytes, Ordering::Relaxed);
            });
        }
    }

    /// Refuses new work of an organization whose payloads are over its quota.
    pub(super) async fn check_quota(
        &self,
        organization: OrganizationId,
        bytes: u64,
    ) -> Result<(), Error> {
        let figures = self.figures(organization).await?;
        let used = figures.used();
        if used.saturating_add(bytes) > figures.quota() {
            return Err(Error::OverQuota { quota: figures.quota(), used });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: u64, quota: u64) -> Budget {
        let figures = Figures {
            quota,
            recorded: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            read_at: Mutex::new(None),
        };
        Budget { limit, figures: Arc::new(figures), made: Mutex::default() }
    }

    #[test]
    fn equal_files_count_once_and_the_limit_holds() {
        let budget = budget(100, 1000);
        let id = Some(PayloadId::from([1; 16]));
        for _ in 0..10 {
            budget.take(id, 60).unwrap();
        }
        assert_eq!(budget.take(None, 41), Err(Over::Execution { limit: 100 }));
        budget.take(None, 40).unwrap();
        assert_eq!(budget.figures.used(), 100);
        let figures = Arc::clone(&budget.figures);
        drop(budget);
        assert_eq!(figures.used(), 0, "nothing was recorded");
    }

    #[test]
    fn the_quota_of_an_organization_holds_over_its_executions() {
        let one = budget(u64::MAX, 200_000);
        let other =
            Budget { limit: u64::MAX, figures: Arc::clone(&one.figures), made: Mutex::default() };
        one.take(None, 120_000).unwrap();
        assert_eq!(one.unrecorded(), 120_000);
        one.recorded(120_000);
        assert_eq!((one.unrecorded(), one.figures.used()), (0, 120_000));
        assert_eq!(other.take(None, 90_000), Err(Over::Organization { quota: 200_000 }));
        other.take(None, 60_000).unwrap();
        assert_eq!(other.unrecorded(), 0, "too little to be recorded");
        drop((one, other.take(None, 20_001)));
        assert_eq!(other.figures.used(), 180_000);
    }
}
