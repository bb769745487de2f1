//! The memory of running workflows: a budget of the whole service, in turns between organizations.
//!
//! What an execution takes is estimated before it is loaded, from its inputs and its plan. A large one
//! waits for its part and releases it when it ends or is suspended. A small one takes its part at
//! once: their number is bounded by `engine.active`, and a parent in memory never waits for one of
//! its children that way. What an open map holds counts as soon as it is known.

use serde_json::Value;

use crate::domain::definition::Kind;
use crate::engine::Inner;
use crate::engine::active::ActiveExecution;
use crate::engine::scheduler::admission::KEEP_BYTES_MAX;
use crate::runtime::turns::{self, Turn};

/// What any execution takes.
const BASE_BYTES: usize = 16 * 1024;
/// What one with a map takes beside, before the items are known.
const MAP_BYTES: usize = 1024 * 1024;
/// Bytes in memory for each byte of the inputs as text.
const BYTES_PER_INPUT: usize = 8;
/// What the state of one item takes beside its value.
const ITEM_BYTES: usize = 256;

impl Inner {
    /// Waits for the memory of an execution that is about to be loaded. `None`: it was stopped in
    /// the meantime.
    pub(super) async fn acquire_memory(&self, active: &ActiveExecution) -> Option<Turn> {
        let (organization, revision, input) = {
            let state = active.state.lock().await;
            let execution = &state.as_ref()?.execution;
            (execution.organization, execution.workflow()?.revision, execution.input.len())
        };
        // A plan that cannot be read is an error of the load.
        let plan = self.plans.plan(revision).await.ok().flatten();
        let has_map =
            plan.is_some_and(|plan| plan.steps().any(|step| matches!(step.kind, Kind::Map(_))));
        let is_small = !has_map && input <= KEEP_BYTES_MAX;
        let input = usize::try_from(input).unwrap_or(usize::MAX);
        let weight = input.saturating_mul(BYTES_PER_INPUT).saturating_add(if has_map {
            BASE_BYTES + MAP_BYTES
        } else {
            BASE_BYTES
        });
        if is_small {
            return Some(self.memory.force(organization, weight));
        }
        tokio::select! {
            biased;
            turn = turns::on_behalf_of(organization, self.memory.take(weight)) => Some(turn),
            () = active.stop.cancelled() => None,
            () = self.tasks.stopping() => None,
        }
    }
}

/// What the items of a map take beyond what was estimated for it.
pub(super) fn growth_of(items: &[Value]) -> usize {
    let held: usize = items.iter().map(|item| ITEM_BYTES.saturating_add(held_by(item))).sum();
    held.saturating_sub(MAP_BYTES)
}

fn held_by(value: &Value) -> usize {
    let within = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(held_by).sum(),
        Value::Object(fields) => {
            let fields = fields.iter();
            fields.map(|(name, value)| 64 + name.len() + held_by(value)).sum()
        }
    };
    within.saturating_add(size_of::<Value>())
}
