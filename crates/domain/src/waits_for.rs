//! The external action that a workflow run waits for. Lists and metrics use this action to
//! distinguish such runs from running ones and from runs that wait for a point in time.

use super::execution::Execution;

/// The action by a person or another system that a run needs to continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// Send an event, such as an approval.
    Event,
    /// Resume the run.
    Resume,
}

impl WaitsFor {
    /// Returns the name that is used in the detail's `waiting_for`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Resume => "paused",
        }
    }
}

impl Execution {
    /// Returns the action that the run needs to continue; `None` if it continues by itself or has
    /// ended.
    #[must_use]
    pub fn waits_for(&self) -> Option<WaitsFor> {
        let run = self.workflow().filter(|_| !self.status.is_final())?;
        if run.paused.is_some() {
            return Some(WaitsFor::Resume);
        }
        (run.awaits_event && run.aside_until.is_some()).then_some(WaitsFor::Event)
    }
}
