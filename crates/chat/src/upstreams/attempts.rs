//! Moves from a model that has failed before its answer began to the next.

use std::collections::VecDeque;
use std::sync::Arc;

use super::keys::is_of_key;
use crate::error::Failure;
use crate::route::{Candidate, Target};
use orrery_domain::time::Timestamp;

/// The models that a call tries, in order.
#[derive(Debug)]
pub(crate) struct Attempts {
    left: VecDeque<Candidate>,
}

impl Attempts {
    pub(crate) fn new(candidates: Vec<Candidate>) -> Self {
        Self { left: candidates.into() }
    }

    /// Returns the first model.
    pub(crate) fn first(&mut self) -> Option<Candidate> {
        self.left.pop_front()
    }

    /// Returns whether another model follows.
    pub(crate) fn has_more(&self) -> bool {
        !self.left.is_empty()
    }

    /// Returns the model to try after a failure; `None` if no other may succeed. The other keys of an
    /// upstream are tried only if the failure is the key's.
    pub(crate) fn after(
        &mut self,
        failed: &Candidate,
        failure: &Failure,
        now: Timestamp,
    ) -> Option<Candidate> {
        let Target::Upstream(used) = &failed.target else {
            return if failure.may_fall_back() { self.left.pop_front() } else { None };
        };
        used.upstream.failed(used.key, failure, now);
        if !failure.may_fall_back() {
            return None;
        }
        let is_spent = |next: &Candidate| match &next.target {
            Target::Upstream(next) => {
                Arc::ptr_eq(&next.upstream, &used.upstream) && !is_of_key(failure)
            }
            Target::Pool { .. } | Target::Process(_) => false,
        };
        while let Some(next) = self.left.pop_front() {
            if next.name != failed.name || !is_spent(&next) {
                tracing::debug!(
                    model = failed.name,
                    upstream = used.upstream.name(),
                    reason = failure.message,
                    next = next.name,
                    "upstream failed, next one tried"
                );
                return Some(next);
            }
        }
        None
    }
}
