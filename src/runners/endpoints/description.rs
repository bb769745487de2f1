//! When a model that describes itself is asked again what it takes: as soon as a server of it is back, and
//! from time to time. It asks nothing itself.

use std::time::Duration;

use tokio::time::Instant;

use crate::runtime;

/// How long a description is taken for the present one.
const FRESH: Duration = Duration::from_secs(60);

/// When it was last asked, and how that found its servers.
#[derive(Debug, Default)]
pub struct DescriptionAge {
    asked: Option<Instant>,
    was_usable: bool,
}

impl DescriptionAge {
    /// It was asked just now, whatever came of it.
    pub fn note(&mut self) {
        self.asked = Some(runtime::monotonic_now());
    }

    /// Whether it is to be asked now that a server is usable, or none is.
    pub fn is_due(&mut self, is_usable: bool) -> bool {
        let was_usable = std::mem::replace(&mut self.was_usable, is_usable);
        let is_fresh = self.asked.is_some_and(|asked| asked.elapsed() < FRESH);
        !(was_usable && is_fresh)
    }
}
