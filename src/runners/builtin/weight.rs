//! The memory of built-in runs: one budget for all of them, taken before a run starts.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::refuse;
use crate::domain::attempt::Failure;
use crate::domain::classify::ErrorClass;

/// Bytes of memory that all runs of built-in models together may take. A run waits until its part
/// is free; one that alone takes more is refused.
pub const MEMORY_MAX: u64 = 512 * MIB;
pub(super) const MIB: u64 = 1024 * 1024;
/// Bytes that a model which splits a text into words keeps for each byte of it.
pub(super) const WORDS_EACH: u64 = 64;
/// Bytes that the budget is counted in.
const UNIT: u64 = 64 * 1024;

/// Memory that runs take in turn.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    units: Arc<Semaphore>,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Self {
        let units = usize::try_from(bytes / UNIT).unwrap_or(Semaphore::MAX_PERMITS);
        Self { units: Arc::new(Semaphore::new(units)), bytes }
    }

    /// Waits until `weight` bytes are free, first come, first served. They are free again when what
    /// is returned is dropped.
    ///
    /// # Errors
    /// `invalid_user_input` with both numbers when `weight` is more than the whole budget.
    pub(super) async fn take(&self, weight: u64) -> Result<OwnedSemaphorePermit, Failure> {
        let units = u32::try_from(weight.div_ceil(UNIT)).ok().filter(|_| weight <= self.bytes);
        let units = units.ok_or_else(|| {
            refuse(format!(
                "the run would take {} MiB of memory, and built-in models have {} MiB: make the \
                 input or the result smaller",
                weight.div_ceil(MIB),
                self.bytes / MIB
            ))
        })?;
        let taken = Arc::clone(&self.units).acquire_many_owned(units).await;
        taken.map_err(|_closed| Failure::new(ErrorClass::InternalError, "the service is stopping"))
    }
}

/// What a run takes that keeps `factor` bytes for each byte of a text field.
pub(super) fn of_text(input: &Value, field: &str, factor: u64) -> u64 {
    let bytes = super::text(input, field).len() as u64;
    MIB.saturating_add(bytes.saturating_mul(factor))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn memory_budget_queues_runs_and_refuses_oversized_ones() {
        let budget = Budget::new(10 * MIB);
        let first = budget.take(6 * MIB).await.unwrap();
        assert!(budget.take(6 * MIB).now_or_never().is_none(), "the second one waits");
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
