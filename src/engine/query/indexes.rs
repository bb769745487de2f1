//! What the history of an organization can be asked for by, each an index of its executions, newest
//! first: their status, and in which lane they were, which is the model or the workflow; the class
//! of the error; the model that stood in; the workflow and the execution whose step a prediction was.
//!
//! Every filter is made of these or a span of time, which the order of ids gives; `storage::index_intersection`
//! brings any of them together. Rows are written in the commits that make and change the execution:
//! one for most, so that a create stays cheap.

use crate::domain::agent;
use crate::domain::classify::ErrorClass;
use crate::domain::execution::{Execution, Prediction, Status, lane_of_model, lane_of_workflow};
use crate::domain::ids::{ExecutionId, OrganizationId, WorkflowId};
use crate::engine::rows::{self, byte_of};
use crate::storage::{Commit, Key, Table};

/// What to ask for beside standing and lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute<'a> {
    /// The model that it ended with, where that is not the one that was asked for. Of a call of the
    /// chat router and of decisions, which are in the lane of no model, either of them.
    Model(&'a str),
    ErrorClass(ErrorClass),
    /// The workflow that the prediction was a step of.
    StepOfWorkflow(WorkflowId),
    /// The execution that the prediction was a step of, or that started the execution by a step.
    Parent(ExecutionId),
}

/// The index of an organization's executions under a facet; ids follow, inverted.
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

/// Puts a new execution into its indexes.
pub fn add(commit: &mut Commit, execution: &Execution) {
    for (row, value) in rows_of(execution) {
        commit.put_bytes(row, value);
    }
}

/// Moves an execution whose status has changed in its indexes.
pub fn update(commit: &mut Commit, execution: &Execution) {
    if execution.status.is_final() {
        commit.delete(status_row(execution, Status::Created));
    }
    add(commit, execution);
}

/// Takes an execution out of all indexes.
pub fn remove(commit: &mut Commit, execution: &Execution) {
    for (row, _) in rows_of(execution) {
        commit.delete(row);
    }
}

/// All rows of an execution as it is.
#[must_use]
pub fn rows_of(execution: &Execution) -> Vec<(Key, Vec<u8>)> {
    let status = execution.status;
    let value = if status.is_final() { Vec::new() } else { vec![byte_of(status)] };
    let mut found = vec![(status_row(execution, status), value)];
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

/// The row of an execution by its status: in the lane of the model that was asked for, whichever
/// of its chain it waits for or ended with.
fn status_row(execution: &Execution, status: Status) -> Key {
    let lane = match (execution.prediction().map(Prediction::requested_model), execution.workflow())
    {
        (Some(model), _) => lane_of_model(model),
        (None, Some(run)) => lane_of_workflow(run.workflow),
        // The lanes of sessions are without number: in the indexes they are one.
        (None, None) if execution.agent().is_some() => agent::LANE.to_owned(),
        (None, None) => execution.lane(),
    };
    rows::standing(execution.organization, execution.kind(), status)
        .text(&lane)
        .id_newest_first(execution.id)
}
