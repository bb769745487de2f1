//! The scheduler: lanes, admission to the lanes, dispatch from the lanes, and the events that
//! requeue work.

pub(super) mod admission;
mod dispatch;
pub(super) mod in_flight;
pub(super) mod isolation;
pub(super) mod lanes;
pub(super) mod permit;
mod recovery;
mod refill;
pub(super) mod retries;
pub(super) mod submit;
mod timers;
