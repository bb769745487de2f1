//! Children: executions that a step of another one has started and may wait for.
//!
//! Two timers with moments of their own keep both sides together across a crash: the commit of a child's
//! end says to its parent that it may go on ([`rows::CHILD_ENDED`]), and the commit of the end of a step that waits
//! says that its child is to be cancelled ([`rows::ABANDONED`]). A child never holds the lock of its parent, nor a
//! parent that of its child.

use std::sync::Arc;

use crate::domain::execution::Execution;
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::engine::{Error, Inner, rows};
use crate::storage::Commit;

impl Inner {
    /// Adds to the commit of an execution's end that the step which waits for it can go on.
    pub(in crate::engine) fn tell_parent(
        self: &Arc<Self>,
        commit: &mut Commit,
        execution: &Execution,
    ) {
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

    /// Cancels an execution that nobody waits for any more, and takes its timer away.
    pub(in crate::engine) async fn cancel_abandoned(
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
