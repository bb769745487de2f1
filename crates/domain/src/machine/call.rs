//! The end of a chat call that the engine runs in the background. It begins like an exchange.

use super::{Effect, finish};
use crate::chat::Call;
use crate::execution::{Execution, Fault, Status, Work};
use crate::money::Usd;
use crate::time::Timestamp;

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub call: Call,
    /// `None` on success.
    pub fault: Option<Fault>,
    pub cost: Usd,
}

/// Ends the call at wall-clock time `now`. Its cost is charged with its end.
#[must_use]
pub fn end(execution: &mut Execution, ended: Ended, now: Timestamp) -> Vec<Effect> {
    if execution.status.is_final() {
        return Vec::new();
    }
    let Ended { call, fault, cost } = ended;
    execution.work = Work::Chat(call);
    let status = if fault.is_some() { Status::Error } else { Status::Success };
    (execution.fault, execution.cost) = (fault, cost);
    finish(execution, status, now)
}
