//! Names of lanes: the queues of models and workflows.

use super::ids::WorkflowId;

/// Returns the lane of a model.
#[must_use]
pub fn lane_of_model(slug: &str) -> String {
    ["model:", slug].concat()
}

/// The prefix of all workflow lanes.
pub const WORKFLOW_LANE: &str = "workflow:";

/// Returns the lane of a workflow.
#[must_use]
pub fn lane_of_workflow(id: WorkflowId) -> String {
    [WORKFLOW_LANE, &id.to_string()].concat()
}
