//! The indexes of an organization's executions, each newest first: by status and lane (that is, by
//! model or workflow), by error class, by fallback model, and by the workflow and the execution in
//! which a prediction ran as a step.
//!
//! Every filter is a combination of these indexes and a time range, which maps to a range of ids;
//! `storage::index_intersection` computes the intersection. Rows are written in the commits that
//! create and change the execution. Most executions have a single row, which keeps creation cheap.

use crate::rows::{self, byte_of};
use orrery_domain::agent;
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::{Execution, Prediction, Status, lane_of_model, lane_of_workflow};
use orrery_domain::ids::{ExecutionId, OrganizationId, WorkflowId};
use orrery_storage::{Commit, Key, Table};

/// An index in addition to status and lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute<'a> {
    /// The model that produced the result, if it differs from the requested model. Chat router
    /// calls and decisions are not queued in a model's lane, so they are indexed under both models.
    Model(&'a str),
    ErrorClass(ErrorClass),
    /// The workflow in which the prediction ran as a step.
    StepOfWorkflow(WorkflowId),
    /// The execution in which the prediction ran as a step, or the execution whose step started
    /// this execution.
    Parent(ExecutionId),
}

/// Key prefix of an organization's executions by an attribute, followed by inverted ids.
#[must_use]
pub fn index(organization: OrganizationId, facet: Attribute<'_>) -> Key {
    let key = Key::table(Table::Facet).id(organization);
    match facet {
        Attribute::Model(slug) => key.raw(b"m").text(slug),
        Attribute::ErrorClass(class) => key.raw(b"c").text(class.as_str()),
        Attribute::StepOfWorkflow(workflow) => key.raw(b"w").id(workflow),
        Attribute::Parent(execution) => key.raw(b"p").id(execution),
    }
}

/// Adds a new execution to its indexes.
pub fn add(commit: &mut Commit, execution: &Execution) {
    for (row, value) in rows_of(execution) {
        commit.put_bytes(row, value);
    }
}

/// Updates the indexes of an execution whose status has changed.
pub fn update(commit: &mut Commit, execution: &Execution) {
    if execution.status.is_final() {
        commit.delete(status_row(execution, Status::Created));
    }
    add(commit, execution);
}

/// Removes an execution from all indexes.
pub fn remove(commit: &mut Commit, execution: &Execution) {
    for (row, _) in rows_of(execution) {
        commit.delete(row);
    }
}

/// Returns all index rows of an execution in its current state.
#[must_use]
pub fn rows_of(execution: &Execution) -> Vec<(Key, Vec<u8>)> {
    let status = execution.status;
    let value = if status.is_final() { Vec::new() } else { vec![byte_of(status)] };
    let mut found = Vec::with_capacity(4);
    found.push((status_row(execution, status), value));
    if let Some(parent) = execution.workflow().and_then(|run| run.parent.as_ref()) {
        let index = index(execution.organization, Attribute::Parent(parent.execution));
        found.push((index.id_newest_first(execution.id), Vec::new()));
    }
    if !status.is_final() {
        return found;
    }
    let mut put = |facet| {
        let key = index(execution.organization, facet).id_newest_first(execution.id);
        found.push((key, Vec::new()));
    };
    if let Some(fault) = &execution.fault {
        put(Attribute::ErrorClass(fault.class));
    }
    if let Some(prediction) = execution.prediction() {
        if prediction.model() != prediction.requested_model() {
            put(Attribute::Model(prediction.model()));
        }
        if let Some(step) = &prediction.step {
            put(Attribute::StepOfWorkflow(step.workflow));
            put(Attribute::Parent(step.execution));
        }
    }
    if execution.prediction().is_none()
        && let Some((model, requested)) = execution.models()
    {
        put(Attribute::Model(model));
        if model != requested {
            put(Attribute::Model(requested));
        }
    }
    found
}

/// Returns the status row of an execution. The row's lane is the lane of the requested model, even
/// if the execution is waiting for a fallback model or ended with a fallback model.
fn status_row(execution: &Execution, status: Status) -> Key {
    let lane = match (execution.prediction().map(Prediction::requested_model), execution.workflow())
    {
        (Some(model), _) => lane_of_model(model),
        (None, Some(run)) => lane_of_workflow(run.workflow),
        // The number of session lanes is unbounded, so the indexes treat all of them as one lane.
        (None, None) if execution.agent().is_some() => agent::LANE.to_owned(),
        (None, None) => execution.lane(),
    };
    rows::standing(execution.organization, execution.kind(), status)
        .text(&lane)
        .id_newest_first(execution.id)
}
