//! The keeper: processes each schedule when its timer is due, and starts its work.
//!
//! Firings follow the machine's clock. If the clock jumps forward, the skipped firings happen late.
//! If the clock jumps back, no schedule fires twice, and decisions made for more than a day ahead
//! are discarded.

use std::time::Duration;

use super::work::Fault;
use super::{Error, Schedules, rows};
use orrery_domain::calendar::Calendar;
use orrery_domain::ids::{ExecutionId, OrganizationId, ScheduleId};
use orrery_domain::schedule::{RunResult, Schedule, Turn};
use orrery_domain::time::Timestamp;
use orrery_runtime::{Tasks, new_id};
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit};

/// Maximum sleep, so that a change to the clock is noticed in time.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Retry delay after a failed read of the timers.
const REREAD_DELAY: Duration = Duration::from_secs(1);
/// Minimum backward jump of the clock that is noticed.
const SET_BACK_MIN: Duration = Duration::from_secs(60);

impl Schedules {
    /// Fires due schedules until the service stops.
    pub async fn run(self, tasks: Tasks) {
        let mut clock_at: Option<(Timestamp, Duration)> = None;
        loop {
            let pause = self.look(&mut clock_at).await;
            tokio::select! {
                () = tasks.stopping() => return,
                () = self.changed.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Fires all due schedules, and returns the time until the next pass. `clock_at` contains the
    /// wall-clock time and the monotonic time of the previous pass; comparing them shows whether
    /// the clock was set back.
    pub(super) async fn look(&self, clock_at: &mut Option<(Timestamp, Duration)>) -> Duration {
        let (now, ran) = (self.clock.now(), self.clock.monotonic());
        let is_set_back = clock_at.is_none_or(|(before, at)| {
            now.plus(SET_BACK_MIN) < before.plus(ran.saturating_sub(at))
        });
        let looked = async {
            if is_set_back {
                if let Some((reached, _)) = *clock_at {
                    tracing::warn!(
                        %now, until = %reached,
                        "clock set back: schedules resume once it reaches the previous time"
                    );
                }
                self.realign().await?;
            }
            self.fire_due().await
        };
        match looked.await {
            Ok(pause) => {
                *clock_at = Some((now, ran));
                pause
            }
            Err(error) => {
                tracing::error!(%error, "failed to read the schedules");
                REREAD_DELAY
            }
        }
    }

    /// Fires all due schedules, and returns the time until the next firing. A schedule that fails
    /// does not affect the others; the failed schedule is retried after a pause.
    pub(super) async fn fire_due(&self) -> Result<Duration, Error> {
        let mut pause = RECHECK_INTERVAL;
        let mut scan = self.store.scan(rows::timers());
        while let Some((key, value)) = scan.next().await? {
            let Some((due, organization, id)) = rows::parse_timer(&key, &value) else {
                tracing::error!(?key, "invalid schedule timer");
                continue;
            };
            let now = self.clock.now();
            if due > now {
                return Ok(pause.min(due.since(now)));
            }
            if let Err(error) = self.fire(due, organization, id).await {
                tracing::error!(schedule = %id, %error, "failed to process a schedule");
                pause = REREAD_DELAY;
            } else {
                // The schedule's next timer may already be due, whether or not the scan has passed
                // it.
                pause = pause.min(self.pause_of(organization, id).await?);
            }
        }
        Ok(pause)
    }

    /// Returns the time until a schedule's next timer.
    async fn pause_of(
        &self,
        organization: OrganizationId,
        id: ScheduleId,
    ) -> Result<Duration, Error> {
        let schedule: Option<Schedule> = self.store.read(&rows::schedule(organization, id)).await?;
        let due = schedule.and_then(|schedule| schedule.due);
        let now = self.clock.now();
        Ok(due.map_or(RECHECK_INTERVAL, |due| due.since(now)))
    }

    /// Processes a schedule whose timer is due.
    async fn fire(
        &self,
        timer: Timestamp,
        organization: OrganizationId,
        id: ScheduleId,
    ) -> Result<(), Error> {
        for _ in 0..storage::TRIES_MAX {
            if self.decide(timer, organization, id).await? {
                return Ok(());
            }
        }
        Err(storage::Error::Conflict { key: rows::schedule(organization, id) }.into())
    }

    /// Decides a schedule's firing. Returns false if the schedule was changed concurrently.
    async fn decide(
        &self,
        timer: Timestamp,
        organization: OrganizationId,
        id: ScheduleId,
    ) -> Result<bool, Error> {
        let key = rows::schedule(organization, id);
        let before = self.store.get(&key).await?;
        let stored: Option<Schedule> = before.as_deref().map(decode).transpose()?;
        let (Some(before), Some(mut schedule)) =
            (before, stored.filter(|stored| stored.due == Some(timer)))
        else {
            // The schedule was changed or deleted after its timer was read.
            let mut commit = Commit::new();
            commit.delete(rows::timer(timer, id));
            self.store.commit(commit).await?;
            return Ok(true);
        };
        let calendar = match Calendar::load(&schedule.cron, &schedule.timezone) {
            Ok(calendar) => calendar,
            Err(error) => {
                // The schedule's time zone was valid in an earlier release but no longer exists.
                tracing::error!(schedule = %id, %error, "schedule can no longer fire");
                schedule.note(timer, self.clock.now(), RunResult::Refused(error.to_string()));
                (schedule.paused, schedule.next, schedule.due) = (true, None, None);
                return self.write(before, timer, &schedule).await;
            }
        };
        let is_running = match schedule.latest {
            Some(execution) => self.work.is_running(organization, execution).await?,
            None => false,
        };
        let untouched = schedule.clone();
        let now = self.clock.now();
        let Turn::Start { scheduled_for, cancels } = schedule.turn(&calendar, now, is_running)
        else {
            return self.write(before, timer, &schedule).await;
        };
        if let Some(execution) = schedule.latest.filter(|_| cancels) {
            self.work.cancel(organization, execution).await?;
        }
        let execution: ExecutionId = new_id();
        let mut started = schedule.clone();
        started.note(scheduled_for, now, RunResult::Started(execution));
        let beside = Self::commit_of(before.clone(), timer, &started)?;
        match self.work.start(&started, execution, beside).await {
            Ok(()) => Ok(true),
            Err(Fault::Storage(storage::Error::Conflict { key: held })) if held == key => Ok(false),
            Err(Fault::Storage(error)) => Err(error.into()),
            Err(Fault::Busy(pause)) => {
                // The firing is postponed: it becomes late, and eventually counts as missed.
                let mut waiting = untouched;
                waiting.due = Some(now.plus(pause));
                self.write(before, timer, &waiting).await
            }
            Err(Fault::Gone(reason)) => {
                tracing::warn!(schedule = %id, reason, "schedule paused");
                schedule.note(scheduled_for, now, RunResult::Refused(reason));
                schedule.paused = true;
                schedule.plan(&calendar, now);
                self.write(before, timer, &schedule).await
            }
            Err(Fault::Refused(reason)) => {
                tracing::warn!(schedule = %id, reason, "schedule failed to start its work");
                schedule.note(scheduled_for, now, RunResult::Refused(reason));
                self.write(before, timer, &schedule).await
            }
        }
    }

    async fn write(
        &self,
        before: Vec<u8>,
        timer: Timestamp,
        schedule: &Schedule,
    ) -> Result<bool, Error> {
        let commit = Self::commit_of(before, timer, schedule)?;
        Ok(self.store.try_commit(commit).await?)
    }

    /// Returns a commit that writes the schedule and its timer, and fails if the record has
    /// changed.
    fn commit_of(before: Vec<u8>, timer: Timestamp, schedule: &Schedule) -> Result<Commit, Error> {
        let mut commit = Commit::of_new_work();
        let key = rows::schedule(schedule.organization, schedule.id);
        commit.expect(Expect::Equal(key.clone(), before));
        commit.put(key, schedule)?;
        rows::set_timer(&mut commit, Some(timer), schedule);
        Ok(commit)
    }

    /// Discards decisions that were made while the clock was far ahead.
    pub(super) async fn realign(&self) -> Result<(), Error> {
        let mut scan = self.store.scan(rows::all());
        while let Some((key, before)) = scan.next().await? {
            let mut schedule: Schedule = match decode(&before) {
                Ok(schedule) => schedule,
                Err(error) => {
                    // An unreadable schedule must not stop the others.
                    tracing::error!(?key, %error, "failed to read a schedule");
                    continue;
                }
            };
            let Ok(calendar) = Calendar::load(&schedule.cron, &schedule.timezone) else {
                continue;
            };
            let due = schedule.due;
            if !schedule.realign(&calendar, self.clock.now()) {
                continue;
            }
            tracing::warn!(schedule = %schedule.id, "clock set back: next firing computed from the current time");
            let mut commit = Commit::new();
            commit.expect(Expect::Equal(key.clone(), before));
            commit.put(key, &schedule)?;
            rows::set_timer(&mut commit, due, &schedule);
            // If the commit conflicts, the concurrent change has already used the current clock.
            self.store.try_commit(commit).await?;
        }
        Ok(())
    }
}
