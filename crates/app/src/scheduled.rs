//! Starts the work of schedules: workflow executions and predictions, through the catalog and the
//! engine.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::to_raw_value;

use orrery_catalog::Catalog;
use orrery_domain::chain::Entry;
use orrery_domain::execution::{Candidate, Prediction, Source, Work as Doing, WorkflowRun};
use orrery_domain::ids::{ExecutionId, OrganizationId, WorkflowId};
use orrery_domain::schedule::{Schedule, Target};
use orrery_domain::workflow::Status;
use orrery_engine::{self as engine, Engine, Submission};
use orrery_records::chains::{self, Chains};
use orrery_records::schedules::{DoneFuture, Fault, RunningFuture, Schedules, StartFuture, Work};
use orrery_runtime::Clock;
use orrery_schema::{Patience, ValidationError};
use orrery_storage::{self as storage, Commit, Store};
use orrery_workflows::{self as workflows, Workflows, count_trigger};

/// Retry delay if the engine's queue is full.
const BUSY_RETRY: Duration = Duration::from_secs(5);

/// The layers that scheduled work uses.
#[derive(Debug)]
struct Scheduled {
    engine: Engine,
    catalog: Catalog,
    workflows: Workflows,
    chains: Chains,
}

/// Opens the schedules of a store, with the layers that run their work.
pub(super) fn open(
    store: &Store,
    clock: &Clock,
    engine: &Engine,
    catalog: &Catalog,
    workflows: &Workflows,
    chains: &Chains,
) -> Schedules {
    let work = Scheduled {
        engine: engine.clone(),
        catalog: catalog.clone(),
        workflows: workflows.clone(),
        chains: chains.clone(),
    };
    Schedules::new(store.clone(), clock.clone(), Arc::new(work))
}

/// Validated work.
struct Ready {
    work: Doing,
    input: Value,
}

impl Work for Scheduled {
    fn check<'a>(&'a self, schedule: &'a Schedule) -> StartFuture<'a> {
        Box::pin(async move { self.prepare(schedule, &mut Commit::new()).await.map(drop) })
    }

    fn is_running(&self, organization: OrganizationId, id: ExecutionId) -> RunningFuture<'_> {
        Box::pin(async move {
            match self.engine.get(organization, id).await {
                Ok(execution) => Ok(!execution.status.is_final()),
                Err(engine::Error::Storage(error)) => Err(error),
                Err(_not_found) => Ok(false),
            }
        })
    }

    fn cancel(&self, organization: OrganizationId, id: ExecutionId) -> DoneFuture<'_> {
        Box::pin(async move {
            match self.engine.cancel(organization, id).await {
                Err(engine::Error::Storage(error)) => Err(error),
                Err(engine::Error::Stopping) => Err(stopping()),
                Ok(_) | Err(_) => Ok(()),
            }
        })
    }

    fn start<'a>(
        &'a self,
        schedule: &'a Schedule,
        id: ExecutionId,
        mut beside: Commit,
    ) -> StartFuture<'a> {
        Box::pin(async move {
            let Ready { work, input } = self.prepare(schedule, &mut beside).await?;
            let input = to_raw_value(&input)
                .map_err(|error| Fault::Storage(storage::Error::malformed("input", error)))?;
            let submission = Submission {
                id,
                organization: schedule.organization,
                key: schedule.key,
                source: Source::Schedule,
                work,
                input,
                webhook: schedule.webhook.clone(),
                origin: None,
            };
            match self.engine.submit(vec![submission], beside).await {
                Ok(_) => Ok(()),
                Err(engine::Error::Storage(error)) => Err(Fault::Storage(error)),
                Err(engine::Error::Stopping) => Err(Fault::Storage(stopping())),
                Err(
                    engine::Error::QueueFull { .. }
                    | engine::Error::TooManyQueued { .. }
                    | engine::Error::Failing { .. },
                ) => Err(Fault::Busy(BUSY_RETRY)),
                Err(error) => Err(Fault::Refused(error.to_string())),
            }
        })
    }
}

impl Scheduled {
    /// Prepares the work of a schedule from its target's current definition, and adds the rows of
    /// that work to the commit `beside`.
    async fn prepare(&self, schedule: &Schedule, beside: &mut Commit) -> Result<Ready, Fault> {
        let input = schedule.input.clone();
        match &schedule.target {
            Target::Workflow { workflow, version } => {
                self.workflow_run(schedule, *workflow, version.as_deref(), input, beside).await
            }
            Target::Model { model: slug, version, fallback_selector } => {
                let model = self.catalog.get(slug);
                let model = model.ok_or_else(|| refused(self.catalog.missing(slug)))?;
                let input = model.check_input(input).await.map_err(invalid_input)?;
                let mut chain = vec![Candidate::new(model.slug.as_str())];
                if let Some(name) = fallback_selector {
                    chain.extend(self.fallbacks(schedule.organization, slug, name).await?);
                }
                let mut prediction = Prediction::new(version.clone(), chain);
                prediction.schedule = Some(schedule.id);
                Ok(Ready { work: Doing::Prediction(prediction), input })
            }
        }
    }

    async fn workflow_run(
        &self,
        schedule: &Schedule,
        id: WorkflowId,
        version: Option<&str>,
        input: Value,
        beside: &mut Commit,
    ) -> Result<Ready, Fault> {
        let workflow = match self.workflows.by_id(id).await {
            Ok(workflow)
                if workflow.organization == schedule.organization
                    && workflow.status != Status::Deleted =>
            {
                workflow
            }
            Ok(_) | Err(workflows::Error::NotFound { .. }) => {
                return Err(Fault::Gone("workflow not found".to_owned()));
            }
            Err(error) => return Err(of_workflows(error)),
        };
        if workflow.status == Status::Archived {
            return Err(refused("the workflow is archived"));
        }
        let version = workflow.version(version.unwrap_or(&workflow.latest));
        let version = version.ok_or_else(|| refused("version not found"))?;
        let compiled = self.workflows.compiled(version.revision).await.map_err(of_workflows)?;
        let input = match &compiled.inputs {
            None => input,
            Some(schema) => {
                let checked = schema.check_off_thread(input, Patience::Request).await;
                checked.map_err(invalid_input)?
            }
        };
        let mut run = WorkflowRun::new(workflow.id, version.id.clone(), version.revision, None);
        run.owner = Some(workflow.organization);
        run.schedule = Some(schedule.id);
        count_trigger(beside, workflow.id, &version.id);
        Ok(Ready { work: Doing::Workflow(run), input })
    }

    async fn fallbacks(
        &self,
        organization: OrganizationId,
        model: &str,
        name: &str,
    ) -> Result<Vec<Candidate>, Fault> {
        let chain = match self.chains.enabled(organization, model, name).await {
            Ok(chain) => chain,
            Err(chains::Error::Storage(error)) => return Err(Fault::Storage(error)),
            Err(error) => return Err(refused(error.to_string())),
        };
        let candidate = |entry: Entry| Candidate { model: entry.model, input_map: entry.input_map };
        Ok(chain.entries.into_iter().map(candidate).collect())
    }
}

fn refused(reason: impl Into<String>) -> Fault {
    Fault::Refused(reason.into())
}

fn invalid_input(error: ValidationError) -> Fault {
    match error {
        ValidationError::Violations(_) => refused(format!("invalid input: {error}")),
        ValidationError::Unavailable(_) => Fault::Busy(BUSY_RETRY),
    }
}

fn of_workflows(error: workflows::Error) -> Fault {
    match error {
        workflows::Error::Storage(error) => Fault::Storage(error),
        workflows::Error::ValidationUnavailable(_) => Fault::Busy(BUSY_RETRY),
        error @ (workflows::Error::Invalid { .. }
        | workflows::Error::NotFound { .. }
        | workflows::Error::NoVersion
        | workflows::Error::Changed
        | workflows::Error::VersionLocked
        | workflows::Error::Locked
        | workflows::Error::TooMany(_)) => refused(error.to_string()),
    }
}

fn stopping() -> storage::Error {
    storage::Error::Unavailable { reason: "the service is stopping".to_owned() }
}
