//! Schedules: when work starts, and what happens if a firing is late or the previous run is
//! unfinished.
//!
//! Pure functions of the record, the calendar and the time; they return the changed record and the
//! work to start. The record contains the last firing that has been decided, so a decision that is
//! committed together with the work it starts is made exactly once.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use std::time::Duration;

use super::calendar::Calendar;
use super::delivery::Webhook;
use super::ids::{ExecutionId, Id as _, KeyId, OrganizationId, ScheduleId, WorkflowId};
use super::time::Timestamp;

/// Maximum delay of an on-time firing, regardless of `catch_up_seconds`.
pub const ON_TIME: Duration = Duration::from_secs(10);
/// How often a schedule with waiting firings checks whether the previous run has ended.
pub const POLL: Duration = Duration::from_secs(2);
/// Maximum number of waiting firings per schedule. Further firings are skipped.
pub const WAITING_MAX: usize = 100;
/// Decisions further in the future than this duration are considered the result of a wrong clock.
pub const CLOCK_ERROR: Duration = Duration::from_secs(24 * 3600);
/// Default of `catch_up_seconds`: how late a firing may start.
pub const CATCH_UP_DEFAULT: u64 = 3600;
/// Maximum of `catch_up_seconds`: a year.
pub const CATCH_UP_MAX: u64 = 366 * 24 * 3600;
/// Maximum of `jitter_seconds`: a day.
pub const JITTER_MAX: u32 = 24 * 3600;

/// Maximum length of a schedule's name, model, version, fallback chain or time zone, in characters.
pub const NAME_MAX: usize = 200;

/// A stored schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    pub id: ScheduleId,
    pub organization: OrganizationId,
    /// The API key that created the schedule. The schedule's executions are recorded under this
    /// key.
    pub key: KeyId,
    pub target: Target,
    pub cron: String,
    pub timezone: String,
    /// The inputs of the workflow or the input of the model, an object.
    pub input: Value,
    pub overlap: Overlap,
    pub catch_up_seconds: u64,
    pub jitter_seconds: u32,
    pub paused: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// All firings up to this time have been decided.
    pub decided_until: Timestamp,
    /// The next firing of the calendar, without jitter; `None` while paused and after the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// When to check the schedule again. The schedule's timer is set to this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    /// Firings that wait for the previous run to end, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Timestamp>,
    /// The result of the last decided firing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastRun>,
    /// The execution that was started last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<ExecutionId>,
    /// The display name; need not be unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The work that a schedule starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    Workflow {
        workflow: WorkflowId,
        /// The version's id; `None` means the version that is latest when the schedule fires.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
    },
    Model {
        model: String,
        version: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fallback_selector: Option<String>,
    },
}

/// What a firing does if the previous run is unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Skip the firing.
    Skip,
    /// Wait until the previous run ends.
    Queue,
    /// Cancel the previous run and start.
    CancelOther,
    /// Start in parallel.
    Allow,
}

impl Overlap {
    /// All rules.
    pub const ALL: [Self; 4] = [Self::Skip, Self::Queue, Self::CancelOther, Self::Allow];

    /// Returns the name that is used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Queue => "queue",
            Self::CancelOther => "cancel_other",
            Self::Allow => "allow",
        }
    }
}

/// The result of a firing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// The scheduled time, without jitter.
    pub scheduled_for: Timestamp,
    /// When the firing was decided.
    pub at: Timestamp,
    pub result: RunResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunResult {
    Started(ExecutionId),
    /// The previous run was unfinished.
    Skipped,
    /// The firing was noticed too late, as were all earlier firings since the last run.
    Missed,
    /// The run could not be started, for this reason.
    Refused(String),
}

/// The action that results from checking a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Nothing,
    /// Start the work of this firing.
    Start {
        scheduled_for: Timestamp,
        /// Cancel the previous run first.
        cancels: bool,
    },
}

impl Schedule {
    /// Sets the next check: at the next firing, or soon if firings are waiting.
    pub fn plan(&mut self, calendar: &Calendar, now: Timestamp) {
        self.next = if self.paused { None } else { self.next_firing(calendar, self.decided_until) };
        if self.paused {
            self.waiting.clear();
        }
        let poll = (!self.waiting.is_empty()).then(|| now.plus(POLL));
        let firing = self.next.map(|next| next.plus(self.jitter(next)));
        self.due = firing.into_iter().chain(poll).min();
    }

    /// Decides at most one due firing. If more firings are due, the new `due` is already in the
    /// past.
    pub fn turn(&mut self, calendar: &Calendar, now: Timestamp, is_running: bool) -> Turn {
        let mut turn = Turn::Nothing;
        if let Some(next) = self.next.filter(|next| next.plus(self.jitter(*next)) <= now) {
            turn = self.decide(calendar, now, next, is_running);
        }
        if turn == Turn::Nothing && !is_running && !self.waiting.is_empty() {
            let scheduled_for = self.waiting.remove(0);
            turn = Turn::Start { scheduled_for, cancels: false };
        }
        self.plan(calendar, now);
        turn
    }

    /// Records whether a firing could start its execution.
    pub fn note(&mut self, scheduled_for: Timestamp, at: Timestamp, result: RunResult) {
        if let RunResult::Started(execution) = &result {
            self.latest = Some(*execution);
        }
        self.last = Some(LastRun { scheduled_for, at, result });
    }

    /// Discards decisions made while the clock was far ahead. Returns whether there were any.
    pub fn realign(&mut self, calendar: &Calendar, now: Timestamp) -> bool {
        if self.decided_until <= now.plus(CLOCK_ERROR) {
            return false;
        }
        self.decided_until = now;
        self.waiting.retain(|waiting| *waiting <= now);
        self.plan(calendar, now);
        true
    }

    /// Returns the next `count` firings, without jitter.
    #[must_use]
    pub fn next_firings(&self, calendar: &Calendar, count: usize) -> Vec<Timestamp> {
        let next = |moment: &Timestamp| self.next_firing(calendar, *moment);
        std::iter::successors(self.next, next).take(count).collect()
    }

    fn decide(
        &mut self,
        calendar: &Calendar,
        now: Timestamp,
        next: Timestamp,
        is_running: bool,
    ) -> Turn {
        let is_on_time = now <= next.plus(self.jitter(next)).plus(ON_TIME);
        let firing = if is_on_time {
            next
        } else {
            // After an outage, only the last missed firing is considered.
            let until = self.ends_at.map_or(now, |end| end.min(now));
            calendar.last_until(until).map_or(next, |last| last.max(next))
        };
        self.decided_until = firing;
        let late = Duration::from_secs(self.catch_up_seconds).max(ON_TIME);
        if now > firing.plus(self.jitter(firing)).plus(late) {
            self.note(firing, now, RunResult::Missed);
            return Turn::Nothing;
        }
        let start = Turn::Start { scheduled_for: firing, cancels: false };
        match self.overlap {
            Overlap::Allow => start,
            Overlap::CancelOther => Turn::Start { scheduled_for: firing, cancels: is_running },
            Overlap::Queue if !self.waiting.is_empty() || is_running => {
                if self.waiting.len() < WAITING_MAX {
                    self.waiting.push(firing);
                } else {
                    self.note(firing, now, RunResult::Skipped);
                }
                Turn::Nothing
            }
            Overlap::Skip if is_running => {
                self.note(firing, now, RunResult::Skipped);
                Turn::Nothing
            }
            Overlap::Queue | Overlap::Skip => start,
        }
    }

    fn next_firing(&self, calendar: &Calendar, after: Timestamp) -> Option<Timestamp> {
        let second = Duration::from_secs(1);
        let start = self.starts_at.and_then(|start| start.before(second));
        let after = start.map_or(after, |start| start.max(after));
        let next = calendar.next_after(after)?;
        Some(next).filter(|next| self.ends_at.is_none_or(|end| *next <= end))
    }

    /// Returns the delay of a firing. The delay is the same at each check, but differs between
    /// schedules and firings.
    fn jitter(&self, firing: Timestamp) -> Duration {
        let [_, _, _, _, _, _, _, _, seed @ ..] = self.id.bytes();
        let mixed = mix(u64::from_be_bytes(seed) ^ firing.micros().cast_unsigned());
        let most = u64::from(self.jitter_seconds).saturating_mul(1000);
        Duration::from_millis(mixed.checked_rem(most.saturating_add(1)).unwrap_or_default())
    }
}

/// Mixes the bits of `seed` with the finalizer of SplitMix64.
const fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
