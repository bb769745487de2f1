//! Running executions: a prediction's fallback chain, a workflow's steps, and their commits.

pub mod outcome;

pub(super) mod attempt;
pub(super) mod budget;
pub(super) mod commit;
mod endpoints;
mod prediction;
mod updates;
pub(super) mod workflow;
