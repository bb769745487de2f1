//! The course of an execution that has ended: its record and its steps, without what they were given and
//! gave. For those who show where its time went.

use std::sync::Arc;

use crate::domain::definition::Plan;
use crate::domain::execution::{Execution, Work};
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::payload::Payload;
use crate::domain::step::{Instance, Step};
use crate::engine::{Engine, Error, Inner, OnEnd, rows};
use crate::storage::Page;
use crate::storage::record::decode;

/// Rows that are read at once: each may have 64 KiB of payload.
const PAGE: usize = 32;
/// What a step of an exchange was given is kept up to this size: it says which tool was used.
const TASK_BYTES_MAX: u64 = 64 * 1024;

/// An execution and its steps.
#[derive(Debug)]
pub struct Outline {
    pub execution: Execution,
    /// Without inputs, outputs and logs; those of the agent have their tasks.
    pub steps: Vec<(Instance, Step)>,
    /// Of a workflow whose definition is stored.
    pub plan: Option<Arc<Plan>>,
}

impl Engine {
    /// The course of an execution, with at most so many of its steps.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it is not stored any more; [`Error::Storage`].
    pub async fn outline(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
        steps_max: usize,
    ) -> Result<Outline, Error> {
        let execution = self.get(organization, id).await?;
        let inner = &self.inner;
        let plan = match execution.workflow() {
            Some(run) => inner.plans.plan(run.revision).await?,
            None => None,
        };
        let has_tasks = matches!(execution.work, Work::Agent(_));
        let steps = if execution.has_steps() {
            inner.course(id, steps_max, has_tasks).await?
        } else {
            Vec::new()
        };
        Ok(Outline { execution, steps, plan })
    }

    /// Sets what is called with each execution that has ended. The first call counts.
    pub fn set_on_end(&self, on_end: OnEnd) {
        let _first = self.inner.on_end.set(on_end);
    }
}

impl Inner {
    /// The execution has ended, and its commit has returned.
    pub(in crate::engine) fn tell_of_ended(&self, execution: &Execution) {
        if let Some(on_end) = self.on_end.get() {
            on_end(execution);
        }
    }

    async fn course(
        &self,
        id: ExecutionId,
        most: usize,
        has_tasks: bool,
    ) -> Result<Vec<(Instance, Step)>, Error> {
        let mut steps = Vec::new();
        let mut after = None;
        while steps.len() < most {
            let limit = PAGE.min(most - steps.len());
            let page = Page { prefix: rows::steps(id), after, before: None, limit };
            let found = self.store.page(page).await?;
            for (key, value) in &found {
                let Some(instance) = rows::parse_step(key) else { continue };
                let mut step: Step = decode(value)?;
                let is_task = |input: &Payload| has_tasks && input.len() <= TASK_BYTES_MAX;
                step.input = step.input.filter(is_task);
                (step.output, step.logs) = (None, None);
                steps.push((instance, step));
            }
            let Some((last, _)) = found.into_iter().last() else { break };
            after = Some(last);
        }
        Ok(steps)
    }
}
