//! The interface to the work that schedules start: check whether the work is running, cancel it, or
//! start it together with a commit.

use std::pin::Pin;
use std::time::Duration;

use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::schedule::Schedule;
use orrery_storage::{self as storage, Commit};

/// A future that returns whether the work is running.
pub type RunningFuture<'a> =
    Pin<Box<dyn Future<Output = Result<bool, storage::Error>> + Send + 'a>>;
/// A future that resolves when the action has been performed.
pub type DoneFuture<'a> = Pin<Box<dyn Future<Output = Result<(), storage::Error>> + Send + 'a>>;
/// A future that resolves when the work has started, or failed to start.
pub type StartFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Fault>> + Send + 'a>>;

/// The reason why work was not started. Nothing was committed.
#[derive(Debug)]
pub enum Fault {
    /// The work can never start, for the given reason, which is shown with the schedule.
    Refused(String),
    /// The workflow or model no longer exists, so the schedule is paused.
    Gone(String),
    /// There is no capacity; retry after this time.
    Busy(Duration),
    /// The store failed. A conflict means that the schedule was changed.
    Storage(storage::Error),
}

/// The executions that schedules start.
pub trait Work: Send + Sync {
    /// Checks whether a schedule's work could be started now, regardless of capacity.
    fn check<'a>(&'a self, schedule: &'a Schedule) -> StartFuture<'a>;

    /// Returns whether the execution exists and has not ended.
    fn is_running(&self, organization: OrganizationId, id: ExecutionId) -> RunningFuture<'_>;

    /// Cancels the execution, unless it has ended.
    fn cancel(&self, organization: OrganizationId, id: ExecutionId) -> DoneFuture<'_>;

    /// Starts a schedule's work under this ID. `beside` becomes part of the same commit.
    fn start<'a>(
        &'a self,
        schedule: &'a Schedule,
        id: ExecutionId,
        beside: Commit,
    ) -> StartFuture<'a>;
}
