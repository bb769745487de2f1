//! The keys of workflows in the store.

use serde::{Deserialize, Serialize};

use orrery_domain::ids::{Id, OrganizationId, RevisionId, WorkflowId};
use orrery_domain::payload::Payload;
use orrery_storage::{Commit, Key, Record, Table};

/// The definition of one revision of a version.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Definition {
    pub workflow: WorkflowId,
    /// The definition as written by the client.
    pub definition: Payload,
}

impl Record for Definition {
    const NAME: &'static str = "definition";
}

/// Returns the key of a workflow.
pub(crate) fn workflow(id: WorkflowId) -> Key {
    Key::table(Table::Workflow).id(id)
}

/// Returns the key prefix of an organization's workflows, newest first; the keys end with their
/// ids.
pub(crate) fn of_organization(organization: OrganizationId) -> Key {
    Key::table(Table::WorkflowOf).id(organization)
}

/// Returns the key of an organization's workflow counter, which sorts before the rows that it
/// counts.
pub(crate) fn count(organization: OrganizationId) -> Key {
    of_organization(organization)
}

/// Returns the key prefix of an organization's slugs.
pub(crate) fn slugs(organization: OrganizationId) -> Key {
    Key::table(Table::WorkflowSlug).id(organization)
}

/// Returns the key of the row that maps a slug to its workflow's id.
pub(crate) fn slug(organization: OrganizationId, slug: &str) -> Key {
    slugs(organization).text(slug)
}

/// Returns the slug in a key that [`slug`] has built.
pub(crate) fn slug_of(organization: OrganizationId, key: &Key) -> Option<&str> {
    let text = key.as_bytes().strip_prefix(slugs(organization).as_bytes())?;
    std::str::from_utf8(text.strip_suffix(&[0])?).ok()
}

/// Encodes the value of a slug's row.
pub(crate) fn id_value(id: WorkflowId) -> Vec<u8> {
    id.bytes().to_vec()
}

/// Returns the key of a definition.
pub(crate) fn definition(revision: RevisionId) -> Key {
    Key::table(Table::Definition).id(revision)
}

/// Returns the key of a workflow's trigger counter.
pub(crate) fn triggers(workflow: WorkflowId) -> Key {
    Key::table(Table::Trigger).id(workflow)
}

/// Returns the key of a version's trigger counter.
pub(crate) fn triggers_of(workflow: WorkflowId, version: &str) -> Key {
    triggers(workflow).text(version)
}

/// Counts an execution of a version in the commit that creates it.
pub fn count_trigger(commit: &mut Commit, workflow: WorkflowId, version: &str) {
    commit.add(triggers(workflow), 1);
    commit.add(triggers_of(workflow, version), 1);
}
