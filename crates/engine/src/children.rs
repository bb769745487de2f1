//! Children: executions started by a step of another execution, which may wait for them.
//!
//! Two timer rows with reserved due times keep both sides consistent across a crash. The commit
//! that ends a child tells its parent to continue ([`rows::CHILD_ENDED`]), and the commit that ends
//! a waiting step orders the cancellation of its child ([`rows::ABANDONED`]). A child never holds
//! the lock of its parent, nor a parent the lock of its child.

use std::sync::Arc;

use crate::{Error, Inner, rows};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_storage::Commit;

impl Inner {
    /// Wakes the waiting step of the parent in the commit that ends an execution.
    pub(crate) fn tell_parent(self: &Arc<Self>, commit: &mut Commit, execution: &Execution) {
        let parent = execution.workflow().and_then(|run| run.parent.as_ref());
        let Some(parent) = parent.filter(|parent| parent.is_waiting) else { return };
        let (parent, child) = (parent.execution, execution.id);
        let row = rows::timer(rows::CHILD_ENDED, parent);
        commit.put_bytes(row, rows::timer_value(execution.organization));
        let inner = Arc::clone(self);
        commit.after_durable(move || {
            if let Some(active) = inner.active.find(parent) {
                active.child_ended(child);
            }
            inner.timers.notify_one();
        });
    }

    /// Cancels an execution that no step waits for anymore, and deletes its timer.
    pub(crate) async fn cancel_abandoned(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<(), Error> {
        self.cancel_unwanted(organization, id).await?;
        let mut commit = Commit::new();
        commit.delete(rows::timer(rows::ABANDONED, id));
        Ok(self.store.commit(commit).await?)
    }
}
