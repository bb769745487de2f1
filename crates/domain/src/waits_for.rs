//! What a run of a workflow waits for that does not come by itself: lists and figures tell it from a run that is
//! at work, and from one that waits for a moment.

use super::execution::Execution;

/// What somebody has to do before a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// To send an event, such as an approval.
    Event,
    /// To resume it.
    Resume,
}

impl WaitsFor {
    /// As the reasons in the detail's `waiting_for`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Resume => "paused",
        }
    }
}

impl Execution {
    /// What somebody has to do before it goes on; `None` for one that goes on by itself, or has ended.
    #[must_use]
    pub fn waits_for(&self) -> Option<WaitsFor> {
        let run = self.workflow().filter(|_| !self.status.is_final())?;
        if run.paused.is_some() {
            return Some(WaitsFor::Resume);
        }
        (run.awaits_event && run.aside_until.is_some()).then_some(WaitsFor::Event)
    }
}
