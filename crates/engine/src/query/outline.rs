//! The outline of an ended execution, for traces: its record and its steps, without inputs and
//! outputs.

use std::sync::Arc;

use crate::calls::Facts;
use crate::{Engine, Error, Inner, OnEnd, rows};
use orrery_domain::definition::Plan;
use orrery_domain::execution::{Execution, Work};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::payload::Payload;
use orrery_domain::step::{Instance, Step};
use orrery_storage::record::decode;

/// Maximum size of an agent step's input in an outline. The input is needed because it names the
/// tool.
const TASK_BYTES_MAX: u64 = 64 * 1024;

/// An execution and its steps.
#[derive(Debug)]
pub struct Outline {
    pub execution: Execution,
    /// The steps without inputs, outputs and logs; agent steps retain their input.
    pub steps: Vec<(Instance, Step)>,
    /// The plan; `None` unless the execution is a workflow run whose definition is stored.
    pub plan: Option<Arc<Plan>>,
}

impl Engine {
    /// Returns the outline of an execution with at most `steps_max` steps.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the execution is no longer stored; [`Error::Storage`].
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

    /// Sets the callback for ended executions. Only the first call takes effect.
    pub fn set_on_end(&self, on_end: OnEnd) {
        let _first = self.inner.on_end.set(on_end);
    }
}

impl Inner {
    /// Reports an ended execution. Call this function once the commit that ended the execution has
    /// returned.
    pub(crate) fn tell_of_ended(&self, execution: &Execution, facts: Option<Facts>) {
        if let Some(on_end) = self.on_end.get() {
            on_end(execution, facts);
        }
    }

    async fn course(
        &self,
        id: ExecutionId,
        most: usize,
        has_tasks: bool,
    ) -> Result<Vec<(Instance, Step)>, Error> {
        let mut steps = Vec::new();
        let mut scan = self.store.scan(rows::steps(id));
        while steps.len() < most
            && let Some((key, value)) = scan.next().await?
        {
            let Some(instance) = rows::parse_step(&key) else { continue };
            let mut step: Step = decode(&value)?;
            let is_task = |input: &Payload| has_tasks && input.len() <= TASK_BYTES_MAX;
            step.input = step.input.filter(is_task);
            (step.output, step.logs) = (None, None);
            steps.push((instance, step));
        }
        Ok(steps)
    }
}
