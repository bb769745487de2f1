//! Child executions: a step of one execution starts another execution and may wait for it.
//!
//! Two kinds of timer rows with reserved due times keep parent and child consistent across a crash.
//! The commit that ends a child writes a timer that wakes its parent ([`rows::CHILD_ENDED`]), and
//! the commit that ends a waiting step writes a timer that cancels the step's child
//! ([`rows::ABANDONED`]). A child never locks its parent, and a parent never locks its child.

use std::sync::Arc;

use crate::{Error, Inner, rows};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_storage::Commit;

impl Inner {
    /// Adds the timer that wakes the parent's waiting step to the commit that ends an execution.
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

    /// Cancels an execution that no step is waiting for any longer, and deletes its timer.
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
