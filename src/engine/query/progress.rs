//! How far an execution of a workflow has come: its steps that have ended, in the order of their ends. The
//! steps within a map count as their map.

use super::detail::is_in_map;
use crate::domain::definition::{Kind, Plan};
use crate::domain::execution::Execution;
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::payload::Payload;
use crate::domain::step::{Instance, Status};
use crate::domain::time::Timestamp;
use crate::engine::{Engine, Error};

/// How far an execution has come.
#[derive(Debug)]
pub struct Progress {
    pub execution: Execution,
    /// Steps of the definition.
    pub total: usize,
    pub ended: Vec<EndedStep>,
}

/// A step that has ended.
#[derive(Debug)]
pub struct EndedStep {
    pub id: String,
    pub status: Status,
    /// The slug of a model step's model.
    pub model: Option<String>,
    pub output: Option<Payload>,
    completed_at: Option<Timestamp>,
}

impl Engine {
    /// How far the execution of a workflow has come.
    ///
    /// # Errors
    /// [`Error::NotFound`] also for a prediction and for another organization's; [`Error::Storage`].
    pub async fn progress(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Progress, Error> {
        let inner = &self.inner;
        let (execution, live) = inner.look(organization, id).await?;
        let run = execution.workflow().ok_or(Error::NotFound)?;
        let plan = inner.plans.plan(run.revision).await?;
        let steps = match live {
            Some(steps) => steps,
            None => inner.read_outer_steps(id).await?,
        };
        let plan = plan.as_deref();
        let planned = plan.into_iter().flat_map(Plan::steps).filter(|one| !is_in_map(plan, one));
        let mut progress = Progress { execution, total: 0, ended: Vec::new() };
        for planned in planned {
            progress.total += 1;
            let known = steps.iter().find(|(known, _)| *known == Instance::of(planned.position));
            let Some((_, step)) = known.filter(|(_, step)| step.status.is_final()) else {
                continue;
            };
            let model = if let Kind::Model(model) = &planned.kind {
                Some(model.slug.clone())
            } else {
                None
            };
            progress.ended.push(EndedStep {
                id: planned.id.clone(),
                status: step.status,
                model,
                output: step.output.clone(),
                completed_at: step.completed_at,
            });
        }
        progress.ended.sort_by_key(|step| step.completed_at);
        Ok(progress)
    }
}
