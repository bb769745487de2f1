//! The start and end of an agent exchange. For the steps in between, see `domain::agent`.

use super::{Effect, finish};
use crate::chat::Tokens;
use crate::execution::{Execution, Fault, Status, Work};
use crate::money::Usd;
use crate::time::Timestamp;

/// The result of an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The error; `None` on success.
    pub fault: Option<Fault>,
    /// The total cost of the exchange's model answers and tools.
    pub cost: Usd,
    pub tokens: Tokens,
    /// Whether the exchange ended with a question to the client.
    pub needs_clarification: bool,
}

/// Begins the exchange at wall-clock time `now`. Returns false if the exchange has already begun or
/// ended.
#[must_use]
pub fn begin(execution: &mut Execution, now: Timestamp) -> bool {
    if execution.status != Status::Created {
        return false;
    }
    execution.status = Status::Processing;
    execution.started_at = Some(execution.stamp(now));
    true
}

/// Ends the exchange at wall-clock time `now`. The cost of the exchange's answers has already been
/// charged with the steps.
#[must_use]
pub fn end(execution: &mut Execution, ended: Ended, now: Timestamp) -> Vec<Effect> {
    if execution.status.is_final() {
        return Vec::new();
    }
    let Ended { fault, cost, tokens, needs_clarification } = ended;
    if let Work::Agent(exchange) = &mut execution.work {
        (exchange.tokens, exchange.needs_clarification) = (tokens, needs_clarification);
    }
    let status = if fault.is_some() { Status::Error } else { Status::Success };
    (execution.fault, execution.cost) = (fault, cost);
    finish(execution, status, now)
}
