//! Progress of a workflow execution: its ended steps, in order of completion. A map and the steps
//! inside it count as one step.

use super::detail::is_in_map;
use crate::{Engine, Error};
use orrery_domain::definition::{Kind, Plan};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::payload::Payload;
use orrery_domain::step::{Instance, Status};
use orrery_domain::time::Timestamp;

/// The progress of an execution.
#[derive(Debug)]
pub struct Progress {
    pub execution: Execution,
    /// Number of steps in the definition.
    pub total: usize,
    pub ended: Vec<EndedStep>,
}

/// An ended step.
#[derive(Debug)]
pub struct EndedStep {
    pub id: String,
    pub status: Status,
    /// The model slug of a model step.
    pub model: Option<String>,
    pub output: Option<Payload>,
    completed_at: Option<Timestamp>,
}

impl Engine {
    /// Returns the progress of a workflow execution.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such execution, it is a prediction, or it belongs to
    /// another organization; [`Error::Storage`].
    pub async fn progress(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Progress, Error> {
        let (execution, plan, steps) = self.inner.views.read_workflow(organization, id).await?;
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
