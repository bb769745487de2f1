//! The audit log's entries about changes to workflows. The entries are derived from the record
//! before and after the change, so that every caller gets the same entries.

use orrery_domain::workflow::{Status, Version, Workflow};

/// The action that creates a workflow.
pub(crate) const CREATE: &str = "workflow.create";

/// An action, and the object of the action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Act {
    pub action: &'static str,
    pub subject: String,
}

/// Returns a workflow's name in the audit log.
pub(crate) fn subject(workflow: &Workflow) -> String {
    format!("{} {}", workflow.id, workflow.slug)
}

/// Returns the actions that turn `before` into `after`. An update without changes yields no
/// actions.
pub(crate) fn between(before: &Workflow, after: &Workflow) -> Vec<Act> {
    let act = |action, detail: &str| Act { action, subject: subject(after) + detail };
    let mut acts = Vec::new();
    for version in &after.versions {
        if let Some(detail) = version_change(before.version(&version.id), version) {
            acts.push(act("workflow.version", &format!(", version {}: {detail}", version.id)));
        }
    }
    if before.name != after.name {
        let detail = format!(", from '{}' to '{}'", before.name, after.name);
        acts.push(act("workflow.rename", &detail));
    }
    if before.status != after.status {
        acts.push(match after.status {
            Status::Active => act("workflow.activate", ""),
            Status::Archived => act("workflow.archive", ""),
            Status::Deleted => act("workflow.delete", ""),
        });
    }
    let changed = [
        ("description", before.description != after.description),
        ("categories", before.categories != after.categories),
        ("tags", before.tags != after.tags),
        ("locked", before.locked != after.locked),
        ("production", before.production != after.production),
    ];
    let changed = changed.iter().filter(|(_, is_changed)| *is_changed).map(|(field, _)| *field);
    let changed: Vec<&str> = changed.collect();
    if !changed.is_empty() {
        acts.push(act("workflow.change", &format!(": {}", changed.join(", "))));
    }
    acts
}

/// Describes the change to a version; `None` if it is unchanged.
fn version_change(before: Option<&Version>, after: &Version) -> Option<&'static str> {
    let shared = |version: &Version| version.allowed_to_share;
    match before {
        None => Some(if shared(after) { "created, shared" } else { "created" }),
        Some(before) if before.revision == after.revision => None,
        Some(before) => Some(match (shared(before), shared(after)) {
            (false, true) => "changed, shared",
            (true, false) => "changed, no longer shared",
            (true, true) | (false, false) => "changed",
        }),
    }
}
