//! Decides when a model's description is refreshed: as soon as one of its endpoints is usable
//! again, and periodically. This module sends no requests itself.

use std::time::Duration;

use tokio::time::Instant;

use orrery_runtime as runtime;

/// Validity period of a description.
const FRESH: Duration = Duration::from_secs(60);

/// When the description was last requested, and whether an endpoint was usable then.
#[derive(Debug, Default)]
pub struct DescriptionAge {
    asked: Option<Instant>,
    was_usable: bool,
}

impl DescriptionAge {
    /// Records a request for the description, regardless of its outcome.
    pub fn note(&mut self) {
        self.asked = Some(runtime::monotonic_now());
    }

    /// Returns whether to refresh now, given whether an endpoint is usable.
    pub fn is_due(&mut self, is_usable: bool) -> bool {
        let was_usable = std::mem::replace(&mut self.was_usable, is_usable);
        let is_fresh = self.asked.is_some_and(|asked| asked.elapsed() < FRESH);
        !(was_usable && is_fresh)
    }
}
