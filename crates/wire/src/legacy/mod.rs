//! Workflows and executions in the legacy format (`docs/spec/legacy.md`, "Legacy workflow" and
//! "Execution record"), converted from the same views as the current format.

mod execution;
#[cfg(test)]
mod tests;
mod workflow;

pub use self::execution::{
    BulkTrigger, Bulked, LOOK_UP_MAX, List as ExecutionList, LookUp, LookedUp, Record, Trigger,
    Triggered,
};
pub use self::workflow::{Category, Created, List, Listed, NewWorkflow, Shown, Workflow};
