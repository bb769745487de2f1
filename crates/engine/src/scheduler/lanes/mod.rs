//! Lanes: decide which execution runs next.
//!
//! Each model and each workflow has a lane with its own cap on running executions; the lanes take
//! turns in receiving permits. Within a lane, organizations take turns, each in FIFO order. The
//! rows of a lane are on disk, ordered by organization. Only a window with the first rows of each
//! organization is in memory, so a backlog of a million rows takes almost no memory. When an
//! organization has no ticket left in the window, its next rows are read when its turn comes. A
//! read never scans rows of other organizations.
//!
//! There is only one way to put an execution into a lane: call [`Lanes::reserve`] or
//! [`Lanes::reserve_accepted`] before the commit that adds the execution's row, and
//! [`Lanes::enqueue`] in that commit's hook. In between, the row may already be visible, so a
//! refill skips it. If a commit deletes the row of an execution that is not running, the commit's
//! hook calls [`Lanes::forget`].
//!
//! Steps of running workflows wait for permits in the lanes of their models. These steps share the
//! lane's cap with the lane's own executions and alternate with these executions, but do not count
//! as running executions, since their workflow already counts as one. A workflow that only waits
//! for model permits is parked: it does not count as a running execution until it continues.
//!
//! When all permits are taken, a lane that runs nothing may still start one execution, so stuck
//! lanes never block an idle lane. An organization that runs fewer than [`OWN_PLACES`] executions
//! may also start executions, in any lane below its cap, so that it never waits for other
//! organizations. In a workflow's lane, or in the lane of a model whose runner has permits of its
//! own, an organization that runs nothing in the lane may start one execution above the lane's cap.
//!
//! An organization may have a cap across all lanes. If an organization is at its cap when its turn
//! comes, its tickets are dropped from the window, and their rows stay on disk until one of the
//! organization's executions releases its permit. The lanes in which the organization waits then
//! take turns, and only as many rows are read as it may start executions. An execution that only
//! waits for executions that it has started does not count toward the cap.
//!
//! This module does no I/O and never blocks: [`Lanes::next`] returns the next action, and the
//! caller performs it.

mod caps;
mod lane;
mod lines;
mod organizations;
mod places;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

pub(crate) use self::lane::Parking;
use self::lane::{Lane, Left};
use self::organizations::Organizations;
use orrery_domain::ids::{ExecutionId, OrganizationId};

/// Maximum number of executions per lane that are queued in memory; further executions are queued
/// only on disk.
pub(crate) const WINDOW: usize = 256;
/// The number of executions that each organization may have queued in memory, even if the window is
/// full.
pub(crate) const SHARE: usize = 16;
/// The number of executions that each organization may always run, regardless of what other
/// organizations run. This number is lower if there are few permits.
pub(crate) const OWN_PLACES: usize = 16;
/// Maximum number of executions per lane that may wait for a retry. At this limit, the lane starts
/// no new executions, since they would probably fail for the same reason.
pub(crate) const PAUSED_MAX: usize = 1024;

/// A queued execution. `T` is caller-defined data.
#[derive(Debug)]
pub(crate) struct Ticket<T> {
    pub id: ExecutionId,
    pub organization: OrganizationId,
    pub payload: T,
}

/// The next action of the dispatcher.
#[derive(Debug)]
pub(crate) enum Next<T, G> {
    /// Admit this waiting step; its lane has already counted it.
    AdmitStep { lane: Arc<str>, of: Option<OrganizationId>, waiter: G },
    /// Start this execution; its lane has already counted it as running. The task that runs the
    /// execution must hold `task` until it ends.
    Start { lane: Arc<str>, ticket: Ticket<T>, task: Arc<()> },
    /// Read up to `most` rows of this organization in this lane, starting at `from`, and pass them
    /// to [`Lanes::refilled`].
    Refill { lane: Arc<str>, organization: OrganizationId, from: ExecutionId, most: usize },
}

/// An organization's running and queued executions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OrganizationLoad {
    pub running: usize,
    /// Executions that are accepted, unfinished and not running.
    pub queued: usize,
}

/// The state of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    pub running: usize,
    pub queued: usize,
    pub cap: usize,
}

/// The queue is full; nothing was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("queue full: {queued} executions queued")]
pub(crate) struct Full {
    pub queued: usize,
}

/// All lanes, and the schedule of the lanes that have work.
#[derive(Debug)]
pub(crate) struct Lanes<T, G> {
    lanes: HashMap<Arc<str>, Lane<T, G>>,
    schedule: VecDeque<Arc<str>>,
    /// Lanes that may start an execution although all permits are taken: lanes that run nothing,
    /// and lanes with queued work of an organization that runs fewer executions than it may always
    /// run.
    idle_schedule: VecDeque<Arc<str>>,
    /// Organizations that run fewer executions than before and have work waiting in some lane.
    relieved: HashSet<OrganizationId>,
    /// Lanes that have a waiting step and may have a free permit for it.
    step_turn: VecDeque<Arc<str>>,
    /// Organizations that have work waiting in lanes and are below their caps again.
    woken: VecDeque<OrganizationId>,
    /// Organizations whose rows were just read. These organizations are woken once the lanes have
    /// started everything that they can.
    refilled: Vec<OrganizationId>,
    organizations: Organizations,
    last_waiter: u64,
    active: usize,
    /// Number of parked executions, which are in memory but hold no permit.
    parked: usize,
    active_cap: usize,
    /// Whether starts are suspended; steps are still admitted.
    is_held: bool,
}

impl<T, G> Lanes<T, G> {
    /// Creates an empty set of lanes. At most `active_cap` executions run at once across all lanes.
    /// Beyond that, each idle lane may run one execution, and each organization may run up to
    /// [`OWN_PLACES`].
    #[must_use]
    pub(crate) fn new(active_cap: usize) -> Self {
        Self {
            lanes: HashMap::new(),
            schedule: VecDeque::new(),
            idle_schedule: VecDeque::new(),
            relieved: HashSet::new(),
            step_turn: VecDeque::new(),
            woken: VecDeque::new(),
            refilled: Vec::new(),
            organizations: Organizations::default(),
            last_waiter: 0,
            active: 0,
            parked: 0,
            active_cap: active_cap.max(1),
            is_held: false,
        }
    }

    /// Suspends all starts until called again with `false`. Waiting steps are still admitted.
    pub(crate) fn hold_starts(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether starts are suspended.
    #[must_use]
    pub(crate) fn holds_starts(&self) -> bool {
        self.is_held
    }

    /// Counts an execution that is on disk as running. The caller starts it in a task that holds
    /// the returned handle. Returns `None` if the lane already has the execution in memory.
    pub(crate) fn start_quarantined(
        &mut self,
        name: &str,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Option<Arc<()>> {
        let task = self.lanes.get_mut(name)?.start_quarantined(organization, id)?;
        self.active += 1;
        self.organizations.started(organization);
        Some(task)
    }

    /// Creates the lane or changes its limits. Executions above a lowered cap keep running.
    pub(crate) fn set_limits(&mut self, name: &str, cap: usize, queue_limit: usize) {
        let cap = cap.max(1);
        let lane = self.lanes.entry(Arc::from(name)).or_insert_with(|| Lane::new(cap, queue_limit));
        lane.cap = cap;
        lane.queue_limit = queue_limit;
        self.wake_steps(name);
        self.schedule_lane(name);
    }

    // --- adding ---

    /// Announces new work before the commit that adds its row. The work is counted at once, so that
    /// concurrent announcements cannot exceed the limit. After every announcement, the caller calls
    /// either [`Lanes::enqueue`] or [`Lanes::cancel_reservation`].
    ///
    /// # Errors
    /// [`Full`] if the lane's queue is full.
    pub(crate) fn reserve(&mut self, name: &str, id: ExecutionId) -> Result<(), Full> {
        let Some(lane) = self.lanes.get_mut(name) else { return Ok(()) };
        if lane.queued() >= lane.queue_limit {
            return Err(Full { queued: lane.queued() });
        }
        lane.reserve(id);
        Ok(())
    }

    /// Like [`Lanes::reserve`], but without a limit. Used for work that was already accepted (the
    /// next model of a chain, a timer) and must never be rejected.
    pub(crate) fn reserve_accepted(&mut self, name: &str, id: ExecutionId) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.reserve(id);
        }
    }

    /// Withdraws the announcement of a failed commit.
    pub(crate) fn cancel_reservation(&mut self, name: &str, id: ExecutionId) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.cancel_reservation(id);
        }
    }

    /// Adds an announced execution whose row is durable to the end of its lane.
    pub(crate) fn enqueue(&mut self, name: &str, ticket: Ticket<T>) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.enqueue(ticket);
        }
        self.schedule_lane(name);
    }

    /// Counts rows of an organization that are only on disk, none of which is older than `from`. A
    /// count of 0 makes the lane read the rows without counting any.
    pub(crate) fn count_stored(
        &mut self,
        name: &str,
        organization: OrganizationId,
        from: ExecutionId,
        count: usize,
    ) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.count_stored(organization, from, count);
        }
        self.schedule_lane(name);
    }

    /// Whether a ticket that is enqueued now would stay in memory.
    #[must_use]
    pub(crate) fn has_room(&self, name: &str, organization: OrganizationId) -> bool {
        self.lanes.get(name).is_some_and(|lane| lane.has_room(organization))
    }

    /// Whether the lane has the execution in memory: it is queued in the window, running or paused,
    /// or the commit that adds its row is in progress.
    #[must_use]
    pub(crate) fn knows(&self, name: &str, id: ExecutionId) -> bool {
        self.lanes.get(name).is_some_and(|lane| lane.knows(id))
    }

    /// Whether a running execution was put back into the lane before it released its permit.
    #[must_use]
    pub(crate) fn is_requeued(&self, name: &str, id: ExecutionId) -> bool {
        self.lanes.get(name).is_some_and(|lane| lane.is_requeued(id))
    }

    // --- running ---

    /// Returns the next action, or `None` if nothing can start until something ends.
    pub(crate) fn next(&mut self) -> Option<Next<T, G>> {
        if let Some(admit) = self.next_step() {
            return Some(admit);
        }
        if self.is_held {
            return None;
        }
        // First read the rows of organizations that are below their caps again, before other
        // organizations take the permits. Check for waiting steps again at the end: they may have
        // been held back for an execution of their lane that turned out to be unable to start.
        let next = self.next_woken().or_else(|| self.next_start());
        next.or_else(|| self.next_refilled()).or_else(|| self.next_step())
    }

    /// Whether [`Lanes::next`] may return an action. Returns false if all work in the lanes has to
    /// wait.
    #[must_use]
    pub(crate) fn has_turns(&self) -> bool {
        let has_lanes = match self.is_full() {
            true => !self.idle_schedule.is_empty() || !self.relieved.is_empty(),
            false => !self.schedule.is_empty(),
        };
        let has_reads = !self.woken.is_empty() || !self.refilled.is_empty();
        has_reads || has_lanes || !self.step_turn.is_empty()
    }

    fn next_start(&mut self) -> Option<Next<T, G>> {
        if self.is_full() {
            return self.next_without_place();
        }
        while let Some(name) = self.schedule.pop_front() {
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            lane.in_turn = false;
            if let Some(next) = self.next_of(&name) {
                return Some(next);
            }
        }
        // No lane can start anything, and that includes the lanes in the idle schedule.
        for name in self.idle_schedule.drain(..) {
            if let Some(lane) = self.lanes.get_mut(&name) {
                lane.in_idle_turn = false;
            }
        }
        self.relieved.clear();
        None
    }

    fn next_of(&mut self, name: &Arc<str>) -> Option<Next<T, G>> {
        self.put_back_blocked(name);
        if let Some(refill) = self.next_refill(name) {
            return Some(refill);
        }
        let organization = self.whose_turn(name)?;
        let (ticket, task) = self.lanes.get_mut(name)?.start(organization)?;
        self.active += 1;
        self.organizations.started(ticket.organization);
        self.wake_steps(name);
        self.schedule_lane(name);
        Some(Next::Start { lane: Arc::clone(name), ticket, task })
    }

    /// Whether all permits are taken. Parked executions hold memory but no permit, so running and
    /// parked executions together are limited to twice the number of permits.
    const fn is_full(&self) -> bool {
        self.active >= self.active_cap
            || self.active + self.parked >= self.active_cap.saturating_mul(2)
    }

    /// Releases the permit of a running execution.
    pub(crate) fn release(&mut self, name: &str, id: ExecutionId) {
        let left = self.lanes.get_mut(name).and_then(|lane| lane.release(id));
        self.count_out(name, left);
    }

    /// Releases the permit of a failed execution, which waits for [`Lanes::resume`].
    pub(crate) fn pause(&mut self, name: &str, ticket: Ticket<T>) {
        let left = self.lanes.get_mut(name).and_then(|lane| lane.pause(ticket));
        self.count_out(name, left);
    }

    fn count_out(&mut self, name: &str, left: Option<Left>) {
        match left.map(|left| left.parking) {
            Some(Parking::Not) => self.active = self.active.saturating_sub(1),
            Some(Parking::ForModels | Parking::ForOthers) => {
                self.parked = self.parked.saturating_sub(1);
            }
            None => {}
        }
        self.wake_steps(name);
        self.schedule_lane(name);
        if let Some(left) = left {
            self.organizations.left(left);
            self.wake_organization(left.organization);
            self.relieve(left.organization);
        }
    }

    /// Puts a paused execution back into the queue, sorted by its age.
    pub(crate) fn resume(&mut self, name: &str, id: ExecutionId) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.resume(id);
        }
        self.schedule_lane(name);
    }

    /// Records that a running execution now only waits, for the condition given by `parking`, or
    /// that it continues. An execution that continues takes its permit back even if no permit is
    /// free.
    pub(crate) fn park(&mut self, name: &str, id: ExecutionId, parking: Parking) {
        let Some(before) = self.lanes.get_mut(name).and_then(|lane| lane.park(id, parking)) else {
            return;
        };
        match (before.parking, parking) {
            (Parking::Not, _) => {
                self.active = self.active.saturating_sub(1);
                self.parked += 1;
            }
            (_, Parking::Not) => {
                self.active += 1;
                self.parked = self.parked.saturating_sub(1);
            }
            (Parking::ForModels | Parking::ForOthers, Parking::ForModels | Parking::ForOthers) => {}
        }
        let yielded = before.parking == Parking::ForOthers;
        let yields = parking == Parking::ForOthers;
        if yielded != yields {
            self.organizations.yields(before.organization, yields);
            self.wake_organization(before.organization);
            self.relieve(before.organization);
        }
    }

    /// Removes a queued execution whose row was deleted because it was cancelled. A running
    /// execution is kept until its permit is released.
    pub(crate) fn forget(&mut self, name: &str, id: ExecutionId) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.forget(id);
        }
        self.wake_steps(name);
        self.schedule_lane(name);
    }

    /// Removes a lane that is empty in memory and on disk. Needed because clients can create any
    /// number of session lanes.
    pub(crate) fn remove_unused(&mut self, name: &str) {
        if self.lanes.get(name).is_some_and(Lane::is_unused) {
            self.lanes.remove(name);
        }
    }

    // --- waiting steps ---

    /// Returns the next waiting step whose lane has a free permit, unless the lane's own executions
    /// are next.
    fn next_step(&mut self) -> Option<Next<T, G>> {
        while let Some(name) = self.step_turn.pop_front() {
            let has_own_turn = !self.is_held && self.whose_turn(&name).is_some();
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            if !lane.has_free_permit() || (lane.step_was_last && has_own_turn) {
                continue;
            }
            let Some((of, (_, waiter))) = lane.waiting_steps.pop() else { continue };
            lane.admit_step(of);
            lane.step_was_last = true;
            self.wake_steps(&name);
            return Some(Next::AdmitStep { lane: name, of, waiter });
        }
        None
    }

    /// Admits a step at once if a permit is free and no other work is waiting for it. Returns
    /// whether the step was admitted.
    pub(crate) fn try_acquire(&mut self, name: &str, of: Option<OrganizationId>) -> bool {
        let Some(lane) = self.lanes.get_mut(name) else { return false };
        let is_free =
            lane.has_free_permit() && lane.waiting_steps.is_empty() && !lane.has_waiting();
        if is_free {
            lane.admit_step(of);
        }
        is_free
    }

    /// Checks whether one more step may wait.
    ///
    /// # Errors
    /// [`Full`] if the lane's queue is full.
    pub(crate) fn has_room_for_step(&self, name: &str) -> Result<(), Full> {
        let Some(lane) = self.lanes.get(name) else { return Ok(()) };
        let queued = lane.waiting_steps.len();
        if queued >= lane.queue_limit.max(1) { Err(Full { queued }) } else { Ok(()) }
    }

    /// Adds a waiting step to the end of its organization's line, or in front of all other waiting
    /// steps. Returns a number for [`Lanes::cancel_wait`].
    pub(crate) fn enqueue_step(
        &mut self,
        name: &str,
        organization: Option<OrganizationId>,
        waiter: G,
        is_first: bool,
    ) -> u64 {
        self.last_waiter += 1;
        if let Some(lane) = self.lanes.get_mut(name) {
            let entry = (self.last_waiter, waiter);
            if is_first {
                lane.waiting_steps.push_front(organization, entry);
            } else {
                lane.waiting_steps.push_back(organization, entry);
            }
        }
        self.wake_steps(name);
        self.last_waiter
    }

    /// Removes a waiting step.
    pub(crate) fn cancel_wait(&mut self, name: &str, number: u64) {
        if let Some(lane) = self.lanes.get_mut(name) {
            drop(lane.waiting_steps.remove(|(held, _)| *held == number));
        }
    }

    /// Releases the permit of an admitted step.
    pub(crate) fn release_step(&mut self, name: &str, of: Option<OrganizationId>) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.release_step(of);
        }
        self.wake_steps(name);
        self.schedule_lane(name);
    }

    // --- inspection ---

    /// Returns the load of a lane.
    #[must_use]
    pub(crate) fn load(&self, name: &str) -> Load {
        self.lanes.get(name).map_or_else(Load::default, Lane::load)
    }

    /// Returns the numbers of running and queued executions across all lanes.
    #[must_use]
    pub(crate) fn totals(&self) -> (usize, usize) {
        (self.active + self.parked, self.lanes.values().map(Lane::queued).sum())
    }

    /// Returns the position of a queued execution, starting at 1, or `None` if it is beyond the
    /// window.
    #[must_use]
    pub(crate) fn position(&self, name: &str, id: ExecutionId) -> Option<usize> {
        self.lanes.get(name)?.position(id)
    }

    /// Returns the names of all lanes.
    #[must_use]
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        self.lanes.keys().cloned().collect()
    }

    /// Returns all lanes with their load.
    #[must_use]
    pub(crate) fn loads(&self) -> Vec<(Arc<str>, Load)> {
        self.lanes.iter().map(|(name, lane)| (Arc::clone(name), lane.load())).collect()
    }

    // --- consistency check ---

    /// Returns running executions whose task ended without releasing its permit. The result is
    /// empty unless this module has a bug.
    #[must_use]
    pub(crate) fn leaked(&self) -> Vec<(Arc<str>, OrganizationId, ExecutionId)> {
        let lanes = self.lanes.iter();
        let leaked = lanes.flat_map(|(name, lane)| {
            lane.leaked().map(move |(organization, id)| (Arc::clone(name), organization, id))
        });
        leaked.collect()
    }

    /// Recounts the permits and corrects wrong counts. Returns true if the counts were wrong.
    pub(crate) fn recount(&mut self) -> bool {
        let runs: Vec<Left> = self.lanes.values().flat_map(Lane::runs).collect();
        let parked = runs.iter().filter(|run| run.parking != Parking::Not).count();
        let active = runs.len().saturating_sub(parked);
        let was_wrong = (self.active, self.parked) != (active, parked);
        (self.active, self.parked) = (active, parked);
        let yields = |run: &Left| (run.organization, run.parking == Parking::ForOthers);
        self.organizations.recount(runs.iter().map(yields)) || was_wrong
    }

    /// Returns the number of executions that the lane has in memory, or `None` if the lane has rows
    /// that are only on disk.
    #[must_use]
    pub(crate) fn complete_len(&self, name: &str) -> Option<usize> {
        self.lanes.get(name)?.complete_len()
    }

    // --- schedule ---

    /// Schedules the lane's waiting steps if one of them may be admitted.
    fn wake_steps(&mut self, name: &str) {
        let Some((name, lane)) = self.lanes.get_key_value(name) else { return };
        if !lane.waiting_steps.is_empty() && lane.has_free_permit() {
            self.step_turn.push_back(Arc::clone(name));
        }
    }

    /// Adds the lane to the end of the schedule if it has something to do and is not scheduled yet.
    fn schedule_lane(&mut self, name: &str) {
        let Some((name, lane)) = self.lanes.get_key_value(name) else { return };
        if !(lane.can_start() || lane.wants_refill()) {
            return;
        }
        let needs_no_place = lane.is_idle() || lane.has_one(|one| self.has_own_place(one));
        let name = Arc::clone(name);
        let Some(lane) = self.lanes.get_mut(&name) else { return };
        if !std::mem::replace(&mut lane.in_turn, true) {
            self.schedule.push_back(Arc::clone(&name));
        }
        if needs_no_place && !std::mem::replace(&mut lane.in_idle_turn, true) {
            self.idle_schedule.push_back(name);
        }
    }
}

#[cfg(test)]
mod caps_tests;
#[cfg(test)]
mod places_tests;
#[cfg(test)]
mod tests;
