//! The scheduler: the lanes, the submission of work to them, the dispatch of work from them, and
//! the timers, retries and recovery that put work back.

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
