//! The memory budgets for running workflows, which apply to the entire service. Organizations take
//! turns in acquiring memory from the budgets.
//!
//! An execution's memory use is estimated from its inputs and its plan before it is loaded. A large
//! execution waits for a share of the budget without holding a permit and without its inputs in
//! memory, and releases the share when it ends or is suspended. A small execution, with small
//! inputs, few steps and no map, takes its share without waiting: `engine.active` limits the number
//! of small executions, and a parent in memory must never have to wait until there is memory for a
//! small child. The items of an open map count as soon as they have been resolved.
//!
//! Two additional budgets, each half as large as the budget for executions, limit the memory of
//! resolved templates, which can repeat a small input many times. The first budget is for step
//! calls: each call waits for its share before its input is built, holds no other share while it
//! waits, and keeps its share until it ends. The second budget is for results, outputs and map
//! items while they are built and stored, and for the arguments of agent tools. The holder of such
//! a share waits only for the disk.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use serde_json::Value;

use crate::active::ActiveExecution;
use crate::scheduler::admission::KEEP_BYTES_MAX;
use crate::scheduler::lanes::Parking;
use crate::{Engine, Inner};
use orrery_domain::definition::{Kind, Plan};
use orrery_domain::ids::OrganizationId;
use orrery_domain::json_size::Size;
use orrery_domain::machine::workflow::ITEMS_MAX;
use orrery_domain::payload::Payload;
use orrery_http::request::count_values;
use orrery_runtime::turns::{self, Turn, Turns};

/// Base memory of any execution.
const BASE_BYTES: usize = 16 * 1024;
/// Minimum extra memory of an execution with a map, before its items have been resolved.
const MAP_BYTES: usize = 1024 * 1024;
/// Resolved values whose JSON text is up to this size are not counted.
const SMALL: usize = 1024;
/// The number of copies of a resolved value's JSON text in memory: while the text grows, and while
/// it is stored or sent.
const TEXTS_OF_RESOLVED: usize = 3;
/// The number of copies of the inputs' JSON text in memory.
const TEXTS_OF_INPUT: usize = 2;
/// The number of bytes of large inputs for which one map item is estimated.
const INPUT_PER_ITEM: usize = 4;
/// Memory of one item in addition to its value and its steps.
const ITEM_BYTES: usize = 256;
/// An execution waits for at most the total budget divided by this number. Memory beyond that is
/// counted when the execution opens its map.
const SHARE_MAX: usize = 4;
/// Memory for a step's state.
const STEP_BYTES: usize = 768;
/// Memory for a step's state if the plan has parallel branches, whose steps all run at the same
/// time.
const BRANCH_STEP_BYTES: usize = 4096;
/// Maximum memory for the states of the steps of a small execution, which does not wait for memory.
const SMALL_PLAN_BYTES: usize = 16 * 1024;

/// The memory budgets of all running workflows.
#[derive(Debug)]
pub(crate) struct MemoryBudgets {
    /// For executions in memory.
    pub(crate) workflows: Arc<Turns>,
    /// For the inputs of step calls.
    pub(super) calls: Arc<Turns>,
    /// For results and outputs under construction.
    pub(super) resolving: Arc<Turns>,
}

impl MemoryBudgets {
    /// Creates the budgets for `bytes` of executions.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            workflows: Turns::new(bytes),
            calls: Turns::new(bytes / 2),
            resolving: Turns::new(bytes / 2),
        }
    }
}

/// The memory share of one execution.
#[derive(Debug)]
pub(crate) struct Memory {
    turn: Turn,
    /// The part that is reserved for the items of maps that have not been opened yet.
    for_items: usize,
}

impl Memory {
    /// Counts the items of a map that is being opened. Takes memory beyond the estimate without
    /// waiting.
    pub(super) fn open_map(&mut self, items: &[Value], steps: usize) {
        let held: usize =
            items.iter().map(|item| state_of(steps).saturating_add(Size::of(item).memory)).sum();
        self.turn.force(held.saturating_sub(self.for_items));
        self.for_items = self.for_items.saturating_sub(held);
    }
}

/// The estimated memory of an execution before it is loaded, in bytes.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    inputs: usize,
    /// The states of the steps outside of maps.
    steps: usize,
    /// The items of maps.
    items: usize,
}

impl Estimate {
    const fn total(self) -> usize {
        BASE_BYTES.saturating_add(self.inputs).saturating_add(self.steps).saturating_add(self.items)
    }
}

/// Estimates the memory of an execution. `input` is the size of its inputs in bytes, and `values`
/// is the number of values in the inputs.
fn estimate(plan: Option<&Plan>, input: usize, values: usize) -> Estimate {
    let maps = plan.filter(|plan| plan.steps().any(|step| matches!(step.kind, Kind::Map(_))));
    let items = maps.map_or(0, |plan| {
        let items = values.min(usize::try_from(ITEMS_MAX).unwrap_or(usize::MAX));
        items.saturating_mul(state_of(steps_in_maps(plan))).max(MAP_BYTES)
    });
    let steps = plan.map_or(0, |plan| {
        let branches = plan.steps().any(|step| matches!(step.kind, Kind::Parallel(_)));
        let each = if branches { BRANCH_STEP_BYTES } else { STEP_BYTES };
        plan.steps().count().saturating_mul(each)
    });
    Estimate { inputs: memory_of(Size::bound(input, values), TEXTS_OF_INPUT), steps, items }
}

/// Counts the steps that run for each item of a map.
pub(super) fn steps_in_maps(plan: &Plan) -> usize {
    plan.steps().filter(|step| !plan.maps_around(step.position).is_empty()).count()
}

/// Returns the memory of an item in addition to its value.
const fn state_of(steps: usize) -> usize {
    ITEM_BYTES.saturating_add(STEP_BYTES.saturating_mul(steps))
}

impl Inner {
    /// Waits for the memory of an execution before it is loaded. Returns `None` if the execution
    /// was stopped in the meantime.
    pub(super) async fn acquire_memory(&self, active: &ActiveExecution) -> Option<Memory> {
        let mut state = active.state.lock().await;
        let execution = &state.as_ref()?.execution;
        let run = execution.workflow()?;
        let (organization, id, lane) = (execution.organization, execution.id, execution.lane());
        let input = execution.input.len();
        // An unreadable plan is reported when the execution is loaded.
        let plan = self.plans.plan(run.revision).await.ok().flatten();
        let bytes = usize::try_from(input).unwrap_or(usize::MAX);
        let values = match &execution.input {
            Payload::Inline(text) => count_values(text.get().as_bytes()),
            Payload::File(_) => bytes / INPUT_PER_ITEM,
        };
        let estimate = estimate(plan.as_deref(), bytes, values);
        let (weight, for_items) = (estimate.total(), estimate.items);
        if for_items == 0 && input <= KEEP_BYTES_MAX && estimate.steps <= SMALL_PLAN_BYTES {
            let turn = self.memory.workflows.force(organization, weight);
            return Some(Memory { turn, for_items });
        }
        let most = self.options.workflow_memory / SHARE_MAX;
        let (weight, for_items) = (weight.min(most), for_items.min(most));
        let taking = turns::on_behalf_of(organization, self.memory.workflows.take(weight));
        let mut taking = std::pin::pin!(taking);
        if let Some(turn) = taking.as_mut().now_or_never() {
            return Some(Memory { turn, for_items });
        }
        if input > KEEP_BYTES_MAX {
            // Drop the inputs and read them again later, because many executions may be waiting.
            *state = None;
        }
        drop(state);
        let park = |parking| {
            self.lanes().park(&lane, id, parking);
            self.scheduler.wake();
        };
        park(Parking::ForModels);
        let turn = tokio::select! {
            biased;
            turn = taking => Some(turn),
            () = active.stop.cancelled() => None,
            () = self.tasks.stopping() => None,
        };
        park(Parking::Not);
        Some(Memory { turn: turn?, for_items })
    }
}

impl Engine {
    /// Waits for a share of memory for a value that is built and stored at once. The holder of the
    /// share waits only for the disk.
    pub async fn room_to_make(&self, organization: OrganizationId, size: Size) -> Option<Turn> {
        OptionFuture::from(room(&self.inner.memory.resolving, organization, size)).await
    }
}

/// Waits for a share of a budget for a resolved value. Returns `None` if the value is too small to
/// count.
pub(super) fn room(
    turns: &Arc<Turns>,
    organization: OrganizationId,
    size: Size,
) -> Option<impl Future<Output = Turn> + Send + use<>> {
    let turns = Arc::clone(turns);
    let amount = memory_of(size, TEXTS_OF_RESOLVED);
    (size.text > SMALL)
        .then_some(async move { turns::on_behalf_of(organization, turns.take(amount)).await })
}

/// Returns the memory for a value and for `texts` copies of its JSON text.
const fn memory_of(size: Size, texts: usize) -> usize {
    size.memory.saturating_add(size.text.saturating_mul(texts))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Options;
    use crate::simulation_tests::{ORGANIZATION, PATIENCE, Process, runtime, until};
    use crate::workflow_tests::{case, model, script, submission};
    use orrery_domain::execution::Status;
    use orrery_runtime::new_id;
    use orrery_storage::Commit;

    /// Every value whose size a template can multiply waits for a memory share, including the items
    /// of a map.
    #[test]
    fn memory_of_what_is_made_is_waited_for() {
        let many = json!(vec!["{{inputs.x}}"; 100]);
        let map = |items: &Value, output: &Value| {
            json!({"step_id": "m", "type": "map", "items": items, "output": output,
                   "steps": [model("a", "same", json!(1))]})
        };
        let pass = json!({"step_id": "p", "type": "pass", "result": many});
        let steps =
            [json!([map(&many, &json!(1))]), json!([map(&json!([1]), &many)]), json!([pass])];
        for (number, steps) in steps.into_iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let cases = [case("made", steps, json!({"x": "y".repeat(100)}), Ok(json!(1)))];
            runtime().block_on(async {
                let script = script(&cases);
                let process = Process::start_with(&folder, i64::MAX, script, Options::default());
                process.engine.recover().await.unwrap();
                let turns = Arc::clone(&process.engine.inner.memory.resolving);
                let all = turns.force(ORGANIZATION.into(), 1 << 40);
                let asked = vec![submission(0, &cases[0])];
                let id = process.engine.submit(asked, Commit::new()).await.unwrap()[0].id;
                until(|| turns.waiting() == 1).await;
                let calls = process.script.calls.lock().unwrap().len();
                assert_eq!(calls, usize::from(number == 1), "no item has begun");
                drop(all);
                let ended = process.engine.wait(ORGANIZATION.into(), id, PATIENCE).await.unwrap();
                assert_eq!((ended.status, turns.used()), (Status::Success, 0));
                process.engine.inner.tasks.stop();
                process.store.clone().close().await;
            });
        }
    }

    #[tokio::test]
    async fn memory_of_what_an_agent_makes_up_is_waited_for() {
        let [greedy, other]: [OrganizationId; 2] = [new_id(), new_id()];
        let turns = Turns::new(1 << 20);
        let ask = |who| OptionFuture::from(room(&turns, who, Size::bound(64 << 10, 1)));
        let mut held = Vec::new();
        while let Some(Some(turn)) = ask(greedy).now_or_never() {
            held.push(turn);
        }
        assert!(!held.is_empty() && held.len() < 4, "{}", held.len());
        assert!(ask(other).now_or_never().flatten().is_some(), "others go on");
        held.clear();
        assert!(ask(greedy).now_or_never().flatten().is_some());
        assert!(
            OptionFuture::from(room(&turns, greedy, Size::bound(SMALL, 1)))
                .now_or_never()
                .flatten()
                .is_none()
        );
    }

    #[tokio::test]
    async fn memory_of_open_map_includes_step_states() {
        let turns = Turns::new(1 << 30);
        let turn = turns.force(new_id(), 3 << 20);
        let mut memory = Memory { turn, for_items: 2 << 20 };
        let items = vec![json!(1); 10_000];
        memory.open_map(&items[..1000], 1);
        assert_eq!(turns.used(), 3 << 20, "it was estimated");
        memory.open_map(&items, 2);
        assert!(turns.used() > 10_000 * 2 * STEP_BYTES, "{}", turns.used());
        drop(memory);
        assert_eq!(turns.used(), 0);
    }

    #[test]
    fn memory_of_map_is_estimated_from_input_values() {
        let steps: Vec<_> = (0..10)
            .map(|n| json!({"step_id": format!("s{n}"), "type": "pass", "result": n}))
            .collect();
        let map = json!([{"step_id": "m", "type": "map", "items": "{{inputs.l}}", "steps": steps}]);
        let plan = Plan::compile(Some(&json!({ "steps": map })), &|_| true).unwrap();
        let text = estimate(Some(&plan), 40_000, 5);
        assert!(text.total() < 2 << 20 && text.items == MAP_BYTES, "{text:?}");
        let numbers = estimate(Some(&plan), 40_000, 10_002);
        assert!(numbers.items > 10_000 * 10 * STEP_BYTES, "{numbers:?}");
    }

    #[test]
    fn memory_of_steps_outside_of_maps_is_estimated_from_the_plan() {
        let pass = |n: usize| json!({"step_id": format!("s{n}"), "type": "pass", "result": n});
        let compiled = |steps: Value| {
            estimate(Some(&Plan::compile(Some(&steps), &|_| true).unwrap()), 2, 1).steps
        };
        let row = |count| (0..count).map(pass).collect::<Vec<_>>();
        assert!(compiled(json!({ "steps": row(20) })) <= SMALL_PLAN_BYTES);
        let long = compiled(json!({ "steps": row(400) }));
        assert!(long > SMALL_PLAN_BYTES, "{long}");
        let branches: Vec<_> = row(100).into_iter().map(|step| json!({"steps": [step]})).collect();
        let wide = json!({"step_id": "p", "type": "parallel", "branches": branches});
        let wide = compiled(json!({ "steps": [wide] }));
        assert!(wide > 200_000, "{wide}");
    }
}
