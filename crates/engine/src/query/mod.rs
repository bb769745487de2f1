//! Reading executions: history, lists, details, live events and waiting requests.

pub mod history;
pub mod indexes;
pub mod lists;
pub(super) mod news;
pub mod progress;

pub(super) mod detail;
pub(super) mod events;
pub(super) mod follow;
pub(super) mod outline;
pub mod unfinished;
mod wait;
pub(super) mod waiters;
