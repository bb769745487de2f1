//! What schedules start, seen from here: something that can be asked whether it runs, cancelled, and
//! started together with a commit.

use std::pin::Pin;
use std::time::Duration;

use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::schedule::Schedule;
use crate::storage::{self, Commit};

/// Whether it runs, later.
pub type RunningFuture<'a> =
    Pin<Box<dyn Future<Output = Result<bool, storage::Error>> + Send + 'a>>;
/// Done, later.
pub type DoneFuture<'a> = Pin<Box<dyn Future<Output = Result<(), storage::Error>> + Send + 'a>>;
/// Started or not, later.
pub type StartFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Fault>> + Send + 'a>>;

/// Why work was not started; nothing of it was committed.
#[derive(Debug)]
pub enum Fault {
    /// It never will be, for this reason, which the schedule shows.
    Refused(String),
    /// What it is about is not there any more: the schedule is paused.
    Gone(String),
    /// There is no room for it now; it is worth another try after this time.
    Busy(Duration),
    /// The store refused; a conflict means that the schedule was changed.
    Storage(storage::Error),
}

/// Executions, as schedules see them.
pub trait Work: Send + Sync {
    /// Whether the work of a schedule could be started now, but for room.
    fn check<'a>(&'a self, schedule: &'a Schedule) -> StartFuture<'a>;

    /// Whether the execution has not ended; one that is not there has.
    fn is_running(&self, organization: OrganizationId, id: ExecutionId) -> RunningFuture<'_>;

    /// Cancels the execution, if it has not ended.
    fn cancel(&self, organization: OrganizationId, id: ExecutionId) -> DoneFuture<'_>;

    /// Accepts the work of a schedule under this id. `beside` becomes durable with it.
    fn start<'a>(
        &'a self,
        schedule: &'a Schedule,
        id: ExecutionId,
        beside: Commit,
    ) -> StartFuture<'a>;
}
