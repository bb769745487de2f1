//! Exchanges of the agent: how one begins and how it ends. What happens between is in its steps, see
//! `domain::agent`.

use super::{Effect, finish};
use crate::domain::chat::Tokens;
use crate::domain::execution::{Execution, Fault, Status, Work};
use crate::domain::money::Usd;
use crate::domain::time::Timestamp;

/// How an exchange has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// `None`: it succeeded.
    pub fault: Option<Fault>,
    /// What its answers and its tools cost.
    pub cost: Usd,
    pub tokens: Tokens,
    /// It ended with a question to the client.
    pub needs_clarification: bool,
}

/// Begins to run at `now`, the machine's time. False when it has begun before, or ended.
#[must_use]
pub fn begin(execution: &mut Execution, now: Timestamp) -> bool {
    if execution.status != Status::Created {
        return false;
    }
    execution.status = Status::Processing;
    execution.started_at = Some(execution.stamp(now));
    true
}

/// Ends at `now`, the machine's time. Its answers were charged with their steps.
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
