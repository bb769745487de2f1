//! What the history of an organization can be asked for by, each an index of its executions, newest
//! first: what has not ended by its lane, what has by how it ended, the model, the class of the
//! error, the workflow, the execution whose step a prediction was.
//!
//! Every filter is made of these or a span of time, which the order of ids gives; `storage::search`
//! brings any of them together. Rows are written in the commits that make and change the execution,
//! as few as can be in the one that makes it.

use super::rows;
use crate::domain::classify::ErrorClass;
use crate::domain::execution::{
    Execution, Kind, Prediction, Status, lane_of_model, lane_of_workflow,
};
use crate::domain::ids::{ExecutionId, OrganizationId, WorkflowId};
use crate::storage::{Commit, Key, Table};

/// One thing to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Facet<'a> {
    /// The kind of the work and how it ended.
    Ended(Kind, Status),
    /// The model that was asked for, or the one of its chain that it ended with; of what has ended.
    Model(&'a str),
    Class(ErrorClass),
    /// The workflow that was run, or that the prediction was a step of.
    Workflow(WorkflowId),
    /// The execution that the prediction was a step of.
    Parent(ExecutionId),
}

/// The index of an organization's executions under a facet; ids follow, inverted.
#[must_use]
pub fn index(organization: OrganizationId, facet: Facet<'_>) -> Key {
    let key = Key::table(Table::Facet).id(organization);
    match facet {
        Facet::Ended(kind, status) => {
            let kind = match kind {
                Kind::Prediction => b'p',
                Kind::Workflow => b'w',
            };
            key.raw(&[b'e', kind, byte_of(status)])
        }
        Facet::Model(slug) => key.raw(b"m").text(slug),
        Facet::Class(class) => key.raw(b"c").text(class.as_str()),
        Facet::Workflow(workflow) => key.raw(b"w").id(workflow),
        Facet::Parent(execution) => key.raw(b"p").id(execution),
    }
}

/// How a status stands in a row: the value of what has not ended, part of the key of what has.
#[must_use]
pub const fn byte_of(status: Status) -> u8 {
    match status {
        Status::Created => b'c',
        Status::Processing => b'r',
        Status::Success => b's',
        Status::Error => b'e',
        Status::Cancelled => b'x',
    }
}

/// Whether a lane is one of work of that kind.
#[must_use]
pub fn is_lane_of(lane: &str, kind: Kind) -> bool {
    match kind {
        Kind::Prediction => lane.starts_with(&lane_of_model("")),
        Kind::Workflow => !lane.starts_with(&lane_of_model("")),
    }
}

/// Puts a new execution into its indexes.
pub fn add(commit: &mut Commit, execution: &Execution) {
    for (row, value) in rows_of(execution) {
        commit.put_bytes(row, value);
    }
}

/// Moves an execution in its indexes that stands otherwise than it did.
pub fn change(commit: &mut Commit, execution: &Execution) {
    if execution.status.is_final() {
        commit.delete(unfinished(execution));
        // A run of a workflow has stood under its workflow, its first row, since it was made.
        let made_with_it = usize::from(execution.workflow().is_some());
        for (row, value) in rows_of(execution).into_iter().skip(made_with_it) {
            commit.put_bytes(row, value);
        }
    } else {
        commit.put_bytes(unfinished(execution), vec![byte_of(execution.status)]);
    }
}

/// Takes an execution that has ended out of all indexes.
pub fn remove(commit: &mut Commit, execution: &Execution) {
    for (row, _) in rows_of(execution) {
        commit.delete(row);
    }
}

/// All rows of an execution as it stands.
#[must_use]
pub fn rows_of(execution: &Execution) -> Vec<(Key, Vec<u8>)> {
    let mut found = Vec::with_capacity(4);
    let mut put = |facet| {
        let key = index(execution.organization, facet).id_newest_first(execution.id);
        found.push((key, Vec::new()));
    };
    if let Some(run) = execution.workflow() {
        put(Facet::Workflow(run.workflow));
    }
    if !execution.status.is_final() {
        found.push((unfinished(execution), vec![byte_of(execution.status)]));
        return found;
    }
    put(Facet::Ended(execution.kind(), execution.status));
    if let Some(fault) = &execution.fault {
        put(Facet::Class(fault.class));
    }
    if let Some(prediction) = execution.prediction() {
        put(Facet::Model(prediction.requested_model()));
        if prediction.model() != prediction.requested_model() {
            put(Facet::Model(prediction.model()));
        }
        if let Some(step) = &prediction.step {
            put(Facet::Workflow(step.workflow));
            put(Facet::Parent(step.execution));
        }
    }
    found
}

/// The row of an execution that has not ended: in the lane of the model that was asked for, whichever
/// of its chain it waits for now.
fn unfinished(execution: &Execution) -> Key {
    let lane = match (execution.prediction().map(Prediction::requested_model), execution.workflow())
    {
        (Some(model), _) => lane_of_model(model),
        (None, Some(run)) => lane_of_workflow(run.workflow),
        (None, None) => String::new(),
    };
    rows::unfinished(execution.organization, &lane).id_newest_first(execution.id)
}
