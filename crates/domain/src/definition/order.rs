//! Dependencies between steps: the ordering rule (`docs/spec/steps.md`, "Order"), and the detection
//! of cycles.
//!
//! Model steps are pure: a model step starts as soon as every step that it refers to or depends on
//! is done. Any other step is a barrier: it starts after all earlier steps in its block, and all
//! later steps start after it. Setting `depends_on`, even to an empty list, removes the barrier.

use std::collections::{BTreeMap, BTreeSet};

use super::fields::Problems;
use super::plan::{Parent, StepIndex};
use super::scope::Waits;
use super::steps::Draft;

/// Adds the dependencies of the ordering rule to `waits`; `None` if there is a cycle.
pub(super) fn order(
    drafts: &[Draft],
    mut waits: Waits,
    problems: &Problems,
) -> Option<Vec<Vec<StepIndex>>> {
    for block in blocks(drafts) {
        add_barriers(&block, &mut waits);
    }
    if let Some(cycle) = find_cycle(&waits) {
        report(drafts, &cycle, problems);
    }
    let waits = waits.into_iter().map(|waits| waits.into_iter().collect()).collect();
    problems.is_empty().then_some(waits)
}

/// Returns the steps of each block, in the order written.
fn blocks(drafts: &[Draft]) -> Vec<Vec<&Draft>> {
    let mut by_parent: BTreeMap<Option<Parent>, Vec<&Draft>> = BTreeMap::new();
    for draft in drafts {
        by_parent.entry(draft.step.parent).or_default().push(draft);
    }
    by_parent.into_values().collect()
}

fn add_barriers(block: &[&Draft], waits: &mut Waits) {
    let mut barrier = None;
    let mut since = BTreeSet::new();
    for draft in block {
        let position = draft.step.position;
        let Some(waits) = waits.get_mut(position.0) else { continue };
        waits.extend(barrier);
        if !draft.step.kind.is_barrier() || draft.depends_on.is_some() {
            since.insert(position);
        } else {
            waits.append(&mut since);
            barrier = Some(position);
        }
    }
}

/// Finds a cycle of waiting steps. Repeatedly removes steps that wait for nothing, until only
/// cycles and their dependents are left.
fn find_cycle(waits: &Waits) -> Option<Vec<StepIndex>> {
    let mut unmet: Vec<usize> = waits.iter().map(BTreeSet::len).collect();
    let mut waited_for_by = vec![Vec::new(); waits.len()];
    for (step, others) in waits.iter().enumerate() {
        for other in others {
            waited_for_by.get_mut(other.0)?.push(step);
        }
    }
    let mut free: Vec<usize> =
        unmet.iter().enumerate().filter(|(_, unmet)| **unmet == 0).map(|(step, _)| step).collect();
    while let Some(done) = free.pop() {
        for waiting in waited_for_by.get(done)? {
            let unmet = unmet.get_mut(*waiting)?;
            *unmet = unmet.saturating_sub(1);
            if *unmet == 0 {
                free.push(*waiting);
            }
        }
    }
    // Each remaining step waits for another remaining step, so following these dependencies leads
    // to a cycle.
    let is_left = |position: &StepIndex| unmet.get(position.0).is_some_and(|unmet| *unmet > 0);
    let mut way = vec![StepIndex(unmet.iter().position(|unmet| *unmet > 0)?)];
    loop {
        let next = *waits.get(way.last()?.0)?.iter().find(|other| is_left(other))?;
        if let Some(start) = way.iter().position(|earlier| *earlier == next) {
            return Some(way.split_off(start));
        }
        way.push(next);
    }
}

fn report(drafts: &[Draft], cycle: &[StepIndex], problems: &Problems) {
    let drafts: Vec<&Draft> = cycle.iter().filter_map(|position| drafts.get(position.0)).collect();
    let Some(first) = drafts.first() else { return };
    let others = drafts.iter().skip(1).map(|draft| format!("'{}'", draft.step.id));
    let others = others.collect::<Vec<_>>().join(", ");
    let message = format!("step '{}' depends on itself through {others}", first.step.id);
    problems.add(&first.place, message);
}
