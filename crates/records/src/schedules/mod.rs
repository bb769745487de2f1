//! Schedules: stored, listed, changed, and fired when due.
//!
//! ```text
//! mod   create, change, find, delete    keeper   fires due schedules while the service runs
//! rows  the rows in the store           work     interface of the started work
//! ```
//!
//! Whether a schedule fires depends only on its record (`domain::schedule`). The decision, the next
//! timer and the started execution are one commit, which fails if the record has changed. After a
//! crash, either all three exist or none, so no firing is lost or happens twice.

mod keeper;
mod rows;
mod work;

use std::sync::Arc;

use tokio::sync::Notify;

pub use self::rows::reseal;
pub use self::work::{DoneFuture, Fault, RunningFuture, StartFuture, Work};
use crate::audit::{Actor, Recorder};
use orrery_domain::calendar::{self, Calendar};
use orrery_domain::ids::{OrganizationId, ScheduleId, WorkflowId};
use orrery_domain::schedule::{Schedule, Target};
use orrery_runtime::Clock;
use orrery_storage::{self as storage, Change, Commit, Page, Store};

/// Maximum number of schedules of one organization; a list contains all of them.
pub const SCHEDULES_MAX: usize = 1_000;

/// Errors of schedule operations.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Calendar(#[from] calendar::Error),
    #[error("cron never fires between starts_at and ends_at")]
    NeverFires,
    #[error("cron never fires: no date has that day and month")]
    NoDate,
    /// The work cannot be started, for the given reason.
    #[error("{0}")]
    Refused(String),
    #[error("its input could not be checked now; try again")]
    Busy,
    #[error("schedule not found")]
    NotFound,
    #[error("there are {SCHEDULES_MAX} schedules already; delete some first")]
    TooMany,
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// The schedules of a store; clones share the same state.
#[derive(Clone)]
pub struct Schedules {
    store: Store,
    clock: Clock,
    recorder: Recorder,
    work: Arc<dyn Work>,
    /// Notified when a schedule may be due earlier than before.
    changed: Arc<Notify>,
}

impl std::fmt::Debug for Schedules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schedules").finish_non_exhaustive()
    }
}

impl Schedules {
    /// Opens the schedules of a store. Nothing fires until [`Schedules::run`].
    #[must_use]
    pub fn new(store: Store, clock: Clock, work: Arc<dyn Work>) -> Self {
        let recorder = Recorder::new(clock.clone());
        Self { store, clock, recorder, work, changed: Arc::default() }
    }

    /// Returns the same schedules with `actor` as the audit log's actor.
    #[must_use]
    pub fn by(&self, actor: Actor) -> Self {
        Self { recorder: self.recorder.by(actor), ..self.clone() }
    }

    /// Creates a schedule, which fires from now on.
    ///
    /// # Errors
    /// [`Error::Calendar`], [`Error::NeverFires`], [`Error::Refused`], [`Error::TooMany`],
    /// [`Error::Storage`]. On error, nothing is created.
    pub async fn create(&self, schedule: Schedule) -> Result<Schedule, Error> {
        self.create_beside(schedule, Commit::new()).await
    }

    /// Like [`Schedules::create`]; `beside` becomes part of the same commit.
    ///
    /// # Errors
    /// As [`Schedules::create`].
    pub async fn create_beside(
        &self,
        mut schedule: Schedule,
        beside: Commit,
    ) -> Result<Schedule, Error> {
        let calendar = Calendar::parse(&schedule.cron, &schedule.timezone)?;
        self.start_over(&mut schedule, &calendar)?;
        self.check(&schedule).await?;
        if self.list(schedule.organization).await?.len() >= SCHEDULES_MAX {
            return Err(Error::TooMany);
        }
        let key = rows::schedule(schedule.organization, schedule.id);
        let mut commit = Commit::of_new_work();
        commit.extend(beside);
        commit.create(key, &schedule)?;
        rows::set_timer(&mut commit, None, &schedule);
        let organization = schedule.organization;
        self.recorder.add(&mut commit, "schedule.create", subject(&schedule), organization)?;
        self.store.commit(commit).await?;
        self.changed.notify_one();
        Ok(schedule)
    }

    /// Changes a schedule. Firings that were already due are skipped.
    ///
    /// # Errors
    /// [`Error::NotFound`], errors of `change`, [`Error::Calendar`], [`Error::NeverFires`],
    /// [`Error::Storage`]. On error, nothing is changed.
    pub async fn change<E: From<Error> + From<storage::Error>>(
        &self,
        organization: OrganizationId,
        id: ScheduleId,
        change: impl Fn(&mut Schedule) -> Result<(), E> + Sync,
    ) -> Result<Schedule, E> {
        let change = &change;
        let edit = |old: Option<Schedule>| async move {
            let old = old.ok_or(Error::NotFound)?;
            let mut schedule = old.clone();
            change(&mut schedule)?;
            let calendar =
                Calendar::parse(&schedule.cron, &schedule.timezone).map_err(Error::from)?;
            if schedule.overlap != old.overlap {
                schedule.waiting.clear();
            }
            self.start_over(&mut schedule, &calendar)?;
            self.check(&schedule).await?;
            let mut commit = Commit::of_new_work();
            rows::set_timer(&mut commit, old.due, &schedule);
            let subject = subject(&schedule);
            self.recorder.add(&mut commit, "schedule.change", subject, organization)?;
            Ok::<_, E>(Change::Put(schedule, commit))
        };
        let changed = self.store.update(&rows::schedule(organization, id), edit).await?;
        self.changed.notify_one();
        Ok(changed)
    }

    /// Deletes a schedule. Executions that the schedule started continue.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Storage`].
    pub async fn delete(&self, organization: OrganizationId, id: ScheduleId) -> Result<(), Error> {
        let delete = |schedule: Option<Schedule>| async move {
            let schedule = schedule.ok_or(Error::NotFound)?;
            let mut commit = Commit::new();
            if let Some(due) = schedule.due {
                commit.delete(rows::timer(due, id));
            }
            self.recorder.add(&mut commit, "schedule.delete", subject(&schedule), organization)?;
            Ok(Change::Delete(schedule, commit))
        };
        self.store.update(&rows::schedule(organization, id), delete).await.map(drop)
    }

    /// Returns one of an organization's schedules.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Storage`].
    pub async fn find(
        &self,
        organization: OrganizationId,
        id: ScheduleId,
    ) -> Result<Schedule, Error> {
        self.store.read(&rows::schedule(organization, id)).await?.ok_or(Error::NotFound)
    }

    /// Lists an organization's schedules, oldest first.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn list(&self, organization: OrganizationId) -> Result<Vec<Schedule>, Error> {
        let page = Page::of(rows::of_organization(organization), SCHEDULES_MAX);
        Ok(self.store.records(page).await?)
    }

    /// Lists the schedules of a workflow.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn of_workflow(
        &self,
        organization: OrganizationId,
        workflow: WorkflowId,
    ) -> Result<Vec<Schedule>, Error> {
        let is_of = |schedule: &Schedule| matches!(&schedule.target, Target::Workflow { workflow: of, .. } if *of == workflow);
        Ok(self.list(organization).await?.into_iter().filter(is_of).collect())
    }

    /// Rejects a schedule whose work cannot be started.
    async fn check(&self, schedule: &Schedule) -> Result<(), Error> {
        self.work.check(schedule).await.map_err(|fault| match fault {
            Fault::Refused(reason) | Fault::Gone(reason) => Error::Refused(reason),
            Fault::Busy(_) => Error::Busy,
            Fault::Storage(error) => error.into(),
        })
    }

    /// Restarts a schedule from the current time.
    fn start_over(&self, schedule: &mut Schedule, calendar: &Calendar) -> Result<(), Error> {
        let now = self.clock.now();
        schedule.decided_until = now;
        schedule.updated_at = now;
        let paused = std::mem::replace(&mut schedule.paused, false);
        schedule.plan(calendar, now);
        if schedule.next.is_none() {
            let is_bounded = schedule.starts_at.is_some() || schedule.ends_at.is_some();
            return Err(if is_bounded { Error::NeverFires } else { Error::NoDate });
        }
        schedule.paused = paused;
        schedule.plan(calendar, now);
        Ok(())
    }
}

/// Returns a schedule's name in the audit log.
fn subject(schedule: &Schedule) -> String {
    format!("{} {}", schedule.id, schedule.name.as_ref().unwrap_or(&schedule.cron))
}

#[cfg(test)]
mod tests;
