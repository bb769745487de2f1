//! The memory budget shared by all built-in runs; a run reserves its share before it starts.

use std::sync::Arc;

use serde_json::Value;

use super::refuse;
use orrery_domain::attempt::Failure;
use orrery_runtime::turns::{Turn, Turns};

/// Memory budget of all built-in models' runs combined, in bytes. A run waits until its share is
/// free; a run that exceeds the whole budget is rejected.
pub const MEMORY_MAX: u64 = 512 * MIB;
pub(super) const MIB: u64 = 1024 * 1024;
/// Bytes of memory per byte of text, for models that split text into words.
pub(super) const WORDS_EACH: u64 = 64;

/// A memory budget, from which organizations take turns to draw.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    turns: Arc<Turns>,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        // Runs hold their share only briefly, so one organization may use all of it.
        let turns = Turns::without_reserve(usize::try_from(bytes).unwrap_or(usize::MAX));
        Self { turns, bytes }
    }

    /// Waits until `weight` bytes are free. Dropping the returned turn releases the bytes.
    ///
    /// # Errors
    /// `invalid_user_input` with both numbers if `weight` exceeds the whole budget.
    pub(super) async fn take(&self, weight: u64) -> Result<Turn, Failure> {
        let bytes = usize::try_from(weight).ok().filter(|_| weight <= self.bytes);
        let bytes = bytes.ok_or_else(|| {
            refuse(format!(
                "the run would take {} MiB of memory, and built-in models have {} MiB: make the \
                 input or the result smaller",
                weight.div_ceil(MIB),
                self.bytes / MIB
            ))
        })?;
        Ok(self.turns.take(bytes).await)
    }
}

/// Returns the weight of a run that uses `factor` bytes of memory per byte of a text field.
pub(super) fn of_text(input: &Value, field: &str, factor: u64) -> u64 {
    let bytes = super::text(input, field).len() as u64;
    MIB.saturating_add(bytes.saturating_mul(factor))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use orrery_domain::classify::ErrorClass;
    use orrery_domain::ids::OrganizationId;
    use orrery_runtime::{new_id, turns};

    #[tokio::test]
    async fn memory_budget_takes_turns_between_organizations() {
        let budget = Budget::new(10 * MIB);
        let [greedy, other]: [OrganizationId; 2] = [new_id(), new_id()];
        let take = |who, weight| Box::pin(turns::on_behalf_of(who, budget.take(weight)));
        let all = take(greedy, 10 * MIB).await.unwrap();
        let mut waiting = [greedy, greedy, other].map(|who| take(who, 6 * MIB));
        for run in &mut waiting {
            assert!(run.as_mut().now_or_never().is_none());
        }
        let [first, second, of_other] = waiting;
        drop(all);
        drop(first.now_or_never().expect("the first run proceeds"));
        let of_other = of_other.now_or_never().expect("then the other organization's run");
        drop(of_other);
        assert!(second.now_or_never().is_some());
    }

    #[tokio::test]
    async fn memory_budget_queues_runs_and_rejects_oversized_ones() {
        let budget = Budget::new(10 * MIB);
        let first = budget.take(6 * MIB).await.unwrap();
        assert!(budget.take(6 * MIB).now_or_never().is_none(), "the second run waits");
        let small = budget.take(4 * MIB).now_or_never();
        drop(first);
        drop(small);
        assert!(budget.take(10 * MIB).now_or_never().is_some_and(|taken| taken.is_ok()));
        let refused = budget.take(10 * MIB + 1).await.unwrap_err();
        assert_eq!(refused.class, ErrorClass::InvalidUserInput);
        let expect = "the run would take 11 MiB of memory, and built-in models have 10 MiB: make \
                      the input or the result smaller";
        assert_eq!(refused.message, expect);
    }
}
