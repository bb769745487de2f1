//! Redrive: a new execution with the inputs and the version of one that has failed, which goes on
//! behind the steps that have ended.

use std::sync::Arc;

use crate::domain::execution::{Execution, Source, Status, Work, WorkflowRun};
use crate::domain::ids::{ExecutionId, KeyId, OrganizationId};
use crate::domain::machine::workflow::is_reusable;
use crate::domain::money::Usd;
use crate::domain::step::Step;
use crate::domain::trace;
use crate::engine::{Engine, Error, Inner, Submission, rows};
use crate::storage::{self, Commit};

impl Engine {
    /// Takes a failed or cancelled execution up again under a new id, by a key and through
    /// what it was presented. It stays in the trace, unless the request is of another one (`origin`). What its
    /// finished steps gave is copied in the commit that creates it; `beside` goes with it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::NotRedrivable`] for one that runs or has completed;
    /// [`Error::Forgotten`]; as
    /// [`Engine::submit`].
    pub async fn redrive(
        &self,
        organization: OrganizationId,
        (key, through, origin): (KeyId, Source, Option<Arc<trace::Origin>>),
        source: ExecutionId,
        id: ExecutionId,
        mut beside: Commit,
    ) -> Result<Execution, Error> {
        let inner = &self.inner;
        let failed = self.get(organization, source).await?;
        let run = failed.workflow().ok_or(Error::NotFound)?;
        if !matches!(failed.status, Status::Error | Status::Cancelled) {
            return Err(Error::NotRedrivable);
        }
        if failed.input.is_nothing() {
            return Err(Error::Forgotten);
        }
        let plan = inner.plans.plan(run.revision).await?.ok_or(Error::NotRedrivable)?;
        for (instance, step) in inner.read_steps(source).await? {
            if is_reusable(&plan, &instance, &step) {
                let copy = inner.copy(&mut beside, organization, id, step).await?;
                beside.put(rows::step(id, &instance), &copy)?;
            }
        }
        let owner = run.owner;
        let source_ip = run.source_ip;
        let mut run = WorkflowRun::new(run.workflow, run.version.clone(), run.revision, None);
        run.redriven_from = Some(source);
        (run.owner, run.source_ip) = (owner, source_ip);
        let submission = Submission {
            id,
            organization,
            key,
            source: through,
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
    /// A step as the new execution has it: with payloads of its own, and paid for already.
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

/// What is lost cannot be taken up again.
fn forgotten(error: storage::Error) -> Error {
    if error.is_final() { Error::Forgotten } else { error.into() }
}
