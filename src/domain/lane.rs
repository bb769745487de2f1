//! Names of lanes: the queues of models and workflows.

use super::ids::WorkflowId;

/// The lane of a model.
#[must_use]
pub fn lane_of_model(slug: &str) -> String {
    ["model:", slug].concat()
}

/// The lane of a workflow.
#[must_use]
pub fn lane_of_workflow(id: WorkflowId) -> String {
    ["workflow:", &id.to_string()].concat()
}
