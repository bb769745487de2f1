//! Computes the size of a schema when each reference is replaced by its target. Validators walk the
//! expanded schema, so its size bounds the cost of compiling it and of validating one value.
//!
//! The size is computed once per subschema and summed over the graph, in linear time in the size of
//! the schema as written.

use super::graph::{CHARGED_BYTES, Id, Node};
use super::{DEPTH_IN_PLACE_MAX, EXPANDED_MAX, Error};

/// The cost of a subschema on a value without contents: its own cost, and the cost of all
/// subschemas that it applies to the same value.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InPlace {
    /// Steps of validation.
    pub steps: u64,
    /// Steps to determine the members and elements to which the subschema was applied.
    pub marks: u64,
    /// Steps of patterns per [`CHARGED_BYTES`] of text.
    pub patterns: u64,
    /// Nesting depth of subschemas.
    pub depth: usize,
}

impl InPlace {
    /// Returns the steps for a string of `bytes` bytes.
    pub(crate) fn steps_of_text(&self, bytes: usize) -> u64 {
        let bytes = bytes as u64;
        let patterns = self.patterns.saturating_mul(bytes / CHARGED_BYTES);
        self.steps.saturating_add(patterns).saturating_add(self.steps.saturating_mul(bytes / 1024))
    }
}

/// Checks the size of a schema's graph.
///
/// # Errors
/// [`Error::RefersToItself`], [`Error::TooExpanded`], [`Error::TooDeepInPlace`].
pub(super) fn check(nodes: &[Node]) -> Result<Vec<InPlace>, Error> {
    let mut costs = vec![InPlace::default(); nodes.len()];
    let is_cycle = walk(
        nodes,
        |node| node.in_place.clone(),
        |id, node, parts| {
            let cost = in_place(node, parts.iter().filter_map(|part| costs.get(*part)));
            if let Some(held) = costs.get_mut(id) {
                *held = cost;
            }
        },
    );
    if is_cycle {
        return Err(Error::RefersToItself);
    }
    if expanded(nodes) > EXPANDED_MAX {
        return Err(Error::TooExpanded);
    }
    if costs.iter().any(|cost| cost.depth > DEPTH_IN_PLACE_MAX) {
        return Err(Error::TooDeepInPlace);
    }
    Ok(costs)
}

fn in_place<'c>(node: &Node, parts: impl Iterator<Item = &'c InPlace>) -> InPlace {
    let mut cost =
        InPlace { steps: 1 + node.constants, marks: 1, patterns: node.pattern, depth: 1 };
    for part in parts {
        cost.steps = cost.steps.saturating_add(part.steps);
        // Validators evaluate a part again before they determine to which values it was applied.
        cost.marks = cost.marks.saturating_add(part.steps).saturating_add(part.marks);
        cost.patterns = cost.patterns.saturating_add(part.patterns);
        cost.depth = cost.depth.max(part.depth.saturating_add(1));
    }
    if node.marks {
        cost.steps = cost.steps.saturating_add(cost.marks);
        cost.patterns = cost.patterns.saturating_mul(2);
    }
    cost
}

/// Returns the number of subschemas of the expanded schema. A recursive reference counts as one,
/// because such a schema expands only as far as the values to which it is applied.
fn expanded(nodes: &[Node]) -> u64 {
    // The expanded size of each node, and the additional cost of determining the values to which
    // it was applied.
    let mut sizes: Vec<(u64, u64)> = vec![(1, 1); nodes.len()];
    let size = |sizes: &[(u64, u64)], id: &Id| sizes.get(*id).copied().unwrap_or((1, 1));
    walk(nodes, Node::children, |id, node, children| {
        let mut whole =
            children.iter().fold(1_u64, |sum, child| sum.saturating_add(size(&sizes, child).0));
        let marks = node.in_place.iter().fold(1_u64, |sum, part| {
            let (part, marks) = size(&sizes, part);
            sum.saturating_add(part).saturating_add(marks)
        });
        if node.marks {
            whole = whole.saturating_add(marks);
        }
        if let Some(held) = sizes.get_mut(id) {
            *held = (whole, marks);
        }
    });
    sizes.first().map_or(0, |(whole, _)| *whole)
}

/// Walks the graph depth-first without recursion. Visits each node after its children, except for
/// children that are also its ancestors. Returns whether there is such a cycle.
fn walk(
    nodes: &[Node],
    children: impl Fn(&Node) -> Vec<Id>,
    mut leave: impl FnMut(Id, &Node, &[Id]),
) -> bool {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut states = vec![State::New; nodes.len()];
    let mut is_cycle = false;
    for start in 0..nodes.len() {
        let mut open = vec![(start, None::<(Vec<Id>, usize)>)];
        while let Some((id, entered)) = open.last_mut() {
            let id = *id;
            let (Some(node), Some(state)) = (nodes.get(id), states.get_mut(id)) else { break };
            let Some((below, at)) = entered else {
                match *state {
                    State::New => {
                        *state = State::Open;
                        *entered = Some((children(node), 0));
                        continue;
                    }
                    State::Open => is_cycle = true,
                    State::Done => {}
                }
                open.pop();
                continue;
            };
            if let Some(child) = below.get(*at).copied() {
                *at += 1;
                open.push((child, None));
            } else {
                *state = State::Done;
                leave(id, node, below);
                open.pop();
            }
        }
    }
    is_cycle
}
