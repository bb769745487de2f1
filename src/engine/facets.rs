//! What the history of an organization can be asked for by, each an index of its executions, newest
//! first: how they stand, the model, the class of the error, the workflow, the execution whose step
//! a prediction was.
//!
//! Every filter is one of these or a span of time, which the order of ids gives; `storage::search`
//! brings any of them together. Rows are written in the commits that make and change the execution.

use crate::domain::classify::ErrorClass;
use crate::domain::execution::{Execution, Kind, Status};
use crate::domain::ids::{ExecutionId, OrganizationId, WorkflowId};
use crate::storage::{Commit, Key, Table};

/// One thing to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Facet<'a> {
    /// The kind of the work and how it stands on the disk: a run that lasts shows there a moment
    /// after it has begun.
    Standing(Kind, Status),
    /// The model that was asked for, or the one of its chain that it ended with.
    Model(&'a str),
    Class(ErrorClass),
    /// The workflow that was run, or that the prediction was a step of.
    Workflow(WorkflowId),
    /// The execution that the prediction was a step of.
    Parent(ExecutionId),
}

/// The index of an organization's executions under a facet; ids follow, inverted.
pub fn index(organization: OrganizationId, facet: Facet<'_>) -> Key {
    let key = Key::table(Table::Facet).id(organization);
    match facet {
        Facet::Standing(kind, status) => {
            let kind = match kind {
                Kind::Prediction => b'p',
                Kind::Workflow => b'w',
            };
            let status = match status {
                Status::Created => b'c',
                Status::Processing => b'r',
                Status::Success => b's',
                Status::Error => b'e',
                Status::Cancelled => b'x',
            };
            key.raw(&[b's', kind, status])
        }
        Facet::Model(slug) => key.raw(b"m").text(slug),
        Facet::Class(class) => key.raw(b"c").text(class.as_str()),
        Facet::Workflow(workflow) => key.raw(b"w").id(workflow),
        Facet::Parent(execution) => key.raw(b"p").id(execution),
    }
}

/// Puts a new execution into its indexes.
pub fn add(commit: &mut Commit, execution: &Execution) {
    for row in rows_of(execution) {
        commit.put_bytes(row, Vec::new());
    }
}

/// All rows of an execution as it stands.
pub fn rows_of(execution: &Execution) -> Vec<Key> {
    of(execution).into_iter().map(|facet| row(execution, facet)).collect()
}

/// Moves an execution in its indexes that stands otherwise than it did.
pub fn change(commit: &mut Commit, execution: &Execution) {
    for earlier in [Status::Created, Status::Processing] {
        if earlier < execution.status {
            commit.delete(row(execution, Facet::Standing(execution.kind(), earlier)));
        }
    }
    for facet in of(execution) {
        let stays = match facet {
            Facet::Standing(..) | Facet::Class(_) => false,
            Facet::Model(slug) => {
                execution.prediction().is_some_and(|it| it.requested_model() == slug)
            }
            Facet::Workflow(_) | Facet::Parent(_) => true,
        };
        if !stays {
            commit.put_bytes(row(execution, facet), Vec::new());
        }
    }
}

/// Takes an execution out of all indexes.
pub fn remove(commit: &mut Commit, execution: &Execution) {
    for row in rows_of(execution) {
        commit.delete(row);
    }
}

fn row(execution: &Execution, facet: Facet<'_>) -> Key {
    index(execution.organization, facet).id_newest_first(execution.id)
}

/// The facets of an execution as it stands.
fn of(execution: &Execution) -> Vec<Facet<'_>> {
    let mut facets = vec![Facet::Standing(execution.kind(), execution.status)];
    if let Some(prediction) = execution.prediction() {
        facets.push(Facet::Model(prediction.requested_model()));
        if execution.status.is_final() && prediction.model() != prediction.requested_model() {
            facets.push(Facet::Model(prediction.model()));
        }
        if let Some(step) = &prediction.step {
            facets.extend([Facet::Workflow(step.workflow), Facet::Parent(step.execution)]);
        }
    }
    facets.extend(execution.workflow().map(|run| Facet::Workflow(run.workflow)));
    facets.extend(execution.fault.as_ref().map(|fault| Facet::Class(fault.class)));
    facets
}
