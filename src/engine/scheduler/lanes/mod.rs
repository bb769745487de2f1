//! Lanes: who runs next.
//!
//! Each model and each workflow has a lane of its own, with its own cap of running executions;
//! places are given to the lanes in turn. In a lane, organizations take turns, each first in, first
//! out. The rows of a lane are on disk, ordered by organization. Memory holds only a window with
//! the first rows of each organization, so that a backlog of a million rows takes no memory. When
//! nothing of an organization is left in the window, its next rows are read, in turns with those of
//! others: no read passes over rows of other organizations.
//!
//! An execution gets into a lane in one way: [`Lanes::reserve`] or [`Lanes::reserve_accepted`] before the
//! commit that adds its row, [`Lanes::enqueue`] by that commit's hook. Between the two its row may
//! be visible, so a refill passes over it. [`Lanes::forget`] is called by the hook of a commit that
//! deletes the row of one that does not run.
//!
//! The steps of running workflows come to a model's lane as guests: they share its cap with the
//! lane's own executions, in turn with them, and are not counted against the running executions,
//! since theirs has its place already. A workflow that does nothing but wait to be let in is parked:
//! it is not counted against the running executions until it goes on.
//!
//! When all places are taken, a lane that runs nothing may still start one: stuck lanes never keep
//! an idle one waiting. So may an organization that runs fewer than [`OWN_PLACES`], in any lane below its cap:
//! what others run never keeps it waiting. In a lane whose runs have places elsewhere, an organization that
//! runs nothing there starts one above the cap of the lane.
//!
//! An organization may have a cap of its own over all lanes. Its tickets are taken out of a window when
//! their turn comes and it may run no more: its rows are left to the disk until one of its executions
//! leaves its place. Then the lanes in which it waits take turns, and as many rows are read as it may start.
//! One that only waits for executions that it has started is not counted.
//!
//! No I/O and no waiting: [`Lanes::next`] says what to do, its caller does it.

mod caps;
mod lane;
mod lines;
mod organizations;
mod places;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

pub use self::lane::Parking;
use self::lane::{Lane, Left};
use self::organizations::Organizations;
use crate::domain::ids::{ExecutionId, OrganizationId};

/// How many executions of a lane wait in memory; the others wait on the disk.
pub const WINDOW: usize = 256;
/// How many executions of one organization wait in memory, however many of others do.
pub const SHARE: usize = 16;
/// How many executions of one organization run at once, however many of others do; less where there are
/// few places.
pub const OWN_PLACES: usize = 16;
/// How many executions of one lane may wait for another try after a failure. With more, the lane
/// starts nothing new: what makes them fail would make that fail too.
pub const PAUSED_MAX: usize = 1024;

/// An execution that waits for its turn. `T` is what its taker needs.
#[derive(Debug)]
pub struct Ticket<T> {
    pub id: ExecutionId,
    pub organization: OrganizationId,
    pub payload: T,
}

/// What is to be done next.
#[derive(Debug)]
pub enum Next<T, G> {
    /// Let this guest in; its lane has counted it.
    AdmitStep { lane: Arc<str>, waiter: G },
    /// Start this one; its lane has counted it as running. The task that runs it keeps `task` as
    /// long as it lives.
    Start { lane: Arc<str>, ticket: Ticket<T>, task: Arc<()> },
    /// Read up to `most` rows of this organization in this lane, from this row on, and hand them to
    /// [`Lanes::refilled`].
    Refill { lane: Arc<str>, organization: OrganizationId, from: ExecutionId, most: usize },
}

/// What an organization has in the lanes and outside of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OrganizationLoad {
    pub running: usize,
    /// Accepted, not ended, and not running.
    pub queued: usize,
}

/// The state of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    pub running: usize,
    pub queued: usize,
    pub cap: usize,
}

/// The lane is full; nothing was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the queue holds {queued} and takes no more")]
pub struct Full {
    pub queued: usize,
}

/// All lanes, and the turn among those that have work.
#[derive(Debug)]
pub struct Lanes<T, G> {
    lanes: HashMap<Arc<str>, Lane<T, G>>,
    schedule: VecDeque<Arc<str>>,
    /// Lanes that may start one though all places are taken: they run nothing, or an organization waits there
    /// that runs fewer than its own places.
    idle_schedule: VecDeque<Arc<str>>,
    /// Organizations that run fewer than before and wait in some lane.
    relieved: HashSet<OrganizationId>,
    /// Lanes that may have room for a guest.
    step_turn: VecDeque<Arc<str>>,
    /// Organizations that wait in lanes and may run more.
    woken: VecDeque<OrganizationId>,
    /// Organizations for whom a lane was read: they are woken once it has started what it can.
    refilled: Vec<OrganizationId>,
    organizations: Organizations,
    last_waiter: u64,
    active: usize,
    /// Executions that are in memory and wait for a place at a model.
    parked: usize,
    active_cap: usize,
    /// Nothing is started, though guests are let in.
    is_held: bool,
}

impl<T, G> Lanes<T, G> {
    /// No lanes yet; at most `active_cap` executions run at once over all of them, one more in each lane that
    /// runs no other, and [`OWN_PLACES`] of each organization.
    #[must_use]
    pub fn new(active_cap: usize) -> Self {
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

    /// Starts nothing until it is called again with `false`. Guests are still let in.
    pub fn hold_starts(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether nothing is started now.
    #[must_use]
    pub fn holds_starts(&self) -> bool {
        self.is_held
    }

    /// Counts one that waits on the disk as running: its caller starts it, in a task that keeps what
    /// this gives. `None`: the lane knows it already.
    pub fn start_quarantined(
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

    /// Makes the lane or changes its limits; running ones above a lowered cap run on.
    pub fn set_limits(&mut self, name: &str, cap: usize, queue_limit: usize) {
        let cap = cap.max(1);
        let lane = self.lanes.entry(Arc::from(name)).or_insert_with(|| Lane::new(cap, queue_limit));
        lane.cap = cap;
        lane.queue_limit = queue_limit;
        self.wake_steps(name);
        self.schedule_lane(name);
    }

    // --- into a lane ---

    /// Announces new work, before the commit that adds its row, and counts it, so that the limit
    /// holds under concurrency. Each announcement ends in [`Lanes::enqueue`] or [`Lanes::cancel_reservation`].
    ///
    /// # Errors
    /// [`Full`] when the lane holds its limit.
    pub fn reserve(&mut self, name: &str, id: ExecutionId) -> Result<(), Full> {
        let Some(lane) = self.lanes.get_mut(name) else { return Ok(()) };
        if lane.queued() >= lane.queue_limit {
            return Err(Full { queued: lane.queued() });
        }
        lane.reserve(id);
        Ok(())
    }

    /// As [`Lanes::reserve`], whatever the limit says: work that was accepted before (the next model
    /// of a chain, a timer) is never refused.
    pub fn reserve_accepted(&mut self, name: &str, id: ExecutionId) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.reserve(id);
        }
    }

    /// The announced commit has failed: takes the announcement back.
    pub fn cancel_reservation(&mut self, name: &str, id: ExecutionId) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.cancel_reservation(id);
        }
    }

    /// The announced row is durable: the execution waits at the end of its lane.
    pub fn enqueue(&mut self, name: &str, ticket: Ticket<T>) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.enqueue(ticket);
        }
        self.schedule_lane(name);
    }

    /// Counts rows of an organization that are only on the disk and not in memory, none older than
    /// `from`. A count of 0 counts nothing, and only has the lane read the rows.
    pub fn count_stored(
        &mut self,
        name: &str,
        (organization, from): (OrganizationId, ExecutionId),
        count: usize,
    ) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.count_stored(organization, from, count);
        }
        self.schedule_lane(name);
    }

    /// Whether a ticket enlisted now would wait in memory; decides whether to keep its state too.
    #[must_use]
    pub fn has_room(&self, name: &str, organization: OrganizationId) -> bool {
        self.lanes.get(name).is_some_and(|lane| lane.has_room(organization))
    }

    /// Whether the lane knows the execution in memory: it waits in the window, runs, is paused, or
    /// is being committed.
    #[must_use]
    pub fn knows(&self, name: &str, id: ExecutionId) -> bool {
        self.lanes.get(name).is_some_and(|lane| lane.knows(id))
    }

    /// Whether a running one was put back into the lane before it has left its place.
    #[must_use]
    pub fn is_requeued(&self, name: &str, id: ExecutionId) -> bool {
        self.lanes.get(name).is_some_and(|lane| lane.is_requeued(id))
    }

    // --- through a lane ---

    /// What to do next; `None` when nothing can start before something ends.
    pub fn next(&mut self) -> Option<Next<T, G>> {
        if let Some(admit) = self.next_step() {
            return Some(admit);
        }
        if self.is_held {
            return None;
        }
        // What may run more again is read before others take the place. A lane whose own turn it was may
        // have had nothing to start: then its guests go on.
        let next = self.next_woken().or_else(|| self.next_start());
        next.or_else(|| self.next_refilled()).or_else(|| self.next_step())
    }

    /// Whether [`Lanes::next`] may have something to do. False as long as what was put in only waits.
    #[must_use]
    pub fn has_turns(&self) -> bool {
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
        // No lane can start anything, so none of these can either.
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

    /// Whether every place is taken. Parked executions hold memory, if no place, so there are never
    /// more of both together than twice the places.
    const fn is_full(&self) -> bool {
        self.active >= self.active_cap
            || self.active + self.parked >= self.active_cap.saturating_mul(2)
    }

    /// A running one has left its place.
    pub fn release(&mut self, name: &str, id: ExecutionId) {
        let left = self.lanes.get_mut(name).and_then(|lane| lane.release(id));
        self.count_out(name, left);
    }

    /// A running one has failed: it leaves its place and waits for [`Lanes::resume`].
    pub fn pause(&mut self, name: &str, ticket: Ticket<T>) {
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

    /// A paused one waits for its turn again, as old as it is.
    pub fn resume(&mut self, name: &str, id: ExecutionId) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.resume(id);
        }
        self.schedule_lane(name);
    }

    /// A running one only waits from now on, for what `parking` says, or no longer does. One that goes
    /// on takes its place back whether or not one is free: what it waited for is there.
    pub fn park(&mut self, name: &str, id: ExecutionId, parking: Parking) {
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

    /// The row of one that did not run has been deleted (it was cancelled). A running one is left to
    /// its release.
    pub fn forget(&mut self, name: &str, id: ExecutionId) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.forget(id);
        }
        self.wake_steps(name);
        self.schedule_lane(name);
    }

    /// Removes a lane in which nothing is, in memory or on the disk. Clients make the lanes of sessions,
    /// any number of them.
    pub fn remove_unused(&mut self, name: &str) {
        if self.lanes.get(name).is_some_and(Lane::is_unused) {
            self.lanes.remove(name);
        }
    }

    // --- guests ---

    /// The next guest whose lane has room, unless it is the turn of the lane's own.
    fn next_step(&mut self) -> Option<Next<T, G>> {
        while let Some(name) = self.step_turn.pop_front() {
            let has_own_turn = !self.is_held && self.whose_turn(&name).is_some();
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            if !lane.has_place() || (lane.guest_was_last && has_own_turn) {
                continue;
            }
            let Some((_, waiter)) = lane.waiting_steps.pop() else { continue };
            lane.visiting += 1;
            lane.guest_was_last = true;
            self.wake_steps(&name);
            return Some(Next::AdmitStep { lane: name, waiter });
        }
        None
    }

    /// Lets a guest in at once, when there is a place and nobody waits for it. True: it is in.
    pub fn try_acquire(&mut self, name: &str) -> bool {
        let Some(lane) = self.lanes.get_mut(name) else { return false };
        let is_free = lane.has_place() && lane.waiting_steps.is_empty() && !lane.has_waiting();
        if is_free {
            lane.visiting += 1;
        }
        is_free
    }

    /// Whether one more guest may wait.
    ///
    /// # Errors
    /// [`Full`] when as many wait as the lane's queue may hold.
    pub fn has_room_for_step(&self, name: &str) -> Result<(), Full> {
        let Some(lane) = self.lanes.get(name) else { return Ok(()) };
        let queued = lane.waiting_steps.len();
        if queued >= lane.queue_limit.max(1) { Err(Full { queued }) } else { Ok(()) }
    }

    /// Puts a guest at the end of its organization's line, or before all others; its number takes it back.
    pub fn enqueue_step(
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

    /// A guest waits no more.
    pub fn cancel_wait(&mut self, name: &str, number: u64) {
        if let Some(lane) = self.lanes.get_mut(name) {
            drop(lane.waiting_steps.remove(|(held, _)| *held == number));
        }
    }

    /// A guest has gone.
    pub fn release_step(&mut self, name: &str) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.visiting = lane.visiting.saturating_sub(1);
        }
        self.wake_steps(name);
        self.schedule_lane(name);
    }

    // --- their state ---

    /// The state of the lane.
    #[must_use]
    pub fn load(&self, name: &str) -> Load {
        self.lanes.get(name).map_or_else(Load::default, Lane::load)
    }

    /// How many run and how many wait, over all lanes.
    #[must_use]
    pub fn totals(&self) -> (usize, usize) {
        (self.active + self.parked, self.lanes.values().map(Lane::queued).sum())
    }

    /// The place of a waiting execution, from 1; `None` when it waits behind the window.
    #[must_use]
    pub fn position(&self, name: &str, id: ExecutionId) -> Option<usize> {
        self.lanes.get(name)?.position(id)
    }

    /// Every lane's name.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        self.lanes.keys().cloned().collect()
    }

    /// All lanes there are, with what is in them.
    #[must_use]
    pub fn loads(&self) -> Vec<(Arc<str>, Load)> {
        self.lanes.iter().map(|(name, lane)| (Arc::clone(name), lane.load())).collect()
    }

    // --- for the audit ---

    /// Running executions whose task has ended without leaving its place: there are none, unless
    /// something is wrong here.
    #[must_use]
    pub fn leaked(&self) -> Vec<(Arc<str>, OrganizationId, ExecutionId)> {
        let lanes = self.lanes.iter();
        let leaked = lanes.flat_map(|(name, lane)| {
            lane.leaked().map(move |(organization, id)| (Arc::clone(name), organization, id))
        });
        leaked.collect()
    }

    /// Counts the places again; true when the counts were wrong, and are right from now on.
    pub fn recount(&mut self) -> bool {
        let runs: Vec<Left> = self.lanes.values().flat_map(Lane::runs).collect();
        let parked = runs.iter().filter(|run| run.parking != Parking::Not).count();
        let active = runs.len().saturating_sub(parked);
        let was_wrong = (self.active, self.parked) != (active, parked);
        (self.active, self.parked) = (active, parked);
        let yields = |run: &Left| (run.organization, run.parking == Parking::ForOthers);
        self.organizations.recount(runs.iter().map(yields)) || was_wrong
    }

    /// How many executions the lane knows in memory, if that is all of them; `None` when rows are
    /// behind them on the disk.
    #[must_use]
    pub fn complete_len(&self, name: &str) -> Option<usize> {
        self.lanes.get(name)?.complete_len()
    }

    // --- the turn ---

    /// Looks at the lane's guests with the next turn, if one of them may come in.
    fn wake_steps(&mut self, name: &str) {
        let Some((name, lane)) = self.lanes.get_key_value(name) else { return };
        if !lane.waiting_steps.is_empty() && lane.has_place() {
            self.step_turn.push_back(Arc::clone(name));
        }
    }

    /// Puts the lane at the end of the turn, if it has something to do and is not there.
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
