//! Workflows as they were last read, so that a trigger reads and parses none: kept up to a limit, and each
//! until a change of it is durable.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::ids::WorkflowId;
use crate::domain::workflow::Workflow;

/// Workflows that are kept; past one of the limits, all are read again as they are needed.
const KEPT: usize = 2000;
/// Bytes of their rows.
const KEPT_BYTES: usize = 4 * 1024 * 1024;

/// The workflows in memory.
#[derive(Debug, Default)]
pub struct Known {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Changes of any workflow so far.
    changes: u64,
    workflows: HashMap<WorkflowId, Arc<Workflow>>,
    bytes: usize,
}

impl Known {
    /// A workflow, or else the number of changes so far, for [`Known::put`].
    pub fn get(&self, id: WorkflowId) -> Result<Arc<Workflow>, u64> {
        let held = self.lock();
        held.workflows.get(&id).map(Arc::clone).ok_or(held.changes)
    }

    /// Keeps a workflow whose row has that many bytes, unless one has changed since `changes` was read: the
    /// row may be older.
    pub fn put(&self, workflow: &Arc<Workflow>, bytes: usize, changes: u64) {
        let mut held = self.lock();
        if held.changes != changes {
            return;
        }
        if held.workflows.len() >= KEPT || held.bytes.saturating_add(bytes) > KEPT_BYTES {
            (held.workflows, held.bytes) = (HashMap::new(), 0);
        }
        // What was in its place is counted until all go.
        held.bytes = held.bytes.saturating_add(bytes);
        held.workflows.insert(workflow.id, Arc::clone(workflow));
    }

    /// A change of the workflow is durable.
    pub fn forget(&self, id: WorkflowId) {
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
    fn known_workflow_is_forgotten_with_its_change_and_never_put_behind_one() {
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
