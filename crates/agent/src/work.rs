//! Validates the input of the executions that the agent's tools and MCP clients start. The same
//! checks apply to both.

use serde_json::Value;

use super::service::Inner;
use orrery_catalog::Model;
use orrery_domain::execution::{Candidate, Prediction, Work, WorkflowRun};
use orrery_domain::model::VERSION;
use orrery_domain::workflow::{Status, Workflow};
use orrery_engine as engine;
use orrery_schema::Patience;
use orrery_storage::Commit;
use orrery_workflows::count_trigger;

use super::tools::unreadable;

/// A validated input that the engine can run.
#[derive(Debug)]
pub(crate) struct Ready {
    pub work: Work,
    /// The input, with the defaults of the schema filled in.
    pub input: Value,
    /// Additional rows for the commit that accepts the execution.
    pub beside: Commit,
}

/// Prepares a prediction of a model, or returns the reason for the rejection of its input.
pub(crate) async fn prediction(model: &Model, input: Value) -> Result<Ready, String> {
    let checked = model.check_input(input).await;
    let input = checked.map_err(|refused| format!("invalid input: {refused}"))?;
    let candidates = vec![Candidate::new(model.slug.as_str())];
    let work = Work::Prediction(Prediction::new(VERSION.to_owned(), candidates));
    Ok(Ready { work, input, beside: Commit::new() })
}

/// Prepares an execution of a workflow's latest version, or returns the reason for its rejection.
pub(crate) async fn workflow_run(
    inner: &Inner,
    workflow: &Workflow,
    inputs: Value,
) -> Result<Result<Ready, String>, engine::Error> {
    let version = workflow.version(&workflow.latest);
    let Some(version) = version.filter(|_| workflow.status != Status::Archived) else {
        return Ok(Err("the workflow is archived".to_owned()));
    };
    if !inputs.is_object() {
        return Ok(Err("inputs must be an object".to_owned()));
    }
    let compiled = inner.workflows.compiled(version.revision).await.map_err(unreadable)?;
    let input = match &compiled.inputs {
        None => inputs,
        Some(schema) => match schema.check_off_thread(inputs, Patience::Request).await {
            Ok(inputs) => inputs,
            Err(error) => return Ok(Err(format!("invalid input: {error}"))),
        },
    };
    let mut run = WorkflowRun::new(workflow.id, version.id.clone(), version.revision, None);
    run.owner = Some(workflow.organization);
    let mut beside = Commit::new();
    count_trigger(&mut beside, workflow.id, &version.id);
    Ok(Ok(Ready { work: Work::Workflow(run), input, beside }))
}
