//! Redrive: creates a new execution with the inputs and workflow version of a failed or cancelled
//! execution. The new execution does not repeat the steps that had completed.

use std::sync::Arc;

use crate::{Engine, Error, Inner, Submission, rows};
use orrery_domain::execution::{Execution, Source, Status, Work, WorkflowRun};
use orrery_domain::ids::{ExecutionId, KeyId, OrganizationId};
use orrery_domain::machine::workflow::is_reusable;
use orrery_domain::money::Usd;
use orrery_domain::step::Step;
use orrery_domain::trace;
use orrery_storage::{self as storage, Commit};

impl Engine {
    /// Redrives a failed or cancelled execution of a workflow under a new id. The new execution
    /// belongs to the same trace, unless the request carries a different trace (`origin`). The
    /// commit that creates the new execution also copies the results of completed steps and
    /// includes the writes in `beside`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the execution is of another kind or has been deleted;
    /// [`Error::NotRedrivable`] if it is unfinished or was successful; [`Error::Forgotten`]; the
    /// errors of [`Engine::submit`].
    pub async fn redrive(
        &self,
        failed: &Execution,
        key: KeyId,
        source: Source,
        origin: Option<Arc<trace::Origin>>,
        id: ExecutionId,
        mut beside: Commit,
    ) -> Result<Execution, Error> {
        let inner = &self.inner;
        let organization = failed.organization;
        let run = failed.workflow().ok_or(Error::NotFound)?;
        if !matches!(failed.status, Status::Error | Status::Cancelled) {
            return Err(Error::NotRedrivable);
        }
        if failed.input.is_nothing() {
            return Err(Error::Forgotten);
        }
        let plan = inner.plans.plan(run.revision).await?.ok_or(Error::NotRedrivable)?;
        for (instance, step) in inner.read_steps(failed.id).await? {
            if is_reusable(&plan, &instance, &step) {
                let copy = inner.copy(&mut beside, organization, id, step).await?;
                beside.put(rows::step(id, &instance), &copy)?;
            }
        }
        // If the failed execution has been deleted in the meantime, its steps may be missing, and
        // the new execution would repeat them.
        self.get(organization, failed.id).await?;
        let owner = run.owner;
        let source_ip = run.source_ip;
        let mut run = WorkflowRun::new(run.workflow, run.version.clone(), run.revision, None);
        run.redriven_from = Some(failed.id);
        (run.owner, run.source_ip) = (owner, source_ip);
        let submission = Submission {
            id,
            organization,
            key,
            source,
            work: Work::Workflow(run),
            input: inner.store.read_payload(&failed.input).await.map_err(forgotten)?,
            webhook: failed.webhook.clone(),
            origin: Some(failed.trace().of_successor(origin.as_deref())),
        };
        let mut executions = self.submit(vec![submission], beside).await?;
        executions.pop().ok_or(Error::Stopping)
    }
}

impl Inner {
    /// Copies a step into the new execution, with separate payloads and at no cost.
    async fn copy(
        &self,
        commit: &mut Commit,
        organization: OrganizationId,
        id: ExecutionId,
        mut step: Step,
    ) -> Result<Step, Error> {
        step.cost = Usd::ZERO;
        for payload in [&mut step.input, &mut step.output].into_iter().flatten() {
            if payload.file().is_some() {
                let copied = self.store.copy_payload(id, payload).await.map_err(forgotten)?;
                self.store.claim(commit, &copied);
                self.store.record_usage(commit, organization, id, copied.len());
                *payload = copied;
            }
        }
        Ok(step)
    }
}

/// Converts the error for lost payloads: without its payloads, the execution cannot be redriven.
fn forgotten(error: storage::Error) -> Error {
    if error.is_final() { Error::Forgotten } else { error.into() }
}
