//! A cache of workflows, so that a trigger neither reads nor parses the workflow. The cache is
//! bounded, and each entry is valid until a change to the workflow is durable.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use orrery_domain::ids::WorkflowId;
use orrery_domain::workflow::Workflow;

/// Maximum number of entries; when a limit is exceeded, the cache is cleared.
const KEPT: usize = 2000;
/// Maximum total size of the cached rows, in bytes.
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// The cached workflows.
#[derive(Debug, Default)]
pub(crate) struct Known {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Number of changes to any workflow since the cache was created.
    changes: u64,
    workflows: HashMap<WorkflowId, Arc<Workflow>>,
    bytes: usize,
}

impl Known {
    /// Returns the cached workflow, or else the number of changes so far, to pass to
    /// [`Known::put`].
    pub(crate) fn get(&self, id: WorkflowId) -> Result<Arc<Workflow>, u64> {
        let held = self.lock();
        held.workflows.get(&id).map(Arc::clone).ok_or(held.changes)
    }

    /// Caches a workflow whose row has `bytes` bytes, unless a workflow has changed since `changes`
    /// was read, because the row may then be outdated.
    pub(crate) fn put(&self, workflow: &Arc<Workflow>, bytes: usize, changes: u64) {
        let mut held = self.lock();
        if held.changes != changes {
            return;
        }
        if held.workflows.len() >= KEPT || held.bytes.saturating_add(bytes) > KEPT_BYTES {
            (held.workflows, held.bytes) = (HashMap::new(), 0);
        }
        // The bytes of a replaced entry stay counted until the cache is cleared.
        held.bytes = held.bytes.saturating_add(bytes);
        held.workflows.insert(workflow.id, Arc::clone(workflow));
    }

    /// Removes a workflow once a change to it is durable.
    pub(crate) fn forget(&self, id: WorkflowId) {
        let mut held = self.lock();
        held.changes = held.changes.wrapping_add(1);
        held.workflows.remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workflow(number: u128) -> Arc<Workflow> {
        Arc::new(Workflow::sample(number.to_be_bytes().into()))
    }

    #[test]
    fn known_workflow_is_removed_by_changes_and_never_cached_stale() {
        let known = Known::default();
        let one = workflow(1);
        let before = known.get(one.id).unwrap_err();
        known.put(&one, 10, before);
        assert_eq!(known.get(one.id).unwrap(), one);
        known.forget(one.id);
        known.put(&one, 10, before);
        let changes = known.get(one.id).unwrap_err();
        assert_ne!(changes, before);
        known.put(&one, 10, changes);
        assert!(known.get(one.id).is_ok());
    }

    #[test]
    fn known_workflows_stay_within_their_limits() {
        let known = Known::default();
        let (one, two) = (workflow(1), workflow(2));
        known.put(&one, KEPT_BYTES, 0);
        known.put(&two, 1, 0);
        assert!(known.get(one.id).is_err() && known.get(two.id).is_ok());
        for number in 0..=KEPT as u128 {
            known.put(&workflow(number), 0, 0);
        }
        assert!(known.lock().workflows.len() <= KEPT);
    }
}
